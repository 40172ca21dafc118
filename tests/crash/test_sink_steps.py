"""The transactional sink, killed and hindered at each step: read_committed sees each row once.

No Spark: the steps that Spark makes are made one by one (`sink_steps`). KAFKALOG_CRASH_KILLS of 20
or more (`make crash`) kills at every request, otherwise at every third.
"""

import itertools
import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import structs

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.transaction import ONGOING, Transactions
from pyspark_kafkalog.source.decisions import Decision, DecisionLog, decisions_topic
from tests.crash.sink_steps import (
    Sink,
    StepError,
    StepKilled,
    has_open_transactions,
    plan_micro_batch,
    visible,
)
from tests.crash.step_faults import Kill
from tests.support.kafka_server import KafkaServer, require_kafka
from tests.support.patience import wait_until

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "4"))
STRIDE = 1 if KILLS >= 20 else 3
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
PARTITIONS = 2
SHORT_TIMEOUT_MS = 500
# How soon a broker aborts what has timed out.
BROKER_CONFIG = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}

ROWS = [[b"%d-%d" % (task, row) for row in range(20)] for task in range(3)]
OTHER_CUT = [[*ROWS[0], *ROWS[1]], ROWS[2]]
END_TXN = 26
EACH_ROW_ONCE = Counter(itertools.chain(*ROWS))


@pytest.fixture(
    scope="module",
    params=[
        "kafkalog",
        pytest.param("kafka", marks=pytest.mark.long),
        pytest.param("kafka of older transactions", marks=pytest.mark.long),
    ],
)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Our broker, and Apache Kafka, as it is made today and where it was Kafka 3 before."""
    if request.param == "kafkalog":
        with EmbeddedBroker(config=BROKER_CONFIG) as broker:
            yield broker.bootstrap_servers
        return
    require_kafka()
    features = {} if request.param == "kafka" else {"transaction.version": 0}
    directory = tmp_path_factory.mktemp("kafka")
    with KafkaServer(directory, BROKER_CONFIG, features=features) as kafka:
        yield kafka.bootstrap_servers


@pytest.fixture
def sink(servers: str) -> Sink:
    """A sink with a topic and a prefix of its own."""
    name = new_topic(servers)
    return Sink(servers, name, f"p-{name}")


def new_topic(servers: str) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    return name


def seen(sink: Sink) -> Counter[bytes]:
    return visible(sink.servers, sink.topic)


def log_ends(sink: Sink) -> int:
    """The offsets that all partitions of the topic have taken together."""
    with Cluster(sink.options.client) as cluster:
        places = [structs.TopicPartition(sink.topic, number) for number in range(PARTITIONS)]
        return sum(found.offset for found in cluster.list_offsets(places, LATEST).values())


def await_timeouts(sink: Sink, messages: list[Any]) -> None:
    """Until the brokers have aborted every transaction of `messages` that was open."""
    names = [message.transaction.producer.transactional_id for message in messages]
    with Cluster(sink.options.client) as cluster:
        transactions = Transactions(cluster)
        wait_until(
            lambda: all(found.state != ONGOING for found in transactions.describe(names).values()),
            "the timeout of transactions",
        )
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")


def kill_commit(sink: Sink, messages: list[Any], batch: int | None, kill: Kill) -> bool:
    """Whether the commit died; it did not where it sends fewer requests."""
    try:
        sink.commit(messages, batch, kill)
    except StepKilled:
        return True
    return False


def open_transactions(sink: Sink, messages: list[Any]) -> int:
    names = [message.transaction.producer.transactional_id for message in messages]
    with Cluster(sink.options.client) as cluster:
        found = Transactions(cluster).describe(names)
    return sum(each.state == ONGOING for each in found.values())


def kill_commit_with(sink: Sink, messages: list[Any], batch: int | None, ended: int) -> None:
    """Kills a commit when its decision is recorded and `ended` transactions are committed."""
    with pytest.raises(StepKilled):
        sink.commit(messages, batch, Kill(ended + 2, api_key=END_TXN))
    wait_until(
        lambda: open_transactions(sink, messages) <= len(messages) - ended,
        "the end of these transactions",
    )


def decide_and_time_out(sink: Sink, ended: int) -> None:
    """ROWS as batch 0, killed when its decision is recorded and `ended` transactions are committed;
    brokers abort the others. A machine that was too busy to do so in time has more of it next."""
    for times in (1, 5, 25, 125):
        sink.more["kafka.transaction.timeout.ms"] = str(times * SHORT_TIMEOUT_MS)
        messages = sink.write(sink.plan(), *ROWS)
        try:
            kill_commit_with(sink, messages, 0, ended)
        except StepError as error:
            if "were aborted before the write was decided" not in str(error):
                raise
        else:
            await_timeouts(sink, messages)
            if seen(sink) == Counter(itertools.chain(*ROWS[:ended])):
                del sink.more["kafka.transaction.timeout.ms"]
                return
            # Decided in time, but some were not ended so.
            sink.topic = new_topic(sink.servers)
            sink.prefix = f"p-{sink.topic}"
    pytest.fail("No decision was made and carried out in time.")


def test_rows_are_seen_when_they_are_committed_and_not_before(sink: Sink) -> None:
    for batch in range(3):
        rows = [[b"%d-%d" % (batch, task)] for task in range(2)]
        messages = sink.write(sink.plan(), *rows)
        assert not any(value.startswith(b"%d-" % batch) for value in seen(sink))
        sink.commit(messages, batch)
        wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
        assert all(seen(sink)[row] == 1 for task in rows for row in task)
    assert len(seen(sink)) == 6


def test_tasks_without_rows_write_nothing(sink: Sink) -> None:
    messages = sink.write(sink.plan(), [], [b"row"], [])
    assert [message.transaction is None for message in messages] == [True, False, True]
    sink.commit(messages, 0)
    sink.run(1, [], [])
    wait_until(lambda: seen(sink) == Counter([b"row"]), "the row")


@pytest.mark.parametrize("after_sending", [False, True])
@pytest.mark.parametrize("step", ["plan", "commit"])
def test_killed_at_every_request_and_run_again(sink: Sink, step: str, after_sending: bool) -> None:
    """The run that follows is the same micro-batch with the same rows, as Spark replays it."""
    expected: Counter[bytes] = Counter()
    died = True
    batch = 0
    number = random.Random(SEED).randrange(STRIDE) + 1 - STRIDE
    while died:
        rows = [[b"%d-%s" % (batch, row) for row in task[:2]] for task in ROWS]
        number += STRIDE
        kill = Kill(number, after_sending)
        if step == "plan":
            # What it finds is the hardest to go on from: a decision of which no end is known.
            kill_commit_with(sink, sink.write(sink.plan(), *rows), batch, ended=1)
            try:
                sink.plan(kill)
                died = False
            except StepKilled:
                pass
        else:
            died = kill_commit(sink, sink.write(sink.plan(), *rows), batch, kill)
        sink.run(batch, *rows)
        expected.update(itertools.chain(*rows))
        batch += 1
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == expected
    assert number > 10


@pytest.mark.parametrize("ended", [0, 1, 2])
@pytest.mark.parametrize("again", [ROWS, OTHER_CUT], ids=["same tasks", "other tasks"])
def test_a_decision_outlives_its_driver(
    sink: Sink, tmp_path: Path, ended: int, again: list[list[bytes]]
) -> None:
    if again is OTHER_CUT:
        plan_micro_batch(tmp_path, 0)
        sink.more["checkpointLocation"] = str(tmp_path)
    kill_commit_with(sink, sink.write(sink.plan(), *ROWS), 0, ended)
    writer = sink.plan()
    wait_until(lambda: seen(sink) == EACH_ROW_ONCE, "the end of what was decided")
    sink.commit(sink.write(writer, *again), 0)
    sink.run(1, [b"next"])
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == EACH_ROW_ONCE + Counter([b"next"])


@pytest.mark.slow
@pytest.mark.parametrize("again", [ROWS, OTHER_CUT], ids=["same tasks", "other tasks"])
def test_decided_transactions_that_all_timed_out_are_written_again(
    sink: Sink, again: list[list[bytes]]
) -> None:
    decide_and_time_out(sink, ended=0)
    assert not seen(sink)
    sink.run(0, *again)
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == EACH_ROW_ONCE


@pytest.mark.parametrize("ended", [1, 2])
def test_only_what_timed_out_after_the_decision_is_written_again(sink: Sink, ended: int) -> None:
    decide_and_time_out(sink, ended)
    assert seen(sink) == Counter(itertools.chain(*ROWS[:ended]))
    # Killed in the middle of this, too, when it has asked for the end of the three once more,
    # aborted what is there already, and decided.
    again = sink.write(sink.plan(), *reversed(ROWS))
    with pytest.raises(StepKilled):
        sink.commit(again, 0, Kill(3 + ended + 2, api_key=END_TXN))
    sink.run(0, *ROWS)
    sink.run(1, [b"next"])
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == EACH_ROW_ONCE + Counter([b"next"])


def test_a_half_committed_batch_with_other_tasks_is_refused(sink: Sink) -> None:
    decide_and_time_out(sink, ended=1)
    for _ in range(2):
        again = sink.write(sink.plan(), *OTHER_CUT)
        with pytest.raises(
            StepError, match=r"PartlyCommittedError: Micro-batch 0 .* committed in"
        ) as e:
            sink.commit(again, 0)
        assert f"1 transactions are committed (20 records, {sink.prefix}-task-0-0-" in str(e.value)
        assert "2 transactions are aborted (40 records" in str(e.value)
        sink.abort(again, 0)
        assert not has_open_transactions(sink.servers, sink.topic)
        assert seen(sink) == Counter(ROWS[0])


def test_what_cannot_be_known_is_refused(sink: Sink) -> None:
    decide_and_time_out(sink, ended=0)
    admin = AdminClient({"bootstrap.servers": sink.servers, "log_level": 0})
    everything = [TopicPartition(sink.topic, partition, -1) for partition in range(PARTITIONS)]
    for future in admin.delete_records(everything).values():
        future.result(30)
    again = sink.write(sink.plan(), *ROWS)
    with pytest.raises(StepError, match=r"PartlyCommittedError: .* 3 transactions are not known"):
        sink.commit(again, 0)
    assert not seen(sink)


def test_transactions_that_timed_out_before_the_decision_stop_it(sink: Sink) -> None:
    sink.more["kafka.transaction.timeout.ms"] = str(SHORT_TIMEOUT_MS)
    messages = sink.write(sink.plan(), *ROWS)
    await_timeouts(sink, messages)
    with pytest.raises(StepError, match=r"TransactionAbortedError: .* nothing of them is visible"):
        sink.commit(messages, 0)
    assert not seen(sink)
    del sink.more["kafka.transaction.timeout.ms"]
    sink.run(0, *OTHER_CUT)
    wait_until(lambda: seen(sink) == EACH_ROW_ONCE, "the rows")


def test_a_transaction_timeout_that_brokers_refuse_is_named(sink: Sink) -> None:
    sink.more["kafka.transaction.timeout.ms"] = "999999999"
    with pytest.raises(
        StepError, match=r"InvalidOptionError: kafka.transaction.timeout.ms=99999999"
    ):
        sink.write(sink.plan(), [b"row"])


def test_a_replay_with_fewer_tasks_leaves_no_transaction_open(sink: Sink) -> None:
    sink.write(sink.plan(), *ROWS)
    assert has_open_transactions(sink.servers, sink.topic)
    sink.run(0, list(itertools.chain(*ROWS)))
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == EACH_ROW_ONCE


def test_a_twin_that_was_slower_is_not_seen(sink: Sink) -> None:
    writer = sink.plan()
    first = sink.write(writer, *ROWS)
    second = sink.write(writer, ROWS[0], attempt=1)
    sink.commit([*second, *first[1:]], 0)
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the twin's end")
    assert seen(sink) == EACH_ROW_ONCE


def test_a_task_that_fails_leaves_nothing(sink: Sink) -> None:
    writer = sink.plan()
    large = bytes(2_000_000)
    with pytest.raises(StepError, match=r"MessageTooLargeError"):
        sink.write(writer, [*ROWS[0], large])
    assert not has_open_transactions(sink.servers, sink.topic)
    sink.commit(sink.write(writer, ROWS[0], attempt=1), 0)
    wait_until(lambda: seen(sink) == Counter(ROWS[0]), "the rows")


def test_an_aborted_write_is_not_seen(sink: Sink) -> None:
    messages = sink.write(sink.plan(), *ROWS)
    sink.abort([messages[0], None, None], 0)
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    sink.run(0, *OTHER_CUT)
    wait_until(lambda: seen(sink) == EACH_ROW_ONCE, "the rows")


def test_an_abort_leaves_what_is_decided(sink: Sink) -> None:
    messages = sink.write(sink.plan(), *ROWS)
    kill_commit_with(sink, messages, 0, ended=1)
    sink.abort(messages, 0)
    wait_until(lambda: seen(sink) == EACH_ROW_ONCE, "the end of what was decided")


def test_a_commit_may_be_repeated(sink: Sink) -> None:
    messages = sink.write(sink.plan(), *ROWS)
    for _ in range(2):
        sink.commit(messages, 0)
    wait_until(lambda: seen(sink) == EACH_ROW_ONCE, "the rows")


def test_a_prefix_belongs_to_one_query(sink: Sink) -> None:
    sink.run(0, *ROWS)
    other = Sink(sink.servers, sink.topic, sink.prefix, "query-2")
    mine = sink.write(sink.plan(), [b"mine"])
    with pytest.raises(
        StepError, match=r"PrefixInUseError: .* belongs to the streaming query query-1"
    ):
        other.write(other.plan(), [b"theirs"])
    with pytest.raises(StepError, match=r"PrefixInUseError: Another run .* took over"):
        sink.commit(mine, 1)
    sink.run(1, [b"mine"])
    wait_until(lambda: seen(sink) == EACH_ROW_ONCE + Counter([b"mine"]), "the rows")


def test_a_query_whose_checkpoint_is_at_hand_does_not_disturb_the_owner(
    sink: Sink, tmp_path: Path
) -> None:
    sink.run(0, *ROWS)
    mine = sink.write(sink.plan(), [b"mine"])
    (tmp_path / "metadata").write_text('{"id":"query-2"}')
    other = Sink(sink.servers, sink.topic, sink.prefix, "query-2")
    other.more["checkpointLocation"] = f"file:{tmp_path}"
    with pytest.raises(
        StepError, match=r"PrefixInUseError: .* belongs to the streaming query query-1"
    ):
        other.plan()
    with pytest.raises(
        StepError, match=r"belongs to the streaming query query-1, and this is batch"
    ):
        other.plan(is_stream=False)
    sink.commit(mine, 1)
    wait_until(lambda: seen(sink) == EACH_ROW_ONCE + Counter([b"mine"]), "the rows")


def test_a_prefix_that_begins_another_disturbs_nobody(sink: Sink) -> None:
    others = [
        Sink(sink.servers, sink.topic, sink.prefix + more, f"query{more}")
        for more in ("-1", "-task-0-0", "-driver", ".")
    ]
    messages = [other.write(other.plan(), [other.query.encode()]) for other in others]
    sink.run(0, *ROWS)
    for other, written in zip(others, messages, strict=True):
        other.commit(written, 0)
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == EACH_ROW_ONCE + Counter(other.query.encode() for other in others)


def test_a_driver_that_was_replaced_decides_nothing(sink: Sink) -> None:
    old = sink.write(sink.plan(), *ROWS)
    new = sink.write(sink.plan(), *OTHER_CUT)
    with pytest.raises(StepError, match=r"PrefixInUseError: Another run .* took over"):
        sink.commit(old, 0)
    sink.abort(old, 0)
    sink.commit(new, 0)
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == EACH_ROW_ONCE


def test_an_old_checkpoint_is_refused(sink: Sink) -> None:
    sink.run(4, [b"four"])
    messages = sink.write(sink.plan(), [b"three"])
    with pytest.raises(StepError, match=r"PrefixInUseError: Micro-batch 3 .* but 4 was before"):
        sink.commit(messages, 3)
    wait_until(lambda: seen(sink) == Counter([b"four"]), "the rows")


def test_batch_queries_are_seen_as_a_whole(sink: Sink) -> None:
    sink.run(None, *ROWS)
    messages = sink.write(sink.plan(is_stream=False), [b"a"], [b"b"])
    assert seen(sink) == EACH_ROW_ONCE
    kill_commit_with(sink, messages, None, ended=1)
    # The next write finishes it first.
    sink.run(None, [b"c"])
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == EACH_ROW_ONCE + Counter([b"a", b"b", b"c"])


def test_a_batch_query_that_is_aborted_is_not_seen(sink: Sink) -> None:
    sink.abort(sink.write(sink.plan(is_stream=False), *ROWS), None)
    sink.run(None, [b"a"])
    wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the markers")
    assert seen(sink) == Counter([b"a"])


def test_the_newest_decision_is_found_however_far_from_the_end(sink: Sink) -> None:
    with Cluster(sink.options.client) as cluster:
        log = DecisionLog(cluster, sink.prefix)
        log.create()
        assert log.newest() is None
        transactions = Transactions(cluster)
        leader = transactions.begin(f"{sink.prefix}-driver", 60_000)
        decided = log.decide(Decision("query", 7, (), 0, ("digest",)), transactions, leader)
        for number in range(150):
            log.mark_done(replace(decided, id=str(number)))
        assert log.newest() == decided
        log.mark_done(decided)
        assert log.newest() == replace(decided, is_done=True)


def test_a_batch_that_was_committed_with_other_rows_is_refused(sink: Sink) -> None:
    sink.run(0, [b"a"])
    sink.run(1, [b"b"])
    with pytest.raises(StepError, match="PrefixInUseError: Micro-batch 1 was committed with 1 rec"):
        sink.run(1, [b"b", b"c"])
    assert seen(sink) == Counter([b"a", b"b"])


def test_a_write_of_which_no_task_told_anything_leaves_nothing_open(sink: Sink) -> None:
    writer = sink.plan(is_stream=False)
    sink.write(writer, [b"x"])
    assert has_open_transactions(sink.servers, sink.topic)
    sink.abort([None], None, writer)
    assert not has_open_transactions(sink.servers, sink.topic)
    assert not seen(sink)


def test_a_task_that_begins_when_its_write_is_committed_is_refused(sink: Sink) -> None:
    writer = sink.plan(is_stream=False)
    sink.commit(sink.write(writer, [b"1"]), None)
    with pytest.raises(StepError, match="PrefixInUseError"):
        sink.write(writer, [b"1"], attempt=1)
    assert not has_open_transactions(sink.servers, sink.topic)
    assert seen(sink) == Counter([b"1"])


def test_a_task_slower_than_its_timeout_is_told_so(sink: Sink) -> None:
    slow = replace(sink, more={"kafka.transaction.timeout.ms": str(SHORT_TIMEOUT_MS)})

    def rows() -> Iterator[bytes]:
        # More than a few batches, so that some are sent before the second half.
        yield from [b"x" * 1000] * 8000
        wait_until(lambda: log_ends(sink) > 0, "the first half")
        wait_until(lambda: not has_open_transactions(sink.servers, sink.topic), "the timeout")
        yield from [b"y" * 1000] * 3000

    with pytest.raises(StepError, match=r"TransactionAbortedError: The transaction .*timeout\.ms"):
        slow.write_slowly(slow.plan(), rows())


def test_a_topic_of_decisions_that_would_forget_them_is_refused(sink: Sink) -> None:
    name = decisions_topic(sink.prefix)
    admin = AdminClient({"bootstrap.servers": sink.servers, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    with pytest.raises(StepError, match=r"TransactionError: .* has cleanup\.policy=delete"):
        sink.run(0, [b"a"])
