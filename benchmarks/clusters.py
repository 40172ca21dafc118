"""Three of our brokers beside three of Apache Kafka 3.9, each three over a ZooKeeper of their own.

Replication factor 3, acks=all, two replicas in sync at least. Produce, fetch and memory; then what
a failure costs: a leader that is killed, brokers that are restarted one after the other, a session
that ends with a thousand partitions. Both clusters run at the same time, one of them idle. The
loads are the same processes and the same bytes for both. All six brokers, both ZooKeepers and the
clients share the machine, whose cores a cluster would have for each broker.
"""

import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as LibrdkafkaProducer
from kafka.admin import NewTopic
from kafka.structs import TopicPartition
from kazoo.client import KazooClient

from benchmarks.brokers import BATCH_BYTES, load
from benchmarks.pairs import Comparison, Row
from benchmarks.processes import forget_peaks, peak_mb
from benchmarks.produce_load import batch_of, records_in_batch
from benchmarks.running import KAFKA_JAVA_OPTIONS, Running
from pyspark_kafkalog.client.cluster import LATEST
from pyspark_kafkalog.client.cluster import Cluster as Client
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from tests.support.cluster import Cluster
from tests.support.patience import wait_until

GROUP = "Cluster of 3 brokers"
KAFKA = "Apache Kafka 3.9"
_NODES = (1, 2, 3)
_CONNECTIONS = _IN_FLIGHT = 4
# Leaders stay where a killed one's partitions went, so that the next pair finds them all there.
_PROPERTIES = {"zookeeper.session.timeout.ms": "2000", "auto.leader.rebalance.enable": "false"}
# What the tests' members are given less of than Kafka's own defaults.
_KAFKA_PROPERTIES = {"num.io.threads": "8", "num.network.threads": "3"}
_SETTINGS = {
    "both": "replication factor 3, acks=all, min.insync.replicas=2, session timeout 2 s",
    KAFKA: f"java {' '.join(KAFKA_JAVA_OPTIONS)}",
}
_PARTITIONS_OF_ONE = 1000
# A record each, for as long as something else happens; librdkafka's own settings otherwise.
_PRODUCER = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
_BETWEEN_RECORDS_S = 0.005
# So that what a client waits between its questions is not what is measured: librdkafka asks who
# leads once a second, and some clients' questions come just before the answer changes.
_IMPATIENT = {"retry.backoff.ms": "20", "retry.backoff.max.ms": "20"}
# An answer about a thousand partitions costs a broker, too, which has better to do then.
_BETWEEN_QUESTIONS_S = 0.05


def comparisons(running: Running) -> list[Comparison]:
    ours, peer = _Side(running, is_ours=True), _Side(running, is_ours=False)
    produced = (
        _row("produce 1 MB batches, RF 3, 4 x 4 in flight", "MB/s", 1),
        _row("peak memory of 3 brokers, producing", "MB", 3, is_better_higher=False),
    )
    return [
        Comparison(produced, ours.produce_batches, peer.produce_batches, pair_s=30),
        Comparison.of_one(
            _row("produce 1 record, RF 3, 4 x 32 in flight", "requests/s", 1),
            ours.produce_records,
            peer.produce_records,
            pair_s=20,
        ),
        Comparison.of_one(
            _row("fetch from a cluster, 1 consumer draining", "MB/s", 1),
            ours.drain,
            peer.drain,
            pair_s=4,
        ),
        Comparison.of_one(
            _row("kill -9 of a leader to the next acknowledgement", "s", 1, is_better_higher=False),
            ours.kill_leader,
            peer.kill_leader,
            pair_s=25,
            quick=False,
        ),
        Comparison.of_one(
            _row(
                "rolling restart: longest gap of a producer", "s", limit=1, is_better_higher=False
            ),
            ours.restart_all,
            peer.restart_all,
            pair_s=50,
            quick=False,
        ),
        Comparison.of_one(
            _row(
                "1,000 partitions led by another, from a session's end on",
                "s",
                limit=1,
                is_better_higher=False,
            ),
            ours.elect_a_thousand,
            peer.elect_a_thousand,
            pair_s=60,
            quick=False,
        ),
    ]


def _row(
    name: str,
    unit: str,
    goal: float | None = None,
    *,
    limit: float | None = None,
    is_better_higher: bool = True,
) -> Row:
    return Row(GROUP, name, unit, goal, limit, is_better_higher, KAFKA, _SETTINGS)


@dataclass(frozen=True, slots=True)
class _Leaders:
    """Of a topic's partitions, in their order, as `load` takes them."""

    bootstrap_servers: str
    pid: int = 0


class _Side:
    """One of the two clusters, and what is measured of it."""

    def __init__(self, running: Running, *, is_ours: bool) -> None:
        self._running = running
        self._is_ours = is_ours
        self._batches = max(_CONNECTIONS * 2, int(500 * running.scale))
        self._requests = int(50_000 * running.scale) // _CONNECTIONS * _CONNECTIONS

    @cached_property
    def _cluster(self) -> Cluster:
        stack = self._running.stack
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-"))
        made = (
            Cluster(Path(folder), properties=_PROPERTIES)
            if self._is_ours
            else Cluster(
                Path(folder),
                properties={**_PROPERTIES, **_KAFKA_PROPERTIES},
                kafka=_NODES,
                java_options=KAFKA_JAVA_OPTIONS,
            )
        )
        return stack.enter_context(made)

    def produce_batches(self) -> tuple[float, float]:
        """MB/s, and the memory of all brokers in MB."""
        pids = [broker.pid for broker in self._cluster.brokers.values()]
        for pid in pids:
            forget_peaks(pid)
        requests = self._batches // _CONNECTIONS * _CONNECTIONS
        with self._topic(_CONNECTIONS) as name:
            seconds = self._load(name, _IN_FLIGHT, requests, BATCH_BYTES)
            self._check(name, requests * records_in_batch(BATCH_BYTES))
        return requests * BATCH_BYTES / 1e6 / seconds, sum(map(peak_mb, pids))

    def produce_records(self) -> float:
        """Requests a second."""
        with self._topic(_CONNECTIONS) as name:
            seconds = self._load(name, 32, self._requests, 100)
            self._check(name, self._requests)
        return self._requests / seconds

    def drain(self) -> float:
        """MB/s."""
        place = self._drained
        with self._client() as client:
            end_offset = client.list_offsets([place], LATEST)[place].offset
            began = time.perf_counter()
            fetched = Fetcher(client, place, 0, end_offset).records()
            size_bytes = sum(len(each.records) for each in fetched)
            return size_bytes / (time.perf_counter() - began) / 1e6

    def kill_leader(self) -> float:
        """Seconds from the kill until a record that is sent then is acknowledged."""
        cluster = self._cluster
        servers = ",".join(cluster.bootstrap)
        client = ClientConfig.from_options({"bootstrap.servers": servers, **_IMPATIENT})
        with self._topic(1) as name, Producer(client) as producer:
            place = TopicPartition(name, 0)
            producer.send(place, bytearray(batch_of(100)))
            producer.flush()
            leader = cluster.leader(name)
            cluster.kill(leader)
            killed_s = time.perf_counter()
            producer.send(place, bytearray(batch_of(100)))
            producer.flush()
            seconds = time.perf_counter() - killed_s
            cluster.start(leader)
            cluster.wait_in_sync(name)
        return seconds

    def restart_all(self) -> float:
        """The most seconds between two acknowledgements of a partition, while each broker in turn
        is stopped and started again."""
        cluster = self._cluster
        with self._topic(3) as name, _Acknowledged(cluster.bootstrap, name, 3) as acknowledged:
            acknowledged.wait_for_one()
            for node_id in _NODES:
                cluster.stop(node_id)
                cluster.start(node_id)
                cluster.wait_in_sync(name)
            return acknowledged.longest_gap_s()

    def elect_a_thousand(self) -> float:
        """Seconds from the end of a broker's session until another leads all its partitions."""
        cluster, name = self._cluster, self._of_one_leader
        cluster.wait_in_sync(name)
        leader = cluster.leader(name)
        survivors = [cluster.brokers[each].address for each in _NODES if each != leader]
        zookeeper = KazooClient(cluster.zookeeper.address)
        zookeeper.start()
        try:
            gone = threading.Event()
            path = f"/cluster/brokers/ids/{leader}"
            assert zookeeper.exists(path, watch=lambda _: gone.set())
            with _client_of(survivors) as client:
                cluster.kill(leader)
                assert gone.wait(30)
                ended_s = time.perf_counter()
                while any(each.leader in (-1, leader) for each in client.describe([name])[name]):
                    time.sleep(_BETWEEN_QUESTIONS_S)
                seconds = time.perf_counter() - ended_s
        finally:
            zookeeper.stop()
            zookeeper.close()
        cluster.start(leader)
        cluster.wait_in_sync(name)
        return seconds

    @cached_property
    def _of_one_leader(self) -> str:
        """A topic whose partitions all have the same leader."""
        name = "of-one-leader"
        replicas = {number: list(_NODES) for number in range(_PARTITIONS_OF_ONE)}
        self._cluster.admin.create_topics([NewTopic(name, replica_assignments=replicas)])
        return name

    @cached_property
    def _drained(self) -> TopicPartition:
        """A partition that lies in the page cache."""
        name = f"drained-{uuid.uuid4().hex[:8]}"
        self._cluster.create_topic(name)
        leaders = self._leaders(name)
        load(leaders, name, 1, _IN_FLIGHT, self._batches, BATCH_BYTES)
        return TopicPartition(name, 0)

    def _load(self, name: str, in_flight: int, requests: int, batch_bytes: int) -> float:
        return load(self._leaders(name), name, _CONNECTIONS, in_flight, requests, batch_bytes)

    def _leaders(self, name: str) -> _Leaders:
        self._cluster.wait_in_sync(name)
        brokers = self._cluster.brokers
        leaders = [brokers[each["leader_id"]] for each in self._cluster.partitions(name)]
        return _Leaders(",".join(broker.address for broker in leaders))

    @contextmanager
    def _topic(self, partitions: int) -> Iterator[str]:
        name = f"load-{uuid.uuid4().hex[:8]}"
        self._cluster.create_topic(name, partitions)
        self._cluster.wait_in_sync(name)
        yield name
        self._cluster.delete_topic(name)

    def _client(self) -> Client:
        return _client_of(self._cluster.bootstrap)

    def _check(self, name: str, records: int) -> None:
        places = [TopicPartition(name, partition) for partition in range(_CONNECTIONS)]
        with self._client() as client:
            found = sum(at.offset for at in client.list_offsets(places, LATEST).values())
        assert found == records, f"{found} records of {records} in {name}"


class _Acknowledged:
    """A producer of a record for each partition every few ms, and when each was acknowledged.
    Any that fails is an error. A context manager."""

    def __init__(self, servers: Sequence[str], topic: str, partitions: int) -> None:
        self._producer = LibrdkafkaProducer({"bootstrap.servers": ",".join(servers), **_PRODUCER})
        self._topic = topic
        self._times_s: list[list[float]] = [[] for _ in range(partitions)]
        self._failed: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "_Acknowledged":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        assert not self._failed, self._failed

    def wait_for_one(self) -> None:
        """In each partition."""
        wait_until(lambda: all(self._times_s), "an acknowledgement", pause_s=0.01)

    def longest_gap_s(self) -> float:
        gaps = [
            later - earlier for times_s in self._times_s for earlier, later in pairwise(times_s)
        ]
        return max(gaps)

    def _run(self) -> None:
        while not self._is_over.is_set():
            for partition, times_s in enumerate(self._times_s):
                self._send(partition, times_s)
            self._producer.poll(_BETWEEN_RECORDS_S)
        if self._producer.flush(60):
            self._failed.append("not flushed")

    def _send(self, partition: int, times_s: list[float]) -> None:
        def delivered(error: object, _: Message) -> None:
            if error is not None:
                self._failed.append(str(error))
            else:
                times_s.append(time.perf_counter())

        with suppress(BufferError, KafkaException):
            self._producer.produce(
                self._topic, b"x" * 100, partition=partition, on_delivery=delivered
            )


def _client_of(servers: Sequence[str]) -> Client:
    return Client(ClientConfig.from_options({"bootstrap.servers": ",".join(servers)}))
