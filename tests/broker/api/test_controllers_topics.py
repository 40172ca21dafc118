"""What clients ask of topics and leaders is done by what the controller knows: another broker may
have heard of no topic yet, and to a client that asks again that says that they are gone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import InvalidPartitionsError, NotControllerError, RequestTimedOutError
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)

from broker.api import create_partitions, create_topics, delete_topics, elect_leaders
from broker.cluster.cache import MetadataCache
from broker.cluster.metadata import BrokerNode
from broker.config.broker import BrokerConfig
from tests.broker.controller.scripted import ScriptedCluster
from tests.support.requests import request_of

LONG_MS = 60_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    made = ScriptedCluster(tmp_path)
    yield made
    made.store.close()


def context(cluster: ScriptedCluster) -> Any:
    """Of a broker that was told of nothing."""
    metadata = MetadataCache("cluster", BrokerNode(1, "host", 9091))
    return SimpleNamespace(controller=cluster.controller, metadata=metadata, config=BrokerConfig())


async def create(cluster: ScriptedCluster, name: str, timeout_ms: int) -> Any:
    topic_class = CreateTopicsRequest.CreatableTopic
    topic = topic_class(
        name=name, num_partitions=1, replication_factor=5, assignments=[], configs=[]
    )
    wanted = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=False)
    request = request_of(19, 7, wanted.encode(version=7))
    (created,) = (await create_topics.handle(request, context(cluster))).topics
    return created.error_code


async def delete(cluster: ScriptedCluster, timeout_ms: int = LONG_MS, **topic: str | UUID) -> Any:
    wanted = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(**{"name": None, "topic_id": None, **topic})],
        timeout_ms=timeout_ms,
    )
    request = request_of(20, 6, wanted.encode(version=6))
    (deleted,) = (await delete_topics.handle(request, context(cluster))).responses
    return deleted.error_code


async def grow(cluster: ScriptedCluster, name: str, count: int, timeout_ms: int = LONG_MS) -> Any:
    topic_class = CreatePartitionsRequest.CreatePartitionsTopic
    wanted = CreatePartitionsRequest(
        topics=[topic_class(name=name, count=count, assignments=None)], timeout_ms=timeout_ms
    )
    request = request_of(37, 3, wanted.encode(version=3))
    (grown,) = (await create_partitions.handle(request, context(cluster))).results
    return grown.error_code


async def elect(cluster: ScriptedCluster, timeout_ms: int, *, names_it: bool = True) -> list[Any]:
    """Of the whole, and of each partition."""
    topic_class = ElectLeadersRequest.TopicPartitions
    topics = [topic_class(topic="t", partitions=[0])] if names_it else None
    wanted = ElectLeadersRequest(election_type=0, topic_partitions=topics, timeout_ms=timeout_ms)
    answer = await elect_leaders.handle(
        request_of(43, 2, wanted.encode(version=2)), context(cluster)
    )
    results = [each for topic in answer.replica_election_results for each in topic.partition_result]
    return [answer.error_code, *(each.error_code for each in results)]


@pytest.mark.parametrize("names_it", [True, False])
@pytest.mark.parametrize("timeout_ms", [0, 50])
def test_a_client_waits_for_an_election_as_long_as_it_has_said(
    cluster: ScriptedCluster, timeout_ms: int, names_it: bool
) -> None:
    async def scenario() -> None:
        await cluster.start()
        await cluster.lose(1)
        await cluster.find(1)
        await cluster.in_sync(2, 1)
        cluster.silent = {1, 2, 3, 4, 5}
        late = RequestTimedOutError.errno
        told = await elect(cluster, timeout_ms, names_it=names_it)
        assert told == ([0, late] if names_it else [late])
        await cluster.wait(lambda: cluster.state().leader == 1)
        cluster.answer_all()
        await cluster.controller.finish_changes()

    asyncio.run(scenario())


def test_who_is_no_controller_says_so(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        (topic,) = cluster.records.cluster().topics
        await cluster.controller.resign()
        assert [
            await delete(cluster, name="t"),
            await delete(cluster, topic_id=topic.topic_id),
            await grow(cluster, "t", 3),
        ] == [NotControllerError.errno] * 3

    asyncio.run(scenario())


def test_a_controller_knows_before_brokers_are_told(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        assert await grow(cluster, "t", 3) == 0
        (topic,) = cluster.records.cluster().topics
        assert len(topic.partitions) == 3
        assert await delete(cluster, topic_id=topic.topic_id) == 0
        assert cluster.records.topic_names() == []

    asyncio.run(scenario())


@pytest.mark.parametrize("timeout_ms", [0, 50])
def test_a_client_waits_for_brokers_as_long_as_it_has_said(
    cluster: ScriptedCluster, timeout_ms: int
) -> None:
    """What it has asked for is done all the same."""

    async def scenario() -> None:
        await cluster.start()
        cluster.silent = {1, 2, 3, 4, 5}
        assert [
            await create(cluster, "new", timeout_ms),
            await grow(cluster, "t", 3, timeout_ms),
        ] == [RequestTimedOutError.errno] * 2
        await cluster.wait(lambda: len(cluster.controller.topic("t").partitions) == 3)
        assert cluster.controller.topic("new").partitions
        assert await delete(cluster, timeout_ms, name="new") == RequestTimedOutError.errno
        await cluster.wait(lambda: cluster.records.deleted_topics() == ["new"])
        cluster.answer_all()
        await cluster.controller.finish_changes()
        assert [topic.name for topic in cluster.records.cluster().topics] == ["t"]
        assert await grow(cluster, "t", 3, 0) == InvalidPartitionsError.errno

    asyncio.run(scenario())
