"""One broker's configuration: its server.properties.

Property names, types, defaults and legal values are Apache Kafka's; a field is listed when the
broker honours it.

Values are frozen: any thread. Direct construction (`BrokerConfig(broker_id=2)`) is typed but not
validated; `from_properties`, `from_file` and `log_config` validate.
"""

import difflib
import logging
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.config.definition import (
    BOOLEAN,
    DOUBLE,
    HOUR_MS,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    PASSWORD,
    SHORT,
    STRING,
    ConfigError,
    ConfigKey,
    Value,
    at_least,
    between,
    keys_of,
    legal,
    one_of,
    option,
    split_known,
)
from broker.config.endpoint import ADDRESS, IP_OVERRIDES, LISTENERS, ZOOKEEPER, Endpoint
from broker.config.log import (
    CODECS,
    GZIP_LEVELS,
    LOG_KEYS,
    POLICIES,
    TIMESTAMP_TYPES,
    LogConfig,
    check_lags,
    check_segment_bytes,
)
from broker.config.no_effect import (
    INTER_BROKER_VERSION,
    check_inter_broker_version,
    check_protection,
    warn_of_no_effect,
)
from broker.config.other_properties import other_property, without_listener
from pyspark_kafkalog.protocol.properties_text import parse_properties

__all__ = ["BROKER_FIELDS", "BROKER_KEYS", "RACK_AWARE", "BrokerConfig", "broker_config_key"]

_log = logging.getLogger(__name__)


# A cluster over ZooKeeper may have them stored; nothing here acts on them.
_TOPIC_CONFIGS_OF_3_9 = (
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.difference.max.ms",
)
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_META_ADDRESSES = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One broker's server.properties. Made by `from_properties` or `from_file`."""

    broker_id: int = option(
        "broker.id",
        INT,
        1,
        "This broker's number, unique in its cluster.",
        at_least(0),
        alias="node.id",
    )
    cluster_id: str | None = option(
        "cluster.id",
        STRING,
        None,
        "The cluster's id; generated and kept in the data directory when not set.",
    )
    listeners: tuple[str, ...] = option(
        "listeners",
        LIST,
        ("PLAINTEXT://:9092",),
        "Addresses to listen on, as PLAINTEXT://HOST:PORT; port 0 takes a free one.",
        LISTENERS,
        may_be_empty=False,
    )
    advertised_listeners: tuple[str, ...] | None = option(
        "advertised.listeners",
        LIST,
        None,
        "Addresses that clients are told to connect to; default: the listeners.",
        LISTENERS,
        may_be_empty=False,
    )
    leader_replication_throttled_rate: int | None = option(
        "leader.replication.throttled.rate",
        LONG,
        None,
        "Bytes a second that followers not in sync are sent of throttled replicas.",
        at_least(0),
    )
    follower_replication_throttled_rate: int | None = option(
        "follower.replication.throttled.rate",
        LONG,
        None,
        "Bytes a second that are fetched of throttled replicas that are not in sync.",
        at_least(0),
    )
    replication_quota_window_num: int = option(
        "replication.quota.window.num",
        INT,
        11,
        "Samples over which the rates of throttled replicas are measured.",
        at_least(1),
    )
    replication_quota_window_size_seconds: int = option(
        "replication.quota.window.size.seconds", INT, 1, "How long a sample takes.", at_least(1)
    )
    replica_selector_class: str | None = option(
        "replica.selector.class",
        STRING,
        None,
        "How the leader chooses the replica that a consumer reads (KIP-392): by the latter's "
        "client.rack, or always itself, which is what counts when this is not set.",
        one_of(RACK_AWARE, "org.apache.kafka.common.replica.LeaderSelector"),
    )
    broker_rack: str | None = option(
        "broker.rack", STRING, None, "Rack of this broker, as told to clients in Metadata."
    )
    zookeeper_connect: str | None = option(
        "zookeeper.connect",
        STRING,
        None,
        "ZooKeeper's servers, by which brokers are a cluster: HOST:PORT, comma-separated; a /PATH "
        "after the last is where this cluster's nodes are, and is made where it is missing.",
        ZOOKEEPER,
    )
    zookeeper_session_timeout_ms: int = option(
        "zookeeper.session.timeout.ms",
        INT,
        18_000,
        "Time without a word from this broker after which ZooKeeper gives it up.",
        at_least(1),
    )
    zookeeper_connection_timeout_ms: int | None = option(
        "zookeeper.connection.timeout.ms",
        INT,
        None,
        "How long the first connection may take; default: zookeeper.session.timeout.ms.",
        at_least(1),
    )
    zookeeper_max_in_flight_requests: int = option(
        "zookeeper.max.in.flight.requests",
        INT,
        10,
        "Most commits that are sent to ZooKeeper before the first is answered; 50 at most.",
        at_least(1),
    )
    zookeeper_set_acl: bool = option(
        "zookeeper.set.acl",
        BOOLEAN,
        False,
        "Whether nodes are made such that only this broker's user of ZooKeeper changes them, and "
        "reads those of users and brokers' properties. It needs one: by SASL (KAFKA_OPTS="
        "-Djava.security.auth.login.config) or by TLS.",
    )
    zookeeper_ssl_client_enable: bool = option(
        "zookeeper.ssl.client.enable", BOOLEAN, False, "Whether ZooKeeper is reached by TLS."
    )
    zookeeper_ssl_keystore_location: str | None = option(
        "zookeeper.ssl.keystore.location",
        STRING,
        None,
        "A PEM file with this broker's private key and certificates, in which order ever.",
    )
    zookeeper_ssl_keystore_password: str | None = option(
        "zookeeper.ssl.keystore.password", PASSWORD, None, "Of the private key, where it has one."
    )
    zookeeper_ssl_keystore_type: str | None = option(
        "zookeeper.ssl.keystore.type",
        STRING,
        None,
        "PEM, also where it is not set: Java's own formats are not read.",
        one_of("PEM"),
    )
    zookeeper_ssl_truststore_location: str | None = option(
        "zookeeper.ssl.truststore.location",
        STRING,
        None,
        "A PEM file with the certificates that ZooKeeper's is checked by; default: the system's.",
    )
    zookeeper_ssl_truststore_type: str | None = option(
        "zookeeper.ssl.truststore.type",
        STRING,
        None,
        "PEM, also where it is not set: Java's own formats are not read.",
        one_of("PEM"),
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = option(
        "zookeeper.ssl.endpoint.identification.algorithm",
        STRING,
        "HTTPS",
        "HTTPS: the certificate must name the host that was connected to; empty: any host's is "
        "taken.",
        one_of("HTTPS", "", any_case=True),
    )
    log_dir: tuple[str, ...] = option(
        "log.dir", LIST, ("/tmp/kafka-logs",), "Data directories, when log.dirs is not set."
    )
    log_dirs: tuple[str, ...] | None = option(
        "log.dirs", LIST, None, "Data directories, comma-separated."
    )
    num_partitions: int = option(
        "num.partitions", INT, 1, "Partitions of a topic created without a number.", at_least(1)
    )
    default_replication_factor: int = option(
        "default.replication.factor",
        INT,
        1,
        "Replicas of a topic created without a number.",
        at_least(1),
    )
    auto_create_topics_enable: bool = option(
        "auto.create.topics.enable", BOOLEAN, True, "Create a topic when a client first asks."
    )
    delete_topic_enable: bool = option(
        "delete.topic.enable", BOOLEAN, True, "Whether topics may be deleted."
    )
    min_insync_replicas: int = option(
        "min.insync.replicas", INT, 1, "In-sync replicas that acks=all needs.", at_least(1)
    )
    message_max_bytes: int = option(
        "message.max.bytes",
        INT,
        1_048_588,
        "Largest record batch (after compression) that a producer may append.",
        at_least(0),
    )
    compression_type: str = option(
        "compression.type",
        STRING,
        "producer",
        "Codec of stored batches; 'producer' keeps each batch as its producer compressed it.",
        CODECS,
    )
    compression_gzip_level: int = option(
        "compression.gzip.level",
        INT,
        -1,
        "Level of compression.type=gzip; -1 = the codec's default.",
        GZIP_LEVELS,
    )
    compression_lz4_level: int = option(
        "compression.lz4.level",
        INT,
        9,
        "Level of compression.type=lz4; 9, the default, is its fast mode.",
        between(1, 17),
    )
    compression_zstd_level: int = option(
        "compression.zstd.level", INT, 3, "Level of compression.type=zstd.", between(-131072, 22)
    )
    fetch_max_bytes: int = option(
        "fetch.max.bytes", INT, 55 << 20, "Largest answer to one fetch.", at_least(1024)
    )
    max_request_partition_size_limit: int = option(
        "max.request.partition.size.limit",
        INT,
        2000,
        "Most partitions in one answer of DescribeTopicPartitions.",
        at_least(1),
    )
    max_incremental_fetch_session_cache_slots: int = option(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Most fetch sessions at once; clients that get none send full fetches.",
        at_least(0),
    )
    socket_request_max_bytes: int = option(
        "socket.request.max.bytes", INT, 100 << 20, "Largest request accepted.", at_least(1)
    )
    socket_send_buffer_bytes: int = option(
        "socket.send.buffer.bytes",
        INT,
        102_400,
        "SO_SNDBUF of a connection; -1 = the system's default.",
        at_least(-1),
    )
    socket_receive_buffer_bytes: int = option(
        "socket.receive.buffer.bytes",
        INT,
        102_400,
        "SO_RCVBUF of a connection; -1 = the system's default.",
        at_least(-1),
    )
    socket_listen_backlog_size: int = option(
        "socket.listen.backlog.size", INT, 50, "Connections waiting for accept.", at_least(1)
    )
    queued_max_requests: int = option(
        "queued.max.requests",
        INT,
        500,
        "Kept and described; a connection has one request answered at a time.",
        at_least(1),
    )
    queued_max_request_bytes: int = option(
        "queued.max.request.bytes",
        LONG,
        -1,
        "Bytes of requests being received at which reading more of them waits; "
        "-1 = a quarter of the machine's memory.",
    )
    connections_max_idle_ms: int = option(
        "connections.max.idle.ms",
        LONG,
        600_000,
        "Idle time after which a connection is closed; negative = never.",
    )
    max_connections: int = option(
        "max.connections",
        INT,
        INT_MAX,
        "Connections at which no more are accepted; clients wait until one is closed.",
        at_least(0),
    )
    max_connections_per_ip: int = option(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        "Most connections from one address; more are closed at once.",
        at_least(0),
    )
    max_connections_per_ip_overrides: str = option(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "Other limits than max.connections.per.ip, as HOST:CONNECTIONS, comma-separated.",
        IP_OVERRIDES,
    )
    max_connection_creation_rate: int = option(
        "max.connection.creation.rate",
        INT,
        INT_MAX,
        "Connections accepted in a second; more wait.",
        at_least(0),
    )
    metrics_listener: str | None = option(
        "metrics.listener",
        STRING,
        None,
        "HOST:PORT of the HTTP endpoint /metrics and /healthz; this broker's own property.",
        ADDRESS,
    )
    log_segment_bytes: int = option(
        "log.segment.bytes",
        INT,
        1 << 30,
        "Size in bytes at which a log goes on in a new segment file.",
    )
    log_roll_ms: int | None = option(
        "log.roll.ms", LONG, None, "Age at which a log goes on in a new segment.", at_least(1)
    )
    log_roll_hours: int = option(
        "log.roll.hours", INT, 168, "The same in hours, when log.roll.ms is not set.", at_least(1)
    )
    log_roll_jitter_ms: int | None = option(
        "log.roll.jitter.ms", LONG, None, "Largest random part taken off log.roll.ms.", at_least(0)
    )
    log_roll_jitter_hours: int = option(
        "log.roll.jitter.hours",
        INT,
        0,
        "The same in hours, when log.roll.jitter.ms is not set.",
        at_least(0),
    )
    log_retention_ms: int | None = option(
        "log.retention.ms", LONG, None, "Age at which segments are deleted; -1 = never."
    )
    log_retention_minutes: int | None = option(
        "log.retention.minutes",
        INT,
        None,
        "The same in minutes, if log.retention.ms is not set.",
    )
    log_retention_hours: int = option(
        "log.retention.hours", INT, 168, "The same in hours, when neither other is set."
    )
    log_retention_bytes: int = option(
        "log.retention.bytes",
        LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 = no limit.",
    )
    log_retention_check_interval_ms: int = option(
        "log.retention.check.interval.ms",
        LONG,
        300_000,
        "How often retention looks for segments to delete.",
        at_least(1),
    )
    log_cleanup_policy: tuple[str, ...] = option(
        "log.cleanup.policy",
        LIST,
        ("delete",),
        "cleanup.policy of topics that do not set their own.",
        POLICIES,
    )
    log_cleaner_enable: bool = option(
        "log.cleaner.enable", BOOLEAN, True, "Whether topics with cleanup.policy=compact are."
    )
    log_cleaner_threads: int = option(
        "log.cleaner.threads", INT, 1, "Logs that are compacted at the same time.", at_least(0)
    )
    log_cleaner_io_max_bytes_per_second: float = option(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        sys.float_info.max,
        "Most bytes that compaction reads and writes in a second, all threads together.",
        legal("Value must be above 0", lambda value: value > 0),
    )
    log_cleaner_dedupe_buffer_size: int = option(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        128 << 20,
        "Memory for the keys of a log that is compacted, all threads together: 24 bytes a key.",
    )
    log_cleaner_io_buffer_size: int = option(
        "log.cleaner.io.buffer.size",
        INT,
        512 << 10,
        "Memory for reading and writing, all threads together; grows for larger batches.",
        at_least(0),
    )
    log_cleaner_io_buffer_load_factor: float = option(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        0.9,
        "How full log.cleaner.dedupe.buffer.size may become. More keys are done at once when it "
        "is higher, more slowly.",
        legal("Value must be above 0 and no more than 1", lambda value: 0 < value <= 1),
    )
    log_cleaner_backoff_ms: int = option(
        "log.cleaner.backoff.ms",
        LONG,
        15_000,
        "Pause before looking again when no log needs compaction.",
        at_least(0),
    )
    log_cleaner_min_cleanable_ratio: float = option(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        0.5,
        "min.cleanable.dirty.ratio of topics that do not set their own.",
        between(0, 1),
    )
    log_cleaner_delete_retention_ms: int = option(
        "log.cleaner.delete.retention.ms",
        LONG,
        24 * HOUR_MS,
        "delete.retention.ms of topics that do not set their own.",
        at_least(0),
    )
    log_cleaner_min_compaction_lag_ms: int = option(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        0,
        "min.compaction.lag.ms of topics that do not set their own.",
        at_least(0),
    )
    log_cleaner_max_compaction_lag_ms: int = option(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        "max.compaction.lag.ms of topics that do not set their own.",
        at_least(1),
    )
    log_index_interval_bytes: int = option(
        "log.index.interval.bytes",
        INT,
        4096,
        "Bytes of log between two entries of its indexes.",
        at_least(0),
    )
    log_index_size_max_bytes: int = option(
        "log.index.size.max.bytes",
        INT,
        10 << 20,
        "Largest size of a segment's offset index; a full index makes the log roll.",
        at_least(4),
    )
    log_flush_interval_messages: int = option(
        "log.flush.interval.messages",
        LONG,
        LONG_MAX,
        "Number of records after which a log is forced to disk.",
        at_least(1),
    )
    log_flush_interval_ms: int | None = option(
        "log.flush.interval.ms",
        LONG,
        None,
        "Time after which appended records are forced to disk; "
        "default: log.flush.scheduler.interval.ms.",
    )
    log_flush_scheduler_interval_ms: int = option(
        "log.flush.scheduler.interval.ms",
        LONG,
        LONG_MAX,
        "How often logs are looked at for log.flush.interval.ms.",
        at_least(1),
    )
    log_flush_offset_checkpoint_interval_ms: int = option(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "How often the recovery points are written down.",
        at_least(0),
    )
    log_flush_start_offset_checkpoint_interval_ms: int = option(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "How often the log start offsets are written down.",
        at_least(0),
    )
    log_message_timestamp_type: str = option(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "message.timestamp.type of topics that do not set their own.",
        TIMESTAMP_TYPES,
    )
    log_message_timestamp_before_max_ms: int = option(
        "log.message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        "How far the newest timestamp of a batch may lie in the past, with CreateTime.",
        at_least(0),
    )
    log_message_timestamp_after_max_ms: int = option(
        "log.message.timestamp.after.max.ms",
        LONG,
        HOUR_MS,
        "How far the newest timestamp of a batch may lie in the future, with CreateTime.",
        at_least(0),
    )
    log_preallocate: bool = option(
        "log.preallocate", BOOLEAN, False, "Reserve a new segment's disk space at creation."
    )
    log_segment_delete_delay_ms: int = option(
        "log.segment.delete.delay.ms",
        LONG,
        60_000,
        "Time from a segment's removal from the log to the removal of its files.",
        at_least(0),
    )
    num_recovery_threads_per_data_dir: int = option(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        "Threads that open (and after a crash recover) logs at start.",
        at_least(1),
    )
    producer_id_expiration_ms: int = option(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        "Time after its last append at which an idempotent producer is forgotten.",
        at_least(1),
    )
    producer_id_expiration_check_interval_ms: int = option(
        "producer.id.expiration.check.interval.ms",
        INT,
        600_000,
        "How often producers to forget are looked for.",
        at_least(1),
    )
    unclean_leader_election_enable: bool = option(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether a replica that is not in sync may lead where none in sync is there: what only the "
        "others have is lost then.",
    )
    auto_leader_rebalance_enable: bool = option(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "Whether the controller has brokers lead again what they were the first to keep.",
    )
    leader_imbalance_check_interval_seconds: int = option(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "How often that is looked for.",
        at_least(1),
    )
    leader_imbalance_per_broker_percentage: int = option(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "How many of a hundred of these others may lead.",
    )
    controlled_shutdown_enable: bool = option(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "Whether other brokers lead what this one leads before it stops.",
    )
    controlled_shutdown_max_retries: int = option(
        "controlled.shutdown.max.retries", INT, 3, "How often the controller is asked for that."
    )
    controlled_shutdown_retry_backoff_ms: int = option(
        "controlled.shutdown.retry.backoff.ms", LONG, 5000, "The time between two of these."
    )
    replica_lag_time_max_ms: int = option(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "How long a follower may be behind before it leaves the ISR.",
        at_least(1),
    )
    replica_fetch_max_bytes: int = option(
        "replica.fetch.max.bytes",
        INT,
        1 << 20,
        "Largest part of a partition in one fetch of a follower; a larger batch comes whole.",
        at_least(0),
    )
    replica_fetch_response_max_bytes: int = option(
        "replica.fetch.response.max.bytes",
        INT,
        10 << 20,
        "Largest answer to one fetch of a follower.",
        at_least(0),
    )
    replica_fetch_min_bytes: int = option(
        "replica.fetch.min.bytes", INT, 1, "What a follower's fetch waits for."
    )
    replica_fetch_wait_max_ms: int = option(
        "replica.fetch.wait.max.ms", INT, 500, "How long a follower's fetch waits for that."
    )
    replica_fetch_backoff_ms: int = option(
        "replica.fetch.backoff.ms",
        INT,
        1000,
        "How long a follower holds back a partition after an error.",
        at_least(0),
    )
    replica_socket_timeout_ms: int = option(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "How long another broker may take to answer.",
        at_least(1),
    )
    replica_high_watermark_checkpoint_interval_ms: int = option(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5_000,
        "How often high watermarks are written down.",
        at_least(1),
    )
    group_min_session_timeout_ms: int = option(
        "group.min.session.timeout.ms",
        INT,
        6_000,
        "Shortest session timeout that a group's member may ask for.",
    )
    group_max_session_timeout_ms: int = option(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        "Longest session timeout that a group's member may ask for.",
    )
    group_initial_rebalance_delay_ms: int = option(
        "group.initial.rebalance.delay.ms",
        INT,
        3_000,
        "How long a new group waits for more members before its first rebalance ends.",
    )
    group_max_size: int = option(
        "group.max.size", INT, 2**31 - 1, "Most members of a group.", at_least(1)
    )
    group_consumer_session_timeout_ms: int = option(
        "group.consumer.session.timeout.ms",
        INT,
        45_000,
        "Time without a heartbeat after which a member of the consumer protocol is given up.",
        at_least(1),
    )
    group_consumer_heartbeat_interval_ms: int = option(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5_000,
        "How often members of the consumer protocol are to send a heartbeat.",
        at_least(1),
    )
    group_consumer_max_size: int = option(
        "group.consumer.max.size",
        INT,
        2**31 - 1,
        "Most members of a group of the consumer protocol.",
        at_least(1),
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] | None = option(
        "group.coordinator.rebalance.protocols",
        LIST,
        None,
        "classic,consumer or classic: whether groups may use the consumer protocol (KIP-848). "
        "Where nothing is said they may, but not over ZooKeeper, where Apache Kafka's brokers know "
        "no such groups. Groups of the other names are not known here.",
        one_of("classic", "consumer", "share", "streams"),
        may_be_empty=False,
    )
    group_consumer_assignors: tuple[str, ...] = option(
        "group.consumer.assignors",
        LIST,
        ("uniform", "range"),
        "What members of the consumer protocol may choose from; the first is the default.",
        one_of("uniform", "range"),
        may_be_empty=False,
    )
    group_consumer_assignment_interval_ms: int = option(
        "group.consumer.assignment.interval.ms",
        INT,
        1_000,
        "Least time between two assignments of a group of the consumer protocol.",
        at_least(0),
    )
    group_consumer_regex_refresh_interval_ms: int = option(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        600_000,
        "How often the expressions that groups subscribe by are resolved anew, at least.",
        at_least(10_000),
    )
    offset_metadata_max_bytes: int = option(
        "offset.metadata.max.bytes",
        INT,
        4096,
        "Longest text that a client may store with a committed offset.",
    )
    offsets_commit_timeout_ms: int = option(
        "offsets.commit.timeout.ms",
        INT,
        5_000,
        "How long an offset commit waits for all replicas in sync before its client is told to try "
        "again.",
        at_least(1),
    )
    offsets_retention_minutes: int = option(
        "offsets.retention.minutes",
        INT,
        7 * 24 * 60,
        "How long offsets are kept of groups without members, and of topics that a group does not "
        "read any more.",
        at_least(1),
    )
    offsets_retention_check_interval_ms: int = option(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        "How often offsets to forget are looked for.",
        at_least(1),
    )
    offsets_topic_num_partitions: int = option(
        "offsets.topic.num.partitions",
        INT,
        50,
        "Partitions of __consumer_offsets; counts when the topic is made, at the first use of a "
        "group.",
        at_least(1),
    )
    offsets_topic_replication_factor: int = option(
        "offsets.topic.replication.factor",
        SHORT,
        3,
        "Replicas of __consumer_offsets, which is not made while there are fewer brokers; a broker "
        "alone keeps one.",
        at_least(1),
    )
    offsets_topic_segment_bytes: int = option(
        "offsets.topic.segment.bytes",
        INT,
        100 << 20,
        "segment.bytes of __consumer_offsets.",
        at_least(1),
    )
    transaction_state_log_num_partitions: int = option(
        "transaction.state.log.num.partitions",
        INT,
        50,
        "Partitions of __transaction_state; counts when the topic is made, at the first use of a "
        "transactional id.",
        at_least(1),
    )
    transaction_state_log_replication_factor: int = option(
        "transaction.state.log.replication.factor",
        SHORT,
        3,
        "Replicas of __transaction_state, which is not made while there are fewer brokers; a "
        "broker alone keeps one.",
        at_least(1),
    )
    transaction_state_log_min_isr: int = option(
        "transaction.state.log.min.isr",
        INT,
        2,
        "min.insync.replicas of __transaction_state; no more than it has replicas.",
        at_least(1),
    )
    transaction_state_log_segment_bytes: int = option(
        "transaction.state.log.segment.bytes",
        INT,
        100 << 20,
        "segment.bytes of __transaction_state.",
        at_least(1),
    )
    request_timeout_ms: int = option(
        "request.timeout.ms",
        INT,
        30_000,
        "How long brokers wait for one another's answers, and a transaction's change for all "
        "replicas in sync, before the client is told to try again.",
    )
    transaction_max_timeout_ms: int = option(
        "transaction.max.timeout.ms",
        INT,
        900_000,
        "Longest transaction timeout that a producer may ask for.",
        at_least(1),
    )
    transaction_partition_verification_enable: bool = option(
        "transaction.partition.verification.enable",
        BOOLEAN,
        True,
        "Whether a producer's first batch of a transaction is taken only if its partition has been "
        "added to the transaction (KIP-890).",
    )
    transactional_id_expiration_ms: int = option(
        "transactional.id.expiration.ms",
        INT,
        7 * 24 * HOUR_MS,
        "Time after its last transaction at which a transactional id is forgotten.",
        at_least(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = option(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        HOUR_MS,
        "How often transactional ids to forget are looked for.",
        at_least(1),
    )
    given: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What was set in the file or on the command line, as text, under Kafka's names."""
    dynamic: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What was set on this broker while it ran, in the same way; counts above all others."""
    dynamic_default: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What was set on all brokers while they ran; counts above the file."""

    @classmethod
    def from_properties(cls, given: Mapping[str, str]) -> "BrokerConfig":
        """Typed and checked. Warns of names that are no property, or one of Kafka's that has no
        effect here; ConfigError for bad values."""
        keys = BROKER_KEYS
        values, others = split_known(keys, given)
        unknown = []
        for name in others:
            check_protection(name, given[name])
            if name == INTER_BROKER_VERSION and "zookeeper.connect" in given:
                check_inter_broker_version(given[name])
                unknown.append(name)  # as it is to tools, which know no such property any more
                continue
            key = broker_config_key(without_listener(name))
            if key is None:
                unknown.append(name)
                _log.warning("config.unknown name=%s %s", name, _nearest(name, keys))
            else:
                key.parse(given[name])
        warn_of_no_effect("file", given)
        if "node.id" in given and given.get("broker.id", given["node.id"]) != given["node.id"]:
            raise ConfigError("broker.id and node.id differ: set one of them, or both the same")
        known = {name: text for name, text in given.items() if name not in unknown}
        config = cls(**values, given=known)  # type: ignore[arg-type]
        config.check_segments()
        config.check_cleaner()
        config.check_listeners()
        return config

    def check_listeners(self) -> None:
        """Raises ConfigError where two listeners have one name, as all but the first would have
        no clients of their own."""
        for name, endpoints in (
            ("listeners", self.endpoints),
            ("advertised.listeners", tuple(map(Endpoint.parse, self.advertised_listeners or ()))),
        ):
            if len({endpoint.name for endpoint in endpoints}) < len(endpoints):
                raise ConfigError(
                    f"{name}: each listener must have a different name, and this broker speaks "
                    "PLAINTEXT alone: name one address (an empty host listens on all interfaces)"
                )

    @property
    def is_member(self) -> bool:
        """Whether this broker is one of a cluster over ZooKeeper, and not alone."""
        return self.zookeeper_connect is not None

    def check_segments(self) -> None:
        """Raises ConfigError where segments would be too small."""
        check_segment_bytes("log.segment.bytes", self.log_segment_bytes, as_3_9=self.is_member)

    def check_cleaner(self) -> None:
        """Raises ConfigError where the cleaner could not work."""
        check_lags(
            "log.cleaner.",
            self.log_cleaner_min_compaction_lag_ms,
            self.log_cleaner_max_compaction_lag_ms,
        )
        if not self.log_cleaner_enable:
            return
        least_bytes = max(1, self.log_cleaner_threads) << 20
        if self.log_cleaner_dedupe_buffer_size < least_bytes:
            raise ConfigError(
                f"log.cleaner.dedupe.buffer.size={self.log_cleaner_dedupe_buffer_size} is too "
                f"little: at least {least_bytes}, 1 MiB for each of log.cleaner.threads"
            )

    @classmethod
    def from_file(cls, path: Path, overrides: Mapping[str, str] | None = None) -> "BrokerConfig":
        """From a properties file; `overrides` count above it. OSError when it cannot be read."""
        properties = parse_properties(path.read_text(encoding="utf-8"))
        return cls.from_properties(properties | dict(overrides or {}))

    @property
    def takes_consumer_protocol(self) -> bool:
        protocols = self.group_coordinator_rebalance_protocols
        return self.zookeeper_connect is None if protocols is None else "consumer" in protocols

    @property
    def data_dirs(self) -> tuple[Path, ...]:
        return tuple(Path(name) for name in self.log_dirs or self.log_dir)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(Endpoint.parse(listener) for listener in self.listeners)

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """What clients are told; an empty host becomes this machine's name.

        Raises ConfigError for the address of all interfaces, by which no client reaches a broker.
        """
        given = self.advertised_listeners or self.listeners
        endpoints = [Endpoint.parse(listener) for listener in given]
        for endpoint in endpoints:
            if endpoint.host in _META_ADDRESSES:
                raise ConfigError(
                    f"clients would be told to connect to {endpoint.host}: set "
                    f"advertised.listeners={endpoint.name}://HOST:{endpoint.port} to the name by "
                    "which they reach this broker"
                )
        return tuple(
            Endpoint(endpoint.name, endpoint.host or socket.getfqdn(), endpoint.port)
            for endpoint in endpoints
        )

    def log_config(self, overrides: Mapping[str, str], *, strict: bool = False) -> LogConfig:
        """The configuration of a topic that sets `overrides`.

        A member of a cluster over ZooKeeper takes what Apache Kafka 3.9 takes, by whoever it was
        set. Raises ConfigError for an illegal value and, when `strict` (a client's request), for an
        unknown name; not strict (what was stored once), an unknown name is a warning.
        """
        keys = LOG_KEYS
        values, unknown = split_known(keys, overrides)
        for name in unknown:
            if strict and not (self.is_member and name in _TOPIC_CONFIGS_OF_3_9):
                raise ConfigError(f"Unknown topic config name: {name}")
            _log.warning("config.unknown topic_config=%s %s", name, _nearest(name, keys))
        if strict and values.get("remote_storage_enable"):
            raise ConfigError(
                "Tiered Storage functionality is disabled in the broker. Topic cannot be "
                "configured with remote log storage."
            )
        for field_name, key in keys.items():
            if field_name not in values:
                values[field_name] = self._inherited(key)
        known = {name: text for name, text in overrides.items() if name not in unknown}
        config = LogConfig(**values, overrides=known)  # type: ignore[arg-type]
        if "segment.bytes" in known:
            check_segment_bytes("segment.bytes", config.segment_bytes, as_3_9=self.is_member)
        check_lags("", config.min_compaction_lag_ms, config.max_compaction_lag_ms)
        return config

    def _inherited(self, key: ConfigKey) -> Value:
        """What an unset topic property is on this broker."""
        for name, factor in key.synonyms:
            value = getattr(self, BROKER_FIELDS[name])
            if value is None:
                continue
            if factor != 1:
                value = value * factor if value >= 0 else -1
            return value  # type: ignore[no-any-return]
        return key.default


BROKER_KEYS = keys_of(BrokerConfig)
BROKER_FIELDS = {key.name: field_name for field_name, key in BROKER_KEYS.items()}


def broker_config_key(name: str) -> ConfigKey | None:
    """None for what is no property of a broker of Kafka's."""
    if name in BROKER_FIELDS:
        return BROKER_KEYS[BROKER_FIELDS[name]]
    other = other_property(name)
    return None if other is None else other.key


def _nearest(name: str, keys: Mapping[str, ConfigKey]) -> str:
    matches = difflib.get_close_matches(name, [key.name for key in keys.values()], 1)
    return f"nearest={matches[0]}" if matches else "no property has a name like that"
