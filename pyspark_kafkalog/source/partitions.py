"""Which topic partitions are read, and which offsets of each: the plan of a batch.

Owns OffsetRange (also the warehouse's), ReadTask and the three ways to subscribe. Runs on the
driver with a Cluster handed in; a ReadTask travels pickled to the executor. Never fetches records.
"""

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.config import Isolation
from pyspark_kafkalog.errors import InvalidOptionError, TopicRecreatedError, UnknownTopicError
from pyspark_kafkalog.source.log_identity import refuse_other_logs
from pyspark_kafkalog.source.offsets import (
    EARLIEST,
    LATEST,
    Limit,
    LogBounds,
    OffsetLimit,
    Offsets,
    RelativeLimit,
    TimeLimit,
    describe,
    report_data_loss,
    resolve,
)
from pyspark_kafkalog.source.second_look import look_twice

if TYPE_CHECKING:
    from kafka.structs import OffsetAndTimestamp

    from pyspark_kafkalog.client.cluster import Cluster

OWN_TOPICS = "__kafkalog-"
"""What the names of topics begin with that this package keeps for itself."""
NO_EPOCHS: Mapping[TopicPartition, int] = MappingProxyType({})
_MOST_PLANS = 3
"""How often a read is planned while its topics are created again meanwhile."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The records of one partition with start_offset <= offset < until_offset."""

    topic: str
    partition: int
    start_offset: int
    until_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.start_offset <= self.until_offset:
            raise ValueError(f"not a range of offsets: {self!r}")

    @classmethod
    def of(cls, topic_partition: TopicPartition, start: int, until: int) -> "OffsetRange":
        return cls(topic_partition.topic, topic_partition.partition, start, until)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def offset_count(self) -> int:
        """Offsets, not records: compaction and transaction markers leave gaps."""
        return self.until_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one Spark task reads, range after range; the value of its InputPartition.

    `topic_ids` are those of the topics before the offsets were planned, where brokers say them, and
    `epochs` those of the partitions' leaders then, where records of later ones are to be doubted.
    """

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, UUID]
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


class Subscription(Protocol):
    """What the options `subscribe`, `subscribePattern` and `assign` have in common."""

    def partitions(self, cluster: "Cluster", missing_ok: bool = False) -> list[TopicPartition]:
        """The partitions there are now, sorted.

        Raises UnknownTopicError for a named topic or partition that does not exist, or, with
        `missing_ok`, leaves it out.
        """

    def covers(self, topic_partition: TopicPartition) -> bool:
        """Whether this partition would be read, if there were one."""


@dataclass(frozen=True, slots=True)
class SubscribeTopics:
    """Option `subscribe`: all partitions of the named topics."""

    names: tuple[str, ...]

    def partitions(self, cluster: "Cluster", missing_ok: bool = False) -> list[TopicPartition]:
        return _flatten(_topics(cluster, self.names, missing_ok))

    def covers(self, topic_partition: TopicPartition) -> bool:
        return topic_partition.topic in self.names


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Option `subscribePattern`: all topics in whose name a regular expression is found.

    Anywhere in it, as with Spark's connector: `orders` finds reorders-eu, too. The brokers' own
    topics never match, as there, nor do OWN_TOPICS: a query would read what its own sink notes.
    """

    pattern: str

    def partitions(self, cluster: "Cluster", missing_ok: bool = False) -> list[TopicPartition]:
        there = cluster.topics(None)
        topics = {name: numbers for name, numbers in there.items() if self.finds(name)}
        if not topics:
            _log.warning("Option subscribePattern: no topic matches %r now.", self.pattern)
        return _flatten(topics)

    def covers(self, topic_partition: TopicPartition) -> bool:
        return self.finds(topic_partition.topic)

    def finds(self, topic: str) -> bool:
        found = re.search(self.pattern, topic) is not None
        return found and not topic.startswith(OWN_TOPICS)


@dataclass(frozen=True, slots=True)
class AssignPartitions:
    """Option `assign`: exactly the named partitions."""

    assigned: tuple[TopicPartition, ...]

    def partitions(self, cluster: "Cluster", missing_ok: bool = False) -> list[TopicPartition]:
        names = sorted({each.topic for each in self.assigned})
        existing = set(_flatten(_topics(cluster, names, missing_ok)))
        missing = [each for each in self.assigned if each not in existing]
        if missing and not missing_ok:
            raise UnknownTopicError(
                f"Option assign names partitions that do not exist: {describe(missing)}. "
                f"There are {describe(existing)}."
            )
        return sorted(existing.intersection(self.assigned))

    def covers(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self.assigned


def log_bounds(cluster: "Cluster", partitions: list[TopicPartition]) -> LogBounds:
    """Asks the brokers for both ends of each partition: two round trips a broker.

    The beginning is asked first: it only ever moves towards the end.
    """
    earliest = offsets_at(cluster, partitions, EARLIEST)
    return replace(log_ends(cluster, partitions), earliest=earliest)


def log_ends(cluster: "Cluster", partitions: list[TopicPartition]) -> LogBounds:
    """The end of each partition alone, and its leader's epoch; no request when there are none."""
    found = cluster.list_offsets(partitions, LATEST) if partitions else {}
    return LogBounds(
        {},
        {each: found[each].offset for each in partitions},
        leader_epochs(found),
    )


def leader_epochs(
    found: Mapping[TopicPartition, "OffsetAndTimestamp"],
) -> dict[TopicPartition, int]:
    """Those of the leaders that `Cluster.list_offsets` asked, as far as they say them."""
    return {
        each: one.leader_epoch for each, one in found.items() if one.leader_epoch not in (None, -1)
    }


def offsets_at(cluster: "Cluster", partitions: list[TopicPartition], symbol: int) -> Offsets:
    """The EARLIEST or LATEST offset of each partition; no request when there are none."""
    if not partitions:
        return {}
    found = cluster.list_offsets(partitions, symbol)
    return {each: found[each].offset for each in partitions}


def topic_ids_of(cluster: "Cluster", partitions: Iterable[TopicPartition]) -> dict[str, UUID]:
    """The ids of the topics of `partitions`, which were just asked for, where brokers say them.

    To be called before any of their offsets is asked for: a topic that is created again in between
    is then found out by whoever reads them, and not taken for the one that the offsets are of.
    """
    ids = {topic: cluster.topic_id(topic) for topic in {each.topic for each in partitions}}
    return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}


def read_tasks(
    tasks: Iterable[Sequence[OffsetRange]],
    topic_ids: Mapping[str, UUID],
    epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
) -> list[ReadTask]:
    """`tasks`, each with those of `topic_ids` and `epochs` that are of its ranges."""
    found = []
    for ranges in tasks:
        topics = {piece.topic for piece in ranges} & topic_ids.keys()
        partitions = {piece.topic_partition for piece in ranges} & epochs.keys()
        found.append(
            ReadTask(
                tuple(ranges),
                {topic: topic_ids[topic] for topic in topics},
                {each: epochs[each] for each in partitions},
            )
        )
    return found


def locate(cluster: "Cluster", limit: Limit, partitions: list[TopicPartition]) -> OffsetLimit:
    """`limit` in offsets; asks the brokers where it is one of time, or counted back.

    To be called before `log_bounds`: what is found later may lie beyond the end that is known.
    Raises InvalidOptionError where a partition has no record as late as its time, and must, and
    what `refuse_other_logs` does.
    """
    if isinstance(limit, OffsetLimit):
        refuse_other_logs(cluster, limit, partitions)
        return limit
    if isinstance(limit, RelativeLimit):
        if limit.ms is None:
            return _counted_back(cluster, limit.offsets or 0, partitions)
        since_ms = max(0, int(time.time() * 1000) - limit.ms)
        limit = TimeLimit("startingOffsets", latest_if_none=True, everywhere_ms=since_ms)
    times = limit.times(partitions)
    # Asked first: a record of that time that comes after the look is behind this end.
    ends = offsets_at(cluster, partitions, LATEST) if limit.latest_if_none else {}
    found: Offsets = {}
    for time_ms in sorted(set(times.values())):
        asked = [each for each in partitions if times[each] == time_ms]
        offsets = cluster.list_offsets(asked, time_ms)
        found |= {each: offsets[each].offset for each in asked if each in offsets}
    if not limit.latest_if_none:
        for topic_partition in partitions:
            if topic_partition not in found:
                raise InvalidOptionError(
                    f"Option {limit.option}: partition {describe([topic_partition])} has no record "
                    f"of the time {times[topic_partition]} or later. To start such partitions at "
                    "their end, set the option startingOffsetsByTimestampStrategy to latest."
                )
    begins = {each: found.get(each, LATEST) for each in partitions}
    return OffsetLimit(by_partition=begins, ends=ends)


def _counted_back(
    cluster: "Cluster", offsets: int, partitions: list[TopicPartition]
) -> OffsetLimit:
    bounds = log_bounds(cluster, partitions)
    begins = {each: bounds.latest[each] - offsets for each in partitions}
    # As a symbol, which retention cannot overtake before the offsets are looked at again.
    return OffsetLimit(
        by_partition={
            each: begin if begin > bounds.earliest[each] else EARLIEST
            for each, begin in begins.items()
        }
    )


def plan_batch(
    cluster: "Cluster",
    subscription: Subscription,
    starting: Limit,
    ending: Limit,
    fail_on_data_loss: bool,
) -> tuple[list[OffsetRange], dict[str, UUID], Mapping[TopicPartition, int]]:
    """The non-empty ranges of a batch read, sorted by topic and partition, the ids that all topics
    had before their offsets were asked for, and the epochs of leaders then, where brokers say them.

    Raises UnknownTopicError; InvalidOptionError where the options contradict each other, name
    other partitions or a time without a record; DataLossError where they name offsets that are not
    there, TopicRecreatedError where some may be of a topic that was created again meanwhile (with
    `fail_on_data_loss` false: warns and reads what is there). A task may yet find one that was.
    """
    for _ in range(_MOST_PLANS):
        partitions = subscription.partitions(cluster)
        topic_ids = topic_ids_of(cluster, partitions)
        plan = partial(_plan_ranges, cluster, partitions, starting, ending)
        ranges, epochs = look_twice(cluster, plan, fail_on_data_loss)
        found_by_tasks = {piece.topic for piece in ranges} if fail_on_data_loss else set()
        recreated = _recreated(cluster, topic_ids, found_by_tasks)
        if not recreated:
            break
        what = f"{', '.join(recreated)}: deleted and created again while the read was planned."
        if fail_on_data_loss:
            raise TopicRecreatedError(
                f"{what} Offsets that were found may be those of the topic that is gone. To read "
                "what is there now, run the read again."
            )
        report_data_loss(what, fail_on_data_loss)
    return ranges, topic_ids, epochs


def _recreated(
    cluster: "Cluster", topic_ids: Mapping[str, UUID], found_by_tasks: Set[str]
) -> list[str]:
    """The topics that have other ids by now, as far as is heard; all but `found_by_tasks` are asked
    for once more: no task looks at a topic with nothing to read, and one that may lose data would
    leave the topic out, which can still be planned anew here."""
    asked = topic_ids.keys() - found_by_tasks
    # One that is gone was read as far as it was there, or is missed by its tasks.
    with suppress(UnknownTopicError):
        if asked:
            cluster.refresh(asked)
    return sorted(topic for topic, one in topic_ids.items() if cluster.topic_id(topic) != one)


def _plan_ranges(
    cluster: "Cluster",
    partitions: list[TopicPartition],
    starting: Limit,
    ending: Limit,
    fail_on_data_loss: bool,
) -> tuple[list[OffsetRange], Mapping[TopicPartition, int]]:
    first, last = locate(cluster, starting, partitions), locate(cluster, ending, partitions)
    bounds = log_bounds(cluster, partitions)
    starts = resolve("startingOffsets", first, partitions, bounds)
    untils = resolve("endingOffsets", last, partitions, bounds)
    bounds = beyond_open_transactions(cluster, starts, bounds)
    begins_by = starting.option if isinstance(starting, TimeLimit) else "startingOffsets"
    ends_by = ending.option if isinstance(ending, TimeLimit) else "endingOffsets"
    _check_order(begins_by, first.named_offsets(), ends_by, last.named_offsets())
    starts = clamp_starts(starts, bounds, fail_on_data_loss)
    untils = _clamp_untils(untils, bounds, fail_on_data_loss)
    return ranges_between(starts, untils), bounds.epochs


def clamp_starts(starts: Offsets, bounds: LogBounds, fail_on_data_loss: bool) -> Offsets:
    """Moves starts that lie outside of the log into it, or raises DataLossError."""
    clamped = {}
    for topic_partition, start in starts.items():
        earliest, latest = bounds.earliest[topic_partition], bounds.latest[topic_partition]
        clamped[topic_partition] = min(max(start, earliest), latest)
        if start < earliest:
            report_data_loss(
                f"Partition {describe([topic_partition])} begins at offset {earliest}, and offsets "
                f"from {start} were asked for.",
                fail_on_data_loss,
            )
        elif start > latest:
            report_data_loss(
                f"Partition {describe([topic_partition])} ends at offset {latest}, and offsets "
                f"from {start} were asked for.",
                fail_on_data_loss,
            )
    return clamped


def beyond_open_transactions(
    cluster: "Cluster", starts: Mapping[TopicPartition, int], bounds: LogBounds
) -> LogBounds:
    """`bounds`, with the ends of partitions that a read_committed reader may read up to an offset
    before its start, moved to that: nothing is lost there, and nothing new to be read yet.

    That is so where what is behind an open transaction was read before, uncommitted. Asks the
    brokers only where a start lies beyond an end.
    """
    ahead = [each for each, start in starts.items() if start > bounds.latest.get(each, start)]
    if not (ahead and cluster.config.isolation_level):
        return bounds
    ends = cluster.list_offsets(ahead, LATEST, Isolation.READ_UNCOMMITTED)
    held = {each: starts[each] for each in ahead if starts[each] <= ends[each].offset}
    if held:
        _log.warning(
            "A transaction is open in %s, before the offset where to go on: waiting for its end, "
            "since kafka.isolation.level is read_committed.",
            describe(held),
        )
    return replace(bounds, latest={**bounds.latest, **held})


def ranges_between(starts: Mapping[TopicPartition, int], untils: Offsets) -> list[OffsetRange]:
    """One range for each partition that has something to read, sorted."""
    return sorted(
        OffsetRange.of(each, starts[each], until)
        for each, until in untils.items()
        if starts[each] < until
    )


def _clamp_untils(untils: Offsets, bounds: LogBounds, fail_on_data_loss: bool) -> Offsets:
    # Spark's connector waits for missing offsets until its poll timeout, and then fails.
    for topic_partition, until in untils.items():
        latest = bounds.latest[topic_partition]
        if until > latest:
            report_data_loss(
                f"Partition {describe([topic_partition])} ends at offset {latest}, and offsets up "
                f"to {until} were asked for.",
                fail_on_data_loss,
            )
    return {each: min(until, bounds.latest[each]) for each, until in untils.items()}


def _check_order(begins_by: str, starts: Offsets, ends_by: str, untils: Offsets) -> None:
    for topic_partition in sorted(starts.keys() & untils.keys()):
        if starts[topic_partition] > untils[topic_partition]:
            raise InvalidOptionError(
                f"Option {begins_by} begins at offset {starts[topic_partition]} of partition "
                f"{describe([topic_partition])}, which is after offset {untils[topic_partition]}, "
                f"where {ends_by} ends."
            )


def _topics(
    cluster: "Cluster", names: tuple[str, ...] | list[str], missing_ok: bool
) -> dict[str, list[int]]:
    try:
        return cluster.topics(names)
    except UnknownTopicError:
        if not missing_ok:
            raise
    # Asking for all topics never fails for one that is gone. Internal ones may be named, too.
    there = cluster.overview().topics
    return {name: [each.partition for each in there[name]] for name in names if name in there}


def _flatten(topics: Mapping[str, list[int]]) -> list[TopicPartition]:
    return sorted(TopicPartition(topic, number) for topic in topics for number in topics[topic])
