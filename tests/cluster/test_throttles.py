"""Replicas that move no faster than they may (`kafka-reassign-partitions --throttle`)."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.broker.api.config_client import SET, altered
from tests.cluster.producing import Producing
from tests.cluster.test_moves import create, move, wait_moved
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster

TOPIC, BROKER = 2, 4
BYTES, RATE = 4_000_000, 500_000
# What replica.fetch.max.bytes lets through at the beginning is not held up.
LEAST_S = (BYTES - 1_048_576) / RATE - 0.5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        yield started


def alter(cluster: Cluster, node_id: int, kind: int, name: str, key: str, value: str) -> None:
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        assert altered(client, kind, name, [(key, SET, value)]) == (0, None)


def fill(cluster: Cluster, topic: str) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for _ in range(BYTES // 10_000):
            producer.send(topic, bytes(10_000), partition=0)


@pytest.mark.slow
@pytest.mark.parametrize("side", [pytest.param("leader", marks=pytest.mark.long), "follower"])
def test_a_move_takes_as_long_as_it_must_and_holds_up_nobody_else(
    cluster: Cluster, side: str
) -> None:
    """Either side alone keeps to the rate. What is in sync, or not throttled, goes on as it was."""
    create(cluster, "t", (1, 2), (1, 2))
    fill(cluster, "t")
    replicas = {"leader": "0:1,0:2", "follower": "0:3"}[side]
    alter(cluster, 2, TOPIC, "t", f"{side}.replication.throttled.replicas", replicas)
    for node_id in cluster.brokers:
        rate = f"{side}.replication.throttled.rate"
        alter(cluster, node_id, BROKER, str(node_id), rate, str(RATE))
    began_s = time.monotonic()
    assert not move(cluster, cluster.controller_id, {("t", 0): [1, 2, 3], ("t", 1): [1, 2, 3]})
    wait_moved(cluster, {("t", 1): [1, 2, 3]})
    with Producing(cluster, "t", 2) as producing:
        producing.wait_for()
        took_s = time.monotonic() - began_s
        assert len(cluster.partitions("t")[0]["isr_nodes"]) == 2
        assert took_s < LEAST_S
    wait_moved(cluster, {("t", 0): [1, 2, 3]})
    cluster.wait_in_sync("t")
    assert time.monotonic() - began_s > LEAST_S
    cluster.wait_equal_logs("t", 2)
