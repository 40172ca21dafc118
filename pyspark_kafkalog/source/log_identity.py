"""Which logs the offsets of a checkpoint are of.

Offsets mean nothing by themselves: a topic that was deleted and created again has the same ones,
and so has a log that lost its end (an election of a replica that was not in sync, a power loss, a
broker that was restored) and grew again. So the end of a micro-batch holds the ids of its topics
and the epochs of its partitions' leaders when it was planned, and so do the offsets that
`loaded_offsets` tells. Neither has a place for that: it is the name of a topic without partitions,
which Spark's own connector reads over, as `from_json` does. A query that may lose data goes on in
the other log; there it says where that batch begins, too, which no offset of the one before tells.

Owns the form of that, and what became of such logs. Runs on the driver, with a Cluster handed in.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.epoch_ends import epoch_ends
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError, TopicRecreatedError
from pyspark_kafkalog.source.offsets import (
    LEFT_AT,
    OF_LOGS,
    JsonOffsets,
    OffsetLimit,
    Offsets,
    describe,
    from_json,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.client.cluster import Cluster

_log = logging.getLogger(__name__)

_MOST_LEFT = 2_000
"""Partitions: some 40 bytes of each micro-batch's offsets."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The ids of topics and the epochs of their partitions' leaders, as far as brokers say them.

    Of a batch also where it begins in the partitions that it goes on in elsewhere than where the
    one before ended, as that was in another log.
    """

    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    begins: Offsets = field(default_factory=dict)

    def __or__(self, other: "LogIdentity") -> "LogIdentity":
        """What both tell; of what they both do, what `other` tells."""
        return LogIdentity(
            {**self.topic_ids, **other.topic_ids},
            {**self.epochs, **other.epochs},
            self.begins | other.begins,
        )

    def of(self, offsets: Offsets) -> "LogIdentity":
        """What is of the partitions in `offsets`."""
        topics = {each.topic for each in offsets}
        return LogIdentity(
            {topic: one for topic, one in self.topic_ids.items() if topic in topics},
            {each: epoch for each, epoch in self.epochs.items() if each in offsets},
            {each: begin for each, begin in self.begins.items() if each in offsets},
        )

    def in_order(self) -> "LogIdentity":
        """The same, in an order that depends on nothing else."""
        return LogIdentity(
            dict(sorted(self.topic_ids.items())),
            dict(sorted(self.epochs.items())),
            dict(sorted(self.begins.items())),
        )

    def others(self, now: "LogIdentity") -> set[str]:
        """The topics that are others by `now`."""
        both = self.topic_ids.keys() & now.topic_ids.keys()
        return {topic for topic in both if self.topic_ids[topic] != now.topic_ids[topic]}


def with_identity(end: JsonOffsets, identity: LogIdentity) -> JsonOffsets:
    """The end of a batch, or offsets of a load, with the logs that they are of."""
    return _with_note(end, OF_LOGS, identity.in_order())


def with_left(end: JsonOffsets, left: LogIdentity) -> JsonOffsets:
    """The end of a batch, with the logs that the query has left, in that order, and in `begins`
    where it would go on in them."""
    return _with_note(end, LEFT_AT, left)


def left_with(left: LogIdentity, gone: LogIdentity) -> LogIdentity:
    """What a query has `left` when it leaves what is `gone`, too. What it left first is forgotten
    where that is much: topics of a day that are deleted do not come back."""
    if not gone.begins:
        return left
    before = [each for each in left.begins if each not in gone.begins]
    over = max(0, len(before) + len(gone.begins) - _MOST_LEFT)
    if forgotten := before[:over]:
        _log.warning(
            "%d partitions are out of sight, and of the first, %s, it is not remembered any more "
            "where the query was: what comes back of them is read from its beginning.",
            len(before) + len(gone.begins),
            describe(forgotten),
        )
    return left.of({each: left.begins[each] for each in before[over:]}) | gone


def _with_note(end: JsonOffsets, prefix: str, identity: LogIdentity) -> JsonOffsets:
    logs: dict[str, dict[str, Any]] = {}
    for topic, topic_id in identity.topic_ids.items():
        logs.setdefault(topic, {})["id"] = str(topic_id)
    for kind, numbers in (("epochs", identity.epochs), ("begins", identity.begins)):
        for each, number in numbers.items():
            of_topic = logs.setdefault(each.topic, {}).setdefault(kind, {})
            of_topic[str(each.partition)] = number
    return {**end, prefix + json.dumps(logs, separators=(",", ":")): {}} if logs else end


def identity_in(end: JsonOffsets) -> LogIdentity:
    """What `with_identity` has put there; empty where another connector, or an earlier release, has
    written it."""
    return _noted(end, OF_LOGS)


def left_in(end: JsonOffsets) -> LogIdentity:
    """What `with_left` has put there; else empty."""
    return _noted(end, LEFT_AT)


def _noted(end: JsonOffsets, prefix: str) -> LogIdentity:
    for name in end:
        if name.startswith(prefix):
            logs = json.loads(name.removeprefix(prefix))
            return LogIdentity(
                {topic: UUID(one["id"]) for topic, one in logs.items() if "id" in one},
                *(
                    from_json({topic: one.get(kind, {}) for topic, one in logs.items()})
                    for kind in ("epochs", "begins")
                ),
            )
    return LogIdentity()


def refuse_other_logs(
    cluster: "Cluster", limit: OffsetLimit, partitions: Collection[TopicPartition]
) -> None:
    """Raises TopicRecreatedError or DataLossError where offsets of `limit`, of the topics that were
    just asked for, are those of another log than is there. What begins at 0 leaves nothing out."""
    if not limit.note:
        return
    try:
        then = identity_in({limit.note: {}})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidOptionError(
            f"offsets have the malformed note {limit.note[:200]!r}: give them as loaded_offsets "
            "told them, or leave it out"
        ) from None
    offsets = {each: n for each, n in limit.named_offsets().items() if n and each in partitions}
    now = {each.topic: cluster.topic_id(each.topic) for each in offsets}
    known = LogIdentity({topic: one for topic, one in now.items() if one is not None})
    others = sorted(then.of(offsets).others(known))
    if others:
        raise TopicRecreatedError(
            f"{', '.join(others)}: not the topics that these offsets were told of, but deleted and "
            "created again since, or of another cluster. To read what is there from the beginning, "
            f"say earliest: {json.dumps(dict.fromkeys(others, 'earliest'))}. To begin at the "
            f"offsets all the same, leave out what begins with {OF_LOGS.strip()}"
        )
    cut = CutLogs().find(cluster, offsets, then.epochs)
    if cut:
        first = min(cut)
        raise DataLossError(
            f"Partition {describe([first])} lost records before offset {offsets[first]} since that "
            f"was told: others are written from offset {cut[first]} on. To read these, give that "
            "offset"
        )


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
