"""Topics made, shown and taken away: on our broker."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    KafkaProtocolError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
)
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.errors import BrokersUnreachableError, UnknownTopicError
from tests.pyspark_kafkalog.client.scripted import (
    CUT,
    METADATA,
    SILENCE,
    VERSIONS,
    Request,
    ScriptedBroker,
)


def test_a_topic_is_there_with_leaders_once_it_is_created(cluster: Cluster) -> None:
    admin.create_topic(cluster, "created", 3, 1, {"retention.ms": "86400000"})
    assert "created" in cluster.topics()
    (topic,) = admin.describe_topics(cluster, ["created"])
    assert topic.name == "created"
    assert topic.configs == {"retention.ms": "86400000"}
    assert [p.partition for p in topic.partitions] == [0, 1, 2]
    assert all(p.leader in p.isr and p.leader in p.replicas for p in topic.partitions)


def test_partitions_and_replicas_default_to_the_brokers(cluster: Cluster) -> None:
    admin.create_topic(cluster, "by-default")
    assert cluster.topics(["by-default"]) == {"by-default": [0]}


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "configs", "error"),
    [
        ("not a name", 1, 1, {}, InvalidTopicError),
        ("x", 0, 1, {}, InvalidPartitionsError),
        ("x", 1, 3, {}, InvalidReplicationFactorError),
        ("x", 1, 1, {"frobnicate": "1"}, InvalidConfigurationError),
        ("x", 1, 1, {"retention.ms": "long"}, InvalidConfigurationError),
    ],
)
def test_what_cannot_be_created_says_why(
    cluster: Cluster,
    name: str,
    partitions: int,
    replicas: int,
    configs: dict[str, str],
    error: type[Exception],
) -> None:
    with pytest.raises(error) as raised:
        admin.create_topic(cluster, name, partitions, replicas, configs)
    assert raised.value.args[0]
    assert name not in cluster.topics()


def test_a_topic_that_exists(cluster: Cluster, new_topic: Callable[..., str]) -> None:
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topic(cluster, new_topic())


def test_topics_are_described_in_the_order_of_names(
    cluster: Cluster, new_topic: Callable[..., str]
) -> None:
    one, two = new_topic(1), new_topic(2)
    described = admin.describe_topics(cluster, [two, one])
    assert [(topic.name, len(topic.partitions)) for topic in described] == [(two, 2), (one, 1)]
    assert admin.describe_topics(cluster, []) == []
    with pytest.raises(UnknownTopicError, match="Topic nowhere does not exist"):
        admin.describe_topics(cluster, ["nowhere"])


def test_deleted_topics_are_gone(cluster: Cluster, new_topic: Callable[..., str]) -> None:
    one, two = new_topic(), new_topic()
    with pytest.raises(UnknownTopicError, match="Topic nowhere does not exist"):
        admin.delete_topics(cluster, [one, "nowhere"])
    assert one in cluster.topics()
    admin.delete_topics(cluster, [one, two])
    assert {one, two}.isdisjoint(cluster.topics())


def test_a_controller_that_moved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, CreateTopicsRequest.API_KEY, (0, 7))
    with ScriptedBroker() as one, ScriptedBroker(node_id=2) as two:
        one.brokers = two.brokers = {1: one, 2: two}

        def create(request: Request) -> bytes:
            error_code = 0
            if len(one.asked(CreateTopicsRequest.API_KEY)) == 1 and one.node_id == 1:
                one.node_id = 2
                error_code = 41
            result = CreateTopicsResponse.CreatableTopicResult(name="t", error_code=error_code)
            response = CreateTopicsResponse(topics=[result])
            return bytes(response.encode(version=request.version))

        one.handlers[CreateTopicsRequest.API_KEY] = create
        two.handlers[CreateTopicsRequest.API_KEY] = create
        with Cluster(one.config()) as cluster:
            admin.create_topic(cluster, "t", 1, 1)
        assert len(two.asked(CreateTopicsRequest.API_KEY)) == 1


def test_a_topic_that_was_created_is_waited_for_until_each_partition_has_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As brokers of a cluster know it: first without leaders, then with some, then with all."""
    monkeypatch.setitem(VERSIONS, CreateTopicsRequest.API_KEY, (0, 7))
    with ScriptedBroker(topics={"t": 2}) as broker:
        leaders = [{0: -1, 1: -1}, {0: 1, 1: -1}, {0: 1, 1: 1}]

        def create(request: Request) -> bytes:
            result = CreateTopicsResponse.CreatableTopicResult(name="t", error_code=0)
            return bytes(CreateTopicsResponse(topics=[result]).encode(version=request.version))

        def metadata(request: Request) -> bytes:
            if broker.asked(CreateTopicsRequest.API_KEY) and leaders:
                broker.leaders = leaders.pop(0)
            return broker.metadata(request)

        broker.handlers |= {CreateTopicsRequest.API_KEY: create, METADATA: metadata}
        with Cluster(broker.config()) as cluster:
            admin.create_topic(cluster, "t", 2, 1)
        assert broker.leaders == {0: 1, 1: 1}


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_change_whose_answer_is_lost_may_have_been_made(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    answers = {CreateTopicsRequest.API_KEY: 36, DeleteTopicsRequest.API_KEY: 3}

    def answer(request: Request) -> Any:
        error_code = answers[request.api_key]
        if is_lost and len(broker.asked(request.api_key)) == 1:
            return CUT
        response: Any
        if request.api_key == CreateTopicsRequest.API_KEY:
            result = CreateTopicsResponse.CreatableTopicResult(name="t", error_code=error_code)
            response = CreateTopicsResponse(topics=[result])
        else:
            deleted = DeleteTopicsResponse.DeletableTopicResult(name="t", error_code=error_code)
            response = DeleteTopicsResponse(responses=[deleted])
        return bytes(response.encode(version=request.version))

    for key in answers:
        monkeypatch.setitem(VERSIONS, key, (0, 5))
    with (
        ScriptedBroker(dict.fromkeys(answers, answer)) as broker,
        Cluster(broker.config()) as cluster,
    ):
        says = "is perhaps the one" if is_lost else "^(?!.*perhaps)"
        with pytest.raises(TopicAlreadyExistsError, match=says):
            admin.create_topic(cluster, "t", 1, 1)
        with nullcontext() if is_lost else pytest.raises(UnknownTopicError):
            admin.delete_topics(cluster, ["t"])


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_change_that_takes_longer_than_it_was_waited_for_may_be_made_yet(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """Brokers go on with it: either no answer comes in time, or the one that says so."""

    def answer(request: Request) -> Any:
        if is_silent:
            return SILENCE
        response: Any
        error_code = RequestTimedOutError.errno
        if request.api_key == CreateTopicsRequest.API_KEY:
            result = CreateTopicsResponse.CreatableTopicResult(name="t", error_code=error_code)
            response = CreateTopicsResponse(topics=[result])
        else:
            deleted = DeleteTopicsResponse.DeletableTopicResult(name="t", error_code=error_code)
            response = DeleteTopicsResponse(responses=[deleted])
        return bytes(response.encode(version=request.version))

    handlers = dict.fromkeys((CreateTopicsRequest.API_KEY, DeleteTopicsRequest.API_KEY), answer)
    for key in handlers:
        monkeypatch.setitem(VERSIONS, key, (0, 5))
    with (
        ScriptedBroker(handlers) as broker,
        Cluster(broker.config(request_timeout_ms="500")) as cluster,
    ):
        says = "request.timeout.ms=500 that topic t is created. It may be so, or become so yet"
        with pytest.raises(BrokersUnreachableError, match=says):
            admin.create_topic(cluster, "t", 1, 1)
        with pytest.raises(BrokersUnreachableError, match=r"that topic t is deleted\. It may be"):
            admin.delete_topics(cluster, ["t"])


@pytest.mark.parametrize(
    ("request_type", "nothing", "ask"),
    [
        (CreateTopicsRequest, CreateTopicsResponse(topics=[]), admin.create_topic),
        (
            DeleteTopicsRequest,
            DeleteTopicsResponse(responses=[]),
            lambda cluster, name: admin.delete_topics(cluster, [name]),
        ),
        (
            DescribeConfigsRequest,
            DescribeConfigsResponse(results=[]),
            lambda cluster, name: admin.describe_topics(cluster, [name]),
        ),
    ],
)
def test_an_answer_that_leaves_a_topic_out_is_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
    request_type: type[CreateTopicsRequest],
    nothing: CreateTopicsResponse,
    ask: Callable[..., list[admin.TopicDescription] | None],
) -> None:
    api_key = request_type.API_KEY
    monkeypatch.setitem(VERSIONS, api_key, (0, 4))
    handlers = {api_key: lambda request: bytes(nothing.encode(version=request.version))}
    with ScriptedBroker(handlers) as broker, Cluster(broker.config()) as cluster:
        with pytest.raises(KafkaProtocolError, match="left topic t out"):
            ask(cluster, "t")
        if request_type is DescribeConfigsRequest:
            assert admin.topic_property(cluster, "t", "cleanup.policy") is None
