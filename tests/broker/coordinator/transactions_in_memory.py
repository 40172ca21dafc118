"""A transaction coordinator with logs in memory, a clock of the test's own, and crashes.

`TransactionBroker` is everything of a broker that transactions need: real logs and partitions over
files in memory, the real Produce handler, a list for `__transaction_state`. `crash_after` kills it
before a step that would change something on disk; `restart` goes on with what was written.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from broker.api import produce
from broker.api.response import CarriedOut
from broker.cluster.cache import MetadataCache
from broker.cluster.control import Stamp, UpdateMetadata
from broker.cluster.metadata import BrokerNode, TopicMetadata, new_topic
from broker.cluster.to_brokers import ask_nobody
from broker.config.broker import BrokerConfig
from broker.config.log import LogConfig
from broker.coordinator.state_records import ProducerIdAndEpoch, StateRecord
from broker.coordinator.timers import Timers
from broker.coordinator.transaction_markers import MarkerWriter
from broker.coordinator.transaction_partitions import TransactionPartitions
from broker.coordinator.transactions import TransactionCoordinator, TransactionReplay
from broker.log.log import Log, LogAppendInfo
from broker.replica.manager import ReplicaManager
from broker.replica.partition import Partition
from broker.replica.purgatory import Purgatory
from pyspark_kafkalog.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from tests.broker.coordinator.in_memory import FakeTime
from tests.broker.log.batches import bytes_of
from tests.broker.log.memory_files import MemoryFiles
from tests.support.records import batch_of
from tests.support.replicas import host_alone, lead, no_isr_change, no_throttles
from tests.support.requests import request_of

TOPIC = "t"
_CONFIG = LogConfig(segment_bytes=2000, retention_ms=-1)


class Crashed(BaseException):
    """The process is gone."""


class Steps:
    """Counts what changes the disk; crashes before the step after `left`."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.taken = 0

    def take(self) -> None:
        if self.left is not None:
            if not self.left:
                raise Crashed()
            self.left -= 1
        self.taken += 1


class StateLog:
    """`__transaction_state` as a list; `error` refuses the next appends."""

    def __init__(self, steps: Steps) -> None:
        self.records: list[StateRecord] = []
        self.error: BrokerResponseError | None = None
        self.is_loading_any = False
        self.epoch = 0
        self.uncommitted: list[Callable[[], None]] | None = None
        self._steps = steps

    def check_coordinates(self, transactional_id: str) -> None:
        """Every id lives here."""

    def partition_of(self, transactional_id: str) -> int:
        """Every id lives in the same."""
        return 0

    def coordinator_of(self, transactional_id: str) -> BrokerNode:
        """This broker."""
        return BrokerNode(1, "host", 9092)

    def append(self, transactional_id: str, records: Sequence[StateRecord]) -> None:
        if self.error is not None:
            raise self.error
        self._steps.take()
        self.records += records

    def leader_epoch(self, transactional_id: str) -> int:
        return self.epoch

    def when_committed(self, transactional_id: str, run: Callable[[], None]) -> None:
        if self.uncommitted is None:
            run()
        else:
            self.uncommitted.append(run)

    def awaits_commit(self, transactional_id: str) -> bool:
        return False


class _CountingReplicas(ReplicaManager):
    """Crashes where it is told to, and has disks that refuse."""

    steps: Steps
    refused: set[TopicPartition]
    error: BrokerResponseError

    def append(self, partition: Partition, *args: Any, **options: Any) -> LogAppendInfo:
        self.steps.take()
        return super().append(partition, *args, **options)

    def append_end_marker(self, topic_partition: TopicPartition, *args: Any) -> None:
        if topic_partition in self.refused:
            raise self.error
        self.steps.take()
        super().append_end_marker(topic_partition, *args)


class _Logs:
    """The LogManager, as far as it is asked."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}

    def all_logs(self) -> dict[TopicPartition, Log]:
        return self.logs

    def kept(self, topic_partition: TopicPartition) -> Log | None:
        return self.logs.get(topic_partition)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {}

    def get(self, topic_partition: TopicPartition) -> Log:
        raise UnknownTopicOrPartitionError()


class _NoOffsets:
    def __init__(self) -> None:
        self.loading: set[int] = set()
        self.completed: list[tuple[int, tuple[int, ...], bool]] = []

    def is_loading(self, partition: int) -> bool:
        return partition in self.loading

    def complete_transaction(
        self, producer_id: int, offsets_partitions: Collection[int], *, is_commit: bool
    ) -> None:
        self.completed.append((producer_id, tuple(offsets_partitions), is_commit))


class TransactionBroker:
    """See the module's head."""

    def __init__(self, partitions: int = 2, properties: dict[str, str] | None = None) -> None:
        self.config = BrokerConfig.from_properties(properties or {})
        self.steps = Steps()
        self.state = StateLog(self.steps)
        self.next_id = 0
        self.topics = {TOPIC: new_topic(TOPIC, partitions, 1)}
        self.files = MemoryFiles()
        for place in self.places(TOPIC):
            self.files.make_directory(self._directory(place))
        self.time = FakeTime()
        self._open()

    def places(self, topic: str) -> list[TopicPartition]:
        return list(self.topics[topic].topic_partitions())

    def add_topic(self, topic: TopicMetadata) -> None:
        """A topic with logs of its own; call before anything begins."""
        self.topics[topic.name] = topic
        for place in topic.topic_partitions():
            self.files.make_directory(self._directory(place))
        self._open()

    def tell(self, topic: TopicMetadata, leader: int | None = None) -> None:
        """The controller says what a topic is; who leads it all now, if that is another."""
        states = {
            place: state if leader is None else replace(state, leader=leader)
            for place, state in zip(topic.topic_partitions(), topic.partitions, strict=True)
        }
        ids = {topic.name: topic.topic_id}
        self.metadata.update(UpdateMetadata(Stamp(1, 1, 1), [self.metadata.broker], states, ids))

    def _directory(self, place: TopicPartition) -> Path:
        return Path(f"/data/{place.topic}-{place.partition}")

    def _open(self) -> None:
        logs = _Logs()
        for topic in self.topics:
            for place in self.places(topic):
                logs.logs[place] = Log(
                    self._directory(place), _CONFIG, self.time.clock_ms, self.files
                )
        self.logs = logs.logs
        purgatory = Purgatory(self.time.call_later)
        self.replicas = _CountingReplicas(
            logs,  # type: ignore[arg-type]
            purgatory,
            host_alone(),
            no_isr_change,
            no_throttles(),
        )
        self.replicas.steps, self.replicas.refused = self.steps, set()
        self.replicas.error = UnknownTopicOrPartitionError()
        for topic_metadata in self.topics.values():
            lead(self.replicas, topic_metadata, make_logs=False)
        self.offsets = _NoOffsets()
        self.metadata = MetadataCache("cluster", BrokerNode(1, "host", 9092))
        for topic_metadata in self.topics.values():
            self.tell(topic_metadata)
        self.markers = MarkerWriter(
            self.replicas, self.offsets, self.metadata, ask_nobody, self.time.call_later, 1000
        )
        self.coordinator = TransactionCoordinator(
            self.config,
            self.state,
            self.markers,
            Timers(self.time.call_later, self.time.clock_s),
            self.time.clock_ms,
            self._take_id,
        )
        self._context: Any = SimpleNamespace(
            config=self.config,
            replicas=self.replicas,
            others_may_lead=None,
            transaction_partitions=TransactionPartitions(
                self.coordinator,
                self.state,  # type: ignore[arg-type]
                self.metadata.broker,
                ask_nobody,
                lambda: self.config.transaction_partition_verification_enable,
            ),
        )

    def _take_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def crash_after(self, steps: int) -> None:
        self.steps.left = steps

    def restart(self) -> None:
        """What was in memory alone is lost: timers, the coordinator, the logs' producers."""
        self.steps.left = None
        now_s = self.time.now_s
        self.time = FakeTime()
        self.time.now_s = now_s
        self.state.epoch += 1
        self._open()
        replay = TransactionReplay()
        replay.add(self.state.records)
        self.coordinator.take_over(replay.transactions())

    def produce(
        self,
        transactional_id: str | None,
        producer: ProducerIdAndEpoch,
        place: TopicPartition,
        value: bytes,
        sequence: int,
        *,
        version: int,
    ) -> int:
        """The error code of a record sent as the version does it."""
        records = batch_of(
            [(b"k", value)],
            timestamp_ms=self.time.clock_ms(),
            producer=(*producer, sequence),
            transactional=True,
        )
        wanted = ProduceRequest(
            version,
            transactional_id,
            -1,
            1000,
            [ProducePartition(place.topic, place.partition, records)],
        )
        body = b"".join(bytes(part) for part in encode_produce_request(wanted))
        response: Any = produce.handle(request_of(0, version, body), self._context)
        if isinstance(response, CarriedOut):
            response = response.response
        if isinstance(response, Coroutine):
            response = asyncio.run(response)
        (produced,) = response.partitions
        assert isinstance(produced, ProducedPartition)
        return produced.error_code

    def stable_offset(self, place: TopicPartition) -> int:
        return self.replicas.partition(place).last_stable_offset

    def committed(self, place: TopicPartition) -> list[bytes]:
        """The values that a read_committed consumer keeps."""
        log, bound = self.logs[place], self.stable_offset(place)
        values: list[bytes] = []
        offset = log.log_start_offset
        while offset < bound:
            found, aborted = log.read_committed(offset, 1 << 20, bound)
            waiting = sorted((each.first_offset, each.producer_id) for each in aborted)
            memory = MemoryRecords(bytes_of(found))
            skipping: set[int] = set()
            while (batch := memory.next_batch()) is not None:
                while waiting and waiting[0][0] <= batch.base_offset:
                    skipping.add(waiting.pop(0)[1])
                if batch.is_control_batch:
                    skipping.discard(batch.producer_id)
                elif batch.producer_id not in skipping:
                    values += [record.value for record in batch]
                offset = batch.base_offset + batch.last_offset_delta + 1
        return values
