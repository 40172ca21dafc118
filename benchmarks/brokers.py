"""Our broker beside Apache Kafka: produce, fetch, start, memory, and what other clients get of it.

Both run with their defaults, Kafka with the JVM options of its own start script, each with its
data on the same disk. The loads are the same processes and the same bytes for both. Producing and
fetching also tell what they cost: the broker's processor time, and the most memory it had
meanwhile.
"""

import csv
import sys
import tempfile
import time
import uuid
from functools import cached_property
from pathlib import Path

from kafka.structs import TopicPartition

from benchmarks.pairs import Comparison, Row
from benchmarks.processes import cpu_s, cpu_s_since, forget_peaks, output_of, peak_mb, resident_mb
from benchmarks.produce_load import batch_of, records_in_batch
from benchmarks.running import KAFKA, Broker, Running, cluster, kafka_server, records_in, topic
from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client.admin import create_topic
from pyspark_kafkalog.client.cluster import LATEST
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from tests.support.jvm import PEERS

GROUP = "Broker"
BEYOND = "Broker, beyond the goals"
BATCH_BYTES = 1_000_000
_CONNECTIONS = _IN_FLIGHT = 4
# As bin/kafka-consumer-perf-test.sh sets it.
_CLIENT_JAVA_OPTIONS = ("-Xmx512M",)
_JAVA_CLIENT = "org.apache.kafka.tools.ConsumerPerformance"
_MEBIBYTE = 1 << 20


def comparisons(running: Running) -> list[Comparison]:
    ours, peer = _Side(running, is_ours=True), _Side(running, is_ours=False)
    return [*_of_design(running, ours, peer), *_of_other_clients(ours, peer)]


def _of_design(running: Running, ours: "_Side", peer: "_Side") -> list[Comparison]:
    one, many = int(20_000 * running.scale), int(200_000 * running.scale)
    started = _row("start to first acknowledged record", "s", limit=0.5, is_better_higher=False)
    idle = _row("idle memory", "MB", limit=70, is_better_higher=False)
    produced = _row("produce 1 MB batches, 4 x 4 in flight", "MB/s", 2)
    drained = _row("fetch, 1 consumer draining", "MB/s", 1)
    return [
        Comparison.of_one(started, start_ours, start_kafka, pair_s=6),
        Comparison.of_one(idle, ours.idle_mb, peer.idle_mb, pair_s=0.2),
        Comparison(
            (produced, _cost("producing 1 MB batches"), _memory("producing 1 MB batches")),
            ours.produce_batches,
            peer.produce_batches,
            pair_s=7,
        ),
        Comparison.of_one(
            _row("produce 1 record, 1 in flight", "requests/s", 1.2),
            lambda: ours.produce_records(1, 1, one),
            lambda: peer.produce_records(1, 1, one),
            pair_s=4,
        ),
        Comparison.of_one(
            _row("produce 1 record, 4 x 32 in flight", "requests/s", 3),
            lambda: ours.produce_records(4, 32, many),
            lambda: peer.produce_records(4, 32, many),
            pair_s=15,
        ),
        Comparison((drained, _cost("a fetching consumer")), ours.drain, peer.drain, pair_s=3),
    ]


def _of_other_clients(ours: "_Side", peer: "_Side") -> list[Comparison]:
    java = " ".join(_CLIENT_JAVA_OPTIONS)
    return [
        Comparison.of_one(
            _row("consume 1 kB records, confluent-kafka", "MB/s", group=BEYOND),
            ours.consume_by_librdkafka,
            peer.consume_by_librdkafka,
            pair_s=6,
        ),
        Comparison.of_one(
            _row(
                "consume 1 kB records, Java client",
                "MB/s",
                group=BEYOND,
                settings={"both": f"{_JAVA_CLIENT} {java}, fetch.MB.sec"},
            ),
            ours.consume_by_java,
            peer.consume_by_java,
            pair_s=9,
        ),
    ]


def _row(
    name: str,
    unit: str,
    goal: float | None = None,
    *,
    limit: float | None = None,
    is_better_higher: bool = True,
    group: str = GROUP,
    settings: dict[str, str] | None = None,
) -> Row:
    return Row(group, name, unit, goal, limit, is_better_higher, KAFKA, settings or {})


def _cost(what: str) -> Row:
    name = f"processor time of {what}"
    return _row(name, "s/GB", is_better_higher=False, group=BEYOND)


def _memory(what: str) -> Row:
    return _row(f"peak memory of {what}", "MB", is_better_higher=False, group=BEYOND)


class _Side:
    """One of the two brokers, and what is measured of it."""

    def __init__(self, running: Running, *, is_ours: bool) -> None:
        self._running = running
        self._is_ours = is_ours
        self._batches = max(_CONNECTIONS * 2, int(1000 * running.scale))

    @property
    def _broker(self) -> Broker:
        return self._running.broker if self._is_ours else self._running.kafka

    def idle_mb(self) -> float:
        return resident_mb(self._broker.pid)

    def produce_batches(self) -> tuple[float, float, float]:
        """MB/s, seconds of the broker's processor time for a GB, its peak memory in MB."""
        pid, requests = self._broker.pid, self._batches // _CONNECTIONS * _CONNECTIONS
        forget_peaks(pid)
        before_s = cpu_s(pid)
        with topic(self._broker, _CONNECTIONS) as name:
            seconds = load(self._broker, name, _CONNECTIONS, _IN_FLIGHT, requests, BATCH_BYTES)
            gigabytes = requests * BATCH_BYTES / 1e9
            cost = cpu_s_since(pid, before_s) / gigabytes
            self._check(name, _CONNECTIONS, requests * records_in_batch(BATCH_BYTES))
        return gigabytes * 1000 / seconds, cost, peak_mb(pid)

    def produce_records(self, connections: int, in_flight: int, requests: int) -> float:
        """Requests a second."""
        requests = requests // connections * connections
        with topic(self._broker, connections) as name:
            seconds = load(self._broker, name, connections, in_flight, requests, 100)
            self._check(name, connections, requests)
        return requests / seconds

    def drain(self) -> tuple[float, float]:
        """MB/s, seconds of the broker's processor time for a GB."""
        place, pid = self._place, self._broker.pid
        with cluster(self._broker) as client:
            end_offset = client.list_offsets([place], LATEST)[place].offset
            before_s = cpu_s(pid)
            began = time.perf_counter()
            fetched = Fetcher(client, place, 0, end_offset).records()
            size_bytes = sum(len(each.records) for each in fetched)
            seconds = time.perf_counter() - began
        assert end_offset == self._record_count
        return size_bytes / seconds / 1e6, cpu_s_since(pid, before_s) / size_bytes * 1e9

    def consume_by_librdkafka(self) -> float:
        """MB/s of values."""
        consumer = [sys.executable, "-m", "benchmarks.consume_load", self._broker.bootstrap_servers]
        command = [*consumer, self._place.topic, str(self._record_count)]
        seconds, size_bytes = map(float, output_of(command).split())
        return size_bytes / seconds / 1e6

    def consume_by_java(self) -> float:
        """MB/s as the tool itself prints them for the time in which it fetched."""
        command = [
            *("java", *_CLIENT_JAVA_OPTIONS, "-cp", f"{PEERS}/kafka/*", _JAVA_CLIENT),
            *("--bootstrap-server", self._broker.bootstrap_servers, "--topic", self._place.topic),
            *("--num-records", str(self._record_count)),
        ]
        lines = [line for line in output_of(command).splitlines() if ", " in line]
        (found,) = csv.DictReader(lines, skipinitialspace=True)
        assert int(found["data.consumed.in.nMsg"]) >= self._record_count, found
        return float(found["fetch.MB.sec"]) * _MEBIBYTE / 1e6

    @property
    def _record_count(self) -> int:
        return self._batches * records_in_batch(BATCH_BYTES)

    @cached_property
    def _place(self) -> TopicPartition:
        """A partition that lies in the page cache; the rows that read share it."""
        made = TopicPartition(f"drained-{uuid.uuid4().hex[:8]}", 0)
        with cluster(self._broker) as client:
            create_topic(client, made.topic, 1)
        load(self._broker, made.topic, 1, _IN_FLIGHT, self._batches, BATCH_BYTES)
        return made

    def _check(self, name: str, partitions: int, records: int) -> None:
        found = records_in(self._broker, name, partitions)
        assert found == records, f"{found} records of {records} in {name}"


def start_ours() -> float:
    began = time.perf_counter()
    with EmbeddedBroker() as broker:
        acknowledge(broker)
        return time.perf_counter() - began


def start_kafka() -> float:
    with tempfile.TemporaryDirectory() as directory:
        server = kafka_server(Path(directory))
        began = time.perf_counter()
        with server:
            acknowledge(server)
            return time.perf_counter() - began


def acknowledge(broker: Broker) -> None:
    """Returns when the broker has acknowledged a record."""
    with cluster(broker) as client:
        create_topic(client, "first", 1)
        with Producer(client) as producer:
            producer.send(TopicPartition("first", 0), bytearray(batch_of(100)))


def load(
    broker: Broker,
    name: str,
    connections: int,
    in_flight: int,
    requests: int,
    batch_bytes: int,
    partitions: int = 0,
) -> float:
    """The seconds that a load took (produce_load.py); of as many partitions as connections if not
    said otherwise. A broker alone leads them all; of a cluster its `bootstrap_servers` are their
    leaders."""
    numbers = map(str, (connections, in_flight, requests, batch_bytes, partitions or connections))
    program = [sys.executable, "-m", "benchmarks.produce_load"]
    return float(output_of([*program, broker.bootstrap_servers, name, *numbers]))
