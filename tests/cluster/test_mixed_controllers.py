"""One cluster of our brokers and of Apache Kafka's 3.9, with a controller of either kind: what it
does for brokers of the other kind, and what the other kind does when it is lost half way.

The broker that is started first is the controller. What ZooKeeper was told, in which order, says
who has done it.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError
from kafka.protocol import admin

from broker.cluster.isr_messages import ControlledShutdownRequest, ControlledShutdownResponse
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from tests.broker.api.config_client import SET, altered
from tests.cluster.producing import Producing, check
from tests.cluster.test_zookeeper_writes import PROPERTIES, TOPIC, WatchedCluster
from tests.support.broker_child import RawClient
from tests.support.kafka_member import require_kafka_with_zookeeper
from tests.support.patience import BUSY_S, stays, wait_until
from tests.support.records import batch_of
from tests.support.zookeeper import expire

pytestmark = [pytest.mark.interop, pytest.mark.long]

LONG_MS = 60_000
LEADERS_ALONE = 10
"""The last version of Fetch whose consumers take nothing from followers."""
STALE_BROKER_EPOCH = 77
UNCLEAN = "unclean.leader.election.enable"


def kinds(**kafka: set[int]) -> pytest.MarkDecorator:
    """Which brokers are Apache Kafka's."""
    return pytest.mark.parametrize("kafka", kafka.values(), ids=kafka.keys())


BOTH_KINDS = kinds(by_kafkas={1}, by_ours={2})
"""Who is the controller; broker 2 is of the other kind."""


class MixedCluster(WatchedCluster):
    """Of three, in which replicas stay in sync until the test says so."""

    def epoch(self, node_id: int) -> int:
        """The broker's, by its registration; 0 without one."""
        found = self.tree.exists(f"/brokers/ids/{node_id}")
        return 0 if found is None else int(found.czxid)

    def state(self, topic: str) -> dict[str, Any]:
        return self.node(f"/brokers/topics/{topic}/partitions/0/state")

    def produce(self, node_id: int, topic: str, records: int) -> None:
        """To that broker alone, as soon as it leads."""

        def is_done() -> bool:
            with self.client(node_id) as client:
                return not client.produce(topic, 0, batch_of(records), acks=1).error_code

        wait_until(is_done, f"{node_id} leads {topic}")

    def allow_unclean(self, node_id: int, topic: str) -> None:
        with self.client(node_id) as client:
            assert altered(client, TOPIC, topic, [(UNCLEAN, SET, "true")]) == (0, None)

    def begin(self, node_id: int, request: Any, version: int) -> None:
        """Asks, and does not wait for the answer."""
        client = self.client(node_id)
        client.send_body(request.API_KEY, version, bytes(request.encode(version=version)))
        self._begun.append(client)

    def __enter__(self) -> "MixedCluster":
        self._begun: list[RawClient] = []
        super().__enter__()
        return self

    def close(self) -> None:
        for client in self._begun:
            client.__exit__()
        super().close()


@pytest.fixture
def cluster(tmp_path: Path, kafka: set[int]) -> Iterator[MixedCluster]:
    require_kafka_with_zookeeper()
    properties = {
        **PROPERTIES,
        "replica.lag.time.max.ms": "60000",
        "log.retention.ms": "-1",  # the records of tests are from long ago
    }
    with MixedCluster(tmp_path, properties=properties, kafka=kafka) as started:
        yield started


@kinds(under_kafkas={1}, under_ours={3})
def test_a_session_that_ends_under_a_broker_costs_no_record(cluster: MixedCluster) -> None:
    """Of each kind, the controller's last: it is another broker to all, and in sync again."""
    cluster.create_topic("t", 3, configs={"min.insync.replicas": "2"})
    with Producing(cluster, "t", 3) as producing:
        for node_id in (2, 3, 1):
            producing.wait_for()
            before, controller = cluster.epoch(node_id), cluster.tree.exists("/controller").czxid
            leader_epoch = cluster.state("t")["leader_epoch"]
            expire(cluster.zookeeper.address, cluster.ways[node_id].session)
            wait_until(lambda: cluster.epoch(node_id) > before, "it is registered")  # noqa: B023
            if node_id == 1:
                wait_until(lambda: has_changed(cluster, controller), "another one")  # noqa: B023
            else:
                wait_until(
                    lambda: cluster.state("t")["leader_epoch"] > leader_epoch,  # noqa: B023
                    "it was taken to be gone",
                )
            cluster.wait_in_sync("t")
            producing.wait_for()
    check(cluster, producing, "t", 3)


def has_changed(cluster: MixedCluster, czxid: int) -> bool:
    found = cluster.tree.exists("/controller")
    return found is not None and found.czxid > czxid


@kinds(by_kafkas={1, 2}, by_ours={2})
def test_who_is_not_in_sync_leads_when_a_topic_allows_it(cluster: MixedCluster) -> None:
    """One of each kind; it is asked by its own kind's API. What only the other had is gone."""
    for first, second in ((2, 3), (3, 2)):
        topic = f"led-by-{first}"
        cluster.create(topic, {0: [first, second]})
        cluster.stop(second)
        cluster.wait_for_state(topic, leader=first, isr=[first])
        cluster.produce(first, topic, 3)
        cluster.kill(first)
        cluster.wait_for_state(topic, leader=-1, isr=[first])
        cluster.start(second)
        assert stays(lambda: cluster.state(topic)["leader"] == -1, 1.0)  # noqa: B023
        cluster.allow_unclean(second, topic)
        cluster.wait_for_state(topic, leader=second, isr=[second])
        cluster.produce(second, topic, 2)
        cluster.start(first)
        cluster.wait_for_state(topic, leader=second, isr=[second, first])
        assert cluster.log_bytes(first, topic) == cluster.log_bytes(second, topic)


@kinds(of_kafkas_and_ours={2}, of_ours_and_kafkas={3})
def test_tails_that_two_leaders_have_alone_are_cut_where_their_epochs_part(
    cluster: MixedCluster,
) -> None:
    """The first leads, the second, and the first again, each without the other (KIP-279). Who joins
    the ISR has all that the epoch began with."""
    first, second = 2, 3
    cluster.create("t", {0: [first, second]})
    cluster.allow_unclean(1, "t")
    cluster.freeze(second)
    for _ in range(2):  # what it had asked for before may be on its way
        cluster.produce(first, "t", 3)
    cluster.kill(first)
    cluster.wait_for_state("t", leader=second, isr=[second])
    cluster.thaw(second)
    cluster.produce(second, "t", 2)
    cluster.kill(second)
    one, other = (cluster.log_bytes(node_id, "t") for node_id in (first, second))
    assert not one.startswith(other)
    assert not other.startswith(one)
    cluster.start(first)
    cluster.wait_for_state("t", leader=first, isr=[first])
    cluster.produce(first, "t", 1)
    cluster.start(second)
    cluster.wait_for_state("t", leader=first, isr=[first, second])
    assert cluster.log_bytes(second, "t") == cluster.log_bytes(first, "t")
    assert cluster.log_bytes(first, "t").startswith(one)


@BOTH_KINDS
def test_a_follower_joins_when_it_has_what_its_leaders_epoch_began_with(
    cluster: MixedCluster,
) -> None:
    """All that is committed is not enough (KIP-279): the high watermark stands where it was, as too
    few are in sync. The follower is this test, by the registration of a broker that is gone."""
    leader, follower = 2, 3
    path = f"/brokers/ids/{follower}"
    cluster.create("t", {0: [leader, follower]})
    with cluster.client(1) as client:
        assert altered(client, TOPIC, "t", [("min.insync.replicas", SET, "2")]) == (0, None)
    registration, _ = cluster.tree.get(path)
    cluster.kill(follower)
    cluster.wait_for_state("t", leader=leader, isr=[leader])
    cluster.produce(leader, "t", 4)
    epoch = cluster.state("t")["leader_epoch"]
    expire(cluster.zookeeper.address, cluster.ways[leader].session)
    wait_until(lambda: cluster.state("t")["leader_epoch"] > epoch, "a new epoch begins")
    wait_until(lambda: cluster.state("t")["leader"] == leader, "it leads again")
    cluster.tree.create(path, registration, ephemeral=True)
    cluster.produce(leader, "t", 1)
    for offset in (1, 4):
        wait_until(lambda: fetched_by(cluster, leader, follower, offset) == 1, "it is told")  # noqa: B023
        assert stays(lambda: cluster.state("t")["isr"] == [leader], 1)

    def joins() -> bool:
        """At each fetch its leader asks, where the controller has not let it join."""
        is_told = fetched_by(cluster, leader, follower, 5) >= 1
        return is_told and cluster.state("t")["isr"] == [leader, follower]

    wait_until(joins, lambda: cluster.state("t"), pause_s=0.1)
    cluster.tree.delete(path)
    cluster.start(follower)
    cluster.wait_equal_logs("t")


def fetched_by(cluster: MixedCluster, leader: int, follower: int, offset: int) -> int:
    """The high watermark that a follower is told that has all before that offset; -1 where it is
    refused."""
    with cluster.client(leader) as client:
        topic_id = client.metadata_of("t").topic_id
        part = FetchPartition("t", 0, offset, 1 << 20, topic_id=topic_id)
        wanted = FetchRequest(
            17, 0, 0, [part], replica_id=follower, replica_epoch=cluster.epoch(follower)
        )
        (answer,) = client.fetch(wanted).partitions
    return -1 if answer.error_code else answer.high_watermark


@BOTH_KINDS
def test_who_waits_is_answered_when_the_controller_moves_the_leadership(
    cluster: MixedCluster,
) -> None:
    """A produce that a frozen follower holds up, and a fetch, at a leader of the other kind; and
    when the topic is deleted."""
    lost = NotLeaderForPartitionError.errno, UnknownTopicOrPartitionError.errno
    for topic in ("moved", "deleted"):
        cluster.create(topic, {0: [3, 2]})
    cluster.kill(3)
    for topic in ("moved", "deleted"):
        cluster.wait_for_state(topic, leader=2)
    cluster.start(3)
    for topic in ("moved", "deleted"):
        cluster.wait_for_state(topic, isr=[2, 3])
    cluster.freeze(3)
    for topic, request, version in (
        ("moved", preferred_election("moved"), 2),
        ("deleted", admin.DeleteTopicsRequest(topic_names=["deleted"], timeout_ms=1000), 4),
    ):
        with cluster.client(2) as producer, cluster.client(2) as consumer:
            end = begin_produce(producer, topic)
            begin_fetch(consumer, topic, end)
            cluster.begin(1, request, version)
            for client in (producer, consumer):
                client.socket.settimeout(BUSY_S)
            assert producer.receive_produced().error_code in lost
            assert fetched_code(consumer) in lost
    cluster.thaw(3)
    cluster.wait_for_state("moved", leader=3)
    cluster.wait_gone("/brokers/topics/deleted")


def preferred_election(topic: str) -> Any:
    partitions = admin.ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0])
    return admin.ElectLeadersRequest(
        election_type=0, topic_partitions=[partitions], timeout_ms=1000
    )


def begin_produce(client: RawClient, topic: str) -> int:
    """With acks=all, behind a record that is not committed either: where all that is committed
    ends."""
    written = client.produce(topic, 0, batch_of(1), acks=1)
    assert not written.error_code
    client.send_produce(topic, 0, batch_of(1), timeout_ms=LONG_MS)
    return written.base_offset


def begin_fetch(client: RawClient, topic: str, offset: int) -> None:
    wanted = [FetchPartition(topic, 0, offset, 1 << 20)]
    client.send_fetch(FetchRequest(LEADERS_ALONE, LONG_MS, 1, wanted))


def fetched_code(client: RawClient) -> int:
    (partition,) = client.receive_fetched(LEADERS_ALONE).partitions
    return partition.error_code


@BOTH_KINDS
def test_a_broker_stops_by_the_other_kinds_controller(cluster: MixedCluster) -> None:
    """Others lead before its session ends; what nobody else can lead, after it."""
    cluster.create("shared", {0: [2, 3]})
    cluster.create("alone", {0: [2]})
    assert shut_down(cluster, 2, cluster.epoch(2) - 1) == STALE_BROKER_EPOCH
    cluster.written()
    cluster.stop(2)
    cluster.wait_for_state("alone", leader=-1, isr=[2])
    written = [each.path for transaction in cluster.written() for each in transaction.writes]
    shared, alone = (
        f"/cluster/brokers/topics/{topic}/partitions/0/state" for topic in ("shared", "alone")
    )
    end = written.index("/cluster/brokers/ids/2")
    assert shared in written[:end]
    assert alone in written[end:]
    assert alone not in written[:end]
    assert cluster.state("shared")["isr"] == [3]
    cluster.start(2)
    cluster.wait_for_state("alone", leader=2)
    cluster.wait_for_state("shared", leader=3, isr=[3, 2])


def shut_down(cluster: MixedCluster, node_id: int, epoch: int) -> Any:
    """Asked of the controller in its name: the error code."""
    request = ControlledShutdownRequest(broker_id=node_id, broker_epoch=epoch)
    with cluster.client(1) as client:
        return client.call(request, ControlledShutdownResponse, 3).error_code


@BOTH_KINDS
def test_all_in_sync_stop_at_once(cluster: MixedCluster) -> None:
    """The last of them leads again when it is back, and nothing is lost."""
    cluster.create("t", {0: [2, 3]})
    stopping = [threading.Thread(target=cluster.stop, args=[node_id]) for node_id in (2, 3)]
    for each in stopping:
        each.start()
    for each in stopping:
        each.join()
    cluster.wait_for_state("t", leader=-1)
    (last,) = cluster.state("t")["isr"]
    for node_id in (5 - last, last):
        assert cluster.state("t")["leader"] == -1
        cluster.start(node_id)
    cluster.wait_for_state("t", leader=last, isr=[last, 5 - last])
    assert cluster.log_bytes(2, "t") == cluster.log_bytes(3, "t")
    assert cluster.log_bytes(2, "t")


@BOTH_KINDS
def test_the_other_kind_goes_on_with_what_its_controller_has_begun(cluster: MixedCluster) -> None:
    """A topic that is created, and one that is deleted, wait for a broker that is frozen."""
    cluster.create("old", {0: [3, 2]})
    cluster.freeze(3)
    cluster.begin(1, admin.DeleteTopicsRequest(topic_names=["old"], timeout_ms=1000), 4)
    cluster.begin(1, creation({"new": [3, 2]}), 5)
    wait_until(lambda: cluster.tree.exists("/admin/delete_topics/old"), "it is marked")
    cluster.wait_for_state("new", leader=3)
    cluster.kill(1)
    cluster.wait_for_node("/controller", brokerid=2)
    assert cluster.tree.exists("/brokers/topics/old")
    cluster.thaw(3)
    cluster.wait_gone("/brokers/topics/old")
    cluster.wait_gone("/admin/delete_topics/old")
    wait_no_logs(cluster, (2, 3), "old")
    cluster.produce(3, "new", 3)
    cluster.wait_equal_logs("new")
    cluster.start(1)
    cluster.create("old", {0: [1, 2, 3]})


@BOTH_KINDS
def test_the_other_kind_goes_on_with_a_move_and_an_election(cluster: MixedCluster) -> None:
    """The controller is lost while a broker that is frozen is added, and as soon as it has written
    down who leads in its place."""
    cluster.create("m", {0: [2, 1]})
    cluster.create("e", {0: [3, 2]})
    cluster.freeze(3)
    cluster.move({("m", 0): [3, 2]})
    cluster.wait_for_state("m", leader_epoch=1)
    expire(cluster.zookeeper.address, cluster.ways[3].session)
    cluster.wait_for_state("e", leader=2, isr=[2])
    cluster.kill(1)
    cluster.wait_for_node("/controller", brokerid=2)
    cluster.produce(2, "e", 3)
    cluster.thaw(3)
    cluster.wait_for_node(
        "/brokers/topics/m", partitions={"0": [3, 2]}, adding_replicas={}, removing_replicas={}
    )
    for topic in ("m", "e"):
        cluster.wait_in_sync(topic, 2)
        cluster.produce(cluster.leader(topic), topic, 2)
        cluster.wait_equal_logs(topic)
    cluster.start(1)
    wait_until(lambda: not_led_by(cluster, 1, "m"), "who was moved away from says so")


def not_led_by(cluster: MixedCluster, node_id: int, topic: str) -> bool:
    with cluster.client(node_id) as client:
        answer = client.produce(topic, 0, batch_of(1), acks=1)
    return bool(answer.error_code == NotLeaderForPartitionError.errno)


def creation(assignments: Mapping[str, Sequence[int]]) -> Any:
    """Of topics with one partition."""
    topic_class = admin.CreateTopicsRequest.CreatableTopic
    replicas_class = topic_class.CreatableReplicaAssignment
    topics = [
        topic_class(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[replicas_class(partition_index=0, broker_ids=list(nodes))],
            configs=[],
        )
        for name, nodes in assignments.items()
    ]
    return admin.CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False)


def wait_no_logs(cluster: MixedCluster, node_ids: Iterable[int], topic: str) -> None:
    for node_id in node_ids:
        folder = cluster.data_dir(node_id) / f"{topic}-0"
        wait_until(lambda folder=folder: not folder.exists(), f"{folder} is gone")


@BOTH_KINDS
def test_a_controller_that_is_killed_among_topics_leaves_each_whole_or_none(
    cluster: MixedCluster,
) -> None:
    """Some it was asked to create, some to delete, and nobody knows how far it has come."""
    old, new = ([f"{name}-{number}" for number in range(20)] for name in ("old", "new"))
    for topic in old:
        cluster.create_topic(topic, 1, 2)
    cluster.begin(1, admin.DeleteTopicsRequest(topic_names=old, timeout_ms=1000), 4)
    cluster.begin(1, creation(dict.fromkeys(new, (2, 3))), 5)
    wait_until(lambda: len(topics(cluster) & {*old}) < len(old), "one is gone", pause_s=0)
    cluster.kill(1)
    wait_until(lambda: cluster.node("/controller").get("brokerid") in (2, 3), "another controller")
    cluster.start(1)  # which keeps some of those that are to go
    wait_until(lambda: not cluster.tree.get_children("/admin/delete_topics"), "no more to delete")
    left = topics(cluster)
    print(f"{len(left & {*old})} of the old ones are left, {len(left & {*new})} new ones are there")
    for topic in sorted(left):
        wait_until(partial(is_led, cluster, topic), f"{topic} is led")
    for topic in sorted({*old, *new} - left):
        wait_no_logs(cluster, (1, 2, 3), topic)
        cluster.create_topic(topic, 1, 2)
    for topic in (*old, *new):
        cluster.wait_in_sync(topic, 2)
        cluster.produce(cluster.leader(topic), topic, 1)
        cluster.wait_equal_logs(topic)


def topics(cluster: MixedCluster) -> set[str]:
    return {*cluster.tree.get_children("/brokers/topics")}


def is_led(cluster: MixedCluster, topic: str) -> bool:
    return bool(cluster.state(topic).get("leader", -1) > 0)
