"""Metadata: all topics, some topics, topics that are not there yet."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.broker.api.conftest import wait_until_served
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import wait_for

TOPIC = MetadataRequest.MetadataRequestTopic


def ask(client: RawClient, version: int, *names: str, create: bool = False) -> Any:
    request = MetadataRequest(
        topics=[TOPIC(name=name, topic_id=None) for name in names],
        allow_auto_topic_creation=create,
    )
    return client.call(request, MetadataResponse, version)


@pytest.mark.parametrize("version", range(14))
def test_one_topic_in_every_version(
    client: RawClient, create: Callable[..., str], bootstrap: str, version: int
) -> None:
    name = create(3)
    response = ask(client, version, name)
    (node,) = response.brokers
    assert f"{node.host}:{node.port}" == bootstrap
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (0, name)
    assert sorted(p.partition_index for p in topic.partitions) == [0, 1, 2]
    for partition in topic.partitions:
        assert partition.error_code == 0
        assert partition.leader_id == node.node_id
        assert list(partition.replica_nodes) == list(partition.isr_nodes) == [node.node_id]
    if version >= 1:
        assert response.controller_id == node.node_id
        assert topic.is_internal in (False, None)
    if version >= 2:
        assert len(response.cluster_id) == 22
    if version >= 7:
        assert topic.partitions[0].leader_epoch >= 0
    if version >= 10:
        assert isinstance(topic.topic_id, uuid.UUID)


@pytest.mark.parametrize("version", [0, 1, 9, 12])
def test_all_topics(client: RawClient, topic: str, version: int) -> None:
    wanted: list[object] | None = None if version else []
    response = client.call(MetadataRequest(topics=wanted), MetadataResponse, version)
    assert topic in [t.name for t in response.topics]


def test_a_name_that_is_repeated_is_answered_once(client: RawClient, topic: str) -> None:
    answered = ask(client, 9, topic, "missing", topic, "missing", topic).topics
    assert sorted(each.name for each in answered) == sorted([topic, "missing"])


def test_no_topics(client: RawClient, topic: str) -> None:
    assert list(ask(client, 1).topics) == []


@pytest.mark.parametrize("version", [0, 3, 4, 12])
def test_a_missing_topic_is_created_when_asked_for(
    client: RawClient, topic_name: str, version: int
) -> None:
    code = wait_for(
        lambda: ask(client, version, topic_name, create=True).topics[0].error_code,
        lambda code: code not in (3, 5),  # Apache Kafka answers before it is there
    )
    assert code == 0


def test_two_clients_that_create_the_same_topic_at_once(
    connect: Callable[[], RawClient], topic_name: str
) -> None:
    clients = [connect() for _ in range(4)]
    request = MetadataRequest(topics=[TOPIC(name=topic_name)], allow_auto_topic_creation=True)
    for client in clients:
        client.send_body(3, 9, bytes(request.encode(version=9)))
    for client in clients:
        response = MetadataResponse.decode(client.receive_body(3, 9), version=9)
        assert response.topics[0].error_code in (0, 3, 5)
    wait_until_served(clients[0], topic_name)


def test_a_missing_topic_is_not_created_when_not_wanted(client: RawClient, topic_name: str) -> None:
    for _ in range(2):
        (topic,) = ask(client, 9, topic_name).topics
        assert (topic.error_code, topic.name, list(topic.partitions)) == (3, topic_name, [])


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ü", "x" * 250, "a/b"])
@pytest.mark.parametrize("create", [False, True])
def test_an_illegal_name_is_told_so(client: RawClient, name: str, create: bool) -> None:
    (topic,) = ask(client, 9, name, create=create).topics
    assert (topic.error_code, topic.name) == (17, name)


def test_topics_by_id(client: RawClient, topic: str) -> None:
    topic_id = ask(client, 12, topic).topics[0].topic_id
    request = MetadataRequest(topics=[TOPIC(name=None, topic_id=topic_id)])
    (found,) = client.call(request, MetadataResponse, 12).topics
    assert (found.error_code, found.name, len(found.partitions)) == (0, topic, 1)


def test_an_unknown_id(client: RawClient) -> None:
    request = MetadataRequest(topics=[TOPIC(name=None, topic_id=uuid.uuid4())])
    (found,) = client.call(request, MetadataResponse, 12).topics
    assert (found.error_code, found.name) == (100, None)


def test_authorized_operations_are_all_of_them(client: RawClient, topic: str) -> None:
    request = MetadataRequest(
        topics=[TOPIC(name=topic)],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    response = client.call(request, MetadataResponse, 9)
    assert response.topics[0].authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}
    assert response.authorized_operations == {5, 7, 8, 9, 10, 11, 12}
    plain = ask(client, 9, topic)
    assert plain.topics[0].authorized_operations is None
    assert plain.authorized_operations is None


def test_nothing_is_created_where_the_broker_forbids_it(tmp_path: Path) -> None:
    with (
        BrokerChild(tmp_path, {"auto.create.topics.enable": "false"}) as child,
        RawClient(child.host, child.port) as client,
    ):
        assert ask(client, 9, "wanted", create=True).topics[0].error_code == 3
