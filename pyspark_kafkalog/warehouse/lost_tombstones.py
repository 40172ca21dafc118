"""Tombstones that compaction took before an upsert read them: their rows would stay for ever.

A compacted topic keeps a tombstone for `delete.retention.ms`. A load that comes later than that
does not see which of the keys that it has rows of were deleted meanwhile: offsets without a record
are all that is left. Such offsets are told from those of markers, aborted records and records whose
keys have newer ones by what comes before them: where that is no older than `delete.retention.ms`,
no tombstone can have been taken there yet.

The tasks of an upsert report the holes (holes.py); the driver judges them before the commit.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.admin import topic_property
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.source.offsets import Offsets, describe, report_data_loss

if TYPE_CHECKING:
    from pyspark_kafkalog.source.options import SourceOptions
    from pyspark_kafkalog.warehouse.targets.target import Target

_KEPT_MS = 86_400_000
"""Kafka's default, where brokers do not tell."""


def report_lost_tombstones(
    source: "SourceOptions",
    target: "Target",
    name: str,
    at: Offsets,
    holes: Mapping[TopicPartition, int],
) -> None:
    """Reports where tombstones may be gone that load `name`, which goes on `at` these offsets, has
    not read; `holes` are the partitions that have some, each with the time before."""
    late = {each: time_us for each, time_us in holes.items() if at.get(each)}
    if not late:
        return
    commits = (each.committed_at_ms for each in target.history() if each.name == name)
    committed_ms = next(commits, 0)
    now_ms = time.time_ns() // 1_000_000
    with Cluster(source.client, fails_fast=True) as cluster:
        for topic in sorted({each.topic for each in late}):
            policy = topic_property(cluster, topic, "cleanup.policy")
            if policy is not None and "compact" not in policy:
                continue
            kept_ms = int(topic_property(cluster, topic, "delete.retention.ms") or _KEPT_MS)
            gone_ms = now_ms - kept_ms
            lost = [
                each
                for each, time_us in late.items()
                if each.topic == topic and time_us < gone_ms * 1000
            ]
            if lost and committed_ms < gone_ms:
                report_data_loss(
                    f"Load {name!r} comes {(now_ms - committed_ms) / 3_600_000:.1f} hours after "
                    f"its last commit, and topic {topic}, which is compacted, keeps tombstones for "
                    f"{kept_ms / 3_600_000:.1f} (delete.retention.ms). Records of "
                    f"{describe(lost)} are gone since, and rows whose tombstones were among them "
                    "would stay: load into a new table.",
                    source.fail_on_data_loss,
                )
