"""A data directory that Apache Kafka wrote and was stopped or killed opens here, all intact."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.broker_child import BrokerChild
from tests.support.kafka_server import KafkaServer, require_kafka
from tests.support.patience import insist

pytestmark = [pytest.mark.interop, pytest.mark.long]

KafkaDirectory = tuple[Path, dict[tuple[str, int], list[bytes]]]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COMMITTED = [TopicPartition("plain-none", 0, 77), TopicPartition("plain-lz4", 1, 99)]
SMALL_SEGMENTS = {"segment.bytes": "1048576", "index.interval.bytes": "1000"}


def make_topics(bootstrap: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"plain-{codec}", 2, 1, config=SMALL_SEGMENTS) for codec in CODECS]
    topics.append(NewTopic("transactions", 1, 1, config=SMALL_SEGMENTS))
    for future in client.create_topics(topics).values():
        future.result()


def write(bootstrap: str) -> dict[tuple[str, int], list[bytes]]:
    """Values that a read_committed consumer must find in each (topic, partition)."""
    make_topics(bootstrap)
    expected: dict[tuple[str, int], list[bytes]] = {}
    for codec in CODECS:
        producer = ConfluentProducer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        values = [b"%s-%06d" % (codec.encode(), number) + b"." * 400 for number in range(6000)]
        for number, value in enumerate(values):
            producer.produce(f"plain-{codec}", value, b"key-%d" % number, number % 2)
            producer.poll(0)
        producer.flush()
        expected[f"plain-{codec}", 0] = values[0::2]
        expected[f"plain-{codec}", 1] = values[1::2]
    expected["transactions", 0] = write_transactions(bootstrap)
    commit(bootstrap)
    return expected


def commit(bootstrap: str) -> None:
    """Kafka is its first group's coordinator some moments after it said so."""
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": "kept"})
    insist(lambda: group.commit(offsets=COMMITTED, asynchronous=False), KafkaException)
    group.close()


def write_transactions(bootstrap: str) -> list[bytes]:
    """Every third one aborted, and one of another producer left open for a while."""
    transactions = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    other = ConfluentProducer({**transactions, "transactional.id": "other"})
    producer = ConfluentProducer({**transactions, "transactional.id": "first"})
    for each in (other, producer):
        each.init_transactions()
    committed = []
    for number in range(30):
        if number % 10 == 0:
            other.begin_transaction()
            other.produce("transactions", b"other-%d" % number)
            other.flush()
        producer.begin_transaction()
        values = [b"%d-%d" % (number, part) + b"." * 10_000 for part in range(5)]
        for value in values:
            producer.produce("transactions", value)
        producer.flush()
        if number % 3:
            producer.commit_transaction()
            committed += values
        else:
            producer.abort_transaction()
        if number % 10 == 5:
            other.abort_transaction()
    other.begin_transaction()
    other.produce("transactions", b"open for ever")
    other.flush()
    return committed


def read(bootstrap: str, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[bytes]]:
    """What a read_committed consumer finds in each (topic, partition), from first to last."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    found: dict[tuple[str, int], list[bytes]] = {partition: [] for partition in wanted}
    consumer.assign([TopicPartition(*partition, 0) for partition in found])
    ends = 0
    while ends < len(found):
        message = consumer.poll(20)
        assert message is not None, "nothing more came"
        topic, partition = message.topic(), message.partition()
        value, error = message.value(), message.error()
        if error is not None:
            if error.name() != "_PARTITION_EOF":
                raise KafkaException(error)
            ends += 1
        elif topic is not None and partition is not None and value is not None:
            found[topic, partition].append(value)
    consumer.close()
    return found


@pytest.fixture(params=["stopped", "killed"])
def kafka_directory(request: pytest.FixtureRequest, tmp_path: Path) -> KafkaDirectory:
    require_kafka()
    with KafkaServer(tmp_path) as kafka:
        expected = write(kafka.bootstrap_servers)
        if request.param == "killed":
            kafka.kill()
    return tmp_path / "log", expected


def test_every_record_is_intact(kafka_directory: KafkaDirectory) -> None:
    directory, expected = kafka_directory
    broker_id = {"broker.id": "1"}
    with BrokerChild(directory, broker_id) as broker:
        assert read(broker.address, expected) == expected
        group = Consumer({"bootstrap.servers": broker.address, "group.id": "kept"})
        found = group.committed(COMMITTED, timeout=20)
        assert [each.offset for each in found] == [77, 99]
        group.close()
        producer = ConfluentProducer({"bootstrap.servers": broker.address})
        producer.produce("plain-none", b"one more", partition=0)
        assert producer.flush(10) == 0
        broker.kill()
    with BrokerChild(directory, broker_id) as broker:
        expected["plain-none", 0].append(b"one more")
        assert read(broker.address, expected) == expected
        topics = AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=9)
        assert {topic for topic, _ in expected} <= set(topics.topics)
        assert "__cluster_metadata" not in topics.topics
