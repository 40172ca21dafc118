"""Where a leader epoch ended, as leaders tell it."""

from collections.abc import Callable

import pytest
from kafka.errors import NotLeaderForPartitionError, TopicAuthorizationFailedError
from kafka.protocol.consumer import OffsetForLeaderEpochResponse
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.epoch_ends import epoch_ends
from tests.pyspark_kafkalog.client.conftest import write
from tests.pyspark_kafkalog.client.scripted import METADATA, VERSIONS, Request, ScriptedBroker

OFFSET_FOR_LEADER_EPOCH = 23
T0 = TopicPartition("t", 0)


def answers(*found: tuple[int, int]) -> Callable[[Request], bytes]:
    """(error, end offset) of partition 0, one answer after the other."""
    left = iter(found)

    def handle(request: Request) -> bytes:
        error, end = next(left)
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        partition = topic.EpochEndOffset(
            error_code=error, partition=0, leader_epoch=3, end_offset=end
        )
        topics = [topic(topic="t", partitions=[partition])]
        return bytes(OffsetForLeaderEpochResponse(topics=topics).encode(version=request.version))

    return handle


@pytest.fixture
def told(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[dict[TopicPartition, int | None], int]]:
    """What comes of these answers, or without any of a broker that does not offer the API; and how
    often it was asked for metadata."""

    def ask(*found: tuple[int, int]) -> tuple[dict[TopicPartition, int | None], int]:
        if found:
            monkeypatch.setitem(VERSIONS, OFFSET_FOR_LEADER_EPOCH, (0, 4))
        handlers = {OFFSET_FOR_LEADER_EPOCH: answers(*found)} if found else {}
        with ScriptedBroker(handlers) as broker, Cluster(broker.config()) as cluster:
            ends = epoch_ends(cluster, {T0: 3})
            return dict(ends), len(broker.asked(METADATA))

    return ask


def test_the_epoch_of_a_leader_ends_where_its_log_does(
    cluster: Cluster, config: Callable[..., ClientConfig], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    write(config(), TopicPartition(topic, 1), [b"x"] * 10)
    both = {TopicPartition(topic, number): 0 for number in (0, 1)}
    assert list(epoch_ends(cluster, both).values()) == [0, 10]
    assert epoch_ends(cluster, {}) == {}
    later = {TopicPartition(topic, 1): 5}
    assert epoch_ends(cluster, later) == {}


def test_another_leader_is_asked(
    told: Callable[..., tuple[dict[TopicPartition, int | None], int]],
) -> None:
    assert told((NotLeaderForPartitionError.errno, -1), (0, 7)) == ({T0: 7}, 2)
    assert told((0, -1)) == ({}, 1)


def test_a_broker_without_the_api_cannot_tell(
    told: Callable[..., tuple[dict[TopicPartition, int | None], int]],
) -> None:
    assert told() == ({}, 1)


def test_what_is_refused_is_said(
    told: Callable[..., tuple[dict[TopicPartition, int | None], int]],
) -> None:
    with pytest.raises(TopicAuthorizationFailedError, match="epochs of t-0"):
        told((TopicAuthorizationFailedError.errno, -1))
