"""One cluster of our brokers and of Apache Kafka's 3.9: each takes over what the other did.

The broker that is started first is the controller.
"""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from kafka import KafkaProducer
from kafka.admin import ConfigResourceType
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from broker.coordinator.state_topic import java_hash_magnitude
from tests.broker.api.config_client import SET, altered
from tests.cluster.producing import Producing, check
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.kafka_member import require_kafka_with_zookeeper
from tests.support.patience import wait_until
from tests.support.present import present
from tests.support.transactions import PARTITIONS, Transactions, read_committed

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Lose = Callable[[Cluster, int], None]

BY_KAFKA, BY_OURS = {1}, {3}
"""Which brokers are Apache Kafka's: then the first controller is, or is one of ours."""
CONTROLLERS = pytest.mark.parametrize(
    "kafka", [BY_KAFKA, BY_OURS], ids=["Kafka's controller", "our controller"]
)
FIRST = pytest.param(BY_KAFKA, Cluster.kill, id="Kafka's controller-killed")
OTHERS = [
    pytest.param(BY_OURS, Cluster.stop, id="our controller-stopped", marks=pytest.mark.long),
    pytest.param(BY_OURS, Cluster.kill, id="our controller-killed", marks=pytest.mark.long),
    pytest.param({2, 3}, Cluster.kill, id="two of Kafka's-killed", marks=pytest.mark.long),
    pytest.param({1, 2}, Cluster.stop, id="two of Kafka's-stopped", marks=pytest.mark.long),
]
PAIRS = pytest.mark.parametrize(("kafka", "lose"), [FIRST, *OTHERS])


@pytest.fixture
def cluster(tmp_path: Path, kafka: set[int]) -> Iterator[Cluster]:
    require_kafka_with_zookeeper()
    with Cluster(tmp_path, kafka=kafka) as started:
        yield started


@PAIRS
def test_leaders_followers_and_controllers_are_lost_in_turn(cluster: Cluster, lose: Lose) -> None:
    """Each broker leads one partition and follows in two."""
    cluster.create_topic("t", 3)
    with Producing(cluster, "t", 3) as producing:
        for node_id in (1, 2, 3):
            producing.wait_for()
            lose(cluster, node_id)
            producing.wait_for()
            cluster.start(node_id)
            cluster.wait_in_sync("t")
        producing.wait_for()
    check(cluster, producing, "t", 3)


def name_kept_by(cluster: Cluster, topic: str, node_id: int) -> tuple[int, str]:
    """One of a group or transaction whose coordinator is that broker, for as long as it is there:
    it is the preferred leader."""
    (partition,) = [
        index
        for index, state in enumerate(cluster.partitions(topic))
        if state["replica_nodes"][0] == node_id == state["leader_id"]
    ]
    names = (f"name-{number}" for number in count())
    return partition, next(
        name for name in names if java_hash_magnitude(name) % PARTITIONS == partition
    )


def lose_coordinators(cluster: Cluster, lose: Lose, topic: str, partition: int) -> Iterator[None]:
    """Apache Kafka's, then ours that follows it, then Apache Kafka's that follows that: yields when
    each is lost."""
    kinds = []
    for _ in range(3):
        coordinator = cluster.leader(topic, partition)
        kinds.append("Kafka's" if coordinator in cluster.kafka else "ours")
        lose(cluster, coordinator)
        yield
        cluster.start(coordinator)
        for each in ("t", topic):
            cluster.wait_in_sync(each)
    assert kinds == ["Kafka's", "ours", "Kafka's"] or len(cluster.kafka) > 1, kinds


@pytest.mark.long
@PAIRS
def test_transactions_outlive_their_coordinators(cluster: Cluster, lose: Lose) -> None:
    """Those of one kind end what those of the other have begun, by markers to both."""
    cluster.create_topic("t", PARTITIONS)
    Transactions(cluster, "first")
    partition, name = name_kept_by(cluster, "__transaction_state", min(cluster.kafka))
    transactions = Transactions(cluster, name)
    transactions.begin()
    for _ in lose_coordinators(cluster, lose, "__transaction_state", partition):
        transactions.produce()
        transactions.commit()
        transactions.begin()
        transactions.flush()
        transactions.abort()
        transactions.begin()
    transactions.commit()
    assert sorted(read_committed(cluster, len(transactions.committed))) == transactions.committed
    for topic in ("t", "__transaction_state"):
        cluster.wait_equal_logs(topic, PARTITIONS)


class Member(threading.Thread):
    """Of a group that reads `t` and commits each record; a context manager."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        super().__init__()
        self.read: list[tuple[int | None, int | None]] = []
        self.assignments = 0
        self._is_over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": ",".join(cluster.bootstrap),
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(["t"], on_assign=self._assigned)

    def _assigned(self, *_: object) -> None:
        self.assignments += 1

    def __enter__(self) -> "Member":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            self.read.append((message.partition(), message.offset()))
            try:
                self._consumer.commit(message=message, asynchronous=False)
            except KafkaException:
                continue  # its coordinator was lost: the next one says more
        self._consumer.close()


@pytest.mark.long
@PAIRS
def test_members_stay_in_their_group_when_its_coordinator_is_lost(
    cluster: Cluster, lose: Lose
) -> None:
    cluster.create_topic("t", PARTITIONS)
    with Producing(cluster, "t", PARTITIONS) as producing:
        with Member(cluster, "first") as member:
            wait_until(lambda: member.read, "a member has read")
        partition, group = name_kept_by(cluster, "__consumer_offsets", min(cluster.kafka))
        with Member(cluster, group) as one, Member(cluster, group) as other:
            members = [one, other]
            wait_until(lambda: all(each.read for each in members), "both have read", pause_s=0.1)
            assignments = [each.assignments for each in members]
            for _ in lose_coordinators(cluster, lose, "__consumer_offsets", partition):
                for member in members:
                    enough = len(member.read) + 20
                    wait_until(lambda: len(member.read) >= enough, "it reads on")  # noqa: B023
            producing.stop()
            everything = producing.acknowledged.keys()
            wait_until(lambda: everything <= {*one.read, *other.read}, "all is read", pause_s=0.1)
            assert [each.assignments for each in members] == assignments
    for topic in ("t", "__consumer_offsets"):
        cluster.wait_equal_logs(topic, PARTITIONS)


@CONTROLLERS
def test_what_brokers_have_the_controller_do(cluster: Cluster) -> None:
    """Topics that are made when they are asked for, and producer ids."""
    seen = []
    for broker in cluster.brokers.values():
        name = f"asked-of-{broker.port}"
        with RawClient(broker.host, broker.port) as client:
            wanted = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name)],
                allow_auto_topic_creation=True,
            )
            client.call(wanted, MetadataResponse, 12)
            wait_until(lambda: cluster.partitions(name), f"there is {name}")  # noqa: B023
            cluster.wait_led(name)
            for _ in range(3):
                init = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
                told = wait_until(
                    lambda: answered(client.call(init, InitProducerIdResponse, 4)),  # noqa: B023
                    "a producer id",
                )
                seen.append(present(told).producer_id)
    assert len(set(seen)) == len(seen)


def answered(response: Any) -> Any | None:
    return response if response.error_code == 0 else None


@pytest.mark.long
@pytest.mark.parametrize(
    "kafka",
    [pytest.param(BY_KAFKA, id="Kafka's controller"), pytest.param(BY_OURS, id="our controller")],
)
def test_segments_may_be_as_small_as_apache_kafka_3_9_lets_them_be(cluster: Cluster) -> None:
    """A Kafka broker takes no more than a segment at once, and follows no more where it is sent
    that: also where segments were larger before."""
    cluster.create_topic("t", 3, configs={"segment.bytes": "2000"})
    with Producing(cluster, "t", 3) as producing:
        producing.wait_for(200)
    check(cluster, producing, "t", 3)
    for partition in range(3):
        found = [segments(cluster, node_id, "t", partition) for node_id in cluster.brokers]
        assert found[0] == found[1] == found[2]
        assert len(found[0]) > 1
        assert max(found[0].values()) <= 2000
    cluster.create_topic("larger", 3)
    (kafka,) = cluster.kafka
    cluster.stop(kafka)
    with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for number in range(300):
            producer.send("larger", b"%d" % number * 1000, partition=number % 3)
    with RawClient(cluster.brokers[2].host, cluster.brokers[2].port) as client:
        smaller = [("segment.bytes", SET, "50000")]
        assert altered(client, ConfigResourceType.TOPIC, "larger", smaller) == (0, None)
    cluster.start(kafka)
    cluster.wait_in_sync("larger")
    cluster.wait_equal_logs("larger", 3)


def segments(cluster: Cluster, node_id: int, topic: str, partition: int) -> dict[Any, Any]:
    """Their sizes."""
    folder = cluster.data_dir(node_id) / f"{topic}-{partition}"
    return {path.name: path.stat().st_size for path in folder.glob("*.log")}


@pytest.mark.long
@pytest.mark.parametrize("kafka", [BY_KAFKA])
@pytest.mark.parametrize("lose", [Cluster.kill, Cluster.stop], ids=["killed", "stopped"])
def test_a_broker_of_the_other_kind_goes_on_with_a_data_directory(
    cluster: Cluster, lose: Callable[[Cluster, int], None]
) -> None:
    """And the first kind with what that has written."""
    cluster.create_topic("t", 3)
    cluster.create_topic("plain", 3)
    transactions = Transactions(cluster, "x")
    with Producing(cluster, "plain", 3) as producing:
        for node_id in (1, 2, 1, 2):
            producing.wait_for(100)
            transactions.begin()
            transactions.flush()
            lose(cluster, node_id)
            cluster.kafka ^= {node_id}
            cluster.start(node_id)
            transactions.abort()
            for topic in ("t", "plain"):
                cluster.wait_in_sync(topic)
        producing.wait_for(100)
    check(cluster, producing, "plain", 3)
    for topic in ("t", "__transaction_state"):
        cluster.wait_equal_logs(topic, PARTITIONS)
