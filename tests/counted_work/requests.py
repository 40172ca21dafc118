"""Requests of the connector, and bytes that it receives, counted where all of them pass."""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from kafka.protocol.api_key import ApiKey

from pyspark_kafkalog.client.connection import Connection


@contextmanager
def requests() -> Iterator[Counter[str]]:
    """How many of each API this process sends in this block. Each connection asks ApiVersions."""
    counted: Counter[str] = Counter()
    original = Connection.send_only

    def send_only(connection: Connection, api_key: int, *arguments: Any, **options: Any) -> int:
        counted[ApiKey(api_key).name] += 1
        return original(connection, api_key, *arguments, **options)

    with mock.patch.object(Connection, "send_only", send_only):
        yield counted


@dataclass
class Received:
    bytes: int = 0


@contextmanager
def received() -> Iterator[Received]:
    """What this process's sockets receive into buffers in this block."""
    counted = Received()
    original = socket.socket.recv_into

    def recv_into(sock: socket.socket, *arguments: Any) -> int:
        size_bytes = original(sock, *arguments)
        counted.bytes += size_bytes
        return size_bytes

    with mock.patch.object(socket.socket, "recv_into", recv_into):
        yield counted
