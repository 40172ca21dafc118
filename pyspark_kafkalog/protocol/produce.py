"""Produce (API key 0), request and response, versions 0 to 13, both directions.

Written by hand since `kafka.protocol` copies the records: here a request's `records` stay a view of
the frame that was received (writable when the frame is, so that the broker stamps offsets into it),
and are sent as parts of their own. Version 12 has the bytes of 11 (KIP-890: it may begin a
transaction); from 13 on topics have ids.

Bytes only, no sockets. Pure functions: any thread.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyspark_kafkalog.protocol.frames import is_flexible
from pyspark_kafkalog.protocol.leader_hints import (
    NODE_ENDPOINTS_TAG,
    LeaderIdAndEpoch,
    NodeEndpoint,
    decode_endpoints,
    decode_leader,
    encode_endpoints,
    encode_leader,
)
from pyspark_kafkalog.protocol.topic_runs import (
    decode_topic,
    encode_topic,
    encode_topic_count,
)
from pyspark_kafkalog.protocol.wire import INT32, MAX_REQUEST_ELEMENTS, Reader, Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

API_KEY: Final = 0
MAX_VERSION: Final = 13

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_LEADER_HINTS_VERSION: Final = 10
_CURRENT_LEADER_TAG: Final = 0

_RESULT_V0: Final = struct.Struct(">ihq")
_RESULT_V2: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")


# Their __init__ is written by hand, since what dataclass makes is not compiled.
@dataclass(init=False, slots=True)
class ProducePartition:
    """Records for one partition: whole record batches (or an old message set), or null."""

    topic: str
    partition: int
    records: "Buffer | None"
    topic_id: UUID | None

    def __init__(
        self, topic: str, partition: int, records: "Buffer | None", topic_id: UUID | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records
        self.topic_id = topic_id


@dataclass(init=False, slots=True)
class ProduceRequest:
    """Record batches of partitions, sealed by the client."""

    version: int
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]

    def __init__(
        self,
        version: int,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        partitions: list[ProducePartition],
    ) -> None:
        self.version = version
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.partitions = partitions


@dataclass(init=False, slots=True)
class ProducedPartition:
    """One partition's answer; -1 where a field does not apply (base offset on error, times).

    `record_errors`: the records that were at fault, by their place in the batch from 0 on, each
    with the reason (from version 8 on). `current_leader`: where the error is that this broker does
    not lead (from version 10 on)."""

    topic: str
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    error_message: str | None
    topic_id: UUID | None
    record_errors: "Sequence[tuple[int, str | None]]"
    current_leader: LeaderIdAndEpoch | None

    def __init__(
        self,
        topic: str,
        partition: int,
        error_code: int,
        base_offset: int,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        error_message: str | None = None,
        topic_id: UUID | None = None,
        record_errors: "Sequence[tuple[int, str | None]]" = (),
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.error_code = error_code
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.error_message = error_message
        self.topic_id = topic_id
        self.record_errors = record_errors
        self.current_leader = None


@dataclass(init=False, slots=True)
class ProduceResponse:
    """What became of them, partition by partition."""

    partitions: list[ProducedPartition]
    throttle_ms: int
    node_endpoints: "Sequence[NodeEndpoint]"

    def __init__(
        self,
        partitions: list[ProducedPartition],
        throttle_ms: int = 0,
        node_endpoints: "Sequence[NodeEndpoint]" = (),
    ) -> None:
        self.partitions = partitions
        self.throttle_ms = throttle_ms
        self.node_endpoints = node_endpoints


def decode_produce_request(body: memoryview, version: int) -> ProduceRequest:
    """The request in `body`; raises KafkaProtocolError."""
    reader = Reader(body, is_flexible(API_KEY, version), max_elements=MAX_REQUEST_ELEMENTS)
    transactional_id = reader.nullable_string() if version >= 3 else None
    acks, timeout_ms = reader.fields(_ACKS_AND_TIMEOUT)
    partitions = []
    for _ in range(reader.count()):
        topic, topic_id = decode_topic(reader, version)
        for _ in range(reader.count()):
            (partition,) = reader.fields(INT32)
            records = reader.nullable_bytes()
            partitions.append(ProducePartition(topic, partition, records, topic_id))
            reader.skip_tags()
        reader.skip_tags()
    return ProduceRequest(version, transactional_id, acks, timeout_ms, partitions)


def encode_produce_request(request: ProduceRequest) -> list["Buffer"]:
    """The request's body as parts in order: headers, and each partition's records as they are."""
    writer = Writer(is_flexible(API_KEY, request.version))
    if request.version >= 3:
        writer.string(request.transactional_id)
    writer.fields(_ACKS_AND_TIMEOUT, request.acks, request.timeout_ms)
    for partitions in encode_topic_count(writer, request.partitions, request.version):
        encode_topic(writer, partitions[0], request.version)
        writer.count(len(partitions))
        for item in partitions:
            writer.fields(INT32, item.partition)
            size_bytes = 0 if item.records is None else memoryview(item.records).nbytes
            writer.bulk(item.records, size_bytes)
            writer.no_tags()
        writer.no_tags()
    writer.no_tags()
    return writer.parts()


def encode_produce_response(response: ProduceResponse, version: int) -> "Buffer":
    """The response's body."""
    writer = Writer(is_flexible(API_KEY, version))
    for results in encode_topic_count(writer, response.partitions, version):
        encode_topic(writer, results[0], version)
        writer.count(len(results))
        for result in results:
            _encode_result(writer, result, version)
        writer.no_tags()
    if version >= 1:
        writer.fields(INT32, response.throttle_ms)
    if version >= _LEADER_HINTS_VERSION and response.node_endpoints:
        writer.tags([(NODE_ENDPOINTS_TAG, encode_endpoints(response.node_endpoints))])
    else:
        writer.no_tags()
    return writer.parts()[0]


def _encode_result(writer: Writer, result: ProducedPartition, version: int) -> None:
    partition, error_code, base_offset = result.partition, result.error_code, result.base_offset
    time_ms, start_offset = result.log_append_time_ms, result.log_start_offset
    if version >= 5:
        fields = _RESULT_V5.pack(partition, error_code, base_offset, time_ms, start_offset)
    elif version >= 2:
        fields = _RESULT_V2.pack(partition, error_code, base_offset, time_ms)
    else:
        fields = _RESULT_V0.pack(partition, error_code, base_offset)
    writer.raw(fields)
    if version >= 8:
        writer.count(len(result.record_errors))
        for index, message in result.record_errors:
            writer.fields(INT32, index)
            writer.string(message)
            writer.no_tags()
        writer.string(result.error_message)
    if version >= _LEADER_HINTS_VERSION and result.current_leader is not None:
        writer.tags([(_CURRENT_LEADER_TAG, encode_leader(result.current_leader))])
    else:
        writer.no_tags()


def decode_produce_response(body: memoryview, version: int) -> ProduceResponse:
    """The response in `body`; raises KafkaProtocolError."""
    reader = Reader(body, is_flexible(API_KEY, version))
    results = []
    for _ in range(reader.count()):
        topic, topic_id = decode_topic(reader, version)
        for _ in range(reader.count()):
            result = _decode_result(reader, topic, version)
            result.topic_id = topic_id
            results.append(result)
        reader.skip_tags()
    throttle_ms = reader.fields(INT32)[0] if version >= 1 else 0
    response = ProduceResponse(results, throttle_ms)
    for tag, value in reader.tags():
        if tag == NODE_ENDPOINTS_TAG and version >= _LEADER_HINTS_VERSION:
            response.node_endpoints = decode_endpoints(value)
    return response


def _decode_result(reader: Reader, topic: str, version: int) -> ProducedPartition:
    layout = _RESULT_V5 if version >= 5 else _RESULT_V2 if version >= 2 else _RESULT_V0
    partition, error_code, base_offset, *times = reader.fields(layout)
    result = ProducedPartition(topic, partition, error_code, base_offset)
    if version >= 2:
        result.log_append_time_ms = times[0]
    if version >= 5:
        result.log_start_offset = times[1]
    if version >= 8:
        record_errors = []
        for _ in range(reader.count()):
            (index,) = reader.fields(INT32)
            record_errors.append((index, reader.nullable_string()))
            reader.skip_tags()
        result.record_errors = tuple(record_errors)
        first_reason = next((reason for _, reason in record_errors), None)
        result.error_message = reader.nullable_string() or first_reason
    for tag, value in reader.tags():
        if tag == _CURRENT_LEADER_TAG and version >= _LEADER_HINTS_VERSION:
            result.current_leader = decode_leader(value)
    return result
