"""DeleteTopics: by name, by id; what was in the topic is gone."""

import uuid
from collections.abc import Callable

import pytest
from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from tests.support.broker_child import RawClient
from tests.support.records import batch_of, values_of

STATE = DeleteTopicsRequest.DeleteTopicState


@pytest.mark.parametrize("version", range(1, 6))
def test_by_name(client: RawClient, topic: str, version: int) -> None:
    request = DeleteTopicsRequest(topic_names=[topic, "missing"], timeout_ms=60_000)
    response = client.call(request, DeleteTopicsResponse, version)
    codes = {result.name: result.error_code for result in response.responses}
    assert codes == {topic: 0, "missing": 3}
    assert client.metadata_of(topic).error_code == 3


def test_by_name_and_by_id(client: RawClient, topic: str) -> None:
    topic_id = client.metadata_of(topic).topic_id
    request = DeleteTopicsRequest(topics=[STATE(name=None, topic_id=topic_id)], timeout_ms=60_000)
    (result,) = client.call(request, DeleteTopicsResponse, 6).responses
    assert (result.error_code, result.name, result.topic_id) == (0, topic, topic_id)
    assert client.metadata_of(topic).error_code == 3


def test_an_unknown_id(client: RawClient) -> None:
    topic_id = uuid.uuid4()
    request = DeleteTopicsRequest(topics=[STATE(name=None, topic_id=topic_id)], timeout_ms=60_000)
    (result,) = client.call(request, DeleteTopicsResponse, 6).responses
    assert (result.error_code, result.name, result.topic_id) == (100, None, topic_id)


def test_name_and_id_at_once(client: RawClient, topic: str) -> None:
    both = STATE(name=topic, topic_id=uuid.uuid4())
    request = DeleteTopicsRequest(topics=[both], timeout_ms=60_000)
    (result,) = client.call(request, DeleteTopicsResponse, 6).responses
    assert result.error_code == 42
    assert client.metadata_of(topic).error_code == 0


def test_a_topic_of_the_same_name_begins_empty(
    client: RawClient, create: Callable[..., str]
) -> None:
    name = create()
    old_id = client.metadata_of(name).topic_id
    assert client.produce(name, 0, batch_of(3)).error_code == 0
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000)
    assert client.call(request, DeleteTopicsResponse, 5).responses[0].error_code == 0
    create()
    assert client.metadata_of(name).topic_id != old_id
    assert client.produce(name, 0, batch_of([(None, b"new")])).base_offset == 0
    fetched = client.fetch(FetchRequest(11, 0, 1, [FetchPartition(name, 0, 0, 1 << 20)]))
    assert values_of(fetched.partitions[0].records) == [(0, b"new")]
