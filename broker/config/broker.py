"""The broker's configuration: BrokerConfig (server.properties) and LogConfig (one topic's).

Property names, types, defaults and legal values are Apache Kafka's; a field is listed when the
broker honours it, or when it is a topic property that Kafka's clients set at creation: those are
kept and described, and the description says so where nothing acts on them. A topic's property that
the topic does not set comes from the broker's property of the same meaning
(`retention.ms` <- `log.retention.ms`, `.minutes`, `.hours`).

Values are frozen: any thread. Direct construction (`LogConfig(segment_bytes=200)`) is typed but
not validated; `from_properties`, `from_file` and `log_config` validate.
"""

import difflib
import logging
import re
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kafka.errors import InvalidRequestError

from broker.config.definition import (
    INT_MAX,
    LONG_MAX,
    ConfigEntry,
    ConfigError,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Synonym,
    Value,
    at_least,
    between,
    keys_of,
    legal,
    one_of,
    option,
    split_known,
)
from broker.config.other_properties import (
    ALL_BROKERS,
    ONE_BROKER,
    ONE_LISTENER,
    other_properties,
    without_listener,
)
from broker.properties import parse_properties

__all__ = ["BrokerConfig", "ConfigError", "Endpoint", "LogConfig"]

_log = logging.getLogger(__name__)

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_SHORT, _LONG, _DOUBLE, _LIST = (
    ConfigType.SHORT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)

_CODECS = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_GZIP_LEVELS = legal(
    "Value must be between 1 and 9 or equal to -1", lambda level: level == -1 or 1 <= level <= 9
)
_TIMESTAMP_TYPES = one_of("CreateTime", "LogAppendTime")
_POLICIES = one_of("compact", "delete")
_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
# Who sets these relies on clients being told apart.
_PROTECTION = ("authorizer.class.name", "sasl.enabled.mechanisms", "super.users")
# Between these a group's own properties may be.
_BOUND_OF_GROUPS = re.compile(r"group\.(consumer|share|streams)\.(min|max)\.")
_META_ADDRESSES = ("0.0.0.0", "::", "[::]")
_STORED = "Kept and described; nothing in this broker acts on it."


# What may be set while the broker runs (as Kafka's DynamicBrokerConfig), and counts from then on.
DYNAMIC_BROKER_CONFIGS = frozenset(
    (
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "group.consumer.assignment.interval.ms",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "message.max.bytes",
        "min.insync.replicas",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
    )
)
# What may be set too, and counts when the broker starts again.
LATER_BROKER_CONFIGS = frozenset(
    (
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "num.recovery.threads.per.data.dir",
    )
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener: `name://host:port`. An empty host means every interface."""

    name: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Raises ConfigError unless `text` has the form NAME://HOST:PORT."""
        name, slashes, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not (name and slashes and colon and port.isdigit() and int(port) < 65536):
            raise ConfigError(f"invalid listener {text!r}: expected NAME://HOST:PORT")
        return cls(name.upper(), host.strip("[]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def _is_plaintext(listener: str) -> bool:
    try:
        return Endpoint.parse(listener).name == "PLAINTEXT"
    except ConfigError:
        return False


def parse_ip_overrides(text: str) -> dict[str, int]:
    """`HOST:MOST,...` of max.connections.per.ip.overrides. Raises ConfigError."""
    overrides = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, most = entry.rpartition(":")
        if not (host and most.isascii() and most.isdigit()):
            raise ConfigError(f"invalid override {entry!r}: expected HOST:CONNECTIONS")
        overrides[host.strip("[]")] = int(most)
    return overrides


def _parses_as_ip_overrides(text: str) -> bool:
    try:
        parse_ip_overrides(text)
    except ConfigError:
        return False
    return True


def _parses_as_address(text: str) -> bool:
    try:
        Endpoint.parse(f"HTTP://{text}")
    except ConfigError:
        return False
    return True


_IP_OVERRIDES = legal("expected HOST:CONNECTIONS, comma-separated", _parses_as_ip_overrides)
_ADDRESS = legal("expected HOST:PORT", _parses_as_address)
_LISTENERS = legal(
    "expected PLAINTEXT://HOST:PORT, comma-separated, and no listener of another name (such as "
    "CONTROLLER)",
    _is_plaintext,
)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one topic's logs are kept. Made by `BrokerConfig.log_config`."""

    segment_bytes: int = option(
        "segment.bytes",
        _INT,
        1 << 30,
        "Size in bytes at which a log goes on in a new segment file.",
        at_least(1 << 20),
        synonyms=[("log.segment.bytes", 1)],
    )
    segment_ms: int = option(
        "segment.ms",
        _LONG,
        168 * _HOUR_MS,
        "Age at which a log goes on in a new segment file even if the old one is not full.",
        at_least(1),
        synonyms=[("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)],
    )
    segment_jitter_ms: int = option(
        "segment.jitter.ms",
        _LONG,
        0,
        "Largest random part taken off segment.ms, so that logs do not all roll at once.",
        at_least(0),
        synonyms=[("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)],
    )
    segment_index_bytes: int = option(
        "segment.index.bytes",
        _INT,
        10 << 20,
        "Largest size of a segment's offset index; a full index makes the log roll.",
        at_least(4),
        synonyms=[("log.index.size.max.bytes", 1)],
    )
    index_interval_bytes: int = option(
        "index.interval.bytes",
        _INT,
        4096,
        "Bytes of log between two entries of its indexes.",
        at_least(0),
        synonyms=[("log.index.interval.bytes", 1)],
    )
    retention_ms: int = option(
        "retention.ms",
        _LONG,
        168 * _HOUR_MS,
        "Age of its newest record at which a segment is deleted; -1 = never.",
        at_least(-1),
        synonyms=[
            ("log.retention.ms", 1),
            ("log.retention.minutes", _MINUTE_MS),
            ("log.retention.hours", _HOUR_MS),
        ],
    )
    retention_bytes: int = option(
        "retention.bytes",
        _LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 = no limit.",
        synonyms=[("log.retention.bytes", 1)],
    )
    cleanup_policy: tuple[str, ...] = option(
        "cleanup.policy",
        _LIST,
        ("delete",),
        "'delete' drops old segments by age and size, 'compact' keeps the newest record of each "
        "key; both may be set.",
        _POLICIES,
        synonyms=[("log.cleanup.policy", 1)],
    )
    max_message_bytes: int = option(
        "max.message.bytes",
        _INT,
        1_048_588,
        "Largest record batch (after compression) that a producer may append.",
        at_least(0),
        synonyms=[("message.max.bytes", 1)],
    )
    message_timestamp_type: str = option(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        "CreateTime keeps the producer's timestamps, LogAppendTime sets the broker's own.",
        _TIMESTAMP_TYPES,
        synonyms=[("log.message.timestamp.type", 1)],
    )
    message_timestamp_before_max_ms: int = option(
        "message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "How far the newest timestamp of a batch may lie in the past, with CreateTime.",
        at_least(0),
        synonyms=[("log.message.timestamp.before.max.ms", 1)],
    )
    message_timestamp_after_max_ms: int = option(
        "message.timestamp.after.max.ms",
        _LONG,
        _HOUR_MS,
        "How far the newest timestamp of a batch may lie in the future, with CreateTime.",
        at_least(0),
        synonyms=[("log.message.timestamp.after.max.ms", 1)],
    )
    flush_messages: int = option(
        "flush.messages",
        _LONG,
        LONG_MAX,
        "Number of records after which a log is forced to disk.",
        at_least(1),
        synonyms=[("log.flush.interval.messages", 1)],
    )
    flush_ms: int = option(
        "flush.ms",
        _LONG,
        LONG_MAX,
        "Time after which appended records are forced to disk.",
        at_least(0),
        synonyms=[("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)],
    )
    file_delete_delay_ms: int = option(
        "file.delete.delay.ms",
        _LONG,
        60_000,
        "Time from a segment's removal from the log to the removal of its files.",
        at_least(0),
        synonyms=[("log.segment.delete.delay.ms", 1)],
    )
    preallocate: bool = option(
        "preallocate",
        _BOOLEAN,
        False,
        "Reserve a new segment's disk space when it is created.",
        synonyms=[("log.preallocate", 1)],
    )
    compression_type: str = option(
        "compression.type",
        _STRING,
        "producer",
        "Codec of stored batches; 'producer' keeps each batch as its producer compressed it.",
        _CODECS,
        synonyms=[("compression.type", 1)],
    )
    compression_gzip_level: int = option(
        "compression.gzip.level",
        _INT,
        -1,
        "Level of compression.type=gzip; -1 = the codec's default.",
        _GZIP_LEVELS,
        synonyms=[("compression.gzip.level", 1)],
    )
    compression_lz4_level: int = option(
        "compression.lz4.level",
        _INT,
        9,
        "Level of compression.type=lz4; 9, the default, is its fast mode.",
        between(1, 17),
        synonyms=[("compression.lz4.level", 1)],
    )
    compression_zstd_level: int = option(
        "compression.zstd.level",
        _INT,
        3,
        "Level of compression.type=zstd.",
        between(-131072, 22),
        synonyms=[("compression.zstd.level", 1)],
    )
    min_insync_replicas: int = option(
        "min.insync.replicas",
        _INT,
        1,
        "In-sync replicas that an append with acks=all needs.",
        at_least(1),
        synonyms=[("min.insync.replicas", 1)],
    )
    unclean_leader_election_enable: bool = option(
        "unclean.leader.election.enable", _BOOLEAN, False, _STORED
    )
    delete_retention_ms: int = option(
        "delete.retention.ms",
        _LONG,
        24 * _HOUR_MS,
        "Time for which compaction keeps a tombstone (a record without value) once it has seen it.",
        at_least(0),
        synonyms=[("log.cleaner.delete.retention.ms", 1)],
    )
    min_cleanable_dirty_ratio: float = option(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        "Share of a log that must be uncompacted before it is compacted.",
        between(0, 1),
        synonyms=[("log.cleaner.min.cleanable.ratio", 1)],
    )
    min_compaction_lag_ms: int = option(
        "min.compaction.lag.ms",
        _LONG,
        0,
        "Time for which a record is not compacted.",
        at_least(0),
        synonyms=[("log.cleaner.min.compaction.lag.ms", 1)],
    )
    max_compaction_lag_ms: int = option(
        "max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "Time after which a record is compacted, whatever the dirty ratio.",
        at_least(1),
        synonyms=[("log.cleaner.max.compaction.lag.ms", 1)],
    )
    leader_replication_throttled_replicas: tuple[str, ...] = option(
        "leader.replication.throttled.replicas", _LIST, (), _STORED
    )
    follower_replication_throttled_replicas: tuple[str, ...] = option(
        "follower.replication.throttled.replicas", _LIST, (), _STORED
    )
    remote_storage_enable: bool = option(
        "remote.storage.enable", _BOOLEAN, False, "Always false: this broker has no tiered storage."
    )
    local_retention_ms: int = option("local.retention.ms", _LONG, -2, _STORED, at_least(-2))
    local_retention_bytes: int = option("local.retention.bytes", _LONG, -2, _STORED, at_least(-2))
    remote_log_copy_disable: bool = option("remote.log.copy.disable", _BOOLEAN, False, _STORED)
    remote_log_delete_on_disable: bool = option(
        "remote.log.delete.on.disable", _BOOLEAN, False, _STORED
    )
    overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What was set on the topic, as text, under Kafka's names."""

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """segment.ms, or less where a compacted topic's records must leave the active segment."""
        return (
            min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
        )

    @property
    def stamps_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One broker's server.properties. Made by `from_properties` or `from_file`."""

    broker_id: int = option(
        "broker.id",
        _INT,
        1,
        "This broker's number, unique in its cluster.",
        at_least(0),
        alias="node.id",
    )
    cluster_id: str | None = option(
        "cluster.id",
        _STRING,
        None,
        "The cluster's id; generated and kept in the data directory when not set.",
    )
    listeners: tuple[str, ...] = option(
        "listeners",
        _LIST,
        ("PLAINTEXT://:9092",),
        "Addresses to listen on, as PLAINTEXT://HOST:PORT; port 0 takes a free one.",
        _LISTENERS,
        may_be_empty=False,
    )
    advertised_listeners: tuple[str, ...] | None = option(
        "advertised.listeners",
        _LIST,
        None,
        "Addresses that clients are told to connect to; default: the listeners.",
        _LISTENERS,
        may_be_empty=False,
    )
    broker_rack: str | None = option(
        "broker.rack", _STRING, None, "Rack of this broker, as told to clients in Metadata."
    )
    log_dir: tuple[str, ...] = option(
        "log.dir", _LIST, ("/tmp/kafka-logs",), "Data directories, when log.dirs is not set."
    )
    log_dirs: tuple[str, ...] | None = option(
        "log.dirs", _LIST, None, "Data directories, comma-separated."
    )
    num_partitions: int = option(
        "num.partitions", _INT, 1, "Partitions of a topic created without a number.", at_least(1)
    )
    default_replication_factor: int = option(
        "default.replication.factor",
        _INT,
        1,
        "Replicas of a topic created without a number.",
        at_least(1),
    )
    auto_create_topics_enable: bool = option(
        "auto.create.topics.enable", _BOOLEAN, True, "Create a topic when a client first asks."
    )
    delete_topic_enable: bool = option(
        "delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."
    )
    min_insync_replicas: int = option(
        "min.insync.replicas", _INT, 1, "In-sync replicas that acks=all needs.", at_least(1)
    )
    message_max_bytes: int = option(
        "message.max.bytes",
        _INT,
        1_048_588,
        "Largest record batch (after compression) that a producer may append.",
        at_least(0),
    )
    compression_type: str = option(
        "compression.type",
        _STRING,
        "producer",
        "Codec of stored batches; 'producer' keeps each batch as its producer compressed it.",
        _CODECS,
    )
    compression_gzip_level: int = option(
        "compression.gzip.level",
        _INT,
        -1,
        "Level of compression.type=gzip; -1 = the codec's default.",
        _GZIP_LEVELS,
    )
    compression_lz4_level: int = option(
        "compression.lz4.level",
        _INT,
        9,
        "Level of compression.type=lz4; 9, the default, is its fast mode.",
        between(1, 17),
    )
    compression_zstd_level: int = option(
        "compression.zstd.level", _INT, 3, "Level of compression.type=zstd.", between(-131072, 22)
    )
    fetch_max_bytes: int = option(
        "fetch.max.bytes", _INT, 55 << 20, "Largest answer to one fetch.", at_least(1024)
    )
    max_request_partition_size_limit: int = option(
        "max.request.partition.size.limit",
        _INT,
        2000,
        "Most partitions in one answer of DescribeTopicPartitions.",
        at_least(1),
    )
    max_incremental_fetch_session_cache_slots: int = option(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        "Most fetch sessions at once; clients that get none send full fetches.",
        at_least(0),
    )
    socket_request_max_bytes: int = option(
        "socket.request.max.bytes", _INT, 100 << 20, "Largest request accepted.", at_least(1)
    )
    socket_send_buffer_bytes: int = option(
        "socket.send.buffer.bytes",
        _INT,
        102_400,
        "SO_SNDBUF of a connection; -1 = the system's default.",
        at_least(-1),
    )
    socket_receive_buffer_bytes: int = option(
        "socket.receive.buffer.bytes",
        _INT,
        102_400,
        "SO_RCVBUF of a connection; -1 = the system's default.",
        at_least(-1),
    )
    socket_listen_backlog_size: int = option(
        "socket.listen.backlog.size", _INT, 50, "Connections waiting for accept.", at_least(1)
    )
    queued_max_requests: int = option(
        "queued.max.requests",
        _INT,
        500,
        "Kept and described; a connection has one request answered at a time.",
        at_least(1),
    )
    queued_max_request_bytes: int = option(
        "queued.max.request.bytes",
        _LONG,
        -1,
        "Bytes of requests being received at which reading more of them waits; "
        "-1 = a quarter of the machine's memory.",
    )
    connections_max_idle_ms: int = option(
        "connections.max.idle.ms",
        _LONG,
        600_000,
        "Idle time after which a connection is closed; negative = never.",
    )
    max_connections: int = option(
        "max.connections",
        _INT,
        INT_MAX,
        "Connections at which no more are accepted; clients wait until one is closed.",
        at_least(0),
    )
    max_connections_per_ip: int = option(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        "Most connections from one address; more are closed at once.",
        at_least(0),
    )
    max_connections_per_ip_overrides: str = option(
        "max.connections.per.ip.overrides",
        _STRING,
        "",
        "Other limits than max.connections.per.ip, as HOST:CONNECTIONS, comma-separated.",
        _IP_OVERRIDES,
    )
    max_connection_creation_rate: int = option(
        "max.connection.creation.rate",
        _INT,
        INT_MAX,
        "Connections accepted in a second; more wait.",
        at_least(0),
    )
    metrics_listener: str | None = option(
        "metrics.listener",
        _STRING,
        None,
        "HOST:PORT of the HTTP endpoint /metrics and /healthz; this broker's own property.",
        _ADDRESS,
    )
    log_segment_bytes: int = option(
        "log.segment.bytes",
        _INT,
        1 << 30,
        "Size in bytes at which a log goes on in a new segment file.",
        at_least(1 << 20),
    )
    log_roll_ms: int | None = option(
        "log.roll.ms", _LONG, None, "Age at which a log goes on in a new segment.", at_least(1)
    )
    log_roll_hours: int = option(
        "log.roll.hours", _INT, 168, "The same in hours, when log.roll.ms is not set.", at_least(1)
    )
    log_roll_jitter_ms: int | None = option(
        "log.roll.jitter.ms", _LONG, None, "Largest random part taken off log.roll.ms.", at_least(0)
    )
    log_roll_jitter_hours: int = option(
        "log.roll.jitter.hours",
        _INT,
        0,
        "The same in hours, when log.roll.jitter.ms is not set.",
        at_least(0),
    )
    log_retention_ms: int | None = option(
        "log.retention.ms", _LONG, None, "Age at which segments are deleted; -1 = never."
    )
    log_retention_minutes: int | None = option(
        "log.retention.minutes",
        _INT,
        None,
        "The same in minutes, if log.retention.ms is not set.",
    )
    log_retention_hours: int = option(
        "log.retention.hours", _INT, 168, "The same in hours, when neither other is set."
    )
    log_retention_bytes: int = option(
        "log.retention.bytes",
        _LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 = no limit.",
    )
    log_retention_check_interval_ms: int = option(
        "log.retention.check.interval.ms",
        _LONG,
        300_000,
        "How often retention looks for segments to delete.",
        at_least(1),
    )
    log_cleanup_policy: tuple[str, ...] = option(
        "log.cleanup.policy",
        _LIST,
        ("delete",),
        "cleanup.policy of topics that do not set their own.",
        _POLICIES,
    )
    log_cleaner_enable: bool = option(
        "log.cleaner.enable", _BOOLEAN, True, "Whether topics with cleanup.policy=compact are."
    )
    log_cleaner_threads: int = option(
        "log.cleaner.threads", _INT, 1, "Logs that are compacted at the same time.", at_least(0)
    )
    log_cleaner_io_max_bytes_per_second: float = option(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        sys.float_info.max,
        "Most bytes that compaction reads and writes in a second, all threads together.",
        legal("Value must be above 0", lambda value: value > 0),
    )
    log_cleaner_dedupe_buffer_size: int = option(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        128 << 20,
        "Memory for the keys of a log that is compacted, all threads together: 24 bytes a key.",
    )
    log_cleaner_io_buffer_size: int = option(
        "log.cleaner.io.buffer.size",
        _INT,
        512 << 10,
        "Memory for reading and writing, all threads together; grows for larger batches.",
        at_least(0),
    )
    log_cleaner_io_buffer_load_factor: float = option(
        "log.cleaner.io.buffer.load.factor",
        _DOUBLE,
        0.9,
        "How full log.cleaner.dedupe.buffer.size may become. More keys are done at once when it "
        "is higher, more slowly.",
        legal("Value must be above 0 and no more than 1", lambda value: 0 < value <= 1),
    )
    log_cleaner_backoff_ms: int = option(
        "log.cleaner.backoff.ms",
        _LONG,
        15_000,
        "Pause before looking again when no log needs compaction.",
        at_least(0),
    )
    log_cleaner_min_cleanable_ratio: float = option(
        "log.cleaner.min.cleanable.ratio",
        _DOUBLE,
        0.5,
        "min.cleanable.dirty.ratio of topics that do not set their own.",
        between(0, 1),
    )
    log_cleaner_delete_retention_ms: int = option(
        "log.cleaner.delete.retention.ms",
        _LONG,
        24 * _HOUR_MS,
        "delete.retention.ms of topics that do not set their own.",
        at_least(0),
    )
    log_cleaner_min_compaction_lag_ms: int = option(
        "log.cleaner.min.compaction.lag.ms",
        _LONG,
        0,
        "min.compaction.lag.ms of topics that do not set their own.",
        at_least(0),
    )
    log_cleaner_max_compaction_lag_ms: int = option(
        "log.cleaner.max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "max.compaction.lag.ms of topics that do not set their own.",
        at_least(1),
    )
    log_index_interval_bytes: int = option(
        "log.index.interval.bytes",
        _INT,
        4096,
        "Bytes of log between two entries of its indexes.",
        at_least(0),
    )
    log_index_size_max_bytes: int = option(
        "log.index.size.max.bytes",
        _INT,
        10 << 20,
        "Largest size of a segment's offset index; a full index makes the log roll.",
        at_least(4),
    )
    log_flush_interval_messages: int = option(
        "log.flush.interval.messages",
        _LONG,
        LONG_MAX,
        "Number of records after which a log is forced to disk.",
        at_least(1),
    )
    log_flush_interval_ms: int | None = option(
        "log.flush.interval.ms",
        _LONG,
        None,
        "Time after which appended records are forced to disk; "
        "default: log.flush.scheduler.interval.ms.",
    )
    log_flush_scheduler_interval_ms: int = option(
        "log.flush.scheduler.interval.ms",
        _LONG,
        LONG_MAX,
        "How often logs are looked at for log.flush.interval.ms.",
        at_least(1),
    )
    log_flush_offset_checkpoint_interval_ms: int = option(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "How often the recovery points are written down.",
        at_least(0),
    )
    log_flush_start_offset_checkpoint_interval_ms: int = option(
        "log.flush.start.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "How often the log start offsets are written down.",
        at_least(0),
    )
    log_message_timestamp_type: str = option(
        "log.message.timestamp.type",
        _STRING,
        "CreateTime",
        "message.timestamp.type of topics that do not set their own.",
        _TIMESTAMP_TYPES,
    )
    log_message_timestamp_before_max_ms: int = option(
        "log.message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "How far the newest timestamp of a batch may lie in the past, with CreateTime.",
        at_least(0),
    )
    log_message_timestamp_after_max_ms: int = option(
        "log.message.timestamp.after.max.ms",
        _LONG,
        _HOUR_MS,
        "How far the newest timestamp of a batch may lie in the future, with CreateTime.",
        at_least(0),
    )
    log_preallocate: bool = option(
        "log.preallocate", _BOOLEAN, False, "Reserve a new segment's disk space at creation."
    )
    log_segment_delete_delay_ms: int = option(
        "log.segment.delete.delay.ms",
        _LONG,
        60_000,
        "Time from a segment's removal from the log to the removal of its files.",
        at_least(0),
    )
    num_recovery_threads_per_data_dir: int = option(
        "num.recovery.threads.per.data.dir",
        _INT,
        2,
        "Threads that open (and after a crash recover) logs at start.",
        at_least(1),
    )
    producer_id_expiration_ms: int = option(
        "producer.id.expiration.ms",
        _INT,
        86_400_000,
        "Time after its last append at which an idempotent producer is forgotten.",
        at_least(1),
    )
    producer_id_expiration_check_interval_ms: int = option(
        "producer.id.expiration.check.interval.ms",
        _INT,
        600_000,
        "How often producers to forget are looked for.",
        at_least(1),
    )
    replica_high_watermark_checkpoint_interval_ms: int = option(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5_000,
        "How often high watermarks are written down.",
        at_least(1),
    )
    group_min_session_timeout_ms: int = option(
        "group.min.session.timeout.ms",
        _INT,
        6_000,
        "Shortest session timeout that a group's member may ask for.",
    )
    group_max_session_timeout_ms: int = option(
        "group.max.session.timeout.ms",
        _INT,
        1_800_000,
        "Longest session timeout that a group's member may ask for.",
    )
    group_initial_rebalance_delay_ms: int = option(
        "group.initial.rebalance.delay.ms",
        _INT,
        3_000,
        "How long a new group waits for more members before its first rebalance ends.",
    )
    group_max_size: int = option(
        "group.max.size", _INT, 2**31 - 1, "Most members of a group.", at_least(1)
    )
    group_consumer_session_timeout_ms: int = option(
        "group.consumer.session.timeout.ms",
        _INT,
        45_000,
        "Time without a heartbeat after which a member of the consumer protocol is given up.",
        at_least(1),
    )
    group_consumer_heartbeat_interval_ms: int = option(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        5_000,
        "How often members of the consumer protocol are to send a heartbeat.",
        at_least(1),
    )
    group_consumer_max_size: int = option(
        "group.consumer.max.size",
        _INT,
        2**31 - 1,
        "Most members of a group of the consumer protocol.",
        at_least(1),
    )
    group_consumer_assignors: tuple[str, ...] = option(
        "group.consumer.assignors",
        _LIST,
        ("uniform", "range"),
        "What members of the consumer protocol may choose from; the first is the default.",
        one_of("uniform", "range"),
        may_be_empty=False,
    )
    group_consumer_assignment_interval_ms: int = option(
        "group.consumer.assignment.interval.ms",
        _INT,
        1_000,
        "Least time between two assignments of a group of the consumer protocol.",
        at_least(0),
    )
    group_consumer_regex_refresh_interval_ms: int = option(
        "group.consumer.regex.refresh.interval.ms",
        _INT,
        600_000,
        "How often the expressions that groups subscribe by are resolved anew, at least.",
        at_least(10_000),
    )
    offset_metadata_max_bytes: int = option(
        "offset.metadata.max.bytes",
        _INT,
        4096,
        "Longest text that a client may store with a committed offset.",
    )
    offsets_retention_minutes: int = option(
        "offsets.retention.minutes",
        _INT,
        7 * 24 * 60,
        "How long offsets are kept of groups without members, and of topics that a group does not "
        "read any more.",
        at_least(1),
    )
    offsets_retention_check_interval_ms: int = option(
        "offsets.retention.check.interval.ms",
        _LONG,
        600_000,
        "How often offsets to forget are looked for.",
        at_least(1),
    )
    offsets_topic_num_partitions: int = option(
        "offsets.topic.num.partitions",
        _INT,
        50,
        "Partitions of __consumer_offsets; counts when the topic is made, at the first use of a "
        "group.",
        at_least(1),
    )
    offsets_topic_replication_factor: int = option(
        "offsets.topic.replication.factor",
        _SHORT,
        3,
        "Replicas of __consumer_offsets; no more than there are brokers.",
        at_least(1),
    )
    offsets_topic_segment_bytes: int = option(
        "offsets.topic.segment.bytes",
        _INT,
        100 << 20,
        "segment.bytes of __consumer_offsets.",
        at_least(1),
    )
    transaction_state_log_num_partitions: int = option(
        "transaction.state.log.num.partitions",
        _INT,
        50,
        "Partitions of __transaction_state; counts when the topic is made, at the first use of a "
        "transactional id.",
        at_least(1),
    )
    transaction_state_log_replication_factor: int = option(
        "transaction.state.log.replication.factor",
        _SHORT,
        3,
        "Replicas of __transaction_state; no more than there are brokers.",
        at_least(1),
    )
    transaction_state_log_min_isr: int = option(
        "transaction.state.log.min.isr",
        _INT,
        2,
        "min.insync.replicas of __transaction_state; no more than it has replicas.",
        at_least(1),
    )
    transaction_state_log_segment_bytes: int = option(
        "transaction.state.log.segment.bytes",
        _INT,
        100 << 20,
        "segment.bytes of __transaction_state.",
        at_least(1),
    )
    transaction_max_timeout_ms: int = option(
        "transaction.max.timeout.ms",
        _INT,
        900_000,
        "Longest transaction timeout that a producer may ask for.",
        at_least(1),
    )
    transaction_partition_verification_enable: bool = option(
        "transaction.partition.verification.enable",
        _BOOLEAN,
        True,
        "Whether a producer's first batch of a transaction is taken only if its partition has been "
        "added to the transaction (KIP-890).",
    )
    transactional_id_expiration_ms: int = option(
        "transactional.id.expiration.ms",
        _INT,
        7 * 24 * _HOUR_MS,
        "Time after its last transaction at which a transactional id is forgotten.",
        at_least(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = option(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        _HOUR_MS,
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
        keys = _BROKER_KEYS
        values, others = split_known(keys, given)
        unknown = []
        for name in others:
            check_protection(name, given[name])
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
        config._check_cleaner()
        return config

    def _check_cleaner(self) -> None:
        _check_lags(
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

    def with_dynamic(self, own: Mapping[str, str], default: Mapping[str, str]) -> "BrokerConfig":
        """This configuration, of the file alone, with what is set on this broker (`own`) and on all
        (`default`). Raises ConfigError and, for what may not change, InvalidRequestError."""
        _check_dynamic(default, all_brokers=True)
        _check_dynamic(own, all_brokers=False)
        for configs in (default, own):
            values, _ = split_known(_BROKER_KEYS, configs)
            self = replace(self, **values)  # type: ignore[arg-type]
        self._check_cleaner()
        return replace(self, dynamic=dict(own), dynamic_default=dict(default))

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

        Raises ConfigError for an illegal value and, when `strict` (a client's request), for an
        unknown name; not strict (what was stored once), an unknown name is a warning.
        """
        keys = _LOG_KEYS
        values, unknown = split_known(keys, overrides)
        for name in unknown:
            if strict:
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
        _check_lags("", config.min_compaction_lag_ms, config.max_compaction_lag_ms)
        return config

    def describe(self) -> list[ConfigEntry]:
        """Every broker property of Kafka's, and what else is set on this broker while it runs, as
        DescribeConfigs lists a broker's."""
        entries = []
        for field_name, key in _BROKER_KEYS.items():
            entry = self._entry(key, getattr(self, field_name))
            entries.append(entry)
            if key.alias:
                entries.append(replace(entry, name=key.alias))
        known = {entry.name for entry in entries}
        names = [*other_properties(), *sorted({*self.dynamic_default, *self.dynamic} - known)]
        entries += [self._other_entry(name) for name in dict.fromkeys(names)]
        return entries

    def describe_default(self) -> list[ConfigEntry]:
        """What is set on all brokers, as DescribeConfigs lists the cluster's default."""
        entries = []
        for name, text in self.dynamic_default.items():
            synonym = self._synonym(name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
            is_read_only = not _is_dynamic(name)
            entries.append(
                _described(_shown_key(name), synonym[1], [synonym], is_read_only=is_read_only)
            )
        return entries

    def describe_topic(self, config: LogConfig) -> list[ConfigEntry]:
        """Every property of a topic of this broker, as DescribeConfigs lists a topic's."""
        return [
            self._topic_entry(key, getattr(config, field_name), config)
            for field_name, key in _LOG_KEYS.items()
        ]

    def _inherited(self, key: ConfigKey) -> Value:
        """What an unset topic property is on this broker."""
        for name, factor in key.synonyms:
            value = getattr(self, _BROKER_FIELDS[name])
            if value is None:
                continue
            if factor != 1:
                value = value * factor if value >= 0 else -1
            return value  # type: ignore[no-any-return]
        return key.default

    def _entry(self, key: ConfigKey, value: Value) -> ConfigEntry:
        synonyms = self.synonyms(_FAMILIES.get(key.name, (key.name,)))
        while synonyms and synonyms[0][0] != key.name:
            del synonyms[0]
        is_read_only = not _is_dynamic(key.name)
        return _described(key, key.render(value), synonyms, is_read_only=is_read_only)

    def _other_entry(self, name: str) -> ConfigEntry:
        """Of a property that nothing here acts on, or that is none of Kafka's."""
        key = _shown_key(name)
        synonyms = self.synonyms(dict.fromkeys((name, without_listener(name))))
        value = synonyms[0][1] if synonyms else None
        return _described(key, value, synonyms, is_read_only=not _is_dynamic(name))

    def value_of(self, name: str) -> Value:
        """The typed value of a broker property of Kafka's, whether anything here acts on it."""
        if name in _BROKER_FIELDS:
            value: Value = getattr(self, _BROKER_FIELDS[name])
            return value
        key = other_properties()[name].key
        for configs in (self.dynamic, self.dynamic_default, self.given):
            if name in configs:
                return key.parse(configs[name])
        return key.default

    def _topic_entry(self, key: ConfigKey, value: Value, config: LogConfig) -> ConfigEntry:
        synonyms = self.synonyms([name for name, _ in key.synonyms])
        if not key.synonyms:
            synonyms.append((key.name, key.render(key.default), ConfigSource.DEFAULT_CONFIG))
        if key.name in config.overrides:
            own = (key.name, key.render(value), ConfigSource.DYNAMIC_TOPIC_CONFIG)
            synonyms.insert(0, own)
        return _described(key, key.render(value), synonyms, is_read_only=False)

    def synonyms(self, names: Iterable[str]) -> list[Synonym]:
        """Every place where one of the broker properties `names` is set, the first that counts
        first, and their defaults."""
        found = []
        for given, source in (
            (self.dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.given, ConfigSource.STATIC_BROKER_CONFIG),
        ):
            for name in names:
                alias = _shown_key(name).alias
                text = given.get(name, given.get(alias) if alias else None)
                if text is not None:
                    found.append(self._synonym(name, text, source))
        for name in names:
            key = _shown_key(name)
            if key.default is not None:
                found.append((name, key.render(key.default), ConfigSource.DEFAULT_CONFIG))
        return found

    def _synonym(self, name: str, text: str, source: ConfigSource) -> Synonym:
        key = _shown_key(name)
        return name, None if key.is_sensitive else key.render(key.parse(text)), source


_BROKER_KEYS = keys_of(BrokerConfig)
_LOG_KEYS = keys_of(LogConfig)
_BROKER_FIELDS = {key.name: field_name for field_name, key in _BROKER_KEYS.items()}
# Broker properties that stand for one another, by each of them: itself and those behind it.
_FAMILIES = {
    name: tuple(each for each, _ in key.synonyms[index:])
    for key in _LOG_KEYS.values()
    for index, (name, _) in enumerate(key.synonyms)
}


def topic_config_key(name: str) -> ConfigKey | None:
    """None for what is no property of a topic."""
    return next((key for key in _LOG_KEYS.values() if key.name == name), None)


def broker_config_key(name: str) -> ConfigKey | None:
    """None for what is no property of a broker of Kafka's."""
    if name in _BROKER_FIELDS:
        return _BROKER_KEYS[_BROKER_FIELDS[name]]
    other = other_properties().get(name)
    return None if other is None else other.key


def check_protection(name: str, text: str) -> None:
    """Raises ConfigError for a property whose user would believe that clients are kept out."""
    if name in _PROTECTION and text.strip():
        raise ConfigError(f"{name} is set, but this broker has nothing of the kind: remove it")


def warn_of_no_effect(entity: str, names: Iterable[str]) -> None:
    """Says in the log which properties nothing acts on, or only when the broker starts again."""
    idle = sorted(
        name
        for name in names
        if without_listener(name) in other_properties() and not _BOUND_OF_GROUPS.match(name)
    )
    if idle:
        _log.warning("config.without_effect entity=%s names=%r", entity, ",".join(idle))
    later = sorted(name for name in names if name in LATER_BROKER_CONFIGS)
    if later and entity != "file":
        _log.warning("config.counts_after_restart entity=%s names=%r", entity, ",".join(later))


def _shown_key(name: str) -> ConfigKey:
    """How a property is shown. What is none of Kafka's may be a secret of a plug-in's."""
    key = broker_config_key(without_listener(name))
    if key is None:
        return ConfigKey(name, ConfigType.UNKNOWN, None, "None of Kafka's properties.")
    return key if key.name == name else replace(key, name=name, default=None)


def _update_mode(name: str) -> str:
    """How a property may be changed while the broker runs; "" where it may not."""
    if name in DYNAMIC_BROKER_CONFIGS or name in LATER_BROKER_CONFIGS:
        return ALL_BROKERS
    if name in _BROKER_FIELDS or any(name == key.alias for key in _BROKER_KEYS.values()):
        return ""
    other = other_properties().get(name)
    return ALL_BROKERS if other is None else other.mode


def _is_dynamic(name: str) -> bool:
    is_kafkas = name in _BROKER_FIELDS or name in other_properties()
    return is_kafkas and bool(_update_mode(name))


def _check_dynamic(configs: Mapping[str, str], *, all_brokers: bool) -> None:
    """Apache Kafka's checks of what is to be set while the broker runs, in their order. Raises
    InvalidRequestError and ConfigError."""
    modes = {name: _update_mode(name) for name in configs}
    _refuse(
        (name for name, mode in modes.items() if not mode),
        "Cannot update these configs dynamically",
    )
    _refuse(
        (name for name, mode in modes.items() if mode == ONE_LISTENER),
        "These security configs can be dynamically updated only per-listener using the listener "
        "prefix",
    )
    for name, text in configs.items():
        check_protection(without_listener(name), text)
        key = broker_config_key(without_listener(name))
        if key is not None:
            key.parse(text)
    if all_brokers:
        of_one = (name for name in configs if _update_mode(without_listener(name)) in _MODES_OF_ONE)
        _refuse(
            of_one,
            "Cannot update these configs at default cluster level, broker id must be specified",
        )


_MODES_OF_ONE = (ONE_BROKER, ONE_LISTENER)


def _refuse(names: Iterable[str], reason: str) -> None:
    if found := sorted(names):
        raise InvalidRequestError(f"{reason}: [{', '.join(found)}]")


def _described(
    key: ConfigKey, value: str | None, synonyms: Sequence[Synonym], *, is_read_only: bool
) -> ConfigEntry:
    return ConfigEntry(
        name=key.name,
        value=None if key.is_sensitive else value,
        source=synonyms[0][2] if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=key.type,
        documentation=key.doc,
        is_read_only=is_read_only,
        is_sensitive=key.is_sensitive,
        synonyms=tuple(synonyms),
    )


def _check_lags(prefix: str, min_lag_ms: int, max_lag_ms: int) -> None:
    if min_lag_ms > max_lag_ms:
        raise ConfigError(
            f"conflict topic config setting {prefix}min.compaction.lag.ms ({min_lag_ms}) > "
            f"{prefix}max.compaction.lag.ms ({max_lag_ms})"
        )


def _nearest(name: str, keys: Mapping[str, ConfigKey]) -> str:
    matches = difflib.get_close_matches(name, [key.name for key in keys.values()], 1)
    return f"nearest={matches[0]}" if matches else "no property has a name like that"
