"""SIGKILL while a producer is at work: what was acknowledged is there, once and in order."""

import random
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.support.broker_child import BrokerChild
from tests.support.patience import attempts, for_seconds

pytestmark = pytest.mark.crash

PARTITIONS = 3
ROUNDS = 4
SECONDS_PER_ROUND = 0.7


class Acknowledged:
    """By partition, the values whose delivery was reported, as (offset, value)."""

    def __init__(self) -> None:
        self.by_partition: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.count = 0

    def __call__(self, error: object, message: Message) -> None:
        if error is None:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            self.by_partition[partition].append((offset, value))
            self.count += 1


def read_all(address: str, topic: str, partition: int) -> list[tuple[int, bytes | None]]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        assert low == 0
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[tuple[int, bytes | None]] = []
        for _ in attempts(lambda: f"{high} records, but {len(found)}"):
            if len(found) >= high:
                break
            for message in consumer.consume(10_000, timeout=1):
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                found.append((offset, message.value()))
        return found
    finally:
        consumer.close()


def produce_for(producer: Producer, seconds: float, number: int) -> int:
    """Sends records without a pause; the next record's number."""
    for _ in for_seconds(seconds):
        for _ in range(200):
            try:
                producer.produce("crash", b"%d" % number, partition=number % PARTITIONS)
                number += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    return number


@pytest.mark.parametrize("idempotent", [True, pytest.param(False, marks=pytest.mark.long)])
def test_acknowledged_records_survive_sigkill(tmp_path: Path, idempotent: bool) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    randomness = random.Random(seed)
    acknowledged = Acknowledged()
    child = BrokerChild(tmp_path, {"num.partitions": str(PARTITIONS)})
    producer = Producer(
        {
            "bootstrap.servers": child.address,
            "acks": "all",
            "enable.idempotence": idempotent,
            "linger.ms": 2,
            "batch.num.messages": 100,
            "queue.buffering.max.messages": 20_000,
            "reconnect.backoff.max.ms": 100,
            "message.timeout.ms": 60_000,
            "log_level": 0,
            "on_delivery": acknowledged,
        }
    )
    number = 0
    try:
        for _ in range(ROUNDS):
            lifetime_s = SECONDS_PER_ROUND * randomness.uniform(0.5, 1.5)
            number = produce_for(producer, lifetime_s, number)
            child.kill()
            child = BrokerChild(tmp_path, {"num.partitions": str(PARTITIONS)}, port=child.port)
        assert producer.flush(30) == 0
        assert acknowledged.count == number > 0
        for partition in range(PARTITIONS):
            stored = read_all(child.address, "crash", partition)
            check_partition(stored, acknowledged.by_partition[partition], idempotent)
        assert child.stop() == 0
    finally:
        child.close()


def check_partition(
    stored: list[tuple[int, bytes | None]],
    acknowledged: list[tuple[int, bytes]],
    idempotent: bool,
) -> None:
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    values = [value for _, value in stored]
    assert acknowledged
    for offset, value in acknowledged:
        assert values[offset] == value
    if idempotent:
        # Nothing twice, nothing out of order, nothing beside.
        numbers = [int(value or b"-1") for value in values]
        assert numbers == sorted(set(numbers))
        assert len(values) == len(acknowledged)
