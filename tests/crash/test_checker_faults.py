"""Faults planted into runs against a real broker: the checker finds each, and nothing without one.

Either a client does what its history does not say, such as writing a record twice or reading what
is not committed, or its file is tampered with after the run, as if the broker had lied.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.crash import checker
from tests.crash.checker import check
from tests.crash.history import OK, HistoryWriter, read_history
from tests.crash.recorded import (
    SEND_HEADER,
    RecordedProducer,
    assigned_consumer,
    read_to_end,
    record_of,
)
from tests.support.broker_child import BrokerChild
from tests.support.patience import attempts

pytestmark = pytest.mark.crash

RECORDS = 60
PARTITIONS = 2


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    properties = {"num.partitions": str(PARTITIONS), "group.initial.rebalance.delay.ms": "0"}
    with BrokerChild(tmp_path_factory.mktemp("broker"), properties) as child:
        yield child.address


class Run:
    """A producer and a reader of one topic, in order; faults come in between or afterwards."""

    def __init__(self, servers: str, topic: str, history: Path) -> None:
        self.servers = servers
        self.topic = topic
        self.history = history

    def produce(self) -> None:
        producer = RecordedProducer(self.history, "producer", self.servers)
        for number in range(RECORDS):
            producer.send(self.topic, number % PARTITIONS, f"key {number % 6}", str(number))
        producer.flush(20)

    def produce_unrecorded(self, value: str, key: str = "key 0", send: str | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        headers: dict[str, Any] | None = {SEND_HEADER: send.encode()} if send else None
        producer.produce(self.topic, value.encode(), key.encode(), 0, headers=headers)
        assert producer.flush(20) == 0

    def read(self, act: Callable[[Consumer], None] = lambda consumer: None) -> None:
        """A consumer's polls; after the first, `act` does something to it that is not recorded."""
        writer = HistoryWriter(self.history, "live")
        topics = {self.topic: PARTITIONS}
        consumer = assigned_consumer(writer, self.servers, topics, "read_committed")
        ends, acts = 0, [act]
        for _ in attempts("the ends of all partitions"):
            if ends == PARTITIONS:
                break
            messages = consumer.consume(5, timeout=0.1)
            ends += sum(message.error() is not None for message in messages)
            records = [record_of(message) for message in messages if message.error() is None]
            writer.done("poll", records=records)
            if records and acts:
                acts.pop()(consumer)
        consumer.close()
        writer.close()

    def read_all(self) -> None:
        read_to_end(self.history, "end", self.servers, self.topic, PARTITIONS, "read_committed")

    def tamper(self, client: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
        """Changes the lines that `client` wrote."""
        path = self.history / f"{client}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        change(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def found(self) -> set[str]:
        return {anomaly.kind for anomaly in check(read_history(self.history))}


@pytest.fixture
def run(servers: str, tmp_path: Path) -> Run:
    return Run(servers, f"topic-{uuid.uuid4().hex}", tmp_path)


@pytest.fixture
def whole(run: Run) -> Run:
    """A run that is over."""
    run.produce()
    run.read()
    run.read_all()
    return run


def polls(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("records")]


def test_in_order(whole: Run) -> None:
    assert whole.found() == set()
    operations = read_history(whole.history)
    assert sum(each.kind == "send" and each.outcome == OK for each in operations) == RECORDS
    read = [record for each in operations for record in each.fields.get("records", ())]
    assert len(read) == 2 * RECORDS


def test_a_record_written_twice(run: Run) -> None:
    """As a producer without idempotence does when it sends again what had arrived."""
    run.produce()
    run.produce_unrecorded("0", send="producer:1")
    run.read_all()
    assert run.found() == {checker.DUPLICATE}


def test_a_record_that_nobody_is_known_to_have_sent(run: Run) -> None:
    run.produce()
    run.produce_unrecorded("stranger")
    run.read_all()
    assert run.found() == {checker.PHANTOM}


def test_a_consumer_that_seeks_back(run: Run) -> None:
    run.produce()
    run.read(lambda consumer: consumer.seek(TopicPartition(run.topic, 0, 0)))
    run.read_all()
    assert checker.BACKWARD_POLL in run.found()


def test_a_consumer_that_skips(run: Run) -> None:
    run.produce()

    def skip(consumer: Consumer) -> None:
        for index in range(PARTITIONS):
            consumer.seek(TopicPartition(run.topic, index, RECORDS // PARTITIONS - 1))

    run.read(skip)
    run.read_all()
    assert run.found() == {checker.SKIPPING_POLL}


def test_records_deleted_after_they_were_acknowledged(run: Run) -> None:
    from confluent_kafka.admin import AdminClient

    run.produce()
    admin = AdminClient({"bootstrap.servers": run.servers})
    deleted = admin.delete_records([TopicPartition(run.topic, 0, 3)])
    for future in deleted.values():
        future.result(20)
    writer = HistoryWriter(run.history, "end")
    writer.done("consumer", group=None, isolation="read_committed")
    operation = writer.begin("read_to_end", topic=run.topic)
    consumer = Consumer({"bootstrap.servers": run.servers, "group.id": "none"})
    consumer.assign([TopicPartition(run.topic, 0, 3), TopicPartition(run.topic, 1, 0)])
    left = RECORDS - 3
    for _ in attempts("all records"):
        if not left:
            break
        messages = consumer.consume(left, timeout=0.2)
        left -= len(messages)
        writer.done("poll", records=[record_of(message) for message in messages])
    writer.end(operation, OK)
    consumer.close()
    lost = [each for each in check(read_history(run.history)) if each.kind == checker.LOST]
    assert len(lost) == 3
    assert run.found() == {checker.LOST}


def test_an_acknowledged_send_that_was_not_read(whole: Run) -> None:
    def forget(lines: list[dict[str, Any]]) -> None:
        polls(lines)[0]["records"].pop(0)

    whole.tamper("end", forget)
    assert checker.LOST in whole.found()


def test_offsets_that_were_swapped(whole: Run) -> None:
    def swap(lines: list[dict[str, Any]]) -> None:
        first, second = two_of_one_key(lines)
        first[4], second[4] = second[4], first[4]
        first[5], second[5] = second[5], first[5]

    whole.tamper("end", swap)
    assert whole.found() == {checker.INCONSISTENT_OFFSET, checker.DUPLICATE}


def two_of_one_key(lines: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    records = polls(lines)[0]["records"]
    first = records[0]
    return first, next(each for each in records[1:] if each[1] == first[1] and each[3] == first[3])


def test_an_order_that_was_not_sent(whole: Run) -> None:
    """The producer's sends told in another order than they were made, offsets as they were."""

    def turn(lines: list[dict[str, Any]]) -> None:
        ends = {line["operation"]: line for line in lines if "kind" not in line}
        first, second = ends[1], ends[7]
        begun = {line["operation"]: line for line in lines if line.get("kind") == "send"}
        for name in ("value", "key"):
            begun[1][name], begun[7][name] = begun[7][name], begun[1][name]
        first["offset"], second["offset"] = second["offset"], first["offset"]

    whole.tamper("producer", turn)
    for client in ("live", "end"):
        whole.tamper(client, forget_names)
    assert whole.found() == {checker.REORDERED}


def forget_names(lines: list[dict[str, Any]]) -> None:
    for line in polls(lines):
        for record in line["records"]:
            record[5] = None


def in_a_transaction(ending: str | None) -> Callable[[list[dict[str, Any]]], None]:
    """Has the producer say that its sends were a transaction with this end."""

    def change(lines: list[dict[str, Any]]) -> None:
        head = {"client": "producer", "event": OK, "began_ns": 0, "time_ns": 0}
        lines.insert(0, head | {"operation": 0, "kind": "begin"})
        if ending:
            times = {"began_ns": 10**30, "time_ns": 10**30}
            lines.append(head | {"operation": 10**6, "kind": ending} | times)

    return change


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("abort", {checker.ABORTED_READ}),
        (None, {checker.UNCOMMITTED_READ}),
        # It says that it committed after everything was read.
        ("commit", {checker.UNCOMMITTED_READ}),
    ],
)
def test_reads_of_what_was_not_committed(
    whole: Run, ending: str | None, expected: set[str]
) -> None:
    whole.tamper("producer", in_a_transaction(ending))
    assert whole.found() == expected


def test_a_committed_offset_that_goes_back(run: Run) -> None:
    """The group's offsets are set back by a stranger between two lives of a member."""
    run.produce()

    def commit(offset: int) -> None:
        consumer.commit(offsets=[TopicPartition(run.topic, 0, offset)], asynchronous=False)

    def fetch(client: str) -> None:
        writer = HistoryWriter(run.history, client)
        operation = writer.begin("fetch_offsets", group=run.topic)
        (found,) = consumer.committed([TopicPartition(run.topic, 0)], 20)
        writer.end(operation, OK, offsets=[[run.topic, 0, found.offset]])
        writer.close()

    consumer = Consumer({"bootstrap.servers": run.servers, "group.id": run.topic})
    writer = HistoryWriter(run.history, "member.1")
    offsets = [[run.topic, 0, 9]]
    operation = writer.begin("commit_offsets", group=run.topic, offsets=offsets)
    commit(9)
    writer.end(operation, OK)
    fetch("member.2")
    run.read_all()
    assert run.found() == set()
    commit(4)
    fetch("member.3")
    consumer.close()
    assert run.found() == {checker.BACKWARD_COMMIT, checker.PHANTOM_COMMIT}
