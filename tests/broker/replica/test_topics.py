"""Creating and deleting topics when the disk, the clock or the client get in the way."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import (
    InvalidPartitionsError,
    KafkaStorageError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.cache import MetadataCache
from broker.cluster.entity_configs import EntityConfigs
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import BrokerNode, new_topic
from broker.cluster.records import MetadataRecords
from broker.config.broker import BrokerConfig
from broker.log.manager import LogManager
from broker.replica.manager import ReplicaManager
from broker.replica.purgatory import Purgatory
from broker.replica.topics import TopicManager


class World:
    """A TopicManager and what it works on; `gate`, when set, is waited for before blocking work."""

    def __init__(self, directory) -> None:
        self.store = LocalStore(directory)
        self.records = MetadataRecords(self.store)
        self.records.prepare()
        self.records.become_controller(1)
        self.logs = LogManager(BrokerConfig.from_properties({"log.dirs": str(directory)}))
        self.logs.open()
        self.metadata = MetadataCache("cluster", BrokerNode(1, "host", 9092))
        purgatory = Purgatory(lambda delay, callback: asyncio.TimerHandle)  # type: ignore[arg-type,return-value]
        self.replicas = ReplicaManager(self.logs, purgatory, 1)
        self.configs = EntityConfigs(
            znodes.TOPIC_ENTITIES, self.records, self.run_blocking, self.replicas.topic_configured
        )
        self.topics = TopicManager(
            self.metadata, self.records, self.configs, self.replicas, self.run_blocking
        )
        self.gate: asyncio.Event | None = None

    async def run_blocking(self, function: Callable[[], Any]) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        return function()

    def close(self) -> None:
        self.logs.close()
        self.store.close()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def test_created_and_deleted(world):
    topic = new_topic("t", 2, 1)

    async def scenario() -> None:
        await world.topics.create(topic, {})
        assert world.metadata.topic("t") is topic
        for topic_partition in topic.topic_partitions():
            log = world.replicas.partition(topic_partition).log
            assert log.log_end_offset == 0
        await world.topics.delete(topic)

    asyncio.run(scenario())
    assert world.metadata.topic("t") is None
    assert world.records.topics() == world.records.deleted_topics() == []
    assert world.logs.all_logs() == {}
    with pytest.raises(UnknownTopicOrPartitionError):
        world.replicas.partition(topic.topic_partitions()[0])


def test_a_topic_made_anew_is_not_deleted_for_the_one_before(world):
    before, after = new_topic("t", 1, 1), new_topic("t", 1, 1)

    async def scenario() -> None:
        await world.topics.create(before, {})
        await world.topics.delete(before)
        await world.topics.create(after, {})
        with pytest.raises(UnknownTopicOrPartitionError):
            await world.topics.delete(before)

    asyncio.run(scenario())
    assert world.metadata.topic("t") is after


def test_two_creations_at_once(world):
    async def scenario() -> None:
        world.gate = asyncio.Event()
        first = asyncio.ensure_future(world.topics.create(new_topic("t", 1, 1), {}))
        await asyncio.sleep(0)
        with pytest.raises(TopicAlreadyExistsError):
            await world.topics.create(new_topic("t", 5, 1), {})
        world.gate.set()
        await first

    asyncio.run(scenario())
    assert len(world.metadata.topic("t").partitions) == 1


def test_a_client_that_leaves_does_not_leave_half_a_topic(world):
    async def scenario() -> None:
        world.gate = asyncio.Event()
        request = asyncio.ensure_future(world.topics.create(new_topic("t", 1, 1), {}))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        world.gate.set()
        await world.topics.drain()

    asyncio.run(scenario())
    assert world.metadata.topic("t") is not None
    assert len(world.logs.all_logs()) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KafkaStorageError("x")])
def test_no_space_for_logs_means_no_topic(world, monkeypatch, error):
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(world.logs, "create", full)
    topic = new_topic("t", 1, 1)
    with pytest.raises(KafkaStorageError):
        asyncio.run(world.topics.create(topic, {}))
    assert world.metadata.topic("t") is None
    assert world.records.topics() == world.records.deleted_topics() == []
    monkeypatch.undo()
    asyncio.run(world.topics.create(topic, {}))
    assert world.metadata.topic("t") is topic


def test_a_topic_that_is_being_deleted_cannot_be_deleted_or_made(world):
    topic = new_topic("t", 1, 1)

    async def scenario() -> None:
        await world.topics.create(topic, {})
        world.gate = asyncio.Event()
        deletion = asyncio.ensure_future(world.topics.delete(topic))
        await asyncio.sleep(0)
        with pytest.raises(UnknownTopicOrPartitionError):
            await world.topics.delete(topic)
        with pytest.raises(TopicAlreadyExistsError):
            await world.topics.create(new_topic("t", 1, 1), {})
        world.gate.set()
        await deletion
        await world.topics.create(new_topic("t", 1, 1), {})

    asyncio.run(scenario())


def test_more_partitions(world):
    topic = new_topic("t", 2, 1)

    async def scenario() -> None:
        await world.topics.create(topic, {})
        kept = world.replicas.partition(topic.topic_partitions()[0])
        await world.topics.add_partitions("t", 5)
        grown = world.metadata.topic("t")
        assert (grown.topic_id, len(grown.partitions)) == (topic.topic_id, 5)
        for topic_partition in grown.topic_partitions():
            assert world.replicas.partition(topic_partition).log.log_end_offset == 0
        assert world.replicas.partition(topic.topic_partitions()[0]) is kept
        with pytest.raises(InvalidPartitionsError):
            await world.topics.add_partitions("t", 5)

    asyncio.run(scenario())
    assert world.records.topics() == [world.metadata.topic("t")]


def test_no_space_for_logs_means_no_partitions(world, monkeypatch):
    topic = new_topic("t", 1, 1)
    create = world.logs.create

    def full(topic_partition: TopicPartition, topic_id: UUID) -> None:
        if topic_partition.partition == 2:
            raise OSError(28, "No space left on device")
        create(topic_partition, topic_id)

    asyncio.run(world.topics.create(topic, {}))
    monkeypatch.setattr(world.logs, "create", full)
    with pytest.raises(KafkaStorageError):
        asyncio.run(world.topics.add_partitions("t", 4))
    assert world.metadata.topic("t") is topic
    assert world.records.topics() == [topic]
    assert list(world.logs.all_logs()) == topic.topic_partitions()
    monkeypatch.undo()
    asyncio.run(world.topics.add_partitions("t", 4))
    assert len(world.logs.all_logs()) == 4


def test_changes_of_one_topic_come_one_after_the_other(world):
    """None is lost, and none brings back what is deleted."""

    def setting(name: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
        return lambda configs: {**configs, name: "1000"}

    async def scenario() -> None:
        topic = new_topic("t", 1, 1)
        await world.topics.create(topic, {})
        world.gate = asyncio.Event()
        changes = [
            asyncio.ensure_future(world.configs.set("t", setting("retention.ms"))),
            asyncio.ensure_future(world.topics.add_partitions("t", 2)),
            asyncio.ensure_future(world.configs.set("t", setting("segment.ms"))),
        ]
        await asyncio.sleep(0)
        changes[0].cancel()  # its client leaves
        world.gate.set()
        await asyncio.gather(*changes[1:])
        grown = world.metadata.topic("t")
        assert world.configs.of("t") == {"retention.ms": "1000", "segment.ms": "1000"}
        assert len(grown.partitions) == 2
        world.gate.clear()
        last = asyncio.ensure_future(world.configs.set("t", setting("flush.ms")))
        for _ in range(3):  # until it is under way
            await asyncio.sleep(0)
        deletion = asyncio.ensure_future(world.topics.delete(topic))
        await asyncio.sleep(0)
        world.gate.set()
        await deletion
        # The topic is deleted first, or last was first.
        assert isinstance(
            (await asyncio.gather(last, return_exceptions=True))[0],
            (UnknownTopicOrPartitionError, type(None)),
        )
        with pytest.raises(UnknownTopicOrPartitionError):
            await world.configs.set("t", setting("retention.ms"))

    asyncio.run(scenario())
    assert world.records.topics() == []
    assert world.logs.all_logs() == {}
