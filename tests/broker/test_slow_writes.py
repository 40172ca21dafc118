"""Large appends while the disk is slow: threads write them, in the order in which they came."""

import os
import threading
import time

import pytest

from broker.log.files import DiskFile
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tests.broker.child import RawClient
from tests.broker.records import batch_of, values_of
from tests.broker.test_main import create_topic

LARGE_BYTES = 300_000


class SlowDisk:
    """Large writes to user topics take long, and wait while the disk is `held`."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self._go_on = threading.Event()
        self._go_on.set()
        self.error: OSError | None = None

    def hold(self) -> None:
        self._go_on.clear()

    def let_go(self) -> None:
        self._go_on.set()

    def write(self) -> None:
        self.began.release()
        time.sleep(0.02)
        assert self._go_on.wait(10)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch):
    slow = SlowDisk()
    original = DiskFile.pwrite

    def pwrite(file, data, position):
        if len(data) > LARGE_BYTES and slow.error is not None:
            original(file, memoryview(data)[:1000], position)  # as a full disk does
        if len(data) > LARGE_BYTES:
            slow.write()
        original(file, data, position)

    monkeypatch.setattr(DiskFile, "pwrite", pwrite)
    yield slow
    slow.let_go()


def large(name, producer=None):
    return batch_of([(None, name * LARGE_BYTES)], producer=producer)


def small(name):
    return batch_of([(None, name)])


def send(client, batch, partition=0, acks=-1):
    parts = [ProducePartition("orders", partition, batch)]
    request = ProduceRequest(9, None, acks, 5000, parts)
    client.send_body(0, 9, b"".join(bytes(part) for part in encode_produce_request(request)))


def receive(client):
    ((produced,), _) = decode_produce_response(client.receive_body(0, 9), 9)
    return produced.error_code, produced.base_offset


def stored(client, partition=0):
    """The first byte of each record's value."""
    found = client.fetch(
        FetchRequest(11, 0, 1, [FetchPartition("orders", partition, 0, 64 << 20)])
    ).partitions[0]
    values = [(value or b"")[:1] for _, value in values_of(found.records)]
    assert len(values) == found.high_watermark
    return b"".join(values)


@pytest.fixture
def client(serve, disk):
    """The broker knows by two appends that its disk is slow."""
    client = serve()
    create_topic(client, "orders", 2)
    for _ in range(2):
        assert client.produce("orders", 1, large(b"0")).error_code == 0
        assert disk.began.acquire(timeout=5)
    return client


@pytest.fixture
def another(client):
    host, port = client.socket.getpeername()
    with RawClient(host, port, timeout_s=20) as other:
        yield other


def test_others_are_served_meanwhile(client, another, disk):
    disk.hold()
    send(client, large(b"a"))
    assert disk.began.acquire(timeout=5)
    assert another.produce("orders", 1, small(b"b")).base_offset == 2
    assert stored(another) == b""
    disk.let_go()
    assert receive(client) == (0, 0)
    assert stored(another) == b"a"


def test_requests_of_one_connection_keep_their_order(client, disk):
    disk.hold()
    names = b"aBcDeF"
    for name in names:
        letter = bytes([name])
        send(client, large(letter) if letter.islower() else small(letter))
    assert disk.began.acquire(timeout=5)
    disk.let_go()
    assert [receive(client) for _ in names] == [(0, offset) for offset in range(len(names))]
    assert stored(client) == names


def test_two_connections_to_one_partition(client, another, disk):
    disk.hold()
    send(client, large(b"a"))
    assert disk.began.acquire(timeout=5)
    send(another, large(b"b"))
    send(another, small(b"c"))
    assert not disk.began.acquire(timeout=0.1), "two appends to one log at a time"
    disk.let_go()
    assert [receive(client), receive(another), receive(another)] == [(0, 0), (0, 1), (0, 2)]
    assert stored(client) == b"abc"


def test_two_partitions_at_a_time(client, another, disk):
    disk.hold()
    send(client, large(b"a"))
    send(another, large(b"b"), partition=1)
    assert disk.began.acquire(timeout=5)
    if (os.cpu_count() or 1) > 1:
        assert disk.began.acquire(timeout=5)
    disk.let_go()
    assert [receive(client), receive(another)] == [(0, 0), (0, 2)]


def test_a_retry_that_comes_while_its_batch_is_written(client, another, disk):
    disk.hold()
    send(client, large(b"a", (7, 0, 0)))
    assert disk.began.acquire(timeout=5)
    send(another, large(b"a", (7, 0, 0)))
    send(another, large(b"b", (7, 0, 1)))
    disk.let_go()
    assert [receive(client), receive(another), receive(another)] == [(0, 0), (0, 0), (0, 1)]
    assert stored(client) == b"ab"


def test_a_write_that_fails_leaves_nothing_and_the_next_takes_its_place(client, another, disk):
    assert client.produce("orders", 0, small(b"a")).base_offset == 0
    disk.hold()
    disk.error = OSError(28, "No space left on device")
    send(client, large(b"x", (7, 0, 0)))
    assert disk.began.acquire(timeout=5)
    send(another, small(b"b"))
    disk.let_go()
    assert receive(client) == (56, -1)
    assert receive(another) == (0, 1)
    disk.error = None
    assert client.produce("orders", 0, large(b"c", (7, 0, 0))).base_offset == 2
    assert stored(client) == b"abc"


def test_a_client_that_leaves_does_not_take_its_append_along(client, another, disk):
    disk.hold()
    send(another, large(b"a"))
    assert disk.began.acquire(timeout=5)
    another.socket.close()
    disk.let_go()
    assert client.produce("orders", 0, small(b"b")).base_offset == 1
    assert stored(client) == b"ab"


def test_memory_of_requests_is_given_back(serve, client, another, disk):
    disk.hold()
    send(client, large(b"a"))
    send(another, large(b"b"))
    assert disk.began.acquire(timeout=5)
    assert serve.server._network.received_bytes_held >= LARGE_BYTES
    disk.let_go()
    assert [receive(client)[0], receive(another)[0]] == [0, 0]
    assert client.produce("orders", 0, large(b"c")[:-1]).error_code == 2
    assert serve.server._network.received_bytes_held == 0


def test_acks_0(client, disk):
    send(client, large(b"a"), acks=0)
    assert client.produce("orders", 0, small(b"b")).base_offset == 1
    assert stored(client) == b"ab"


def test_a_stop_waits_for_what_is_written(serve, client, disk, tmp_path):
    disk.hold()
    send(client, large(b"a"))
    assert disk.began.acquire(timeout=5)
    threading.Timer(0.2, disk.let_go).start()
    serve.stop()
    segment = (tmp_path / "orders-0" / f"{0:020}.log").read_bytes()
    assert values_of(segment) == [(0, b"a" * LARGE_BYTES)]
