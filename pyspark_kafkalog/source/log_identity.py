"""Which logs the offsets of a checkpoint are of.

Offsets mean nothing by themselves: a topic that was deleted and created again has the same ones,
and so has a log that lost its end (an election of a replica that was not in sync, a power loss, a
broker that was restored) and grew again. So the end of a micro-batch holds the ids of its topics
and the epochs of its partitions' leaders when it was planned. A checkpoint has no place for that:
it is the name of a topic without partitions, which Spark's own connector reads over, as `from_json`
does.

Owns the form of that, and what became of such logs. Runs on the driver, with a Cluster handed in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.epoch_ends import epoch_ends
from pyspark_kafkalog.source.offsets import OF_LOGS, JsonOffsets, Offsets

if TYPE_CHECKING:
    from pyspark_kafkalog.client.cluster import Cluster


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The ids of topics and the epochs of their partitions' leaders, as far as brokers say them."""

    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def of(self, offsets: Offsets) -> "LogIdentity":
        """What is of the partitions in `offsets`."""
        topics = {each.topic for each in offsets}
        return LogIdentity(
            {topic: one for topic, one in self.topic_ids.items() if topic in topics},
            {each: epoch for each, epoch in self.epochs.items() if each in offsets},
        )

    def others(self, now: "LogIdentity") -> set[str]:
        """The topics that are others by `now`."""
        both = self.topic_ids.keys() & now.topic_ids.keys()
        return {topic for topic in both if self.topic_ids[topic] != now.topic_ids[topic]}


def with_identity(end: JsonOffsets, identity: LogIdentity) -> JsonOffsets:
    """The end of a batch, with the logs that its offsets are of."""
    logs: dict[str, dict[str, Any]] = {}
    for topic in sorted(identity.topic_ids):
        logs.setdefault(topic, {})["id"] = str(identity.topic_ids[topic])
    for topic, partition in sorted(identity.epochs):
        epochs = logs.setdefault(topic, {}).setdefault("epochs", {})
        epochs[str(partition)] = identity.epochs[TopicPartition(topic, partition)]
    return {**end, OF_LOGS + json.dumps(logs, separators=(",", ":")): {}} if logs else end


def identity_in(end: JsonOffsets) -> LogIdentity:
    """What `with_identity` has put into the end of a batch; empty where another connector, or an
    earlier release, planned it."""
    for name in end:
        if name.startswith(OF_LOGS):
            logs = json.loads(name.removeprefix(OF_LOGS))
            return LogIdentity(
                {topic: UUID(one["id"]) for topic, one in logs.items() if "id" in one},
                {
                    TopicPartition(topic, int(partition)): epoch
                    for topic, one in logs.items()
                    for partition, epoch in one.get("epochs", {}).items()
                },
            )
    return LogIdentity()


def is_back(then: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]) -> Offsets:
    """The partitions of `then` whose leader is in an earlier epoch now, with that: a leader that
    was replaced and has not heard of it, or a broker that was restored."""
    return {each: now[each] for each in then.keys() & now.keys() if now[each] < then[each]}


class CutLogs:
    """Finds logs that were cut off before the offsets that a query goes on at. Remembers in which
    epochs they were found whole, so that leaders are asked once for each election."""

    def __init__(self) -> None:
        self._whole_in: dict[TopicPartition, int] = {}

    def find(
        self,
        cluster: "Cluster",
        offsets: Offsets,
        then: Mapping[TopicPartition, int],
        now: Mapping[TopicPartition, int] | None = None,
    ) -> Offsets:
        """Those of `offsets` below which a log ends in the epoch of `then`, each with that end;
        asks the leaders of those alone that are in another epoch `now`, where that is known."""
        asked = {
            each: then[each]
            for each in offsets.keys() & then.keys()
            if offsets[each] and (now is None or self._may_be_cut(each, then, now))
        }
        ends = epoch_ends(cluster, asked)
        cut = {each: end for each, end in ends.items() if end < offsets[each]}
        self._whole_in |= {each: now[each] for each in asked if now and each not in cut}
        return cut

    def _may_be_cut(
        self,
        each: TopicPartition,
        then: Mapping[TopicPartition, int],
        now: Mapping[TopicPartition, int],
    ) -> bool:
        return each in now and now[each] not in (then[each], self._whole_in.get(each))
