"""Batches that were refused for a while, and will come again: none behind them is to come before.

A producer has several requests on their way. Where one is refused for what passes, and the next one
comes when that has passed, it is out of order by no fault of the producer's. Told so, librdkafka
begins a new epoch, and sends again in it also what is in the log already; and the first batches
that a log sees of a producer, which may have any number, would change places. What is behind a
refused batch is refused, too, until that has come again, here or by way of another leader, or the
producer begins anew, or its transaction ends. Apache Kafka does not.

What passes: too few replicas are in sync; others may lead, as the session with ZooKeeper is over;
this broker has not heard yet that it leads, or of the topic; a transaction could not be verified; a
disk was full. Called by: ReplicaManager, on the event loop's thread.
"""

from typing import Final

from kafka.structs import TopicPartition

from broker.log.producer_state import ProducerStateManager
from pyspark_kafkalog.record.batch import BatchHeader

_MOST: Final = 10_000
"""Producers of partitions. Where more wait, and never come again, all are forgotten."""
_HALF_OF_SEQUENCES: Final = 1 << 30


class RefusedBatches:
    """Those of all partitions: of each producer the epoch and first sequence of the first one."""

    def __init__(self) -> None:
        self._first: dict[tuple[TopicPartition, int], tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, place: TopicPartition, header: BatchHeader) -> None:
        """It was refused."""
        if header.producer_id < 0 or header.base_sequence < 0 or self._comes_late(place, header):
            return
        if len(self._first) >= _MOST:
            self._first = {}
        self._first[place, header.producer_id] = header.producer_epoch, header.base_sequence

    def bars(
        self, place: TopicPartition, header: BatchHeader, producers: ProducerStateManager
    ) -> bool:
        """Whether the batch is to wait for one before it. One that is not forgets what was noted:
        it is the one that others wait for, or shows that nobody does."""
        first = self._first.get((place, header.producer_id))
        if first is None:
            return False
        if self._comes_late(place, header) and not producers.has(header.producer_id, *first):
            return True
        self.forget(place, header.producer_id)
        return False

    def forget(self, place: TopicPartition, producer_id: int) -> None:
        """Nobody waits for what was refused of this producer."""
        self._first.pop((place, producer_id), None)

    def _comes_late(self, place: TopicPartition, header: BatchHeader) -> bool:
        """Whether it is behind the first one."""
        epoch, sequence = self._first.get((place, header.producer_id), (-1, 0))
        distance = (header.base_sequence - sequence) % (2 * _HALF_OF_SEQUENCES)
        return epoch == header.producer_epoch and 0 < distance < _HALF_OF_SEQUENCES
