"""Transactions and groups of one cluster, whose coordinators are lost in the middle of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from broker.coordinator.state_topic import java_hash_magnitude
from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S, wait_until
from tests.support.present import present
from tests.support.transactions import PARTITIONS, Transactions, read_committed


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        started.create_topic("t", PARTITIONS)
        yield started


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(Cluster.kill, id="killed"),
        pytest.param(Cluster.stop, id="stopped", marks=pytest.mark.long),
    ],
)
def test_a_transaction_outlives_its_coordinator(
    cluster: Cluster, lose: Callable[[Cluster, int], None]
) -> None:
    transactions = Transactions(cluster, "x")
    state_partition = java_hash_magnitude("x") % PARTITIONS
    for _ in range(2):
        coordinator = cluster.leader("__transaction_state", state_partition)
        transactions.begin()
        lose(cluster, coordinator)
        transactions.produce()
        transactions.commit()
        transactions.begin()
        transactions.abort()
        cluster.start(coordinator)
        for topic in ("t", "__transaction_state"):
            cluster.wait_in_sync(topic)
    assert sorted(read_committed(cluster, len(transactions.committed))) == transactions.committed
    for topic in ("t", "__transaction_state"):
        cluster.wait_equal_logs(topic, PARTITIONS)


def committed(consumer: Consumer, places: list[TopicPartition]) -> dict[Any, Any] | None:
    """Offsets by partition; nothing where brokers have yet to hear who the coordinator is, which
    librdkafka leaves to its user to ask again."""
    try:
        return {each.partition: each.offset for each in consumer.committed(places, EVENT_S)}
    except KafkaException as error:
        if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return None


def test_a_groups_offsets_outlive_its_coordinator(cluster: Cluster) -> None:
    settings = {
        "bootstrap.servers": ",".join(cluster.bootstrap),
        "group.id": "g",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    state_partition = java_hash_magnitude("g") % PARTITIONS
    places = [TopicPartition("t", index, 100 + index) for index in range(PARTITIONS)]
    consumer = Consumer(settings)
    consumer.commit(offsets=places, asynchronous=False)
    coordinator = cluster.leader("__consumer_offsets", state_partition)
    cluster.kill(coordinator)
    cluster.wait_led("__consumer_offsets", state_partition, not_by=coordinator)
    wait_until(
        lambda: committed(consumer, places) == {0: 100, 1: 101, 2: 102}, "what was committed"
    )
    consumer.commit(offsets=[TopicPartition("t", 0, 200)], asynchronous=False)
    consumer.close()
    cluster.start(coordinator)
    cluster.wait_in_sync("__consumer_offsets")
    again = Consumer(settings)
    wait_until(lambda: committed(again, places) == {0: 200, 1: 101, 2: 102}, "what was committed")
    again.close()


@pytest.mark.long
def test_groups_of_the_consumer_protocol_outlive_their_coordinator(tmp_path: Path) -> None:
    properties = {
        "group.coordinator.rebalance.protocols": "classic,consumer",
        "group.consumer.heartbeat.interval.ms": "200",
    }
    with Cluster(tmp_path, properties=properties) as cluster:
        cluster.create_topic("t", PARTITIONS)
        settings = {
            "bootstrap.servers": ",".join(cluster.bootstrap),
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        state_partition = java_hash_magnitude("g") % PARTITIONS
        for life in range(2):
            consumer = Consumer(settings)
            consumer.subscribe(["t"])
            assert values_of(cluster, consumer, b"%d" % life) == {b"%d" % life}
            coordinator = cluster.leader("__consumer_offsets", state_partition)
            cluster.kill(coordinator)
            assert values_of(cluster, consumer, b"killed") == {b"killed"}
            wait_until(lambda: has_committed(consumer), "a commit")  # noqa: B023
            consumer.close()
            cluster.start(coordinator)
            cluster.wait_in_sync("__consumer_offsets")


@pytest.mark.long
def test_a_cluster_has_groups_of_the_consumer_protocol_when_it_is_told_to(cluster: Cluster) -> None:
    """Apache Kafka 3.9's brokers over ZooKeeper have none."""
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap),
            "group.id": "g",
            "group.protocol": "consumer",
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])
    message = wait_until(lambda: consumer.poll(0.1), "an error")
    assert "API version not supported" in str(present(message).error())
    consumer.close()


def values_of(cluster: Cluster, consumer: Consumer, value: bytes) -> set[bytes | None]:
    """What the member reads when a record of that value was written to each partition."""
    producer = Producer({"bootstrap.servers": ",".join(cluster.bootstrap), "log_level": 0})
    for partition in range(PARTITIONS):
        producer.produce("t", value, partition=partition)
    assert producer.flush(EVENT_S) == 0
    found: dict[int | None, bytes | None] = {}

    def has_read() -> bool:
        for message in consumer.consume(100, 0.1):
            if message.error() is None:
                found[message.partition()] = message.value()
        return len(found) == PARTITIONS

    wait_until(has_read, found)
    return set(found.values())


def has_committed(consumer: Consumer) -> bool:
    """While another coordinator takes the group over, that may fail."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:
        return False
    return True
