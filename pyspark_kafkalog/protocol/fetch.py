"""Fetch (API key 1), request and response, versions 0 to 12, both directions.

Written by hand since `kafka.protocol` copies the records: a consumer's `records` stay a view of the
frame that was received; a broker's are any sized object (a slice of a segment file, sent by
sendfile) that is put between the header bytes as it is. Optional tagged fields (diverging epoch,
current leader, snapshot id) are passed over when read and not written. Left out: versions from 13
on, which name topics by id.

Bytes only, no sockets. Pure functions: any thread.
"""

import struct
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_kafkalog.protocol.frames import is_flexible
from pyspark_kafkalog.protocol.wire import INT32, Reader, Writer, by_topic

if TYPE_CHECKING:
    from typing_extensions import Buffer

API_KEY = 1
MAX_VERSION = 12

NO_MAX_BYTES = 0x7FFFFFFF
CONSUMER_REPLICA_ID = -1
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

_WAIT = struct.Struct(">iii")
_ISOLATION = struct.Struct(">b")
_SESSION = struct.Struct(">ii")
_ASK_V0 = struct.Struct(">iqi")
_ASK_V5 = struct.Struct(">iqqi")
_ASK_V9 = struct.Struct(">iiqqi")
_ASK_V12 = struct.Struct(">iiqiqi")
_TOP_V7 = struct.Struct(">ihi")
_FOUND_V0 = struct.Struct(">ihq")
_FOUND_V4 = struct.Struct(">ihqq")
_FOUND_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")


@dataclass(slots=True)
class FetchPartition:
    """What is asked of one partition."""

    topic: str
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchRequest:
    version: int
    max_wait_ms: int
    min_bytes: int
    partitions: list[FetchPartition]
    max_bytes: int = NO_MAX_BYTES
    isolation_level: int = READ_UNCOMMITTED
    session_id: int = 0
    session_epoch: int = -1
    replica_id: int = CONSUMER_REPLICA_ID
    rack_id: str = ""


@dataclass(slots=True)
class FetchedPartition:
    """One partition's answer.

    `records` are whole record batches, where the last may be cut off; None when there are none.
    `aborted` lists (producer id, first offset) of transactions to be skipped (read_committed).
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    records: "Sized | None" = None
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] = field(default_factory=list)
    preferred_read_replica: int = -1


@dataclass(slots=True)
class FetchResponse:
    partitions: list[FetchedPartition]
    throttle_ms: int = 0
    error_code: int = 0
    session_id: int = 0


def encode_fetch_request(request: FetchRequest) -> "Buffer":
    """The request's body."""
    version = request.version
    writer = Writer(is_flexible(API_KEY, version))
    writer.fields(_WAIT, request.replica_id, request.max_wait_ms, request.min_bytes)
    if version >= 3:
        writer.fields(INT32, request.max_bytes)
    if version >= 4:
        writer.fields(_ISOLATION, request.isolation_level)
    if version >= 7:
        writer.fields(_SESSION, request.session_id, request.session_epoch)
    topics = by_topic(request.partitions)
    writer.count(len(topics))
    for topic, partitions in topics:
        writer.string(topic)
        writer.count(len(partitions))
        for ask in partitions:
            _encode_ask(writer, ask, version)
            writer.no_tags()
        writer.no_tags()
    if version >= 7:
        writer.count(0)
    if version >= 11:
        writer.string(request.rack_id)
    writer.no_tags()
    return writer.parts()[0]


def _encode_ask(writer: Writer, ask: FetchPartition, version: int) -> None:
    head = (ask.partition, ask.current_leader_epoch, ask.fetch_offset)
    tail = (ask.log_start_offset, ask.max_bytes)
    if version >= 12:
        writer.fields(_ASK_V12, *head, ask.last_fetched_epoch, *tail)
    elif version >= 9:
        writer.fields(_ASK_V9, *head, *tail)
    elif version >= 5:
        writer.fields(_ASK_V5, ask.partition, ask.fetch_offset, *tail)
    else:
        writer.fields(_ASK_V0, ask.partition, ask.fetch_offset, ask.max_bytes)


def decode_fetch_request(body: memoryview, version: int) -> FetchRequest:
    """The request in `body`; raises KafkaProtocolError."""
    reader = Reader(body, is_flexible(API_KEY, version))
    replica_id, max_wait_ms, min_bytes = reader.fields(_WAIT)
    request = FetchRequest(version, max_wait_ms, min_bytes, [], replica_id=replica_id)
    if version >= 3:
        (request.max_bytes,) = reader.fields(INT32)
    if version >= 4:
        (request.isolation_level,) = reader.fields(_ISOLATION)
    if version >= 7:
        request.session_id, request.session_epoch = reader.fields(_SESSION)
    for _ in range(reader.count()):
        topic = reader.string()
        for _ in range(reader.count()):
            request.partitions.append(_decode_ask(reader, topic, version))
            reader.skip_tags()
        reader.skip_tags()
    if version >= 7:
        _skip_forgotten(reader)
    if version >= 11:
        request.rack_id = reader.string()
    return request


def _decode_ask(reader: Reader, topic: str, version: int) -> FetchPartition:
    if version >= 12:
        partition, epoch, offset, fetched_epoch, start, max_bytes = reader.fields(_ASK_V12)
        return FetchPartition(topic, partition, offset, max_bytes, epoch, fetched_epoch, start)
    if version >= 9:
        partition, epoch, offset, start, max_bytes = reader.fields(_ASK_V9)
        return FetchPartition(topic, partition, offset, max_bytes, epoch, log_start_offset=start)
    if version >= 5:
        partition, offset, start, max_bytes = reader.fields(_ASK_V5)
        return FetchPartition(topic, partition, offset, max_bytes, log_start_offset=start)
    return FetchPartition(topic, *reader.fields(_ASK_V0))


def _skip_forgotten(reader: Reader) -> None:
    """Partitions to drop from a fetch session: none, since sessions are declined (KIP-227)."""
    for _ in range(reader.count()):
        reader.string()
        for _ in range(reader.count()):
            reader.fields(INT32)
        reader.skip_tags()


def encode_fetch_response(response: FetchResponse, version: int) -> list["Buffer"]:
    """The response's body as parts in order; each partition's `records` is a part as it is."""
    writer = Writer(is_flexible(API_KEY, version))
    if version >= 7:
        writer.fields(_TOP_V7, response.throttle_ms, response.error_code, response.session_id)
    elif version >= 1:
        writer.fields(INT32, response.throttle_ms)
    topics = by_topic(response.partitions)
    writer.count(len(topics))
    for topic, partitions in topics:
        writer.string(topic)
        writer.count(len(partitions))
        for found in partitions:
            _encode_found(writer, found, version)
        writer.no_tags()
    writer.no_tags()
    return writer.parts()


def _encode_found(writer: Writer, found: FetchedPartition, version: int) -> None:
    head = (found.partition, found.error_code, found.high_watermark)
    if version >= 5:
        writer.fields(_FOUND_V5, *head, found.last_stable_offset, found.log_start_offset)
    elif version >= 4:
        writer.fields(_FOUND_V4, *head, found.last_stable_offset)
    else:
        writer.fields(_FOUND_V0, *head)
    if version >= 4:
        writer.count(len(found.aborted))
        for producer_id, first_offset in found.aborted:
            writer.fields(_ABORTED, producer_id, first_offset)
            writer.no_tags()
    if version >= 11:
        writer.fields(INT32, found.preferred_read_replica)
    # Clients before 0.11 take no null here, so an empty answer has zero bytes.
    if found.records is None:
        writer.bulk(b"", 0)
    else:
        writer.bulk(found.records, len(found.records))  # type: ignore[arg-type]
    writer.no_tags()


def decode_fetch_response(body: memoryview, version: int) -> FetchResponse:
    """The response in `body`; each partition's `records` is a memoryview of it.

    Raises KafkaProtocolError.
    """
    reader = Reader(body, is_flexible(API_KEY, version))
    response = FetchResponse([])
    if version >= 7:
        response.throttle_ms, response.error_code, response.session_id = reader.fields(_TOP_V7)
    elif version >= 1:
        (response.throttle_ms,) = reader.fields(INT32)
    for _ in range(reader.count()):
        topic = reader.string()
        for _ in range(reader.count()):
            response.partitions.append(_decode_found(reader, topic, version))
        reader.skip_tags()
    return response


def _decode_found(reader: Reader, topic: str, version: int) -> FetchedPartition:
    layout = _FOUND_V5 if version >= 5 else _FOUND_V4 if version >= 4 else _FOUND_V0
    partition, error_code, high_watermark, *offsets = reader.fields(layout)
    found = FetchedPartition(topic, partition, error_code, high_watermark)
    if version >= 4:
        found.last_stable_offset = offsets[0]
        for _ in range(reader.count()):
            producer_id, first_offset = reader.fields(_ABORTED)
            found.aborted.append((producer_id, first_offset))
            reader.skip_tags()
    if version >= 5:
        found.log_start_offset = offsets[1]
    if version >= 11:
        (found.preferred_read_replica,) = reader.fields(INT32)
    found.records = reader.nullable_bytes() or None
    reader.skip_tags()
    return found
