"""Child program of the crash tests: copies a topic in transactions, as a member of a group.

`python -m tests.crash.copier LIBRARY DIRECTORY CLIENT SERVERS GROUP SOURCE TARGET TRANSACTIONAL_ID`

LIBRARY is confluent-kafka or kafka-python. Every transaction holds the records of a poll, sent to
the same partition of the target with their keys and values, and the offsets behind them. What is
done is in the history of CLIENT in DIRECTORY as it happens. SIGTERM ends it after a transaction;
an error that the library does not call abortable ends it with a traceback, and so does a call that
does not return in STUCK_S; whoever started it starts it again with the same transactional id.
"""

import faulthandler
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.crash.history import OK, UNKNOWN, HistoryWriter
from tests.crash.recorded import RECONNECT, SEND_HEADER, outcome_of, record_of, text

RECORDS_PER_TRANSACTION = 20
SESSION_TIMEOUT_MS = 1500
HEARTBEAT_INTERVAL_MS = 300
# How long Apache Kafka waits in a rebalance for members that were killed together with the broker:
# it does not go by their sessions then.
MAX_POLL_INTERVAL_MS = 15_000
TRANSACTION_TIMEOUT_MS = 30_000
POLL_S = 0.2
# librdkafka's send_offsets_to_transaction may wait for ever once the coordinator was gone (its
# issue 5456), and kafka-python's waits have no timeout: the way out is a new process.
STUCK_S = 15.0

Positions = dict[int, int]  # by partition of the source


class Record(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    row: list[Any]  # as the history tells it


class Arguments(NamedTuple):
    library: str
    directory: str
    client: str
    servers: str
    group: str
    source: str
    target: str
    transactional_id: str


class AbortableError(Exception):
    """The transaction must be aborted; the producer can go on."""


class Library(Protocol):
    """What a copier needs of a client library. A failure is an AbortableError or final."""

    def start(self, assigned: Callable[[list[int]], None]) -> None: ...
    def committed(self, partitions: list[int]) -> dict[int, int | None]: ...
    def poll(self) -> list[Record]: ...
    def begin(self) -> None: ...
    def send(self, record: Record, name: str, done: Callable[[str, int | None], None]) -> None: ...
    def send_offsets(self, positions: Positions) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def seek(self, positions: Positions) -> None: ...
    def close(self) -> None: ...


class Copier:
    def __init__(self, arguments: Arguments, library: Library, writer: HistoryWriter) -> None:
        self._arguments = arguments
        self._library = library
        self._writer = writer
        self._is_stopping = False
        self._started: set[int] = set()  # partitions that were read from since the assignment

    def stop(self, *signal: object) -> None:
        self._is_stopping = True

    def run(self) -> None:
        self._writer.done("consumer", group=self._arguments.group, isolation="read_committed")
        self._library.start(self._assigned)
        while not self._is_stopping:
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            began_ns = time.monotonic_ns()
            records = self._library.poll()
            if records:
                self._tell_positions({record.partition for record in records} - self._started)
                self._writer.done("poll", began_ns, records=[record.row for record in records])
                self._copy(records)
        self._library.close()

    def _assigned(self, partitions: list[int]) -> None:
        self._started.clear()
        positions = [[self._arguments.source, index, None] for index in partitions]
        self._writer.done("assign", positions=positions)

    def _tell_positions(self, partitions: set[int]) -> None:
        """Asked for after the first poll, as a library is not to be blocked in its rebalance.

        Until we commit, the committed offsets stay those that the poll began with.
        """
        if not partitions:
            return
        self._started |= partitions
        operation = self._writer.begin("fetch_offsets", group=self._arguments.group)
        found = sorted(self._library.committed(sorted(partitions)).items())
        offsets = [[self._arguments.source, *each] for each in found]
        self._writer.end(operation, OK, offsets=offsets)
        positions = [[topic, index, offset or 0] for topic, index, offset in offsets]
        self._writer.done("seek", positions=positions)

    def _copy(self, records: list[Record]) -> None:
        try:
            self._record("begin", self._library.begin)
            for record in records:
                self._send(record)
            behind = {record.partition: record.offset + 1 for record in records}
            self._record(
                "commit_offsets",
                lambda: self._library.send_offsets(behind),
                group=self._arguments.group,
                offsets=[[self._arguments.source, *each] for each in behind.items()],
                transactional=True,
            )
            self._record("commit", self._library.commit)
        except AbortableError as error:
            print(f"aborting after {error}", file=sys.stderr, flush=True)
            self._record("abort", self._library.abort)
            first = {record.partition: record.offset for record in reversed(records)}
            positions = [[self._arguments.source, *each] for each in first.items()]
            self._writer.done("seek", positions=positions)
            self._library.seek(first)

    def _record(self, kind: str, act: Callable[[], None], **fields: Any) -> None:
        operation = self._writer.begin(kind, **fields)
        act()
        self._writer.end(operation, OK)

    def _send(self, record: Record) -> None:
        operation = self._writer.begin(
            "send",
            topic=self._arguments.target,
            index=record.partition,
            key=text(record.key),
            value=text(record.value),
        )
        self._library.send(
            record,
            f"{self._writer.client}:{operation}",
            lambda outcome, offset: self._writer.end(operation, outcome, offset=offset),
        )


class ConfluentKafka:
    def __init__(self, arguments: Arguments) -> None:
        from confluent_kafka import Consumer, Producer

        self._arguments = arguments
        self._has_rebalanced = False
        self._producer = Producer(
            RECONNECT
            | {
                "bootstrap.servers": arguments.servers,
                "transactional.id": arguments.transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
            }
        )
        self._consumer = Consumer(
            RECONNECT
            | {
                "bootstrap.servers": arguments.servers,
                "group.id": arguments.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # It may begin anew while a commit is pending (see docs/broker.md): the group has
                # offsets from the start, and so a reset is always an error.
                "auto.offset.reset": "error",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
                "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
                "partition.assignment.strategy": "range",
            }
        )

    def start(self, assigned: Callable[[list[int]], None]) -> None:
        def told(partitions: list[Any]) -> None:
            self._has_rebalanced = True
            assigned([each.partition for each in partitions])

        self._again(lambda: self._producer.init_transactions(30))
        self._consumer.subscribe(
            [self._arguments.source],
            on_assign=lambda _, partitions: told(partitions),
            on_revoke=lambda _, partitions: told([]),
        )

    def committed(self, partitions: list[int]) -> dict[int, int | None]:
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(self._arguments.source, index) for index in partitions]
        found = self._consumer.committed(asked, 30)
        return {each.partition: each.offset if each.offset >= 0 else None for each in found}

    def poll(self) -> list[Record]:
        from confluent_kafka import KafkaError, KafkaException

        records: list[Record] = []
        self._has_rebalanced = False
        timeout_s = POLL_S
        while len(records) < RECORDS_PER_TRANSACTION:
            message = self._consumer.poll(timeout_s)
            if self._has_rebalanced:
                # What was polled before is not ours any more, or comes again.
                records.clear()
                self._has_rebalanced = False
            if message is None:
                break
            error = message.error()
            if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)
            if error is None:
                timeout_s = 0
                row = record_of(message)
                records.append(Record(row[1], row[2], message.key(), message.value(), row))
        return records

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, record: Record, name: str, done: Callable[[str, int | None], None]) -> None:
        self._producer.produce(
            self._arguments.target,
            record.value,
            record.key,
            partition=record.partition,
            headers={SEND_HEADER: name.encode()},
            on_delivery=lambda error, message: done(outcome_of(error), message.offset()),
        )
        self._producer.poll(0)

    def send_offsets(self, positions: Positions) -> None:
        from confluent_kafka import TopicPartition

        offsets = [TopicPartition(self._arguments.source, *each) for each in positions.items()]
        metadata = self._consumer.consumer_group_metadata()
        self._again(lambda: self._producer.send_offsets_to_transaction(offsets, metadata, 30))

    def commit(self) -> None:
        self._again(lambda: self._producer.commit_transaction(30))

    def abort(self) -> None:
        self._again(lambda: self._producer.abort_transaction(30))

    def seek(self, positions: Positions) -> None:
        from confluent_kafka import TopicPartition

        for each in positions.items():
            self._consumer.seek(TopicPartition(self._arguments.source, *each))

    def close(self) -> None:
        self._consumer.close()

    def _again(self, act: Callable[[], None]) -> None:
        """Calls until the library does not ask for another try."""
        from confluent_kafka import KafkaException

        while True:
            try:
                return act()
            except KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    raise AbortableError(error) from failure
                if not error.retriable():
                    raise


class KafkaPython:
    def __init__(self, arguments: Arguments) -> None:
        from kafka import KafkaConsumer, KafkaProducer

        backoff = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200}
        self._arguments = arguments
        self._producer = KafkaProducer(
            bootstrap_servers=arguments.servers,
            transactional_id=arguments.transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=1,
            **backoff,
        )
        self._consumer = KafkaConsumer(
            bootstrap_servers=arguments.servers,
            group_id=arguments.group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            max_poll_records=RECORDS_PER_TRANSACTION,
            **backoff,
        )

    def start(self, assigned: Callable[[list[int]], None]) -> None:
        from kafka import ConsumerRebalanceListener

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, partitions: Any) -> None:
                assigned([])

            def on_partitions_assigned(self, partitions: Any) -> None:
                assigned([each.partition for each in partitions])

        self._producer.init_transactions()
        self._consumer.subscribe([self._arguments.source], listener=Listener())

    def committed(self, partitions: list[int]) -> dict[int, int | None]:
        from kafka.structs import TopicPartition

        asked = {index: TopicPartition(self._arguments.source, index) for index in partitions}
        return {index: self._consumer.committed(each) for index, each in asked.items()}

    def poll(self) -> list[Record]:
        polled = self._consumer.poll(timeout_ms=int(POLL_S * 1000))
        return [self._record(each) for records in polled.values() for each in records]

    def _record(self, found: Any) -> Record:
        headers = dict(found.headers or ())
        row = [found.topic, found.partition, found.offset, text(found.key), text(found.value)]
        row.append(text(headers.get(SEND_HEADER)))
        return Record(found.partition, found.offset, found.key, found.value, row)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, record: Record, name: str, done: Callable[[str, int | None], None]) -> None:
        future = self._producer.send(
            self._arguments.target,
            record.value,
            record.key,
            [(SEND_HEADER, name.encode())],
            partition=record.partition,
        )
        future.add_callback(lambda metadata: done(OK, metadata.offset))
        future.add_errback(lambda error: done(UNKNOWN, None))

    def send_offsets(self, positions: Positions) -> None:
        from kafka.structs import OffsetAndMetadata, TopicPartition

        offsets = {
            TopicPartition(self._arguments.source, index): OffsetAndMetadata(offset, "", -1)
            for index, offset in positions.items()
        }
        metadata = self._consumer.group_metadata()
        self._try(lambda: self._producer.send_offsets_to_transaction(offsets, metadata))

    def commit(self) -> None:
        self._try(self._producer.commit_transaction)

    def abort(self) -> None:
        self._producer.abort_transaction()

    def seek(self, positions: Positions) -> None:
        from kafka.structs import TopicPartition

        for index, offset in positions.items():
            self._consumer.seek(TopicPartition(self._arguments.source, index), offset)

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()

    def _try(self, act: Callable[[], None]) -> None:
        from kafka.errors import KafkaError, ProducerFencedError

        try:
            act()
        except ProducerFencedError:
            raise
        except KafkaError as error:
            # An abort says itself whether there is anything to be aborted.
            raise AbortableError(error) from error


LIBRARIES: dict[str, type[ConfluentKafka] | type[KafkaPython]] = {
    "confluent-kafka": ConfluentKafka,
    "kafka-python": KafkaPython,
}


def main(*words: str) -> None:
    arguments = Arguments(*words)
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    writer = HistoryWriter(Path(arguments.directory), arguments.client)
    library = LIBRARIES[arguments.library](arguments)
    copier = Copier(arguments, library, writer)
    signal.signal(signal.SIGTERM, copier.stop)
    copier.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
