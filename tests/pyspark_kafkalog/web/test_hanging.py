"""What hangs costs the page a sentence: brokers that take connections and never answer, targets, a
registry."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import BrokerAddress, PartitionMetadata
from pyspark_kafkalog.decoding.registry import RegistryConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.web import brokers as asking
from pyspark_kafkalog.web.app import PageSettings
from pyspark_kafkalog.web.brokers import Brokers
from pyspark_kafkalog.web.figures import Measure
from tests.pyspark_kafkalog.client.scripted import ScriptedBroker
from tests.pyspark_kafkalog.web.conftest import Page, config, serving
from tests.pyspark_kafkalog.web.large_cluster import (
    END,
    HOSTILE_TOPIC,
    PARTITIONS,
    large_cluster,
)
from tests.support.patience import BUSY_S, wait_until

IMPATIENT = {"request_timeout_ms": "400", "socket_connection_setup_timeout_ms": "200"}


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        yield door


def port_of(door: socket.socket) -> Any:
    return door.getsockname()[1]


def connections(door: socket.socket) -> int:
    """How many were made since the last time."""
    count = 0
    with suppress(BlockingIOError):
        while True:
            door.accept()[0].close()
            count += 1
    return count


_Asked = TypeVar("_Asked")


def timed(ask: Callable[..., _Asked], *arguments: object, **query: str) -> tuple[_Asked, float]:
    began_s = time.monotonic()
    answer = ask(*arguments, **query)
    return answer, time.monotonic() - began_s


def test_one_broker_that_hangs_costs_what_it_alone_knows(
    servers: str, mute: socket.socket, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic(1)
    write(topic, *[(None, b"x")] * 5)
    brokers = Brokers(config(servers, **IMPATIENT))
    try:
        seen = brokers.seen(topic)
        silent = BrokerAddress(2, "127.0.0.1", port_of(mute), None)
        everybody = (*seen.overview.brokers, silent)
        seen = replace(seen, overview=replace(seen.overview, brokers=everybody))
        wanted = {
            topic: seen.overview.topics[topic],
            "other": [PartitionMetadata(0, 2, 0, (2,), (2,))],
        }
        measure = Measure(brokers)
        (figures, missing), took_s = timed(measure.look, seen, wanted)
        assert figures.keys() == {TopicPartition(topic, 0)}
        assert figures[TopicPartition(topic, 0)].records == 5
        assert len(missing) == 1
        assert missing[0].startswith(f"Broker 2 at 127.0.0.1:{port_of(mute)}")
        assert took_s < 1 + BUSY_S
        assert connections(mute) > 0
        # Nobody waits for it again so soon.
        for _ in range(5):
            assert len(measure.look(seen, wanted)[1]) == 1
        assert connections(mute) == 0
    finally:
        brokers.close()


def test_a_cluster_that_hangs_is_shown_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_QUIET_MS", 0)
    monkeypatch.setattr(asking, "_FRESH_MS", 0)
    with (
        EmbeddedBroker() as broker,
        serving(PageSettings(config(broker.bootstrap_servers, **IMPATIENT))) as page,
    ):
        wait_until(lambda: 'class="missing"' not in page.get("/").text, "all that there is")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for path in ("/", "/brokers"):
                answer, took_s = timed(page.get, path)
                assert answer.status == 200
                assert 'class="missing"' in answer.text
                assert took_s < 2 + BUSY_S
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        wait_until(lambda: 'class="missing"' not in page.get("/").text, "all that there is")


def test_a_cluster_that_never_answers_is_a_sentence(mute: socket.socket) -> None:
    with serving(PageSettings(config(f"127.0.0.1:{port_of(mute)}", **IMPATIENT))) as page:
        for path in ("/", "/records?topic=a", "/group?name=a"):
            answer, took_s = timed(page.get, path)
            assert answer.status == 503
            assert f"127.0.0.1:{port_of(mute)}" in answer.text
            assert took_s < 2 + BUSY_S
        assert page.get("/static/page.js").status == 200


def test_a_broker_that_is_away_is_told_by_its_replicas() -> None:
    """Metadata name the brokers that are there, and all replicas: here those of broker 1."""
    with (
        ScriptedBroker({}, {"orders": 3}, node_id=2) as broker,
        serving(PageSettings(config(broker.bootstrap_servers))) as page,
    ):
        rows = page.get("/brokers").rows
    assert [row[0] for row in rows] == ["Broker", "2", "1"]
    assert rows[1][1] == f"{broker.bootstrap_servers} controller"
    assert rows[2][3] == "no"
    assert rows[2][5] == "3"


def test_a_topic_of_10_000_partitions_is_paged() -> None:
    with (
        large_cluster() as broker,
        serving(PageSettings(config(broker.bootstrap_servers, request_timeout_ms="30000"))) as page,
    ):
        answer, took_s = timed(page.get, "/")
        (row,) = [row for row in answer.rows if row[0] == "many"]
        assert row[1].split() == ["10", "000"]
        assert row[3].replace(" ", "") == str(PARTITIONS * END)
        assert took_s < 3 + BUSY_S
        last, took_s = timed(page.get, "/topic", name="many", partition="9999")
        assert [row[0] for row in last.rows[1:]] == [str(n) for n in range(9_900, 10_000)]
        assert len(last.body) < 100_000
        assert took_s < 2 + BUSY_S
        hostile = page.get("/topic", name=HOSTILE_TOPIC)
        assert hostile.status == 200
        for each in (answer, last, hostile):
            assert each.text.count("<script") == 1


def test_a_target_that_hangs_is_a_sentence(
    servers: str, mute: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.web.loads._WAIT_S", 0.2)
    target = f"sql:postgresql+psycopg://u:swordfish@127.0.0.1:{port_of(mute)}/d#t"
    with serving(PageSettings(config(servers), (target, "parquet:/nowhere/at/all"))) as page:
        for _ in range(2):
            answer, took_s = timed(page.get, "/loads")
            assert answer.status == 200
            assert f"@127.0.0.1:{port_of(mute)}/d#t has not answered yet." in answer.text
            assert "swordfish" not in answer.text
            assert took_s < 2 + BUSY_S


def test_a_registry_that_hangs_leaves_values_as_they_are(
    servers: str, mute: socket.socket, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic()
    write(topic, *[(None, b"\x00\x00\x00\x00\x07payload")] * 30)
    url = f"http://127.0.0.1:{port_of(mute)}"
    options = {"schema.registry.url": url, "request.timeout.ms": "200"}
    registry = RegistryConfig.from_options(options)
    with serving(PageSettings(config(servers), registry=registry)) as page:
        answer, took_s = timed(page.get, "/records", topic=topic)
        assert answer.text.count("no schema registry answered") == 30
        assert "00000000  00 00 00 00 07 70 61 79" in answer.text
        assert took_s < 2 + BUSY_S


def test_who_saves_and_takes_nothing_holds_up_nobody(
    page: Page, new_topic: Callable[..., str], write: Callable[..., None]
) -> None:
    topic = new_topic(**{"max.message.bytes": "20000000"})
    write(topic, (None, b"x" * 16_000_000))
    path = f"/value?topic={topic}&offset=0"
    slow = []
    for _ in range(4):
        slow.append(socket.create_connection(("127.0.0.1", page.port)))
        slow[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert slow[-1].recv(12) == b"HTTP/1.1 200"
    assert page.get(path).status == 503
    assert page.get("/records", topic=topic).status == 200
    for each in slow:
        each.close()
    wait_until(lambda: page.get(path).status == 200, "a place")
