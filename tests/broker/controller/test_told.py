"""What a controller tells each broker of a cluster, in which order; and what it makes of nodes that
brokers of Apache Kafka's have left to it."""

import asyncio
import uuid
from asyncio import Future
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kafka.errors import TopicAlreadyExistsError

from broker.cluster import znodes
from broker.cluster.control import LeaderAndIsr, StopReplica, UpdateMetadata
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import BrokerNode, PartitionMetadata, TopicMetadata, new_topic
from broker.cluster.records import MetadataRecords
from broker.cluster.store import ANY_VERSION, Create, Delete
from broker.controller.controller import Controller

_T = TypeVar("_T")


class Cluster:
    """Controller 1 and broker 2, which do all that they are told. `told`: kinds of requests and how
    many partitions each has, by the broker."""

    def __init__(self, directory: Path) -> None:
        self.store = LocalStore(directory)
        self.records = MetadataRecords(self.store)
        self.records.prepare()
        self.records.become_controller(1)
        self.told: dict[int, list[tuple[str, int]]] = {1: [], 2: []}
        for node_id in (1, 2):
            self.register(node_id)
        self.controller = Controller(1, self.records, self._channel, _blocking)

    def register(self, node_id: int) -> None:
        self.records.register(BrokerNode(node_id, "host", 9090 + node_id))

    def end_session(self, node_id: int) -> None:
        self.store.commit([Delete(znodes.broker(node_id), ANY_VERSION)])

    def _channel(self, node: BrokerNode) -> "_Channel":
        return _Channel(self.told[node.node_id])


class _Channel:
    def __init__(self, told: list[tuple[str, int]]) -> None:
        self._told = told

    def send(self, request: LeaderAndIsr | StopReplica | UpdateMetadata) -> Future[Any]:
        self._told.append((type(request).__name__, len(request.partitions)))
        answer = asyncio.get_running_loop().create_future()
        answer.set_result({})
        return answer

    async def close(self) -> None:
        pass


async def _blocking(function: Callable[[], _T]) -> _T:
    return function()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.store.close()


def test_who_is_there_comes_before_whom_to_follow(cluster: Cluster) -> None:
    """Apache Kafka's brokers follow nobody of whom they have not heard, and ask nobody."""

    async def scenario() -> None:
        await cluster.controller.start()
        await cluster.controller.place_and_create_topic("t", 2, 2, {})
        for told in cluster.told.values():
            assert told[0] == ("UpdateMetadata", 0)
            assert told[-2:] == [("LeaderAndIsr", 2), ("UpdateMetadata", 2)]
            told.clear()
        cluster.end_session(2)
        await cluster.controller.brokers_changed()
        cluster.told[2].clear()
        cluster.register(2)
        await cluster.controller.brokers_changed()
        assert cluster.told[2] == [
            ("UpdateMetadata", 2),
            ("LeaderAndIsr", 2),
            ("UpdateMetadata", 2),
        ]

    asyncio.run(scenario())


def test_who_is_there_comes_before_the_leaders_that_are_back(cluster: Cluster) -> None:
    async def scenario() -> None:
        await cluster.controller.start()
        await cluster.controller.create_topic("t", [(2, 1)], {})
        for node_id in (1, 2):
            cluster.end_session(node_id)
            await cluster.controller.brokers_changed()
        cluster.register(1)
        await cluster.controller.brokers_changed()
        cluster.told[1].clear()
        cluster.register(2)
        await cluster.controller.brokers_changed()
        assert cluster.told[1] == [
            ("UpdateMetadata", 0),
            ("LeaderAndIsr", 1),
            ("UpdateMetadata", 1),
        ]

    asyncio.run(scenario())


def test_who_takes_over_says_first_what_there_is(cluster: Cluster) -> None:
    """All of it: a broker that has just started would tell its clients that no topic is there."""

    async def scenario() -> None:
        await cluster.controller.start()
        await cluster.controller.create_topic("t", [(2, 1)], {})
        for told in cluster.told.values():
            told.clear()
        await cluster.controller.resign()
        await cluster.controller.start()
        for told in cluster.told.values():
            assert told == [("UpdateMetadata", 1), ("LeaderAndIsr", 1), ("UpdateMetadata", 1)]

    asyncio.run(scenario())


def test_brokers_are_told_of_added_partitions_alone(cluster: Cluster) -> None:
    """As made a moment ago: a broker that has lost the log of another one would make it anew."""

    async def scenario() -> None:
        await cluster.controller.start()
        await cluster.controller.create_topic("t", [(2, 1), (1, 2)], {})
        for told in cluster.told.values():
            told.clear()
        await cluster.controller.add_partitions("t", 3, [(1, 2)])
        for told in cluster.told.values():
            assert told == [("LeaderAndIsr", 1), ("UpdateMetadata", 1)]

    asyncio.run(scenario())


def write_topic_alone(cluster: Cluster, name: str, replicas: list[Any]) -> uuid.UUID:
    """As a broker of Apache Kafka's that is not the controller; its topic id."""
    states = [PartitionMetadata(tuple(each), -1, -1, (), -1) for each in replicas]
    topic = TopicMetadata(name, uuid.uuid4(), tuple(states))
    cluster.store.commit([Create(znodes.topic_config(name), znodes.dump_config({}))])
    cluster.store.commit([Create(znodes.topic(name), znodes.dump_topic(topic))])
    return topic.topic_id


@pytest.mark.parametrize("is_there", [True, False], ids=["by the controller", "by the next one"])
def test_partitions_of_a_topic_that_another_broker_has_written_down_are_made(
    cluster: Cluster, is_there: bool
) -> None:
    async def scenario() -> None:
        if is_there:
            await cluster.controller.start()
            await cluster.controller.topics_changed()
        topic_id = write_topic_alone(cluster, "t", [[1, 2], [3, 2]])
        if is_there:
            cluster.told[2].clear()
            await cluster.controller.topics_changed()
            assert cluster.told[2] == [("LeaderAndIsr", 2), ("UpdateMetadata", 2)]
        else:
            await cluster.controller.start()
        (topic,) = cluster.records.cluster().topics
        assert topic.topic_id == topic_id
        assert [(state.leader, state.isr) for state in topic.partitions] == [(1, (1, 2)), (2, (2,))]
        with pytest.raises(TopicAlreadyExistsError):
            await cluster.controller.create_topic("t", [(1,)], {})

    asyncio.run(scenario())


def test_partitions_that_were_made_in_part_are_completed(cluster: Cluster) -> None:
    async def scenario() -> None:
        topic = new_topic("t", 250, 1)
        cluster.records.create_topic(topic, {})
        kept = cluster.records.cluster().topics[0].partitions[0]
        for index in range(1, 250):
            cluster.store.commit([Delete(znodes.partition_state("t", index), ANY_VERSION)])
            if index % 2:
                cluster.store.commit([Delete(znodes.partition("t", index), ANY_VERSION)])
        await cluster.controller.start()
        (found,) = cluster.records.cluster().topics
        assert found.partitions[0] == kept
        assert {state.leader for state in found.partitions} == {1}

    asyncio.run(scenario())


def test_configs_without_a_topic_do_not_stand_in_its_way(cluster: Cluster) -> None:
    async def scenario() -> None:
        await cluster.controller.start()
        cluster.store.commit([Create(znodes.topic_config("t"), znodes.dump_config({}))])
        await cluster.controller.create_topic("t", [(1,)], {"flush.ms": "5"})
        node = cluster.store.get(znodes.topic_config("t"))
        assert node.value == znodes.dump_config({"flush.ms": "5"})

    asyncio.run(scenario())


@pytest.mark.parametrize("removed", range(6))
def test_a_deletion_that_another_controller_has_begun_is_carried_on(
    cluster: Cluster, removed: int
) -> None:
    """Apache Kafka's remove the nodes one by one."""

    async def scenario() -> None:
        cluster.records.create_topic(new_topic("t", 1, 1), {})
        cluster.records.mark_deleted("t")
        for path in (
            znodes.partition_state("t", 0),
            znodes.partition("t", 0),
            znodes.partitions("t"),
            znodes.topic("t"),
            znodes.topic_config("t"),
        )[:removed]:
            cluster.store.commit([Delete(path, ANY_VERSION)])
        await cluster.controller.start()
        await cluster.controller.finish_changes()
        assert cluster.records.deleted_topics() == cluster.records.topic_names() == []
        assert not cluster.store.exists(znodes.topic_config("t"))

    asyncio.run(scenario())
