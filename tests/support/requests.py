"""Requests as handlers are given them, without a connection."""

from broker.api.request import Request
from broker.network.peer import Peer
from pyspark_kafkalog.protocol.frames import RequestHeader

PEER = Peer("PLAINTEXT", "1.2.3.4", 5)


def request_of(api_key: int, version: int, body: bytes) -> Request:
    header = RequestHeader(api_key, version, 1, "test", 0)
    return Request(header, memoryview(bytearray(body)), PEER)
