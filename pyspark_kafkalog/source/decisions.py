"""The decisions of a transactional sink: which transactions make up a write that is to be visible.

Owns the topic `__kafkalog-decisions-<prefix>` of one partition, compacted, so that the newest
decision is kept for ever; a consumer group's offset, the other place that a transaction can write
to, expires when the query rests for a week. Records are JSON, compressed by gzip:

    key `begun`      nothing: the prefix is in use from here on
    key `looked`     nothing: there was somebody who had to be sure what the newest decision is
    key `decision`   version, id, owner, batch, planned, end, records, settled, transactions
    key `done`       the id of the decision whose transactions were all ended by a commit

A decision is written in a transaction of the driver's own, so that it is there or not, and a driver
that was replaced cannot add one. `done` is a hint that saves asking and is written without. `begun`
is written before the prefix's first transactional id is used: a prefix whose ids are known, and
whose topic has neither this nor a decision, has lost its decisions. So has one whose topic has
`done` and no decision, or under the key `decision` only what others wrote, for which compaction
gives up the decision. Other records of others are passed over. Version 1 has no `planned`, and
what earlier releases wrote has no `end`.

Blocking; one thread at a time. Never ends the transactions that a decision names.
"""

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
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
from pyspark_kafkalog.errors import (
    KafkalogError,
    TransactionAbortedError,
    TransactionError,
    UnknownTopicError,
)
from pyspark_kafkalog.record.batch import NO_PRODUCER_ID, batches
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.control import decode_marker
from pyspark_kafkalog.record.records import Record, build_batch, read_records
from pyspark_kafkalog.source.partitions import OWN_TOPICS

_VERSION = 2
_VERSIONS_READ = (1, 2)
_BEGUN_KEY = b"begun"
_LOOKED_KEY = b"looked"
_DECISION_KEY = b"decision"
_DONE_KEY = b"done"
_FIRST_LOOK_OFFSETS = 16
"""How far from the end to begin: a decision takes two offsets, `done` one."""
_MOST_PLAIN_BYTES = 256 << 20
_TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "16777216",
    # A driver's clock may be wrong, and brokers refuse what is an hour ahead.
    "message.timestamp.type": "LogAppendTime",
}


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """In a part of the log: the newest decision; where there is none, whether `begun` is there and
    nothing tells that there was one."""

    newest: "Decision | None" = None
    has_begun: bool = False


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
    was planned from and `end` where it ended (`checkpoint.Planned`); both are empty where that was
    not known. `is_done` says that all transactions were committed.
    """

    owner: str
    batch: int
    transactions: tuple[WrittenTransaction, ...]
    record_count: int = 0
    settled: tuple[str, ...] = ()
    planned: str = ""
    end: str = ""
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
        self._read_to: int | None = None
        self._found = _Found()

    @property
    def has_begun(self) -> bool:
        """Where `newest` found no decision: whether the prefix is in use, and none was made."""
        return self._found.has_begun

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
        if self._read_to != end:
            self._found = self._newest_before(end)
            self._read_to = end
        return self._found.newest

    def check_newest(self) -> None:
        """Raises TransactionError where there is a decision that `newest` did not find, and the
        client's errors where nobody can say so: a leader that was replaced, and has not heard of
        it, answers reads as before, but gets no record into the replicas in sync."""
        written = self._send(_LOOKED_KEY, {"version": _VERSION})
        if written is None or self._has_missed_one(written[1]):
            raise TransactionError(
                f"Topic {self._topic} has a newer decision than a broker had told, so what is open "
                "is left as it is. Run the same again."
            )

    def decide(
        self, decision: Decision, transactions: Transactions, leader: ProducerIdentity
    ) -> Decision:
        """Records a decision for ever; returns it with its id.

        Raises UncertainDecisionError, and where it is not recorded the brokers' errors, one of
        FENCED where `leader` leads no more or its transaction was aborted, and
        TransactionAbortedError where there is a decision that `newest` did not find.
        """
        decided = replace(decision, id=uuid.uuid4().hex)
        with Producer(self._cluster, (transactions, leader)) as producer:
            producer.send(self._partition, _record(_DECISION_KEY, _to_json(decided)))
            producer.flush()
        written = producer.last_written
        if written is not None and self._has_missed_one(written[1]):
            with suppress(KafkaError, KafkalogError):
                transactions.end(leader, commit=False)
            raise TransactionAbortedError(
                f"A broker had told an old state of topic {self._topic}; nothing of this write is "
                "visible. Run the same again."
            )
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
        self._found = _Found(decided)
        return decided

    def _has_missed_one(self, offset: int) -> bool:
        """Whether there is a newer decision than `newest` has found before `offset`, which replicas
        in sync have acknowledged: a leader that was cut off, and replaced, may answer reads."""
        if self._read_to is None or offset == self._read_to:
            return False
        if offset < self._read_to:
            return True  # another log
        # The marker of one that was read, and open then, counts as well.
        newest, found = self._newest_before(offset).newest, self._found.newest
        return newest is not None and (found is None or newest.id != found.id)

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

    def _send(self, key: bytes, content: dict[str, Any]) -> tuple[TopicPartition, int] | None:
        """Where it is, if the broker said so."""
        with Producer(self._cluster, is_idempotent=False) as producer:
            producer.send(self._partition, _record(key, content))
        return producer.last_written

    def _newest_before(self, end: int) -> _Found:
        first = self._cluster.list_offsets([self._partition], EARLIEST)[self._partition].offset
        look = _FIRST_LOOK_OFFSETS
        while True:
            start = max(first, end - look)
            found = self._newest_between(start, end)
            if found.newest is not None or start == first:
                return found
            look *= 8

    def _newest_between(self, start: int, end: int) -> _Found:
        newest: Decision | None = None
        undecided: dict[int, Record] = {}
        done: set[str] = set()
        has_begun = is_replaced = False
        for producer_id, outcome, record in self._entries(start, end):
            if outcome is not None:
                decided = undecided.pop(producer_id, None)
                if outcome and decided is not None:
                    decision = self._decision(decided)
                    newest = decision or newest
                    is_replaced |= decision is None
            elif record is None:
                continue
            elif record.key == _DECISION_KEY and producer_id == NO_PRODUCER_ID:
                is_replaced = True
            elif record.key == _DECISION_KEY:
                undecided[producer_id] = record
            elif record.key == _BEGUN_KEY:
                has_begun = True
            elif record.key == _DONE_KEY:
                done.add(str(_content(record).get("id", "")))
        if newest is not None:
            return _Found(replace(newest, is_done=newest.id in done))
        return _Found(None, has_begun and not (is_replaced or any(done)))

    def _entries(self, start: int, end: int) -> Iterator[tuple[int, bool | None, Record | None]]:
        """(producer id, how its transaction ended, None) or (producer id, None, a record); the id
        is NO_PRODUCER_ID of what is in no transaction."""
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
                producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
                for record in read_records(fetched.records, header, _MOST_PLAIN_BYTES):
                    yield producer_id, None, record

    def _decision(self, record: Record) -> Decision | None:
        """None of what is none: who writes there without being told has other records."""
        content = _content(record)
        version = content.get("version")
        if isinstance(version, int) and version not in _VERSIONS_READ:
            raise TransactionError(
                f"Topic {self._topic} has a decision of version {version}, which this release does "
                f"not read (it reads up to {_VERSION}). Install the release that wrote it, or a "
                "newer one."
            )
        try:
            return _from_json(content)
        except (KeyError, TypeError):
            return None


def _content(record: Record) -> Mapping[str, Any]:
    """Of a record's JSON object; nothing of any other record."""
    try:
        content = json.loads(bytes(record.value or b"{}"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, Mapping) else {}


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
        "end": decision.end,
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


def _from_json(content: Mapping[str, Any]) -> Decision:
    return Decision(
        owner=content["owner"],
        batch=content["batch"],
        transactions=tuple(map(_written, content["transactions"])),
        record_count=content["records"],
        settled=tuple(content["settled"]),
        planned=content.get("planned", ""),
        end=content.get("end", ""),
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
