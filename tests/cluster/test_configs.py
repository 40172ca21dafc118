"""What is set on topics and brokers of one cluster, through any of them or by others."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.errors import MessageSizeTooLargeError
from kazoo.client import KazooClient

from tests.broker.api.config_client import DELETE, SET, altered, described
from tests.support.broker_child import RawClient
from tests.support.cluster import Cluster
from tests.support.patience import wait_until
from tests.support.records import batch_of

TOPIC, BROKER = 2, 4
BROKERS = (1, 2, 3)
LARGE = batch_of([(None, b"x" * 4000)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("configs")) as started:
        yield started


@contextmanager
def client_of(cluster: Cluster, node_id: int) -> Iterator[RawClient]:
    broker = cluster.brokers[node_id]
    with RawClient(broker.host, broker.port) as client:
        yield client


def alter(cluster: Cluster, node_id: int, kind: int, name: str, operations: list[Any]) -> None:
    with client_of(cluster, node_id) as client:
        assert altered(client, kind, name, operations) == (0, None)


def values(cluster: Cluster, node_id: int, kind: int, name: str) -> dict[Any, Any]:
    with client_of(cluster, node_id) as client:
        return {each.name: each.value for each in described(client, kind, name)}


def codes(cluster: Cluster, topic: str, batch: bytes = LARGE) -> list[int]:
    """What the three leaders of its first partitions say to a batch."""
    found = []
    for partition, state in enumerate(cluster.partitions(topic)[:3]):
        with client_of(cluster, state["leader_id"]) as client:
            found.append(client.produce(topic, partition, batch).error_code)
    return found


def wait_codes(cluster: Cluster, topic: str, code: int) -> None:
    wait_until(lambda: codes(cluster, topic) == [code] * 3, lambda: codes(cluster, topic))


def spread(cluster: Cluster, name: str) -> None:
    """A topic each of whose partitions is led by another broker."""
    cluster.create_topic(name, 3)
    assert {each["leader_id"] for each in cluster.partitions(name)} == set(BROKERS)
    cluster.wait_in_sync(name)


@contextmanager
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(f"{cluster.zookeeper.address}/cluster")
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_a_topics_configs_count_on_every_broker_whichever_was_asked(cluster: Cluster) -> None:
    spread(cluster, "t")
    assert codes(cluster, "t") == [0] * 3
    too_large = MessageSizeTooLargeError.errno
    for node_id in BROKERS:
        alter(cluster, node_id, TOPIC, "t", [("max.message.bytes", SET, "1000")])
        for other in BROKERS:
            assert values(cluster, other, TOPIC, "t")["max.message.bytes"] == "1000"
        wait_codes(cluster, "t", too_large)
        alter(cluster, node_id, TOPIC, "t", [("max.message.bytes", DELETE, None)])
        wait_codes(cluster, "t", 0)


def test_a_default_of_all_brokers_counts_on_all_and_a_brokers_own_on_it_alone(
    cluster: Cluster,
) -> None:
    spread(cluster, "d")
    alter(cluster, 2, BROKER, "", [("message.max.bytes", SET, "1000")])
    wait_codes(cluster, "d", MessageSizeTooLargeError.errno)
    for node_id in BROKERS:
        assert values(cluster, node_id, BROKER, str(node_id))["message.max.bytes"] == "1000"
        own = str(2000 * node_id)
        alter(cluster, node_id, BROKER, str(node_id), [("message.max.bytes", SET, own)])
    for node_id in BROKERS:
        own = str(2000 * node_id)
        assert values(cluster, node_id, BROKER, str(node_id))["message.max.bytes"] == own
        alter(cluster, node_id, BROKER, str(node_id), [("message.max.bytes", DELETE, None)])
    alter(cluster, 3, BROKER, "", [("message.max.bytes", DELETE, None)])
    wait_codes(cluster, "d", 0)


def test_a_default_that_a_topic_contradicts_counts_for_all_others(cluster: Cluster) -> None:
    """The topic goes on without what is its own, as it does after a restart of the brokers."""
    cluster.create_topic("i", 1, configs={"min.compaction.lag.ms": "100000"})
    cluster.wait_in_sync("i")
    with defaults(cluster, LARGEST_LAG, KEPT):
        for node_id in BROKERS:
            for name, text in (LARGEST_LAG, KEPT):
                wait_value(cluster, node_id, name, text)
        cluster.ask(lambda admin: admin.create_partitions({"i": 4}))
        cluster.wait_in_sync("i")
        assert values(cluster, 2, TOPIC, "i")["min.compaction.lag.ms"] == "0"
    for node_id in BROKERS:
        wait_until(
            lambda node_id=node_id: (
                values(cluster, node_id, TOPIC, "i")["min.compaction.lag.ms"] == "100000"
            ),
            f"the topic's own counts again on {node_id}",
        )


LARGEST_LAG = "log.cleaner.max.compaction.lag.ms", "50000"
LEAST_LAG = "log.cleaner.min.compaction.lag.ms", "100000"
KEPT = "log.retention.ms", "99000000"


@contextmanager
def defaults(cluster: Cluster, *properties: tuple[str, str]) -> Iterator[None]:
    """Set on all brokers, one after the other."""
    for name, text in properties:
        alter(cluster, 1, BROKER, "", [(name, SET, text)])
    yield
    alter(cluster, 1, BROKER, "", [(name, DELETE, None) for name, _ in properties])


def wait_value(cluster: Cluster, node_id: int, name: str, text: str) -> None:
    wait_until(
        lambda: values(cluster, node_id, BROKER, str(node_id))[name] == text,
        f"{name}={text} counts on {node_id}",
    )


@pytest.mark.slow
def test_a_default_that_a_brokers_own_contradicts_counts_on_the_others(cluster: Cluster) -> None:
    """That broker hears of all else, and is started again."""
    alter(cluster, 2, BROKER, "2", [(LEAST_LAG[0], SET, LEAST_LAG[1])])
    with defaults(cluster, LARGEST_LAG, KEPT):
        wait_value(cluster, 1, *LARGEST_LAG)
        wait_value(cluster, 2, *KEPT)
        cluster.stop(2)
        cluster.start(2)
        wait_value(cluster, 2, *KEPT)
        wait_value(cluster, 2, *LEAST_LAG)
        alter(cluster, 2, BROKER, "2", [(LEAST_LAG[0], DELETE, None)])
        wait_value(cluster, 2, *LARGEST_LAG)


def test_what_others_write_is_followed_and_nonsense_is_left_alone(cluster: Cluster) -> None:
    spread(cluster, "f")
    path = "/config/topics/f"
    with zookeeper(cluster) as foreign:

        def notice(value: bytes) -> None:
            foreign.create("/config/changes/config_change_", value, sequence=True)

        foreign.set("/config/brokers/<default>", b"nonsense")
        for value in (
            b"",
            b"\xff",
            b'{"version":7}',
            b'{"version":2,"entity_path":"topics/no such topic"}',
            b'{"version":2,"entity_path":"clients/app"}',
            b'{"version":2,"entity_path":"brokers/<default>"}',
        ):
            notice(value)
        foreign.set(path, b'{"version":1,"config":{"max.message.bytes":"1000","flush.ms":"soon"}}')
        notice(b'{"version":2,"entity_path":"topics/f"}')
        wait_codes(cluster, "f", MessageSizeTooLargeError.errno)
        foreign.set(path, b'{"version":1,')
        notice(b'{"version":2,"entity_path":"topics/f"}')
        foreign.set("/config/brokers/<default>", b'{"version":1,"config":{}}')
        notice(b'{"version":1,"entity_type":"brokers","entity_name":"<default>"}')
        alter(cluster, 1, BROKER, "", [("log.retention.ms", SET, "77000000")])
        for node_id in BROKERS:
            wait_until(
                lambda node_id=node_id: (
                    values(cluster, node_id, BROKER, str(node_id))["log.retention.ms"] == "77000000"
                ),
                "the notice after the nonsense",
            )
        assert codes(cluster, "f") == [MessageSizeTooLargeError.errno] * 3
    alter(cluster, 2, TOPIC, "f", [("max.message.bytes", SET, "100000")])
    wait_codes(cluster, "f", 0)


def test_what_was_set_while_a_broker_had_no_session_is_read_in_its_next(cluster: Cluster) -> None:
    """Also where the notice of it is gone by then."""
    stopped = cluster.ours(3).process.pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        alter(cluster, 1, BROKER, "", [("log.retention.ms", SET, "88000000")])
        with zookeeper(cluster) as foreign:
            for name in foreign.get_children("/config/changes"):
                foreign.delete(f"/config/changes/{name}")
            wait_until(lambda: "3" not in foreign.get_children("/brokers/ids"), "it is gone")
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until(
        lambda: values(cluster, 3, BROKER, "3")["log.retention.ms"] == "88000000", "it has heard"
    )


def test_what_is_set_while_a_topic_is_given_partitions_counts_for_those_it_had(
    cluster: Cluster,
) -> None:
    """A broker reads a topic's configs as it makes new logs, and may hear later that they are
    others now."""
    spread(cluster, "g")
    with zookeeper(cluster) as foreign:
        foreign.set("/config/topics/g", b'{"version":1,"config":{"max.message.bytes":"1000"}}')
        cluster.ask(lambda admin: admin.create_partitions({"g": 6}))
        foreign.create(
            "/config/changes/config_change_",
            b'{"version":2,"entity_path":"topics/g"}',
            sequence=True,
        )
    wait_codes(cluster, "g", MessageSizeTooLargeError.errno)
