"""Offsets of a group by a client that is no member: our broker, and scripted coordinators."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition
from kafka.errors import (
    GroupAuthorizationFailedError,
    NotCoordinatorError,
    UnknownMemberIdError,
)
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse
from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.group import (
    CommittedOffset,
    commit_offsets,
    committed_offsets,
    committed_places,
)
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import BrokersUnreachableError
from tests.pyspark_kafkalog.client.scripted import SILENCE, VERSIONS, Request, ScriptedBroker

T0 = TopicPartition("t", 0)
OFFSET_COMMIT, FIND_COORDINATOR = 8, 10


def test_the_log_of_an_offset_is_kept_with_it(
    cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    plain, known = (TopicPartition(new_topic(2), number) for number in range(2))
    commit_offsets(cluster, "of-logs", {plain: 9})
    of_log: dict[str, Any] = {"epochs": {known: 5}, "topic_ids": {known.topic: UUID(int=7)}}
    commit_offsets(cluster, "of-logs", {known: 3}, **of_log)
    assert committed_places(cluster, "of-logs") == {
        plain: CommittedOffset(9),
        known: CommittedOffset(3, 5, UUID(int=7)),
    }


def test_what_is_committed_is_there_for_everybody(
    cluster: Cluster, broker: EmbeddedBroker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    topic_partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    commit_offsets(cluster, "seen-by-all", {topic_partitions[0]: 7, topic_partitions[1]: 0})
    commit_offsets(cluster, "seen-by-all", {topic_partitions[0]: 9})
    assert committed_offsets(cluster, "seen-by-all") == {
        topic_partitions[0]: 9,
        topic_partitions[1]: 0,
    }
    assert committed_offsets(cluster, "never-heard-of") == {}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "seen-by-all"})
    asked = [ClientTopicPartition(topic, number) for number in (0, 1)]
    assert [each.offset for each in consumer.committed(asked, 10)] == [9, 0]
    consumer.close()


def test_a_group_with_members_is_left_alone(
    cluster: Cluster, broker: EmbeddedBroker, new_topic: Callable[..., str]
) -> None:
    topic_partition = TopicPartition(new_topic(), 0)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "busy",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic_partition.topic])
    for _ in range(100):
        consumer.poll(0.1)
        if consumer.assignment():
            break
    assert consumer.assignment()
    with pytest.raises(UnknownMemberIdError, match="group busy has members"):
        commit_offsets(cluster, "busy", {topic_partition: 1})
    consumer.close()
    commit_offsets(cluster, "busy", {topic_partition: 1})
    assert committed_offsets(cluster, "busy") == {topic_partition: 1}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, OFFSET_COMMIT, (2, 9))
    monkeypatch.setitem(VERSIONS, FIND_COORDINATOR, (0, 4))


def coordinator_is(broker: ScriptedBroker, error_code: int = 0) -> Any:
    def find(request: Request) -> bytes:
        return bytes(
            FindCoordinatorResponse(
                error_code=error_code, node_id=broker.node_id, host="127.0.0.1", port=broker.port
            ).encode(version=request.version)
        )

    return find


def answers(*error_codes: int) -> Any:
    codes = list(error_codes)

    def commit(request: Request) -> bytes:
        asked = OffsetCommitRequest.decode(request.body, version=request.version)
        assert (asked.group_id, asked.member_id) == ("g", "")
        assert asked.generation_id_or_member_epoch == -1
        of_topic = OffsetCommitResponse.OffsetCommitResponseTopic
        code = codes.pop(0) if len(codes) > 1 else codes[0]
        return bytes(
            OffsetCommitResponse(
                topics=[
                    of_topic(
                        name=topic.name,
                        partitions=[
                            of_topic.OffsetCommitResponsePartition(
                                partition_index=p.partition_index, error_code=code
                            )
                            for p in topic.partitions
                        ],
                    )
                    for topic in asked.topics
                ]
            ).encode(version=request.version)
        )

    return commit


@pytest.mark.parametrize("error_code", [14, 15, 16])
def test_a_coordinator_that_moved_is_looked_up_again(scripted: None, error_code: int) -> None:
    with ScriptedBroker() as one, ScriptedBroker(node_id=2) as two:
        finds = [coordinator_is(one), coordinator_is(one, 15), coordinator_is(two)]
        one.handlers[FIND_COORDINATOR] = lambda request: finds.pop(0)(request)
        one.handlers[OFFSET_COMMIT] = answers(error_code)
        two.handlers[OFFSET_COMMIT] = answers(0)
        with Cluster(one.config()) as cluster:
            commit_offsets(cluster, "g", {T0: 5})
        assert len(one.asked(OFFSET_COMMIT)) == len(two.asked(OFFSET_COMMIT)) == 1


def test_what_does_not_pass_is_said(scripted: None) -> None:
    with ScriptedBroker() as broker:
        broker.handlers[FIND_COORDINATOR] = coordinator_is(broker)
        broker.handlers[OFFSET_COMMIT] = answers(30)
        with Cluster(broker.config()) as cluster:
            with pytest.raises(GroupAuthorizationFailedError, match="t-0 for group g"):
                commit_offsets(cluster, "g", {T0: 5})
            broker.handlers[OFFSET_COMMIT] = answers(16)
            with pytest.raises(NotCoordinatorError):
                commit_offsets(cluster, "g", {T0: 5}, Deadline(100))
            broker.handlers[OFFSET_COMMIT] = lambda request: SILENCE
            with pytest.raises(BrokersUnreachableError):
                commit_offsets(cluster, "g", {T0: 5}, Deadline(100))
            commit_offsets(cluster, "g", {})
