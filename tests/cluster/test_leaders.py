"""Who leads in one cluster, where that is asked for, set, or due."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import OffsetSpec
from kafka.errors import FencedLeaderEpochError, NotLeaderForPartitionError
from kafka.protocol import admin
from kazoo.client import KazooClient

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest, FetchResponse
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    decode_produce_response,
    encode_produce_request,
)
from tests.broker.api.config_client import SET, altered
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.patience import stays, wait_until
from tests.support.present import present
from tests.support.records import batch_of

PREFERRED, UNCLEAN = 0, 1
TOPIC, BROKER = 2, 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        yield started


def call(cluster: Cluster, node_id: int, request: Any, response_class: Any, version: int) -> Any:
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        return client.call(request, response_class, version)


def elect(cluster: Cluster, kind: int, topic: str) -> Any:
    """Of its first partition; the error code."""
    named = admin.ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0])
    request = admin.ElectLeadersRequest(
        election_type=kind, topic_partitions=[named], timeout_ms=1000
    )
    controller = cluster.controller_id
    response = call(cluster, controller, request, admin.ElectLeadersResponse, 2)
    (result,) = response.replica_election_results
    (partition,) = result.partition_result
    assert not response.error_code
    return partition.error_code


def others(cluster: Cluster) -> tuple[Any, ...]:
    """Two brokers that are not the controller."""
    return tuple(sorted(cluster.brokers.keys() - {cluster.controller_id}))


def create(
    cluster: Cluster,
    topic: str,
    replicas: tuple[Any, Any],
    configs: Mapping[str, str] | None = None,
) -> None:
    configs = {"min.insync.replicas": "1", **(configs or {})}
    cluster.place_topic(topic, {0: replicas}, configs)
    wait_until(lambda: cluster.leader(topic) == replicas[0], "it is led")
    cluster.wait_in_sync(topic, len(replicas))


def restart(cluster: Cluster, topic: str, node_id: int) -> None:
    """After this others lead what it led."""
    cluster.stop(node_id)
    cluster.wait_led(topic, not_by=node_id)
    cluster.start(node_id)
    cluster.wait_in_sync(topic, 2)


@pytest.mark.long
def test_preferred_leaders_lead_again_when_that_is_asked_for(cluster: Cluster) -> None:
    first, second = others(cluster)
    create(cluster, "t", (first, second))
    path = "/admin/preferred_replica_election"
    foreign = KazooClient(f"{cluster.zookeeper.address}/cluster")
    foreign.start()
    try:
        restart(cluster, "t", first)
        assert cluster.leader("t") == second
        assert elect(cluster, PREFERRED, "t") == 0
        wait_until(lambda: cluster.leader("t") == first, "it leads again")
        assert elect(cluster, PREFERRED, "t") == 84  # not needed
        restart(cluster, "t", first)
        foreign.create(path, b'{"version":1,"partitions":[{"topic":"t","partition":0}]}')
        wait_until(lambda: cluster.leader("t") == first, "it leads again")
        wait_until(lambda: not foreign.exists(path), "that is done")
    finally:
        foreign.stop()
        foreign.close()


def produced(client: RawClient, version: int, topic: Any) -> ProduceResponse:
    """The answer to a batch for its first partition."""
    parts = [ProducePartition(topic.name, 0, batch_of(1), uuid.UUID(str(topic.topic_id)))]
    request = ProduceRequest(version, None, -1, 5000, parts)
    client.send_body(0, version, b"".join(map(bytes, encode_produce_request(request))))
    return decode_produce_response(client.receive_body(0, version), version)


def fetched(client: RawClient, version: int, topic: Any, leader_epoch: int) -> FetchResponse:
    part = FetchPartition(topic.name, 0, 0, 1000, leader_epoch, topic_id=topic.topic_id)
    return client.fetch(FetchRequest(version, 0, 1, [part]))


def hints(
    response: ProduceResponse | FetchResponse,
) -> tuple[int, tuple[int, ...] | None, list[tuple[int, str, int, str | None]]]:
    """What is told of its one partition: the error, the leader, its epoch; and where brokers are
    reached."""
    (part,) = response.partitions
    leader = part.current_leader
    reached = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
    return part.error_code, leader and tuple(leader), reached


@pytest.mark.long
def test_who_leads_is_told_by_those_that_do_not(cluster: Cluster) -> None:
    """By one that did, and follows now, and by one that never kept the partition. A follower
    answers consumers of today, but in the present epoch alone."""
    (first, second), controller = others(cluster), cluster.controller_id
    create(cluster, "moved", (second, first))
    restart(cluster, "moved", second)
    assert elect(cluster, PREFERRED, "moved") == 0
    wait_until(lambda: cluster.leader("moved") == second, "it leads again")
    leader = cluster.brokers[second]
    endpoint = (second, leader.host, leader.port, None)
    not_leader, fenced = NotLeaderForPartitionError.errno, FencedLeaderEpochError.errno
    for node_id, fetched_in_epoch in ((first, 0), (controller, not_leader)):
        broker = cluster.brokers[node_id]
        with RawClient(broker.host, broker.port) as client:
            topic, epoch = wait_led_by(client, "moved", second)
            told = ((second, epoch), [endpoint])
            for version in (10, 13):
                assert hints(produced(client, version, topic)) == (not_leader, *told)
            assert hints(produced(client, 9, topic)) == (not_leader, None, [])
            nothing: tuple[None, list[Any]] = (None, [])
            for version in (15, 16, 18):
                is_told = fetched_in_epoch and version > 15
                expected = (fetched_in_epoch, *(told if is_told else nothing))
                assert hints(fetched(client, version, topic, epoch)) == expected
                old = fetched_in_epoch or fenced
                expected = (old, *(told if version > 15 else nothing))
                assert hints(fetched(client, version, topic, epoch - 1)) == expected
    with RawClient(leader.host, leader.port) as client:
        for version in (16, 18):
            expected = (fenced, (second, epoch), [endpoint])
            assert hints(fetched(client, version, topic, epoch - 1)) == expected
        assert hints(produced(client, 13, topic)) == (0, None, [])


def wait_led_by(client: RawClient, name: str, node_id: int) -> tuple[Any, Any]:
    """Until this broker has heard so, of its controller: the topic, and the leader's epoch."""

    def led() -> Any | None:
        topic = client.metadata_of(name)
        return topic if topic.partitions[0].leader_id == node_id else None

    topic = wait_until(led, f"{name} is led by {node_id}")
    return topic, present(topic).partitions[0].leader_epoch


def test_leaders_are_balanced_by_themselves(tmp_path: Path) -> None:
    with Cluster(tmp_path, properties={"leader.imbalance.check.interval.seconds": "1"}) as cluster:
        first, second = others(cluster)
        create(cluster, "t", (first, second))
        restart(cluster, "t", first)
        wait_until(lambda: cluster.leader("t") == first, "it leads again")


def test_who_is_not_in_sync_leads_where_that_is_set_or_asked_for(cluster: Cluster) -> None:
    first, second = others(cluster)
    controller = cluster.controller_id
    topics = ("by-topic", "by-default", "by-request")
    for topic in topics:
        create(cluster, topic, (first, second))
    lose_all_in_sync(cluster, topics, first, second)
    for topic in topics:
        wait_until(lambda topic=topic: cluster.leader(topic) == -1, "nobody leads it")
    assert elect(cluster, UNCLEAN, "by-request") == 0
    wait_until(lambda: cluster.leader("by-request") == second, "it is led")
    assert [cluster.leader(topic) for topic in topics[:2]] == [-1, -1]
    enabled = [("unclean.leader.election.enable", SET, "true")]
    for kind, name in ((TOPIC, "by-topic"), (BROKER, "")):
        with RawClient(cluster.brokers[second].host, cluster.brokers[second].port) as client:
            assert altered(client, kind, name, enabled) == (0, None)
        topic = "by-topic" if name else "by-default"
        wait_until(lambda topic=topic: cluster.leader(topic) == second, "it is led")
    assert cluster.controller_id == controller
    cluster.start(first)
    for topic in topics:
        cluster.wait_in_sync(topic, 2)
        wait_until(
            lambda topic=topic: cluster.log_bytes(first, topic) == cluster.log_bytes(second, topic),
            "what only one had is gone",
        )


@pytest.mark.parametrize("default", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_what_a_topic_was_made_with_counts_where_its_controller_keeps_nothing_of_it(
    tmp_path: Path, default: str
) -> None:
    rule = "unclean.leader.election.enable"
    with Cluster(tmp_path, properties={rule: default}) as cluster:
        first, second = others(cluster)
        topics = ("allowed", "held-off")
        for topic, value in zip(topics, ("true", "false"), strict=True):
            create(cluster, topic, (first, second), {rule: value})
        lose_all_in_sync(cluster, topics, first, second)
        assert cluster.wait_led("allowed", not_by=first) == second
        assert stays(lambda: cluster.leader("held-off") == -1, 0.5)
        cluster.start(first)
        assert cluster.wait_led("held-off") == first


def lose_all_in_sync(cluster: Cluster, topics: Sequence[str], last: int, other: int) -> None:
    """Then `other` is there, which lacks what `last` has taken alone."""
    cluster.stop(other)
    broker = cluster.brokers[last]
    with RawClient(broker.host, broker.port) as client:
        for topic in topics:
            wait_until(lambda topic=topic: cluster.leader(topic) == last, "it is led")
            assert not client.produce(topic, 0, batch_of(3)).error_code
    cluster.kill(last)
    cluster.start(other)


@pytest.mark.long
def test_who_is_not_in_sync_does_not_lead_where_that_is_switched_off(tmp_path: Path) -> None:
    """By a topic, where the brokers' files allow it; then by all brokers' default, live."""
    topics, rule = ("allowed", "held-off"), "unclean.leader.election.enable"
    with Cluster(tmp_path, properties={rule: "true"}) as cluster:
        first, second = others(cluster)
        for topic in topics:
            create(cluster, topic, (first, second))
        switch(cluster, TOPIC, "held-off", rule)
        lose_all_in_sync(cluster, topics, first, second)
        assert cluster.wait_led("allowed", not_by=first) == second
        wait_until(lambda: cluster.leader("held-off") == -1, "nobody leads it")
        cluster.start(first)
        for topic in topics:
            cluster.wait_in_sync(topic, 2)
        assert cluster.leader("held-off") == first
        switch(cluster, BROKER, "", rule)
        lose_all_in_sync(cluster, topics, first, second)
        for topic in topics:
            wait_until(lambda topic=topic: cluster.leader(topic) == -1, "nobody leads it")
        written = [cluster.log_bytes(first, topic) for topic in topics]
        cluster.start(first)
        for topic in topics:
            cluster.wait_in_sync(topic, 2)
            cluster.wait_equal_logs(topic)
        assert [cluster.log_bytes(second, topic) for topic in topics] == written


@pytest.mark.long
def test_records_are_committed_as_soon_as_fewer_replicas_are_to_have_them(cluster: Cluster) -> None:
    """Without another record: readers, and what waits for replicas, would wait for it for ever."""
    first, second = others(cluster)
    rule = "min.insync.replicas"
    create(cluster, "by-topic", (first, second), {rule: "2"})
    cluster.place_topic("by-default", {0: (first, second)})  # the brokers' default is 2
    cluster.wait_in_sync("by-default", 2)
    cluster.kill(second)
    for topic in ("by-topic", "by-default"):
        cluster.wait_in_sync(topic, 1)

    def is_committed(topic: str) -> bool:
        (end,) = cluster.offsets(topic, OffsetSpec.LATEST).values()
        return end == 3

    broker = cluster.brokers[first]
    for kind, name, topic in ((TOPIC, "by-topic", "by-topic"), (BROKER, "", "by-default")):
        with RawClient(broker.host, broker.port) as client:
            assert not client.produce(topic, 0, batch_of(3), acks=1).error_code
        assert not is_committed(topic)
        switch(cluster, kind, name, rule, "1")
        wait_until(lambda topic=topic: is_committed(topic), "they are committed")


def switch(cluster: Cluster, kind: int, name: str, config: str, value: str = "false") -> None:
    broker = cluster.brokers[cluster.controller_id]
    with RawClient(broker.host, broker.port) as client:
        assert altered(client, kind, name, [(config, SET, value)]) == (0, None)
