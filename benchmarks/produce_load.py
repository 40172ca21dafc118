"""A load of Produce requests, as cheap to make as can be: `python -m benchmarks.produce_load`.

    SERVERS TOPIC CONNECTIONS IN_FLIGHT REQUESTS BATCH_BYTES PARTITIONS

SERVERS are the leaders of the partitions, each `HOST:PORT`, in turn where there are fewer, with
commas between. Every connection sends copies of one finished frame and keeps IN_FLIGHT of them
unanswered; acks=all. All write to different partitions as long as there are enough. The answers are
of one size, so they are counted by their bytes; the first one of each connection is read for an
error. Prints the seconds from the first byte sent to the last answer. In a process of its own, so
that the load costs what it measures as little as it can; both brokers get the same bytes.
"""

import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable

from kafka.record.memory_records import MemoryRecordsBuilder

from pyspark_kafkalog.protocol.frames import encode_request_header
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)

PRODUCE, VERSION = 0, 9
_RECORD_BYTES = 1000
_RECORD_OVERHEAD_BYTES = 10
_TIMESTAMP_MS = 1_700_000_000_000
_LEADER_TIMEOUT_S = 30.0
# UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER.
_NO_LEADER_YET = (3, 5, 6)
# After the frame's length: correlation id, tagged fields, topics, the name, partitions, index.
_ANSWERS_HEAD_BYTES = 4 + 4 + 1 + 1


def records_in_batch(size_bytes: int) -> int:
    return max(1, size_bytes // (min(size_bytes, _RECORD_BYTES) + _RECORD_OVERHEAD_BYTES))


def batch_of(size_bytes: int) -> bytes:
    """One record batch of records of 1 kB, or of one smaller record."""
    builder = MemoryRecordsBuilder(2, 0, 2 * size_bytes)
    value = b"x" * min(size_bytes, _RECORD_BYTES)
    for _ in range(records_in_batch(size_bytes)):
        assert builder.append(_TIMESTAMP_MS, None, value)
    builder.close()
    return bytes(builder.buffer())


def frame_of(topic: str, partition: int, batch: bytes) -> bytes:
    part = ProducePartition(topic, partition, batch)
    body = encode_produce_request(ProduceRequest(VERSION, None, -1, 30_000, [part]))
    frame = encode_request_header(PRODUCE, VERSION, 1, "load") + b"".join(map(bytes, body))
    return struct.pack(">i", len(frame)) + frame


def wait_for_leader(produce: Callable[[], int]) -> None:
    """Produces until it succeeds: a new topic's leader may not know yet that it is one.

    `produce` returns the error code; AssertionError for any that does not pass.
    """
    until_s = time.monotonic() + _LEADER_TIMEOUT_S
    while (error := produce()) in _NO_LEADER_YET and time.monotonic() < until_s:
        time.sleep(0.05)
    assert error == 0, f"Produce failed with error {error}"


class Load:
    """One connection's share."""

    def __init__(self, connection: socket.socket, frame: bytes, topic: str, requests: int) -> None:
        self.connection = connection
        self.unsent = requests
        self.unanswered_bytes = 0
        self._frame = frame
        self._topic = topic
        self._answer_bytes = 0
        self._received = bytearray()
        self._to_send: deque[memoryview] = deque()

    def first(self) -> None:
        """One request and its answer: how long answers are, and that nothing is wrong."""
        self.connection.setblocking(True)
        wait_for_leader(self._ask_once)
        self.connection.setblocking(False)

    def begin(self, in_flight: int) -> None:
        self._ask(in_flight)

    @property
    def done(self) -> bool:
        return not (self.unsent or self._to_send or self.unanswered_bytes)

    @property
    def wants_to_send(self) -> bool:
        return bool(self._to_send)

    def send(self) -> None:
        while self._to_send:
            try:
                sent = self.connection.send(self._to_send[0])
            except BlockingIOError:
                return
            rest = self._to_send[0][sent:]
            if rest:
                self._to_send[0] = rest
            else:
                self._to_send.popleft()

    def receive(self) -> None:
        received = self.connection.recv(1 << 16)
        assert received, "the broker closed the connection"
        before = -(-self.unanswered_bytes // self._answer_bytes)
        self.unanswered_bytes -= len(received)
        answered = before - -(-self.unanswered_bytes // self._answer_bytes)
        if answered:
            self._ask(answered)

    def _ask_once(self) -> int:
        """The error code of the answer."""
        self.connection.sendall(self._frame)
        (size_bytes,) = struct.unpack(">i", self._exactly(4))
        answer = self._exactly(size_bytes)
        self._answer_bytes = 4 + size_bytes
        at = _ANSWERS_HEAD_BYTES - 4 + len(self._topic) + 1 + 1 + 4
        return int(struct.unpack_from(">h", answer, at)[0])

    def _ask(self, requests: int) -> None:
        requests = min(requests, self.unsent)
        self.unsent -= requests
        self.unanswered_bytes += requests * self._answer_bytes
        if len(self._frame) < 1 << 12:
            self._to_send.append(memoryview(self._frame * requests))
        else:
            self._to_send.extend([memoryview(self._frame)] * requests)
        self.send()

    def _exactly(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            data += self.connection.recv(size_bytes - len(data))
        return data


def run(
    servers: list[str],
    topic: str,
    connections: int,
    in_flight: int,
    requests: int,
    batch_bytes: int,
    partitions: int,
) -> float:
    batch = batch_of(batch_bytes)
    loads = []
    for number in range(connections):
        partition = number * partitions // connections
        host, _, port = servers[partition % len(servers)].rpartition(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = frame_of(topic, partition, batch)
        loads.append(Load(connection, frame, topic, requests // connections - 1))
    for load in loads:
        load.first()
    began = time.perf_counter()
    _carry_out(loads, in_flight)
    seconds = time.perf_counter() - began
    for load in loads:
        load.connection.close()
    return seconds


def _carry_out(loads: list[Load], in_flight: int) -> None:
    selector = selectors.DefaultSelector()
    for load in loads:
        load.begin(in_flight)
        selector.register(load.connection, _events(load), load)
    left = len(loads)
    while left:
        for key, events in selector.select():
            load = key.data
            if events & selectors.EVENT_READ:
                load.receive()
            if events & selectors.EVENT_WRITE:
                load.send()
            if load.done:
                selector.unregister(load.connection)
                left -= 1
            elif key.events != _events(load):
                selector.modify(load.connection, _events(load), load)


def _events(load: Load) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if load.wants_to_send else 0)


if __name__ == "__main__":
    servers, topic, *numbers = sys.argv[1:]
    print(run(servers.split(","), topic, *map(int, numbers)))
