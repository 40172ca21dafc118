"""Child program of the crash tests: a client without transactions, which may be killed.

`python -m tests.crash.member produce DIRECTORY CLIENT SERVERS TOPIC PARTITIONS` sends numbers with
idempotence, without an end; the values begin with CLIENT, which no other life has.
`python -m tests.crash.member consume DIRECTORY CLIENT SERVERS TOPIC GROUP` reads as a member of the
group and commits what it has read after every poll. SIGTERM ends either in order.
"""

import signal
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.crash.history import OK, UNKNOWN, HistoryWriter
from tests.crash.recorded import RECONNECT, RecordedProducer, record_of

KEYS = 5
RECORDS_PER_S = 300
SESSION_TIMEOUT_MS = 1500


def produce(
    stopping: threading.Event, directory: Path, client: str, servers: str, topic: str, count: str
) -> None:
    producer = RecordedProducer(directory, client, servers)
    number = 0
    while not stopping.wait(1 / RECORDS_PER_S):
        key = number % KEYS
        producer.send(topic, key % int(count), f"key {key}", f"{client}/{number}")
        number += 1
    producer.flush(60)


class Member:
    def __init__(self, directory: Path, client: str, servers: str, topic: str, group: str) -> None:
        self._topic = topic
        self._group = group
        self._writer = HistoryWriter(directory, client)
        self._writer.done("consumer", group=group, isolation="read_committed")
        self._started: set[int] = set()
        self._has_rebalanced = False
        self._consumer = Consumer(
            RECONNECT
            | {
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": "range",
            }
        )
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: self._rebalanced(partitions),
            on_revoke=lambda _, partitions: self._rebalanced([]),
        )

    def _rebalanced(self, partitions: list[TopicPartition]) -> None:
        self._has_rebalanced = True
        self._started.clear()
        positions = [[self._topic, each.partition, None] for each in partitions]
        self._writer.done("assign", positions=positions)

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            began_ns = time.monotonic_ns()
            self._has_rebalanced = False
            message = self._consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            _, index, offset, *_ = row = record_of(message)
            if index not in self._started:
                self._started.add(index)
                self._tell_position(index)
            self._writer.done("poll", began_ns, records=[row])
            self._commit(index, offset + 1)
        self._consumer.close()

    def _tell_position(self, index: int) -> None:
        """What the group had committed, which nobody else may change now, is where we began."""
        operation = self._writer.begin("fetch_offsets", group=self._group)
        try:
            (found,) = self._consumer.committed([TopicPartition(self._topic, index)], 10)
        except KafkaException:
            return
        offset = found.offset if found.offset >= 0 else None
        self._writer.end(operation, OK, offsets=[[self._topic, index, offset]])
        self._writer.done("seek", positions=[[self._topic, index, offset or 0]])

    def _commit(self, index: int, offset: int) -> None:
        operation = self._writer.begin(
            "commit_offsets", group=self._group, offsets=[[self._topic, index, offset]]
        )
        try:
            asked = [TopicPartition(self._topic, index, offset)]
            self._consumer.commit(offsets=asked, asynchronous=False)
        except KafkaException:
            # Not of the group any more, or the broker is gone: what comes of it nobody knows.
            self._writer.end(operation, UNKNOWN)
        else:
            self._writer.end(operation, OK)


def main(role: str, directory: str, client: str, servers: str, topic: str, last: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    if role == "produce":
        produce(stopping, Path(directory), client, servers, topic, last)
    else:
        Member(Path(directory), client, servers, topic, last).run(stopping)


if __name__ == "__main__":
    main(*sys.argv[1:])
