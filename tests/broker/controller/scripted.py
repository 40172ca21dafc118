"""A controller over a store of its own, and brokers that obey whatever they are told."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from kafka.errors import BrokerNotAvailableError, BrokerResponseError, KafkaStorageError
from kafka.structs import TopicPartition

from broker.cluster.control import (
    AlterPartition,
    ControlRequest,
    Failures,
    IsrChange,
    LeaderAndIsr,
    StopReplica,
)
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import BrokerNode, PartitionMetadata
from broker.cluster.records import MetadataRecords
from broker.cluster.store import ANY_VERSION, Delete, StoreConnectionError
from broker.controller.controller import Controller
from broker.controller.leaders import ElectionRules
from tests.support.patience import eventually

T = TypeVar("T")

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class _Channel:
    def __init__(self, cluster: "ScriptedCluster", node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id

    def send(self, request: ControlRequest) -> "asyncio.Future[Failures]":
        self._cluster.told.append((self._node_id, request))
        answer: asyncio.Future[Failures] = asyncio.get_running_loop().create_future()
        if self._node_id in self._cluster.silent:
            self._cluster.unanswered.append(answer)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            failed = self._cluster.failed.get(self._node_id, set())
            is_about_logs = isinstance(request, LeaderAndIsr)
            places = failed.intersection(request.partitions) if is_about_logs else ()
            answer.set_result({place: self._cluster.failure() for place in places})
        return answer

    async def close(self) -> None:
        self._cluster.leave_unanswered(BrokerNotAvailableError())


class ScriptedCluster:
    """Brokers 1 to 5; topic "t" with two partitions on brokers 1 and 2."""

    def __init__(
        self,
        directory: Path,
        rules: ElectionRules | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        self._rules = rules or ElectionRules()
        self.store = LocalStore(directory)
        self.records = MetadataRecords(self.store)
        self.records.prepare()
        for node_id in range(1, 6):
            rack = None if racks is None else racks.get(node_id)
            self.records.register(BrokerNode(node_id, "host", 9090 + node_id, rack))
        self.told: list[tuple[int, ControlRequest]] = []
        self.silent: set[int] = set()
        """Brokers that do not answer."""
        self.unanswered: list[asyncio.Future[Failures]] = []
        self.failed: dict[int, set[TopicPartition]] = {}
        """Replicas whose disks refuse, by broker."""
        self.failure: type[BrokerResponseError] = KafkaStorageError
        """What brokers say of those."""
        self.failures: list[Exception] = []
        """What the store raises next."""
        self.slow: asyncio.Event | None = None
        """Set when the store is to answer; what it is asked for is done before."""
        self.controller = self._elect(1)

    def _elect(self, node_id: int) -> Controller:
        self.records = MetadataRecords(self.store)
        self.records.become_controller(node_id)
        controller = Controller(
            node_id,
            self.records,
            lambda node: _Channel(self, node.node_id),
            self.run_blocking,
            self._rules,
        )

        def take_over() -> None:
            self._taking_over = asyncio.get_running_loop().create_task(self._take_over(controller))

        controller.on_doubt(take_over)
        return controller

    async def _take_over(self, controller: Controller) -> None:
        """As a broker's membership has it do, again and again."""
        while controller is self.controller and not controller.is_active:
            await controller.resign()
            with contextlib.suppress(StoreConnectionError):
                await controller.start()

    def leave_unanswered(self, error: BrokerResponseError) -> None:
        """Why the silent ones answer no more."""
        for answer in self.unanswered:
            if not answer.done():
                answer.set_exception(error)

    def answer_all(self) -> None:
        """The silent ones have done all that they were told."""
        self.silent = set()
        for answer in self.unanswered:
            if not answer.done():
                answer.set_result({})

    async def run_blocking(self, function: Callable[[], T]) -> T:
        if self.failures:
            raise self.failures.pop()
        found = function()
        if self.slow is not None:
            await self.slow.wait()
        return found

    async def start(self, replicas: tuple[int, ...] = (1, 2)) -> None:
        await self.controller.start()
        await self.controller.create_topic("t", [replicas, replicas], {})
        self.told.clear()

    async def fail_over(self) -> None:
        """Another controller, which knows what stands in the store."""
        self.depose()
        await self._taking_over

    def depose(self) -> None:
        """Another controller is elected; it takes over as soon as it can."""
        self.store.commit([Delete("/controller", ANY_VERSION)])
        self.controller = self._elect(2)
        self._taking_over = asyncio.get_running_loop().create_task(self.controller.start())

    async def lose(self, node_id: int) -> None:
        self.store.commit([Delete(f"/brokers/ids/{node_id}", ANY_VERSION)])
        await self.controller.brokers_changed()

    async def find(self, node_id: int) -> None:
        self.records.register(BrokerNode(node_id, "host", 9090 + node_id))
        await self.controller.brokers_changed()

    def state(self, place: TopicPartition = P0) -> PartitionMetadata:
        """As it stands in the store."""
        (topic,) = self.records.cluster().topics
        state: PartitionMetadata = topic.partitions[place.partition]
        return state

    async def in_sync(self, *isr: int, place: TopicPartition = P0) -> None:
        """The leader asks for that ISR."""
        state = self.state(place)
        (topic,) = self.records.cluster().topics
        change = IsrChange(
            topic.topic_id, place.partition, state.leader_epoch, isr, state.partition_epoch
        )
        epoch = self.records.brokers()[state.leader].epoch
        (answer,) = await self.controller.alter_partitions(
            AlterPartition(state.leader, epoch, [change])
        )
        assert isinstance(answer, PartitionMetadata), answer

    async def wait(self, find: Callable[[], object]) -> None:
        await eventually(find, lambda: self.state())

    def followed(self, place: TopicPartition = P0) -> dict[int, tuple[PartitionMetadata, bool]]:
        """What brokers were told of the partition last, and whether it is new to them."""
        return {
            node_id: (request.partitions[place], place in request.created)
            for node_id, request in self.told
            if isinstance(request, LeaderAndIsr) and place in request.partitions
        }

    def deleted(self, place: TopicPartition = P0) -> list[int]:
        """The brokers that were told to delete the partition's log, in order."""
        return [
            node_id
            for node_id, request in self.told
            if isinstance(request, StopReplica)
            and place in request.partitions
            and request.partitions[place].delete
        ]
