"""Brokers of one cluster: what producers and consumers see when one of them is lost."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import UnknownTopicOrPartitionError
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.cluster.producing import Producing, check, read
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.cluster import PATIENT, Cluster
from tests.support.patience import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

Lose = Callable[[Cluster, int], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        yield started


def test_a_leader_that_is_killed_costs_no_record(cluster: Cluster) -> None:
    cluster.create_topic("t", 3)
    with Producing(cluster, "t", 3) as producing:
        bounce_leader(cluster, producing, Cluster.kill)
    check(cluster, producing, "t", 3)


def bounce_leader(cluster: Cluster, producing: Producing, lose: Lose) -> None:
    """Of the first partition: others lead before it is back."""
    producing.wait_for()
    leader = cluster.leader("t")
    lose(cluster, leader)
    assert cluster.wait_led("t", not_by=leader) != leader
    producing.wait_for()
    cluster.start(leader)
    cluster.wait_in_sync("t")
    producing.wait_for()


@pytest.mark.slow
def test_what_is_compressed_and_sent_without_a_number_outlives_its_leader(cluster: Cluster) -> None:
    """It may be doubled, as nobody can tell what comes again."""
    cluster.create_topic("t", 3)
    with Producing(cluster, "t", 3, is_idempotent=False, codec="lz4") as producing:
        bounce_leader(cluster, producing, Cluster.kill)
    check(cluster, producing, "t", 3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("lose", "is_idempotent", "codec"),
    [
        pytest.param(Cluster.kill, True, "gzip", id="killed-idempotent-gzip"),
        pytest.param(Cluster.kill, False, None, id="killed-acks alone"),
        pytest.param(Cluster.stop, True, "zstd", id="stopped-idempotent-zstd"),
        pytest.param(Cluster.stop, False, "snappy", id="stopped-acks alone-snappy"),
    ],
)
def test_leaders_that_are_lost_again_and_again_cost_no_record(
    cluster: Cluster, lose: Lose, is_idempotent: bool, codec: str | None
) -> None:
    cluster.create_topic("t", 3)
    with Producing(cluster, "t", 3, is_idempotent, codec) as producing:
        for _ in range(5):
            bounce_leader(cluster, producing, lose)
    check(cluster, producing, "t", 3)


def test_a_controller_that_is_killed_is_missed_no_longer_than_a_leader(cluster: Cluster) -> None:
    """Its successor takes it out of the ISRs of those that it followed, too."""
    cluster.create_topic("t", 3)
    with Producing(cluster, "t", 3) as producing:
        producing.wait_for()
        controller = cluster.controller_id
        cluster.kill(controller)
        for partition in range(3):
            cluster.wait_led("t", partition, not_by=controller)
        cluster.wait_in_sync("t", 2)
        cluster.start(controller)
        cluster.wait_in_sync("t")
    check(cluster, producing, "t", 3)
    # Followers are taken out for their lag after replica.lag.time.max.ms, which is 30 s.
    assert producing.longest_s < 25


@pytest.mark.long
def test_a_topic_that_is_made_when_it_is_asked_for_waits_for_the_next_controller(
    tmp_path: Path,
) -> None:
    """Of any other error than that it is not there, clients do not ask again."""
    name = MetadataRequest.MetadataRequestTopic(name="new")
    wanted = MetadataRequest(topics=[name], allow_auto_topic_creation=True)
    told: list[int] = []

    def is_made(client: RawClient) -> bool:
        (topic,) = client.call(wanted, MetadataResponse, 12).topics
        told.append(topic.error_code)
        return told[-1] == 0

    with Cluster(tmp_path, properties={"default.replication.factor": "2"}) as cluster:
        controller = cluster.controller_id
        cluster.kill(controller)
        other = next(each for node_id, each in cluster.brokers.items() if node_id != controller)
        with RawClient(other.host, other.port) as client:
            wait_until(lambda: is_made(client), lambda: f"a topic; {told}", pause_s=0.1)
    assert set(told) == {UnknownTopicOrPartitionError.errno, 0}


@pytest.mark.slow
def test_brokers_that_are_restarted_in_turn_are_not_missed(tmp_path: Path) -> None:
    with Cluster(tmp_path, properties=PATIENT) as cluster:
        cluster.create_topic("t", 3)
        with Producing(cluster, "t", 3) as producing:
            for node_id in (1, 2, 3):
                producing.wait_for()
                cluster.stop(node_id)
                producing.wait_for()
                cluster.start(node_id)
                cluster.wait_in_sync("t")
        check(cluster, producing, "t", 3)
    # As others lead before it stops, nobody waits for as long as a session that has to end.
    assert producing.longest_s < 18


def test_a_leader_that_is_frozen_longer_than_its_session_acknowledges_nothing_more(
    cluster: Cluster,
) -> None:
    """It goes on as if nothing had been, until it hears that others lead."""
    cluster.create_topic("t")
    with Producing(cluster, "t") as producing:
        producing.wait_for()
        leader = cluster.leader("t")
        os.kill(cluster.ours(leader).process.pid, signal.SIGSTOP)
        try:
            other = next(node_id for node_id in cluster.brokers if node_id != leader)
            wait_until(lambda: told_by(cluster, other) != leader, "another leads", pause_s=0.05)
            producing.wait_for()
        finally:
            os.kill(cluster.ours(leader).process.pid, signal.SIGCONT)
        # As Apache Kafka's, it tells of itself as the leader until then.
        wait_until(lambda: told_by(cluster, leader) != leader, "it has heard", pause_s=0.05)
        cluster.wait_in_sync("t")
        producing.wait_for()
    check(cluster, producing, "t")


def test_zookeeper_that_is_away_for_longer_than_sessions_costs_no_record(tmp_path: Path) -> None:
    """Who has no session may have been replaced, so nothing is acknowledged; reading goes on."""
    # A busy machine ends no session of twice the time; a failover that ZooKeeper's end stops half
    # way is no partition's that can be read.
    with Cluster(tmp_path, properties={"zookeeper.session.timeout.ms": "6000"}) as cluster:
        lose_zookeeper(cluster)


def lose_zookeeper(cluster: Cluster) -> None:
    cluster.create_topic("t", 3)
    with Producing(cluster, "t", 3) as producing:
        producing.wait_for()
        cluster.wait_in_sync("t")
        cluster.zookeeper.kill()
        for node_id in cluster.brokers:
            wait_until(partial(has_no_session, cluster, node_id), "no session")
        acknowledged = dict(producing.acknowledged)
        for _ in range(3):
            assert acknowledged.items() <= read(cluster, "t", 3).items()
        # One answer may have been on its way.
        assert len(producing.acknowledged) <= len(acknowledged) + 1
        cluster.zookeeper.start()
        producing.wait_for()
        cluster.wait_in_sync("t")
    check(cluster, producing, "t", 3)


@pytest.mark.long
def test_an_ensemble_that_is_restarted_in_turn_is_not_missed(tmp_path: Path) -> None:
    """No session ends, the controller stays, and has done meanwhile what it was asked for."""
    with Cluster(tmp_path, properties=PATIENT, ensemble=True) as cluster:
        ensemble = cluster.zookeeper
        assert isinstance(ensemble, ZooKeeperEnsemble)
        controller = cluster.controller_id
        cluster.create_topic("t", 3)
        with Producing(cluster, "t", 3) as producing:
            for number, server in enumerate(ensemble.servers):
                producing.wait_for()
                server.stop()
                cluster.create_topic(f"while-away-{number}")
                cluster.wait_in_sync(f"while-away-{number}")
                producing.wait_for()
                ensemble.start()
                cluster.wait_in_sync("t")
        check(cluster, producing, "t", 3)
        assert not any(has_no_session(cluster, node_id) for node_id in cluster.brokers)
        assert cluster.controller_id == controller
    assert producing.longest_s < 18


def has_no_session(cluster: Cluster, node_id: int) -> bool:
    return "zookeeper.expired" in cluster.brokers[node_id].stderr()


def told_by(cluster: Cluster, node_id: int) -> int:
    """Who leads, as that broker says."""
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        (partition,) = client.metadata_of("t").partitions
        return int(partition.leader_id)


@pytest.mark.slow
def test_a_topic_is_deleted_though_a_broker_is_away(cluster: Cluster) -> None:
    cluster.create_topic("t", 2)
    away = 3
    cluster.kill(away)
    cluster.wait_led("t", 0, not_by=away)
    cluster.ask(lambda admin: admin.delete_topics(["t"]))
    wait_until(lambda: not is_there(cluster, "t"), "the topic is gone", pause_s=0.1)
    cluster.start(away)
    folders = [cluster.data_dir(away) / f"t-{index}" for index in range(2)]
    wait_until(lambda: not any(map(Path.exists, folders)), "its logs are gone, too", pause_s=0.1)


@pytest.mark.slow
def test_a_topic_is_gone_for_a_broker_that_had_no_session_when_it_was_deleted(
    tmp_path: Path,
) -> None:
    """It keeps nothing of it, and so is not waited for."""
    away = 3
    with Cluster(tmp_path, links=True) as cluster:
        cluster.place_topic("t", {0: [1, 2]})
        wait_until(lambda: told_by(cluster, away) in (1, 2), "it is known")
        cluster.ways[away].lose(requests=True, answers=True)
        wait_until(lambda: brokers_of(cluster, 1) == {1, 2}, "it is gone", pause_s=0.05)
        cluster.delete_topic("t")
        wait_until(lambda: is_gone_for(cluster, 1), "the topic is gone", pause_s=0.05)
        assert not is_gone_for(cluster, away)
        cluster.ways[away].lose()
        cluster.ways[away].cut_lossy()
        wait_until(lambda: brokers_of(cluster, 1) == {1, 2, 3}, "it is back", pause_s=0.05)
        wait_until(lambda: is_gone_for(cluster, away), "it has heard", pause_s=0.05)


def brokers_of(cluster: Cluster, node_id: int) -> set[int]:
    """Those that are there, as that broker says."""
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        told = client.call(MetadataRequest(topics=[]), MetadataResponse, 12)
        return {each.node_id for each in told.brokers}


def is_gone_for(cluster: Cluster, node_id: int) -> bool:
    """The topic, as that broker says."""
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        code = client.metadata_of("t").error_code
    return bool(code == UnknownTopicOrPartitionError.errno)


def is_there(cluster: Cluster, topic: str) -> bool:
    return topic in cluster.ask(KafkaAdminClient.list_topics)


def test_two_brokers_with_one_id_are_not_in_one_cluster(cluster: Cluster, tmp_path: Path) -> None:
    properties = {**cluster.properties_of(1), "zookeeper.session.timeout.ms": "500"}
    with pytest.raises(RuntimeError, match=r"broker\.id 1 is registered by another broker"):
        BrokerChild(tmp_path / "twin", properties)
