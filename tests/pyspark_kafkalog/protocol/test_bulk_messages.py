"""Produce and Fetch as kafka-python, which generates them from Kafka's own JSON, writes and reads
them: every version, both directions, and every way to cut a message off."""

import importlib
import io
import uuid
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pytest
from kafka.errors import KafkaProtocolError
from kafka.protocol.consumer import FetchRequest as OracleFetchRequest
from kafka.protocol.consumer import FetchResponse as OracleFetchResponse
from kafka.protocol.producer import ProduceRequest as OracleProduceRequest
from kafka.protocol.producer import ProduceResponse as OracleProduceResponse
from typing_extensions import Buffer

from pyspark_kafkalog.protocol import fetch, produce
from pyspark_kafkalog.protocol.leader_hints import LeaderIdAndEpoch, NodeEndpoint
from pyspark_kafkalog.protocol.topic_runs import MAX_VERSION_WITH_NAMES
from tests.support.present import present

PRODUCE_VERSIONS = range(produce.MAX_VERSION + 1)
FETCH_VERSIONS = range(fetch.MAX_VERSION + 1)
RECORDS = bytes(range(256)) * 3
IDS = {
    "orders": uuid.UUID(int=7),
    "empty": uuid.UUID(int=8),
    "other": uuid.UUID(int=2**127 + 5),
    "gone": uuid.UUID(int=9),
}


class OfTopic(Protocol):
    topic: str
    topic_id: uuid.UUID | None


_OfTopic = TypeVar("_OfTopic", bound=OfTopic)


def with_ids(
    items: list[_OfTopic],
    version: int,
) -> list[_OfTopic]:
    """From version 13 on topics have an id instead of a name."""
    if version > MAX_VERSION_WITH_NAMES:
        for item in items:
            item.topic_id, item.topic = IDS[item.topic], ""
    return items


def topic_of(oracle_topic: Any, version: int) -> Any:
    if version <= MAX_VERSION_WITH_NAMES:
        return oracle_topic.topic
    (name,) = (name for name, topic_id in IDS.items() if topic_id == oracle_topic.topic_id)
    return name


def joined(parts: list[Buffer]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def encoded_again(oracle: Any, version: int) -> bytes:
    oracle._header = None  # what its decoder leaves unset and its encoder reads
    return bytes(oracle.encode(version=version))


def produce_request(version: int) -> produce.ProduceRequest:
    return produce.ProduceRequest(
        version=version,
        transactional_id="tx-é" if version >= 3 else None,
        acks=-1,
        timeout_ms=1500,
        partitions=with_ids(
            [
                produce.ProducePartition("orders", 0, RECORDS),
                produce.ProducePartition("orders", 7, b"x"),
                produce.ProducePartition("empty", 1, None),
            ],
            version,
        ),
    )


def oracle_topic(name: str, version: int) -> dict[Any, Any]:
    return {"name": name} if version <= MAX_VERSION_WITH_NAMES else {"topic_id": IDS[name]}


def oracle_produce_request(version: int) -> Any:
    request = OracleProduceRequest
    return request(
        version=version,
        transactional_id="tx-é" if version >= 3 else None,
        acks=-1,
        timeout_ms=1500,
        topic_data=[
            request.TopicProduceData(
                **oracle_topic("orders", version),
                partition_data=[
                    request.TopicProduceData.PartitionProduceData(index=0, records=RECORDS),
                    request.TopicProduceData.PartitionProduceData(index=7, records=b"x"),
                ],
            ),
            request.TopicProduceData(
                **oracle_topic("empty", version),
                partition_data=[
                    request.TopicProduceData.PartitionProduceData(index=1, records=None)
                ],
            ),
        ],
    )


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_request_is_written_as_the_oracle_writes_it(version: int) -> None:
    ours = joined(produce.encode_produce_request(produce_request(version)))
    assert ours == bytes(oracle_produce_request(version).encode(version=version))


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_request_is_read_back_with_its_records_uncopied(version: int) -> None:
    body = bytearray(oracle_produce_request(version).encode(version=version))
    request = produce.decode_produce_request(memoryview(body), version)
    assert request == produce_request(version)
    memoryview(present(request.partitions[0].records))[0] = 99
    assert bytes([99]) + RECORDS[1:] in bytes(body)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_response_agrees_with_the_oracle(version: int) -> None:
    results = with_ids(
        [
            produce.ProducedPartition("orders", 0, 0, 42),
            produce.ProducedPartition("orders", 7, 10, -1),
            produce.ProducedPartition("empty", 1, 87, -1),
        ],
        version,
    )
    if version >= 2:
        results[0].log_append_time_ms = 1_700_000_000_000
    if version >= 5:
        results[0].log_start_offset = 3
    if version >= 8:
        results[1].error_message = "too large"
    response = produce.ProduceResponse(results, throttle_ms=5)
    if version >= 10:
        results[2].current_leader = LeaderIdAndEpoch(2, 77)
        response.node_endpoints = [NodeEndpoint(2, "host-é", 9092, "rack"), NodeEndpoint(3, "h", 1)]
    ours = bytes(produce.encode_produce_response(response, version))
    oracle = OracleProduceResponse.decode(ours, version=version)
    assert [
        (topic.topic_id or topic.name, part.index, part.error_code, part.base_offset)
        for topic in oracle.responses
        for part in topic.partition_responses
    ] == [(r.topic_id or r.topic, r.partition, r.error_code, r.base_offset) for r in results]
    assert encoded_again(oracle, version) == ours
    decoded = produce.decode_produce_response(memoryview(ours), version)
    assert decoded.partitions == results
    assert decoded.throttle_ms == (5 if version >= 1 else 0)
    assert decoded.node_endpoints == response.node_endpoints


def fetch_request(version: int) -> fetch.FetchRequest:
    request = fetch.FetchRequest(
        version=version,
        max_wait_ms=500,
        min_bytes=1,
        partitions=[
            fetch.FetchPartition("orders", 0, 1 << 40, 1 << 20),
            fetch.FetchPartition("orders", 3, 0, 100),
            fetch.FetchPartition("other", 1, 5, 100),
        ],
    )
    if version >= 3:
        request.max_bytes = 50 << 20
    if version >= 4:
        request.isolation_level = 1
    if version >= 7:
        request.session_id, request.session_epoch = 9, 3
        request.forgotten = [
            fetch.ForgottenPartition("gone", 4),
            fetch.ForgottenPartition("gone", 5),
            fetch.ForgottenPartition("other", 6),
        ]
        with_ids(request.forgotten, version)
    if version >= 15:
        request.replica_id = 3
    if version >= 11:
        request.rack_id = "rack-1"
    for ask in request.partitions:
        ask.log_start_offset = 2 if version >= 5 else -1
        ask.current_leader_epoch = 6 if version >= 9 else -1
        ask.last_fetched_epoch = 4 if version >= 12 else -1
    with_ids(request.partitions, version)
    return request


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_request_agrees_with_the_oracle_both_ways(version: int) -> None:
    ours = bytes(fetch.encode_fetch_request(fetch_request(version)))
    oracle = OracleFetchRequest.decode(ours, version=version)
    assert oracle.max_wait_ms == 500
    assert [
        (topic_of(topic, version), part.partition, part.fetch_offset, part.partition_max_bytes)
        for topic in oracle.topics
        for part in topic.partitions
    ] == [("orders", 0, 1 << 40, 1 << 20), ("orders", 3, 0, 100), ("other", 1, 5, 100)]
    assert encoded_again(oracle, version) == ours
    assert fetch.decode_fetch_request(memoryview(ours), version) == fetch_request(version)


def fetch_response(version: int) -> fetch.FetchResponse:
    response = fetch.FetchResponse(
        [
            fetch.FetchedPartition("orders", 0, 0, 100, RECORDS),
            fetch.FetchedPartition("orders", 3, 1, -1),
            fetch.FetchedPartition("other", 1, 0, 5, b"yz"),
        ]
    )
    if version >= 1:
        response.throttle_ms = 7
    if version >= 7:
        response.session_id = 12
        response.error_code = 6
    if version >= 16:
        response.node_endpoints = [
            NodeEndpoint(1, "host-é", 9092, "rack"),
            NodeEndpoint(2, "::1", 65535),
        ]
    for found in response.partitions:
        found.last_stable_offset = 90 if version >= 4 else -1
        found.aborted = [(1000, 17), (1001, 20)] if version >= 4 else []
        found.log_start_offset = 3 if version >= 5 else -1
        found.preferred_read_replica = 2 if version >= 11 else -1
    if version >= 12:
        response.partitions[0].diverging_epoch = fetch.EpochEndOffset(3, 1 << 40)
        response.partitions[1].diverging_epoch = fetch.EpochEndOffset(0, 0)
        response.partitions[1].current_leader = LeaderIdAndEpoch(2, 77)
    with_ids(response.partitions, version)
    return response


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_response_agrees_with_the_oracle_both_ways(version: int) -> None:
    ours = joined(fetch.encode_fetch_response(fetch_response(version), version))
    oracle = OracleFetchResponse.decode(ours, version=version)
    assert [
        (topic_of(topic, version), part.partition_index, part.error_code, part.high_watermark)
        for topic in oracle.responses
        for part in topic.partitions
    ] == [("orders", 0, 0, 100), ("orders", 3, 1, -1), ("other", 1, 0, 5)]
    assert bytes(oracle.responses[0].partitions[0].records) == RECORDS
    assert fetch.decode_fetch_response(memoryview(ours), version) == fetch_response(version)


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_agrees_with_a_second_oracle(version: int) -> None:
    """kio: other hands, the same JSON."""
    kio = importlib.import_module("kio.serial")
    schema = importlib.import_module(f"kio.schema.fetch.v{version}")
    for message_class, ours in (
        (schema.FetchRequest, bytes(fetch.encode_fetch_request(fetch_request(version)))),
        (
            schema.FetchResponse,
            joined(fetch.encode_fetch_response(fetch_response(version), version)),
        ),
    ):
        message, size_bytes = kio.entity_reader(message_class)(ours, 0)
        assert size_bytes == len(ours)
        again = io.BytesIO()
        kio.entity_writer(message_class)(again, message)
        assert again.getvalue() == ours, message


class Slice:
    """Stands for the broker's slice of a segment file: it has a length and is never read."""

    def __len__(self) -> int:
        return 1_000_000_000


def test_fetch_response_passes_sized_objects_through() -> None:
    found = Slice()
    response = fetch.FetchResponse([fetch.FetchedPartition("orders", 0, 0, 100, found)])
    parts = fetch.encode_fetch_response(response, 12)
    assert parts[1] is found  # type: ignore[comparison-overlap]
    assert bytes(parts[0]).endswith(bytes([0x81, 0x94, 0xEB, 0xDC, 0x03]))


@pytest.mark.parametrize(
    ("decode", "encoded", "version"),
    [
        (produce.decode_produce_request, joined(produce.encode_produce_request(r)), r.version)
        for r in map(produce_request, (0, 3, 9))
    ]
    + [
        (fetch.decode_fetch_request, bytes(fetch.encode_fetch_request(r)), r.version)
        for r in map(fetch_request, (0, 7, 12, 18))
    ]
    + [
        (fetch.decode_fetch_response, joined(fetch.encode_fetch_response(fetch_response(v), v)), v)
        for v in (0, 7, 12, 18)
    ],
)
def test_every_cut_and_every_flipped_byte_is_read_or_refused(
    decode: Callable[[memoryview, int], object], encoded: bytes, version: int
) -> None:
    for size in range(len(encoded)):
        try:
            decode(memoryview(encoded[:size]), version)
        except KafkaProtocolError:
            continue
    for index in range(min(len(encoded), 200)):
        for bit in (0x80, 0x01, 0xFF):
            damaged = bytearray(encoded)
            damaged[index] ^= bit
            try:
                decode(memoryview(damaged), version)
            except KafkaProtocolError:
                continue
