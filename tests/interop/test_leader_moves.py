"""Reads and writes while the leaders of their partitions move, by death and by election, in a real
cluster of two brokers: every record once, in order."""

import threading
from collections.abc import Iterator, ValuesView
from pathlib import Path

import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import PartitionMetadata
from kafka.structs import TopicPartition

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.source.datasource import DefaultSource
from pyspark_kafkalog.source.reader import KafkalogReader
from tests.pyspark_kafkalog.client.conftest import batches_of
from tests.support.kafka_server import KafkaServer, require_kafka
from tests.support.patience import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]

TOPIC = "moved"
PARTITIONS = 4
READ_ROWS = 20_000
ROUNDS = 3
QUICK_FAILOVER = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}
TIMEOUT_S = 60


class Pair:
    """Two brokers; the second one's leaderships move to the first and come back."""

    def __init__(self, directory: Path) -> None:
        for name in ("1", "2"):
            (directory / name).mkdir()
        self.first = KafkaServer(directory / "1", QUICK_FAILOVER)
        self.second = KafkaServer(directory / "2", QUICK_FAILOVER, controller=self.first)
        self.bootstrap_servers = f"{self.first.bootstrap_servers},{self.second.bootstrap_servers}"
        self.moves = 0
        # Only connects when it is asked something.
        self._admin = AdminClient({"bootstrap.servers": self.first.bootstrap_servers})

    def move(self) -> None:
        """The second broker dies, comes back and is elected again."""
        self.second.kill()
        wait_until(lambda: self.leaders() == {1}, "the cluster")
        self.second.start()
        wait_until(self._is_elected, "the cluster")
        self.moves += 2

    def leaders(self) -> set[int]:
        return {partition.leader for partition in self._partitions()}

    def _is_elected(self) -> bool:
        if any(len(partition.isrs) < 2 for partition in self._partitions()):
            return False
        places = [ConfluentPartition(TOPIC, index) for index in range(PARTITIONS)]
        self._admin.elect_leaders(ElectionType.PREFERRED, places).result(TIMEOUT_S)
        return self.leaders() == {1, 2}

    def _partitions(self) -> ValuesView[PartitionMetadata]:
        found = self._admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC]
        return found.partitions.values()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    require_kafka()
    started = Pair(tmp_path_factory.mktemp("pair"))
    with started.first, started.second, cluster_of(started) as cluster:
        wait_until(lambda: len(cluster.brokers()) == 2, "the cluster")
        admin.create_topic(cluster, TOPIC, PARTITIONS, 2, {"min.insync.replicas": "1"})
        wait_until(lambda: started.leaders() == {1, 2}, "the cluster")
        yield started


def cluster_of(pair: Pair) -> Cluster:
    return Cluster(ClientConfig.from_options({"bootstrap.servers": pair.bootstrap_servers}))


def value(number: int) -> bytes:
    return b"%09d" % number * 10


def read(pair: Pair) -> dict[int, list[bytes]]:
    options = {
        "kafka.bootstrap.servers": pair.bootstrap_servers,
        "subscribe": TOPIC,
        "kafka.max.partition.fetch.bytes": "20000",
        "kafka.fetch.max.wait.ms": "50",
    }
    source = DefaultSource(options)
    planned = source.reader(source.schema())
    assert isinstance(planned, KafkalogReader)
    found: dict[int, list[bytes]] = {}
    for task in planned.partitions():
        for batch in planned.read(task):
            found.setdefault(batch.column("partition")[0].as_py(), []).extend(
                batch.column("value").to_pylist()
            )
    return found


def test_no_record_is_lost_doubled_or_moved_while_leaders_move(pair: Pair) -> None:
    written = 0

    def write(upto: int) -> None:
        nonlocal written
        with cluster_of(pair) as cluster, Producer(cluster) as producer:
            for batch in batches_of([value(n) for n in range(written, upto)], batch_bytes=5000):
                for partition in range(PARTITIONS):
                    producer.send(TopicPartition(TOPIC, partition), batch)
        written = upto

    write(READ_ROWS)
    errors: list[BaseException] = []

    def move() -> None:
        try:
            for _ in range(ROUNDS):
                pair.move()
        except BaseException as error:
            errors.append(error)

    mover = threading.Thread(target=move)
    mover.start()
    reads = 0
    while mover.is_alive():
        assert read(pair) == {p: [value(n) for n in range(written)] for p in range(PARTITIONS)}
        reads += 1
        write(written + 500)
    mover.join()
    assert not errors
    assert pair.moves == 2 * ROUNDS
    assert reads
    assert read(pair) == {p: [value(n) for n in range(written)] for p in range(PARTITIONS)}
