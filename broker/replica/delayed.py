"""What waits for partitions, each of which knows when it is done: a produce, a fetch, a deletion of
records.

As Apache Kafka's DelayedProduce, DelayedFetch and DelayedDeleteRecords. They hear of what becomes
visible, and of what changes otherwise, from the Purgatory in which they wait. Called by: the event
loop's thread only. Never: reads a log; who fetches reads again when told.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka.errors import (
    BrokerResponseError,
    NotLeaderForPartitionError,
    RequestTimedOutError,
)
from kafka.structs import TopicPartition

from broker.replica.partition import Isolation, Partition
from broker.replica.purgatory import DelayedOperation


class Appended(NamedTuple):
    """What was appended to a partition: up to where all replicas in sync must have it, and the
    leadership (`Partition.leadership`) in which it was."""

    partition: Partition
    end_offset: int
    leadership: int


class DelayedProduce(DelayedOperation):
    """One with acks=all: done when each of its partitions has committed its records."""

    __slots__ = ("_uncommitted", "errors")

    def __init__(self, appended: Sequence[Appended]) -> None:
        super().__init__({each.partition.topic_partition for each in appended})
        self._uncommitted = dict(enumerate(appended))
        self.errors: list[BrokerResponseError | None] = [None] * len(appended)
        """By the numbers in `appended`, when it is done: why the records are not known to be in
        all replicas in sync. NotLeaderForPartitionError, NotEnoughReplicasAfterAppendError or, at
        the end of its time, RequestTimedOutError."""

    def check(self) -> bool:
        for number, each in list(self._uncommitted.items()):
            try:
                if not each.partition.has_committed(each.end_offset, each.leadership):
                    continue
            except BrokerResponseError as error:
                self.errors[number] = error
            del self._uncommitted[number]
        return not self._uncommitted

    def progress(self, size_bytes: int, stable_bytes: int) -> None:
        if self.check():
            self.complete()

    def expire(self) -> None:
        for number in self._uncommitted:
            self.errors[number] = RequestTimedOutError()
        self.complete()


class DelayedDeleteRecords(DelayedOperation):
    """One whose leaders begin above what is deleted: done when all replicas that are there do."""

    __slots__ = ("_waiting", "outcomes")

    def __init__(self, starts: Mapping[TopicPartition, tuple[Partition, int]]) -> None:
        """`starts`: partitions that this broker leads, and where each is to begin."""
        super().__init__(starts)
        self._waiting = {
            each: (partition, partition.leadership, start)
            for each, (partition, start) in starts.items()
        }
        self.outcomes: dict[TopicPartition, int | BrokerResponseError] = {}
        """When it is done: the low watermarks, or why one is not known to be high enough:
        NotLeaderForPartitionError or, at the end of its time, RequestTimedOutError."""

    def check(self) -> bool:
        for topic_partition, (partition, leadership, start) in list(self._waiting.items()):
            if not partition.is_led or partition.leadership != leadership:
                self.outcomes[topic_partition] = NotLeaderForPartitionError(
                    f"{topic_partition} is not led here now"
                )
            elif partition.low_watermark >= start:
                self.outcomes[topic_partition] = partition.low_watermark
            else:
                continue
            del self._waiting[topic_partition]
        return not self._waiting

    def progress(self, size_bytes: int, stable_bytes: int) -> None:
        if self.check():
            self.complete()

    def expire(self) -> None:
        if not self.check():
            self.outcomes.update(dict.fromkeys(self._waiting, RequestTimedOutError()))
        self.complete()


class DelayedFetch(DelayedOperation):
    """One that found too little: done when so many more bytes can be fetched."""

    __slots__ = ("_isolation", "_missing_bytes")

    def __init__(self, keys: Iterable[Hashable], missing_bytes: int, isolation: Isolation) -> None:
        """`keys`: its partitions, or its session."""
        super().__init__(keys)
        self._missing_bytes = missing_bytes
        self._isolation = isolation

    def check(self) -> bool:
        return self._missing_bytes <= 0

    def progress(self, size_bytes: int, stable_bytes: int) -> None:
        is_patient = self._isolation is Isolation.TXN_COMMITTED
        self._missing_bytes -= stable_bytes if is_patient else size_bytes
        if self._missing_bytes <= 0:
            self.complete()
