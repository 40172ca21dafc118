"""The exactly-once sink in the hands of its user: whatever happens, each row is seen once, or a
typed error says that it cannot be, and only where that is so.

Histories at random of a query from topic to topic (`streaming_query`, on a real broker): records,
in transactions or not, limits and tasks that change, partitions that are added, kills of driver,
tasks and broker at the worst moments, transactions that the brokers abort, a target that is
compacted, checkpoints that are lost or come back from an older copy, decisions that are deleted.
What must be seen after a micro-batch: what was seen when the prefix was new, and each committed row
of the source from there to the micro-batch's end.
"""

import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from kafka.structs import TopicPartition

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.client.transaction import ProducerIdentity, Transactions
from pyspark_kafkalog.errors import (
    DecisionsLostError,
    KafkalogError,
    PartlyCommittedError,
    PrefixInUseError,
    TransactionAbortedError,
)
from pyspark_kafkalog.source.decisions import Decision, DecisionLog, decisions_topic
from pyspark_kafkalog.source.offsets import JsonOffsets
from tests.crash.sink_steps import has_open_transactions, visible
from tests.crash.test_sink_crash import OurBroker
from tests.property.streaming_query import Killed, MicroBatch, StreamingQuery
from tests.pyspark_kafkalog.client.conftest import batches_of
from tests.support.patience import wait_until

# An example takes seconds: 5 in CI, 2,000 in an hour and a half of `make property`.
EXAMPLES = max(settings().max_examples // 10, 1) if settings().max_examples > 1000 else 5
TIMEOUT_MS = 900_000
WAIT_S = 30
MOST_PARTITIONS = 4
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.ms": "1",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}


class _Broker:
    """The one of all examples, started with the first."""

    running: OurBroker | None = None


@pytest.fixture(scope="module", autouse=True)
def broker() -> Iterator[None]:
    directory = Path(tempfile.mkdtemp())
    _Broker.running = OurBroker(directory, {"log.cleaner.backoff.ms": "20"})
    yield
    _Broker.running.stop()
    shutil.rmtree(directory)


@dataclass
class Row:
    """A record of the source; `transaction` is None for one without."""

    value: bytes
    offset: int
    transaction: str | None


@dataclass
class Decided:
    """The newest decision with a prefix, as far as one knows from outside."""

    batch: MicroBatch
    has_been_hurt: bool = False
    """Whether brokers have aborted transactions of it, or of those before that it completes."""
    is_void: bool = False
    """Whether they have aborted all, and it completes none."""


steps = st.sampled_from(
    ["well"] * 6
    + ["killed before the commit", "killed after the decision", "killed after the commit"]
    + ["aborted before the commit"]
)
limits = st.sampled_from([2, 3, 4, 6, 1000])
cuts = st.sampled_from([None, None, None, 3])
ends = st.lists(st.sampled_from([True, None, False]), min_size=8, max_size=8)


class SinkMachine(RuleBasedStateMachine):
    """A rule that cannot be followed does nothing. As a precondition it would make histories depend
    on what brokers do in time, and Hypothesis gives those up."""

    def __init__(self) -> None:
        super().__init__()
        assert _Broker.running is not None
        self.servers = _Broker.running.bootstrap_servers
        self.name = uuid.uuid4().hex[:12]
        self.directory = Path(tempfile.mkdtemp())
        self.rows: dict[int, list[Row]] = {0: [], 1: []}
        self.outcomes: dict[str, bool] = {}
        self.open: dict[str, ProducerIdentity] = {}
        self.values = 0
        self.target_partitions = 2
        self.copies: list[Path] = []
        self.newest_copy: Path | None = None
        self.decided: Decided | None = None
        self.ran: MicroBatch | None = None
        self.is_lost = False
        self.was_used = False
        self.seen_before: Counter[bytes] = Counter()
        self.begins_at: JsonOffsets = {}
        self.query = StreamingQuery(
            self.servers, f"s-{self.name}", f"t-{self.name}", f"p-{self.name}-0",
            self.directory / "checkpoint",
        )  # fmt: skip

    @initialize(is_compacted=st.booleans())
    def create(self, is_compacted: bool) -> None:
        with self.cluster() as cluster:
            admin.create_topic(cluster, self.query.source, 2)
            configs = COMPACTED if is_compacted else None
            admin.create_topic(cluster, self.query.target, 2, configs=configs)

    def cluster(self) -> Cluster:
        given = {"bootstrap.servers": self.servers, "isolation.level": "read_uncommitted"}
        return Cluster(ClientConfig.from_options(given))

    # The source.

    @rule(
        partition=st.integers(0, MOST_PARTITIONS - 1),
        count=st.integers(1, 6),
        how=st.sampled_from(["plain", "plain", "committed", "aborted", "left open"]),
    )
    def produce(self, partition: int, count: int, how: str) -> None:
        partition %= len(self.rows)
        values = [b"%d" % (self.values + each) for each in range(count)]
        self.values += count
        with self.cluster() as cluster:
            transactions, name = Transactions(cluster), None
            transaction: tuple[Transactions, ProducerIdentity] | None = None
            if how != "plain":
                name = f"source-{self.name}-{self.values}"
                self.open[name] = transactions.begin(name, TIMEOUT_MS)
                transaction = transactions, self.open[name]
            topic_partition = TopicPartition(self.query.source, partition)
            with Producer(cluster, transaction) as producer:
                for batch in batches_of(values):
                    producer.send(topic_partition, batch)
                producer.flush()
                assert producer.last_written is not None
                first = producer.last_written[1]
        self.rows[partition] += [
            Row(value, first + number, name) for number, value in enumerate(values)
        ]
        if name is not None and how != "left open":
            self.end(name, how == "committed")

    @rule(commit=st.booleans())
    def end_oldest(self, commit: bool) -> None:
        if self.open:
            self.end(next(iter(self.open)), commit)

    def end(self, name: str, commit: bool) -> None:
        with self.cluster() as cluster:
            Transactions(cluster).end(self.open.pop(name), commit)
        self.outcomes[name] = commit

    @rule(is_source=st.booleans())
    def add_partition(self, is_source: bool) -> None:
        topic = self.query.source if is_source else self.query.target
        total = 1 + (len(self.rows) if is_source else self.target_partitions)
        if total > MOST_PARTITIONS:
            return
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        client.create_partitions([NewPartitions(topic, total)])[topic].result(30)
        if is_source:
            self.rows[total - 1] = []
        else:
            self.target_partitions = total

    # What a user, and the world, do to the query.

    @rule()
    def copy_checkpoint(self) -> None:
        if self.query.checkpoint.exists() and self.newest_copy is None:
            self.copies.append(self.directory / f"copy-{len(self.copies)}")
            shutil.copytree(self.query.checkpoint, self.copies[-1])

    @rule(back=st.integers(0, 2))
    def restore_copy(self, back: int) -> None:
        if self.copies:
            self.put_checkpoint(self.copies[-1 - back % len(self.copies)])

    @rule(is_likely=st.integers(0, 3))
    def lose_checkpoint(self, is_likely: int) -> None:
        if self.decided and not is_likely:
            self.put_checkpoint(None)

    def put_checkpoint(self, copy: Path | None) -> None:
        checkpoint = self.query.checkpoint
        if checkpoint.exists():
            # It may come back, too: a copy and what it was taken of are both at work.
            kept = self.directory / f"newest-{uuid.uuid4().hex}"
            checkpoint.rename(kept)
            self.copies.append(kept)
            self.newest_copy = self.newest_copy or kept
        if copy is not None:
            shutil.copytree(copy, checkpoint)
        if self.decided is None:
            # Nothing is written with the prefix: it begins wherever its query does.
            self.begins_at = self.query.next_start()

    @rule(is_likely=st.integers(0, 3), is_created_again=st.booleans())
    def delete_decisions(self, is_likely: int, is_created_again: bool) -> None:
        if is_likely or self.is_lost or not self.was_used:
            return
        topic = decisions_topic(self.query.prefix)
        with self.cluster() as cluster:
            admin.delete_topics(cluster, [topic])
            if is_created_again:
                admin.create_topic(cluster, topic, 1, configs={"cleanup.policy": "compact"})
        self.is_lost = True

    @rule(is_likely=st.integers(0, 5))
    def kill_broker(self, is_likely: int) -> None:
        if not is_likely:
            assert _Broker.running is not None
            _Broker.running.kill()
            _Broker.running.start()

    # Micro-batches.

    @rule(limit=limits, cut=cuts, step=steps, ends=ends, twins=st.integers(0, 1))
    def run(
        self, limit: int, cut: int | None, step: str, ends: list[bool | None], twins: int
    ) -> None:
        self.micro_batch(limit, cut, step, ends, twins)

    @rule(limit=limits)
    def run_well(self, limit: int) -> None:
        self.micro_batch(limit)

    @rule(
        limit=st.sampled_from([4, 6]),
        partition=st.integers(0, 1),
        count=st.sampled_from([1, 4, 8]),
        later_limit=st.sampled_from([None, None, 2]),
    )
    def restore_a_copy_of_before(
        self, limit: int, partition: int, count: int, later_limit: int | None
    ) -> None:
        """The copy was taken just before a micro-batch, and more records came after that."""
        for each in (0, 1):
            self.produce(each, 4, "plain")
        self.copy_checkpoint()
        if self.copies:
            copy = self.copies[-1]
            self.micro_batch(limit)
            self.produce(partition, count, "plain")
            self.put_checkpoint(copy)
            self.micro_batch(later_limit or limit)

    def micro_batch(
        self,
        limit: int,
        cut: int | None = None,
        step: str = "well",
        ends: list[bool | None] | None = None,
        twins: int = 0,
    ) -> None:
        """One, and what follows from it: a look at what is seen, or the user's way on."""
        decided_before = self.decided
        self.ran = None

        def before_commit(batch: MicroBatch) -> None:
            self.ran, self.was_used = batch, True
            if step == "killed before the commit":
                raise Killed
            if step == "aborted before the commit":
                self.time_out([each.transaction for each in batch.messages if each.transaction][:1])

        def after_commit(batch: MicroBatch) -> None:
            if step == "killed after the commit":
                raise Killed

        try:
            with self.noting_decisions(ends if step == "killed after the decision" else None):
                batch = self.query.micro_batch(limit, cut, twins, before_commit, after_commit)
        except Killed:
            return
        except KafkalogError as error:
            self.check_due(error, decided_before, step)
            self.go_on_after(error)
            return
        if batch is not None:
            self.check_is_the_same(decided_before, batch)
            self.newest_copy = None
            self.check_seen(batch.end)

    @contextmanager
    def noting_decisions(self, ends: list[bool | None] | None) -> Iterator[None]:
        """With `ends` the driver is killed after its decision, and the brokers do with the decided
        transactions what these say: commit, abort or nothing."""
        decide = DecisionLog.decide

        def noted(
            log: DecisionLog, decision: Decision, transactions: Transactions, leader: Any
        ) -> Decision:
            decided = decide(log, decision, transactions, leader)
            assert self.ran is not None
            self.decided = Decided(self.ran, bool(decision.settled))
            if ends is not None:
                self.end_some(decided, transactions, ends)
                raise Killed
            return decided

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DecisionLog, "decide", noted)
            yield

    def end_some(
        self, decision: Decision, transactions: Transactions, ends: list[bool | None]
    ) -> None:
        assert self.decided is not None
        chosen = [ends[number % len(ends)] for number in range(len(decision.transactions))]
        for transaction, end in zip(decision.transactions, chosen, strict=True):
            if end:
                transactions.end(transaction.producer, commit=True)
            elif end is False:
                self.time_out([transaction])
        if False in chosen:
            self.decided.has_been_hurt = True
            self.decided.is_void = not decision.settled and set(chosen) == {False}

    def time_out(self, written: list[Any]) -> None:
        """What brokers do after a timeout: a new epoch, and an abort with it."""
        with self.cluster() as cluster:
            for transaction in written:
                Transactions(cluster).begin(transaction.producer.transactional_id, TIMEOUT_MS)

    # What must be.

    def check_due(
        self,
        error: KafkalogError,
        decided: Decided | None,
        step: str,
    ) -> None:
        batch = self.ran
        if isinstance(error, DecisionsLostError):
            assert self.is_lost, error
        elif isinstance(error, PrefixInUseError):
            is_other_query = batch is None and self.newest_copy is not None
            assert is_other_query or self.may_be_refused(decided, batch), error
        elif isinstance(error, PartlyCommittedError):
            assert decided is not None, error
            assert decided.has_been_hurt, error
        else:
            assert isinstance(error, TransactionAbortedError), error
            assert step == "aborted before the commit", error

    def may_be_refused(self, decided: Decided | None, batch: MicroBatch | None) -> bool:
        if decided is None or batch is None:
            return False
        if batch.number > decided.batch.number:
            return self.goes_on_elsewhere(decided.batch, batch)
        is_same = (batch.start, batch.end) == (decided.batch.start, decided.batch.end)
        return batch.number < decided.batch.number or not is_same

    def goes_on_elsewhere(self, decided: MicroBatch, batch: MicroBatch) -> bool:
        """Whether the decided one is not that of its number in the checkpoint."""
        ends = self.query.end_of(decided.number)
        return ends[self.query.source] != decided.end[self.query.source]

    def check_is_the_same(self, decided: Decided | None, batch: MicroBatch) -> None:
        if decided is not None and self.may_be_refused(decided, batch) and not decided.is_void:
            rows = [
                Counter(row for task in each.tasks for row in task)
                for each in (batch, decided.batch)
            ]
            assert rows[0] == rows[1], "another micro-batch was taken for the committed one"

    def check_seen(self, end: JsonOffsets) -> None:
        self.await_markers()
        expected = self.seen_before + Counter(self.rows_between(self.begins_at, end))
        found = visible(self.servers, self.query.target)
        assert found == expected, (found - expected, expected - found)

    def rows_between(self, start: JsonOffsets, end: JsonOffsets) -> Iterator[bytes]:
        starts = start.get(self.query.source, {})
        for partition, until in end.get(self.query.source, {}).items():
            for row in self.rows[int(partition)]:
                is_read = starts.get(partition, 0) <= row.offset < until
                if is_read and (row.transaction is None or self.outcomes[row.transaction]):
                    yield row.value

    def await_markers(self) -> None:
        wait_until(
            lambda: not has_open_transactions(self.servers, self.query.target),
            "the end of all transactions",
            WAIT_S,
        )

    # The ways on that errors name.

    def go_on_after(self, error: KafkalogError) -> None:
        if isinstance(error, TransactionAbortedError):
            return
        if isinstance(error, PrefixInUseError) and self.newest_copy is not None and self.values % 2:
            copy, self.newest_copy = self.newest_copy, None
            shutil.rmtree(self.query.checkpoint, ignore_errors=True)
            shutil.copytree(copy, self.query.checkpoint)
            return
        with self.cluster() as cluster:  # in time
            transactions = Transactions(cluster)
            for name in transactions.ongoing(f"{self.query.prefix}-task-.*"):
                transactions.begin(name, TIMEOUT_MS)
        self.await_markers()
        self.seen_before = visible(self.servers, self.query.target)
        self.begins_at = self.query.next_start()
        number = int(self.query.prefix.rpartition("-")[2]) + 1
        self.query.prefix = f"p-{self.name}-{number}"
        self.decided, self.is_lost, self.was_used, self.newest_copy = None, False, False, None

    def teardown(self) -> None:
        try:
            for name in list(self.open):
                self.end(name, commit=False)
            with self.cluster() as cluster:
                topic_partitions = [
                    TopicPartition(self.query.source, number) for number in self.rows
                ]
                found = cluster.list_offsets(topic_partitions, LATEST)
            end = {str(each.partition): where.offset for each, where in found.items()}
            for _ in range(50):
                if self.query.next_start().get(self.query.source) == end:
                    break
                self.micro_batch(1000)
            self.check_seen({self.query.source: end})
            self.delete_topics()
        finally:
            shutil.rmtree(self.directory)

    def delete_topics(self) -> None:
        """Each log holds files open: those of a thousand histories are more than there may be."""
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        mine = [name for name in client.list_topics(timeout=60).topics if self.name in name]
        for deleted in client.delete_topics(mine).values():
            deleted.result()


TestSink = SinkMachine.TestCase
TestSink.settings = settings(max_examples=EXAMPLES, stateful_step_count=12)


def test_a_copy_of_the_checkpoint_is_restored_and_as_many_other_rows_come() -> None:
    """The history that lost rows and doubled others while a micro-batch was known by its number and
    its number of rows."""
    machine = SinkMachine()
    machine.create(is_compacted=False)
    machine.micro_batch(1000)
    machine.produce(0, 1, "plain")
    machine.micro_batch(1000)
    machine.restore_a_copy_of_before(limit=4, partition=0, count=8, later_limit=None)
    machine.teardown()


def test_a_new_prefix_goes_on_from_a_copy_of_the_checkpoint_of_before() -> None:
    """The user's way on, and then a copy that is older than it: the rows between come again."""
    machine = SinkMachine()
    machine.create(is_compacted=True)
    machine.run_well(limit=3)
    machine.restore_a_copy_of_before(limit=6, partition=1, count=1, later_limit=None)
    machine.copy_checkpoint()
    machine.restore_a_copy_of_before(limit=4, partition=1, count=1, later_limit=2)
    machine.restore_copy(back=2)
    machine.run_well(limit=3)
    machine.teardown()


def test_a_copy_that_was_given_a_new_prefix_and_the_checkpoint_it_was_taken_of() -> None:
    """Both have a micro-batch of the same number, and not of the same records."""
    machine = SinkMachine()
    machine.create(is_compacted=False)
    machine.produce(0, 2, "plain")
    machine.run_well(limit=6)
    machine.restore_a_copy_of_before(limit=6, partition=0, count=8, later_limit=None)
    machine.run_well(limit=6)
    machine.restore_copy(back=0)
    machine.teardown()


def test_a_micro_batch_that_was_decided_and_runs_again_leaves_no_twin_of_a_task_open() -> None:
    """Readers of committed records would wait for it until its timeout."""
    machine = SinkMachine()
    machine.create(is_compacted=False)
    machine.produce(0, 5, "plain")
    machine.run(limit=3, cut=None, step="killed after the decision", ends=[True] * 8, twins=0)
    machine.run(limit=3, cut=None, step="well", ends=[True] * 8, twins=1)
    machine.teardown()
