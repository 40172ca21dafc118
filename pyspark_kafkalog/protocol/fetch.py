"""Fetch (API key 1), request and response, versions 0 to 18, both directions.

Written by hand since `kafka.protocol` copies the records: a consumer's `records` stay a view of the
frame that was received; a broker's are any sized object (a slice of a segment file, sent by
sendfile) that is put between the header bytes as it is. From version 13 on topics have an id
instead of a name. Passed over when read and not written: cluster id, a replica's directory and high
watermark, and snapshot ids, which only brokers send each other.

Bytes only, no sockets. Pure functions: any thread.
"""

import struct
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
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

API_KEY = 1
MAX_VERSION = 18
LAST_FROM_LEADERS = 10
"""The last version in which no leader sends its readers to a replica (KIP-392)."""

NO_MAX_BYTES = 0x7FFFFFFF
CONSUMER_REPLICA_ID = -1
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

_REPLICA_AND_WAIT = struct.Struct(">iii")
_WAIT = struct.Struct(">ii")
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
_REPLICA_STATE = struct.Struct(">iq")
_DIVERGING_EPOCH = struct.Struct(">iq")
# Tagged fields.
_REPLICA_STATE_TAG = 1
_DIVERGING_EPOCH_TAG, _CURRENT_LEADER_TAG = 0, 1


class EpochEndOffset(NamedTuple):
    """An epoch, and the offset where it ends in the leader's log."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class FetchPartition:
    """What is asked of one partition. Its topic is named until version 12, then has an id."""

    topic: str
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    topic_id: UUID | None = None


@dataclass(slots=True)
class ForgottenPartition:
    """A partition to be dropped from a fetch session (KIP-227)."""

    topic: str
    partition: int
    topic_id: UUID | None = None


@dataclass(slots=True)
class FetchRequest:
    """What a client asks for, or a broker that follows. In a fetch session (KIP-227), from the
    second fetch on, what has changed of that."""

    version: int
    max_wait_ms: int
    min_bytes: int
    partitions: list[FetchPartition]
    max_bytes: int = NO_MAX_BYTES
    isolation_level: int = READ_UNCOMMITTED
    session_id: int = 0
    session_epoch: int = -1
    replica_id: int = CONSUMER_REPLICA_ID
    replica_epoch: int = -1
    """The epoch of the broker that follows, since version 15."""
    rack_id: str = ""
    forgotten: Sequence[ForgottenPartition] = ()


@dataclass(slots=True)
class FetchedPartition:
    """One partition's answer.

    `records` are whole record batches, where the last may be cut off; None when there are none.
    `aborted` lists (producer id, first offset) of transactions to be skipped (read_committed).
    `diverging_epoch` and `current_leader` are written since version 12, where they are set.
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
    topic_id: UUID | None = None
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None


@dataclass(slots=True)
class FetchResponse:
    """What was found, of each partition that was asked for or, in a session, that has news."""

    partitions: list[FetchedPartition]
    throttle_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def encode_fetch_request(request: FetchRequest) -> "Buffer":
    """The request's body."""
    version = request.version
    writer = Writer(is_flexible(API_KEY, version))
    if version <= 14:
        wait = (request.max_wait_ms, request.min_bytes)
        writer.fields(_REPLICA_AND_WAIT, request.replica_id, *wait)
    else:
        writer.fields(_WAIT, request.max_wait_ms, request.min_bytes)
    if version >= 3:
        writer.fields(INT32, request.max_bytes)
    if version >= 4:
        writer.fields(_ISOLATION, request.isolation_level)
    if version >= 7:
        writer.fields(_SESSION, request.session_id, request.session_epoch)
    for partitions in encode_topic_count(writer, request.partitions, version):
        encode_topic(writer, partitions[0], version)
        writer.count(len(partitions))
        for ask in partitions:
            _encode_ask(writer, ask, version)
            writer.no_tags()
        writer.no_tags()
    if version >= 7:
        _encode_forgotten(writer, request)
    if version >= 11:
        writer.string(request.rack_id)
    if version >= 15 and request.replica_id != CONSUMER_REPLICA_ID:
        state = _REPLICA_STATE.pack(request.replica_id, request.replica_epoch) + b"\0"
        writer.tags([(_REPLICA_STATE_TAG, state)])
    else:
        writer.no_tags()
    return writer.parts()[0]


def _encode_forgotten(writer: Writer, request: FetchRequest) -> None:
    for forgotten in encode_topic_count(writer, request.forgotten, request.version):
        encode_topic(writer, forgotten[0], request.version)
        writer.count(len(forgotten))
        for each in forgotten:
            writer.fields(INT32, each.partition)
        writer.no_tags()


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
    reader = Reader(body, is_flexible(API_KEY, version), max_elements=MAX_REQUEST_ELEMENTS)
    request = _decode_wait(reader, version)
    if version >= 3:
        (request.max_bytes,) = reader.fields(INT32)
    if version >= 4:
        (request.isolation_level,) = reader.fields(_ISOLATION)
    if version >= 7:
        request.session_id, request.session_epoch = reader.fields(_SESSION)
    for _ in range(reader.count()):
        topic, topic_id = decode_topic(reader, version)
        for _ in range(reader.count()):
            request.partitions.append(_decode_ask(reader, topic, topic_id, version))
            reader.skip_tags()
        reader.skip_tags()
    if version >= 7:
        request.forgotten = _decode_forgotten(reader, version)
    if version >= 11:
        request.rack_id = reader.string()
    for tag, value in reader.tags():
        if tag == _REPLICA_STATE_TAG and version >= 15:
            request.replica_id, request.replica_epoch = value.fields(_REPLICA_STATE)
    return request


def _decode_wait(reader: Reader, version: int) -> FetchRequest:
    if version <= 14:
        replica_id, max_wait_ms, min_bytes = reader.fields(_REPLICA_AND_WAIT)
        return FetchRequest(version, max_wait_ms, min_bytes, [], replica_id=replica_id)
    max_wait_ms, min_bytes = reader.fields(_WAIT)
    return FetchRequest(version, max_wait_ms, min_bytes, [])


def _decode_ask(reader: Reader, topic: str, topic_id: UUID | None, version: int) -> FetchPartition:
    if version >= 12:
        partition, epoch, offset, fetched_epoch, start, max_bytes = reader.fields(_ASK_V12)
        return FetchPartition(
            topic, partition, offset, max_bytes, epoch, fetched_epoch, start, topic_id
        )
    if version >= 9:
        partition, epoch, offset, start, max_bytes = reader.fields(_ASK_V9)
        return FetchPartition(topic, partition, offset, max_bytes, epoch, log_start_offset=start)
    if version >= 5:
        partition, offset, start, max_bytes = reader.fields(_ASK_V5)
        return FetchPartition(topic, partition, offset, max_bytes, log_start_offset=start)
    partition, offset, max_bytes = reader.fields(_ASK_V0)
    return FetchPartition(topic, partition, offset, max_bytes)


def _decode_forgotten(reader: Reader, version: int) -> Sequence[ForgottenPartition]:
    count = reader.count()
    if not count:
        return ()
    forgotten = []
    for _ in range(count):
        topic, topic_id = decode_topic(reader, version)
        for _ in range(reader.count()):
            (partition,) = reader.fields(INT32)
            forgotten.append(ForgottenPartition(topic, partition, topic_id))
        reader.skip_tags()
    return forgotten


def encode_fetch_response(response: FetchResponse, version: int) -> list["Buffer"]:
    """The response's body as parts in order; each partition's `records` is a part as it is."""
    writer = Writer(is_flexible(API_KEY, version))
    if version >= 7:
        writer.fields(_TOP_V7, response.throttle_ms, response.error_code, response.session_id)
    elif version >= 1:
        writer.fields(INT32, response.throttle_ms)
    for partitions in encode_topic_count(writer, response.partitions, version):
        encode_topic(writer, partitions[0], version)
        writer.count(len(partitions))
        for found in partitions:
            _encode_found(writer, found, version)
        writer.no_tags()
    if version >= 16 and response.node_endpoints:
        writer.tags([(NODE_ENDPOINTS_TAG, encode_endpoints(response.node_endpoints))])
    else:
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
    if found.diverging_epoch is None and found.current_leader is None:
        writer.no_tags()
    elif version >= 12:
        _encode_found_tags(writer, found)


def _encode_found_tags(writer: Writer, found: FetchedPartition) -> None:
    tags = []
    if found.diverging_epoch is not None:
        value = _DIVERGING_EPOCH.pack(*found.diverging_epoch) + b"\0"
        tags.append((_DIVERGING_EPOCH_TAG, value))
    if found.current_leader is not None:
        tags.append((_CURRENT_LEADER_TAG, encode_leader(found.current_leader)))
    writer.tags(tags)


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
        topic, topic_id = decode_topic(reader, version)
        for _ in range(reader.count()):
            found = _decode_found(reader, topic, version)
            found.topic_id = topic_id
            response.partitions.append(found)
        reader.skip_tags()
    for tag, value in reader.tags():
        if tag == NODE_ENDPOINTS_TAG and version >= 16:
            response.node_endpoints = decode_endpoints(value)
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
    for tag, value in reader.tags():
        if tag == _DIVERGING_EPOCH_TAG:
            found.diverging_epoch = EpochEndOffset(*value.fields(_DIVERGING_EPOCH))
        elif tag == _CURRENT_LEADER_TAG:
            found.current_leader = decode_leader(value)
    return found
