"""What a request costs in the broker's own code: calls, timers, tasks and memory.

Bounded against each other and not to the call, since the code may be cut otherwise at any time. An
odd turn of the loop now and then is left out by the least of `TRIES`.
"""

import asyncio
import struct
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.network.loop import new_event_loop
from broker.server import BrokerServer
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafkalog.protocol.frames import encode_request_header
from pyspark_kafkalog.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from tests.counted_work.function_calls import FunctionCalls
from tests.support.broker_child import RawClient
from tests.support.records import batch_of

TRIES = 7
FEW = 40
MOST_CALLS = 400
"""Of a Produce or Fetch request of one record: some 0.1 ms of the one thread that all share."""


class BrokerInThread:
    """A broker in a thread of the test's own process, and how a test calls into its loop."""

    def __init__(self, directory: Path) -> None:
        self.loop = new_event_loop()
        given = {
            "log.dirs": str(directory),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "replica.high.watermark.checkpoint.interval.ms": "3600000",
        }
        self.server = BrokerServer(BrokerConfig.from_properties(given), self.loop)
        (self.endpoint,) = self.server.open()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self.loop).result(10)

    def call(
        self,
        function: Callable[[Callable[[FrameType, str, Any], object] | None], None],
        *arguments: FunctionCalls | None,
    ) -> None:
        """Runs it in the loop's thread and waits for it."""

        done = threading.Event()

        def run() -> None:
            function(*arguments)
            done.set()

        self.loop.call_soon_threadsafe(run)
        assert done.wait(10)

    def calls_of(self, request: Callable[[], ProducedPartition | Sized | None]) -> int:
        """Function calls of the loop's thread while `request()` runs in this one."""
        return self._least_calls(request) - self._least_calls(lambda: None)

    def _least_calls(self, request: Callable[[], ProducedPartition | Sized | None]) -> int:
        found = []
        for _ in range(TRIES):
            counted = FunctionCalls()
            self.call(sys.setprofile, counted)
            request()
            self.call(sys.setprofile, None)
            found.append(counted.total)
        return min(found)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerInThread]:
    running = BrokerInThread(tmp_path_factory.mktemp("broker"))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def client(broker: BrokerInThread) -> Iterator[RawClient]:
    with RawClient(broker.endpoint.host, broker.endpoint.port) as connected:
        yield connected


@pytest.fixture
def create(broker: BrokerInThread, request: pytest.FixtureRequest) -> Callable[..., Any]:
    def create_topic(**configs: str) -> Any:
        address = f"{broker.endpoint.host}:{broker.endpoint.port}"
        given = {name.replace("_", "."): value for name, value in configs.items()}
        with Cluster(ClientConfig.from_options({"bootstrap.servers": address})) as cluster:
            admin.create_topic(cluster, request.node.name, configs=given)
        return request.node.name

    return create_topic


def fetch(client: RawClient, topic: str, offset: int, max_wait_ms: int = 0) -> Sized | None:
    ask = FetchPartition(topic, 0, offset, 1000)
    return client.fetch(FetchRequest(11, max_wait_ms, 1, [ask])).partitions[0].records


def test_a_produce_request_costs_the_same_calls_whatever_its_number_of_records(
    broker: BrokerInThread, client: RawClient, create: Callable[..., Any]
) -> None:
    """One call for each record makes batches of small records several times as dear."""
    topic = create()
    few, many = batch_of(2), batch_of(1_000)
    least = broker.calls_of(lambda: client.produce(topic, 0, few))
    assert least <= MOST_CALLS
    assert broker.calls_of(lambda: client.produce(topic, 0, many)) <= least + FEW


def test_requests_cost_the_same_calls_whatever_the_size_of_the_log(
    broker: BrokerInThread, client: RawClient, create: Callable[..., Any]
) -> None:
    """A walk over the segments makes a broker slower by the day: a topic has thousands of them."""
    topic = create(segment_bytes=str(1 << 20))
    one, most_of_a_segment = batch_of(1), batch_of([(None, b"x" * 600_000)])
    client.produce(topic, 0, one)

    def appending() -> int:
        return broker.calls_of(lambda: client.produce(topic, 0, one))

    def fetching(offset: int) -> int:
        return broker.calls_of(lambda: fetch(client, topic, offset))

    appended, fetched = appending(), fetching(0)
    assert fetched <= MOST_CALLS
    # Small answers from everywhere: large ones take a number of turns that is the kernel's.
    offsets = [0]
    for _ in range(2 * FEW):
        client.produce(topic, 0, most_of_a_segment)
        offsets.append(client.produce(topic, 0, one).base_offset)
    assert appending() <= appended + FEW
    for offset in (offsets[0], offsets[FEW], offsets[-2], offsets[-1]):
        assert fetching(offset) <= fetched + FEW


def test_requests_that_are_answered_at_once_start_no_timer_and_no_task(
    broker: BrokerInThread,
    client: RawClient,
    create: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A timer or a task costs as much as dozens of calls, and lives on after its request."""
    topic = create()
    client.produce(topic, 0, batch_of(1))
    assert fetch(client, topic, 0, max_wait_ms=500)
    started = []

    def counting(name: str) -> Callable[..., Any]:
        original = getattr(broker.loop, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            started.append(name)
            return original(*arguments, **options)

        return counted

    for name in ("call_at", "create_task", "run_in_executor"):
        monkeypatch.setattr(broker.loop, name, counting(name))
    with RawClient(broker.endpoint.host, broker.endpoint.port) as another:
        for _ in range(10):
            client.produce(topic, 0, batch_of(1))
            assert fetch(another, topic, 0, max_wait_ms=500)
    assert started == []
    assert not fetch(client, topic, 11, max_wait_ms=1)
    assert started == ["call_at"]


def test_a_produce_request_is_not_copied(
    broker: BrokerInThread, client: RawClient, create: Callable[..., Any]
) -> None:
    """A copy costs a tenth of a large request, and doubles what many at once hold."""
    topic = create()
    batch = batch_of([(None, b"x" * 900_000)])
    client.produce(topic, 0, batch)  # the frame's buffer is kept for the next one
    part = ProducePartition(topic, 0, batch)
    body = b"".join(encode_produce_request(ProduceRequest(9, None, -1, 5000, [part])))
    frame = encode_request_header(0, 9, 2, "raw") + body
    framed = struct.pack(">i", len(frame)) + frame
    tracemalloc.start()
    try:
        client.socket.sendall(framed)
        assert client.socket.recv(4)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= len(batch) // 3
