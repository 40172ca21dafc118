"""OffsetsTopic: the internal topic `__consumer_offsets`, in which groups live.

Owns: its creation at first use, which of its partitions has which group (Java's hash of the group's
id, modulo the partitions), what is appended to it, and the reading of it at start. A partition's
groups are served when all its records have been read. Reading happens in a thread, which builds the
groups from the log's batches and hands them over; everything else is the event loop's. Never knows
what a group decides. Records of transactions are passed over, until their commits are spoken here:
what they commit counts from the marker that ends them.
"""

import asyncio
import logging
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptRecordError,
    InvalidCommitOffsetSizeError,
    KafkaStorageError,
    MessageSizeTooLargeError,
    NotCoordinatorError,
    RecordListTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster.metadata import CONSUMER_OFFSETS, ClusterMetadata, TopicMetadata, new_topic
from broker.config import BrokerConfig
from broker.coordinator.group_metadata import GroupMetadata
from broker.coordinator.offset_records import (
    NO_TIMESTAMP,
    OffsetKey,
    OffsetRecord,
    decode_commit,
    decode_group,
    decode_key,
    decode_records,
    encode_batch,
)
from broker.log.clock import Clock
from broker.log.log import Log
from broker.replica.manager import ReplicaManager
from broker.replica.partition import ACKS_ALL
from broker.replica.topics import TopicManager
from pyspark_kafkalog.record.batch import batches, check_crc

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_INT_MIN = -(2**31)

OnLoaded = Callable[[Iterable[GroupMetadata]], None]


def offsets_topic_configs(config: BrokerConfig) -> Mapping[str, str]:
    """What is set on the topic: groups' last words are kept, and nothing else of them."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
    }


class OffsetsTopic:
    """See the module's head."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        topics: TopicManager,
        replicas: ReplicaManager,
        clock: Clock,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._topics = topics
        self._replicas = replicas
        self._clock = clock
        # Which topic is being served: a deleted one's name may come back.
        self._topic_id: uuid.UUID | None = None
        self._partition_count = 0
        self._loaded: set[int] = set()
        self._to_load: set[int] = set()
        self._creation: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self.on_loaded: OnLoaded = lambda groups: None

    # Which groups are here.

    def partition_of(self, group_id: str) -> int:
        """Of a topic that is there."""
        return java_hash_magnitude(group_id) % self._partition_count

    def check_coordinates(self, group_id: str) -> None:
        if not self._partition_count:
            raise NotCoordinatorError()
        partition = self.partition_of(group_id)
        if partition in self._to_load:
            raise CoordinatorLoadInProgressError()
        if partition not in self._loaded:  # it could not be read
            raise NotCoordinatorError()

    @property
    def is_loading(self) -> bool:
        return bool(self._to_load)

    # Creating and reading it.

    async def ensure(self) -> None:
        """Makes the topic if it is not there yet. Raises BrokerResponseError."""
        topic = self._metadata.topic(CONSUMER_OFFSETS)
        if topic is not None and topic.topic_id == self._topic_id:
            return
        if topic is None:
            if self._creation is None:
                self._creation = asyncio.get_running_loop().create_task(self._create())
                self._creation.add_done_callback(self._created)
            await asyncio.shield(self._creation)
        self.start_loading()

    async def _create(self) -> None:
        topic = new_topic(
            CONSUMER_OFFSETS,
            self._config.offsets_topic_num_partitions,
            self._metadata.broker.node_id,
            offsets_topic_configs(self._config),
        )
        try:
            await self._topics.create(topic)
        except TopicAlreadyExistsError:
            # A client is creating it, just now.
            raise CoordinatorNotAvailableError() from None
        except KafkaStorageError as error:
            raise CoordinatorNotAvailableError(str(error)) from None

    def _created(self, creation: "asyncio.Task[None]") -> None:
        self._creation = None
        if not creation.cancelled() and creation.exception() is not None:
            _log.warning("offsets_topic.not_created reason=%r", str(creation.exception()))

    def start_loading(self) -> None:
        """Reads the topic, if there is one that is not served yet; `on_loaded` gets the groups."""
        topic = self._metadata.topic(CONSUMER_OFFSETS)
        if topic is None or topic.topic_id == self._topic_id:
            return
        self.resign()
        self._topic_id = topic.topic_id
        self._partition_count = len(topic.partitions)
        logs = {}
        for topic_partition in topic.topic_partitions():
            log = self._log_of(topic_partition)
            if log is None:
                continue
            if log.log_start_offset == log.log_end_offset:
                self._loaded.add(topic_partition.partition)
            else:
                logs[topic_partition.partition] = log
        self._to_load = set(logs)
        if logs:
            loop = asyncio.get_running_loop()
            self._loading = loop.create_task(self._load(topic, logs))

    def _log_of(self, topic_partition: TopicPartition) -> Log | None:
        try:
            return self._replicas.partition(topic_partition).log
        except BrokerResponseError as error:
            _log.error(
                "groups.not_loaded partition=%d reason=%r", topic_partition.partition, str(error)
            )
            return None

    async def _load(self, topic: TopicMetadata, logs: Mapping[int, Log]) -> None:
        loop = asyncio.get_running_loop()
        for partition, log in logs.items():
            try:
                groups = await loop.run_in_executor(None, read_groups, log)
            except (OSError, BrokerResponseError, CorruptRecordError) as error:
                _log.error("groups.not_loaded partition=%d reason=%r", partition, str(error))
                self._to_load.discard(partition)
                continue
            if self._topic_id != topic.topic_id:
                return
            self.on_loaded(groups.values())
            self._loaded.add(partition)
            self._to_load.discard(partition)
            offsets = sum(len(group.offsets) for group in groups.values())
            _log.info(
                "groups.loaded partition=%d groups=%d offsets=%d", partition, len(groups), offsets
            )

    def resign(self) -> None:
        """Serves the topic no more."""
        self._topic_id = None
        self._partition_count = 0
        self._loaded.clear()
        self._to_load.clear()
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None

    # Appending.

    def append(self, group_id: str, records: Sequence[OffsetRecord]) -> None:
        """One batch; raises what the group's client is to hear."""
        topic_partition = TopicPartition(CONSUMER_OFFSETS, self.partition_of(group_id))
        batch = encode_batch(records, self._clock())
        try:
            self._replicas.append(topic_partition, memoryview(batch), ACKS_ALL)
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            raise InvalidCommitOffsetSizeError(str(error)) from error
        except (KafkaStorageError, UnknownTopicOrPartitionError) as error:
            raise NotCoordinatorError(str(error)) from error
        except BrokerResponseError as error:
            raise CoordinatorNotAvailableError(str(error)) from error

    async def wait_for_flush(self, group_id: str) -> None:
        """Returns when the flush policy allows what was appended to be acknowledged."""
        topic_partition = TopicPartition(CONSUMER_OFFSETS, self.partition_of(group_id))
        log = self._replicas.log_that_awaits_flush(topic_partition)
        if log is not None:
            await asyncio.get_running_loop().run_in_executor(None, log.flush)


def java_hash_magnitude(text: str) -> int:
    """Java's String.hashCode, without its sign, as Kafka places groups by it."""
    number = 0
    data = text.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", data):
        number = (31 * number + unit) & 0xFFFFFFFF
    if number >= 2**31:
        number -= 2**32
    return 0 if number == _INT_MIN else abs(number)


def read_groups(log: Log) -> dict[str, GroupMetadata]:
    """The groups that a partition's log tells of. Blocks: for a thread.

    Raises OSError, CorruptRecordError, and OffsetOutOfRangeError when the log is cut meanwhile.
    """
    replay = GroupReplay()
    offset, end_offset = log.log_start_offset, log.log_end_offset
    while offset < end_offset:
        found = log.read(offset, _READ_BYTES, end_offset)
        next_offset = offset
        for piece in found.slices:
            data = memoryview(piece.file.pread(piece.size_bytes, piece.position))
            for header in batches(data):
                next_offset = header.next_offset
                check_crc(data, header)
                if not header.is_control and not header.is_transactional:
                    replay.add(decode_records(data, header))
        if next_offset <= offset:
            break  # nothing but what compaction has emptied
        offset = next_offset
    return replay.groups()


class GroupReplay:
    """Records on their way to groups: the last one of each key counts, as compaction has it, and
    no other is looked into."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def add(self, records: Iterable[OffsetRecord]) -> None:
        values = self._values
        for key, value in records:
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value

    def groups(self) -> dict[str, GroupMetadata]:
        """Raises CorruptRecordError."""
        groups: dict[str, GroupMetadata] = {}
        commits: list[tuple[OffsetKey, bytes]] = []
        for key_bytes, value in self._values.items():
            key = decode_key(key_bytes)
            if isinstance(key, OffsetKey):
                commits.append((key, value))
            elif key is not None:
                groups[key.group_id] = GroupMetadata.restored(key.group_id, decode_group(value))
        for key, value in commits:
            group = groups.get(key.group_id)
            if group is None:  # of consumers by themselves
                group = groups[key.group_id] = GroupMetadata(key.group_id, NO_TIMESTAMP)
            group.offsets[key.topic_partition] = decode_commit(value)
        return groups
