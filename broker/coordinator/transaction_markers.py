"""Writes the markers that end a transaction into the partitions that it has touched.

Owns: which markers are still to be written, and when those that were refused are tried again. The
one place from which markers go: into the partitions that this broker leads, and by WriteTxnMarkers
to the leaders of all others. A marker that is written twice changes nothing; one that is lost
leaves its transaction open for ever once the coordinator holds it for ended, so markers are in all
replicas in sync, and on disk as far as the flush policy wants it, before it hears that they are
written. Which errors end that, and which are tried again, is as in Apache Kafka. Called by: the
event loop's thread only; a transaction of many partitions is written over several turns of the
loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    InvalidProducerEpochError,
    KafkaConnectionError,
    KafkaStorageError,
    NetworkExceptionError,
    NotLeaderForPartitionError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
from kafka.protocol.producer import WriteTxnMarkersResponse
from kafka.structs import TopicPartition

from broker.cluster.cache import MetadataCache
from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import CONSUMER_OFFSETS
from broker.cluster.to_brokers import AskBroker, Batches
from broker.coordinator.marker_messages import (
    WRITE_TXN_MARKERS_VERSION,
    EndOfTransaction,
    marker_errors,
    markers_message,
)
from broker.replica.delayed import Appended, DelayedProduce
from broker.replica.later import when_done
from broker.replica.manager import ReplicaManager
from broker.replica.purgatory import CallLater

_log = logging.getLogger(__name__)

_MARKERS_A_TURN: Final = 16
_MARKERS_A_REQUEST: Final = 5_000
_LEAST_BACKOFF_S: Final = 0.1
_MOST_BACKOFF_S: Final = 1.0
# After these a partition can have the marker no more: somebody has ended the transaction there in
# the name of a later epoch, or it never took transactions.
_FINAL: Final = (
    InvalidProducerEpochError,
    TransactionCoordinatorFencedError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
_PERHAPS_LED_ELSEWHERE: Final = (
    KafkaStorageError,
    NotLeaderForPartitionError,
    UnknownTopicOrPartitionError,
)


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


class _Ending:
    """A transaction whose markers are on their way: `left` are the partitions whose is not known to
    be there, `refused` those of them that are to be tried again."""

    __slots__ = ("backoff_s", "done", "end", "is_wanted", "left", "refused")

    def __init__(
        self,
        topic_partitions: Collection[TopicPartition],
        end: EndOfTransaction,
        done: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.left = set(topic_partitions)
        self.end = end
        self.done = done
        self.is_wanted = is_wanted
        self.refused: deque[TopicPartition] = deque()
        self.backoff_s = _LEAST_BACKOFF_S


class MarkerWriter:
    """Writes the markers of ended transactions, and calls back when all of one are committed.

    The event loop's thread only.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        offsets: OffsetsOfTransactions,
        metadata: MetadataCache,
        ask: AskBroker,
        call_later: CallLater,
        timeout_ms: int,
    ) -> None:
        """`ask` reaches the brokers that lead the other partitions; `timeout_ms`: how long replicas
        in sync are waited for at most, until the marker is tried again."""
        self._replicas = replicas
        self._offsets = offsets
        self._metadata = metadata
        self._ask = ask
        self._call_later = call_later
        self._timeout_ms = timeout_ms
        self._is_closed = False
        self._to_leaders: Batches[tuple[_Ending, TopicPartition]] = Batches(self._send)
        self._waits: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Writes nothing any more."""
        self._is_closed = True
        self._to_leaders.close()
        for wait in self._waits:
            wait.cancel()

    # Into this broker's partitions.

    def append(self, topic_partition: TopicPartition, end: EndOfTransaction) -> Appended:
        """Writes one marker. Raises UnknownTopicOrPartitionError, NotLeaderForPartitionError,
        KafkaStorageError, InvalidProducerEpochError, TransactionCoordinatorFencedError,
        NotEnoughReplicasError and, while its groups are being read,
        CoordinatorLoadInProgressError."""
        is_offsets = topic_partition.topic == CONSUMER_OFFSETS
        if is_offsets and self._offsets.is_loading(topic_partition.partition):
            # Who reads the log might not see the marker, and has no offsets yet to complete.
            raise CoordinatorLoadInProgressError()
        partition = self._replicas.partition(topic_partition)
        self._replicas.append_end_marker(
            topic_partition,
            end.producer.producer_id,
            end.producer.epoch,
            end.marker,
            end.transaction_version,
        )
        if is_offsets:
            self._offsets.complete_transaction(
                end.producer.producer_id,
                (topic_partition.partition,),
                is_commit=end.marker.is_commit,
            )
        return Appended(partition, partition.log.log_end_offset, partition.leadership)

    @staticmethod
    def is_committed(appended: Appended) -> bool:
        """Whether there is nothing to wait for."""
        partition = appended.partition
        is_replicated = partition.high_watermark >= appended.end_offset
        return is_replicated and not partition.log.awaits_flush

    async def wait_committed(
        self, appended: Sequence[Appended]
    ) -> list[BrokerResponseError | None]:
        """Returns when all markers are committed; for each why it is not known to be, if so."""
        replicated = DelayedProduce(appended)
        refused: dict[TopicPartition, BrokerResponseError] = {}
        for each in appended:
            log = each.partition.log
            if log.awaits_flush:
                try:
                    await asyncio.get_running_loop().run_in_executor(None, log.flush)
                except BrokerResponseError as error:  # the log has said so
                    refused[each.partition.topic_partition] = error
        errors = await when_done(
            self._replicas, replicated, self._timeout_ms, lambda: replicated.errors
        )
        return [
            refused.get(each.partition.topic_partition, error)
            for each, error in zip(appended, errors, strict=True)
        ]

    # Wherever they belong.

    def write(
        self,
        topic_partitions: Collection[TopicPartition],
        end: EndOfTransaction,
        done: Callable[[], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Calls `done` when each of `topic_partitions` has its marker, or can have none any more;
        perhaps before this returns. What is refused is tried again until it is not, or the markers
        are not wanted any more."""
        if topic_partitions:
            self._write(
                _Ending(topic_partitions, end, done, is_wanted), deque(sorted(topic_partitions))
            )
        else:
            done()

    def _write(self, ending: _Ending, topic_partitions: deque[TopicPartition]) -> None:
        if self._is_closed or not ending.is_wanted():
            return
        uncommitted: list[Appended] = []
        for _ in range(min(_MARKERS_A_TURN, len(topic_partitions))):
            topic_partition = topic_partitions.popleft()
            try:
                appended = self.append(topic_partition, ending.end)
            except BrokerResponseError as error:
                self._look_elsewhere(ending, topic_partition, error)
                continue
            if self.is_committed(appended):
                self._take_answer(ending, topic_partition, None)
            else:
                uncommitted.append(appended)
        if uncommitted:
            wait = asyncio.get_running_loop().create_task(self._wait(ending, uncommitted))
            self._waits.add(wait)
            wait.add_done_callback(self._waits.discard)
        if topic_partitions:
            self._call_later(0, lambda: self._write(ending, topic_partitions))

    async def _wait(self, ending: _Ending, uncommitted: Sequence[Appended]) -> None:
        errors = await self.wait_committed(uncommitted)
        for each, error in zip(uncommitted, errors, strict=True):
            self._take_answer(ending, each.partition.topic_partition, error)

    def _look_elsewhere(
        self, ending: _Ending, topic_partition: TopicPartition, error: BrokerResponseError
    ) -> None:
        """This broker could not write a marker. Perhaps another one can."""
        if isinstance(error, _PERHAPS_LED_ELSEWHERE):
            topic = self._metadata.topic(topic_partition.topic)
            if topic is None or topic_partition.partition >= len(topic.partitions):
                self._take_answer(ending, topic_partition, None)  # its records are gone with it
                return
            leader = topic.partitions[topic_partition.partition].leader
            if leader not in (NO_LEADER, self._metadata.broker.node_id):
                self._to_leaders.add(leader, (ending, topic_partition))
                return
        self._take_answer(ending, topic_partition, error)

    async def _send(
        self, node_id: int, items: list[tuple[_Ending, TopicPartition]]
    ) -> list[tuple[_Ending, TopicPartition]]:
        """Asks a broker to write markers; those that are to wait for the next request."""
        chosen: dict[int, tuple[_Ending, list[TopicPartition]]] = {}
        left = items[_MARKERS_A_REQUEST:]
        for ending, topic_partition in items[:_MARKERS_A_REQUEST]:
            if not ending.is_wanted():
                continue
            producer_id = ending.end.producer.producer_id
            first, topic_partitions = chosen.setdefault(producer_id, (ending, []))
            if first is ending:
                topic_partitions.append(topic_partition)
            else:
                left.append((ending, topic_partition))
        if not chosen:
            return left
        message = markers_message(
            (ending.end, topic_partitions) for ending, topic_partitions in chosen.values()
        )
        try:
            response = await self._ask(
                node_id, message, WRITE_TXN_MARKERS_VERSION, WriteTxnMarkersResponse
            )
        except KafkaConnectionError as error:
            _log.warning("markers.not_sent broker=%d reason=%r", node_id, str(error))
            errors = {}
        else:
            errors = dict(marker_errors(response))
        for producer_id, (ending, topic_partitions) in chosen.items():
            for topic_partition in topic_partitions:
                answer = errors.get((producer_id, topic_partition), NetworkExceptionError())
                self._take_answer(ending, topic_partition, answer)
        return left

    def _take_answer(
        self, ending: _Ending, topic_partition: TopicPartition, error: BrokerResponseError | None
    ) -> None:
        """What became of one marker."""
        if error is not None:
            _log.warning("marker.refused topic=%r partition=%d reason=%r", *topic_partition, error)
        if error is None or isinstance(error, _FINAL):
            ending.left.discard(topic_partition)
            if not ending.left and not self._is_closed:
                ending.done()
            return
        ending.refused.append(topic_partition)
        if len(ending.refused) == 1:
            self._call_later(ending.backoff_s, lambda: self._write_again(ending))
            ending.backoff_s = min(2 * ending.backoff_s, _MOST_BACKOFF_S)

    def _write_again(self, ending: _Ending) -> None:
        refused, ending.refused = ending.refused, deque()
        self._write(ending, refused)
