"""What clients are told of partitions whose leader, or some of whose replicas, are not there, and
by a broker that knows of nobody."""

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import LeaderNotAvailableError
from kafka.protocol.admin import DescribeTopicPartitionsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from broker.api import describe_topic_partitions, metadata
from broker.cluster.cache import MetadataCache
from broker.cluster.control import Stamp, UpdateMetadata
from broker.cluster.metadata import BrokerNode, PartitionMetadata
from tests.support.requests import request_of

ONE, TWO = BrokerNode(1, "one", 9092), BrokerNode(2, "two", 9092)
LOST = LeaderNotAvailableError.errno


@pytest.fixture
def context() -> SimpleNamespace:
    cache = MetadataCache("cluster", ONE)
    states = {
        TopicPartition("t", 0): PartitionMetadata((1, 2), 1, 5, (1, 2), 0),
        TopicPartition("t", 1): PartitionMetadata((2, 1), 2, 6, (2, 1), 0),
        TopicPartition("t", 2): PartitionMetadata((2,), -1, 7, (2,), 0),
        TopicPartition("t", 3): PartitionMetadata((1, 2), 1, 8, (1,), 0, failed=(1,)),
    }
    cache.update(UpdateMetadata(Stamp(1, 1, 1), [ONE, TWO], states, {"t": uuid.uuid4()}))
    # As a controller tells it first: who is there, and after that what comes of it.
    cache.update(UpdateMetadata(Stamp(1, 1, 1), [ONE], {}, {}))
    config = SimpleNamespace(auto_create_topics_enable=False, max_request_partition_size_limit=9)
    return SimpleNamespace(metadata=cache, config=config)


def ask(api: Any, key: int, version: int, message: Any, context: Any) -> Any:
    return api.handle(request_of(key, version, message.encode(version=version)), context)


def told(partitions: Any) -> Any:
    """Clients fail where a leader is named that is not among the brokers."""
    return [
        (each.error_code, each.leader_id, each.leader_epoch, list(each.offline_replicas))
        for each in partitions
    ]


def test_metadata(context: SimpleNamespace) -> None:
    wanted = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
    (topic,) = ask(metadata, 3, 12, wanted, context).topics
    assert topic.error_code == 0
    assert told(topic.partitions) == [
        (0, 1, 5, [2]),
        (LOST, -1, 6, [2]),
        (LOST, -1, 7, [2]),
        (0, 1, 8, [1, 2]),
    ]


@pytest.mark.parametrize("creates", [True, False])
def test_who_knows_of_no_brokers_says_nothing_of_topics(creates: bool) -> None:
    """librdkafka would forget all brokers, and have no partition's leader ever after."""
    config = SimpleNamespace(auto_create_topics_enable=creates)
    context = SimpleNamespace(metadata=MetadataCache("cluster", ONE), config=config)
    for topics in ([MetadataRequest.MetadataRequestTopic(name="t")], None):
        wanted = MetadataRequest(topics=topics, allow_auto_topic_creation=creates)
        found = ask(metadata, 3, 12, wanted, context)
        assert (list(found.brokers), list(found.topics), found.controller_id) == ([], [], -1)


def test_described_partitions(context: SimpleNamespace) -> None:
    topic_class = DescribeTopicPartitionsRequest.TopicRequest
    wanted = DescribeTopicPartitionsRequest(topics=[topic_class(name="t")], cursor=None)
    (topic,) = ask(describe_topic_partitions, 75, 0, wanted, context).topics
    assert told(topic.partitions) == [
        (0, 1, 5, [2]),
        (0, -1, 6, [2]),
        (0, -1, 7, [2]),
        (0, 1, 8, [1, 2]),
    ]
