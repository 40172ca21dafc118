"""What a broker asks of the kernel for a request, and for a connection that asks for nothing.

Counted below Python in a real broker process, so that these hold however its code is cut or
compiled. What depends on how the kernel hands out bytes is bounded, the rest is exact up to
`FEW`: turns of the loop that began before the count, an index entry.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from tests.counted_work.system_calls import SystemCalls
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.present import present
from tests.support.records import batch_of

REQUESTS = 100
FEW = 5


@pytest.fixture(scope="module")
def system_calls(tmp_path_factory: pytest.TempPathFactory) -> SystemCalls:
    return SystemCalls(tmp_path_factory.mktemp("system-calls"))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, system_calls: SystemCalls
) -> Iterator[BrokerChild]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in system_calls.environment.items():
            patch.setenv(name, value)
        # Work of the clock alone would be counted with whatever goes on beside it.
        hour = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
        child = BrokerChild(tmp_path_factory.mktemp("broker"), hour)
    with child:
        config = ClientConfig.from_options({"bootstrap.servers": child.address})
        with Cluster(config) as cluster:
            for topic in ("produced", "fetched", "empty"):
                admin.create_topic(cluster, topic, 1)
        yield child


@pytest.fixture
def client(broker: BrokerChild) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port) as connected:
        connected.metadata_of("empty")
        yield connected


def test_a_produce_request_is_one_receive_one_write_and_one_send(
    client: RawClient, system_calls: SystemCalls
) -> None:
    """One more of any of them costs every producer several percent of a small request."""
    batch = batch_of(1)
    client.produce("produced", 0, batch)
    with system_calls.counted() as counted:
        for _ in range(REQUESTS):
            assert client.produce("produced", 0, batch).error_code == 0
    assert counted.calls["receive"] == REQUESTS
    assert counted.calls["send"] == REQUESTS
    assert counted.calls["write"] <= REQUESTS + FEW
    assert counted.calls["epoll_wait"] <= REQUESTS + FEW
    assert counted.calls["epoll_ctl"] == counted.calls["read"] == 0


def test_no_append_waits_for_the_disk(client: RawClient, system_calls: SystemCalls) -> None:
    """An fsync in the loop holds up every connection for milliseconds; the policy here is none."""
    with system_calls.counted() as counted:
        for acks in (1, -1):
            for _ in range(REQUESTS):
                client.produce("produced", 0, batch_of(1), acks=acks)
    assert counted.calls["sync"] == 0


def test_records_are_written_once_whatever_their_number(
    client: RawClient, system_calls: SystemCalls
) -> None:
    """A batch that is written in parts, or twice, costs a system call for each of its records."""
    batch = batch_of(5_000)
    with system_calls.counted() as counted:
        for _ in range(REQUESTS // 10):
            assert client.produce("produced", 0, batch).error_code == 0
    # Beside the batch an entry of each of the two indexes, at most.
    assert counted.calls["write"] <= 3 * (REQUESTS // 10) + FEW
    assert counted.bytes["write"] <= (len(batch) + 100) * (REQUESTS // 10)
    assert counted.calls["send"] == REQUESTS // 10


def test_requests_that_came_together_are_received_and_answered_together(
    broker: BrokerChild, client: RawClient, system_calls: SystemCalls
) -> None:
    """A receive and a send for each would halve what producers with several in flight get."""
    parts = [ProducePartition("produced", 0, batch_of(1))]
    body = b"".join(encode_produce_request(ProduceRequest(9, None, -1, 5000, parts)))
    with system_calls.counted() as counted:
        broker.process.send_signal(signal.SIGSTOP)
        for _ in range(REQUESTS):
            client.send_body(0, 9, body)
        broker.process.send_signal(signal.SIGCONT)
        for _ in range(REQUESTS):
            client.receive_body(0, 9)
    assert counted.calls["receive"] <= 2 + FEW
    assert counted.calls["send"] <= REQUESTS // 10
    assert counted.calls["epoll_wait"] <= REQUESTS // 10
    assert counted.calls["write"] <= REQUESTS + FEW


def test_fetched_records_never_enter_the_process(
    client: RawClient, system_calls: SystemCalls
) -> None:
    """Reading them would cost two copies of every byte that is consumed, by each consumer."""
    batch = batch_of([(None, os.urandom(900_000))])
    for _ in range(4):
        client.produce("fetched", 0, batch)
    ask = FetchPartition("fetched", 0, 0, 4 << 20)
    with system_calls.counted() as counted:
        for _ in range(5):
            (found,) = client.fetch(FetchRequest(11, 0, 1, [ask], max_bytes=16 << 20)).partitions
            assert len(present(found.records)) == 4 * len(batch)
    assert counted.bytes["sendfile"] == 5 * 4 * len(batch)
    assert counted.calls["receive"] == 5
    # The way to the first and to the last batch, by headers, and the answer's own fields.
    assert counted.bytes["read"] <= 5 * 2 * 4096
    assert counted.bytes["send"] <= 5 * 100
    assert counted.bytes["write"] == 0


def test_a_fetch_that_waits_takes_no_turns_until_it_is_woken(
    client: RawClient, connect: Callable[[], RawClient], system_calls: SystemCalls
) -> None:
    """Polling for records costs a processor where many consumers are at the end of their topics."""
    waiting = connect()
    ask = FetchPartition("empty", 0, 0, 1 << 20)
    with system_calls.counted() as counted:
        answers = []
        reader = threading.Thread(
            target=lambda: answers.append(waiting.fetch(FetchRequest(11, 1_000, 1, [ask])))
        )
        reader.start()
        reader.join()
        assert not answers[0].partitions[0].records
    assert counted.calls["epoll_wait"] <= 5 + FEW
    assert counted.calls["receive"] == counted.calls["send"] == 1


def test_a_connection_that_is_idle_costs_a_descriptor_and_no_calls(
    broker: BrokerChild, connect: Callable[[], RawClient], system_calls: SystemCalls
) -> None:
    """Thousands of idle clients are usual; a timer or a second descriptor each is not for free."""
    descriptors = f"/proc/{broker.process.pid}/fd"
    before, resident_bytes = len(os.listdir(descriptors)), broker.resident_bytes()
    idle = [connect() for _ in range(REQUESTS)]
    for each in idle:
        each.metadata_of("empty")
    # Fewer where those of earlier tests have gone meanwhile.
    assert len(os.listdir(descriptors)) <= before + len(idle)
    assert broker.resident_bytes() - resident_bytes <= len(idle) * 8192
    active = connect()
    active.produce("produced", 0, batch_of(1))
    with system_calls.counted() as counted:
        for _ in range(REQUESTS):
            active.produce("produced", 0, batch_of(1))
    assert counted.calls["receive"] == counted.calls["send"] == REQUESTS
    assert counted.calls["epoll_wait"] <= REQUESTS + FEW
    assert counted.calls["epoll_ctl"] == 0


@pytest.fixture
def connect(broker: BrokerChild) -> Iterator[Callable[[], RawClient]]:
    """connect() -> RawClient; all are closed at the end."""
    clients = []

    def open_client() -> RawClient:
        clients.append(RawClient(broker.host, broker.port))
        return clients[-1]

    yield open_client
    for each in clients:
        each.socket.close()
