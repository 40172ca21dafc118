"""A stream that may lose data reads no record twice, and leaves out only what was gone.

Topics of a pattern come and go, are created again, grow and lose what retention takes, before, in
and between batches that are killed and run again; against a cluster that is a dictionary, so that a
history takes milliseconds. A query that ends right after a batch in which a topic went, before it
plans the next one, does lose it: see failOnDataLoss in the docs. So it never ends there here.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from kafka.structs import TopicPartition
from pyspark.sql.datasource import InputPartition

from pyspark_kafkalog.source import log_identity, stream_reader
from pyspark_kafkalog.source.offsets import JsonOffsets
from pyspark_kafkalog.source.options import stream_options
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from tests.pyspark_kafkalog.source.fake_cluster import FakeCluster

Record: TypeAlias = tuple[str, int, int, int]
"""Topic, which of its name, partition, offset."""

ALWAYS_THERE = "always"
TOPICS = (ALWAYS_THERE, "often", "rarely")
MOST_BATCHES = 200
WAITING = {"minOffsetsPerTrigger": "6", "maxTriggerDelay": "1h"}
Change: TypeAlias = tuple[str, str, int]
CHANGES = ("produce", "produce", "hide", "show", "recreate", "add", "expire", "elect")
CHANGE = st.tuples(st.sampled_from(CHANGES), st.sampled_from(TOPICS), st.integers(1, 6))
IN_A_BATCH = ("hide", "hide", "recreate", "add", "expire", "elect")
MEANWHILE = st.tuples(st.sampled_from(IN_A_BATCH), st.sampled_from(TOPICS[1:]), st.integers(1, 6))


class Topics(FakeCluster):
    """Some of which are `hidden`; knows every record that was `written`, and those that are
    `gone`."""

    def __init__(self, has_ids: bool) -> None:
        super().__init__()
        self._has_ids = has_ids
        self.hidden: dict[str, list[tuple[int, int]]] = {}
        self.written: set[Record] = set()
        self.gone: set[Record] = set()
        self._created: Counter[str] = Counter()
        for topic in TOPICS:
            self._create(topic, 2)

    def _create(self, topic: str, partitions: int) -> None:
        self._created[topic] += 1
        if self._has_ids:
            self.topic_ids[topic] = UUID(int=16 * TOPICS.index(topic) + self._created[topic])
        self.logs[topic] = []
        for _ in range(partitions):
            self._add(topic)

    def _add(self, topic: str) -> None:
        logs = self._logs_of(topic)
        self.epochs[TopicPartition(topic, len(logs))] = 0
        logs.append((0, 0))

    def _logs_of(self, topic: str) -> list[tuple[int, int]]:
        return self.logs[topic] if topic in self.logs else self.hidden[topic]

    def change(self, kind: str, topic: str, number: int) -> None:
        logs = self._logs_of(topic)
        partition = number % len(logs)
        begin, end = logs[partition]
        if kind == "produce":
            logs[partition] = (begin, end + number)
            self.written |= self.records(topic, partition, end, end + number)
        elif kind == "hide" and topic in self.logs and topic != ALWAYS_THERE:
            self.hidden[topic] = self.logs.pop(topic)
        elif kind == "show" and topic in self.hidden:
            self.logs[topic] = self.hidden.pop(topic)
        elif kind == "recreate" and self._has_ids and topic != ALWAYS_THERE:
            self.hidden.pop(topic, None)
            for each, (_, until) in enumerate(logs):
                self.gone |= self.records(topic, each, 0, until)
            self._create(topic, 1 + partition)
            self.change("produce", topic, number)
        elif kind == "add":
            self._add(topic)
        elif kind == "expire":
            first = min(begin + number, end)
            logs[partition] = (first, end)
            self.gone |= self.records(topic, partition, begin, first)
        elif kind == "elect":
            self.epochs[TopicPartition(topic, partition)] += 1

    def records(self, topic: str, partition: int, begin: int, end: int) -> set[Record]:
        which = self._created[topic]
        return {(topic, which, partition, offset) for offset in range(begin, end)}

    def read(self, tasks: list[InputPartition]) -> Counter[Record]:
        """What tasks find that go on without what is gone."""
        found: Counter[Record] = Counter()
        for task in tasks:
            ids = task.value.topic_ids
            for piece in task.value.ranges:
                logs = self.logs.get(piece.topic, [])
                now = self.topic_ids.get(piece.topic)
                if piece.partition < len(logs) and ids.get(piece.topic, now) == now:
                    begin, end = logs[piece.partition]
                    begin, end = max(begin, piece.start_offset), min(end, piece.until_offset)
                    found.update(self.records(piece.topic, piece.partition, begin, end))
        return found

    def ends(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """No log is ever cut off."""
        there = {each for each in asked if each.topic in self.logs}
        return {each: self.logs[each.topic][each.partition][1] for each in there}


class LossyStream(RuleBasedStateMachine):
    @initialize(
        limits=st.sampled_from([{}, {"maxOffsetsPerTrigger": "3"}, WAITING]),
        has_ids=st.booleans(),
        writes=st.lists(CHANGE, max_size=4),
    )
    def start(self, limits: dict[str, str], has_ids: bool, writes: list[Change]) -> None:
        self.patched = pytest.MonkeyPatch()
        self.cluster = Topics(has_ids)
        for _, topic, number in writes:
            self.cluster.change("produce", topic, number)
        self.patched.setattr(stream_reader, "Cluster", lambda config: self.cluster)
        self.patched.setattr(log_identity, "epoch_ends", lambda _, asked: self.cluster.ends(asked))
        self.limits = limits
        self.reader = self.restarted()
        self.committed = self.reader.initialOffset()
        self.found: Counter[Record] = Counter()
        self.batch(None, is_killed=False)

    def restarted(self) -> KafkalogStreamReader:
        """The reader of another process, from the same checkpoint."""
        given = {
            "kafka.bootstrap.servers": "localhost:9092",
            "subscribePattern": ".*",
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "0",
        }
        return KafkalogStreamReader(stream_options(given | self.limits), ["value"])

    @rule(change=CHANGE)
    def change(self, change: Change) -> None:
        self.cluster.change(*change)

    @rule()
    def restart(self) -> None:
        self.reader = self.restarted()
        self.run_batch()

    @rule(meanwhile=st.none() | MEANWHILE, is_killed=st.booleans())
    def batch(self, meanwhile: Change | None, is_killed: bool) -> None:
        """One that is planned, sees a change, and is run again where it was killed; and the next
        one where a topic may have gone."""
        if meanwhile is not None:
            _, topic, number = meanwhile
            self.cluster.change("produce", topic, number)
        self.run_batch(meanwhile, is_killed)
        if meanwhile is not None:
            self.run_batch()

    @rule(changes=st.lists(CHANGE, max_size=5))
    def available_now(self, changes: list[Change]) -> None:
        self.reader = self.restarted()
        self.reader.prepareForTriggerAvailableNow()
        for _ in range(MOST_BATCHES):
            if changes:
                self.cluster.change(*changes.pop())
            if not self.run_batch() and not changes:
                break
        else:
            raise AssertionError("a query of what is available does not end")
        self.reader = self.restarted()

    def run_batch(self, meanwhile: Change | None = None, is_killed: bool = False) -> bool:
        """Whether there was anything to do."""
        start: JsonOffsets = self.committed
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if end == start:
            return False
        if meanwhile is not None:
            self.cluster.change(*meanwhile)
        if is_killed:
            self.reader.partitions(start, end)
            self.reader = self.restarted()
        self.found.update(self.cluster.read(self.reader.partitions(start, end)))
        self.committed = end
        twice = {record for record, times in self.found.items() if times > 1}
        assert not twice
        return True

    def teardown(self) -> None:
        try:
            for topic in TOPICS:
                self.cluster.change("show", topic, 1)
            self.limits = {} if self.limits == WAITING else self.limits
            self.reader = self.restarted()
            for _ in range(MOST_BATCHES):
                if not self.run_batch():
                    break
            assert not self.cluster.written - self.cluster.gone - self.found.keys()
        finally:
            self.patched.undo()


TestLossyStream = LossyStream.TestCase
TestLossyStream.settings = settings(max_examples=max(300, settings().max_examples))
