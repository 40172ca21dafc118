"""CreateTopics: what is made, and every way of being refused."""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.broker.api.conftest import wait_until_served
from tests.support.broker_child import RawClient

TOPIC = CreateTopicsRequest.CreatableTopic


def topic_of(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: dict[Any, Any] | None = None,
    configs: dict[Any, Any] | None = None,
) -> Any:
    return TOPIC(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            TOPIC.CreatableReplicaAssignment(partition_index=index, broker_ids=nodes)
            for index, nodes in (assignments or {}).items()
        ],
        configs=[
            TOPIC.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )


def send(client: RawClient, *topics: Any, version: int = 7, validate_only: bool = False) -> Any:
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=60_000, validate_only=validate_only
    )
    return client.call(request, CreateTopicsResponse, version).topics


def test_thousands_of_topics_hold_up_nobody_else(
    connect: Callable[[], RawClient], topic_name: str
) -> None:
    busy, other = connect(), connect()
    topics = [topic_of(f"{topic_name}-{number}") for number in range(2000)]
    request = CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=True)
    busy.send_body(19, 7, bytes(request.encode(version=7)))
    busy.socket.setblocking(False)
    for _ in range(3):
        assert not exists(other, topic_name)
        with pytest.raises(BlockingIOError):  # its answer is not there yet
            busy.socket.recv(1)


def exists(client: RawClient, name: str) -> Any:
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
    (topic,) = client.call(request, MetadataResponse, 9).topics
    return topic.error_code == 0


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version(client: RawClient, topic_name: str, version: int) -> None:
    (result,) = send(client, topic_of(topic_name, 2), version=version)
    assert (result.name, result.error_code) == (topic_name, 0)
    wait_until_served(client, topic_name)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
        configs = {config.name: config.value for config in result.configs}
        assert configs["segment.bytes"] == str(1 << 30)
    if version >= 7:
        assert result.topic_id is not None


@pytest.mark.parametrize("version", [0, 1])
def test_versions_that_old_clients_send(
    client: RawClient, topic_name: str, version: int, only_ours: None
) -> None:
    (result,) = send(client, topic_of(topic_name), version=version)
    assert result.error_code == 0
    assert exists(client, topic_name)


def test_validate_only_makes_nothing(client: RawClient, topic_name: str) -> None:
    (result,) = send(client, topic_of(topic_name, 2), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 2)
    assert not exists(client, topic_name)


def test_defaults_of_the_broker(client: RawClient, topic_name: str) -> None:
    (result,) = send(client, topic_of(topic_name, -1, -1))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 1, 1)


def test_a_config_is_kept_and_shown(client: RawClient, topic_name: str) -> None:
    (result,) = send(client, topic_of(topic_name, configs={"retention.ms": "123"}))
    (config,) = [config for config in result.configs if config.name == "retention.ms"]
    assert (config.value, config.config_source, config.read_only) == ("123", 1, False)


REFUSED: dict[str, tuple[dict[str, Any], int]] = {
    "bad name": ({"name": "a b"}, 17),
    "no partitions": ({"partitions": 0}, 37),
    "negative partitions": ({"partitions": -2}, 37),
    "no replicas": ({"factor": 0}, 38),
    "more replicas than brokers": ({"factor": 3}, 38),
    "unknown config": ({"configs": {"no.such.config": "1"}}, 40),
    "bad config value": ({"configs": {"retention.ms": "soon"}}, 40),
    "null config value": ({"configs": {"retention.ms": None}}, 40),
    "assignment to another broker": (
        {"partitions": -1, "factor": -1, "assignments": {0: [77]}},
        39,
    ),
    "assignment with a gap": ({"partitions": -1, "factor": -1, "assignments": {1: [1]}}, 39),
    "assignment and a number": ({"partitions": 1, "factor": -1, "assignments": {0: [1]}}, 42),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("validate_only", [False, True])
def test_refused(client: RawClient, topic_name: str, case: str, validate_only: bool) -> None:
    arguments, code = REFUSED[case]
    topic = topic_of(**{"name": topic_name, **arguments})
    (result,) = send(client, topic, validate_only=validate_only)
    assert result.error_code == code
    assert result.error_message
    assert (result.num_partitions, result.replication_factor) == (-1, -1)


def test_an_assignment_to_this_broker(client: RawClient, topic_name: str) -> None:
    topic = topic_of(topic_name, -1, -1, assignments={0: [1], 1: [1]})
    (result,) = send(client, topic)
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_a_topic_that_exists(client: RawClient, topic: str) -> None:
    (result,) = send(client, topic_of(topic))
    assert (result.error_code, result.error_message) == (36, f"Topic '{topic}' already exists.")


def test_a_name_that_collides(client: RawClient, topic_name: str) -> None:
    send(client, topic_of(topic_name + ".a"))
    (result,) = send(client, topic_of(topic_name + "_a"))
    assert result.error_code == 17


def test_one_bad_topic_does_not_spoil_the_others(client: RawClient, topic_name: str) -> None:
    results = send(client, topic_of(topic_name), topic_of("no good"), topic_of(topic_name + "b"))
    assert {result.name: result.error_code for result in results} == {
        topic_name: 0,
        "no good": 17,
        topic_name + "b": 0,
    }


def test_a_name_twice_in_one_request(client: RawClient, topic_name: str) -> None:
    results = send(client, topic_of(topic_name), topic_of(topic_name))
    assert [result.error_code for result in results] == [42]
    assert not exists(client, topic_name)


def test_too_many_partitions(client: RawClient, topic_name: str) -> None:
    (result,) = send(client, topic_of(topic_name, 2**31 - 1))
    assert result.error_code in (37, 44)
    assert not exists(client, topic_name)
