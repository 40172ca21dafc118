"""The two phases, step by step as Spark makes them, against an embedded broker and without Spark.

What kills and timeouts at random do to them is in `tests/crash`.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.cimpl import NewTopic
from kafka import structs
from kafka.errors import (
    IncompatibleBrokerVersion,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    KafkaError,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client import cluster as client_cluster
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.transaction import FENCED, ONGOING, ProducerIdentity, Transactions
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DeliveryError,
    InvalidOptionError,
    KafkalogError,
    PrefixInUseError,
    TransactionAbortedError,
    TransactionError,
    UnknownTopicError,
)
from pyspark_kafkalog.source import decisions, two_phase
from pyspark_kafkalog.source.decisions import (
    Decision,
    DecisionLog,
    WrittenTransaction,
    decisions_topic,
)
from pyspark_kafkalog.source.two_phase import TaskWrite, TransactionalWrites
from tests.crash.sink_steps import (
    Sink,
    StepError,
    has_open_transactions,
    plan_micro_batch,
    visible,
)
from tests.pyspark_kafkalog.client.conftest import batches_of
from tests.support.patience import wait_until

OTHER_ROWS = "PrefixInUseError: Micro-batch 1 was committed with 2 records and is to be .* not the"
NOT_WITHOUT_ROWS = "PrefixInUseError: Micro-batch {} was committed with 0 records and is to be "
GOES_ON_FROM_ANOTHER = (
    "PrefixInUseError: Micro-batch {} .* micro-batch 1 of its checkpoint does not"
)
LOST = "DecisionsLostError: .* Choose another prefix"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


@pytest.fixture
def sink(servers: str, admin: AdminClient) -> Sink:
    """A sink with a topic and a prefix of its own, and a checkpoint that nobody can read."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    return Sink(servers, name, f"p-{name}")


@pytest.fixture
def checkpoint(sink: Sink, tmp_path: Path) -> Path:
    """The sink's, readable; `plan_micro_batch` plans there."""
    sink.more["checkpointLocation"] = str(tmp_path)
    return tmp_path


def plan_anew(checkpoint: Path, batch: int) -> None:
    """As if the batch had been planned after the copy was taken that the checkpoint is now."""
    before = (checkpoint / "offsets" / str(batch)).read_text()
    while (checkpoint / "offsets" / str(batch)).read_text() == before:
        (checkpoint / "offsets" / str(batch)).unlink()
        plan_micro_batch(checkpoint, batch)


def ends_at(offset: int) -> str:
    return json.dumps({"in": {"0": offset}})


def seen(sink: Sink) -> Counter[bytes]:
    return visible(sink.servers, sink.topic)


def delete_decisions(sink: Sink, admin: AdminClient) -> None:
    name = decisions_topic(sink.prefix)
    admin.delete_topics([name])[name].result(30)


def create_decisions(sink: Sink, admin: AdminClient) -> None:
    name = decisions_topic(sink.prefix)
    topic = NewTopic(name, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])[name].result(30)


def denied(*_: Any) -> NoReturn:
    raise UnknownTopicError("Topic __kafkalog-decisions does not exist")


def before_kafka_3(*_: Any) -> NoReturn:
    raise IncompatibleBrokerVersion("no DescribeTransactions")


class DriverDied(Exception):
    """Where a driver ends right after its decision."""


@pytest.fixture
def commit_cut_short(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[Any], int | None, list[bool | None]], Decision]:
    """`(messages, batch, ends)`: the commit of a driver that dies when it has decided; each of the
    decided transactions, in order, is committed then, aborted, or (None) left open."""
    decide = DecisionLog.decide

    def commit(messages: list[Any], batch: int | None, ends: list[bool | None]) -> Decision:
        made = []

        def decide_and_die(
            log: DecisionLog,
            decision: Decision,
            transactions: Transactions,
            leader: ProducerIdentity,
        ) -> NoReturn:
            made.append(decide(log, decision, transactions, leader))
            for transaction, end in zip(made[0].transactions, ends, strict=True):
                if end is not None:
                    transactions.end(transaction.producer, commit=end)
            raise DriverDied

        with monkeypatch.context() as patch:
            patch.setattr(DecisionLog, "decide", decide_and_die)
            with pytest.raises(DriverDied):
                sink.commit(messages, batch)
        return made[0]

    return commit


def newest(sink: Sink) -> Decision | None:
    with Cluster(sink.options.client) as cluster:
        return DecisionLog(cluster, sink.prefix).newest()


def states(sink: Sink, messages: list[Any]) -> list[str]:
    """Of the transactions that these messages report, as their coordinator has them."""
    names = [message.transaction.producer.transactional_id for message in messages]
    with Cluster(sink.options.client) as cluster:
        found = Transactions(cluster).describe(names)
        return [found[name].state for name in names]


# Which micro-batch is the decided one.


def test_as_many_other_rows_are_another_batch(sink: Sink) -> None:
    sink.run(0, [b"0"])
    sink.run(1, [b"1", b"2"])
    for again in ([[b"1", b"3"]], [[b"3", b"4"]], [[b"1"], [b"3"]], [[b"2", b"1"]]):
        with pytest.raises(StepError, match=OTHER_ROWS):
            sink.run(1, *again)
    assert seen(sink) == Counter([b"0", b"1", b"2"])


def test_the_same_rows_in_the_same_tasks_are_the_same_batch(sink: Sink) -> None:
    for again in ([[b"1"], [b"2"]], [[b"2"], [b"1"]], [[], [b"1"], [], [b"2"]]):
        sink.run(0, *again)
    assert seen(sink) == Counter([b"1", b"2"])


def test_a_batch_of_the_same_plan_is_the_same_whatever_its_rows_are(
    sink: Sink, checkpoint: Path
) -> None:
    for batch in range(2):
        plan_micro_batch(checkpoint, batch)
        sink.run(batch, [b"%d" % batch], [b"x"])
    replays: list[list[list[bytes]]] = [[[b"1", b"x"]], [[b"other"]], [[]], []]
    for again in replays:
        sink.run(1, *again)
    assert seen(sink) == Counter([b"0", b"1", b"x", b"x"])


def test_a_batch_of_another_plan_is_the_same_only_with_the_same_rows(
    sink: Sink, checkpoint: Path
) -> None:
    for batch in range(2):
        plan_micro_batch(checkpoint, batch)
        sink.run(batch, [b"%d" % batch, b"x"])
    plan_anew(checkpoint, 1)
    sink.run(1, [b"1", b"x"])
    replays: list[list[list[bytes]]] = [[[b"1", b"y"]], [[b"1"], [b"x"]], [[]], []]
    for again in replays:
        with pytest.raises(StepError, match=OTHER_ROWS) as raised:
            sink.run(1, *again)
        assert "it was planned anew, from other offsets" in str(raised.value)
    assert seen(sink) == Counter([b"0", b"x", b"1", b"x"])


@pytest.mark.parametrize("again", [[[]], []], ids=["no rows", "no tasks"])
def test_a_batch_that_has_no_rows_any_more_is_another_batch(
    sink: Sink, again: list[list[bytes]]
) -> None:
    sink.run(1, [b"1", b"2"])
    with pytest.raises(StepError, match=OTHER_ROWS):
        sink.run(1, *again)
    with pytest.raises(StepError, match=r"PrefixInUseError: Micro-batch 0 .* but 1 was before"):
        sink.run(0, *again)
    for batch in (2, 3):
        sink.run(batch, *again)
    assert seen(sink) == Counter([b"1", b"2"])


def test_a_batch_without_rows_has_its_number(sink: Sink, checkpoint: Path) -> None:
    """Else a copy of the checkpoint would give the number to more records, and the query, which has
    the next number, would write these again."""
    for batch, rows in enumerate(([b"0"], [])):
        plan_micro_batch(checkpoint, batch)
        sink.run(batch, rows)
    sink.run(1, [])
    plan_anew(checkpoint, 1)
    with pytest.raises(StepError, match=NOT_WITHOUT_ROWS.format(1)):
        sink.run(1, [b"2"])
    sink.run(1, [], [])
    plan_micro_batch(checkpoint, 2)
    sink.run(2, [b"2"])
    assert seen(sink) == Counter([b"0", b"2"])


@pytest.mark.parametrize("number", [2, 4])
def test_a_batch_goes_on_from_the_one_that_was_committed(
    sink: Sink, checkpoint: Path, number: int
) -> None:
    """A query and a copy of its checkpoint have both gone on, one of them with a prefix of its own;
    the other comes with this prefix, too, and would leave out records, and write others again."""
    plan_micro_batch(checkpoint, 0)
    plan_micro_batch(checkpoint, 1, end=ends_at(3))
    sink.run(1, [b"0", b"1", b"2"])
    (checkpoint / "offsets" / "1").rename(checkpoint / "committed")
    for batch in range(1, 5):
        plan_micro_batch(checkpoint, batch, end=ends_at(batch + 4))
    with pytest.raises(StepError, match=GOES_ON_FROM_ANOTHER.format(number)):
        sink.run(number, [b"5"])
    (checkpoint / "committed").rename(checkpoint / "offsets" / "1")
    sink.run(number, [b"3"])
    assert seen(sink) == Counter([b"0", b"1", b"2", b"3"])


def test_a_batch_goes_on_from_one_that_was_planned_anew_and_had_the_same_rows(
    sink: Sink, checkpoint: Path
) -> None:
    for batch, end in enumerate((3, 6)):
        plan_micro_batch(checkpoint, batch, end=ends_at(end))
        sink.run(batch, [b"%d" % end], [b"x"])
    (checkpoint / "offsets" / "1").unlink()
    plan_micro_batch(checkpoint, 1, end=ends_at(9))
    for _ in range(2):
        sink.run(1, [b"6"], [b"x"])
    plan_micro_batch(checkpoint, 2, end=ends_at(12))
    sink.run(2, [b"12"])
    assert seen(sink) == Counter([b"3", b"6", b"12", b"x", b"x"])


def test_numbers_may_be_left_out(sink: Sink) -> None:
    for batch in (3, 7, 8):
        sink.run(batch, [b"%d" % batch])
    with pytest.raises(StepError, match=r"PrefixInUseError: Micro-batch 7 .* but 8 was before"):
        sink.run(7, [b"7"])
    assert seen(sink) == Counter([b"3", b"7", b"8"])


def test_a_decision_of_the_first_format_is_told_by_its_rows(
    sink: Sink, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_json = decisions._to_json

    def first_format(decision: decisions.Decision) -> dict[str, object]:
        content = to_json(decision) | {"version": 1}
        del content["planned"]
        return content

    plan_micro_batch(checkpoint, 1)
    with monkeypatch.context() as patch:
        patch.setattr(decisions, "_to_json", first_format)
        sink.run(1, [b"1", b"2"])
    sink.run(1, [b"1", b"2"])
    with pytest.raises(StepError, match=OTHER_ROWS):
        sink.run(1, [b"1", b"3"])
    sink.run(2, [b"3"])
    assert seen(sink) == Counter([b"1", b"2", b"3"])


# A prefix whose decisions are lost.


@pytest.mark.parametrize("batch", [1, None], ids=["stream", "batch query"])
@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_prefix_that_was_used_is_not_taken_for_new(
    sink: Sink, admin: AdminClient, batch: int | None, is_created_again: bool
) -> None:
    sink.run(batch, [b"1"])
    delete_decisions(sink, admin)
    if is_created_again:
        create_decisions(sink, admin)
    for _ in range(2):
        with pytest.raises(StepError, match=LOST):
            sink.plan(is_stream=batch is not None)
    assert seen(sink) == Counter([b"1"])
    replace(sink, prefix=f"{sink.prefix}-2").run(batch, [b"2"])
    assert seen(sink) == Counter([b"1", b"2"])


@pytest.mark.parametrize("is_created_again", [False, True])
def test_decisions_that_are_lost_while_a_batch_runs_stop_it(
    sink: Sink, admin: AdminClient, is_created_again: bool
) -> None:
    sink.run(0, [b"0"])
    messages = sink.write(sink.plan(), [b"0"])
    delete_decisions(sink, admin)
    if is_created_again:
        create_decisions(sink, admin)
    with pytest.raises(StepError, match=LOST):
        sink.commit(messages, 0)
    assert seen(sink) == Counter([b"0"])


@pytest.mark.parametrize("is_created_again", [False, True])
def test_what_was_not_decided_when_decisions_were_lost_is_aborted(
    sink: Sink, admin: AdminClient, is_created_again: bool
) -> None:
    sink.run(0, [b"0"])
    writer = sink.plan()
    unreported = sink.write(writer, [b"1"], attempt=1)
    messages = sink.write(writer, [b"1"])
    delete_decisions(sink, admin)
    if is_created_again:
        create_decisions(sink, admin)
    with pytest.raises(StepError, match=LOST):
        sink.commit(messages, 1)
    sink.abort(messages, 1)
    assert ONGOING not in states(sink, [*messages, *unreported])
    assert not has_open_transactions(sink.servers, sink.topic)
    assert seen(sink) == Counter([b"0"])


@pytest.mark.parametrize("is_fenced", [False, True])
def test_what_may_be_decided_is_not_aborted_where_brokers_deny_the_decisions(
    sink: Sink,
    commit_cut_short: Callable[..., Decision],
    monkeypatch: pytest.MonkeyPatch,
    is_fenced: bool,
) -> None:
    """A broker that has just started knows no topic yet: what was decided is decided."""
    messages = sink.write(sink.plan(), *ROWS)
    commit_cut_short(messages, 0, [None, None, None])
    if is_fenced:
        with Cluster(sink.options.client) as cluster:  # a successor that dies there
            Transactions(cluster).begin(f"{sink.prefix}-driver", 60_000)
    with monkeypatch.context() as patch:
        patch.setattr(DecisionLog, "newest", denied)
        with pytest.raises(StepError, match=rf"{LOST}.* stay open.*timeout\.ms=900000"):
            sink.abort(messages, 0)
    assert states(sink, messages) == [ONGOING] * 3
    sink.plan()
    assert seen(sink) == EACH_ROW_ONCE


def test_what_was_decided_when_decisions_were_lost_is_left_to_its_timeout(
    sink: Sink, admin: AdminClient, commit_cut_short: Callable[..., Decision]
) -> None:
    messages = sink.write(sink.plan(), *ROWS)
    commit_cut_short(messages, 0, [None, None, None])
    delete_decisions(sink, admin)
    create_decisions(sink, admin)
    with pytest.raises(StepError, match=LOST):
        sink.abort(messages, 0)
    assert states(sink, messages) == [ONGOING] * 3


def test_brokers_that_do_not_tell_what_is_decided_keep_it_open(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = sink.write(sink.plan(), *ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(DecisionLog, "newest", denied)
        patch.setattr(Transactions, "describe", before_kafka_3)
        with pytest.raises(StepError, match=LOST):
            sink.abort(messages, 0)
    assert states(sink, messages) == [ONGOING] * 3


def test_a_prefix_whose_first_write_failed_is_not_lost(sink: Sink) -> None:
    with Cluster(sink.options.client) as cluster:
        log = DecisionLog(cluster, sink.prefix)
        log.create()
        log.begin()  # and killed
    sink.plan()  # and killed
    sink.abort(sink.write(sink.plan(), [b"0"]), 0)
    sink.run(0, [b"0"])
    assert seen(sink) == Counter([b"0"])


def test_decisions_that_would_be_forgotten_one_day_are_refused_at_once(
    sink: Sink, admin: AdminClient
) -> None:
    sink.run(0, [b"0"])
    policy = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(
        ConfigResource.Type.TOPIC, decisions_topic(sink.prefix), incremental_configs=[policy]
    )
    admin.incremental_alter_configs([topic])[topic].result(30)
    with pytest.raises(StepError, match=r"TransactionError: .* cleanup\.policy=delete"):
        sink.plan()


# What became of what was decided.


ROWS = [[b"0", b"00"], [b"1", b"11"], [b"2", b"22"]]
EACH_ROW_ONCE = Counter(row for task in ROWS for row in task)


def test_a_plan_ends_what_was_decided(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    decided = commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [True, None, None])
    assert newest(sink) == decided
    sink.plan()
    assert newest(sink) == replace(decided, is_done=True)
    assert seen(sink) == EACH_ROW_ONCE
    sink.run(0, *ROWS)
    sink.run(1, [b"next"])
    assert seen(sink) == EACH_ROW_ONCE + Counter([b"next"])


def test_only_what_was_aborted_is_written_again_however_often(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    """Each replay decides on what is missing, and dies when a part of that was ended."""
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [True, False, False])
    second = commit_cut_short(sink.write(sink.plan(), *reversed(ROWS)), 0, [False, True])
    assert len(second.settled) == 1
    for _ in range(2):
        sink.run(0, *ROWS)
        assert seen(sink) == EACH_ROW_ONCE
    decided = newest(sink)
    assert decided is not None
    assert (len(decided.transactions), len(decided.settled)) == (1, 2)
    assert not has_open_transactions(sink.servers, sink.topic)
    with pytest.raises(StepError, match="PrefixInUseError: Micro-batch 0 was committed with 6 rec"):
        sink.run(0, ROWS[0], ROWS[1], [b"2", b"other"])
    assert seen(sink) == EACH_ROW_ONCE


def test_what_was_aborted_is_known_behind_what_another_query_has_open(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    sink.more["kafka.isolation.level"] = "read_committed"
    other = replace(sink, prefix=f"{sink.prefix}-2", query="other")
    left_open = other.write(other.plan(), *[[b"other"]] * 4)
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [True, False, False])
    sink.run(0, *ROWS)
    other.commit(left_open, 0)
    assert seen(sink) == EACH_ROW_ONCE + Counter({b"other": 4})


def test_what_earlier_decisions_settled_counts_when_nothing_else_is_left(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [True, False, False])
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [False, False])
    with pytest.raises(StepError, match="PartlyCommittedError"):
        sink.run(0, [b"other"])
    sink.run(0, *ROWS)
    assert seen(sink) == EACH_ROW_ONCE


def test_equal_tasks_are_counted(sink: Sink, commit_cut_short: Callable[..., Decision]) -> None:
    tasks = [[b"x"]] * 4
    commit_cut_short(sink.write(sink.plan(), *tasks), 0, [True, False, True, False])
    with pytest.raises(StepError, match="PartlyCommittedError"):
        sink.run(0, *tasks[:3])
    sink.run(0, *tasks)
    assert seen(sink) == Counter({b"x": 4})


@pytest.mark.parametrize("batch", [0, None], ids=["stream", "batch query"])
def test_the_same_rows_for_another_topic_replace_nothing(
    sink: Sink, admin: AdminClient, commit_cut_short: Callable[..., Decision], batch: int | None
) -> None:
    commit_cut_short(
        sink.write(sink.plan(is_stream=batch is not None), *ROWS), batch, [True, False, False]
    )
    other = replace(sink, topic=f"{sink.topic}-2")
    admin.create_topics([NewTopic(other.topic, 2, 1)])[other.topic].result(30)
    with pytest.raises(StepError, match=r"PartlyCommittedError: .* or goes to another topic"):
        other.run(batch, *ROWS)
    assert not seen(other)
    sink.run(batch, *ROWS)
    assert seen(sink) == EACH_ROW_ONCE


@pytest.mark.parametrize(
    "again",
    [
        [[*ROWS[0], *ROWS[1]], ROWS[2]],
        ROWS[1:],
        [ROWS[0], ROWS[1], [b"2", b"other"]],
        [*ROWS, [b"m"]],
    ],
    ids=["cut otherwise", "fewer", "others", "more"],
)
def test_what_was_aborted_is_replaced_by_the_same_tasks_only(
    sink: Sink,
    commit_cut_short: Callable[..., Decision],
    checkpoint: Path,
    again: list[list[bytes]],
) -> None:
    plan_micro_batch(checkpoint, 0)
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [True, False, False])
    messages = sink.write(sink.plan(), *again)
    with pytest.raises(StepError, match=r"PartlyCommittedError: Micro-batch 0 .*not the same rows"):
        sink.commit(messages, 0)
    sink.abort(messages, 0)
    assert ONGOING not in states(sink, messages)
    assert seen(sink) == Counter(ROWS[0])
    plan_anew(checkpoint, 0)
    with pytest.raises(StepError, match=r"PrefixInUseError: .* it was planned anew"):
        sink.run(0, *again)
    sink.run(0, *ROWS)
    assert seen(sink) == EACH_ROW_ONCE


def test_a_batch_of_which_nothing_is_left_may_be_another_one(
    sink: Sink, commit_cut_short: Callable[..., Decision], checkpoint: Path
) -> None:
    plan_micro_batch(checkpoint, 0)
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [False, False, False])
    plan_anew(checkpoint, 0)
    sink.run(0, [b"other"])
    assert seen(sink) == Counter([b"other"])


def test_a_batch_of_which_nothing_is_left_may_have_no_rows(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [False, False, False])
    for _ in range(2):
        sink.run(0, [], [])
    with pytest.raises(StepError, match=NOT_WITHOUT_ROWS.format(0)):
        sink.run(0, [b"other"])
    commit_cut_short(sink.write(sink.plan(), *ROWS), 1, [False, False, False])
    sink.run(1, [], [])
    sink.run(2, [b"next"])
    assert seen(sink) == Counter([b"next"])


def test_a_batch_of_which_a_part_is_missing_is_not_left_behind(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [True, True, False])
    with pytest.raises(StepError, match=r"PartlyCommittedError: .*was not run again"):
        sink.run(1, [b"next"])
    sink.run(0, *ROWS)
    sink.run(1, [b"next"])
    assert seen(sink) == EACH_ROW_ONCE + Counter([b"next"])


def test_what_is_not_known_is_not_written_again(
    sink: Sink, commit_cut_short: Callable[..., Decision], admin: AdminClient, checkpoint: Path
) -> None:
    plan_micro_batch(checkpoint, 0)
    commit_cut_short(sink.write(sink.plan(), *ROWS), 0, [False, False, False])
    everything = [TopicPartition(sink.topic, partition, -1) for partition in range(2)]
    for deleted in admin.delete_records(everything).values():
        deleted.result(30)
    for _ in range(2):
        with pytest.raises(
            StepError,
            match=r"PartlyCommittedError: .*3 transactions are not known.*What is not known",
        ):
            sink.run(0, *ROWS)
    plan_anew(checkpoint, 0)
    with pytest.raises(StepError, match=r"PrefixInUseError: .* it was planned anew"):
        sink.run(0, [b"other"])
    assert not seen(sink)


def test_a_place_that_no_broker_told_is_not_known(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    messages = sink.write(sink.plan(), *ROWS[:1])
    placeless = replace(messages[0].transaction, topic="", partition=-1, offset=-1)
    commit_cut_short([replace(messages[0], transaction=placeless)], 0, [False])
    with pytest.raises(StepError, match=r"PartlyCommittedError: .*1 transactions are not known"):
        sink.run(0, *ROWS[:1])


def test_a_commit_is_told_what_was_aborted_behind_its_back_and_may_be_repeated(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = sink.write(sink.plan(), *ROWS)
    decide = DecisionLog.decide

    def decide_late(log: DecisionLog, *arguments: Any) -> Decision:
        decided = decide(log, *arguments)
        arguments[1].end(decided.transactions[1].producer, commit=False)
        return decided

    with monkeypatch.context() as patch:
        patch.setattr(DecisionLog, "decide", decide_late)
        with pytest.raises(StepError, match=r"TransactionAbortedError: \S+-task-1-0-\d+ of 3 "):
            sink.commit(messages, 0)
    with pytest.raises(StepError, match=r"TransactionAbortedError: \S+-task-1-0-\d+ of 3 "):
        sink.commit(messages, 0)
    sink.run(0, *ROWS)
    sink.commit(messages, 0)
    assert seen(sink) == EACH_ROW_ONCE


def test_what_is_done_is_not_asked_for_again(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.run(0, *ROWS)
    messages = sink.write(sink.plan(), [b"next"])
    ended: list[ProducerIdentity] = []
    end_all = Transactions.end_all

    def noted(transactions: Transactions, producers: Any, commit: bool) -> Any:
        ended.extend(producers := list(producers))
        return end_all(transactions, producers, commit)

    monkeypatch.setattr(Transactions, "end_all", noted)
    sink.commit(messages, 1)
    tasks = [each for each in ended if not each.transactional_id.endswith("-driver")]
    assert tasks == [messages[0].transaction.producer]


# Who may write.


def test_a_prefix_belongs_to_who_wrote_first(sink: Sink) -> None:
    other = replace(sink, query="query-2")
    sink.run(0, [b"0"])
    mine = sink.write(sink.plan(), [b"1"])
    with pytest.raises(
        StepError,
        match=r"belongs to the streaming query quer.*writes again.*startingOffsets.*after the last",
    ):
        other.plan(is_stream=False)
    sink.commit(mine, 1)
    with pytest.raises(StepError, match=r"PrefixInUseError: .*query-1, and this is .*query-2"):
        other.write(other.plan(), [b"theirs"])
    assert seen(sink) == Counter([b"0", b"1"])


def test_who_owns_a_prefix_is_asked_of_the_commit_too(sink: Sink) -> None:
    other = replace(sink, query="query-2")
    theirs = other.write(other.plan(), [b"theirs"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionalWrites, "_check_leads", lambda *_: None)
        sink.run(0, [b"mine"])
        with pytest.raises(StepError, match=r"PrefixInUseError: .* belongs to"):
            other.commit(theirs, 0)
    assert seen(sink) == Counter([b"mine"])


def test_the_commit_of_a_batch_query_may_be_repeated(sink: Sink) -> None:
    messages = sink.write(sink.plan(is_stream=False), *ROWS)
    for _ in range(2):
        sink.commit(messages, None)
    assert seen(sink) == EACH_ROW_ONCE


def test_batch_queries_are_no_replays_of_each_other(sink: Sink) -> None:
    for _ in range(2):
        sink.run(None, [b"x"], [b"y"])
    assert seen(sink) == Counter({b"x": 2, b"y": 2})


def test_who_plans_later_leads(sink: Sink) -> None:
    old = sink.plan()
    messages = sink.write(old, [b"old"])
    new = sink.plan()
    for attempt in (0, 1):
        with pytest.raises(StepError, match=r"PrefixInUseError: Another run .* took over"):
            sink.write(old, [b"late"], attempt=attempt)
    with pytest.raises(StepError, match=r"PrefixInUseError: Another run .* took over"):
        sink.commit(messages, 0)
    sink.commit(sink.write(new, [b"new"]), 0)
    sink.abort(messages, 0)
    assert seen(sink) == Counter([b"new"])
    assert not has_open_transactions(sink.servers, sink.topic)


def test_a_task_that_comes_when_all_is_committed_writes_nothing(sink: Sink) -> None:
    writer = sink.plan()
    sink.commit(sink.write(writer, [b"0"]), 0)
    with pytest.raises(StepError, match=r"PrefixInUseError: Another run .* took over"):
        sink.write(writer, [b"0"], attempt=1)
    assert not has_open_transactions(sink.servers, sink.topic)


def test_what_dead_tasks_left_open_is_aborted_and_nothing_else(sink: Sink) -> None:
    others = [
        replace(sink, prefix=sink.prefix.replace("-", "."), query="dots"),
        replace(sink, prefix=f"{sink.prefix}-task-0-0", query="longer"),
    ]
    kept = [other.write(other.plan(), [other.query.encode()]) for other in others]
    dotted = replace(sink, prefix=sink.prefix.replace("-", "."), query="dots")
    left = sink.write(sink.plan(), [b"0"], [b"1"])
    sink.plan()
    assert ONGOING not in states(sink, left)
    dotted_again = dotted.plan()  # ends its own, and none of the prefix that its dots match
    mine = sink.write(sink.plan(), [b"mine"])
    dotted.commit(dotted.write(dotted_again, [b"dots"]), 0)
    assert states(sink, mine) == [ONGOING]
    others[1].commit(kept[1], 0)
    sink.commit(mine, 0)
    assert seen(sink) == Counter([b"mine", b"dots", b"longer"])


@pytest.mark.parametrize("batch", [1, None], ids=["stream", "batch query"])
def test_what_a_broker_keeps_quiet_about_is_not_aborted(
    sink: Sink,
    commit_cut_short: Callable[..., Decision],
    monkeypatch: pytest.MonkeyPatch,
    batch: int | None,
) -> None:
    """A leader of the decisions that was replaced, and has not heard of it, answers reads."""
    messages = sink.write(sink.plan(is_stream=batch is not None), *ROWS)
    commit_cut_short(messages, batch, [True, None, None])

    def before(log: DecisionLog) -> None:
        log._read_to, log._found = 1, decisions._Found(has_begun=True)

    with monkeypatch.context() as patch:
        patch.setattr(DecisionLog, "newest", before)
        with pytest.raises(StepError, match=r"TransactionError: .* newer decision"):
            sink.plan(is_stream=batch is not None)
    assert states(sink, messages)[1:] == [ONGOING] * 2
    sink.plan(is_stream=batch is not None)
    assert seen(sink) == EACH_ROW_ONCE
    assert not has_open_transactions(sink.servers, sink.topic)


@pytest.mark.parametrize("is_listed", [True, False])
def test_an_abort_leaves_what_a_broker_keeps_quiet_about(
    sink: Sink,
    commit_cut_short: Callable[..., Decision],
    monkeypatch: pytest.MonkeyPatch,
    is_listed: bool,
) -> None:
    """Also where no broker lists what is open: one before Kafka 3.0, or one that is away."""
    messages = sink.write(sink.plan(), *ROWS)
    commit_cut_short(messages, 1, [True, None, None])

    def before(log: DecisionLog) -> None:
        log._read_to, log._found = 1, decisions._Found(has_begun=True)

    with monkeypatch.context() as patch:
        patch.setattr(DecisionLog, "newest", before)
        if not is_listed:
            patch.setattr(Transactions, "ongoing", lambda *_: [])
        with pytest.raises(StepError, match=r"TransactionError: .* newer decision"):
            sink.abort(messages, 1)
    assert states(sink, messages)[1:] == [ONGOING] * 2
    sink.plan()
    assert seen(sink) == EACH_ROW_ONCE
    assert not has_open_transactions(sink.servers, sink.topic)


def test_a_twin_that_nobody_reported_is_aborted_by_the_commit(sink: Sink) -> None:
    writer = sink.plan()
    first = sink.write(writer, [b"0"])
    second = sink.write(writer, [b"0"], attempt=1)
    sink.commit(second, 0)
    assert not has_open_transactions(sink.servers, sink.topic)
    assert seen(sink) == Counter([b"0"])
    assert ONGOING not in states(sink, first)


def test_an_abort_leaves_what_is_decided_and_nothing_else(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    writer = sink.plan()
    twin = sink.write(writer, ROWS[0], attempt=1)
    messages = sink.write(writer, *ROWS)
    commit_cut_short(messages, 0, [None, None, None])
    sink.abort([*messages, *twin], 0)
    assert seen(sink) == EACH_ROW_ONCE
    assert not has_open_transactions(sink.servers, sink.topic)
    with pytest.raises(StepError, match="PrefixInUseError"):
        sink.write(writer, [b"late"], attempt=2)


def test_an_abort_by_who_leads_no_more_ends_what_is_its_own_and_not_decided(
    sink: Sink, commit_cut_short: Callable[..., Decision]
) -> None:
    writer = sink.plan()
    twin = sink.write(writer, ROWS[0], attempt=1)
    messages = sink.write(writer, *ROWS)
    commit_cut_short(messages, 0, [None, None, None])
    with Cluster(sink.options.client) as cluster:  # a successor that dies there
        Transactions(cluster).begin(f"{sink.prefix}-driver", 60_000)
    sink.abort([*messages, *twin], 0)
    assert states(sink, [*messages, *twin]) == [*[ONGOING] * 3, "CompleteAbort"]
    sink.plan()
    assert seen(sink) == EACH_ROW_ONCE


@pytest.mark.parametrize("batch", [None, 0])
def test_an_abort_by_who_leads_no_more_leaves_its_successors_write(
    sink: Sink, batch: int | None
) -> None:
    first, second = (sink.plan(is_stream=batch is not None) for _ in range(2))
    messages = sink.write(second, *ROWS)
    sink.abort([None], batch, first)
    sink.commit(messages, batch)
    assert seen(sink) == EACH_ROW_ONCE


# Brokers that go away while a commit is at work.


def brokers_away(*_: Any) -> NoReturn:
    raise BrokersUnreachableError("No broker could be used.")


def test_an_error_after_the_decision_says_that_it_is_decided(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sink.plan(is_stream=False)
    messages = sink.write(writer, *ROWS)
    end_all = Transactions.end_all

    def end_the_lead_alone(
        transactions: Transactions, producers: Sequence[ProducerIdentity], commit: bool
    ) -> Any:
        if not producers[0].transactional_id.endswith("-driver"):
            brokers_away()
        return end_all(transactions, producers, commit)

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "end_all", end_the_lead_alone)
        with pytest.raises(StepError, match=r"CommitUnfinishedError: The write is decided, .* Do"):
            sink.commit(messages, None)
    assert not seen(sink)
    sink.run(None)  # a df.write of no rows
    assert seen(sink) == EACH_ROW_ONCE


def test_a_decision_whose_answer_is_lost_is_said_to_be_uncertain(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = sink.write(sink.plan(is_stream=False), *ROWS)
    end = Transactions.end

    def end_unanswered(*arguments: Any, **more: Any) -> None:
        end(*arguments, **more)
        brokers_away()

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "end", end_unanswered)
        with pytest.raises(StepError, match="CommitUnfinishedError: Whether the write is decided"):
            sink.commit(messages, None)
    sink.plan(is_stream=False)
    assert seen(sink) == EACH_ROW_ONCE


def test_a_decision_whose_answer_is_lost_counts_though_another_leads_by_then(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = sink.write(sink.plan(is_stream=False), *ROWS)
    end = Transactions.end

    def end_twice(transactions: Transactions, producer: ProducerIdentity, commit: bool) -> None:
        end(transactions, producer, commit)
        transactions.begin(producer.transactional_id, 60_000)
        end(transactions, producer, commit)

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "end", end_twice)
        sink.commit(messages, None)
    assert seen(sink) == EACH_ROW_ONCE


def test_a_decision_whose_answer_is_lost_counts_though_another_has_decided_by_then(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = sink.write(sink.plan(is_stream=False), *ROWS)
    end = Transactions.end

    def end_twice(transactions: Transactions, producer: ProducerIdentity, commit: bool) -> None:
        end(transactions, producer, commit)
        monkeypatch.setattr(Transactions, "end", end)
        sink.run(None, [b"another's"])
        end(transactions, producer, commit)

    monkeypatch.setattr(Transactions, "end", end_twice)
    sink.commit(messages, None)
    assert seen(sink) == EACH_ROW_ONCE + Counter([b"another's"])


def unknown(*_: Any) -> None:
    """What `ended_by_commit` says of a batch that was compacted away."""


@pytest.mark.parametrize("look", [brokers_away, unknown])
def test_a_decision_that_cannot_be_looked_for_is_uncertain(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, look: Callable[..., None]
) -> None:
    messages = sink.write(sink.plan(is_stream=False), *ROWS)
    end = Transactions.end

    def end_fenced(transactions: Transactions, producer: ProducerIdentity, commit: bool) -> None:
        end(transactions, producer, commit)
        raise ProducerFencedError("another leads")

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "end", end_fenced)
        patch.setattr(decisions, "ended_by_commit", look)
        with pytest.raises(StepError, match="CommitUnfinishedError: Whether the write is decided"):
            sink.commit(messages, None)
    sink.plan(is_stream=False)
    assert seen(sink) == EACH_ROW_ONCE


@pytest.mark.parametrize("batch", [None, 0])
def test_a_decision_that_brokers_abort_is_told_as_such(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    messages = sink.write(sink.plan(is_stream=batch is not None), *ROWS)
    end = Transactions.end

    def end_late(transactions: Transactions, producer: ProducerIdentity, commit: bool) -> None:
        transactions.begin(producer.transactional_id, 60_000)
        end(transactions, producer, commit)

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "end", end_late)
        with pytest.raises(StepError, match=r"TransactionAbortedError: .*after 60000 ms, and when"):
            sink.commit(messages, batch)
    sink.abort(messages, batch)
    assert not seen(sink)
    sink.run(batch, *ROWS)
    assert seen(sink) == EACH_ROW_ONCE


def refuse_tasks(patch: pytest.MonkeyPatch, refused: KafkaError, times: int) -> None:
    """Ends of tasks' transactions, for so many requests: refused by their coordinator."""
    end_all = Transactions.end_all
    left = [refused] * times

    def end_or_refuse(
        transactions: Transactions, producers: Sequence[ProducerIdentity], commit: bool
    ) -> Any:
        if left and not producers[0].transactional_id.endswith("-driver"):
            left.pop()
            return dict.fromkeys(producers, refused)
        return end_all(transactions, producers, commit)

    patch.setattr(Transactions, "end_all", end_or_refuse)


DENIALS = [TransactionalIdAuthorizationFailedError("not now"), UnknownError("oh no")]


@pytest.mark.parametrize("refused", DENIALS)
def test_an_end_that_is_refused_for_another_reason_is_not_taken_for_an_end(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, refused: KafkaError
) -> None:
    messages = sink.write(sink.plan(is_stream=False), *ROWS)
    with monkeypatch.context() as patch:
        refuse_tasks(patch, refused, 1)
        with pytest.raises(StepError, match=r"CommitUnfinishedError: The write is decided"):
            sink.commit(messages, None)
    sink.run(None)
    assert seen(sink) == EACH_ROW_ONCE


@pytest.mark.parametrize("refused", DENIALS)
def test_what_is_decided_is_not_cleared_away_where_its_end_is_refused(
    sink: Sink,
    commit_cut_short: Callable[..., Decision],
    monkeypatch: pytest.MonkeyPatch,
    refused: KafkaError,
) -> None:
    messages = sink.write(sink.plan(is_stream=False), *ROWS)
    commit_cut_short(messages, None, [True, None, None])
    with monkeypatch.context() as patch:
        refuse_tasks(patch, refused, 1)
        with pytest.raises(StepError, match=r"TransactionError: .*(not now|oh no)"):
            sink.plan(is_stream=False)
    assert states(sink, messages)[1:] == [ONGOING] * 2
    sink.run(None)
    assert seen(sink) == EACH_ROW_ONCE


def test_decisions_that_a_broker_denies_for_a_moment_are_not_lost(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has just started knows no topic until its controller has told it."""
    sink.run(0, [b"0"])
    read = client_cluster._read_metadata

    def read_half(answer: Any) -> Any:
        metadata = read(answer)
        denied = decisions_topic(sink.prefix)
        if left and metadata.topics.pop(denied, []):
            left.pop()
            metadata.errors[denied] = UnknownTopicOrPartitionError
        return metadata

    monkeypatch.setattr(client_cluster, "_read_metadata", read_half)
    left = [None] * 3
    writer = sink.plan()
    messages = sink.write(writer, [b"1"])
    for step in (sink.commit, sink.abort):
        left = [None] * 3
        step(messages, 1)
        assert not left
    assert seen(sink) == Counter([b"0", b"1"])


@pytest.mark.parametrize("step", ["_send", "_resign", "_clear"])
def test_what_comes_after_the_last_end_fails_no_write(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = sink.write(sink.plan(is_stream=False), *ROWS)
    owner = DecisionLog if step == "_send" else TransactionalWrites
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, brokers_away)
        sink.commit(messages, None)
    assert "No broker could be used" in caplog.text
    sink.run(None, [b"next"])
    assert seen(sink) == EACH_ROW_ONCE + Counter([b"next"])


def test_an_abort_takes_the_right_to_commit(sink: Sink) -> None:
    messages = sink.write(sink.plan(), *ROWS)
    sink.abort([messages[0], None], 0)
    assert ONGOING not in states(sink, messages)
    with pytest.raises(StepError, match="PrefixInUseError"):
        sink.commit(messages, 0)
    assert not seen(sink)


def test_what_was_aborted_before_the_decision_is_told_and_nothing_is_decided(sink: Sink) -> None:
    messages = sink.write(sink.plan(), *ROWS)
    with Cluster(sink.options.client) as cluster:
        Transactions(cluster).end(messages[1].transaction.producer, commit=False)
    with pytest.raises(
        StepError, match=r"TransactionAbortedError: \S+-task-1-0-\d+ of 3 .*nothing of t"
    ):
        sink.commit(messages, 0)
    assert newest(sink) is None
    assert not seen(sink)


def test_a_task_that_fails_aborts_what_it_wrote(sink: Sink) -> None:
    writes = TransactionalWrites(sink.options.client, sink.prefix)
    lead = writes.take_lead("query-1")

    def fail(task: TaskWrite) -> NoReturn:
        assert task.written(0, "") is None  # nothing has begun
        (batch,) = batches_of([b"row"])
        producer = task.begin()
        producer.send(structs.TopicPartition(sink.topic, 0), batch)
        producer.flush()
        assert has_open_transactions(sink.servers, sink.topic)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), writes.task(lead, "query-1", 0, 0) as task:
        fail(task)
    assert not has_open_transactions(sink.servers, sink.topic)
    assert not seen(sink)


@pytest.mark.parametrize("error", [ProducerFencedError("fenced"), ZeroDivisionError()])
def test_a_task_that_fails_late_leaves_its_successors_transaction(
    sink: Sink, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have one transactional id where brokers do not tell that it is in use."""
    writes = TransactionalWrites(sink.options.client, sink.prefix)
    lead = writes.take_lead("query-1")
    monkeypatch.setattr(Transactions, "describe", before_kafka_3)

    def write(task: TaskWrite, value: bytes) -> None:
        (batch,) = batches_of([value])
        producer = task.begin()
        producer.send(structs.TopicPartition(sink.topic, 0), batch)
        producer.flush()

    successors: list[WrittenTransaction | None] = []

    def fail(late: TaskWrite) -> NoReturn:
        write(late, b"late")
        with writes.task(lead, "query-1", 0, 0) as task:
            write(task, b"row")
            successors.append(task.written(1, "digest"))
        raise error

    with (
        pytest.raises((TransactionAbortedError, ZeroDivisionError)),
        writes.task(lead, "query-1", 0, 0) as late,
    ):
        fail(late)
    (written,) = successors
    assert written is not None
    writes.commit(lead, "query-1", 1, [written])
    assert seen(sink) == {b"row": 1}


@pytest.mark.parametrize("counted", ["first", "second"])
@pytest.mark.parametrize("batch", [0, None], ids=["stream", "batch query"])
def test_tasks_whose_attempts_were_counted_anew_do_not_abort_each_other(
    sink: Sink, batch: int | None, counted: str
) -> None:
    """Of a stage that is submitted again, while a task of its first attempt ends well."""
    writer = sink.plan(is_stream=batch is not None)
    first, second = sink.write(writer, *ROWS), sink.write(writer, *ROWS)
    sink.commit(first if counted == "first" else second, batch)
    assert seen(sink) == EACH_ROW_ONCE
    assert not has_open_transactions(sink.servers, sink.topic)


def test_a_task_that_begins_late_leaves_what_its_twin_has_written(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still when it has seen that its id is free, while the twin, whose attempts were
    counted anew, takes that and is decided."""
    writes = TransactionalWrites(sink.options.client, sink.prefix)
    lead = writes.take_lead("query-1")
    begin_new, decide = Transactions.begin_new, DecisionLog.decide

    def write(value: bytes) -> WrittenTransaction:
        (batch,) = batches_of([value])
        with writes.task(lead, "query-1", 0, 0) as task:
            producer = task.begin()
            producer.send(structs.TopicPartition(sink.topic, 0), batch)
            producer.flush()
            written = task.written(1, "digest")
        assert written is not None
        return written

    def stand_still(transactions: Transactions, name: str, timeout_ms: int) -> ProducerIdentity:
        monkeypatch.undo()
        written = write(b"row")
        assert written.producer.transactional_id == name

        def decide_and_go_on(log: DecisionLog, *arguments: Any) -> Decision:
            monkeypatch.undo()
            decided = decide(log, *arguments)
            late.append(begin(transactions, name, timeout_ms))
            return decided

        monkeypatch.setattr(DecisionLog, "decide", decide_and_go_on)
        writes.commit(lead, "query-1", 1, [written])
        raise late[0]

    def begin(*arguments: Any) -> Any:
        with pytest.raises(FENCED) as raised:
            begin_new(*arguments)
        return raised.value

    late: list[Exception] = []
    monkeypatch.setattr(Transactions, "begin_new", stand_still)
    with pytest.raises(PrefixInUseError, match="its lead is over"):
        write(b"late")
    assert seen(sink) == {b"row": 1}
    assert not has_open_transactions(sink.servers, sink.topic)


def test_a_task_begins_where_brokers_know_no_conditions(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise ProducerFencedError("no such id")

    monkeypatch.setattr(Transactions, "begin_new", refuse)
    sink.run(1, *ROWS)
    assert seen(sink) == EACH_ROW_ONCE


@pytest.mark.parametrize("is_cause", [False, True])
def test_a_task_that_is_fenced_is_told_by_whom(sink: Sink, is_cause: bool) -> None:
    writes = TransactionalWrites(sink.options.client, sink.prefix)
    lead = writes.take_lead("query-1")
    fenced: Exception = ProducerFencedError("fenced")
    if is_cause:
        fenced.__cause__, fenced = None, DeliveryError("not delivered")
        fenced.__cause__ = ProducerFencedError("fenced")
    with (
        pytest.raises(TransactionAbortedError, match="was aborted while its task wrote"),
        writes.task(lead, "query-1", 0, 0),
    ):
        raise fenced
    writes.take_lead("query-1")
    with pytest.raises(PrefixInUseError, match="took over"), writes.task(lead, "query-1", 0, 0):
        raise fenced


def test_a_task_whose_transaction_was_ended_does_not_go_on_in_another_one(sink: Sink) -> None:
    """What it writes then would be taken for the whole, where its epoch is the newest still: who
    aborts a transaction before version 2 fences a moment later."""
    writes = TransactionalWrites(sink.options.client, sink.prefix)
    lead = writes.take_lead("query-1")

    def write_and_lose_a_half() -> None:
        with writes.task(lead, "query-1", 0, 0) as task:
            producer = task.begin()
            send(producer, b"first half")
            written = task.written(1, "digest")
            assert written is not None
            with Cluster(sink.options.client) as cluster:
                Transactions(cluster).end(written.producer, commit=False)
            wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the marker")
            send(producer, b"second half")

    def send(producer: Producer, value: bytes) -> None:
        producer.send(structs.TopicPartition(sink.topic, 0), *batches_of([value]))
        producer.flush()

    with pytest.raises(TransactionAbortedError, match="was aborted while its task wrote"):
        write_and_lose_a_half()
    assert not has_open_transactions(sink.servers, sink.topic)
    assert not seen(sink)


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (ProducerFencedError("x"), PrefixInUseError, "Another run .* took over"),
        (InvalidProducerEpochError("x"), PrefixInUseError, "Another run .* took over"),
        (InvalidProducerIdMappingError("x"), PrefixInUseError, "Another run .* took over"),
        (InvalidTransactionTimeoutError("x"), InvalidOptionError, "timeout.ms=900000 exceeds"),
        (TransactionalIdAuthorizationFailedError("x"), TransactionError, "begin with prefix-"),
        (TopicAuthorizationFailedError("x"), TransactionError, "__kafkalog-decisions-prefix"),
        (UnknownError("oh no"), TransactionError, "transactionalIdPrefix=prefix: .*oh no"),
    ],
)
def test_what_brokers_say_is_put_in_words(
    servers: str, error: KafkaError, expected: type[KafkalogError], words: str
) -> None:
    writes = TransactionalWrites(Sink(servers, "t", "prefix").options.client, "prefix")
    with pytest.raises(expected, match=words), writes._cluster():
        raise error
    is_fencing = expected is PrefixInUseError
    with pytest.raises(expected if is_fencing else DeliveryError), writes._cluster():
        raise DeliveryError("not delivered") from error


def test_a_timeout_that_brokers_refuse_is_named(sink: Sink) -> None:
    sink.more["kafka.transaction.timeout.ms"] = "999999999"
    with pytest.raises(
        StepError, match=r"InvalidOptionError: kafka\.transaction\.timeout\.ms=9999"
    ):
        sink.write(sink.plan(), [b"row"])


def test_transactions_that_time_out_are_aborted_by_the_brokers(sink: Sink) -> None:
    """The timeouts are those that were asked for: of tasks the option, of the lead a minute."""
    asked: dict[str, int] = {}
    begin = Transactions.begin

    def noted(transactions: Transactions, name: str, timeout_ms: int, *current: Any) -> Any:
        asked[name.removeprefix(sink.prefix)] = timeout_ms
        return begin(transactions, name, timeout_ms, *current)

    sink.more["kafka.transaction.timeout.ms"] = "123456"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transactions, "begin", noted)
        sink.run(0, [b"0"])
    assert asked == {"-driver": two_phase._LEAD_TIMEOUT_MS, "-task-0-0-0": 123456}
    assert two_phase._LEAD_TIMEOUT_MS == 60_000


def test_brokers_may_allow_shorter_transactions_than_a_minute(sink: Sink) -> None:
    with EmbeddedBroker(config={"transaction.max.timeout.ms": "20000"}) as broker:
        sink = replace(sink, servers=broker.bootstrap_servers)
        sink.more["kafka.transaction.timeout.ms"] = "20000"
        admin = AdminClient({"bootstrap.servers": sink.servers, "log_level": 0})
        admin.create_topics([NewTopic(sink.topic, 1, 1)])[sink.topic].result(30)
        sink.run(0, [b"0"])
        assert seen(sink) == Counter([b"0"])


def test_brokers_before_kafka_3_are_written_to_without_what_they_do_not_tell(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transactions, "describe", before_kafka_3)
    for batch in range(2):
        sink.run(batch, [b"%d" % batch])
    assert seen(sink) == Counter([b"0", b"1"])
