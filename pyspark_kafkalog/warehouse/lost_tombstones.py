"""Tombstones that compaction took before an upsert read them: their rows would stay for ever.

A compacted topic keeps a tombstone for `delete.retention.ms`. A load that comes later than that
does not see which of the keys that it has rows of were deleted meanwhile: offsets without a record
are all that is left. That is in doubt where two things come together:

- The load was behind for longer. When it last committed says nothing, as that may have been far
  behind the end of the log: what counts is since when all came that lies behind its place
  (caught_up.py).
- There are offsets without a record (holes.py). Markers, aborted records and records whose keys
  have newer ones leave such, too. These are told apart where the record before them came less than
  `delete.retention.ms` ago: a tombstone behind it is younger still. When that came its timestamp
  tells, as far as the topic binds those to the clock of the broker: with LogAppendTime, or by
  `message.timestamp.after.max.ms`.

The tasks of an upsert report the holes; the driver judges them before the commit.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.admin import topic_property
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.source.offsets import describe, report_data_loss
from pyspark_kafkalog.warehouse.commit import now_ms

if TYPE_CHECKING:
    from pyspark_kafkalog.source.options import SourceOptions
    from pyspark_kafkalog.warehouse.plan import Work

_KEPT_MS = 86_400_000
"""Kafka's default, where brokers do not tell."""
_ANY_MS = 2**63 - 1
_HOUR_MS = 3_600_000


def report_lost_tombstones(
    source: "SourceOptions", name: str, work: "Work", holes: Mapping[TopicPartition, int]
) -> None:
    """Reports where tombstones may be gone that load `name`, which does this `work`, has not read;
    `holes` are the partitions that have some, each with the time before, in us."""
    if not holes:
        return
    with Cluster(source.client, fails_fast=True) as cluster:
        for topic in sorted({each.topic for each in holes}):
            policy = topic_property(cluster, topic, "cleanup.policy")
            if policy is not None and "compact" not in policy:
                continue
            kept_ms = int(topic_property(cluster, topic, "delete.retention.ms") or _KEPT_MS)
            gone_ms, ahead_ms = now_ms() - kept_ms, _most_ms_ahead(cluster, topic)
            lost = [
                each
                for each, time_us in holes.items()
                if each.topic == topic
                and _since_ms(work, each) < gone_ms
                and time_us // 1000 - ahead_ms < gone_ms
            ]
            if lost:
                report_data_loss(
                    f"Load {name!r} was not up with {describe(lost)} at any time in the last "
                    f"{kept_ms / _HOUR_MS:.1f} hours, for which topic {topic}, which is compacted, "
                    "keeps tombstones (delete.retention.ms). Records are gone, and rows whose "
                    "tombstones were among them would stay: load into a new table.",
                    source.fail_on_data_loss,
                )


def _since_ms(work: "Work", partition: TopicPartition) -> int:
    """Since when all came that lies behind the place of a load; 0 where that is not known."""
    position = work.position
    known = position.caught_up.get(partition)
    if known is not None:
        return known.since_ms
    if position.offsets.get(partition):
        return 0
    return work.ends.new_since_ms(position.caught_up, partition)


def _most_ms_ahead(cluster: Cluster, topic: str) -> int:
    """How far a record's timestamp may lie after the time when it came."""
    if topic_property(cluster, topic, "message.timestamp.type") == "LogAppendTime":
        return 0
    for name in ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms"):
        value = topic_property(cluster, topic, name)
        if value is not None:
            return int(value)
    return _ANY_MS
