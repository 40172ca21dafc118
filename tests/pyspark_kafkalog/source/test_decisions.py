"""The topic of decisions: what counts as one, and which is the newest."""

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import InvalidProducerEpochError, ProducerFencedError

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.transaction import ProducerIdentity, Transactions
from pyspark_kafkalog.errors import (
    TransactionAbortedError,
    TransactionError,
    UnknownTopicError,
)
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.records import Record, build_batch
from pyspark_kafkalog.source import decisions
from pyspark_kafkalog.source.decisions import (
    Decision,
    DecisionLog,
    WrittenTransaction,
    decisions_topic,
)

TIMEOUT_MS = 60_000
TASKS = (
    WrittenTransaction(ProducerIdentity("p-task-0-0", 7, 3), 10, "digest 0", "topic", 2, 500),
    WrittenTransaction(ProducerIdentity("p-task-1-0", 8, 0), 20, "digest 1", "", -1, -1),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with EmbeddedBroker() as broker:
        given = {
            "bootstrap.servers": broker.bootstrap_servers,
            "isolation.level": "read_uncommitted",
        }
        with Cluster(ClientConfig.from_options(given)) as connected:
            yield connected


@pytest.fixture
def transactions(cluster: Cluster) -> Transactions:
    return Transactions(cluster)


@pytest.fixture
def prefix() -> str:
    return f"p-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def log(cluster: Cluster, prefix: str) -> DecisionLog:
    created = DecisionLog(cluster, prefix)
    created.create()
    return created


@pytest.fixture
def leader(transactions: Transactions, prefix: str) -> ProducerIdentity:
    return transactions.begin(f"{prefix}-driver", TIMEOUT_MS)


def left_open(
    cluster: Cluster, log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> Decision:
    """A decision that is recorded in a transaction, which is not ended."""
    decision = Decision("nobody", 99, (), 0, id=uuid.uuid4().hex)
    with Producer(cluster, (transactions, leader)) as producer:
        content = decisions._to_json(decision)
        producer.send(log._partition, decisions._record(decisions._DECISION_KEY, content))
    return decision


def test_a_decision_comes_back_as_it_was_made(
    log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> None:
    assert log.newest() is None
    made = Decision("query", 5, TASKS, 30, ("settled 0", "settled 1"), "planned")
    decided = log.decide(made, transactions, leader)
    assert decided == replace(made, id=decided.id)
    assert decided.id
    assert log.newest() == decided
    assert decided.digests == Counter(["digest 0", "digest 1", "settled 0", "settled 1"])


def test_who_comes_later_finds_the_newest(
    cluster: Cluster,
    log: DecisionLog,
    transactions: Transactions,
    leader: ProducerIdentity,
    prefix: str,
) -> None:
    for number in range(3):
        leader = transactions.begin(leader.transactional_id, TIMEOUT_MS)
        decided = log.decide(Decision("query", number, TASKS), transactions, leader)
        assert log.newest() == DecisionLog(cluster, prefix).newest() == decided


def test_a_decision_that_was_aborted_does_not_count(
    cluster: Cluster, log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> None:
    left_open(cluster, log, transactions, leader)
    transactions.end(leader, commit=False)
    assert log.newest() is None
    leader = transactions.begin(leader.transactional_id, TIMEOUT_MS)
    decided = log.decide(Decision("query", 5, TASKS), transactions, leader)
    leader = transactions.begin(leader.transactional_id, TIMEOUT_MS)
    left_open(cluster, log, transactions, leader)
    transactions.end(leader, commit=False)
    assert log.newest() == decided


GARBAGE = [b"garbage", b"\xff", b"[]", b"1", b"null", b"{}", b'{"id":[]}', None]


def strange(cluster: Cluster, log: DecisionLog, key: bytes, value: bytes | None) -> None:
    """What is no record of this package's, without a transaction."""
    with Producer(cluster, is_idempotent=False) as producer:
        batch = build_batch([Record(0, 1_700_000_000_000, key, value)], Codec.NONE)
        producer.send(log._partition, batch)


@pytest.mark.parametrize("value", GARBAGE)
@pytest.mark.parametrize("key", [b"decision", b"done", b"begun", b"other"])
def test_what_strangers_write_is_no_decision(
    cluster: Cluster,
    log: DecisionLog,
    transactions: Transactions,
    leader: ProducerIdentity,
    key: bytes,
    value: bytes | None,
) -> None:
    strange(cluster, log, key, value)
    decided = log.decide(Decision("query", 5, TASKS), transactions, leader)
    strange(cluster, log, key, value)
    assert log.newest() == decided
    log.mark_done(decided)
    assert log.newest() == replace(decided, is_done=True)


@pytest.mark.parametrize("value", GARBAGE)
def test_what_a_stranger_committed_is_no_decision(
    cluster: Cluster, log: DecisionLog, transactions: Transactions, value: bytes | None
) -> None:
    log.begin()
    stranger = transactions.begin(f"{log._topic}-stranger", TIMEOUT_MS)
    with Producer(cluster, (transactions, stranger)) as producer:
        batch = build_batch([Record(0, 1_700_000_000_000, b"decision", value)], Codec.NONE)
        producer.send(log._partition, batch)
    transactions.end(stranger, commit=True)
    assert log.newest() is None
    assert not log.has_begun


@pytest.mark.parametrize(("key", "value"), [(b"decision", None), (b"done", b'{"id":"1"}')])
def test_what_tells_of_a_decision_that_is_gone_is_no_beginning(
    cluster: Cluster, log: DecisionLog, key: bytes, value: bytes | None
) -> None:
    """Compaction keeps a stranger's record, or a tombstone, in place of the decision."""
    log.begin()
    assert log.newest() is None
    assert log.has_begun
    strange(cluster, log, key, value)
    assert log.newest() is None
    assert not log.has_begun


@pytest.mark.parametrize("when", ["all before", "ended since", "all since"])
def test_what_a_broker_has_kept_quiet_is_found_out(
    cluster: Cluster,
    log: DecisionLog,
    transactions: Transactions,
    leader: ProducerIdentity,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """By who must be sure that there is no newer decision."""
    log.begin()
    end = Transactions.end

    def look_and_end(each: Transactions, producer: ProducerIdentity, commit: bool) -> None:
        if when == "ended since":
            assert log.newest() is None
        end(each, producer, commit)

    monkeypatch.setattr(Transactions, "end", look_and_end)
    if when == "all since":
        assert log.newest() is None
    others = DecisionLog(cluster, prefix)
    decided = others.decide(Decision("query", 5, TASKS), transactions, leader)
    others.check_newest()
    if when == "all before":
        assert log.newest() == decided
    else:
        with pytest.raises(TransactionError, match=r"newer decision .* Run the same again"):
            log.check_newest()
    assert log.newest() == decided
    log.check_newest()
    log.mark_done(decided)
    log.check_newest()
    assert log.newest() == replace(decided, is_done=True)


def test_who_was_told_an_old_end_of_the_log_decides_nothing(
    cluster: Cluster,
    log: DecisionLog,
    transactions: Transactions,
    leader: ProducerIdentity,
    prefix: str,
) -> None:
    """As a broker says it that has been cut off from the others, and led the topic before."""
    assert log.newest() is None
    decided = DecisionLog(cluster, prefix).decide(Decision("query", 5, TASKS), transactions, leader)
    leader = transactions.begin(leader.transactional_id, TIMEOUT_MS)
    with pytest.raises(TransactionAbortedError, match=r"old state .* Run the same again"):
        log.decide(Decision("query", 5, TASKS), transactions, leader)
    assert log.newest() == decided


def test_a_topic_that_was_created_again_since_is_found_out(
    cluster: Cluster, log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> None:
    """What was decided there, after the last look, may be gone with it."""
    for _ in range(4):
        log.begin()
    assert log.newest() is None
    admin.delete_topics(cluster, [log._topic])
    log.create()
    with pytest.raises(TransactionError, match=r"newer decision .* Run the same again"):
        log.check_newest()
    with pytest.raises(TransactionAbortedError, match=r"old state .* Run the same again"):
        log.decide(Decision("query", 5, TASKS), transactions, leader)


def test_a_driver_whose_clock_is_ahead_decides(
    log: DecisionLog,
    transactions: Transactions,
    leader: ProducerIdentity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tomorrow_ns = time.time_ns() + 24 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: tomorrow_ns)
    log.begin()
    decided = log.decide(Decision("query", 5, TASKS), transactions, leader)
    log.mark_done(decided)
    assert log.newest() == replace(decided, is_done=True)


def test_what_was_noted_since_is_no_decision(
    log: DecisionLog, transactions: Transactions, leader: ProducerIdentity, prefix: str
) -> None:
    decided = log.decide(Decision("query", 5, TASKS), transactions, leader)
    assert log.newest() == decided
    log.mark_done(decided)
    log.begin()
    leader = transactions.begin(leader.transactional_id, TIMEOUT_MS)
    next_one = log.decide(Decision("query", 6, TASKS), transactions, leader)
    assert log.newest() == next_one


def test_a_decision_that_was_fenced_does_not_count(
    cluster: Cluster, log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> None:
    left_open(cluster, log, transactions, leader)
    successor = transactions.begin(leader.transactional_id, TIMEOUT_MS)
    assert log.newest() is None
    decided = log.decide(Decision("query", 5, TASKS), transactions, successor)
    assert log.newest() == decided


def test_a_decision_whose_transaction_is_open_does_not_count_yet(
    cluster: Cluster,
    log: DecisionLog,
    transactions: Transactions,
    leader: ProducerIdentity,
    prefix: str,
) -> None:
    open_one = left_open(cluster, log, transactions, leader)
    assert log.newest() is None
    stranger = transactions.begin(f"{prefix}-stranger", TIMEOUT_MS)
    decided = log.decide(Decision("query", 5, TASKS), transactions, stranger)
    assert log.newest() == decided
    transactions.end(leader, commit=True)
    assert log.newest() == open_one
    names = [f"{prefix}-{number}" for number in range(2)]
    leaders = [transactions.begin(name, TIMEOUT_MS) for name in names]
    both = [left_open(cluster, log, transactions, each) for each in leaders]
    transactions.end(leaders[0], commit=True)
    assert log.newest() == both[0]
    transactions.end(leaders[1], commit=False)
    assert log.newest() == both[0]


def test_who_was_replaced_decides_nothing(
    log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> None:
    transactions.begin(leader.transactional_id, TIMEOUT_MS)
    with pytest.raises((InvalidProducerEpochError, ProducerFencedError)):
        log.decide(Decision("query", 5, TASKS), transactions, leader)
    assert log.newest() is None


def test_a_decision_is_done_when_that_is_noted_of_it_and_of_no_other(
    log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> None:
    first = log.decide(Decision("query", 5, TASKS), transactions, leader)
    log.mark_done(replace(first, id="another"))
    assert log.newest() == first
    for _ in range(2):
        log.mark_done(first)
        assert log.newest() == replace(first, is_done=True)
    leader = transactions.begin(leader.transactional_id, TIMEOUT_MS)
    second = log.decide(Decision("query", 6, TASKS), transactions, leader)
    assert log.newest() == second


def test_a_decision_is_found_however_much_was_noted_after_it(
    cluster: Cluster, log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> None:
    decided = log.decide(Decision("query", 5, TASKS), transactions, leader)
    for number in range(40):
        log.mark_done(replace(decided, id=str(number)))
    assert (
        DecisionLog(cluster, log._partition.topic.rpartition("decisions-")[2]).newest() == decided
    )


def test_a_beginning_is_remembered(cluster: Cluster, log: DecisionLog, prefix: str) -> None:
    assert log.newest() is None
    assert not log.has_begun
    log.begin()
    for number in range(20):
        strange(cluster, log, b"other", b"%d" % number)
    for each in (log, DecisionLog(cluster, prefix)):
        assert each.newest() is None
        assert each.has_begun


def test_decisions_are_small_however_many_tasks_there_are(
    cluster: Cluster, log: DecisionLog, transactions: Transactions, leader: ProducerIdentity
) -> None:
    before = cluster.list_offsets([log._partition], -1)[log._partition].offset
    many = tuple(replace(TASKS[0], digest=f"{number:016x}") for number in range(1000))
    decided = log.decide(Decision("query", 5, many), transactions, leader)
    assert log.newest() == decided
    assert cluster.list_offsets([log._partition], -1)[log._partition].offset == before + 2
    assert len(decisions._record(b"decision", decisions._to_json(decided))) < 50_000


def version_of(number: Any) -> Any:
    to_json = decisions._to_json
    return lambda decision: to_json(decision) | {"version": number}


def test_a_format_that_is_not_known_is_not_guessed_at(
    log: DecisionLog,
    transactions: Transactions,
    leader: ProducerIdentity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "_to_json", version_of(3))
    log.decide(Decision("query", 5, TASKS), transactions, leader)
    with pytest.raises(TransactionError, match="version 3, which this release does not read"):
        log.newest()


def test_the_topic_keeps_the_newest_for_ever_and_is_created_once(
    cluster: Cluster, prefix: str
) -> None:
    log = DecisionLog(cluster, prefix)
    with pytest.raises(UnknownTopicError):
        log.newest()
    for _ in range(2):
        log.create()
    log.check_policy()
    name = decisions_topic(prefix)
    assert admin.topic_property(cluster, name, "cleanup.policy") == "compact"
    assert cluster.topics([name]) == {name: [0]}


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_would_forget_is_refused(cluster: Cluster, prefix: str, policy: str) -> None:
    admin.create_topic(cluster, decisions_topic(prefix), 1, 1, {"cleanup.policy": policy})
    log = DecisionLog(cluster, prefix)
    log.create()
    with pytest.raises(TransactionError, match=f"cleanup.policy={policy}, .* Set it to compact"):
        log.check_policy()
