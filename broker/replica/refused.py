"""Batches that were refused for a while, and will come again: none behind them is to come before.

A producer has several requests on their way. Where one is refused, as too few replicas are in sync,
and enough are when the next one comes, that is out of order by no fault of the producer's. Told so,
librdkafka begins a new epoch, and sends again in it also what is in the log already; and the first
batches that a log sees of a producer, which may have any number, would change places. What is
behind a refused batch is refused as that was, until it has come again. Apache Kafka does not.
Called by: Partition, from any thread that appends.
"""

from typing import Final

from broker.log.producer_state import ProducerStateManager
from pyspark_kafkalog.record.batch import BatchHeader

_MOST: Final = 1000
"""Producers. Where more wait, and never come again, all are forgotten."""
_HALF_OF_SEQUENCES: Final = 1 << 30


class RefusedBatches:
    """Those of one partition, in one leadership: by producer id, the epoch and first sequence of
    the first one."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, int]] = {}

    def note(self, header: BatchHeader) -> None:
        """It was refused."""
        if header.producer_id < 0 or header.base_sequence < 0 or self._comes_late(header):
            return
        if len(self._first) >= _MOST:
            self._first = {}
        self._first[header.producer_id] = header.producer_epoch, header.base_sequence

    def bars(self, header: BatchHeader, producers: ProducerStateManager) -> bool:
        """Whether the batch is to wait for one before it. One that is not forgets what was noted:
        it is the one that others wait for, or shows that nobody does."""
        if header.producer_id not in self._first:
            return False
        if self._comes_late(header) and not producers.expects(header):
            return True
        self._first.pop(header.producer_id, None)
        return False

    def _comes_late(self, header: BatchHeader) -> bool:
        """Whether it is behind the first one."""
        epoch, sequence = self._first.get(header.producer_id, (-1, 0))
        distance = (header.base_sequence - sequence) % (2 * _HALF_OF_SEQUENCES)
        return epoch == header.producer_epoch and 0 < distance < _HALF_OF_SEQUENCES
