"""flush.messages: what was acknowledged is on disk, up to so many records."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typing_extensions import Buffer

from broker.config.broker import BrokerConfig
from broker.log.files import DiskFile
from broker.network.loop import new_event_loop
from broker.replica.manager import LARGE_BYTES
from broker.server import BrokerServer
from tests.broker.api.transaction_client import TransactionClient, read
from tests.broker.test_main import create_topic
from tests.support.broker_child import RawClient
from tests.support.records import batch_of


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., RawClient]]:
    """serve(**properties) -> RawClient of a broker in a thread of the test's own process."""
    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    opened: list[tuple[BrokerServer, RawClient]] = []

    def start(**properties: str) -> RawClient:
        given = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"} | properties
        server = BrokerServer(BrokerConfig.from_properties(given), loop)
        (endpoint,) = server.open()
        thread.start()
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
        client = RawClient(endpoint.host, endpoint.port, timeout_s=20)
        opened.append((server, client))
        return client

    yield start
    ((server, client),) = opened
    client.socket.close()
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str | int]:
    """The sizes to which .log files were synced; `fail` makes the next sync do so."""
    synced: list[str | int] = []
    original = DiskFile.sync

    def sync(file: DiskFile) -> None:
        path = os.readlink(f"/proc/self/fd/{file.fileno()}")
        if path.endswith(".log") and "orders" in path:
            if synced.count("fail"):
                raise OSError(5, "Input/output error")
            threading.Event().wait(0.2)  # a slow disk: an answer that does not wait is faster
            synced.append(file.size())
        original(file)

    monkeypatch.setattr(DiskFile, "sync", sync)
    return synced


def test_every_record_is_on_disk_before_it_is_acknowledged(
    serve: Callable[..., RawClient], syncs: list[str | int]
) -> None:
    client = serve(**{"log.flush.interval.messages": "1"})
    create_topic(client, "orders")
    size_bytes = 0
    for number in range(3):
        batch = batch_of(1)
        size_bytes += len(batch)
        assert client.produce("orders", 0, batch).base_offset == number
        assert syncs[-1] == size_bytes


def test_large_batches_that_threads_append_are_on_disk_too(
    serve: Callable[..., RawClient], syncs: list[str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(**{"log.flush.interval.messages": "1"})
    create_topic(client, "orders", partitions=2)
    writers = []
    original = DiskFile.pwrite

    def pwrite(file: DiskFile, data: Buffer, position: int) -> None:
        if memoryview(data).nbytes > LARGE_BYTES:
            writers.append(threading.get_ident())
        original(file, data, position)

    monkeypatch.setattr(DiskFile, "pwrite", pwrite)
    batch = batch_of([(b"k", os.urandom(LARGE_BYTES))])
    host, port = client.socket.getpeername()
    with RawClient(host, port, timeout_s=20) as other:
        for number, (own, partition) in enumerate([(client, 0), (other, 1)]):
            assert own.produce("orders", partition, batch).error_code == 0
            assert syncs == [len(batch)] * (number + 1)
    assert len(set(writers)) == 2  # the event loop's thread, and another


def test_no_more_records_than_allowed_are_acknowledged_unsynced(
    serve: Callable[..., RawClient], syncs: list[str | int]
) -> None:
    client = serve(**{"log.flush.interval.messages": "3"})
    create_topic(client, "orders")
    sizes = []
    for _ in range(2):
        client.produce("orders", 0, batch_of(1))
        sizes.append(list(syncs))
    assert sizes == [[], []]
    client.produce("orders", 0, batch_of(1))
    assert len(syncs) == 1


def test_what_the_disk_refuses_is_not_acknowledged(
    serve: Callable[..., RawClient], syncs: list[str | int]
) -> None:
    client = serve(**{"log.flush.interval.messages": "1"})
    create_topic(client, "orders")
    syncs.append("fail")
    assert client.produce("orders", 0, batch_of(1)).error_code == 56


def test_a_transaction_has_not_ended_before_its_markers_are_on_disk(
    serve: Callable[..., RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator does not come back to one that it holds for ended, after a power loss too."""
    client = serve(**{"log.flush.interval.messages": "1"})
    create_topic(client, "orders")
    producer = TransactionClient(client, "id")
    producer.init()
    assert producer.produce("orders", b"paid", version=12).error_code == 0
    is_syncing, may_sync = threading.Event(), threading.Event()
    original = DiskFile.sync

    def sync(file: DiskFile) -> None:
        if "orders" in os.readlink(f"/proc/self/fd/{file.fileno()}"):
            is_syncing.set()
            assert may_sync.wait(20)
        original(file)

    monkeypatch.setattr(DiskFile, "sync", sync)
    try:
        assert producer.end(True, version=5).error_code == 0
        assert is_syncing.wait(20)
        assert producer.describe().transaction_state == "PrepareCommit"
    finally:
        may_sync.set()
    assert producer.state() == "CompleteCommit"
    assert read(client, "orders") == [b"paid"]
