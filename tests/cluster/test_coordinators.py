"""Transactions and groups of one cluster, whose coordinators are lost in the middle of them."""

from itertools import count

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from broker.coordinator.state_topic import java_hash_magnitude
from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S, wait_until

PARTITIONS = 3
RECORDS = 15


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as started:
        started.create_topic("t", PARTITIONS)
        yield started


class Transactions:
    """A producer of librdkafka's, and what it has committed."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.committed: list[int] = []
        self._numbers = count()
        self._open: list[int] = []
        self._producer = Producer(
            {
                "bootstrap.servers": ",".join(cluster.bootstrap),
                "transactional.id": transactional_id,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(EVENT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()
        self._open = []
        self.produce()

    def produce(self) -> None:
        for _ in range(RECORDS):
            number = next(self._numbers)
            self._producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
            self._open.append(number)

    def commit(self) -> None:
        self._producer.commit_transaction(EVENT_S)
        self.committed += self._open

    def abort(self) -> None:
        self._producer.abort_transaction(EVENT_S)


def read_committed(cluster: Cluster, count: int) -> list[int]:
    """The values, at least so many, and whatever follows them."""
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap),
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
        values: list[int] = []
        ended: set[int] = set()

        def is_read() -> bool:
            message = consumer.poll(0.1)
            if message is None:
                return False
            value, partition = message.value(), message.partition()
            assert partition is not None
            if message.error():
                ended.add(partition)
            else:
                ended.discard(partition)
                values.append(int(value or b""))
            return len(ended) == PARTITIONS and len(values) >= count

        wait_until(is_read, lambda: f"{len(values)} of {count}", pause_s=0)
        return values
    finally:
        consumer.close()


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
