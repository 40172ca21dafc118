"""Brokers of one cluster: what holds for all replicas of a partition."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer, structs

from tests.support.cluster import PATIENT, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        yield started


def produce(cluster: Cluster, topic: str, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for number in range(count):
        producer.send(topic, b"%d" % number)
    producer.flush()
    producer.close()


def delete_before(cluster: Cluster, topic: str, offset: int, timeout_s: float = 10) -> int:
    """The low watermark. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": ",".join(cluster.bootstrap), "log_level": 0})
    place = TopicPartition(topic, 0, offset)
    asked = admin.delete_records([place], operation_timeout=timeout_s)
    return int(asked[place].result(30).low_watermark)


def beginning(cluster: Cluster, topic: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap)
    try:
        place = structs.TopicPartition(topic, 0)
        return int(consumer.beginning_offsets([place])[place])
    finally:
        consumer.close()


def test_records_are_deleted_from_all_replicas(cluster: Cluster) -> None:
    cluster.create_topic("t")
    produce(cluster, "t", 10)
    assert delete_before(cluster, "t", 4) == 4
    leader = cluster.leader("t")
    cluster.kill(leader)
    cluster.wait_led("t", not_by=leader)
    assert beginning(cluster, "t") == 4
    assert delete_before(cluster, "t", 6) == 6  # one that is gone is not waited for
    cluster.start(leader)
    cluster.wait_in_sync("t")
    leader = cluster.leader("t")
    cluster.stop(leader)
    cluster.wait_led("t", not_by=leader)
    assert beginning(cluster, "t") == 6


def test_a_replica_that_does_not_answer_is_waited_for(tmp_path: Path) -> None:
    """For as long as it has a session."""
    with Cluster(tmp_path, properties=PATIENT) as cluster:
        cluster.create_topic("t")
        produce(cluster, "t", 10)
        leader = cluster.leader("t")
        follower = next(each for each in cluster.brokers if each != leader)
        os.kill(cluster.brokers[follower].pid, signal.SIGSTOP)
        try:
            with pytest.raises(KafkaException) as raised:
                delete_before(cluster, "t", 4, timeout_s=0.5)
            assert raised.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
        finally:
            os.kill(cluster.brokers[follower].pid, signal.SIGCONT)
        assert delete_before(cluster, "t", 4) == 4
