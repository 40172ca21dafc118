"""Clients whose every operation is in the history: a producer, a reader, and reads to the end.

They are confluent-kafka's; the transactional ones are in `copier`. Each belongs to one thread.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.crash.history import FAILED, OK, UNKNOWN, HistoryWriter
from tests.support.patience import attempts

SEND_HEADER = "send"
# A client finds out soon that its broker is back.
RECONNECT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
    # Else librdkafka (2.16) begins anew with its bootstrap servers, and may wait for its own
    # threads for ever.
    "metadata.recovery.strategy": "none",
}
READ_TIMEOUT_S = 60.0
ROOM_S = 180.0


def text(data: bytes | None) -> str | None:
    """A key, value or header as the history has it."""
    return None if data is None else data.decode("latin-1")


def record_of(message: Message) -> list[Any]:
    """A message as a `poll` of the history tells it."""
    headers: dict[str, Any] = dict(message.headers() or ())
    place = [message.topic(), message.partition(), message.offset()]
    return [*place, text(message.key()), text(message.value()), text(headers.get(SEND_HEADER))]


def outcome_of(error: KafkaError | None) -> str:
    """What a delivery report says; only what never left the client is certainly not there."""
    if error is None:
        return OK
    return FAILED if error.code() == KafkaError._PURGE_QUEUE else UNKNOWN


def commit_start(directory: Path, servers: str, group: str, topic: str, partitions: int) -> None:
    """The group's offsets before it reads anything, so that to have none is wrong from then on."""
    offsets = [TopicPartition(topic, index, 0) for index in range(partitions)]
    writer = HistoryWriter(directory, f"start-of-{group}")
    places = [[topic, index, 0] for index in range(partitions)]
    operation = writer.begin("commit_offsets", group=group, offsets=places, transactional=False)
    consumer = Consumer(RECONNECT | {"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    writer.end(operation, OK)
    writer.close()


class RecordedProducer:
    """Sends without transactions."""

    def __init__(
        self, directory: Path, client: str, servers: str, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._writer = HistoryWriter(directory, client)
        defaults = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 0,
        }
        self._producer = Producer(RECONNECT | defaults | dict(settings or {}))

    def send(self, topic: str, index: int, key: str, value: str) -> None:
        operation = self._writer.begin("send", topic=topic, index=index, key=key, value=value)

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._writer.end(operation, outcome_of(error), offset=message.offset())

        for _ in attempts("room among what is to be sent", ROOM_S):
            try:
                self._producer.produce(
                    topic,
                    value.encode(),
                    key.encode(),
                    partition=index,
                    headers={SEND_HEADER: f"{self._writer.client}:{operation}".encode()},
                    on_delivery=delivered,
                )
                break
            except BufferError:  # the broker is away for long
                self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> None:
        assert self._producer.flush(timeout_s) == 0, "not everything was acknowledged in time"


class RecordedReader:
    """Reads all partitions of some topics from the first offset, beside whatever happens.

    A thread of its own; `seen` is how many records of a (topic, partition) it has read, `senders`
    how many of each client that sent them.
    """

    def __init__(
        self, directory: Path, client: str, servers: str, topics: Mapping[str, int], isolation: str
    ) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()
        self.senders: Counter[str] = Counter()
        self._writer = HistoryWriter(directory, client)
        self._consumer = assigned_consumer(self._writer, servers, topics, isolation)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_ns = time.monotonic_ns()
            messages = self._consumer.consume(500, timeout=0.1)
            records = [record_of(each) for each in messages if each.error() is None]
            if records:
                self._writer.done("poll", began_ns, records=records)
            for topic, index, *_, send in records:
                self.seen[topic, index] += 1
                if send is not None:
                    self.senders[send.rpartition(":")[0]] += 1


def assigned_consumer(
    writer: HistoryWriter, servers: str, topics: Mapping[str, int], isolation: str
) -> Consumer:
    """A consumer of all partitions of `topics` (with how many they have) from offset 0."""
    consumer = Consumer(
        RECONNECT
        | {
            "bootstrap.servers": servers,
            "group.id": "of-no-group",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
        }
    )
    partitions = [(topic, index) for topic, count in topics.items() for index in range(count)]
    consumer.assign([TopicPartition(topic, index, 0) for topic, index in partitions])
    writer.done("consumer", group=None, isolation=isolation)
    writer.done("assign", positions=[[topic, index, 0] for topic, index in partitions])
    return consumer


def read_to_end(
    directory: Path, client: str, servers: str, topic: str, partitions: int, isolation: str
) -> int:
    """Reads up to the high watermark of each partition; how many records there are.

    A read_committed consumer gets there only when no transaction is open any more.
    """
    writer = HistoryWriter(directory, client)
    consumer = assigned_consumer(writer, servers, {topic: partitions}, isolation)
    whole = writer.begin("read_to_end", topic=topic)
    ends = high_watermarks(servers, topic, partitions)
    count, reached = 0, dict.fromkeys(ends, 0)
    for _ in attempts(lambda: f"{topic} ends at {ends}, read up to {reached}", READ_TIMEOUT_S):
        if all(reached[index] >= end for index, end in ends.items()):
            break
        began_ns = time.monotonic_ns()
        messages = consumer.consume(2000, timeout=0.2)
        records = [record_of(each) for each in messages if each.error() is None]
        if records:
            writer.done("poll", began_ns, records=records)
        count += len(records)
        for message in messages:
            # An end of the partition says which offset comes next.
            is_record = message.error() is None
            _, index, offset, *_ = record_of(message)
            reached[index] = offset + is_record
    writer.end(whole, OK)
    consumer.close()
    writer.close()
    return count


def high_watermarks(servers: str, topic: str, partitions: int) -> dict[int, int]:
    consumer = Consumer(
        RECONNECT
        | {
            "bootstrap.servers": servers,
            "group.id": "of-no-group",
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        return {
            index: consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=30)[1]
            for index in range(partitions)
        }
    finally:
        consumer.close()
