"""Kafka's own load and verification tools, unmodified: the Java producer and consumer at work.

With KAFKALOG_TEST_BOOTSTRAP the broker is Apache Kafka, and the same must hold.
"""

import json
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.broker_child import broker_under_test
from tests.support.jvm import peer_java
from tests.support.kafka_server import require_kafka
from tests.support.patience import attempts

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TIMEOUT_S = 120
PARTITIONS = 2
PROPERTIES = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_kafka()
    with broker_under_test(tmp_path_factory.mktemp("broker"), PROPERTIES) as address:
        yield address


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"java-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    return name


def command(tool: str, *arguments: str) -> list[str]:
    return [
        *peer_java("kafka", "-Xmx128m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
        *(f"org.apache.kafka.tools.{tool}", *arguments),
    ]


def java(tool: str, *arguments: str) -> str:
    done = subprocess.run(
        command(tool, *arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def at_work(tool: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A tool that runs until it is told to end."""
    process = subprocess.Popen(
        command(tool, *arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def events(output: str) -> list[dict[str, Any]]:
    """What the verifiable clients print: one JSON object a line."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def ends(bootstrap: str, topic: str) -> int:
    """How many offsets the topic has used."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=20)[1]
            for index in range(PARTITIONS)
        )
    finally:
        consumer.close()


def test_producer_and_consumer_performance(bootstrap: str, topic: str) -> None:
    written = java(
        "ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
        *("--command-property", "acks=all", "linger.ms=5", "compression.type=lz4"),
    )
    assert re.search(r"^20000 records sent", written, re.MULTILINE), written
    assert ends(bootstrap, topic) == 20_000
    read = java(
        "ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", "20000"),
        *("--group", f"{topic}-readers", "--hide-header"),
    )
    megabytes, records = (float(read.split(",")[column]) for column in (2, 4))
    assert records == 20_000, read
    assert megabytes == pytest.approx(20_000 * 100 / 2**20, abs=0.1)


def test_the_verifiable_clients_agree(bootstrap: str, topic: str) -> None:
    """What the one says was acknowledged is what the other says it read, where it says."""
    produced = events(
        java(
            "VerifiableProducer",
            *("--bootstrap-server", bootstrap, "--topic", topic),
            *("--max-messages", "500", "--repeating-keys", "7", "--acks", "-1"),
        )
    )
    acknowledged = [each for each in produced if each["name"] == "producer_send_success"]
    assert not [each for each in produced if each["name"] == "producer_send_error"]
    assert len(acknowledged) == 500
    group = f"{topic}-verified"
    # It ends by itself only at SIGTERM; the number it may read bounds what it prints.
    with at_work(
        "VerifiableConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group),
        *("--max-messages", "500", "--verbose", "--session-timeout", "6000"),
    ) as consumer:
        output, _ = consumer.communicate(timeout=TIMEOUT_S)
    found = events(output)
    read = [each for each in found if each["name"] == "record_data"]
    placed = {(each["partition"], each["offset"], each["value"]) for each in acknowledged}
    assert {(each["partition"], each["offset"], each["value"]) for each in read} == placed
    commits = [each for each in found if each["name"] == "offsets_committed"]
    assert commits
    assert all(each["success"] for each in commits), commits
    assert {"startup_complete", "partitions_assigned"} <= {each["name"] for each in found}


def test_a_verifiable_producer_through_a_stop(bootstrap: str, topic: str) -> None:
    """SIGTERM: it says how many were acknowledged, and they are there."""
    with at_work(
        "VerifiableProducer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "500"),
    ) as producer:
        assert producer.stdout is not None
        seen = 0
        for _ in attempts("acknowledged records", TIMEOUT_S):
            seen += '"producer_send_success"' in producer.stdout.readline()
            if seen == 200:
                break
        producer.send_signal(signal.SIGTERM)
        rest = events(producer.stdout.read())
        assert producer.wait(TIMEOUT_S) in (0, 128 + signal.SIGTERM)
    (told,) = [each for each in rest if each["name"] == "tool_data"]
    assert told["acked"] == ends(bootstrap, topic)
    # What the tool was about to send as it was told to stop it counts as sent.
    assert told["sent"] - told["acked"] in (0, 1)
