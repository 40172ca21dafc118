"""Replicas of one cluster that move to other brokers, while producers and consumers go on."""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import OffsetSpec
from kafka.errors import (
    NoReassignmentInProgressError,
    NotControllerError,
    NotLeaderForPartitionError,
)
from kafka.protocol import admin
from kafka.structs import TopicPartition
from kazoo.client import KazooClient

from tests.cluster.producing import Producing, read
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.patience import wait_until
from tests.support.records import batch_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        yield started


def create(cluster: Cluster, topic: str, *assignment: tuple[int, int]) -> None:
    """With these replicas of its partitions."""
    replicas = {index: list(nodes) for index, nodes in enumerate(assignment)}
    cluster.place_topic(topic, replicas)
    for partition, nodes in replicas.items():
        wait_until(
            lambda partition=partition, nodes=nodes: placed(cluster, topic, partition) == nodes,
            "it is there",
        )


def placed(cluster: Cluster, topic: str, partition: int) -> list[Any]:
    return list(cluster.partitions(topic)[partition]["replica_nodes"])


def ask(cluster: Cluster, node_id: int, request: Any, response_class: Any) -> Any:
    """A broker, and none that is frozen."""
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        return client.call(request, response_class, 0)


def move(
    cluster: Cluster, controller: int, targets: Mapping[tuple[str, int], Sequence[int] | None]
) -> list[Any]:
    """By topic and partition; None: back. What was refused."""
    topic_class = admin.AlterPartitionReassignmentsRequest.ReassignableTopic
    request = admin.AlterPartitionReassignmentsRequest(
        timeout_ms=1000,
        topics=[
            topic_class(
                name=name,
                partitions=[
                    topic_class.ReassignablePartition(partition_index=index, replicas=nodes)
                ],
            )
            for (name, index), nodes in targets.items()
        ],
    )
    response = ask(cluster, controller, request, admin.AlterPartitionReassignmentsResponse)
    codes = [part.error_code for topic in response.responses for part in topic.partitions]
    return [code for code in (response.error_code, *codes) if code]


def under_way(cluster: Cluster, controller: int) -> dict[Any, Any]:
    """Replicas, those that are added, and those that are removed."""
    request = admin.ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None)
    response = ask(cluster, controller, request, admin.ListPartitionReassignmentsResponse)
    assert not response.error_code
    return {
        (topic.name, each.partition_index): (
            each.replicas,
            each.adding_replicas,
            each.removing_replicas,
        )
        for topic in response.topics
        for each in topic.partitions
    }


def wait_moved(cluster: Cluster, targets: Mapping[tuple[str, int], Sequence[int]]) -> None:
    for (topic, partition), nodes in targets.items():
        wait_until(
            lambda topic=topic, partition=partition, nodes=nodes: (
                placed(cluster, topic, partition) == nodes
            ),
            lambda: cluster.partitions("t"),
            pause_s=0.05,
        )


@contextmanager
def frozen(cluster: Cluster, node_id: int) -> Iterator[None]:
    """Not for as long as its session."""
    pid = cluster.ours(node_id).process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def check(
    cluster: Cluster,
    producing: Producing,
    topic: str,
    targets: Mapping[tuple[str, int], Sequence[int]],
) -> None:
    """Nothing lost, and equal logs where they are to be and nowhere else."""
    partitions = len(targets)
    found = read(cluster, topic, partitions)
    assert producing.acknowledged.items() <= found.items()
    assert not producing.errors
    for (_, partition), nodes in targets.items():
        wait_until(
            lambda partition=partition, nodes=nodes: (
                len({cluster.log_bytes(node_id, topic, partition) for node_id in nodes}) == 1
            ),
            "equal logs",
            pause_s=0.1,
        )
        for node_id in cluster.brokers.keys() - nodes:
            folder = cluster.data_dir(node_id) / f"{topic}-{partition}"
            wait_until(lambda folder=folder: not Path.exists(folder), folder)


def test_no_record_is_lost_while_replicas_move_and_move_again(cluster: Cluster) -> None:
    create(cluster, "t", (1, 2), (2, 3))
    with Producing(cluster, "t", 2) as producing:
        producing.wait_for()
        for targets in (
            {("t", 0): [3, 1], ("t", 1): [1, 2]},
            {("t", 0): [2, 3], ("t", 1): [3]},
            {("t", 0): [3, 2, 1], ("t", 1): [2, 1]},
        ):
            assert not move(cluster, cluster.controller_id, targets)
            wait_moved(cluster, targets)
            producing.wait_for()
    check(cluster, producing, "t", targets)


@pytest.mark.slow
def test_the_next_controller_goes_on_with_a_move(cluster: Cluster) -> None:
    controller = cluster.controller_id
    stays, added = cluster.brokers.keys() - {controller}
    create(cluster, "t", (stays, controller))
    targets = {("t", 0): [added, stays]}
    with Producing(cluster, "t") as producing:
        producing.wait_for()
        with frozen(cluster, added):
            assert not move(cluster, controller, targets)
            cluster.kill(controller)
        wait_moved(cluster, targets)
        producing.wait_for()
    check(cluster, producing, "t", targets)
    cluster.start(controller)


@pytest.mark.long
def test_a_move_is_taken_back_and_asked_for_by_a_node(cluster: Cluster) -> None:
    controller = cluster.controller_id
    stays, added = cluster.brokers.keys() - {controller}
    create(cluster, "t", (stays, controller))
    place = ("t", 0)
    assert move(cluster, controller, {place: None}) == [NoReassignmentInProgressError.errno]
    assert move(cluster, stays, {place: [added]}) == [NotControllerError.errno]
    with frozen(cluster, added):
        assert not move(cluster, controller, {place: [added]})
        all_of_them = [added, stays, controller]
        assert under_way(cluster, controller) == {
            place: (all_of_them, [added], [stays, controller])
        }
        assert not move(cluster, controller, {place: None})
        assert not under_way(cluster, controller)
    # The one that was frozen may be asked, before it has heard.
    wait_moved(cluster, {place: [stays, controller]})
    asked = {"topic": "t", "partition": 0, "replicas": [added, controller]}
    path = "/admin/reassign_partitions"
    foreign = KazooClient(f"{cluster.zookeeper.address}/cluster")
    foreign.start()
    try:
        foreign.create(path, json.dumps({"version": 1, "partitions": [asked]}).encode())
        wait_until(lambda: not foreign.exists(path), "it is done", pause_s=0.05)
        state, _ = foreign.get("/brokers/topics/t")
    finally:
        foreign.stop()
        foreign.close()
    assert json.loads(state)["partitions"] == {"0": [added, controller]}
    assert placed(cluster, "t", 0) == [added, controller]


@pytest.mark.slow
def test_a_leader_that_was_frozen_while_its_replica_moved_away_takes_nothing_for_it(
    cluster: Cluster,
) -> None:
    """Nobody could tell it to stop, and clients may still take it for the leader."""
    controller = cluster.controller_id
    stays, frozen_one = cluster.brokers.keys() - {controller}
    create(cluster, "t", (frozen_one, stays))
    create(cluster, "other", (frozen_one, stays))
    wait_until(lambda: append(cluster, frozen_one) == 0, "it leads")
    with frozen(cluster, frozen_one):
        wait_until(lambda: led_by(cluster, controller) == stays, "another leads", pause_s=0.1)
        assert not move(cluster, controller, {("t", 0): [stays, controller]})
        wait_until(lambda: not under_way(cluster, controller), "it is done", pause_s=0.1)
    cluster.wait_in_sync("other", 2)
    assert append(cluster, frozen_one) == NotLeaderForPartitionError.errno
    assert append(cluster, stays) == 0


def append(cluster: Cluster, node_id: int) -> int:
    """To `t`, whether replicas have it or not."""
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        return client.produce("t", 0, batch_of(1), acks=1).error_code


def led_by(cluster: Cluster, node_id: int) -> int:
    """Who leads `t`, as that broker has heard."""
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        (partition,) = client.metadata_of("t").partitions
        return int(partition.leader_id)


@pytest.mark.long
def test_replicas_move_while_brokers_are_restarted_and_logs_begin_above_0(cluster: Cluster) -> None:
    """Scenario 53: what was deleted comes back nowhere, what was acknowledged is everywhere."""
    create(cluster, "t", (1, 2), (2, 1))
    start = 20
    places = [TopicPartition("t", index) for index in range(2)]
    with Producing(cluster, "t", 2) as producing:
        producing.wait_for(60)
        cluster.ask(lambda client: client.delete_records(dict.fromkeys(places, start)))
        # From those that have the whole logs to one that has not, and from that to all.
        for targets in (
            {("t", 0): [3], ("t", 1): [3]},
            {("t", 0): [3, 2, 1], ("t", 1): [1, 3, 2]},
        ):
            assert not move(cluster, cluster.controller_id, targets)
            for node_id, lose in ((3, Cluster.kill), (1, Cluster.stop), (2, Cluster.kill)):
                lose(cluster, node_id)
                cluster.start(node_id)
            wait_moved(cluster, targets)
            producing.wait_for()
    cluster.wait_in_sync("t")
    cluster.elect_preferred()
    for (_, partition), (leader, *_) in targets.items():
        wait_until(
            lambda partition=partition, leader=leader: cluster.leader("t", partition) == leader,
            "it leads",
        )
    found = read(cluster, "t", 2)
    kept = {place: value for place, value in producing.acknowledged.items() if place[1] >= start}
    assert kept.items() <= found.items()
    assert not producing.errors
    assert min(offset for _, offset in found) == start
    assert cluster.offsets("t", OffsetSpec.EARLIEST, 2) == dict.fromkeys(places, start)
    for partition in range(2):

        def are_equal(partition: int = partition) -> bool:
            """A broker that was away when its replica was removed had one still when it was added,
            with what lies before the start."""
            logs = [cluster.log_bytes(node_id, "t", partition) for node_id in cluster.brokers]
            shortest = min(logs, key=len)
            return all(log.endswith(shortest) for log in logs)

        wait_until(are_equal, f"equal logs of t-{partition}", pause_s=0.1)
