"""Clients of Kafka 0.8 to 0.11 against the broker, beside new ones on the same topic.

Real ones: kafka-python 1.4.7 and pykafka 2.8.0 from PyPI, each installed once into a folder of its
own below the system's folder for temporary files; kcat told that the broker is old; the tools of
Apache Kafka 0.8.2.2 from `$KAFKALOG_PEERS/kafka-0.8.2`. With KAFKALOG_TEST_BOOTSTRAP the broker is
Apache Kafka, up to 3.9, and the same holds. Each client takes one codec, the next one the next;
with KAFKALOG_ALL_CODECS (`make interop`) each takes all.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_child import broker_under_test
from tests.support.jvm import PEERS, peer_java

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OLD_CODECS = ["none", "gzip", "snappy", "lz4"]
TIMEOUT_S = 60
OLD_JARS = PEERS / "kafka-0.8.2"
# These packages ask at run time for what reads and writes snappy and lz4.
CODEC_PACKAGES = ["python-snappy==0.7.3", "lz4==4.4.5", "xxhash==3.5.0"]
PACKAGES = {
    "kafka-python": ["kafka-python==1.4.7", *CODEC_PACKAGES],
    "pykafka": ["pykafka==2.8.0", "setuptools<81", *CODEC_PACKAGES],
}
PYTHON_CLIENTS = [
    *(("kafka-python", version) for version in ("0.8.2", "0.9", "0.10.0", "0.11")),
    ("pykafka", "0.8.2"),
]
KCAT_VERSIONS = ["0.8.2", "0.9.0", "0.10.0"]


def with_codecs(clients: list[Any]) -> list[Any]:
    """(client, codec) for the tests, as the module's head says."""
    if os.environ.get("KAFKALOG_ALL_CODECS"):
        return list(itertools.product(clients, OLD_CODECS))
    return list(zip(clients, itertools.cycle(OLD_CODECS)))


Row = tuple[bytes | None, bytes | None]
ROWS: list[Row] = [
    (None if number % 3 == 0 else b"key-%d" % number, b"value-%d " % number * (1 + number % 9))
    for number in range(300)
]
VALUES = [value for _, value in ROWS]

only_where_old_packages_run = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="these old packages do not run on Python 3.12"
)
only_with_java = pytest.mark.skipif(
    not shutil.which("java") or not list(OLD_JARS.glob("kafka_*.jar")),
    reason=f"needs java and Kafka 0.8.2.2's jars in {OLD_JARS}: run tests/interop/peers/fetch",
)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_under_test(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def topic(bootstrap: str) -> str:
    """Old clients do not wait for a topic that is made for them."""
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    name = f"old-{uuid.uuid4().hex[:12]}"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(name, 1, 1)])
    admin.close()
    return name


def installed(client: str) -> Path:
    """Where the client's package lies. Made aside and moved, so that it is there whole or not."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = "-".join(PACKAGES[client]).replace("==", "-").replace("<", "-")
    folder = Path(tempfile.gettempdir()) / f"kafkalog-{version}-{name}"
    if not folder.exists():
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(aside)]
        subprocess.run([*command, *PACKAGES[client]], check=True, timeout=300)
        try:
            aside.rename(folder)
        except OSError:  # another test run was faster
            shutil.rmtree(aside)
    return folder


class OldPython:
    """A client of `old_client.py`."""

    def __init__(self, client: str, version: str, bootstrap: str, topic: str) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(installed(client))}
        self._client = client
        self._rest = (bootstrap, topic)
        self._version = version

    def write(self, rows: Sequence[tuple[bytes | None, bytes | None]], codec: str) -> None:
        self._run("write", codec, [[_text(part) for part in row] for row in rows])

    def read(self, count: int) -> list[Row]:
        found = self._run("read", "none", count)
        assert [offset for offset, _, _ in found] == list(range(count))
        return [(_bytes(key), _bytes(value)) for _, key, value in found]

    def _run(self, action: str, codec: str, request: object) -> Any:
        script = str(Path(__file__).with_name("old_client.py"))
        done = subprocess.run(
            [sys.executable, script, self._client, action, *self._rest, codec, self._version],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=self._environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


class Kcat:
    """librdkafka, which believes what it is told of the broker's age."""

    def __init__(self, version: str, bootstrap: str, topic: str) -> None:
        old = ["-X", "api.version.request=false", "-X", f"broker.version.fallback={version}"]
        self._command = ["kcat", "-b", bootstrap, "-t", topic, "-K", "\t", *old]

    def write(self, rows: Sequence[Row], codec: str) -> None:
        lines = [f"{_text(key) or ''}\t{_text(value)}\n" for key, value in rows]
        _run([*self._command, "-P", "-Z", "-z", codec, "-X", "linger.ms=50"], "".join(lines))

    def read(self, count: int) -> list[Row]:
        found = _run([*self._command, "-C", "-o", "beginning", "-c", str(count), "-q"]).splitlines()
        pairs = [line.split("\t") for line in found]
        return [(_bytes(key) or None, _bytes(value)) for key, value in pairs]


class Kafka082:
    """Apache Kafka 0.8.2.2's own tools; they know no keys."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._java = peer_java("kafka-0.8.2")
        self._where = ["--broker-list", bootstrap, "--topic", topic]

    def write(self, rows: Sequence[Row], codec: str) -> None:
        lines = "".join(f"{_text(value)}\n" for _, value in rows)
        options = ["--compression-codec", codec, "--sync"]
        _run([*self._java, "kafka.tools.ConsoleProducer", *self._where, *options], lines)

    def read(self, count: int) -> list[Row]:
        options = ["--partition", "0", "--offset", "-2", "--max-messages", str(count)]
        options.append("--no-wait-at-logend")
        command = [*self._java, "kafka.tools.SimpleConsumerShell", *self._where, *options]
        return [(None, _bytes(line)) for line in _run(command).splitlines()]


def _run(command: Sequence[str], stdin: str = "") -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class New:
    """kafka-python of today."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic

    def write(self, rows: Sequence[tuple[bytes | None, bytes | None]], codec: str) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=50,
        )
        headers = [("left", b"out")]
        for key, value in rows:
            producer.send(self._topic, key=key, value=value, headers=headers, partition=0)
        producer.flush(TIMEOUT_S)
        producer.close()

    def read(self, count: int) -> list[Row]:
        from kafka import KafkaConsumer, TopicPartition

        partition = TopicPartition(self._topic, 0)
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=None, consumer_timeout_ms=20_000
        )
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[Row] = []
        for record in consumer:
            assert record.offset == len(found)
            found.append((record.key, record.value))
            if len(found) == count:
                break
        consumer.close()
        return found


def check(
    old: OldPython | Kcat | Kafka082,
    new: New,
    codec: str,
    rows: Sequence[tuple[bytes | None, bytes | None]] = ROWS,
) -> None:
    """The old one writes, both read; the new one writes, both read all."""
    old.write(rows, codec)
    assert new.read(len(rows)) == rows
    assert old.read(len(rows)) == rows
    new.write(rows, codec)
    assert new.read(2 * len(rows)) == rows * 2
    assert old.read(2 * len(rows)) == rows * 2


@only_where_old_packages_run
@pytest.mark.parametrize(("client", "codec"), with_codecs(PYTHON_CLIENTS))
def test_old_python_clients(
    bootstrap: str, topic: str, client: tuple[str, str], codec: str
) -> None:
    name, version = client
    check(OldPython(name, version, bootstrap, topic), New(bootstrap, topic), codec)


@pytest.mark.parametrize(("version", "codec"), with_codecs(KCAT_VERSIONS))
def test_an_old_librdkafka(bootstrap: str, topic: str, version: str, codec: str) -> None:
    check(Kcat(version, bootstrap, topic), New(bootstrap, topic), codec)


@only_with_java
@pytest.mark.parametrize("codec", OLD_CODECS[::-1][: len(with_codecs([0]))])
def test_apache_kafka_0_8_2(bootstrap: str, topic: str, codec: str) -> None:
    rows = [(None, value) for value in VALUES]
    check(Kafka082(bootstrap, topic), New(bootstrap, topic), codec, rows)


@pytest.mark.parametrize("version", [(0, 8, 2), (0, 9), (0, 10, 0), (0, 11)])
def test_kafka_python_of_today_told_that_the_broker_is_old(
    bootstrap: str, topic: str, version: tuple[int, ...]
) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    options = {"bootstrap_servers": bootstrap, "api_version": version}
    for codec in OLD_CODECS[:3]:  # lz4 for these needs a package that only the old ones have here
        producer = KafkaProducer(
            compression_type=None if codec == "none" else codec,
            enable_idempotence=False,
            linger_ms=50,
            **options,
        )
        for key, value in ROWS:
            producer.send(topic, key=key, value=value, partition=0)
        producer.flush(TIMEOUT_S)
        producer.close()
    consumer = KafkaConsumer(group_id=None, consumer_timeout_ms=20_000, **options)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found = []
    for record in consumer:
        found.append((record.key, record.value))
        if len(found) == 3 * len(ROWS):
            break
    consumer.close()
    assert found == ROWS * 3


@only_where_old_packages_run
def test_many_old_clients_and_codecs_on_one_topic(bootstrap: str, topic: str) -> None:
    """All write in turn; in the end each reads everything."""
    new = New(bootstrap, topic)
    clients: list[OldPython | New] = [
        *(OldPython(client, version, bootstrap, topic) for client, version in PYTHON_CLIENTS),
        new,
    ]
    expected = []
    for number, client in enumerate(clients):
        rows = ROWS[number * 40 : (number + 1) * 40]
        client.write(rows, OLD_CODECS[number % 4])
        expected += rows
    for client in clients:
        assert client.read(len(expected)) == expected
