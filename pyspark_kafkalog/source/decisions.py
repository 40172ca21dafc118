"""The decisions of a transactional sink: which transactions make up a write that is to be visible.

Owns the topic `__kafkalog-decisions-<prefix>` of one partition, compacted, so that the newest
decision is kept for ever; a consumer group's offset, the other place that a transaction can write
to, expires when the query rests for a week. Records are JSON, compressed by gzip:

    key `begun`      nothing: the prefix is in use from here on
    key `decision`   version, id, owner, batch, planned, records, settled, transactions: a Decision
    key `done`       the id of the decision whose transactions were all ended by a commit

A decision is written in a transaction of the driver's own, so that it is there or not, and a driver
that was replaced cannot add one. `done` is a hint that saves asking and is written without. `begun`
is written before the prefix's first transactional id is used: a prefix whose ids are known, and
whose topic has neither this nor a decision, has lost its decisions. Version 1 has no `planned`.

Blocking; one thread at a time. Never ends the transactions that a decision names.
"""

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kafka.errors import KafkaError, TopicAlreadyExistsError
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.admin import create_topic, topic_property
from pyspark_kafkalog.client.cluster import EARLIEST, LATEST, Cluster
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.transaction import (
    FENCED,
    ProducerIdentity,
    Transactions,
    ended_by_commit,
)
from pyspark_kafkalog.errors import KafkalogError, TransactionError, UnknownTopicError
from pyspark_kafkalog.record.batch import batches
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.control import decode_marker
from pyspark_kafkalog.record.records import Record, build_batch, read_records
from pyspark_kafkalog.source.partitions import OWN_TOPICS

_VERSION = 2
_VERSIONS_READ = (1, 2)
_BEGUN_KEY = b"begun"
_DECISION_KEY = b"decision"
_DONE_KEY = b"done"
_FIRST_LOOK_OFFSETS = 16
"""How far from the end to begin: a decision takes two offsets, `done` one."""
_MOST_PLAIN_BYTES = 256 << 20
_TOPIC_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "16777216"}


_log = logging.getLogger(__name__)


class UncertainDecisionError(Exception):
    """A decision may be recorded or not; the cause is why that is not known."""


@dataclass(frozen=True, slots=True)
class WrittenTransaction:
    """What a task wrote in a transaction that it left open.

    `topic`, `partition` and `offset` say where one of its batches lies, by which the transaction's
    marker is found; the offset is -1 where no broker said it.
    """

    producer: ProducerIdentity
    record_count: int
    digest: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A write that is to be visible: of `owner`'s micro-batch `batch`, or of a batch query.

    `record_count` is of the whole write. `settled` are the digests of those transactions that
    earlier decisions of the same micro-batch have committed. `planned` says what the micro-batch
    was planned from (`checkpoint.planned_from`), and is empty where that was not known. `is_done`
    says that all transactions were committed.
    """

    owner: str
    batch: int
    transactions: tuple[WrittenTransaction, ...]
    record_count: int = 0
    settled: tuple[str, ...] = ()
    planned: str = ""
    id: str = ""
    is_done: bool = False

    @property
    def digests(self) -> Counter[str]:
        """Of the rows of all tasks of the whole write."""
        return Counter(self.settled) + Counter(each.digest for each in self.transactions)

    def __contains__(self, transaction: WrittenTransaction) -> bool:
        return any(transaction.producer == mine.producer for mine in self.transactions)


def decisions_topic(prefix: str) -> str:
    """Where the decisions of a prefix are; no pattern of a subscription finds it."""
    return f"{OWN_TOPICS}decisions-{prefix}"


class DecisionLog:
    """The decisions made for one prefix."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster = cluster
        self._topic = decisions_topic(prefix)
        self._partition = TopicPartition(self._topic, 0)
        self._newest: tuple[int, Decision | None] | None = None
        self.has_begun = False
        """Where `newest` found no decision: whether the prefix is in use all the same."""

    def create(self) -> None:
        """Creates the topic where it is not there yet, with the brokers' replication factor."""
        try:
            self._cluster.topics([self._topic])
        except UnknownTopicError:
            with suppress(TopicAlreadyExistsError):
                create_topic(self._cluster, self._topic, 1, configs=_TOPIC_CONFIGS)

    def check_policy(self) -> None:
        """Raises TransactionError where the topic would forget, or has forgotten."""
        policy = topic_property(self._cluster, self._topic, "cleanup.policy")
        if policy not in (None, "compact"):
            raise TransactionError(
                f"Topic {self._topic} has cleanup.policy={policy}, which would delete the "
                "decisions that a replayed micro-batch is told by. Set it to compact."
            )

    def begin(self) -> None:
        """Records for ever that the prefix is in use."""
        self._send(_BEGUN_KEY, {"version": _VERSION})

    def newest(self) -> Decision | None:
        """The decision that was recorded last; a transaction that is still open does not count."""
        end = self._cluster.list_offsets([self._partition], LATEST)[self._partition].offset
        if self._newest is None or self._newest[0] != end:
            self._newest = end, self._newest_before(end)
        return self._newest[1]

    def decide(
        self, decision: Decision, transactions: Transactions, leader: ProducerIdentity
    ) -> Decision:
        """Records a decision for ever; returns it with its id.

        Raises UncertainDecisionError, and where it is not recorded the brokers' errors, one of
        FENCED where `leader` leads no more or its transaction was aborted.
        """
        decided = replace(decision, id=uuid.uuid4().hex)
        with Producer(self._cluster, (transactions, leader)) as producer:
            producer.send(self._partition, _record(_DECISION_KEY, _to_json(decided)))
            producer.flush()
        written = producer.last_written
        try:
            transactions.end(leader, commit=True)
        except FENCED as error:
            # The answer to a first attempt may have been lost: then its marker is there. Others
            # may have decided since, so it is not the newest decision that tells.
            is_recorded = None if written is None else self._is_recorded(leader, written[1])
            if is_recorded is None:
                raise UncertainDecisionError from error
            if not is_recorded:
                raise
        except (KafkaError, KafkalogError) as error:
            raise UncertainDecisionError from error
        return decided

    def _is_recorded(self, leader: ProducerIdentity, offset: int) -> bool | None:
        deadline = Deadline(self._cluster.config.request_timeout_ms)
        try:
            return ended_by_commit(self._cluster, leader, self._partition, offset, deadline)
        except (KafkaError, KafkalogError) as error:
            raise UncertainDecisionError from error

    def mark_done(self, decision: Decision) -> None:
        """Notes that all transactions of a decision are committed; twice is as good as once."""
        try:
            self._send(_DONE_KEY, {"version": _VERSION, "id": decision.id})
        except (KafkaError, KafkalogError) as error:
            _log.warning("Topic %s does not say that a write is done: %s", self._topic, error)

    def _send(self, key: bytes, content: dict[str, Any]) -> None:
        with Producer(self._cluster, is_idempotent=False) as producer:
            producer.send(self._partition, _record(key, content))

    def _newest_before(self, end: int) -> Decision | None:
        first = self._cluster.list_offsets([self._partition], EARLIEST)[self._partition].offset
        look = _FIRST_LOOK_OFFSETS
        while True:
            start = max(first, end - look)
            found = self._newest_between(start, end)
            if found is not None or start == first:
                return found
            look *= 8

    def _newest_between(self, start: int, end: int) -> Decision | None:
        newest: Decision | None = None
        undecided: dict[int, Decision] = {}
        done: set[str] = set()
        for producer_id, outcome, record in self._entries(start, end):
            if outcome is not None:
                decision = undecided.pop(producer_id, None)
                newest = decision if outcome and decision is not None else newest
            elif record is not None and record.key == _DECISION_KEY:
                undecided[producer_id] = self._decision(record)
            elif record is not None and record.key == _BEGUN_KEY:
                self.has_begun = True
            elif record is not None and record.key == _DONE_KEY:
                done.add(str(json.loads(bytes(record.value or b"{}")).get("id")))
        if newest is None:
            return None
        return replace(newest, is_done=newest.id in done)

    def _entries(self, start: int, end: int) -> Iterator[tuple[int, bool | None, Record | None]]:
        """(producer id, how its transaction ended, None) or (producer id, None, a record)."""
        for fetched in Fetcher(self._cluster, self._partition, start, end).records():
            for header in batches(fetched.records):
                if header.base_offset < start:
                    continue
                if header.is_control:
                    data = bytes(fetched.records[header.position : header.end_position])
                    marker = decode_marker(data)
                    if marker is not None:
                        yield header.producer_id, marker.is_commit, None
                    continue
                for record in read_records(fetched.records, header, _MOST_PLAIN_BYTES):
                    yield header.producer_id, None, record

    def _decision(self, record: Record) -> Decision:
        content = json.loads(bytes(record.value or b"{}"))
        if content.get("version") not in _VERSIONS_READ:
            raise TransactionError(
                f"Topic {self._topic} has a decision of version {content.get('version')}, which "
                f"this release does not read (it reads up to {_VERSION}). Install the release that "
                "wrote it, or a newer one."
            )
        return _from_json(content)


def _record(key: bytes, content: dict[str, Any]) -> bytearray:
    value = json.dumps(content, separators=(",", ":")).encode()
    return build_batch([Record(0, time.time_ns() // 1_000_000, key, value)], Codec.GZIP)


def _to_json(decision: Decision) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "id": decision.id,
        "owner": decision.owner,
        "batch": decision.batch,
        "planned": decision.planned,
        "records": decision.record_count,
        "settled": list(decision.settled),
        "transactions": [
            {
                "transactional_id": written.producer.transactional_id,
                "producer_id": written.producer.producer_id,
                "epoch": written.producer.epoch,
                "records": written.record_count,
                "digest": written.digest,
                "topic": written.topic,
                "partition": written.partition,
                "offset": written.offset,
            }
            for written in decision.transactions
        ],
    }


def _from_json(content: dict[str, Any]) -> Decision:
    return Decision(
        owner=content["owner"],
        batch=content["batch"],
        transactions=tuple(map(_written, content["transactions"])),
        record_count=content["records"],
        settled=tuple(content["settled"]),
        planned=content.get("planned", ""),
        id=content["id"],
    )


def _written(entry: dict[str, Any]) -> WrittenTransaction:
    producer = ProducerIdentity(entry["transactional_id"], entry["producer_id"], entry["epoch"])
    return WrittenTransaction(
        producer,
        entry["records"],
        entry["digest"],
        entry["topic"],
        entry["partition"],
        entry["offset"],
    )
