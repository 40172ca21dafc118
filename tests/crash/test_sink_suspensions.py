"""A driver or task of the transactional sink stands still while another run of its prefix writes.

As a machine that is paused, or a process that swaps: A is stopped before one of its requests, B
plans, writes and decides, and at one moment of that A goes on. Whatever either is told, and
whatever it does then to clean up: of both each row is there once or none is, what was said to be
committed is there, what failed is not, and nothing holds readers back.
"""

import itertools
import os
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client.transaction import ProducerIdentity, Transactions
from pyspark_kafkalog.embedded_cluster import EmbeddedCluster
from pyspark_kafkalog.source.decisions import Decision, DecisionLog
from tests.crash.sink_steps import Sink, Step, StepError, has_open_transactions, visible
from tests.crash.step_faults import Stop
from tests.support.kafka_server import KafkaServer, require_kafka
from tests.support.patience import wait_until

pytestmark = pytest.mark.crash

STRIDE = 1 if int(os.environ.get("KAFKALOG_CRASH_KILLS", "4")) >= 20 else 5
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
# Requests of a write that find nobody end soon.
OPTIONS = {"kafka.request.timeout.ms": "6000", "kafka.delivery.timeout.ms": "8000"}
WELL = "ok"


@pytest.fixture(
    scope="module",
    params=[
        "kafkalog",
        # Before transactions of version 2: no end of a transaction fences.
        pytest.param("cluster", marks=pytest.mark.long),
        pytest.param("kafka", marks=pytest.mark.long),
    ],
)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "kafkalog":
        with EmbeddedBroker() as broker:
            yield broker.bootstrap_servers
    elif request.param == "cluster":
        with EmbeddedCluster(brokers=1) as cluster:
            yield cluster.bootstrap_servers
    else:
        require_kafka()
        with KafkaServer(tmp_path_factory.mktemp("kafka")) as kafka:
            yield kafka.bootstrap_servers


def told(step: Callable[[], Any]) -> tuple[Any, str]:
    """What a step gives, and what it says."""
    try:
        return step(), WELL
    except StepError as error:
        return None, str(error)


def rows_of(who: str) -> list[list[bytes]]:
    return [[b"%s%d-%d" % (who.encode(), task, row) for row in range(3)] for task in range(2)]


@dataclass
class Run:
    """One run of the sink from plan to commit, or to the abort that Spark asks for."""

    sink: Sink
    batch: int | None
    rows: list[list[bytes]]
    said: str = ""
    writer: bytes | None = None
    messages: list[Any] = field(default_factory=list)

    def plan(self) -> None:
        self.planned(*told(lambda: self.sink.plan(is_stream=self.batch is not None)))

    def planned(self, writer: bytes | None, said: str) -> None:
        self.writer, self.said = writer, said

    def write(self, attempt: int = 0) -> None:
        if self.said == WELL:
            writer = self.writer or b""
            messages, self.said = told(lambda: self.sink.write(writer, *self.rows, attempt=attempt))
            self.messages = messages or []

    def commit(self) -> None:
        if self.said == WELL:
            _, self.said = told(lambda: self.sink.commit(self.messages, self.batch))

    def abort_if_failed(self) -> None:
        if self.said != WELL and self.writer is not None:
            writer = None if self.batch is not None else self.writer
            told(lambda: self.sink.abort(self.messages or [None], self.batch, writer))


class Suspended:
    """A: the run that stands still before request `number` of one of its steps."""

    def __init__(self, run: Run, step: str, number: int) -> None:
        self._run, self._name = run, step
        sink, batch, stop = run.sink, run.batch, Stop(number)
        if step == "plan":
            self._step = Step(stop, "plan", sink.options, batch is not None)
        else:
            run.plan()
            if step == "task":
                self._step = Step(stop, "task", run.writer, sink.query, 0, 0, run.rows[0])
            else:
                run.write()
                writer, is_commit = None if batch is not None else run.writer, step == "commit"
                self._step = Step(stop, "end", sink.options, run.messages, batch, is_commit, writer)
        self.is_suspended = self._step.stands_still()
        self._has_gone_on = False
        if not self.is_suspended:
            told(self._step.result)

    def go_on(self) -> None:
        """To its end, once."""
        if self._has_gone_on:
            return
        self._has_gone_on = True
        self._step.go_on()
        run = self._run
        result, run.said = told(self._step.result)
        if self._name == "plan":
            run.writer = result
            run.write()
            run.commit()
        elif self._name == "task" and run.said == WELL:
            run.write(attempt=1)
            run.messages[:1] = [result]
            run.commit()
        elif self._name == "abort":
            run.said = "aborted"
            return
        run.abort_if_failed()


def b_writes(sink: Sink, batch: int | None, moment: str, go_on: Callable[[], None]) -> Run:
    """B's whole run, in which `go_on` is called at `moment`."""
    run = Run(sink, batch, rows_of("a" if batch is not None else "b"))
    run.plan()
    if moment == "planned":
        go_on()
    run.write()
    if moment == "written":
        go_on()
    decide, end_all = DecisionLog.decide, Transactions.end_all

    def decided(log: DecisionLog, *arguments: Any) -> Decision:
        decision = decide(log, *arguments)
        if moment == "decided":
            go_on()
        return decision

    def ended(transactions: Transactions, producers: list[ProducerIdentity], commit: bool) -> Any:
        some = list(producers)
        if moment == "deciding" and some and some[0].transactional_id.endswith("-driver"):
            go_on()
        return end_all(transactions, some, commit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecisionLog, "decide", decided)
        patch.setattr(Transactions, "end_all", ended)
        run.commit()
    run.abort_if_failed()
    go_on()
    return run


def assert_all_or_none(found: Counter[bytes], run: Run, history: object) -> None:
    counts = {found[row] for task in run.rows for row in task}
    assert counts in ({0}, {1}), history
    if run.said == WELL:
        assert counts == {1}, history
    elif not run.said.startswith("CommitUnfinishedError"):
        assert counts == {0}, history


def is_well(sink: Sink) -> bool:
    return told(lambda: sink.run(0, *rows_of("a")))[1] == WELL


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        "deciding",
        "decided",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("planned", "written", "done")),
    ],
)
@pytest.mark.parametrize(
    "step",
    [*(pytest.param(each, marks=pytest.mark.long) for each in ("plan", "task")), "commit", "abort"],
)
@pytest.mark.parametrize("kind", ["batch query", pytest.param("stream", marks=pytest.mark.long)])
def test_who_stood_still_ends_nothing_of_another_write(
    servers: str, kind: str, step: str, moment: str, request: pytest.FixtureRequest
) -> None:
    print(f"KAFKALOG_CRASH_SEED={SEED}")
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    batch = None if kind == "batch query" else 0
    an_end_fences = request.node.callspec.params["servers"] != "cluster"
    first = random.Random(f"{SEED} {step} {moment}").randrange(STRIDE) + 1
    for number in itertools.count(first, STRIDE):
        name = f"t-{uuid.uuid4().hex[:8]}"
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
        sink = Sink(servers, name, f"p-{name}", more=dict(OPTIONS))
        # What a killed run has left open, for A to clear away.
        sink.write(sink.plan(is_stream=batch is not None), [b"dead"], [b"dead"])
        a = Run(sink, batch, rows_of("a"))
        suspended = Suspended(a, step, number)
        if not suspended.is_suspended:
            assert number > first
            return
        b = b_writes(sink, batch, moment, suspended.go_on)
        history = (number, a.said, b.said)
        # Who planned before B may not even hinder it; but where no end fences, what is open when
        # A asks for its next epoch is aborted (Transactions.abort_and_fence), and B is told so.
        is_aborted = moment == "deciding" and b.said.startswith("TransactionAbortedError")
        may_hinder = step == "plan" or (is_aborted and not an_end_fences)
        assert may_hinder or b.said == WELL, history
        if batch is None:
            found = visible(servers, name)
            assert_all_or_none(found, a, history)
            assert_all_or_none(found, b, history)
            sink.run(None, [b"next"])
            assert visible(servers, name)[b"next"] == 1, history
        else:
            # Both are the same micro-batch: whatever they were told, it is run again until it is
            # well, and its rows are there once.
            wait_until(partial(is_well, sink), history)
            assert visible(servers, name) == Counter(itertools.chain(*rows_of("a"))), history
        assert not visible(servers, name)[b"dead"]
        assert not has_open_transactions(servers, name), history
