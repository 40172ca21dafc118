"""Offsets within and without transactions, in any order, with crashes and compaction in between.

The model is what was done, in the order of the log: a partition's committed offset is the last one
that was committed for it, plainly or in a transaction that was committed, since it was last
deleted. It is unstable while a transaction that is open has committed one since then. The log is a
real one, so what a restart reads is what was written and what the cleaner has left of it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kafka.structs import TopicPartition

from broker.config.log import LogConfig
from broker.coordinator.group import CommitAsk
from broker.coordinator.group_metadata import GroupMetadata
from broker.coordinator.offsets import read_groups
from broker.coordinator.state_records import ProducerIdAndEpoch, StateRecord, encode_batch
from broker.log.checkpoint import CLEAN
from broker.log.log import Log
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.coordinator.in_memory import Coordinated, MemoryLog
from tests.broker.log.compaction import compact
from tests.broker.log.memory_files import MemoryFiles

DIRECTORY = Path("/data/__consumer_offsets-0")
CONFIG = LogConfig(
    segment_bytes=1000,
    index_interval_bytes=200,
    segment_index_bytes=64,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=2000,
    file_delete_delay_ms=10,
)
GROUPS = st.sampled_from(["g", "h"])
PLACES = st.sampled_from([TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)])
PRODUCERS = st.integers(1, 3)


class GroupsOnDisk(MemoryLog):
    """The log of the groups' topic as it is on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.files.make_directory(DIRECTORY)
        self.now_ms = 1_700_000_000_000
        self.log = Log(DIRECTORY, CONFIG, self.clock, self.files, CLEAN)

    def clock(self) -> int:
        return self.now_ms

    def append(
        self,
        group_id: str,
        records: Sequence[StateRecord],
        producer: ProducerIdAndEpoch | None = None,
    ) -> int:
        batch = memoryview(encode_batch(records, self.now_ms, producer))
        is_transactional = producer is not None
        written = self.log.append(batch, 0, transactional=is_transactional, numbered=False)
        return written.first_offset

    def end_transaction(self, producer: ProducerIdAndEpoch, *, is_commit: bool) -> None:
        self.log.append_end_marker(*producer, TransactionMarker(is_commit, 0), 0)

    def read(self) -> dict[str, GroupMetadata]:
        """After the death of the process."""
        self.files = self.files.crash()
        self.log = Log(DIRECTORY, CONFIG, self.clock, self.files)
        return read_groups(self.log)


class Done(NamedTuple):
    """A commit (of a transaction, by number, or of none), or with no offset a deletion."""

    group_id: str
    place: TopicPartition
    offset: int | None
    transaction: int | None = None


class GroupTransactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stored = GroupsOnDisk()
        self.coordinated = Coordinated(log=self.stored)
        self.done: list[Done] = []
        self.epochs = dict.fromkeys(range(1, 4), 0)
        self.transactions = {producer_id: producer_id for producer_id in self.epochs}
        self.committed: set[int] = set()
        self.ended: set[int] = set()
        self.offset = 0

    def producer(self, producer_id: int) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(producer_id, self.epochs[producer_id])

    @rule(group_id=GROUPS, places=st.sets(PLACES, min_size=1))
    def commit(self, group_id: str, places: set[TopicPartition]) -> None:
        self.offset += 1
        offsets = self.coordinated._commits(dict.fromkeys(places, self.offset))
        errors = self.coordinated.groups.commit(CommitAsk(group_id, "", None, -1, offsets))
        assert errors == [None] * len(places)
        self.done += [Done(group_id, place, self.offset) for place in places]

    @rule(producer_id=PRODUCERS, group_id=GROUPS, places=st.sets(PLACES, min_size=1))
    def commit_in_transaction(
        self, producer_id: int, group_id: str, places: set[TopicPartition]
    ) -> None:
        self.offset += 1
        self.coordinated.commit_in_transaction(
            self.producer(producer_id), dict.fromkeys(places, self.offset), group_id=group_id
        )
        transaction = self.transactions[producer_id]
        self.done += [Done(group_id, place, self.offset, transaction) for place in places]

    @rule(
        producer_id=PRODUCERS,
        is_commit=st.booleans(),
        bumps=st.booleans(),
        dies=st.booleans(),
    )
    def end_transaction(self, producer_id: int, is_commit: bool, bumps: bool, dies: bool) -> None:
        """`bumps`: with the epoch of the next one; `dies`: before the groups are told."""
        self.epochs[producer_id] += bumps
        if dies:
            self.stored.end_transaction(self.producer(producer_id), is_commit=is_commit)
            self.crash()
        else:
            self.coordinated.end_transaction(self.producer(producer_id), is_commit=is_commit)
        transaction = self.transactions[producer_id]
        self.ended.add(transaction)
        if is_commit:
            self.committed.add(transaction)
        self.transactions[producer_id] = max(self.transactions.values()) + 1

    @rule(group_id=GROUPS, place=PLACES)
    def delete_offset(self, group_id: str, place: TopicPartition) -> None:
        if self.is_known(group_id):
            assert self.coordinated.groups.delete_offsets(group_id, [place]) == [None]
            self.done.append(Done(group_id, place, None))

    @rule(group_id=GROUPS)
    def delete_group(self, group_id: str) -> None:
        if self.is_known(group_id):
            self.coordinated.groups.delete(group_id)
            assert not self.is_known(group_id)
            self.done += [Done(group_id, place, None) for place in self.places()]

    @rule(topic=st.sampled_from(["t", "u"]))
    def delete_topic(self, topic: str) -> None:
        self.coordinated.groups.topic_deleted(topic)
        places = [place for place in self.places() if place.topic == topic]
        self.done += [Done(group_id, place, None) for group_id in "gh" for place in places]

    @rule()
    def crash(self) -> None:
        self.coordinated.restart()

    @rule()
    def clean(self) -> None:
        compact(self.stored.log, self.stored.files, self.stored.clock)

    @rule(passed_ms=st.sampled_from([1, 500, 3000]))
    def pass_time(self, passed_ms: int) -> None:
        """Tombstones and markers go after a while, and what is known of producers."""
        self.stored.now_ms += passed_ms
        self.stored.log.remove_expired_producers(400)
        self.stored.log.remove_deleted_files()

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        for group_id in "gh":
            committed, unstable = self.model(group_id)
            assert self.coordinated.committed(group_id) == committed
            assert self.coordinated.groups.unstable(group_id) == unstable

    def model(self, group_id: str) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        committed: dict[TopicPartition, int] = {}
        unstable: set[TopicPartition] = set()
        for done in self.done:
            if done.group_id != group_id:
                continue
            if done.offset is None:
                committed.pop(done.place, None)
                unstable.discard(done.place)
            elif done.transaction is None or done.transaction in self.committed:
                committed[done.place] = done.offset
            elif done.transaction not in self.ended:
                unstable.add(done.place)
        return committed, unstable

    def is_known(self, group_id: str) -> bool:
        return group_id in {group.group_id for group in self.coordinated.groups.groups()}

    def places(self) -> set[Any]:
        return {done.place for done in self.done}

    def teardown(self) -> None:
        """All of it once more, from the disk alone."""
        self.clean()
        self.crash()
        self.offsets_are_those_of_the_model()


TestGroupTransactions = GroupTransactions.TestCase
TestGroupTransactions.settings = settings(stateful_step_count=50)
