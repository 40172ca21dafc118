"""Our broker beside Apache Kafka: produce, fetch, start and memory.

Both run with their defaults, Kafka with the JVM options of its own start script, each with its data
on the same disk. The loads are the same processes and the same bytes for both.
"""

import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from kafka.structs import TopicPartition

from benchmarks.pairs import Comparison, Measure
from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client.admin import create_topic, delete_topics
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from tests.interop.kafka_server import KafkaServer

PEER = "Apache Kafka"
# As bin/kafka-server-start.sh and bin/kafka-run-class.sh of Apache Kafka set them.
KAFKA_JAVA_OPTIONS = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
BATCH_BYTES = 1_000_000


class Broker(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def pid(self) -> int: ...


@contextmanager
def kafka() -> Iterator[KafkaServer]:
    with (
        tempfile.TemporaryDirectory(prefix="kafka-") as directory,
        KafkaServer(Path(directory), java_options=KAFKA_JAVA_OPTIONS) as running,
    ):
        yield running


def comparisons(stack: ExitStack, scale: float) -> list[Comparison]:
    """The rows; the brokers they need run until `stack` is closed."""
    return [
        _starts("broker start to first acknowledged record"),
        *_of_running(stack.enter_context(EmbeddedBroker()), stack.enter_context(kafka()), scale),
    ]


def _of_running(ours: Broker, peer: Broker, scale: float) -> list[Comparison]:
    def row(name: str, unit: str, goal: float, measure: "_OfBroker") -> Comparison:
        return Comparison(name, unit, goal, measure(ours), measure(peer), unit not in ("MB",), PEER)

    large, one, many = int(1000 * scale), int(20_000 * scale), int(200_000 * scale)
    return [
        row("broker, idle memory", "MB", 4.9, lambda broker: lambda: resident_mb(broker.pid)),
        row("produce 1 MB batches, 4 x 4 in flight", "MB/s", 2, _produce(4, 4, large, BATCH_BYTES)),
        row("produce 1 record, 1 in flight", "requests/s", 1.2, _produce(1, 1, one, 100)),
        row("produce 1 record, 4 x 32 in flight", "requests/s", 3, _produce(4, 32, many, 100)),
        row("fetch, 1 consumer draining", "MB/s", 1, _drain(int(1000 * scale))),
    ]


class _OfBroker(Protocol):
    def __call__(self, broker: Broker, /) -> Measure: ...


def _produce(connections: int, in_flight: int, requests: int, batch_bytes: int) -> _OfBroker:
    def of(broker: Broker) -> Measure:
        def measure() -> float:
            with topic(broker, connections) as name:
                seconds = load(broker, name, connections, in_flight, requests, batch_bytes)
            if batch_bytes < BATCH_BYTES:
                return requests / seconds
            return requests * batch_bytes / seconds / 1e6

        return measure

    return of


def _drain(megabytes: int) -> _OfBroker:
    """One consumer reads a partition whose records lie in the page cache."""

    def of(broker: Broker) -> Measure:
        place = TopicPartition(f"drained-{uuid.uuid4().hex[:8]}", 0)
        with cluster(broker) as client:
            create_topic(client, place.topic, 1)
        load(broker, place.topic, 1, 4, megabytes, BATCH_BYTES)

        def measure() -> float:
            with cluster(broker) as client:
                end_offset = client.list_offsets([place], LATEST)[place].offset
                began = time.perf_counter()
                fetched = Fetcher(client, place, 0, end_offset).records()
                size_bytes = sum(len(each.records) for each in fetched)
                return size_bytes / (time.perf_counter() - began) / 1e6

        return measure

    return of


def _starts(name: str) -> Comparison:
    def ours() -> float:
        began = time.perf_counter()
        with EmbeddedBroker() as broker:
            acknowledge(broker)
            return time.perf_counter() - began

    def peer() -> float:
        with tempfile.TemporaryDirectory() as directory:
            server = KafkaServer(Path(directory), java_options=KAFKA_JAVA_OPTIONS)
            began = time.perf_counter()
            with server:
                acknowledge(server)
                return time.perf_counter() - began

    return Comparison(name, "s", 8, ours, peer, higher_is_better=False, peer_name=PEER)


def acknowledge(broker: Broker) -> None:
    """Returns when the broker has acknowledged a record."""
    from benchmarks.produce_load import batch_of

    with cluster(broker) as client:
        create_topic(client, "first", 1)
        with Producer(client) as producer:
            producer.send(TopicPartition("first", 0), bytearray(batch_of(100)))


def load(
    broker: Broker, name: str, connections: int, in_flight: int, requests: int, batch_bytes: int
) -> float:
    """The seconds that a load took (produce_load.py)."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    numbers = map(str, (connections, in_flight, requests, batch_bytes))
    command = [sys.executable, "-m", "benchmarks.produce_load", host, port, name, *numbers]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


@contextmanager
def topic(broker: Broker, partitions: int) -> Iterator[str]:
    """A new topic that is deleted afterwards."""
    name = f"load-{uuid.uuid4().hex[:8]}"
    with cluster(broker) as client:
        create_topic(client, name, partitions)
        yield name
        delete_topics(client, [name])


def cluster(broker: Broker) -> Cluster:
    return Cluster(ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers}))


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024
