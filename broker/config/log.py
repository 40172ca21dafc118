"""One topic's configuration, whose unset properties come from the broker's of the same meaning
(`retention.ms` <- `log.retention.ms`, `.minutes`, `.hours`). Values are frozen: any thread.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.config.definition import (
    BOOLEAN,
    DOUBLE,
    HOUR_MS,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    MINUTE_MS,
    STRING,
    ConfigError,
    ConfigKey,
    at_least,
    between,
    keys_of,
    legal,
    one_of,
    option,
)

__all__ = ["LOG_KEYS", "LogConfig", "check_lags", "check_segment_bytes", "topic_config_key"]

CODECS = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
GZIP_LEVELS = legal(
    "Value must be between 1 and 9 or equal to -1", lambda level: level == -1 or 1 <= level <= 9
)
TIMESTAMP_TYPES = one_of("CreateTime", "LogAppendTime")
POLICIES = one_of("compact", "delete")
THROTTLED_REPLICA = legal(
    "must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    lambda replica: re.fullmatch(r"\*|[0-9]+:[0-9]+", replica) is not None,
)
# Apache Kafka's since 4.0 (KIP-1030), and 3.9's, to which a cluster over ZooKeeper keeps.
_LEAST_SEGMENT_BYTES = 1 << 20
_LEAST_SEGMENT_BYTES_OF_3_9 = 14
_STORED = "Kept and described; nothing in this broker acts on it."


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one topic's logs are kept. Made by `BrokerConfig.log_config`."""

    segment_bytes: int = option(
        "segment.bytes",
        INT,
        1 << 30,
        "Size in bytes at which a log goes on in a new segment file.",
        synonyms=[("log.segment.bytes", 1)],
    )
    segment_ms: int = option(
        "segment.ms",
        LONG,
        168 * HOUR_MS,
        "Age at which a log goes on in a new segment file even if the old one is not full.",
        at_least(1),
        synonyms=[("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)],
    )
    segment_jitter_ms: int = option(
        "segment.jitter.ms",
        LONG,
        0,
        "Largest random part taken off segment.ms, so that logs do not all roll at once.",
        at_least(0),
        synonyms=[("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)],
    )
    segment_index_bytes: int = option(
        "segment.index.bytes",
        INT,
        10 << 20,
        "Largest size of a segment's offset index; a full index makes the log roll.",
        at_least(4),
        synonyms=[("log.index.size.max.bytes", 1)],
    )
    index_interval_bytes: int = option(
        "index.interval.bytes",
        INT,
        4096,
        "Bytes of log between two entries of its indexes.",
        at_least(0),
        synonyms=[("log.index.interval.bytes", 1)],
    )
    retention_ms: int = option(
        "retention.ms",
        LONG,
        168 * HOUR_MS,
        "Age of its newest record at which a segment is deleted; -1 = never.",
        at_least(-1),
        synonyms=[
            ("log.retention.ms", 1),
            ("log.retention.minutes", MINUTE_MS),
            ("log.retention.hours", HOUR_MS),
        ],
    )
    retention_bytes: int = option(
        "retention.bytes",
        LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 = no limit.",
        synonyms=[("log.retention.bytes", 1)],
    )
    cleanup_policy: tuple[str, ...] = option(
        "cleanup.policy",
        LIST,
        ("delete",),
        "'delete' drops old segments by age and size, 'compact' keeps the newest record of each "
        "key; both may be set.",
        POLICIES,
        synonyms=[("log.cleanup.policy", 1)],
    )
    max_message_bytes: int = option(
        "max.message.bytes",
        INT,
        1_048_588,
        "Largest record batch (after compression) that a producer may append.",
        at_least(0),
        synonyms=[("message.max.bytes", 1)],
    )
    message_timestamp_type: str = option(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "CreateTime keeps the producer's timestamps, LogAppendTime sets the broker's own.",
        TIMESTAMP_TYPES,
        synonyms=[("log.message.timestamp.type", 1)],
    )
    message_timestamp_before_max_ms: int = option(
        "message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        "How far the newest timestamp of a batch may lie in the past, with CreateTime.",
        at_least(0),
        synonyms=[("log.message.timestamp.before.max.ms", 1)],
    )
    message_timestamp_after_max_ms: int = option(
        "message.timestamp.after.max.ms",
        LONG,
        HOUR_MS,
        "How far the newest timestamp of a batch may lie in the future, with CreateTime.",
        at_least(0),
        synonyms=[("log.message.timestamp.after.max.ms", 1)],
    )
    flush_messages: int = option(
        "flush.messages",
        LONG,
        LONG_MAX,
        "Number of records after which a log is forced to disk.",
        at_least(1),
        synonyms=[("log.flush.interval.messages", 1)],
    )
    flush_ms: int = option(
        "flush.ms",
        LONG,
        LONG_MAX,
        "Time after which appended records are forced to disk.",
        at_least(0),
        synonyms=[("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)],
    )
    file_delete_delay_ms: int = option(
        "file.delete.delay.ms",
        LONG,
        60_000,
        "Time from a segment's removal from the log to the removal of its files.",
        at_least(0),
        synonyms=[("log.segment.delete.delay.ms", 1)],
    )
    preallocate: bool = option(
        "preallocate",
        BOOLEAN,
        False,
        "Reserve a new segment's disk space when it is created.",
        synonyms=[("log.preallocate", 1)],
    )
    compression_type: str = option(
        "compression.type",
        STRING,
        "producer",
        "Codec of stored batches; 'producer' keeps each batch as its producer compressed it.",
        CODECS,
        synonyms=[("compression.type", 1)],
    )
    compression_gzip_level: int = option(
        "compression.gzip.level",
        INT,
        -1,
        "Level of compression.type=gzip; -1 = the codec's default.",
        GZIP_LEVELS,
        synonyms=[("compression.gzip.level", 1)],
    )
    compression_lz4_level: int = option(
        "compression.lz4.level",
        INT,
        9,
        "Level of compression.type=lz4; 9, the default, is its fast mode.",
        between(1, 17),
        synonyms=[("compression.lz4.level", 1)],
    )
    compression_zstd_level: int = option(
        "compression.zstd.level",
        INT,
        3,
        "Level of compression.type=zstd.",
        between(-131072, 22),
        synonyms=[("compression.zstd.level", 1)],
    )
    min_insync_replicas: int = option(
        "min.insync.replicas",
        INT,
        1,
        "In-sync replicas that an append with acks=all needs.",
        at_least(1),
        synonyms=[("min.insync.replicas", 1)],
    )
    unclean_leader_election_enable: bool = option(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether a replica that is not in sync may lead where none in sync is there.",
        synonyms=[("unclean.leader.election.enable", 1)],
    )
    delete_retention_ms: int = option(
        "delete.retention.ms",
        LONG,
        24 * HOUR_MS,
        "Time for which compaction keeps a tombstone (a record without value) once it has seen it.",
        at_least(0),
        synonyms=[("log.cleaner.delete.retention.ms", 1)],
    )
    min_cleanable_dirty_ratio: float = option(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        "Share of a log that must be uncompacted before it is compacted.",
        between(0, 1),
        synonyms=[("log.cleaner.min.cleanable.ratio", 1)],
    )
    min_compaction_lag_ms: int = option(
        "min.compaction.lag.ms",
        LONG,
        0,
        "Time for which a record is not compacted.",
        at_least(0),
        synonyms=[("log.cleaner.min.compaction.lag.ms", 1)],
    )
    max_compaction_lag_ms: int = option(
        "max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        "Time after which a record is compacted, whatever the dirty ratio.",
        at_least(1),
        synonyms=[("log.cleaner.max.compaction.lag.ms", 1)],
    )
    leader_replication_throttled_replicas: tuple[str, ...] = option(
        "leader.replication.throttled.replicas",
        LIST,
        (),
        "PARTITION:BROKER,... whose broker, where it leads, sends no more than "
        "leader.replication.throttled.rate to followers not in sync; * for all.",
        THROTTLED_REPLICA,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = option(
        "follower.replication.throttled.replicas",
        LIST,
        (),
        "PARTITION:BROKER,... whose broker, where it follows and is not in sync, fetches no more "
        "than follower.replication.throttled.rate; * for all.",
        THROTTLED_REPLICA,
    )
    remote_storage_enable: bool = option(
        "remote.storage.enable", BOOLEAN, False, "Always false: this broker has no tiered storage."
    )
    local_retention_ms: int = option("local.retention.ms", LONG, -2, _STORED, at_least(-2))
    local_retention_bytes: int = option("local.retention.bytes", LONG, -2, _STORED, at_least(-2))
    remote_log_copy_disable: bool = option("remote.log.copy.disable", BOOLEAN, False, _STORED)
    remote_log_delete_on_disable: bool = option(
        "remote.log.delete.on.disable", BOOLEAN, False, _STORED
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


LOG_KEYS = keys_of(LogConfig)


def topic_config_key(name: str) -> ConfigKey | None:
    """None for what is no property of a topic."""
    return next((key for key in LOG_KEYS.values() if key.name == name), None)


def check_segment_bytes(name: str, segment_bytes: int, *, as_3_9: bool) -> None:
    """The property `name`; `as_3_9`: by the older rule. Raises ConfigError."""
    least = _LEAST_SEGMENT_BYTES_OF_3_9 if as_3_9 else _LEAST_SEGMENT_BYTES
    objection = at_least(least).objection(segment_bytes)
    if objection is not None:
        raise ConfigError(f"Invalid value {segment_bytes} for configuration {name}: {objection}")


def check_lags(prefix: str, min_lag_ms: int, max_lag_ms: int) -> None:
    """Raises ConfigError where records must be compacted before they may be."""
    if min_lag_ms > max_lag_ms:
        raise ConfigError(
            f"conflict topic config setting {prefix}min.compaction.lag.ms ({min_lag_ms}) > "
            f"{prefix}max.compaction.lag.ms ({max_lag_ms})"
        )
