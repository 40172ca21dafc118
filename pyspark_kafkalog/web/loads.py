"""The loads of targets that were named at the start, for the page.

A target may be a store far away: it is read in a thread that nobody waits for longer than _WAIT_S,
one at a time for each target, which ends with the process whatever it waits for.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as UnansweredError
from dataclasses import dataclass
from datetime import datetime, timezone
from threading import Lock, Thread
from typing import TypeAlias

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import EARLIEST, LATEST
from pyspark_kafkalog.client.config import Isolation
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.errors import sentence
from pyspark_kafkalog.warehouse.status import (
    LoadStatus,
    PartitionProgress,
    load_status,
    load_status_of_topics,
    progress_beside,
)
from pyspark_kafkalog.warehouse.targets.target import open_target
from pyspark_kafkalog.warehouse.topic_places import TOPIC, names_topic
from pyspark_kafkalog.web.brokers import Brokers, Seen
from pyspark_kafkalog.web.figures import offsets

_WAIT_S = 5.0
_FRESH_MS = 3_000
_MOST_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Load:
    """A load's last commit, and its partitions beside what the topics hold now."""

    status: LoadStatus
    committed_at: str
    progress: Sequence[PartitionProgress]

    @property
    def lag(self) -> int | None:
        lags = [each.lag for each in self.progress if each.lag is not None]
        return sum(lags) if lags else None

    @property
    def given_up(self) -> int:
        return sum(gap.offset_count for gap in self.status.gaps)


_Found: TypeAlias = "Sequence[LoadStatus | Exception]"
"""What has committed, and why a topic's target could not be read."""


class Target:
    """One target, or one for each topic; any thread. Made from what `open_target` takes, raises
    what that raises."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.is_for_each_topic = names_topic(place)
        self._name = str(open_target(place.replace(TOPIC, "TOPIC")))
        self._lock = Lock()
        self._reading: Future[_Found] | None = None
        self._read_before: Future[_Found] | None = None
        self._fresh = Deadline(0)

    def __str__(self) -> str:
        return self._name

    def loads(self, topics: Collection[str]) -> "_Found":
        """As they are, or were at last where that takes long. Raises KafkalogError, OSError,
        UnansweredError, and what a table's library raises."""
        with self._lock:
            is_old = self._reading is not None and self._reading.done() and self._fresh.expired
            if self._reading is None or is_old:
                self._fresh = Deadline(_FRESH_MS)
                self._read_before, self._reading = self._reading, Future()
                Thread(target=self._read, args=[self._reading, topics], daemon=True).start()
            before, reading = self._read_before, self._reading
        try:
            return reading.result(_WAIT_S)
        except UnansweredError:
            if before is None:
                raise
            return before.result()

    def _read(self, reading: "Future[_Found]", topics: Collection[str]) -> None:
        try:
            if self.is_for_each_topic:
                reading.set_result(list(load_status_of_topics(self._place, topics)))
            else:
                reading.set_result(load_status(self._place))
        except Exception as error:
            reading.set_exception(error)


def loads_of(
    brokers: Brokers, seen: Seen | None, targets: Sequence[Target]
) -> tuple[list[Load], list[str]]:
    """All loads of all targets, and sentences of what could not be found out. Without `seen`
    nothing is said of lag."""
    found, missing = _found(targets, () if seen is None else seen.overview.topics)
    there = {
        TopicPartition(name, each.partition)
        for name in {at.topic for status in found for at in status.position.offsets}
        if seen is not None
        for each in seen.overview.topics.get(name, ())
    }
    begins: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    if seen is not None and there:
        ends, silent = offsets(brokers, seen, there, LATEST, Isolation.READ_COMMITTED)
        missing += silent
        new = {each for status in found for each in there.difference(status.position.offsets)}
        begins, silent = offsets(brokers, seen, new, EARLIEST)
        missing += [each for each in silent if each not in missing]
    rows = []
    for status in found:
        topics = {at.topic for at in status.position.offsets}
        own = {each for each in there if each.topic in topics}
        if seen is None:
            own = set(status.position.offsets)
        ids = seen.topic_ids if seen is not None else {}
        progress = progress_beside(status.position, own, begins, ends, ids)
        rows.append(Load(status, _time(status), progress))
    return rows, missing


def _found(
    targets: Sequence[Target], topics: Collection[str]
) -> tuple[list[LoadStatus], list[str]]:
    found: list[LoadStatus] = []
    missing: list[str] = []
    for target in targets:
        if target.is_for_each_topic and not topics:
            continue  # the brokers' silence is shown already
        try:
            loads = target.loads(topics)
        except UnansweredError:
            missing.append(f"{target} has not answered yet.")
            continue
        except Exception as error:  # of whichever library: the other targets are shown
            loads = [error]
        if not loads:
            missing.append(f"{target}: no load has committed yet.")
        found += [each for each in loads if isinstance(each, LoadStatus)]
        failures = [each for each in loads if isinstance(each, Exception)]
        missing += [f"{target}: {sentence(each)}" for each in failures[:_MOST_FAILURES]]
        if len(failures) > _MOST_FAILURES:
            more = len(failures) - _MOST_FAILURES
            missing.append(f"{target}: {more} more topics could not be read.")
    return found, missing


def _time(status: LoadStatus) -> str:
    if status.last is None:
        return ""
    at = datetime.fromtimestamp(status.last.committed_at_ms / 1000, timezone.utc)
    return at.strftime("%Y-%m-%d %H:%M:%SZ")
