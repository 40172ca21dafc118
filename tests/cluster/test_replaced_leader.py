"""A leader that was replaced, and has not heard of it, since it has lost ZooKeeper: it answers
reads as if it led still, with less than there is. Who asks it first misses nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable

import pyspark_kafkalog
from pyspark_kafkalog.source.offsets import JsonOffsets
from pyspark_kafkalog.source.options import stream_options
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S, wait_until

pytestmark = [pytest.mark.slow]

RECORDS = 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "brokers", links=True) as started:
        yield started


def produce(cluster: Cluster, node_id: int) -> None:
    """RECORDS of them, acknowledged, by way of this broker."""
    servers = cluster.doors[node_id].address
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    for _ in range(RECORDS):
        producer.produce("t", b"v", partition=0)
    assert producer.flush(EVENT_S) == 0


def told_by(cluster: Cluster, node_id: int) -> int:
    """Who leads."""
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        return int(client.metadata_of("t").partitions[0].leader_id)


def test_it_costs_a_load_and_a_stream_no_alarm(cluster: Cluster, tmp_path: Path) -> None:
    old, other = sorted(cluster.brokers.keys() - {cluster.controller_id})
    cluster.place_topic("t", {0: [old, other, cluster.controller_id]})
    cluster.wait_in_sync("t")

    def options(node_id: int) -> dict[str, str]:
        """Of a client that knows no other broker at first."""
        return {
            "kafka.bootstrap.servers": cluster.doors[node_id].address,
            "subscribe": "t",
            "startingOffsets": "earliest",
        }

    def load(node_id: int) -> int:
        target = f"parquet:{tmp_path / 'loaded'}"
        return pyspark_kafkalog.load(None, "nightly", target, options(node_id)).records

    def stream_end(node_id: int, start: JsonOffsets) -> JsonOffsets:
        given = options(node_id) | {"fetchOffset.numRetries": "1"}
        stream = KafkalogStreamReader(stream_options(given), ["value"])
        try:
            return stream.latestOffset(start, ReadAllAvailable())
        finally:
            stream.stop()

    produce(cluster, old)
    assert load(old) == RECORDS
    cluster.ways[old].lose(requests=True, answers=True)
    wait_until(lambda: told_by(cluster, other) not in (old, -1), "another leads", pause_s=0.05)
    produce(cluster, other)
    assert load(other) == RECORDS
    # It also says in which epoch: a later one than that of the leader that was replaced.
    end = stream_end(other, {"t": {"0": 0}})
    assert end["t"]["0"] == 2 * RECORDS
    assert stream_end(old, end) == end
    produce(cluster, other)
    assert load(old) == RECORDS
    assert stream_end(old, end)["t"]["0"] == 3 * RECORDS
    assert told_by(cluster, old) == old
