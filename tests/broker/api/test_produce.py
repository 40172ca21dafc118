"""Produce: appended in order, numbered, or refused with the code that clients know."""

import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import InvalidTopicError, UnknownTopicIdError
from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tests.broker.api.group_client import GroupClient
from tests.support.broker_child import RawClient
from tests.support.records import CODECS, NOW_MS, batch_of, values_of, whole


def body_of(
    topic: str,
    *batches: bytes,
    version: int = 9,
    acks: int = -1,
    transactional_id: str | None = None,
) -> bytes:
    parts = [ProducePartition(topic, index, batch) for index, batch in enumerate(batches)]
    request = ProduceRequest(version, transactional_id, acks, 5000, parts)
    return b"".join(bytes(part) for part in encode_produce_request(request))


def fetched_values(
    client: RawClient, topic: str, partition: int = 0
) -> list[tuple[int, bytes | None]]:
    ask = FetchPartition(topic, partition, 0, 1 << 20)
    return values_of(client.fetch(FetchRequest(11, 0, 1, [ask])).partitions[0].records)


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_numbers_the_records(
    client: RawClient, topic: str, version: int, acks: int
) -> None:
    for expected_offset in (0, 3, 6):
        produced = client.produce(topic, 0, batch_of(3), version=version, acks=acks)
        assert produced.error_code == 0
        assert (produced.topic, produced.partition) == (topic, 0)
        assert produced.base_offset == expected_offset
        assert produced.log_append_time_ms == -1
        if version >= 5:
            assert produced.log_start_offset == 0
    assert [offset for offset, _ in fetched_values(client, topic)] == list(range(9))


def test_an_internal_topic_is_refused_by_its_id_too(client: RawClient, group: GroupClient) -> None:
    internal = client.metadata_of("__consumer_offsets").topic_id
    request = ProduceRequest(13, None, -1, 5000, [ProducePartition("", 0, batch_of(2), internal)])
    body = b"".join(bytes(part) for part in encode_produce_request(request))
    client.send_body(0, 13, body)
    (result,) = decode_produce_response(client.receive_body(0, 13), 13).partitions
    assert result.error_code == InvalidTopicError.errno


def test_a_topic_by_its_id(client: RawClient, topic: str) -> None:
    topic_id = client.metadata_of(topic).topic_id
    unknown = uuid.uuid4()
    parts = [
        ProducePartition("", 0, batch_of(2), topic_id),
        ProducePartition("", 5, batch_of(2), topic_id),
        ProducePartition("", 0, batch_of(2), unknown),
    ]
    request = ProduceRequest(13, None, -1, 5000, parts)
    body = b"".join(bytes(part) for part in encode_produce_request(request))
    client.send_body(0, 13, body)
    results = decode_produce_response(client.receive_body(0, 13), 13).partitions
    found = {(each.topic_id, each.partition): each.error_code for each in results}
    assert found == {(topic_id, 0): 0, (topic_id, 5): 3, (unknown, 0): 100}
    assert len(fetched_values(client, topic)) == 2


def test_a_topic_that_is_created_again_while_a_batch_is_converted_gets_nothing(
    client: RawClient, connect: Callable[[], RawClient], create: Callable[..., str]
) -> None:
    """It was addressed by the id of the topic that is gone (KIP-516)."""
    configs = {"compression.type": "gzip", "max.message.bytes": "40000000"}
    topic = create(**configs)
    topic_id = client.metadata_of(topic).topic_id
    slow = batch_of([(b"k", os.urandom(30_000_000))])
    request = ProduceRequest(13, None, -1, 5000, [ProducePartition("", 0, slow, topic_id)])
    producer = connect()
    producer.send_body(0, 13, b"".join(map(bytes, encode_produce_request(request))))
    time.sleep(0.1)  # It has to arrive, and takes a second to be compressed.
    deleted = client.call(
        DeleteTopicsRequest(topic_names=[topic], timeout_ms=60_000), DeleteTopicsResponse, 3
    )
    assert deleted.responses[0].error_code == 0
    create(**configs)
    (result,) = decode_produce_response(producer.receive_body(0, 13), 13).partitions
    assert result.error_code == UnknownTopicIdError.errno
    (found,) = client.fetch(FetchRequest(11, 0, 0, [FetchPartition(topic, 0, 0, 1)])).partitions
    assert found.high_watermark == 0


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_kept_as_it_is(client: RawClient, topic: str, codec: str) -> None:
    rows = [(b"k", b"v%d" % number * 100) for number in range(50)]
    batch = batch_of(rows, codec=codec)
    assert client.produce(topic, 0, batch).error_code == 0
    ask = FetchPartition(topic, 0, 0, 1 << 20)
    (found,) = client.fetch(FetchRequest(11, 0, 1, [ask])).partitions
    records = whole(found.records)
    assert records[16:] == batch[16:]  # all but the offset, size and leader epoch
    assert values_of(records) == [(offset, value) for offset, (_, value) in enumerate(rows)]


def test_several_partitions_in_one_request(client: RawClient, create: Callable[..., str]) -> None:
    name = create(3)
    client.send_body(0, 9, body_of(name, batch_of(1), batch_of(2), batch_of(3)))
    results = decode_produce_response(client.receive_body(0, 9), 9).partitions
    assert sorted((r.partition, r.error_code, r.base_offset) for r in results) == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    assert [len(fetched_values(client, name, partition)) for partition in range(3)] == [1, 2, 3]


def test_acks_0_is_not_answered(client: RawClient, topic: str) -> None:
    client.send_body(0, 9, body_of(topic, batch_of(2), acks=0))
    # The answer to this one is the first that comes.
    assert client.produce(topic, 0, batch_of(1)).base_offset == 2


def test_acks_0_that_fails_closes_the_connection(client: RawClient, topic_name: str) -> None:
    client.send_body(0, 9, body_of(topic_name, batch_of(1), acks=0))
    assert client.is_closed_by_broker()


def test_many_requests_in_flight_are_answered_in_order(client: RawClient, topic: str) -> None:
    body = body_of(topic, batch_of(1))
    sent = [client.send_body(0, 9, body) for _ in range(200)]
    offsets = []
    for _ in sent:
        (produced,) = decode_produce_response(client.receive_body(0, 9), 9).partitions
        offsets.append(produced.base_offset)
    assert offsets == list(range(200))


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_illegal_acks(client: RawClient, topic: str, acks: int) -> None:
    assert client.produce(topic, 0, batch_of(1), acks=acks).error_code == 21
    assert fetched_values(client, topic) == []


def test_an_unknown_topic_or_partition(client: RawClient, topic: str, topic_name: str) -> None:
    assert client.produce(topic_name + "-missing", 0, batch_of(1)).error_code == 3
    assert client.produce(topic, 7, batch_of(1)).error_code == 3
    assert client.produce(topic, -1, batch_of(1)).error_code == 3


def test_a_flipped_bit(client: RawClient, topic: str) -> None:
    batch = bytearray(batch_of(5))
    batch[-3] ^= 0x10
    produced = client.produce(topic, 0, bytes(batch))
    assert (produced.error_code, produced.base_offset) == (2, -1)
    assert fetched_values(client, topic) == []


def test_a_batch_that_is_too_large(client: RawClient, create: Callable[..., str]) -> None:
    name = create(**{"max.message.bytes": "1000"})
    assert client.produce(name, 0, batch_of([(None, b"x" * 2000)])).error_code == 10
    assert client.produce(name, 0, batch_of([(None, b"x" * 100)])).error_code == 0


def test_log_append_time(client: RawClient, create: Callable[..., str]) -> None:
    name = create(**{"message.timestamp.type": "LogAppendTime"})
    produced = client.produce(name, 0, batch_of(2))
    assert produced.error_code == 0
    assert produced.log_append_time_ms > NOW_MS


def test_a_partition_without_a_batch(client: RawClient, topic: str, only_ours: None) -> None:
    given: list[Any] = [None, b"", b"\x00" * 10]
    for records in given:
        assert client.produce(topic, 0, records).error_code == 87


def test_two_batches_in_one_partition(client: RawClient, topic: str) -> None:
    assert client.produce(topic, 0, batch_of(1) + batch_of(1)).error_code == 87
    assert fetched_values(client, topic) == []


def test_a_cut_off_batch(client: RawClient, topic: str) -> None:
    batch = batch_of(5)
    for size_bytes in (20, 60, 61, len(batch) - 1):
        assert client.produce(topic, 0, batch[:size_bytes]).error_code in (2, 87)


def test_an_idempotent_producers_retry_is_not_appended_twice(client: RawClient, topic: str) -> None:
    batches = [batch_of(3, producer=(9_000_001, 0, sequence)) for sequence in (0, 3, 6)]
    assert [client.produce(topic, 0, batch).base_offset for batch in batches] == [0, 3, 6]
    again = client.produce(topic, 0, batches[1])
    assert (again.error_code, again.base_offset) == (0, 3)
    gap = batch_of(3, producer=(9_000_001, 0, 12))
    assert client.produce(topic, 0, gap).error_code == 45
    assert len(fetched_values(client, topic)) == 9
