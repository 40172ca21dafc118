"""Brokers of one cluster: what holds for all replicas of a partition."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from kafka.admin import OffsetSpec
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.support.broker_child import RawClient
from tests.support.cluster import PATIENT, Cluster
from tests.support.patience import EVENT_S, wait_until
from tests.support.records import batch_of


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


def test_records_are_deleted_from_all_replicas(cluster: Cluster) -> None:
    cluster.create_topic("t")
    produce(cluster, "t", 10)
    assert delete_before(cluster, "t", 4) == 4
    leader = cluster.leader("t")
    cluster.kill(leader)
    cluster.wait_led("t", not_by=leader)
    assert [*cluster.offsets("t", OffsetSpec.EARLIEST).values()] == [4]
    assert delete_before(cluster, "t", 6) == 6  # one that is gone is not waited for
    cluster.start(leader)
    cluster.wait_in_sync("t")
    leader = cluster.leader("t")
    cluster.stop(leader)
    cluster.wait_led("t", not_by=leader)
    assert [*cluster.offsets("t", OffsetSpec.EARLIEST).values()] == [6]


@pytest.mark.long
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
            append_many(cluster, leader, follower)
        finally:
            os.kill(cluster.brokers[follower].pid, signal.SIGCONT)
        assert delete_before(cluster, "t", 4) == 4


@pytest.mark.parametrize("by", ["same_connection", "other_connection"])
def test_nobody_waits_behind_a_topic_that_is_being_made(tmp_path: Path, by: str) -> None:
    """A broker that does not answer holds that up as long as it has a session; clients of the
    leader that asks for the topic go on without that broker much earlier."""
    # Less than the 30 s after which a broker waits for a topic no more.
    properties = {"zookeeper.session.timeout.ms": "25000", "replica.lag.time.max.ms": "1000"}
    with Cluster(tmp_path, properties=properties) as cluster:
        leader, frozen = (each for each in cluster.brokers if each != cluster.controller_id)
        cluster.place_topic("t", {0: [leader, frozen, cluster.controller_id]})
        cluster.wait_led("t")
        broker = cluster.ours(leader)
        wanted = MetadataRequest.MetadataRequestTopic(name="made")
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
        with (
            RawClient(broker.host, broker.port) as asking,
            RawClient(broker.host, broker.port) as other,
        ):
            os.kill(cluster.brokers[frozen].pid, signal.SIGSTOP)
            try:
                asking.send_body(request.API_KEY, 12, request.encode(version=12))
                wait_until((cluster.data_dir(leader) / "made-0").exists, "it is being made")
                producing = other
                if by == "same_connection":
                    producing = asking
                    asking.receive_body(request.API_KEY, 12)
                producing.send_produce("t", 0, batch_of(1), timeout_ms=int(EVENT_S * 1000))
                assert producing.receive_produced().error_code == 0
                told = other.call(MetadataRequest(topics=[]), MetadataResponse, 12)
                assert frozen in {each.node_id for each in told.brokers}
            finally:
                os.kill(cluster.brokers[frozen].pid, signal.SIGCONT)


def append_many(cluster: Cluster, leader: int, frozen: int) -> None:
    """What one connection asks for is replicated together, and answered in order."""
    broker, batch = cluster.ours(leader), batch_of(1)
    log = cluster.data_dir(leader) / "t-0" / f"{0:020}.log"
    until_bytes = log.stat().st_size + 5 * len(batch)
    with RawClient(broker.host, broker.port) as client:
        for _ in range(5):
            client.send_produce("t", 0, batch)
        wait_until(lambda: log.stat().st_size == until_bytes, "all are appended")
        os.kill(cluster.brokers[frozen].pid, signal.SIGCONT)
        produced = [client.receive_produced() for _ in range(5)]
        assert [(each.error_code, each.base_offset) for each in produced] == [
            (0, offset) for offset in range(10, 15)
        ]
