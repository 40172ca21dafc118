"""Consumers that say in which rack they are (KIP-392): the bytes come from a follower, and are the
leader's."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from broker.config.broker import RACK_AWARE
from tests.cluster.producing import Producing, read
from tests.support.broker_child import BrokerChild
from tests.support.cluster import Cluster
from tests.support.jvm import peer_java
from tests.support.kafka_member import require_kafka_with_zookeeper
from tests.support.kafka_server import require_kafka
from tests.support.patience import EVENT_S, wait_until
from tests.support.scraping import address_of, scrape

RACKS = {1: "a", 2: "b", 3: "c"}
BYTES_OUT = "kafka_server_broker_topic_metrics_bytes_out_total"


class RackedCluster(Cluster):
    def properties_of(self, node_id: int) -> dict[str, str]:
        return {
            **super().properties_of(node_id),
            "broker.rack": RACKS[node_id],
            "replica.selector.class": RACK_AWARE,
            **({} if node_id in self.kafka else {"metrics.listener": "127.0.0.1:0"}),
        }


@contextmanager
def reading(cluster: Cluster, topic: str, rack: str) -> Iterator[Consumer]:
    """Its first partition, from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap),
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "client.rack": rack,
            "log_level": 0,
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        yield consumer
    finally:
        consumer.close()


def read_on(consumer: Consumer, found: dict[Any, Any], end: int) -> None:
    """Until the record before `end`; each is read once."""

    def has_read_on() -> bool:
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                assert (0, message.offset()) not in found
                found[0, message.offset()] = message.value()
        return (0, end - 1) in found

    wait_until(has_read_on, lambda: f"{len(found)} of {end}")


def end_of(producing: Producing) -> int:
    return max(offset for _, offset in producing.acknowledged) + 1


def bytes_out(cluster: Cluster, node_id: int) -> float:
    broker = cluster.brokers[node_id]
    assert isinstance(broker, BrokerChild)
    return scrape(address_of(broker))[BYTES_OUT,]


def follower(cluster: Cluster, topic: str) -> int:
    """One that is ours, and no controller."""
    leader = cluster.leader(topic)
    return next(
        node_id
        for node_id in cluster.brokers
        if node_id not in (leader, cluster.controller_id) and node_id not in cluster.kafka
    )


@pytest.mark.long
def test_a_consumer_reads_the_replica_in_its_rack_also_when_the_leader_is_lost(
    tmp_path: Path,
) -> None:
    with RackedCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        leader = cluster.leader("t")
        near = follower(cluster, "t")
        found: dict[Any, bytes] = {}
        with Producing(cluster, "t") as producing, reading(cluster, "t", RACKS[near]) as consumer:
            producing.wait_for(100)
            read_on(consumer, found, end_of(producing))
            values_size = sum(map(len, found.values()))
            assert bytes_out(cluster, near) >= values_size + 61 * len(found)
            cluster.kill(leader)
            producing.wait_for(100)
            read_on(consumer, found, end_of(producing))
            cluster.start(leader)
            cluster.wait_in_sync("t")
            cluster.stop(near)
            producing.wait_for(100)
            read_on(consumer, found, end_of(producing))
            producing.stop()
            read_on(consumer, found, end_of(producing))
        assert not producing.errors
        assert producing.acknowledged.items() <= found.items()
        assert read(cluster, "t") == found


def java_consumer(jars: str, bootstrap: str, rack: str, count: int) -> list[str]:
    """What Apache Kafka's console consumer reads of `t`."""
    done = subprocess.run(
        [
            *peer_java(jars, "-Xmx256m"),
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", bootstrap, "--topic", "t", "--from-beginning"),
            *("--consumer-property", f"client.rack={rack}", "--max-messages", str(count)),
        ],
        capture_output=True,
        text=True,
        timeout=EVENT_S,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.interop
@pytest.mark.long
@pytest.mark.parametrize(
    "kafka",
    [
        pytest.param(set(), id="all ours"),
        pytest.param({1}, id="Kafka's first"),
        pytest.param({3}, id="last"),
    ],
)
def test_javas_consumer_reads_the_replica_in_its_rack(tmp_path: Path, kafka: set[int]) -> None:
    """Our follower of either kind of leader, and what both kinds of leaders say."""
    require_kafka()
    require_kafka_with_zookeeper()
    with RackedCluster(tmp_path, kafka=kafka) as cluster:
        leader = min(kafka, default=1)
        replicas = [leader, *(node_id for node_id in (1, 2, 3) if node_id != leader)]
        cluster.place_topic("t", {0: replicas})
        cluster.wait_in_sync("t")
        assert cluster.leader("t") == leader
        with Producing(cluster, "t") as producing:
            producing.wait_for(100)
        near = follower(cluster, "t")
        values = [str(number) for number in range(100)]
        before = bytes_out(cluster, near)
        found = java_consumer("kafka-zk", cluster.bootstrap[leader - 1], RACKS[near], 100)
        assert found == values
        assert bytes_out(cluster, near) - before >= 61 * 100
        if kafka:  # and a follower of Apache Kafka's, which is sent there by ours
            cluster.stop(leader)
            cluster.wait_led("t", not_by=leader)
            cluster.start(leader)
            cluster.wait_in_sync("t")
            ours = cluster.leader("t")
            before = bytes_out(cluster, ours)
            found = java_consumer("kafka-zk", cluster.bootstrap[ours - 1], RACKS[leader], 100)
            assert found == values
            assert bytes_out(cluster, ours) - before < 61 * 100
