"""What is written to ZooKeeper by each event of a cluster, beside what Apache Kafka's write.

The same happens in a cluster of ours and in one of Apache Kafka 3.9.1; ZooKeeper's transaction logs
tell what was written, in which order. Where ours writes something else, DIFFERENCES says so.
"""

import json
import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import NewPartitions, NewTopic
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse
from kafka.structs import TopicPartition
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.broker.api.config_client import DELETE, SET, altered
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.kafka_member import require_kafka_with_zookeeper
from tests.support.links import ZooKeeperWays
from tests.support.patience import wait_until
from tests.support.records import batch_of
from tests.support.zookeeper import ZooKeeperServer, expire
from tests.support.zookeeper_log import Transaction, Write, transactions

pytestmark = [pytest.mark.interop, pytest.mark.long]

PROPERTIES = {
    "zookeeper.session.timeout.ms": "30000",  # sessions end when the test says so
    "replica.lag.time.max.ms": "6000",
    "auto.leader.rebalance.enable": "false",
    "min.insync.replicas": "1",
}
TOPIC, BROKER = 2, 4


class WatchedCluster(Cluster):
    """Of which every write is known, and sessions end with their brokers."""

    def properties_of(self, node_id: int) -> dict[str, str]:
        if node_id not in self.ways:
            self.ways[node_id] = ZooKeeperWays(self.zookeeper.ports)
        way = self.ways[node_id]
        return {
            **super().properties_of(node_id),
            "zookeeper.connect": f"{way.address}/cluster",
        }

    def __enter__(self) -> "WatchedCluster":
        super().__enter__()
        self.tree = KazooClient(f"{self.zookeeper.address}/cluster")
        self.tree.start()
        self._seen_zxid = 0
        return self

    def close(self) -> None:
        if hasattr(self, "tree"):
            self.tree.stop()
            self.tree.close()
        super().close()

    def kill(self, node_id: int) -> None:
        super().kill(node_id)
        expire(self.zookeeper.address, self.ways[node_id].session)

    def client(self, node_id: int) -> RawClient:
        broker = self.brokers[node_id]
        return RawClient(broker.host, broker.port)

    def freeze(self, node_id: int) -> None:
        os.kill(self.brokers[node_id].pid, signal.SIGSTOP)

    def thaw(self, node_id: int) -> None:
        os.kill(self.brokers[node_id].pid, signal.SIGCONT)

    def written(self) -> list[Transaction]:
        """Since this was asked last."""
        assert isinstance(self.zookeeper, ZooKeeperServer)
        everything = transactions(self.zookeeper.data_dir)
        new = [each for each in everything if each.zxid > self._seen_zxid]
        self._seen_zxid = max((each.zxid for each in new), default=self._seen_zxid)
        return new

    def node(self, path: str) -> dict[str, Any]:
        """Nothing where there is none."""
        try:
            value, _ = self.tree.get(path)
        except NoNodeError:
            return {}
        return dict(json.loads(value or b"{}"))

    def wait_for_node(self, path: str, **expected: object) -> None:
        def is_so() -> bool:
            return expected.items() <= self.node(path).items()

        wait_until(is_so, lambda: (path, expected, self.node(path)), pause_s=0.02)

    def wait_for_state(self, topic: str, partition: int = 0, **expected: object) -> None:
        self.wait_for_node(f"/brokers/topics/{topic}/partitions/{partition}/state", **expected)

    def wait_gone(self, path: str) -> None:
        wait_until(lambda: not self.tree.exists(path), f"{path} is gone", pause_s=0.02)

    def wait_for_version(self, path: str, version: int) -> None:
        wait_until(lambda: self.tree.exists(path).version >= version, path, pause_s=0.02)

    def create(self, topic: str, assignments: dict[int, list[int]]) -> None:
        """Returns when all that are in sync have fetched."""
        self.ask(lambda admin: admin.create_topics({topic: {"assignments": assignments}}))

        def is_replicated(partition: int) -> bool:
            leader, *_ = assignments[partition]
            with self.client(leader) as client:
                return client.produce(topic, partition, batch_of(1)).error_code == 0

        for partition in assignments:
            wait_until(partial(is_replicated, partition), f"{topic}-{partition} is led")

    def alter(self, kind: int, name: str, operation: int, config: str, value: str | None) -> None:
        node_id = int(name or 1) if kind == BROKER else 1
        with self.client(node_id) as client:
            assert altered(client, kind, name, [(config, operation, value)]) == (0, None)


# What happens, in this order. Each waits for the last that is written by it.


def the_first_broker_starts(cluster: WatchedCluster) -> None:
    cluster.wait_for_node("/controller", brokerid=1)
    wait_until(lambda: cluster.tree.exists("/feature"), "a controller has begun", pause_s=0.02)


def a_topic_is_created(cluster: WatchedCluster) -> None:
    cluster.admin.create_topics([NewTopic("plain", 1, 1)])
    cluster.wait_for_state("plain", leader=1)


def a_topic_is_created_with_configs(cluster: WatchedCluster) -> None:
    configs = {"retention.ms": "1000000", "cleanup.policy": "compact"}
    cluster.admin.create_topics([NewTopic("set", 2, 1, topic_configs=configs)])
    for partition in range(2):
        cluster.wait_for_state("set", partition, leader=1)


def partitions_are_added(cluster: WatchedCluster) -> None:
    cluster.admin.create_partitions({"set": NewPartitions(4)})
    for partition in (2, 3):
        cluster.wait_for_state("set", partition, leader=1)


def a_topic_is_deleted(cluster: WatchedCluster) -> None:
    cluster.admin.delete_topics(["plain"])
    cluster.wait_gone("/admin/delete_topics/plain")


def a_topics_config_is_set(cluster: WatchedCluster) -> None:
    cluster.alter(TOPIC, "set", SET, "retention.ms", "5000000")


def a_topics_config_is_taken_back(cluster: WatchedCluster) -> None:
    cluster.alter(TOPIC, "set", DELETE, "retention.ms", None)


def a_brokers_config_is_set(cluster: WatchedCluster) -> None:
    cluster.alter(BROKER, "1", SET, "message.max.bytes", "2000000")


def a_brokers_config_is_taken_back(cluster: WatchedCluster) -> None:
    cluster.alter(BROKER, "1", DELETE, "message.max.bytes", None)


def all_brokers_config_is_set(cluster: WatchedCluster) -> None:
    cluster.alter(BROKER, "", SET, "message.max.bytes", "3000000")


def producer_ids_are_given(cluster: WatchedCluster) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    with cluster.client(1) as client:
        wait_until(
            lambda: client.call(request, InitProducerIdResponse, 4).error_code == 0,
            "a producer id",
        )


def brokers_join(cluster: WatchedCluster) -> None:
    for node_id in (2, 3):
        cluster.start(node_id)


def a_topic_is_created_with_an_assignment(cluster: WatchedCluster) -> None:
    cluster.create("u", {0: [2, 3]})


def a_follower_falls_behind(cluster: WatchedCluster) -> None:
    cluster.freeze(3)
    with cluster.client(2) as client:
        assert client.produce("u", 0, batch_of(3), acks=1).error_code == 0
    cluster.wait_for_state("u", isr=[2])


def it_catches_up(cluster: WatchedCluster) -> None:
    cluster.thaw(3)
    cluster.wait_for_state("u", isr=[2, 3])


def another_topic_is_created(cluster: WatchedCluster) -> None:
    cluster.create("m", {0: [1, 2]})


def a_move_begins(cluster: WatchedCluster) -> None:
    cluster.freeze(3)
    cluster.move({("m", 0): [3, 2]})
    cluster.wait_for_state("m", leader_epoch=1)


def it_is_cancelled(cluster: WatchedCluster) -> None:
    cancelled = {TopicPartition("m", 0): None}
    cluster.admin.alter_partition_reassignments(cancelled)
    cluster.thaw(3)
    cluster.wait_for_version("/brokers/topics/m", 3)


def replicas_move(cluster: WatchedCluster) -> None:
    cluster.move({("m", 0): [3, 2]})
    cluster.wait_for_node(
        "/brokers/topics/m", partitions={"0": [3, 2]}, adding_replicas={}, removing_replicas={}
    )


def partitions_are_led_by_several(cluster: WatchedCluster) -> None:
    cluster.admin.delete_topics(["m"])
    cluster.wait_gone("/admin/delete_topics/m")
    cluster.written()  # which has been in a state of its own since it moved
    cluster.create("t", {0: [2, 3, 1], 1: [3, 2, 1]})


def a_leader_is_killed(cluster: WatchedCluster) -> None:
    """Which followed, too."""
    cluster.kill(2)
    for partition in (0, 1):
        cluster.wait_for_state("t", partition, leader=3, isr=[3, 1])
    cluster.wait_for_state("u", leader=3, isr=[3])


def it_is_back(cluster: WatchedCluster) -> None:
    cluster.start(2)
    for partition in (0, 1):
        cluster.wait_for_state("t", partition, isr=[3, 1, 2])
    cluster.wait_for_state("u", isr=[3, 2])


def preferred_leaders_are_elected(cluster: WatchedCluster) -> None:
    cluster.elect_preferred()
    for topic in ("t", "u"):
        cluster.wait_for_state(topic, leader=2)


def a_leader_is_stopped(cluster: WatchedCluster) -> None:
    cluster.stop(3)
    cluster.wait_gone("/brokers/ids/3")


def the_last_in_sync_is_killed(cluster: WatchedCluster) -> None:
    cluster.kill(2)
    cluster.wait_for_state("u", leader=-1)
    for partition in (0, 1):
        cluster.wait_for_state("t", partition, isr=[1])


def one_not_in_sync_is_back(cluster: WatchedCluster) -> None:
    cluster.start(3)
    for partition in (0, 1):
        cluster.wait_for_state("t", partition, isr=[1, 3])


def it_may_be_elected(cluster: WatchedCluster) -> None:
    cluster.alter(TOPIC, "u", SET, "unclean.leader.election.enable", "true")
    cluster.wait_for_state("u", leader=3)


def the_controller_is_killed(cluster: WatchedCluster) -> None:
    cluster.kill(1)
    for partition in (0, 1):
        cluster.wait_for_state("t", partition, leader=3)
    for partition in range(4):
        cluster.wait_for_state("set", partition, leader=-1)


EVENTS = [
    the_first_broker_starts,
    a_topic_is_created,
    a_topic_is_created_with_configs,
    partitions_are_added,
    a_topic_is_deleted,
    a_topics_config_is_set,
    a_topics_config_is_taken_back,
    a_brokers_config_is_set,
    a_brokers_config_is_taken_back,
    all_brokers_config_is_set,
    producer_ids_are_given,
    brokers_join,
    a_topic_is_created_with_an_assignment,
    a_follower_falls_behind,
    it_catches_up,
    another_topic_is_created,
    a_move_begins,
    it_is_cancelled,
    replicas_move,
    partitions_are_led_by_several,
    a_leader_is_killed,
    it_is_back,
    preferred_leaders_are_elected,
    a_leader_is_stopped,
    the_last_in_sync_is_killed,
    one_not_in_sync_is_back,
    it_may_be_elected,
    the_controller_is_killed,
]


@dataclass(frozen=True)
class Difference:
    """What only one of them writes, as `lines_of` has it; or in another order."""

    reason: str
    kafkas: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    is_order: bool = False


def state_set(place: str, **state: object) -> str:
    topic, partition = place.split("-")
    value = json.dumps({**state, "version": 1}, sort_keys=True)
    return f"set /brokers/topics/{topic}/partitions/{partition}/state {value}"


DIFFERENCES: dict[Callable[[WatchedCluster], None], Difference] = {
    the_first_broker_starts: Difference(
        "All is there before a broker registers, and groups have configs, as in Apache Kafka 4.",
        ours=("create /config/groups",),
        is_order=True,
    ),
    a_topic_is_deleted: Difference(
        "Brokers are told that nobody leads it, which is nothing to keep: by its mark the next "
        "controller tells them again.",
        kafkas=(state_set("plain-0", controller_epoch=1, isr=[1], leader=-1, leader_epoch=1),),
    ),
    replicas_move: Difference(
        "Another leader and the replicas that go are one state.",
        kafkas=(
            state_set("m-0", controller_epoch=1, isr=[1, 2, 3], leader=3, leader_epoch=4),
            state_set("m-0", controller_epoch=1, isr=[2, 3], leader=3, leader_epoch=5),
        ),
        ours=(state_set("m-0", controller_epoch=1, isr=[2, 3], leader=3, leader_epoch=4),),
    ),
    the_controller_is_killed: Difference(
        "The next controller elects at once; Kafka's writes first that nobody leads.",
        kafkas=(
            state_set("t-0", controller_epoch=2, isr=[3], leader=-1, leader_epoch=5),
            state_set("t-0", controller_epoch=2, isr=[3], leader=3, leader_epoch=6),
            state_set("t-1", controller_epoch=2, isr=[3], leader=-1, leader_epoch=4),
            state_set("t-1", controller_epoch=2, isr=[3], leader=3, leader_epoch=5),
        ),
        ours=(
            state_set("t-0", controller_epoch=2, isr=[3], leader=3, leader_epoch=5),
            state_set("t-1", controller_epoch=2, isr=[3], leader=3, leader_epoch=4),
        ),
    ),
}

COMMITS = {
    a_topic_is_created: 1,
    a_topic_is_created_with_configs: 1,
    partitions_are_added: 1,
    a_topics_config_is_set: 1,
    a_brokers_config_is_set: 1,
    a_topic_is_deleted: 2,
}
"""Of ours, so that a crash leaves all of it or nothing; Apache Kafka's write node by node."""
BY_CONTROLLER = ("/cluster/brokers/topics/", "/cluster/admin/")

Written = dict[Callable[[WatchedCluster], None], list[Transaction]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Written]:
    """By each event, in a cluster of ours and in one of Apache Kafka's."""
    require_kafka_with_zookeeper()

    def run(directory: Path, kafka: set[int]) -> Written:
        found: Written = {}
        with WatchedCluster(directory, 1, properties=PROPERTIES, kafka=kafka) as cluster:
            for event in EVENTS:
                event(cluster)
                found[event] = cluster.written()
        return found

    directories = [tmp_path_factory.mktemp("cluster") for _ in range(2)]  # no thread's to make
    with ThreadPoolExecutor(2) as threads:
        ours, kafkas = threads.map(run, directories, [set(), {1, 2, 3}])
    return ours, kafkas


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__.replace("_", " "))
def test_ours_writes_what_apache_kafkas_does(
    written: tuple[
        dict[Callable[[WatchedCluster], None], list[Transaction]],
        dict[Callable[[WatchedCluster], None], list[Transaction]],
    ],
    event: Callable[[WatchedCluster], None],
) -> None:
    ours, kafkas = (lines_of(each[event]) for each in written)
    known = DIFFERENCES.get(event, Difference(""))
    for lines, own in ((ours, known.ours), (kafkas, known.kafkas)):
        for line in own:
            lines.remove(line)
    if known.is_order:
        ours, kafkas = sorted(ours), sorted(kafkas)
    assert ours == kafkas


def test_what_belongs_together_is_written_at_once(
    written: tuple[
        dict[Callable[[WatchedCluster], None], list[Transaction]],
        dict[Callable[[WatchedCluster], None], list[Transaction]],
    ],
) -> None:
    ours, kafkas = written
    assert {event: len(ours[event]) for event in COMMITS} == COMMITS
    assert all(len(kafkas[event]) > commits for event, commits in COMMITS.items())


def test_all_that_a_controller_writes_is_checked_by_its_epoch(
    written: tuple[
        dict[Callable[[WatchedCluster], None], list[Transaction]],
        dict[Callable[[WatchedCluster], None], list[Transaction]],
    ],
) -> None:
    ours, _ = written
    epoch = "/cluster/controller_epoch"
    version: int | None = 0
    for commit in (each for event in EVENTS for each in ours[event]):
        changes = [write for write in commit.writes if write.kind != "check"]
        version = next((write.version for write in changes if write.path == epoch), version)
        if any(write.path.startswith(BY_CONTROLLER) for write in changes) and version:
            assert commit.writes[0] == Write("check", epoch, version=version)


def lines_of(written: list[Transaction]) -> list[str]:
    """Without what differs from run to run. Neighbours of one kind, of several partitions, may have
    come in any order."""

    def kind_of(write: Write) -> tuple[str, str]:
        return write.kind, re.sub(r"topics/[^/]+|\d+", "*", write.path)

    writes = [each for one in written for each in one.writes if each.kind != "check"]
    found = []
    for _, alike in groupby(writes, kind_of):
        found += [line_of(each) for each in sorted(alike, key=lambda each: each.path)]
    return found


def line_of(write: Write) -> str:
    path = write.path.removeprefix("/cluster")
    value = write.value.decode()
    if value.startswith("{"):
        value = re.sub(r'("(?:timestamp|topic_id|id)":)"[^"]*"', r'\1"..."', value)
        value = re.sub(r'(127\.0\.0\.1:|"port":)\d+', r"\g<1>0", value)
        value = json.dumps(json.loads(value), sort_keys=True)
    kind = f"{write.kind} ephemeral" if write.is_ephemeral else write.kind
    return f"{kind} {path} {value}".strip()
