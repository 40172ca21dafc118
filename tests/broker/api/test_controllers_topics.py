"""Topics are deleted, and given more partitions, by what the controller knows: another broker may
have heard of none yet, and to a client that asks again that says that they are gone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import NotControllerError
from kafka.protocol.admin import CreatePartitionsRequest, DeleteTopicsRequest

from broker.api import create_partitions, delete_topics
from broker.cluster.cache import MetadataCache
from broker.cluster.metadata import BrokerNode
from tests.broker.controller.scripted import ScriptedCluster
from tests.support.requests import request_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    made = ScriptedCluster(tmp_path)
    yield made
    made.store.close()


def context(cluster: ScriptedCluster) -> Any:
    """Of a broker that was told of nothing."""
    metadata = MetadataCache("cluster", BrokerNode(1, "host", 9091))
    config = SimpleNamespace(delete_topic_enable=True)
    return SimpleNamespace(controller=cluster.controller, metadata=metadata, config=config)


async def delete(cluster: ScriptedCluster, **topic: str | UUID) -> Any:
    wanted = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(**{"name": None, "topic_id": None, **topic})]
    )
    request = request_of(20, 6, wanted.encode(version=6))
    (deleted,) = (await delete_topics.handle(request, context(cluster))).responses
    return deleted.error_code


async def grow(cluster: ScriptedCluster, name: str, count: int) -> Any:
    topic_class = CreatePartitionsRequest.CreatePartitionsTopic
    wanted = CreatePartitionsRequest(topics=[topic_class(name=name, count=count, assignments=None)])
    request = request_of(37, 3, wanted.encode(version=3))
    (grown,) = (await create_partitions.handle(request, context(cluster))).results
    return grown.error_code


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
