"""Writes the markers that end a transaction into the partitions that it has touched.

Owns: which markers are still to be written, and when a disk that refused is tried again. The one
place from which markers go: all partitions are this broker's now; those of others will be sent to
their leaders from here. A marker that is written twice changes nothing; one that is lost leaves its
transaction open for ever once the coordinator holds it for ended, so markers are on disk, as far as
the flush policy wants it, before it hears that they are written. Called by: the event loop's thread
only; a transaction of many partitions is written over several turns of the loop.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    InvalidProducerEpochError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster.metadata import CONSUMER_OFFSETS
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.log.log import Log
from broker.replica.manager import ReplicaManager
from broker.replica.purgatory import CallLater
from pyspark_kafkalog.record.control import TransactionMarker

_log = logging.getLogger(__name__)

_MARKERS_A_TURN = 16
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class EndOfTransaction:
    """What every marker of one transaction says."""

    producer: ProducerIdAndEpoch
    marker: TransactionMarker
    transaction_version: int


class OffsetsOfTransactions(Protocol):
    """Who keeps the offsets that groups commit within transactions."""

    def complete_transaction(
        self, producer_id: int, offsets_partitions: Sequence[int], *, is_commit: bool
    ) -> None:
        """A marker has been appended to these partitions of `__consumer_offsets`."""
        ...

    def is_loading(self, partition: int) -> bool:
        """Whether what a partition of `__consumer_offsets` tells of is not known yet."""
        ...


class MarkerWriter:
    """Writes the markers of ended transactions, and calls back when all of one are on disk.

    The event loop's thread only.
    """

    def __init__(
        self, replicas: ReplicaManager, offsets: OffsetsOfTransactions, call_later: CallLater
    ) -> None:
        self._replicas = replicas
        self._offsets = offsets
        self._call_later = call_later
        self._is_closed = False
        self._flushes: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Writes nothing any more."""
        self._is_closed = True
        for flush in self._flushes:
            flush.cancel()

    def write_one(self, place: TopicPartition, end: EndOfTransaction) -> None:
        """Raises UnknownTopicOrPartitionError, KafkaStorageError, InvalidProducerEpochError,
        TransactionCoordinatorFencedError and, while its groups are being read,
        CoordinatorLoadInProgressError."""
        is_offsets = place.topic == CONSUMER_OFFSETS
        if is_offsets and self._offsets.is_loading(place.partition):
            # Who reads the log might not see the marker, and has no offsets yet to complete.
            raise CoordinatorLoadInProgressError()
        self._replicas.append_end_marker(
            place,
            end.producer.producer_id,
            end.producer.epoch,
            end.marker,
            end.transaction_version,
        )
        if is_offsets:
            self._offsets.complete_transaction(
                end.producer.producer_id, (place.partition,), is_commit=end.marker.is_commit
            )

    def write(
        self, places: Collection[TopicPartition], end: EndOfTransaction, done: Callable[[], None]
    ) -> None:
        """Calls `done` when each of `places` has its marker, or can have none any more; perhaps
        before this returns. A partition whose disk refuses is tried again until it does not."""
        self._write(deque(sorted(places)), deque(), end, lambda: self._when_flushed(places, done))

    def _write(
        self,
        places: deque[TopicPartition],
        refused: deque[TopicPartition],
        end: EndOfTransaction,
        done: Callable[[], None],
    ) -> None:
        if self._is_closed:
            return
        for _ in range(min(_MARKERS_A_TURN, len(places))):
            place = places.popleft()
            try:
                self.write_one(place, end)
            except UnknownTopicOrPartitionError:
                pass  # the topic was deleted: its records are gone with it
            except (InvalidProducerEpochError, TransactionCoordinatorFencedError) as error:
                # Somebody has ended it there by hand, in the name of a later epoch.
                _log.warning("marker.fenced topic=%r partition=%d reason=%r", *place, str(error))
            except BrokerResponseError as error:
                _log.warning("marker.refused topic=%r partition=%d reason=%r", *place, str(error))
                refused.append(place)
        if places:
            self._call_later(0, lambda: self._write(places, refused, end, done))
        elif refused:
            self._call_later(_RETRY_S, lambda: self._write(refused, places, end, done))
        else:
            done()

    def _when_flushed(self, places: Collection[TopicPartition], done: Callable[[], None]) -> None:
        if self._is_closed:
            return
        logs = self._unflushed(places)
        if not logs:
            done()
            return

        async def flush() -> None:
            loop = asyncio.get_running_loop()
            try:
                for log in logs:
                    await loop.run_in_executor(None, log.flush)
            except BrokerResponseError:  # the log has said so; perhaps its topic will be deleted
                self._call_later(_RETRY_S, lambda: self._when_flushed(places, done))
            else:
                done()

        task = asyncio.get_running_loop().create_task(flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    def _unflushed(self, places: Collection[TopicPartition]) -> list[Log]:
        logs = []
        for place in places:
            with contextlib.suppress(BrokerResponseError):  # it is gone
                log = self._replicas.log_that_awaits_flush(place)
                if log is not None:
                    logs.append(log)
        return logs
