"""The two phases, step by step as Spark makes them, against an embedded broker and without Spark.

What kills and timeouts at random do to them is in `tests/crash`.
"""

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.cimpl import NewTopic

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.source import decisions
from pyspark_kafkalog.source.decisions import DecisionLog, decisions_topic
from tests.crash.sink_steps import Sink, StepError, plan_micro_batch, visible

OTHER_ROWS = "PrefixInUseError: Micro-batch 1 was committed with 2 records and is to be .* not the"
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


def seen(sink: Sink) -> Counter[bytes]:
    return visible(sink.servers, sink.topic)


def delete_decisions(sink: Sink, admin: AdminClient) -> None:
    name = decisions_topic(sink.prefix)
    admin.delete_topics([name])[name].result(30)


def create_decisions(sink: Sink, admin: AdminClient) -> None:
    name = decisions_topic(sink.prefix)
    topic = NewTopic(name, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])[name].result(30)


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
