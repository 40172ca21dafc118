"""Figures of partitions: offsets and sizes as their leaders say them, and how fast both grow.

Growth is what two looks have between them, so it is known from the second one on; nobody is asked
while nobody looks. What a leader does not tell is None.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.brokers import replica_sizes
from pyspark_kafkalog.client.cluster import (
    EARLIEST,
    LATEST,
    BrokerAddress,
    Cluster,
    PartitionMetadata,
)
from pyspark_kafkalog.client.config import Isolation
from pyspark_kafkalog.web.brokers import Brokers, Seen

_WINDOW_S = 15.0
_LEAST_S = 0.5
_MOST_LOOKS = 16
_MOST_PARTITIONS = 100_000
_PARTITIONS_A_REQUEST = 8_000
"""Brokers bound what a request may hold."""

T = TypeVar("T")
Led = Mapping[int, list[tuple[TopicPartition, PartitionMetadata]]]


@dataclass(frozen=True, slots=True)
class Figures:
    """One partition, or all of a topic: `size` in bytes of the leaders' logs, rates a second."""

    begin: int | None = None
    end: int | None = None
    size: int | None = None
    records: int | None = None
    record_rate: float | None = None
    byte_rate: float | None = None


class _Look(NamedTuple):
    """What a partition was like."""

    at_s: float
    end: int
    size: int | None


class Measure:
    """Asks for figures, and remembers earlier ones; any thread."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._looks: dict[TopicPartition, deque[_Look]] = {}
        self._lock = Lock()

    def look(
        self, seen: Seen, wanted: Mapping[str, Sequence[PartitionMetadata]]
    ) -> tuple[dict[TopicPartition, Figures], list[str]]:
        """Figures of each of `wanted` whose leader answers, and sentences of those that do not."""
        led = by_leader(
            (TopicPartition(name, each.partition), each)
            for name, partitions in wanted.items()
            for each in partitions
        )
        found, missing = _each_leader(self._brokers, seen, led, _ends_and_sizes)
        at_s = time.monotonic()
        with self._lock:
            if len(self._looks) > _MOST_PARTITIONS:
                self._looks.clear()
            return {
                topic_partition: self._with_rates(at_s, topic_partition, *told)
                for topic_partition, told in found.items()
            }, missing

    def _with_rates(
        self, at_s: float, topic_partition: TopicPartition, begin: int, end: int, size: int | None
    ) -> Figures:
        looks = self._looks.setdefault(topic_partition, deque(maxlen=_MOST_LOOKS))
        while looks and (looks[0].at_s < at_s - _WINDOW_S or looks[0].end > end):
            looks.popleft()
        record_rate = byte_rate = None
        first = looks[0] if looks else None
        if first is not None and (passed_s := at_s - first.at_s) >= _LEAST_S:
            record_rate = (end - first.end) / passed_s
            if size is not None and first.size is not None:
                # What retention deletes meanwhile hides what is written: never less than nothing.
                byte_rate = max(0.0, (size - first.size) / passed_s)
        if not looks or at_s - looks[-1].at_s >= _LEAST_S:
            looks.append(_Look(at_s, end, size))
        return Figures(begin, end, size, end - begin, record_rate, byte_rate)


def total(figures: Iterable[Figures | None]) -> Figures:
    """The sum of partitions; None for what one of them lacks."""
    rows = list(figures)

    def added(name: str) -> Any:
        values = [None if each is None else getattr(each, name) for each in rows]
        return None if not values or None in values else sum(values)

    summed = ("size", "records", "record_rate", "byte_rate")
    return Figures(**{name: added(name) for name in summed})


def offsets(
    brokers: Brokers,
    seen: Seen,
    partitions: Iterable[TopicPartition],
    which: int,
    isolation: Isolation | None = None,
) -> tuple[dict[TopicPartition, int], list[str]]:
    """EARLIEST or LATEST of those partitions that are there and whose leader answers."""
    there = {
        TopicPartition(name, each.partition): each
        for name in {each.topic for each in partitions}
        for each in seen.overview.topics.get(name, ())
    }
    led = by_leader((each, there[each]) for each in set(partitions) & there.keys())

    def ask(
        cluster: Cluster, _: BrokerAddress, some: list[tuple[TopicPartition, PartitionMetadata]]
    ) -> dict[TopicPartition, int]:
        found = cluster.list_offsets([each for each, _ in some], which, isolation)
        return {each: at.offset for each, at in found.items()}

    return _each_leader(brokers, seen, led, ask)


def by_leader(partitions: Iterable[tuple[TopicPartition, PartitionMetadata]]) -> Led:
    """Those that have a leader, by its id."""
    led: dict[int, list[tuple[TopicPartition, PartitionMetadata]]] = {}
    for topic_partition, each in partitions:
        if each.leader >= 0:
            led.setdefault(each.leader, []).append((topic_partition, each))
    return led


def _each_leader(
    brokers: Brokers,
    seen: Seen,
    led: Led,
    ask: Callable[
        [Cluster, BrokerAddress, list[tuple[TopicPartition, PartitionMetadata]]],
        dict[TopicPartition, T],
    ],
) -> tuple[dict[TopicPartition, T], list[str]]:
    def question(cluster: Cluster, broker: BrokerAddress) -> dict[TopicPartition, T]:
        found: dict[TopicPartition, T] = {}
        rest = iter(led[broker.broker_id])
        while some := list(islice(rest, _PARTITIONS_A_REQUEST)):
            found |= ask(cluster, broker, some)
        return found

    addresses = {each.broker_id: each for each in seen.overview.brokers}
    answers, missing = brokers.each(addresses, dict.fromkeys(led, question))
    merged: dict[TopicPartition, T] = {}
    for answer in answers.values():
        merged |= answer
    return merged, missing


def _ends_and_sizes(
    cluster: Cluster, broker: BrokerAddress, some: list[tuple[TopicPartition, PartitionMetadata]]
) -> dict[TopicPartition, tuple[int, int, int | None]]:
    partitions = [each for each, _ in some]
    begins = cluster.list_offsets(partitions, EARLIEST)
    ends = cluster.list_offsets(partitions, LATEST)
    led: dict[str, list[PartitionMetadata]] = {}
    for (topic, _), each in some:
        led.setdefault(topic, []).append(each)
    sizes = replica_sizes(cluster, [broker], led)
    return {
        each: (
            begins[each].offset,
            ends[each].offset,
            sizes.get(each, {}).get(broker.broker_id),
        )
        for each in partitions
    }
