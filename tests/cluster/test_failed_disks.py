"""Disks that refuse: the replicas on them are offline until their brokers are started again, and
others lead and are in sync."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaStorageError

from tests.cluster.producing import Producing, check
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.full_disk import lift_limit, limit_files_to
from tests.support.kafka_member import require_kafka_with_zookeeper
from tests.support.patience import wait_until
from tests.support.records import batch_of


def filled(cluster: Cluster, topic: str) -> None:
    """Three partitions, each led by another broker, of more bytes than the limit."""
    cluster.create_topic(topic, 3)
    with KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for number in range(90):
            producer.send(topic, b"%d" % (number - 90) + b" " * 2000, partition=number % 3)
    cluster.wait_in_sync(topic)


def lose_disk(cluster: Cluster, topic: str, node_id: int) -> None:
    broker = cluster.ours(node_id)
    limit_files_to(broker, 30_000)

    def is_out() -> bool:
        return all(
            part.leader_id not in (-1, node_id)
            and node_id not in part.isr_nodes
            and part.offline_replicas == [node_id]
            for part in told_by_all(cluster, topic)
        )

    wait_until(is_out, lambda: cluster.partitions(topic), pause_s=0.05)
    lift_limit(broker)


def told_by_all(cluster: Cluster, topic: str) -> Iterator[Any]:
    """The topic's partitions, as each broker has heard of them."""
    for broker in cluster.brokers.values():
        with RawClient(broker.host, broker.port) as client:
            yield from client.metadata_of(topic).partitions


def is_offline(cluster: Cluster, topic: str, node_id: int) -> bool:
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        codes = {client.produce(topic, index, batch_of(1)).error_code for index in range(3)}
    return codes == {KafkaStorageError.errno}


def lose_and_come_back(cluster: Cluster, node_id: int) -> None:
    filled(cluster, "t")
    with Producing(cluster, "t", 3) as producing:
        producing.wait_for(60)
        lose_disk(cluster, "t", node_id)
        producing.wait_for(60)
        # Also now that it takes what is written: what it has missed is not its own to know.
        assert is_offline(cluster, "t", node_id)
        cluster.create_topic("new", 3)
        cluster.wait_in_sync("new")
        cluster.stop(node_id)
        cluster.start(node_id)
        cluster.wait_in_sync("t")
        wait_until(
            lambda: not any(each.offline_replicas for each in told_by_all(cluster, "t")),
            "all have heard that it is back",
        )
        producing.wait_for(60)
    check(cluster, producing, "t", 3)


@pytest.mark.slow
@pytest.mark.parametrize("is_controller", [True, pytest.param(False, marks=pytest.mark.long)])
def test_others_lead_and_are_in_sync_where_a_disk_fails(
    tmp_path: Path, is_controller: bool
) -> None:
    with Cluster(tmp_path) as cluster:
        controller = cluster.controller_id
        others = cluster.brokers.keys() - {controller}
        lose_and_come_back(cluster, controller if is_controller else min(others))
        if not is_controller:
            assert cluster.controller_id == controller


@pytest.mark.interop
@pytest.mark.long
def test_apache_kafkas_controller_is_told_of_a_disk_that_fails(tmp_path: Path) -> None:
    require_kafka_with_zookeeper()
    with Cluster(tmp_path, kafka={1}) as cluster:
        assert cluster.controller_id == 1
        lose_and_come_back(cluster, 2)


class TwoDirectories(Cluster):
    """Of broker 2, the second of which can be lost."""

    def properties_of(self, node_id: int) -> dict[str, str]:
        directories = ",".join(map(str, self.data_dirs(node_id)))
        return {**super().properties_of(node_id), "log.dirs": directories}

    def data_dirs(self, node_id: int) -> list[Path]:
        more = [self.directory / "2.second"] if node_id == 2 else []
        return [*super().data_dirs(node_id), *more]

    def lose_directory(self) -> set[int]:
        """The partitions of `t` that are there."""
        second = self.data_dirs(2)[1]
        aside = self.directory / "aside"
        second.rename(aside)
        second.write_text("no directory")
        return {int(path.name.removeprefix("t-")) for path in aside.glob("t-*")}

    def bring_directory_back(self) -> None:
        second = self.data_dirs(2)[1]
        second.unlink()
        (self.directory / "aside").rename(second)


def wait_without(cluster: Cluster, lost: set[Any]) -> None:
    """All brokers say of these partitions of `t` that others do without broker 2's replicas."""

    def is_so() -> bool:
        return all(
            part.leader_id not in (-1, 2)
            and 2 not in part.isr_nodes
            and part.offline_replicas == [2]
            if part.partition_index in lost
            else 2 in part.isr_nodes and part.offline_replicas == []
            for part in told_by_all(cluster, "t")
        )

    wait_until(is_so, lambda: [*told_by_all(cluster, "t")], pause_s=0.1)


@pytest.mark.parametrize(
    "kafka",
    [
        pytest.param(set(), id="ours"),
        pytest.param({1}, id="Kafka's controller", marks=[pytest.mark.interop, pytest.mark.long]),
        pytest.param({2}, id="Kafka's broker", marks=[pytest.mark.interop, pytest.mark.long]),
    ],
)
def test_a_broker_goes_on_with_the_directory_that_it_has_left(
    tmp_path: Path, kafka: set[int]
) -> None:
    """Also after it is started again without the other; in the end it has both."""
    if kafka:
        require_kafka_with_zookeeper()
    soon = {"replica.high.watermark.checkpoint.interval.ms": "500"}
    with TwoDirectories(tmp_path, kafka=kafka, properties=soon) as cluster:
        assert cluster.controller_id == 1
        cluster.create_topic("t", 4)
        cluster.wait_in_sync("t")
        with Producing(cluster, "t", 4) as producing:
            producing.wait_for()
            lost = cluster.lose_directory()
            assert len(lost) == 2
            wait_without(cluster, lost)
            producing.wait_for()
            cluster.stop(2)
            cluster.start(2)
            wait_without(cluster, lost)
            cluster.create_topic("new", 2)
            cluster.wait_in_sync("new")
            producing.wait_for()
            cluster.stop(2)
            cluster.bring_directory_back()
            cluster.start(2)
            cluster.wait_in_sync("t")
            wait_without(cluster, set())
        check(cluster, producing, "t", 4)
