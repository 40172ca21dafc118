"""Who leads a partition now, and where that broker is reached (KIP-951): what answers to Produce
and Fetch say of it in tagged fields, so that a client that was wrong need not ask for metadata.

Bytes only. Pure functions: any thread.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark_kafkalog.protocol.wire import INT32, Reader, Writer

NODE_ENDPOINTS_TAG: Final = 0
_LEADER: Final = struct.Struct(">ii")


class LeaderIdAndEpoch(NamedTuple):
    """-1 for what is not known."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where a broker is reached."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def encode_leader(leader: LeaderIdAndEpoch) -> bytes:
    """The value of a tagged field."""
    return _LEADER.pack(*leader) + b"\0"


def decode_leader(reader: Reader) -> LeaderIdAndEpoch:
    return LeaderIdAndEpoch(*reader.fields(_LEADER))


def encode_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The value of a tagged field."""
    writer = Writer(flexible=True)
    writer.count(len(endpoints))
    for node in endpoints:
        writer.fields(INT32, node.node_id)
        writer.string(node.host)
        writer.fields(INT32, node.port)
        writer.string(node.rack)
        writer.no_tags()
    return b"".join(bytes(part) for part in writer.parts())


def decode_endpoints(reader: Reader) -> list[NodeEndpoint]:
    endpoints = []
    for _ in range(reader.count()):
        (node_id,) = reader.fields(INT32)
        host = reader.string()
        (port,) = reader.fields(INT32)
        endpoints.append(NodeEndpoint(node_id, host, port, reader.nullable_string()))
        reader.skip_tags()
    return endpoints
