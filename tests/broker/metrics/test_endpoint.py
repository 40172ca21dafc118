"""The endpoint over HTTP, of a broker in a process of its own."""

import asyncio
import contextlib
import http.client
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from broker.config.log import LogConfig
from broker.log.log import Log
from broker.metrics import endpoint
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from tests.broker.api.transaction_client import TransactionClient
from tests.broker.test_main import run_broker
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import EVENT_S, insist, wait_until
from tests.support.records import batch_of, whole
from tests.support.scraping import Sample, address_of, get, scrape

LISTEN = ("--metrics-listen=127.0.0.1:0",)


def of_request(
    figures: dict[tuple[str | tuple[str, str], ...], float], name: str, request: str
) -> float:
    return figures.get((f"kafka_network_request_metrics_{name}", ("request", request)), 0)


def create(client: RawClient, name: str, **settings: str) -> None:
    configs = [
        CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
        for key, value in settings.items()
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=3, replication_factor=1, assignments=[], configs=configs
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    assert client.call(request, CreateTopicsResponse, 7).topics[0].error_code == 0


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerChild]:
    with BrokerChild(tmp_path_factory.mktemp("metrics"), arguments=LISTEN) as child:
        yield child
        assert child.stop() == 0


@pytest.fixture
def address(child: BrokerChild) -> tuple[str, int]:
    return address_of(child)


def test_what_a_client_does_is_counted(child: BrokerChild, address: tuple[str, int]) -> None:
    before = scrape(address)
    with RawClient(child.host, child.port) as client:
        create(client, "counted", **{"flush.messages": "1"})
        batch = batch_of(7)
        for _ in range(3):
            assert client.produce("counted", 0, batch).error_code == 0
        assert client.produce("counted", 99, batch).error_code == 3
        ask = FetchPartition("counted", 0, 0, 1 << 20)
        fetched = client.fetch(FetchRequest(11, 0, 1, [ask])).partitions[0]
        assert len(whole(fetched.records)) == 3 * len(batch)
        at_end = FetchPartition("counted", 0, 21, 1 << 20)
        assert not client.fetch(FetchRequest(11, 300, 1, [at_end])).partitions[0].records
        flushes = ("kafka_log_log_flush_stats_log_flush_rate_and_time_ms_count",)
        wait_until(lambda: scrape(address)[flushes], "the log is flushed")
        after = scrape(address)

    def grown(name: str, *labels: tuple[str, str]) -> float:
        key: Sample = (name, *labels)
        return after[key] - before.get(key, 0)

    topics = "kafka_server_broker_topic_metrics_"
    assert grown(topics + "messages_in_total") == 21
    assert grown(topics + "bytes_in_total") == 3 * len(batch)
    assert grown(topics + "bytes_out_total") == 3 * len(batch)
    assert grown(topics + "failed_produce_requests_total") == 1
    error = ("error", "UNKNOWN_TOPIC_OR_PARTITION")
    assert grown("kafka_network_request_metrics_errors_total", error) == 1
    requests = "kafka_network_request_metrics_requests_total"
    assert grown(requests, ("request", "Produce"), ("version", "9")) == 4
    assert grown(requests, ("request", "Fetch"), ("version", "11")) == 2
    assert grown(requests, ("request", "CreateTopics"), ("version", "7")) == 1
    assert grown("kafka_log_log_size") == 3 * len(batch)
    assert grown("kafka_log_log_num_log_segments") == 3
    assert grown("kafka_server_replica_manager_partition_count") == 3
    assert of_request(after, "request_bytes_total", "Produce") > 4 * len(batch)
    assert of_request(after, "response_bytes_total", "Fetch") > 3 * len(batch)
    assert after[("kafka_log_log_manager_load_time_ms",)] > 0
    assert after[("process_resident_memory_bytes",)] > 1 << 20


def test_an_error_of_a_transactions_partition_is_counted(
    child: BrokerChild, address: tuple[str, int]
) -> None:
    error = ("kafka_network_request_metrics_errors_total", ("error", "UNKNOWN_TOPIC_OR_PARTITION"))
    before = scrape(address)
    with RawClient(child.host, child.port) as client:
        producer = TransactionClient(client, "counted")
        producer.find_coordinator()
        producer.init()
        assert producer.add("nowhere", 0) == 3
    assert scrape(address)[error] - before.get(error, 0) == 1


def test_a_fetch_that_waits_spends_remote_time(
    child: BrokerChild, address: tuple[str, int]
) -> None:
    with RawClient(child.host, child.port) as client:
        create(client, "waited")
        ask = FetchPartition("waited", 0, 0, 1 << 20)
        client.fetch(FetchRequest(11, 300, 1, [ask]))
        figures = scrape(address)
    assert of_request(figures, "remote_time_ms_sum", "Fetch") > 250
    assert of_request(figures, "total_time_ms_sum", "Fetch") > 250
    assert of_request(figures, "local_time_ms_sum", "Fetch") < 250
    for kind in ("total", "local"):
        name = f"kafka_network_request_metrics_{kind}_time_ms_bucket"
        buckets = {
            float(key[1][1]): value
            for key, value in figures.items()
            if key[0] == name and ("request", "Fetch") in key
        }
        counts = [buckets[bound] for bound in sorted(buckets)]
        assert counts == sorted(counts)
        assert counts[-1] == of_request(figures, f"{kind}_time_ms_count", "Fetch")


def test_connections_and_waiting_fetches_are_gauges(
    child: BrokerChild, address: tuple[str, int]
) -> None:
    opened = ("kafka_network_socket_server_connection_count",)
    waiting = (
        "kafka_server_delayed_operation_purgatory_purgatory_size",
        ("delayed_operation", "Fetch"),
    )
    with RawClient(child.host, child.port) as client:
        create(client, "gauged")
        ask = FetchPartition("gauged", 0, 0, 1 << 20)
        thread = threading.Thread(
            target=client.fetch, args=(FetchRequest(11, 1000, 1, [ask]),), daemon=True
        )
        thread.start()
        wait_until(lambda: scrape(address)[waiting], "the fetch waits")
        assert scrape(address)[opened] == 1
        thread.join()
        assert scrape(address)[waiting] == 0
    wait_until(lambda: not scrape(address)[opened], "the connection is gone")
    assert scrape(address)[("kafka_network_socket_server_connection_close_total",)] >= 1


def test_refused_requests_are_counted(child: BrokerChild, address: tuple[str, int]) -> None:
    name = ("kafka_network_request_metrics_refused_total",)
    before = scrape(address)[name]
    with RawClient(child.host, child.port) as client:
        client.send_body(999, 0, b"")
        assert client.is_closed_by_broker()
    assert scrape(address)[name] == before + 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/metrics?name[]=x", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/", 404),
        ("GET", "/../../etc/passwd", 404),
        ("POST", "/metrics", 405),
    ],
)
def test_paths_and_methods(address: tuple[str, int], method: str, path: str, status: int) -> None:
    found, body = get(address, path, method)
    assert found == status
    assert (not body) == (method == "HEAD")


def test_openmetrics_for_who_asks(address: tuple[str, int]) -> None:
    _, text = get(address, "/metrics", headers={"Accept": "application/openmetrics-text"})
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_text_for_who_asks_for_what_is_no_version(
    child: BrokerChild, address: tuple[str, int], kind: str
) -> None:
    for version in ("abc", "1.x", "³", "1..0", "-"):
        accept = f"{kind}; version={version}".encode("latin-1")
        status, text = get(address, "/metrics", headers={"Accept": accept})
        assert (status, text.endswith("# EOF\n")) == (200, False)
    assert "trace=" not in child.stderr()


def test_half_requests_and_many_connections_do_no_harm(
    child: BrokerChild, address: tuple[str, int]
) -> None:
    with contextlib.ExitStack() as stack:
        for head in (b"", b"GET /metr", b"GET / HTTP/1.1\r\n" + b"x" * 4000, b"\0\xff" * 100):
            for _ in range(20):
                sock = stack.enter_context(socket.create_connection(address, timeout=EVENT_S))
                with contextlib.suppress(ConnectionError):
                    sock.sendall(head)
        with socket.create_connection(address, timeout=EVENT_S) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"x" * 1_000_000)
            with contextlib.suppress(ConnectionError):
                assert sock.recv(1) == b""
        with RawClient(child.host, child.port) as client:
            create(client, "unharmed")
    said, _ = insist(lambda: get(address, "/healthz"), ConnectionError, http.client.HTTPException)
    assert said == 200


def test_an_event_loop_that_does_not_turn_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_HEALTH_S", 0.2)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    go_on = threading.Event()
    try:
        assert asyncio.run(endpoint.turns(loop))
        loop.call_soon_threadsafe(go_on.wait)
        assert not asyncio.run(endpoint.turns(loop))
        go_on.set()
        assert asyncio.run(endpoint.turns(loop))
    finally:
        go_on.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_broker_that_recovers_its_logs_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "big-0"
    directory.mkdir()
    log = Log(directory, LogConfig())
    batch = memoryview(bytearray(batch_of([(None, b"x" * 500_000)])))
    for _ in range(400):
        log.append(batch, 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    seen = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                seen.add(get(address, "/healthz"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        argument = f"--metrics-listen={address[0]}:{address[1]}"
        with BrokerChild(tmp_path, arguments=(argument,)) as child:
            wait_until(lambda: (200, "serving\n") in seen, lambda: seen)
            assert child.stop() == 0
    finally:
        stop.set()
        watcher.join()
    assert (503, "starting\n") in seen
    assert {status for status, _ in seen} == {200, 503}


def test_a_taken_port_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"--metrics-listen=127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = run_broker(f"--data-dir={tmp_path}", "--listen=127.0.0.1:0", listen)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "metrics.listener" in err
    code, _, err = run_broker(f"--data-dir={tmp_path}", "--metrics-listen=nonsense")
    assert code == 1
    assert "HOST:PORT" in err


def test_without_the_option_nothing_listens_and_nothing_is_imported(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child:
        assert "metrics" not in child.stderr()
        with open(f"/proc/{child.process.pid}/task/{child.process.pid}/children") as children:
            assert not children.read()
        names = os.listdir(f"/proc/{child.process.pid}/task")
        assert len(names) < 5
