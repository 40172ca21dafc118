"""A broker that leads partitions of which another keeps replicas in sync: its coordinators and
handlers, over logs in memory, without sockets. `replicate` is what the other broker does."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kafka.structs import TopicPartition

from broker.api.api_versions import FEATURES
from broker.api.apis import APIS
from broker.api.fetch_session import FetchSessionCache
from broker.api.request import Api
from broker.cluster.cache import MetadataCache
from broker.cluster.control import Stamp, UpdateMetadata
from broker.cluster.metadata import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    BrokerNode,
    TopicMetadata,
    new_topic,
)
from broker.config.broker import BrokerConfig
from broker.coordinator.consumer_groups import ConsumerGroupCoordinator, GroupsOfBothProtocols
from broker.coordinator.group import GroupCoordinator
from broker.coordinator.offsets import OffsetsTopic, offsets_topic_kind
from broker.coordinator.state_loader import StateLoader
from broker.coordinator.state_topic import StateTopic
from broker.coordinator.timers import Timers
from broker.coordinator.transaction_markers import MarkerWriter
from broker.coordinator.transaction_partitions import TransactionPartitions
from broker.coordinator.transactions import (
    TransactionCoordinator,
    TransactionsTopic,
    transactions_topic_kind,
)
from broker.log.clock import system_clock_ms
from broker.log.manager import LogManager
from broker.replica.delayed import DelayedProduce
from broker.replica.purgatory import Purgatory, Timer
from tests.broker.log.memory_files import MemoryFiles
from tests.support.patience import turns
from tests.support.replicas import lead, replicas_alone, stop
from tests.support.requests import request_of

ME, OTHER = BrokerNode(1, "host", 9092), BrokerNode(2, "other", 9092)
TOPIC = "t"
OFFSETS = TopicPartition(CONSUMER_OFFSETS, 0)
TRANSACTIONS = TopicPartition(TRANSACTION_STATE, 0)


class OtherBrokers:
    """What other brokers are asked: their answers are the test's to give, but for those that are
    `connected`."""

    def __init__(self) -> None:
        self.connected: dict[int, ReplicatedBroker] = {}
        self.asked: list[tuple[int, Any, int]] = []
        """Of each request the broker, the message and its version."""
        self.answers: list[asyncio.Future[Any]] = []

    async def ask(self, node_id: int, message: Any, version: int, response_class: Any) -> Any:
        self.asked.append((node_id, message, version))
        other = self.connected.get(node_id)
        if other is not None:
            (api,) = (each for each in APIS if each.key == message.API_KEY)
            answered = await other.ask(api, message, version)
            return response_class.decode(answered.encode(version=version), version=version)
        self.answers.append(asyncio.get_running_loop().create_future())
        answer = await self.answers[-1]
        return response_class.decode(answer.encode(version=version), version=version)


class ReplicatedBroker:
    """A broker of two. Of `t` (two partitions) and both coordinators' topics (one each) broker 1
    leads all that `led_by` does not name."""

    def __init__(
        self,
        properties: dict[str, str] | None = None,
        node: BrokerNode = ME,
        led_by: Mapping[str, BrokerNode] | None = None,
    ) -> None:
        self.node = node
        defaults = {"log.dirs": "/data", "group.initial.rebalance.delay.ms": "0"}
        self.config = BrokerConfig.from_properties(defaults | (properties or {}))
        self.logs = LogManager(self.config, files=MemoryFiles())
        self.logs.open()
        self.purgatory = Purgatory(self._call_later)
        self.replicas = replicas_alone(self.logs, self.purgatory)
        self.metadata = MetadataCache("cluster", node)
        self.topics: dict[str, TopicMetadata] = {}
        for name, count in ((TOPIC, 2), (CONSUMER_OFFSETS, 1), (TRANSACTION_STATE, 1)):
            self.add_topic(name, count, (led_by or {}).get(name, ME))
        self.brokers = OtherBrokers()
        self.others_may_lead = False
        self._build_coordinators()

    def add_topic(self, name: str, partition_count: int, leader: BrokerNode = ME) -> None:
        topic = new_topic(name, partition_count, leader.node_id)
        shared = (replace(each, isr=(1, 2), replicas=(1, 2)) for each in topic.partitions)
        topic = self.topics[name] = replace(topic, partitions=tuple(shared))
        if leader == self.node:
            lead(self.replicas, topic)
        self.tell(topic)

    def leads(self, name: str) -> bool:
        return self.topics[name].partitions[0].leader == self.node.node_id

    def tell(self, topic: TopicMetadata) -> None:
        """The controller says what a topic is."""
        states = dict(zip(topic.topic_partitions(), topic.partitions, strict=True))
        told = UpdateMetadata(Stamp(1, 1, 1), [ME, OTHER], states, {topic.name: topic.topic_id})
        self.metadata.update(told)

    def _transactions_topic(self) -> TransactionsTopic:
        return StateTopic(
            transactions_topic_kind(self.config),
            self.metadata,
            _no_topic,
            self.replicas,
            _clock_ms,
            lambda: self.others_may_lead,
        )

    def _build_coordinators(self) -> None:
        self.offsets_topic: OffsetsTopic = StateTopic(
            offsets_topic_kind(self.config), self.metadata, _no_topic, self.replicas, _clock_ms
        )
        self.transactions_topic = self._transactions_topic()
        self.timers = Timers(self._call_later, _now_s)
        self.groups = GroupCoordinator(self.config, self.offsets_topic, self.timers, _clock_ms)
        self.consumer_groups = ConsumerGroupCoordinator(
            self.config,
            self.groups,
            self.offsets_topic,
            self.timers,
            _clock_ms,
            self.metadata,
            lambda function, done: done(function()),
        )
        self.markers = MarkerWriter(
            self.replicas,
            self.groups,
            self.metadata,
            self.brokers.ask,
            self._call_later,
            self.config.request_timeout_ms,
        )
        self.next_id = 0
        self.transactions = TransactionCoordinator(
            self.config,
            self.transactions_topic,
            self.markers,
            self.timers,
            _clock_ms,
            self._take_id,
        )
        self.transaction_partitions = TransactionPartitions(
            self.transactions,
            self.transactions_topic,
            self.metadata.broker,
            self.brokers.ask,
            lambda: self.config.transaction_partition_verification_enable,
        )
        both = GroupsOfBothProtocols(self.groups, self.consumer_groups)
        self.group_loader = StateLoader(self.offsets_topic, self.replicas, both)
        self.transaction_loader = StateLoader(
            self.transactions_topic, self.replicas, self.transactions
        )
        self.context: Any = SimpleNamespace(
            config=self.config,
            metadata=self.metadata,
            replicas=self.replicas,
            fetch_sessions=FetchSessionCache(self.replicas, 10, lambda: 0),
            longest_wait_ms=lambda wait_ms: wait_ms,
            others_may_lead=lambda: self.others_may_lead,
            groups=self.groups,
            consumer_groups=self.consumer_groups,
            offsets_topic=self.offsets_topic,
            transactions=self.transactions,
            transactions_topic=self.transactions_topic,
            transaction_partitions=self.transaction_partitions,
            markers=self.markers,
            producer_ids=SimpleNamespace(ensure=_nothing),
            features=FEATURES,
        )
        if self.leads(CONSUMER_OFFSETS):
            self.group_loader.lead(0, 0)
        if self.leads(TRANSACTION_STATE):
            self.transaction_loader.lead(0, 0)

    def _take_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def _call_later(self, delay_s: float, run: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, run)

    # Requests.

    def send(self, api: Api[Any], message: Any, version: int) -> Any:
        """What the handler returns: an answer, or what it is awaited by."""
        body = message if isinstance(message, bytes) else bytes(message.encode(version=version))
        return api.handle(request_of(api.key, version, body), self.context)

    async def ask(self, api: Api[Any], message: Any, version: int) -> Any:
        """The answer, when it comes."""
        outcome = self.send(api, message, version)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    async def begin(self, api: Api[Any], message: Any, version: int) -> "asyncio.Task[Any]":
        """The answer, which waits, or is there."""
        task = asyncio.get_running_loop().create_task(self.ask(api, message, version))
        await settle()
        return task

    # The other broker.

    def replicate(self, place: TopicPartition) -> None:
        """It has all that the partition's log has."""
        partition = self.replicas.partition(place)
        visible = partition.advance_high_watermark(partition.log.log_end_offset)
        self.purgatory.became_visible(place, *visible)

    async def replicating(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """The answer to what waits for replicas, again and again perhaps."""
        task = asyncio.get_running_loop().create_task(answer)
        while not task.done():
            self.replicate_all()
            await settle()
        return await task

    def replicate_all(self) -> None:
        for name, topic in self.topics.items():
            if self.leads(name):
                for place in topic.topic_partitions():
                    self.replicate(place)

    def lose(self, name: str) -> None:
        """A topic of which this broker keeps nothing any more."""
        if name == CONSUMER_OFFSETS:
            self.group_loader.resign(0)
        elif name == TRANSACTION_STATE:
            self.transaction_loader.resign(0)
        stop(self.replicas, self.topics[name])

    @property
    def waiting(self) -> int:
        """How many wait for the other broker."""
        return self.purgatory.count(DelayedProduce)

    def close(self) -> None:
        self.markers.close()
        self.transaction_partitions.close()
        self.group_loader.close()
        self.transaction_loader.close()
        self.timers.cancel_all()
        self.logs.close()


@contextmanager
def replicated_broker(
    properties: dict[str, str] | None = None,
    node: BrokerNode = ME,
    led_by: Mapping[str, BrokerNode] | None = None,
) -> Iterator[ReplicatedBroker]:
    """To be used in a loop that runs."""
    broker = ReplicatedBroker(properties, node, led_by)
    try:
        yield broker
    finally:
        broker.close()


async def settle() -> None:
    """Whatever can go on now has."""
    await turns(10)


async def _no_topic(*_: object) -> None:
    raise AssertionError("it is there")


async def _nothing() -> None:
    pass


def _clock_ms() -> int:
    return system_clock_ms()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
