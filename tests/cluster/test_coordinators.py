"""Transactions and groups of one cluster, whose coordinators are lost in the middle of them."""

import pytest
from confluent_kafka import Consumer, TopicPartition

from broker.coordinator.state_topic import java_hash_magnitude
from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S
from tests.support.transactions import PARTITIONS, Transactions, read_committed


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as started:
        started.create_topic("t", PARTITIONS)
        yield started


@pytest.mark.parametrize("lose", [Cluster.kill, Cluster.stop], ids=["killed", "stopped"])
def test_a_transaction_outlives_its_coordinator(cluster, lose):
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


def test_a_groups_offsets_outlive_its_coordinator(cluster):
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
    found = {each.partition: each.offset for each in consumer.committed(places, EVENT_S)}
    assert found == {0: 100, 1: 101, 2: 102}
    consumer.commit(offsets=[TopicPartition("t", 0, 200)], asynchronous=False)
    consumer.close()
    cluster.start(coordinator)
    cluster.wait_in_sync("__consumer_offsets")
    again = Consumer(settings)
    found = {each.partition: each.offset for each in again.committed(places, EVENT_S)}
    assert found == {0: 200, 1: 101, 2: 102}
    again.close()
