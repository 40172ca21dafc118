"""Topics as nodes and back, in the layout that Apache Kafka writes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.errors import InconsistentClusterIdError, NotControllerError
from kafka.structs import TopicPartition

from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import BrokerNode, TopicMetadata, new_topic
from broker.cluster.records import MetadataRecords
from broker.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStoreError,
    Node,
    NodeExistsError,
    Result,
    Set,
    StoreConnectionError,
)
from pyspark_kafkalog.protocol.uuid_text import decode_uuid


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    opened = LocalStore(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def records(store: LocalStore) -> MetadataRecords:
    made = MetadataRecords(store)
    made.prepare()
    made.become_controller(1)
    return made


def topics(records: MetadataRecords) -> list[TopicMetadata]:
    return records.cluster().topics


def test_a_topic_comes_back_as_it_was(records: MetadataRecords) -> None:
    topic = new_topic("orders", 3, node_id=1)
    assert records.create_topic(topic, {})
    assert topics(records) == [topic]


def test_a_topic_is_made_once(records: MetadataRecords) -> None:
    first, second = (new_topic("orders", count, 1) for count in (1, 2))
    assert records.create_topic(first, {})
    assert not records.create_topic(second, {})
    assert topics(records) == [first]


def test_more_than_ten_partitions_keep_their_order(records: MetadataRecords) -> None:
    topic = new_topic("many", 12, 1)
    records.create_topic(topic, {})
    assert len(topics(records)[0].partitions) == 12


def test_the_nodes_are_kafkas(store: LocalStore, records: MetadataRecords) -> None:
    topic = new_topic("orders", 2, 1)
    records.create_topic(topic, {"retention.ms": "5"})
    records.register(BrokerNode(1, "example.org", 9092))

    def value(path: str) -> dict[str, object]:
        loaded: dict[str, object] = json.loads(store.get(path).value)
        return loaded

    node = value("/brokers/topics/orders")
    assert (node["version"], node["partitions"]) == (3, {"0": [1], "1": [1]})
    assert decode_uuid(str(node["topic_id"])) == topic.topic_id
    assert value("/brokers/topics/orders/partitions/1/state") == {
        "controller_epoch": 1,
        "leader": 1,
        "version": 1,
        "leader_epoch": 0,
        "isr": [1],
    }
    assert value("/config/topics/orders") == {"version": 1, "config": {"retention.ms": "5"}}
    broker = value("/brokers/ids/1")
    assert (broker["host"], broker["port"]) == ("example.org", 9092)


def test_a_broker_id_is_taken_once(records: MetadataRecords) -> None:
    records.register(BrokerNode(1, "a", 1))
    with pytest.raises(NodeExistsError):
        records.register(BrokerNode(1, "b", 2))


def test_each_controller_begins_an_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        store = LocalStore(tmp_path)
        records = MetadataRecords(store)
        records.prepare()
        records.become_controller(7)
        assert store.get("/controller_epoch").value == b"%d" % epoch
        assert json.loads(store.get("/controller").value)["brokerid"] == 7
        store.close()


def test_one_broker_is_controller_at_a_time(store: LocalStore, records: MetadataRecords) -> None:
    with pytest.raises(NodeExistsError):
        MetadataRecords(store).become_controller(2)
    assert store.get("/controller_epoch").value == b"1"


@pytest.mark.parametrize(("is_gone", "error"), [(False, NodeExistsError), (True, BadVersionError)])
def test_of_two_that_have_read_the_same_epoch_one_is_elected(
    store: LocalStore,
    is_gone: bool,
    error: type[MetadataStoreError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the one that was faster is gone again: its epoch was another."""
    records, faster = MetadataRecords(store), MetadataRecords(store)
    records.prepare()
    commit = store.commit

    def late(operations: Sequence[Create | Set | Delete | Check]) -> list[Result]:
        monkeypatch.undo()
        faster.become_controller(2)
        if is_gone:
            faster.resign()
        return commit(operations)

    monkeypatch.setattr(store, "commit", late)
    with pytest.raises(error):
        records.become_controller(1)
    assert store.get("/controller_epoch").value == b"1"
    assert records.controller_id() == (None if is_gone else 2)


@pytest.mark.parametrize("becomes", ["done", "not done", "another's"])
def test_an_election_whose_answer_is_lost(
    store: LocalStore, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was elected knows it by reading back; nobody else takes itself for the controller."""
    records = MetadataRecords(store)
    records.prepare()
    commit = store.commit

    def unanswered(operations: Sequence[Create | Set | Delete | Check]) -> None:
        monkeypatch.undo()
        if becomes == "done":
            commit(operations)
        if becomes == "another's":
            MetadataRecords(store).become_controller(2)
        raise StoreConnectionError("/")

    monkeypatch.setattr(store, "commit", unanswered)
    if becomes == "done":
        records.become_controller(1)
        assert records.controller_epoch == 1
        assert records.create_topic(new_topic("orders", 1, 1), {})
        return
    with pytest.raises(StoreConnectionError):
        records.become_controller(1)
    if becomes == "another's":
        assert records.controller_id() == 2
        with pytest.raises(NodeExistsError):
            records.become_controller(1)
    else:
        records.become_controller(1)
        assert records.controller_epoch == 1


@pytest.mark.parametrize("is_done", [True, False])
def test_a_registration_whose_answer_is_lost(
    store: LocalStore, records: MetadataRecords, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = store.commit

    def unanswered(operations: Sequence[Create | Set | Delete | Check]) -> None:
        monkeypatch.undo()
        if is_done:
            commit(operations)
        raise StoreConnectionError("/")

    monkeypatch.setattr(store, "commit", unanswered)
    node = BrokerNode(1, "a", 1)
    if is_done:
        assert records.register(node) == records.brokers()[1].epoch
    else:
        with pytest.raises(StoreConnectionError):
            records.register(node)
        assert records.brokers() == {}


def test_who_is_controller_no_more_writes_nothing(
    store: LocalStore, records: MetadataRecords
) -> None:
    """As after a session that ended without a word: the other one's epoch stands in the way."""
    topic = new_topic("orders", 1, 1)
    records.create_topic(topic, {})
    store.commit([Delete("/controller", ANY_VERSION)])
    later = MetadataRecords(store)
    later.become_controller(2)
    before = topics(records)
    for write in (
        lambda: records.create_topic(new_topic("more", 1, 1), {}),
        lambda: records.write_states({TopicPartition("orders", 0): topic.partitions[0]}),
        lambda: records.mark_deleted("orders"),
    ):
        with pytest.raises(NotControllerError):
            write()
    assert topics(records) == before
    assert later.create_topic(new_topic("more", 1, 1), {})


def test_states_are_written_where_nobody_has_changed_them(records: MetadataRecords) -> None:
    topic = new_topic("orders", 2, 1)
    records.create_topic(topic, {})
    first, second = topic.topic_partitions()
    elected = replace(topic.partitions[0], leader=2, leader_epoch=1)
    found = records.write_states({first: elected})
    assert found == {first: replace(elected, partition_epoch=1)}
    late = replace(topic.partitions[0], leader=3)
    other = replace(topic.partitions[1], isr=(1, 2))
    found = records.write_states({first: late, second: other})
    assert found == {
        first: replace(elected, partition_epoch=1),
        second: replace(other, partition_epoch=1),
    }
    assert topics(records) == [replace(topic, partitions=(found[first], found[second]))]


def test_what_a_controller_finds_tells_old_leaders_from_brokers_started_since(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    records = MetadataRecords(store)
    records.prepare()
    records.become_controller(1)
    records.register(BrokerNode(1, "host", 9092, "rack"))
    records.create_topic(new_topic("orders", 1, 1), {})
    (place,) = new_topic("orders", 1, 1).topic_partitions()
    found = records.cluster()
    assert found.brokers[1].node == BrokerNode(1, "host", 9092, "rack")
    assert found.written[place] > found.brokers[1].epoch
    store.close()
    store = LocalStore(tmp_path)
    records = MetadataRecords(store)
    records.register(BrokerNode(1, "host", 9092))
    found = records.cluster()
    assert found.written[place] < found.brokers[1].epoch
    store.close()


def test_deletion_is_marked_and_forgotten(store: LocalStore, records: MetadataRecords) -> None:
    topic = new_topic("orders", 2, 1)
    records.create_topic(topic, {})
    records.mark_deleted("orders")
    records.mark_deleted("orders")
    assert records.deleted_topics() == ["orders"]
    assert topics(records) == [topic]
    records.forget_topic(topic)
    assert (records.deleted_topics(), topics(records)) == ([], [])
    assert store.children("/config/topics") == []
    assert records.create_topic(new_topic("orders", 1, 1), {})


def test_a_topic_of_many_partitions_is_forgotten_in_portions(
    store: LocalStore, records: MetadataRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds it in between, or has not heard that it is gone, forgets the rest."""
    monkeypatch.setattr("broker.cluster.records._AT_ONCE", 3)
    topic = new_topic("many", 10, 1)
    records.create_topic(topic, {})
    records.mark_deleted("many")
    commit = store.commit
    done: list[list[Result]] = []

    def fails_at_the_third(
        operations: Sequence[Create | Set | Delete | Check],
    ) -> list[str | Node | None]:
        if len(done) == 2:
            raise StoreConnectionError("/")
        done.append(commit(operations))
        return done[-1]

    monkeypatch.setattr(store, "commit", fails_at_the_third)
    with pytest.raises(StoreConnectionError):
        records.forget_topic(topic)
    monkeypatch.setattr(store, "commit", commit)
    found = records.cluster()
    assert found.topics == [replace(topic, partitions=topic.partitions[:4])]
    assert found.deleted_topics == ["many"]
    for known in (topic, found.topics[0]):
        records.forget_topic(known)
        assert not records.topic_names()
        assert not records.deleted_topics()


def test_the_tree_belongs_to_one_cluster(records: MetadataRecords) -> None:
    records.set_cluster_id("first")
    records.set_cluster_id("first")
    with pytest.raises(InconsistentClusterIdError, match="first"):
        records.set_cluster_id("second")
