"""A cluster of our brokers, some of Apache Kafka's among them, each a process of its own, over a
real ZooKeeper."""

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from kafka.admin import KafkaAdminClient, NewTopic, OffsetSpec
from kafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.structs import TopicPartition
from kazoo.client import KazooClient

from tests.support.broker_child import BrokerChild
from tests.support.kafka_member import JAVA_OPTIONS, KafkaMember
from tests.support.links import BrokerDoor, ZooKeeperWays
from tests.support.patience import EVENT_S, wait_until
from tests.support.ports import free_ports
from tests.support.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

SESSION_S = 3.0
"""How long a broker may be silent before the others take it to be gone."""
PATIENT = {"zookeeper.session.timeout.ms": "18000"}
"""Properties of brokers whose sessions are to outlast what happens, also on a busy machine."""
_PROPERTIES = {
    "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000)),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "replica.fetch.backoff.ms": "200",
    "controlled.shutdown.retry.backoff.ms": "1000",
}

_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Cluster")


class Cluster:
    """Brokers by their ids, from 1 on, started in that order; a context manager."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        properties: Mapping[str, str] | None = None,
        kafka: Collection[int] = (),
        links: bool = False,
        ensemble: bool = False,
        java_options: Sequence[str] = JAVA_OPTIONS,
    ) -> None:
        """`kafka`: those that are Apache Kafka's, with `java_options`; may be changed while they
        are down. `links`: all connections go through `doors` and `ways`, which can lose them; of
        ours alone. `ensemble`: over three servers of ZooKeeper."""
        self.directory = directory
        self.properties = {**_PROPERTIES, **(properties or {})}
        self.zookeeper = ZooKeeperEnsemble() if ensemble else ZooKeeperServer()
        self.kafka = set(kafka)
        self._java_options = java_options
        self.brokers: dict[int, BrokerChild | KafkaMember] = {}
        self._has_links = links
        self.doors: dict[int, BrokerDoor] = {}
        self.ways: dict[int, ZooKeeperWays] = {}
        self._ports: dict[int, int] = {}
        self._wanted = range(1, brokers + 1)
        self._admin: KafkaAdminClient | None = None

    def __enter__(self: _Self) -> _Self:
        try:
            self.zookeeper.start()
            for node_id in self._wanted:
                self.start(node_id)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for node_id, broker in self.brokers.items():
                print(f"--- broker {node_id}\n{broker.stderr()[-8000:]}")
        self.close()

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
        for broker in self.brokers.values():
            broker.close()
        self.zookeeper.close()
        for door in self.doors.values():
            door.__exit__()
        for ways in self.ways.values():
            ways.close()

    # Brokers.

    def properties_of(self, node_id: int) -> dict[str, str]:
        properties = {
            **self.properties,
            "broker.id": str(node_id),
            "zookeeper.connect": f"{self.zookeeper.address}/cluster",
        }
        if self._has_links:
            if node_id not in self.doors:
                self.doors[node_id] = BrokerDoor(self._ports[node_id])
                self.ways[node_id] = ZooKeeperWays(self.zookeeper.ports)
            door, way = self.doors[node_id], self.ways[node_id]
            properties["advertised.listeners"] = f"PLAINTEXT://{door.address}"
            properties["zookeeper.connect"] = f"{way.address}/cluster"
        return properties

    def module_of(self, node_id: int) -> str:
        """What starts one of ours, with its own arguments."""
        return "broker"

    def data_dir(self, node_id: int) -> Path:
        return self.directory / str(node_id)

    def data_dirs(self, node_id: int) -> list[Path]:
        """Where its logs may be."""
        return [self.data_dir(node_id)]

    def start(self, node_id: int) -> BrokerChild | KafkaMember:
        """At its first start on a free port, then on the same."""
        if self._has_links and node_id not in self._ports:
            # It is reached by its door from the beginning: its controller has much to say to it
            # before it says that it is ready.
            (self._ports[node_id],) = free_ports(1)
        where = self.data_dir(node_id), self.properties_of(node_id), self._ports.get(node_id, 0)
        broker: BrokerChild | KafkaMember
        if node_id in self.kafka:
            self._wait_unregistered(node_id)
            broker = self.brokers[node_id] = KafkaMember(*where, self._java_options)
            broker.wait()
        else:
            broker = BrokerChild(*where, module=self.module_of(node_id))
        self._ports[node_id] = broker.port
        self.brokers[node_id] = broker
        return broker

    def _wait_unregistered(self, node_id: int) -> None:
        """Apache Kafka's gives up where the session of its life before goes on."""
        client = KazooClient(self.zookeeper.address)
        client.start()
        try:
            path = f"/cluster/brokers/ids/{node_id}"
            wait_until(lambda: client.exists(path) is None, f"{path} is gone", pause_s=0.05)
        finally:
            client.stop()
            client.close()

    def kill(self, node_id: int) -> None:
        """SIGKILL."""
        self.brokers.pop(node_id).kill()

    def stop(self, node_id: int) -> None:
        """SIGTERM, and its end."""
        assert self.brokers.pop(node_id).stop() == 0

    @property
    def bootstrap(self) -> list[str]:
        """Of all brokers that were ever started."""
        if self._has_links:
            return [door.address for door in self.doors.values()]
        return [f"127.0.0.1:{port}" for port in self._ports.values()]

    # What clients are told.

    @property
    def admin(self) -> KafkaAdminClient:
        if self._admin is None:
            self._admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        return self._admin

    def ask(self, question: Callable[[KafkaAdminClient], _T]) -> _T:
        """The admin's answer; asked again as by `patiently`."""

        def once() -> _T:
            try:
                return question(self.admin)
            except UnknownBrokerIdError:  # it asks for no newer metadata then
                self.admin.close()
                self._admin = None
                raise

        return patiently(once)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 3,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        topic = NewTopic(name, partitions, replicas, topic_configs=dict(configs or {}))
        with suppress(TopicAlreadyExistsError):  # an answer was lost
            self.ask(lambda admin: admin.create_topics([topic]))

    def place_topic(
        self,
        name: str,
        replicas: Mapping[int, Sequence[Any]],
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates it with these replicas of each partition."""
        placed = {partition: list(nodes) for partition, nodes in replicas.items()}
        topic = {name: {"assignments": placed, "configs": dict(configs or {})}}
        with suppress(TopicAlreadyExistsError):  # an answer was lost
            self.ask(lambda admin: admin.create_topics(topic))

    def delete_topic(self, name: str) -> None:
        def delete(admin: KafkaAdminClient) -> None:
            with suppress(UnknownTopicOrPartitionError):  # an answer was lost
                admin.delete_topics([name])

        self.ask(delete)

    def partitions(self, topic: str) -> list[Any]:
        """As a broker that is there describes them, in their order. One that has not heard of the
        topic is asked again."""

        def describe(admin: KafkaAdminClient) -> dict[str, Any]:
            described = admin.describe_topics([topic])
            if not described:
                raise LeaderNotAvailableError("a broker that knows of nobody was asked")
            if described[0]["error_code"]:
                raise for_code(described[0]["error_code"])(topic)
            return dict(described[0])

        described = self.ask(describe)
        return sorted(described["partitions"], key=lambda each: each["partition_index"])

    @property
    def controller_id(self) -> int:
        return int(self.ask(KafkaAdminClient.describe_cluster)["controller_id"])

    def ours(self, node_id: int) -> BrokerChild:
        """One that is not Apache Kafka's."""
        broker = self.brokers[node_id]
        assert isinstance(broker, BrokerChild)
        return broker

    def leader(self, topic: str, partition: int = 0) -> int:
        """-1 where nobody leads it."""
        return int(self.partitions(topic)[partition]["leader_id"])

    def wait_led(self, topic: str, partition: int = 0, not_by: int = -1) -> int:
        """Who leads it, as soon as that is somebody (else)."""

        def led() -> int:
            leader = self.leader(topic, partition)
            return leader if leader not in (-1, not_by) else 0

        return wait_until(led, f"a leader of {topic}-{partition}", pause_s=0.05)

    def offsets(
        self, topic: str, spec: OffsetSpec, partitions: int = 1
    ) -> dict[TopicPartition, int]:
        """Of each partition, as its leader says. Not asked by a consumer: that of kafka-python 3.0
        asks the same brokers again, also of what another leads by now."""
        wanted = {TopicPartition(topic, index): spec for index in range(partitions)}
        found = self.ask(lambda admin: admin.list_partition_offsets(wanted))
        return {place: int(at.offset) for place, at in found.items()}

    def wait_in_sync(self, topic: str, replicas: int = 3) -> None:
        """Until every partition has so many replicas in sync."""

        def is_in_sync() -> bool:
            return all(len(each["isr_nodes"]) == replicas for each in self.partitions(topic))

        wait_until(is_in_sync, lambda: self.partitions(topic), pause_s=0.05)

    def move(self, replicas: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        """Begins to, of partitions that may be moved now; None: back. Raises KafkaError."""
        self.admin.alter_partition_reassignments(
            {TopicPartition(*place): nodes for place, nodes in replicas.items()}
        )

    def wait_moved(self) -> None:
        def ongoing() -> dict[TopicPartition, Any]:
            return dict(self.ask(KafkaAdminClient.list_partition_reassignments))

        wait_until(lambda: not ongoing(), ongoing, pause_s=0.1)

    def elect_preferred(self) -> None:
        """Of all partitions, as far as may be. Raises KafkaError."""
        self.admin.elect_leaders(0, raise_errors=False)

    # What lies on the disks.

    def log_bytes(self, node_id: int, topic: str, partition: int = 0) -> bytes:
        """All segments of a replica, which has one at least."""
        name = f"{topic}-{partition}"
        segments = sorted(
            path for each in self.data_dirs(node_id) for path in each.glob(f"{name}/*.log")
        )
        assert segments, f"broker {node_id} has no log of {topic}-{partition}"
        return b"".join(path.read_bytes() for path in segments)

    def wait_equal_logs(self, topic: str, partitions: int = 1) -> None:
        """Until all replicas are equal, byte by byte."""
        described = self.partitions(topic)
        for partition in range(partitions):
            nodes = described[partition]["replica_nodes"]

            def digests(partition: int = partition, nodes: Sequence[int] = nodes) -> set[str]:
                return {
                    hashlib.sha256(self.log_bytes(node_id, topic, partition)).hexdigest()
                    for node_id in nodes
                }

            wait_until(
                lambda digests=digests: len(digests()) == 1,
                f"equal logs of {topic}-{partition}",
                pause_s=0.1,
            )


def patiently(ask: Callable[[], _T]) -> _T:
    """What is asked in the middle of a failover may find nobody, and is asked again."""
    deadline = time.monotonic() + EVENT_S
    while True:
        try:
            return ask()
        except TopicAlreadyExistsError:
            raise
        except (KafkaError, RuntimeError):  # the latter where there is no controller, just now
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
