"""Frames: what stands before a message's body.

    request   size int32 | api key int16 | api version int16 | correlation id int32 |
              client id nullable string (never compact) | tagged fields (flexible) | body
    response  size int32 | correlation id int32 | tagged fields (flexible) | body

The response header of ApiVersions is never flexible, since it answers a client that does not yet
know what the broker speaks (KIP-511). Bytes only, no sockets. Pure functions: any thread.
"""

import struct
from dataclasses import dataclass
from typing import Final

from kafka.errors import KafkaProtocolError

from pyspark_kafkalog.protocol.wire import MAX_REQUEST_ELEMENTS, Reader

SIZE: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhi")
_REQUEST_AND_LENGTH: Final = struct.Struct(">hhih")
_CLIENT_ID_LENGTH: Final = struct.Struct(">h")
_CORRELATION_ID: Final = struct.Struct(">i")

API_VERSIONS_KEY: Final = 18

_NEVER: Final = 1 << 15
_FIRST_FLEXIBLE_VERSION: Final = {
    0: 9,  # Produce
    1: 12,  # Fetch
    2: 6,  # ListOffsets
    3: 9,  # Metadata
    8: 8,  # OffsetCommit
    9: 6,  # OffsetFetch
    10: 3,  # FindCoordinator
    11: 6,  # JoinGroup
    12: 4,  # Heartbeat
    13: 4,  # LeaveGroup
    14: 4,  # SyncGroup
    15: 5,  # DescribeGroups
    16: 3,  # ListGroups
    17: _NEVER,  # SaslHandshake
    18: 3,  # ApiVersions
    19: 5,  # CreateTopics
    20: 4,  # DeleteTopics
    21: 2,  # DeleteRecords
    22: 2,  # InitProducerId
    23: 4,  # OffsetForLeaderEpoch
    24: 3,  # AddPartitionsToTxn
    25: 3,  # AddOffsetsToTxn
    26: 3,  # EndTxn
    27: 1,  # WriteTxnMarkers
    28: 3,  # TxnOffsetCommit
    29: 2,  # DescribeAcls
    30: 2,  # CreateAcls
    31: 2,  # DeleteAcls
    32: 4,  # DescribeConfigs
    33: 2,  # AlterConfigs
    34: 2,  # AlterReplicaLogDirs
    35: 2,  # DescribeLogDirs
    36: 2,  # SaslAuthenticate
    37: 2,  # CreatePartitions
    42: 2,  # DeleteGroups
    43: 2,  # ElectLeaders
    44: 1,  # IncrementalAlterConfigs
    47: _NEVER,  # OffsetDelete
    48: 1,  # DescribeClientQuotas
    49: 1,  # AlterClientQuotas
}
"""Messages that became flexible in a later version; those not listed were born flexible."""


@dataclass(init=False, slots=True)
class RequestHeader:
    """A request's header, and where the body begins in its frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int

    # By hand, since what dataclass makes is not compiled: a microsecond a request.
    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        body_position: int,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body_position = body_position


def is_flexible(api_key: int, api_version: int) -> bool:
    """Whether request and response of this version have compact lengths and tagged fields."""
    return api_version >= _FIRST_FLEXIBLE_VERSION.get(api_key, 0)


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """A request's header, without the frame's size."""
    fixed = _REQUEST.pack(api_key, api_version, correlation_id)
    encoded = None if client_id is None else client_id.encode()
    name = (
        _CLIENT_ID_LENGTH.pack(-1)
        if encoded is None
        else _CLIENT_ID_LENGTH.pack(len(encoded)) + encoded
    )
    return fixed + name + (b"\0" if is_flexible(api_key, api_version) else b"")


def decode_request_header(frame: memoryview) -> RequestHeader:
    """The header of a request's frame (without its size).

    Raises KafkaProtocolError. For a version of ApiVersions that is not known the tagged fields may
    have any form; the position then means nothing, since the body is not read either.
    """
    # By hand, since every request comes this way: a Reader takes twice as long.
    try:
        api_key, api_version, correlation_id, length = _REQUEST_AND_LENGTH.unpack_from(frame)
    except struct.error:
        raise KafkaProtocolError(f"a request of {len(frame)} bytes has no header") from None
    position = _REQUEST_AND_LENGTH.size + max(0, length)
    if length < -1 or position > len(frame):
        raise KafkaProtocolError(f"a client id of {length} bytes in a request of {len(frame)}")
    client_id = None
    if length >= 0:
        try:
            client_id = str(frame[_REQUEST_AND_LENGTH.size : position], "utf-8")
        except UnicodeDecodeError:
            raise KafkaProtocolError("a client id is not UTF-8") from None
    if is_flexible(api_key, api_version):
        if position < len(frame) and not frame[position]:
            position += 1  # no tagged fields
        else:
            reader = Reader(frame, True, position, MAX_REQUEST_ELEMENTS)
            reader.skip_tags()
            position = reader.position
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """A response's header, without the frame's size."""
    tags = b"\0" if api_key != API_VERSIONS_KEY and is_flexible(api_key, api_version) else b""
    return _CORRELATION_ID.pack(correlation_id) + tags


def decode_response_header(
    frame: memoryview, api_key: int, api_version: int
) -> tuple[int, memoryview]:
    """The correlation id and the body of a response's frame (without its size)."""
    reader = Reader(frame, api_key != API_VERSIONS_KEY and is_flexible(api_key, api_version))
    (correlation_id,) = reader.fields(_CORRELATION_ID)
    reader.skip_tags()
    return correlation_id, frame[reader.position :]


def frame(parts: "list[bytes]") -> bytes:
    """A whole frame of small parts, with its size; bulk messages are sent part by part instead."""
    size = sum(len(part) for part in parts)
    if size > 0x7FFFFFFF:
        raise KafkaProtocolError(f"a frame of {size} bytes cannot be sent")
    return b"".join((SIZE.pack(size), *parts))
