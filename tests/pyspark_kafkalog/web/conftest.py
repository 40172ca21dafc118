"""The page in this process, before a real broker; `get` asks it over HTTP as a browser does."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.web.app import PageSettings
from pyspark_kafkalog.web.server import listen, server_of
from tests.support.patience import EVENT_S

_numbers = count()


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def rows(self) -> list[list[str]]:
        """The cells of each row of all tables, as they are read."""
        return _Tables.of(self.text)


class _Tables(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._is_in_cell = False

    @classmethod
    def of(cls, text: str) -> list[list[str]]:
        parser = cls()
        parser.feed(text)
        return [[" ".join(cell.split()) for cell in row] for row in parser.rows]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._is_in_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_in_cell:
            self.rows[-1][-1] += data


class Page:
    """A page that is served at `port` of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **query: Any) -> Answer:
        return self.ask("GET", f"{path}?{urlencode(query)}" if query else path)

    def ask(self, method: str, target: str, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=EVENT_S)
        try:
            connection.request(method, target, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()


@contextmanager
def serving(settings: PageSettings) -> Iterator[Page]:
    server = server_of(settings)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            yield Page(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def config(servers: str, **more: str) -> ClientConfig:
    given = {"bootstrap.servers": servers, "request.timeout.ms": "5000"}
    return ClientConfig.from_options(given | {k.replace("_", "."): v for k, v in more.items()})


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"message.max.bytes": "120000000"}) as running:
        yield running


@pytest.fixture(scope="module")
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


@pytest.fixture(scope="module")
def cluster(servers: str) -> Iterator[Cluster]:
    with Cluster(config(servers, request_timeout_ms="60000")) as running:
        yield running


@pytest.fixture(scope="module")
def page(servers: str) -> Iterator[Page]:
    with serving(PageSettings(config(servers))) as served:
        yield served


@pytest.fixture
def new_topic(cluster: Cluster) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(_numbers)}"
        given = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topic(cluster, name, partitions, 1, given)
        return name

    return create


@pytest.fixture(scope="module")
def write(servers: str) -> Callable[..., None]:
    """write(topic, (key, value), ..., partition=0, headers=None)"""
    producer = Producer(
        {"bootstrap.servers": servers, "message.max.bytes": 120_000_000, "linger.ms": 0}
    )

    def send(topic: str, *records: Any, partition: int = 0, headers: Any = None) -> None:
        for key, value in records:
            producer.produce(topic, value, key, partition, headers=headers)
        assert producer.flush(EVENT_S) == 0

    return send
