"""StateTopic: an internal, compacted topic in whose partitions a coordinator's state lives.

Owns: the topic's creation at first use, which of its partitions has which key (Java's hash of the
key, modulo the partitions), which of them this broker leads and has read, and what is appended to
them. What is appended counts at once, as it stays while this broker leads the partition; who tells
of it waits until it is committed. `state_loader` reads the partitions. Never knows what the records
say, or what a coordinator decides. Called by: the event loop's thread only, but for `read_batches`.
"""

import asyncio
import logging
import struct
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    KafkaStorageError,
    MessageSizeTooLargeError,
    NotCoordinatorError,
    NotLeaderForPartitionError,
    RecordListTooLargeError,
)
from kafka.structs import TopicPartition

from broker.cluster.cache import MetadataCache
from broker.cluster.metadata import BrokerNode
from broker.config.broker import BrokerConfig
from broker.coordinator.state_records import ProducerIdAndEpoch, StateRecord, encode_batch
from broker.log.clock import Clock
from broker.log.log import Log
from broker.replica.delayed import Appended, DelayedProduce
from broker.replica.later import when_done
from broker.replica.manager import ReplicaManager
from broker.replica.partition import ACKS_ALL
from pyspark_kafkalog.record.batch import BatchHeader, batches, check_crc

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
# After which a record that acts when it is committed is looked at again.
_RETRY_S = 0.5
_INT_MIN = -(2**31)

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class StateTopicKind(Generic[S]):
    """Which topic, and how its records become a partition's state.

    `read` runs in a thread; it raises OSError, CorruptRecordError, and BrokerResponseError where
    the log is cut meanwhile. `too_large`: what a client hears whose state does not fit a batch;
    `commit_timeout_ms`: how long one waits until it is told that its records are not committed.
    """

    name: str
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]
    read: Callable[[Log], S]
    too_large: type[BrokerResponseError]
    commit_timeout_ms: int


class CreateTopic(Protocol):
    """Has the controller make a topic."""

    def __call__(
        self,
        name: str,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str],
        /,
    ) -> Awaitable[object]: ...


class StateTopic(Generic[S]):
    """An internal, compacted topic that holds a coordinator's state, a partition for each part."""

    def __init__(
        self,
        kind: StateTopicKind[S],
        metadata: MetadataCache,
        create_topic: CreateTopic,
        replicas: ReplicaManager,
        clock: Clock,
        others_may_lead: Callable[[], bool] | None = None,
    ) -> None:
        """`others_may_lead`: whether others may lead what this broker leads, so that what it knows
        may be long past; None where old answers do no harm."""
        self.kind = kind
        self._others_may_lead = others_may_lead
        self._metadata = metadata
        self._create_topic = create_topic
        self._replicas = replicas
        self._clock = clock
        # Of the topic that was last seen: a deleted one's name may come back.
        self._topic_id: uuid.UUID | None = None
        self._partition_count = 0
        self._leader_epochs: dict[int, int] = {}
        """Since when this broker leads those partitions that it serves, or reads to serve them."""
        self._loading: set[int] = set()
        self._creation: asyncio.Task[object] | None = None
        self._waits: set[asyncio.Task[None]] = set()

    # Which keys are here.

    def partition_of(self, key: str) -> int:
        """Raises NotCoordinatorError where there has been no topic yet."""
        topic = self._metadata.topic(self.kind.name)
        if topic is not None and topic.topic_id != self._topic_id:
            # As in Kafka, partitions that are added do not count: keys would change their places.
            self._topic_id, self._partition_count = topic.topic_id, len(topic.partitions)
        if not self._partition_count:
            raise NotCoordinatorError()
        return java_hash_magnitude(key) % self._partition_count

    def check_coordinates(self, key: str) -> None:
        """Raises NotCoordinatorError, CoordinatorLoadInProgressError, and where another broker may
        coordinate the key by now CoordinatorNotAvailableError."""
        if self._others_may_lead is not None and self._others_may_lead():
            raise CoordinatorNotAvailableError("this broker's session with the cluster is over")
        partition = self.partition_of(key)
        if partition in self._loading:
            raise CoordinatorLoadInProgressError()
        if partition not in self._leader_epochs:  # led by others, or it could not be read
            raise NotCoordinatorError()

    def coordinator_of(self, key: str) -> BrokerNode:
        """The broker that leads the key's partition. Raises CoordinatorNotAvailableError where
        there is none, as far as is known."""
        topic = self._metadata.topic(self.kind.name)
        if topic is not None:
            leader = topic.partitions[self.partition_of(key)].leader
            for node in self._metadata.brokers:
                if node.node_id == leader:
                    return node
        raise CoordinatorNotAvailableError("the partition has no leader")

    def leader_epoch(self, key: str) -> int:
        """Since when this broker leads the key's partition, which it does."""
        return self._leader_epochs[self.partition_of(key)]

    def is_loading(self, partition: int) -> bool:
        """Whether a partition is read just now."""
        return partition in self._loading

    @property
    def is_loading_any(self) -> bool:
        return bool(self._loading)

    # What this broker leads, as `state_loader` says.

    @property
    def led_partitions(self) -> list[int]:
        """Those that this broker serves, or reads to serve them."""
        return sorted(self._leader_epochs)

    def begin(self, partition: int, leader_epoch: int) -> bool:
        """This broker leads the partition since that epoch. Whether it is to be read, and not
        served already."""
        is_new = partition not in self._leader_epochs
        self._leader_epochs[partition] = leader_epoch
        if is_new:
            self._loading.add(partition)
        return is_new

    def loaded(self, partition: int) -> None:
        """From here on it is served."""
        self._loading.discard(partition)

    def end(self, partition: int) -> None:
        """It is not served, and not read, any more."""
        self._leader_epochs.pop(partition, None)
        self._loading.discard(partition)

    # Creating it.

    async def ensure(self) -> None:
        """Makes the topic if it is not there yet. Raises CoordinatorNotAvailableError."""
        if self._metadata.topic(self.kind.name) is not None:
            return
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(self._create())
            self._creation.add_done_callback(self._created)
        await asyncio.shield(self._creation)

    async def _create(self) -> None:
        kind = self.kind
        try:
            await self._create_topic(
                kind.name, kind.partition_count, kind.replication_factor, kind.configs
            )
        except BrokerResponseError as error:
            # Others are creating it just now, or there are not enough brokers yet: who asks again
            # has it tried again.
            raise CoordinatorNotAvailableError(str(error)) from error

    def _created(self, creation: "asyncio.Task[object]") -> None:
        self._creation = None
        if not creation.cancelled() and creation.exception() is not None:
            reason = str(creation.exception())
            _log.warning("state_topic.not_created topic=%r reason=%r", self.kind.name, reason)

    def close(self) -> None:
        """Nobody waits any more for what was appended."""
        for wait in self._waits:
            wait.cancel()

    # Appending.

    def append(
        self, key: str, records: Sequence[StateRecord], producer: ProducerIdAndEpoch | None = None
    ) -> int:
        """One batch, in the producer's transaction where one is given; the offset of its first
        record. Raises what the key's client is to hear."""
        batch = encode_batch(records, self._clock(), producer)
        try:
            return self._replicas.append(
                self._replicas.partition(self._place_of(key)),
                memoryview(batch),
                ACKS_ALL,
                transactional=producer is not None,
                numbered=False,
            ).first_offset
        except BrokerResponseError as error:
            raise self._as_told(error) from error

    def awaits_commit(self, key: str) -> bool:
        """Whether `wait_committed` would wait. Raises what the key's client is to hear."""
        try:
            partition = self._replicas.partition(self._place_of(key))
        except BrokerResponseError as error:
            raise self._as_told(error) from error
        log = partition.log
        return log.awaits_flush or partition.high_watermark < log.log_end_offset

    async def wait_committed(self, key: str) -> None:
        """Returns when all that the key's partition has now is in all replicas in sync, and on
        disk as the flush policy wants it: nobody hears of anything before.

        Raises what the key's client is to hear where that is not known in time: it asks again, as
        what was appended may yet be committed.
        """
        try:
            partition = self._replicas.partition(self._place_of(key))
            log = partition.log
            end_offset = log.log_end_offset
            awaits_flush = log.awaits_flush
            if partition.high_watermark >= end_offset and not awaits_flush:
                return
            replicated = DelayedProduce([Appended(partition, end_offset, partition.leadership)])
            if awaits_flush:
                await asyncio.get_running_loop().run_in_executor(None, log.flush)
            (failure,) = await when_done(
                self._replicas, replicated, self.kind.commit_timeout_ms, lambda: replicated.errors
            )
            if failure is not None:
                raise failure
        except BrokerResponseError as error:
            raise self._as_told(error) from error

    async def failures(self, keys: Iterable[str]) -> dict[str, BrokerResponseError]:
        """As `wait_committed` for several keys at once: those that are not committed in time, and
        what their clients are to hear."""
        by_partition: dict[int, list[str]] = {}
        for key in keys:
            by_partition.setdefault(self.partition_of(key), []).append(key)

        async def failure(key: str) -> BrokerResponseError | None:
            try:
                await self.wait_committed(key)
            except BrokerResponseError as error:
                return error
            return None

        groups = list(by_partition.values())
        found = await asyncio.gather(*(failure(group[0]) for group in groups))
        pairs = zip(groups, found, strict=True)
        return {key: error for group, error in pairs if error is not None for key in group}

    def when_committed(self, key: str, run: Callable[[], None]) -> None:
        """Calls `run` when `wait_committed` would return, however long that takes; at once where
        there is nothing to wait for, and never where this broker does not serve the partition any
        more."""
        if not self.awaits_commit(key):
            run()
            return

        async def wait() -> None:
            while self.partition_of(key) in self._leader_epochs:
                try:
                    await self.wait_committed(key)
                except NotCoordinatorError:
                    return  # or its disk has refused, and takes nothing more
                except BrokerResponseError as error:
                    _log.warning("state.not_committed topic=%r reason=%r", self.kind.name, error)
                    await asyncio.sleep(_RETRY_S)
                else:
                    run()
                    return

        task = asyncio.get_running_loop().create_task(wait())
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    def _as_told(self, error: BrokerResponseError) -> BrokerResponseError:
        """A partition's error as Apache Kafka's coordinators tell it."""
        if isinstance(error, (InvalidProducerEpochError, NotCoordinatorError)):
            return error
        if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
            return self.kind.too_large(str(error))
        if isinstance(error, (KafkaStorageError, NotLeaderForPartitionError)):
            return NotCoordinatorError(str(error))
        return CoordinatorNotAvailableError(str(error))

    def _place_of(self, key: str) -> TopicPartition:
        return TopicPartition(self.kind.name, self.partition_of(key))


def replicas_of(config: BrokerConfig, wanted: int) -> int:
    """How many replicas a topic gets where `wanted` are set: a broker alone has no more than one
    of anything."""
    return 1 if config.zookeeper_connect is None else wanted


@lru_cache(1024)
def java_hash_magnitude(text: str) -> int:
    """Java's String.hashCode, without its sign, as Kafka places groups by it."""
    number = 0
    data = text.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", data):
        number = (31 * number + unit) & 0xFFFFFFFF
    if number >= 2**31:
        number -= 2**32
    return 0 if number == _INT_MIN else abs(number)


def read_batches(log: Log) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Every batch of the log, whole, with its header. Blocks: for a thread.

    Raises OSError, CorruptRecordError, and OffsetOutOfRangeError when the log is cut meanwhile.
    """
    offset, end_offset = log.log_start_offset, log.log_end_offset
    while offset < end_offset:
        found = log.read(offset, _READ_BYTES, end_offset)
        next_offset = offset
        if found is not None:
            data = memoryview(found.read())
            for header in batches(data):
                next_offset = header.next_offset
                check_crc(data, header)
                yield data, header
        if next_offset <= offset:
            break  # nothing but what compaction has emptied
        offset = next_offset
