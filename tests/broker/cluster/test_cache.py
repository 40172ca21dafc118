"""What requests are answered from, as a controller tells it."""

import uuid
from dataclasses import replace

import pytest
from kafka.structs import TopicPartition

from broker.cluster.cache import MetadataCache
from broker.cluster.control import LEADER_DURING_DELETE, Stamp, UpdateMetadata
from broker.cluster.metadata import BrokerNode, TopicMetadata, new_topic
from tests.support.present import present

ONE, TWO = BrokerNode(1, "one", 9092), BrokerNode(2, "two", 9092)


def told(*topics: TopicMetadata, leader: int | None = None, first: int = 0) -> UpdateMetadata:
    """Of the topics' partitions from `first` on."""
    partitions = {
        topic_partition: state if leader is None else replace(state, leader=leader)
        for topic in topics
        for topic_partition, state in zip(topic.topic_partitions(), topic.partitions, strict=True)
        if topic_partition.partition >= first
    }
    ids = {topic.name: topic.topic_id for topic in topics}
    return UpdateMetadata(Stamp(2, 5, 7), [ONE, TWO], partitions, ids)


def test_brokers_topics_and_who_is_controller() -> None:
    metadata = MetadataCache("cluster", ONE)
    assert (metadata.brokers, metadata.controller_id) == ([], -1)
    later, sooner = (new_topic(name, 1, 1) for name in ("b", "a"))
    assert metadata.update(told(later, sooner)) == []
    assert (metadata.brokers, metadata.controller_id) == ([ONE, TWO], 2)
    assert metadata.topics() == [sooner, later]
    assert metadata.topic("a") == sooner
    assert metadata.topic_by_id(later.topic_id) == later
    assert metadata.topic_by_id(uuid.uuid4()) is None


def test_a_topic_on_its_way_out_is_gone() -> None:
    metadata = MetadataCache("cluster", ONE)
    topic = new_topic("t", 2, 1)
    metadata.update(told(topic))
    assert metadata.update(told(topic, leader=LEADER_DURING_DELETE)) == ["t"]
    assert metadata.topic("t") is metadata.topic_by_id(topic.topic_id) is None
    assert metadata.update(told(topic, leader=LEADER_DURING_DELETE)) == ["t"]


def test_a_deletion_that_comes_late_leaves_the_topic_made_anew() -> None:
    """It has the name alone in common."""
    metadata = MetadataCache("cluster", ONE)
    before, after = new_topic("t", 3, 1), new_topic("t", 1, 1)
    metadata.update(told(before))
    metadata.update(told(after))
    assert metadata.update(told(before, leader=LEADER_DURING_DELETE)) == []
    assert metadata.topic("t") == metadata.topic_by_id(after.topic_id) == after


def test_partitions_that_are_taken_back_leave_the_topic() -> None:
    metadata = MetadataCache("cluster", ONE)
    grown = new_topic("t", 3, 1)
    metadata.update(told(grown))
    assert metadata.update(told(grown, leader=LEADER_DURING_DELETE, first=1)) == []
    assert metadata.topic("t") == replace(grown, partitions=grown.partitions[:1])


def test_a_partition_keeps_its_number_where_those_before_it_are_not_known_yet() -> None:
    """Nobody leads these, as far as is known; and nothing is left of them when the others go."""
    metadata = MetadataCache("cluster", ONE)
    topic = new_topic("t", 4, 1)
    metadata.update(told(topic, first=2))
    known = present(metadata.topic("t")).partitions
    assert known[2:] == topic.partitions[2:]
    assert [(each.leader, each.replicas, each.isr) for each in known[:2]] == [(-1, (), ())] * 2
    metadata.update(told(topic, first=1))
    assert present(metadata.topic("t")).partitions[1:] == topic.partitions[1:]
    metadata.update(told(topic, first=3, leader=LEADER_DURING_DELETE))
    assert present(metadata.topic("t")).partitions == (known[0], *topic.partitions[1:3])
    metadata.update(told(topic))
    assert metadata.topic("t") == topic
    metadata.update(told(replace(topic, partitions=topic.partitions[:2]), leader=-2))
    assert present(metadata.topic("t")).partitions == (*known[:2], *topic.partitions[2:])
    assert metadata.update(told(topic, first=2, leader=LEADER_DURING_DELETE)) == ["t"]
    assert metadata.topic("t") is metadata.topic_by_id(topic.topic_id) is None


def test_a_number_that_no_partition_has_takes_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    metadata = MetadataCache("cluster", ONE)
    topic = new_topic("t", 1, 1)
    nonsense = TopicPartition("t", 2**31 - 1)
    said = told(topic)
    metadata.update(replace(said, partitions={**said.partitions, nonsense: topic.partitions[0]}))
    assert metadata.topic("t") == topic
    assert "topic='t' partition=2147483647" in caplog.text


def test_a_topic_made_anew_takes_the_place_of_the_one_before() -> None:
    metadata = MetadataCache("cluster", ONE)
    before, after = new_topic("t", 3, 1), new_topic("t", 1, 1)
    metadata.update(told(before))
    version = metadata.version
    metadata.update(told(after))
    assert metadata.topic("t") == after
    assert metadata.topic_by_id(before.topic_id) is None
    assert metadata.version > version
