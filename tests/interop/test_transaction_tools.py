"""Kafka's own kafka-transactions and its transactional load tool, unmodified, on our transactions.

With KAFKALOG_TEST_BOOTSTRAP the broker is Apache Kafka, and the same must hold.
"""

import re
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.test_java_clients import java
from tests.support.broker_child import broker_under_test
from tests.support.kafka_server import require_kafka

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_kafka()
    with broker_under_test(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"transactions-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


@pytest.fixture
def transactions(bootstrap: str) -> Callable[..., list[list[str]]]:
    """transactions(*arguments) -> the lines that kafka-transactions prints, cut into words."""

    def run(*arguments: str) -> list[list[str]]:
        output = java("TransactionsCommand", "--bootstrap-server", bootstrap, *arguments)
        return [line.split() for line in output.splitlines() if line.strip()]

    return run


def open_transaction(bootstrap: str, topic: str) -> Producer:
    """A producer with the topic's name for an id, in a transaction with one record."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(20) == 0
    return producer


def read_committed(bootstrap: str, topic: str) -> list[bytes | None]:
    """What is readable up to the last stable offset, which must be the end."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    values: list[bytes | None] = []
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(20)
            assert message is not None, f"nothing after {values}, though the end is {end}"
            if message.error() is None:
                values.append(message.value())
            elif (message.offset() or 0) >= end:
                return values
    finally:
        consumer.close()


def test_an_open_transaction_is_shown_and_terminated(
    bootstrap: str, topic: str, transactions: Callable[..., list[list[str]]]
) -> None:
    producer = open_transaction(bootstrap, topic)
    (listed,) = [line for line in transactions("list") if line[0] == topic]
    producer_id = listed[2]
    assert listed[3] == "Ongoing"
    header, described = transactions("describe", "--transactional-id", topic)
    told = dict(zip(header, described, strict=False))
    assert (told["ProducerId"], told["TransactionState"]) == (producer_id, "Ongoing")
    assert f"{topic}-0" in described
    header, active = transactions("describe-producers", "--topic", topic, "--partition", "0")
    told = dict(zip(header, active, strict=True))
    assert told["ProducerId"] == producer_id
    assert told["CurrentTransactionStartOffset"] == "0"
    # It is younger than any transaction may last.
    assert not [line for line in transactions("find-hanging", "--topic", topic) if topic in line]
    transactions("forceTerminateTransaction", "--transactionalId", topic)
    (listed,) = [line for line in transactions("list") if line[0] == topic]
    assert listed[3] == "Empty"
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
    assert read_committed(bootstrap, topic) == []


def test_a_transaction_is_aborted_in_its_partition(
    bootstrap: str, topic: str, transactions: Callable[..., list[list[str]]]
) -> None:
    """As one does with a hanging one: by where it begins."""
    producer = open_transaction(bootstrap, topic)
    transactions("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert read_committed(bootstrap, topic) == []
    header, active = transactions("describe-producers", "--topic", topic, "--partition", "0")
    assert dict(zip(header, active, strict=True))["CurrentTransactionStartOffset"] == "None"
    del producer


def test_performance_in_transactions(bootstrap: str, topic: str) -> None:
    written = java(
        "ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--num-records", "5000", "--record-size", "100", "--throughput", "-1"),
        *("--transactional-id", f"{topic}-perf", "--transaction-duration-ms", "50"),
    )
    assert re.search(r"^5000 records sent", written, re.MULTILINE), written
    assert len(read_committed(bootstrap, topic)) == 5000
