"""A follower and its leader, each with a log: equal in the end, whatever came between.

The leader is a real partition behind a connection that speaks Fetch and ListOffsets; faults are put
into its answers.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import (
    BrokerResponseError,
    KafkaConnectionError,
    NotLeaderForPartitionError,
)
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.structs import TopicPartition

from broker.api.errors import code_of
from broker.cluster.metadata import PartitionMetadata
from broker.config.log import LogConfig
from broker.log.log import Log
from broker.replica.fetcher import FetcherOptions, ReplicaFetcher
from broker.replica.partition import EARLIEST, LATEST, Isolation, Partition
from pyspark_kafkalog.protocol.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    decode_fetch_request,
    encode_fetch_response,
)
from pyspark_kafkalog.record.batch import batches
from tests.broker.log.batches import batch
from tests.broker.log.memory_files import MemoryFile, MemoryFiles
from tests.support.patience import EVENT_S, eventually
from tests.support.present import present
from tests.support.records import whole
from tests.support.replicas import host_alone

LEADER, FOLLOWER = 1, 2
OPTIONS = FetcherOptions(1 << 20, 10 << 20, 1, 10, 20)


class Pair:
    """A partition as its leader and its follower have it."""

    def __init__(self, number: int, files: MemoryFiles, directory: Path) -> None:
        self.place = TopicPartition("t", number)
        self.files = files
        self.topic_id = UUID(int=7)
        self.epoch = 0
        logs = []
        for node_id in (LEADER, FOLLOWER):
            folder = directory / f"{node_id}-{number}"
            files.make_directory(folder)
            logs.append(Log(folder, LogConfig(), files=files))
        self.leader, self.follower = (
            Partition(self.place, self.topic_id, log, host_alone(node_id))
            for node_id, log in zip((LEADER, FOLLOWER), logs, strict=True)
        )
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """A leader epoch of which both have heard."""
        self.epoch = epoch
        state = PartitionMetadata((LEADER, FOLLOWER), LEADER, epoch, (LEADER,), epoch)
        self.leader.lead(state)
        self.follower.follow(state)

    def append(self, epoch: int | None = None, count: int = 1) -> None:
        """To the leader's log."""
        for _ in range(count):
            self.leader.log.append(batch(), self.epoch if epoch is None else epoch)

    def append_to_follower(self, epoch: int, count: int = 1) -> None:
        """What it has taken as a leader, and nobody else has."""
        for _ in range(count):
            self.follower.log.append(batch(), epoch)

    @property
    def is_equal(self) -> bool:
        return bytes_of(self.leader.log) == bytes_of(self.follower.log)


def bytes_of(log: Log) -> bytes:
    start, end = log.log_start_offset, log.log_end_offset
    parts = []
    while start < end:
        found = log.read(start, 1 << 20, end)
        assert found is not None
        parts.append(found.read())
        start = log.log_end_offset
    return b"".join(parts)


class Replicas:
    """What the follower's fetcher asks and tells its broker."""

    def __init__(self) -> None:
        self.held_off: set[TopicPartition] = set()
        self.received_bytes = 0

    def follow_leader(
        self, partition: Partition, high_watermark: int, log_start_offset: int
    ) -> None:
        partition.follow_leader(high_watermark, log_start_offset)

    def holds_off(self, partition: Partition) -> bool:
        return partition.topic_partition in self.held_off

    def received(self, partition: Partition, size_bytes: int) -> None:
        self.received_bytes += size_bytes


class Leader:
    """Answers as the broker that leads the pairs; `spoil` may change an answer."""

    def __init__(self, pairs: list[Pair]) -> None:
        self.pairs = {pair.place.partition: pair for pair in pairs}
        self.spoil: Callable[[FetchedPartition], None] = lambda found: None
        self.is_asked: Callable[[FetchPartition], None] = lambda ask: None
        self.begin_at: Callable[[int], None] = lambda timestamp: None
        """Called when it is asked for an offset."""
        self.most_bytes = 1 << 20
        self.is_gone = False
        self.refused = 0
        self.asked: list[set[int]] = []
        self.gate: asyncio.Event | None = None
        self.offsets_gate: asyncio.Event | None = None
        self.replicas = Replicas()

    async def exchange(self, api_key: int, version: int, body: memoryview) -> memoryview:
        await asyncio.sleep(0.001)
        if self.is_gone:
            self.refused += 1
            raise KafkaConnectionError("gone")
        wanted = decode_fetch_request(memoryview(bytearray(body)), version)
        assert (wanted.replica_id, wanted.replica_epoch) == (FOLLOWER, 55)
        self.asked.append({ask.partition for ask in wanted.partitions})
        for ask in wanted.partitions:
            self.is_asked(ask)
        response = FetchResponse([])
        for ask in wanted.partitions:
            leader = self.pairs[ask.partition].leader
            found = FetchedPartition("", ask.partition, 0, -1, topic_id=ask.topic_id)
            try:
                leader.check_epoch(ask.current_leader_epoch)
                read = leader.read(ask, self.most_bytes, Isolation.LOG_END, min_one_batch=True)
            except Exception as error:
                found.error_code = code_of(error)
            else:
                found.high_watermark = read.high_watermark
                found.log_start_offset = read.log_start_offset
                found.diverging_epoch = read.diverging_epoch
                found.records = read.records.read() if read.records else b""
            self.spoil(found)
            response.partitions.append(found)
        if self.gate is not None:
            await self.gate.wait()
        return memoryview(bytearray(b"".join(encode_fetch_response(response, version))))

    async def request(self, message: Any, version: int, response_class: Any) -> Any:
        (ask,) = message.topics[0].partitions
        leader = self.pairs[ask.partition_index].leader
        self.begin_at(ask.timestamp)
        if self.offsets_gate is not None:
            await self.offsets_gate.wait()
        topic_class = ListOffsetsResponse.ListOffsetsTopicResponse
        answer = topic_class.ListOffsetsPartitionResponse(partition_index=ask.partition_index)
        try:
            leader.check_epoch(ask.current_leader_epoch)
        except BrokerResponseError as error:
            answer.error_code, answer.offset = code_of(error), -1
        else:
            found = leader.find_offset(ask.timestamp, Isolation.LOG_END)
            answer.error_code, answer.offset = 0, present(found).offset
        return ListOffsetsResponse(topics=[topic_class(name="t", partitions=[answer])])

    def close(self) -> None:
        self.is_gone = True


@pytest.fixture
def pairs(tmp_path: Path) -> list[Pair]:
    files = MemoryFiles()
    return [Pair(number, files, tmp_path) for number in range(2)]


def fetching(
    pairs: list[Pair], scenario: Callable[[Leader, ReplicaFetcher], Awaitable[None]]
) -> None:
    """Runs it while the follower fetches."""

    async def run() -> None:
        leader = Leader(pairs)
        fetcher = ReplicaFetcher(FOLLOWER, lambda: 55, leader, OPTIONS, leader.replicas)
        for pair in pairs:
            fetcher.add(pair.follower)
        try:
            await scenario(leader, fetcher)
        finally:
            await fetcher.close()

    asyncio.run(run())


def until_equal(*pairs: Pair) -> Coroutine[Any, Any, Any]:
    return eventually(lambda: all(pair.is_equal for pair in pairs))


def test_it_catches_up_and_its_high_watermark_follows(pairs: list[Pair]) -> None:
    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        for pair in pairs:
            pair.append(count=5)
        await until_equal(*pairs)
        for pair in pairs:
            pair.leader.advance_high_watermark(3)
        await eventually(lambda: all(pair.follower.high_watermark == 3 for pair in pairs))

    fetching(pairs, scenario)


def test_it_catches_up_by_several_fetches_and_its_high_watermark_is_in_its_log(
    pairs: list[Pair],
) -> None:
    first = pairs[0]
    first.append(count=20)
    first.leader.advance_high_watermark(20)
    ends = []

    def spoil(found: FetchedPartition) -> None:
        follower = first.follower
        ends.append((follower.high_watermark, follower.log.log_end_offset))

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.spoil = spoil
        leader.most_bytes = 5 * first.leader.log.size_bytes // 20
        await until_equal(first)
        assert ends[:4] == [(0, 0), (5, 5), (10, 10), (15, 15)]
        await eventually(lambda: ends[-1] == (20, 20))

    fetching([first], scenario)


def test_what_is_said_to_be_here_is_on_disk_where_the_topic_asks_for_that(
    pairs: list[Pair],
) -> None:
    """flush.messages: a leader acknowledges what a follower has. Where all lose their power the
    follower may lead first, and what it lacks is gone."""
    log = pairs[0].follower.log
    log.config = replace(log.config, flush_messages=2)
    pairs[1].append(count=5)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        unsynced = []

        def asked(ask: FetchPartition) -> None:
            if ask.partition == 0:
                unsynced.append(ask.fetch_offset - log.recovery_point)

        leader.is_asked = asked
        for count in (1, 2, 5):
            pairs[0].append(count=count)
            await until_equal(*pairs)
        await eventually(lambda: len(unsynced) > 4)
        assert max(unsynced) == 1

    fetching(pairs, scenario)
    assert pairs[1].follower.log.recovery_point == 0


def test_a_follower_whose_disk_does_not_keep_what_it_gets_says_nothing_more(
    pairs: list[Pair],
) -> None:
    log = pairs[0].follower.log
    log.config = replace(log.config, flush_messages=1)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        pairs[0].files.fail_next("sync")
        pairs[0].append()
        await eventually(lambda: log.has_failed)
        leader.asked.clear()
        await eventually(lambda: len(leader.asked) > 2)
        assert leader.asked == [{1}] * len(leader.asked)
        assert pairs[0].follower.high_watermark == 0

    fetching(pairs, scenario)


def test_the_lag_is_what_is_committed_and_not_here_yet(pairs: list[Pair]) -> None:
    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        first = pairs[0]
        leader.spoil = lambda found: setattr(found, "high_watermark", 7)
        first.append(count=5)
        await until_equal(first)
        await eventually(lambda: fetcher.max_lag == 7)  # of the other, which has none
        leader.spoil = lambda found: None
        await eventually(lambda: fetcher.max_lag == 0)

    fetching(pairs, scenario)


def test_a_partition_in_error_is_held_back_and_the_others_go_on(pairs: list[Pair]) -> None:
    failing = [True]

    def spoil(found: FetchedPartition) -> None:
        if failing[0] and found.partition == 0:
            found.error_code = NotLeaderForPartitionError.errno

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.spoil = spoil
        pairs[0].append()
        pairs[1].append()
        await until_equal(pairs[1])
        assert not pairs[0].is_equal
        failing[0] = False
        await until_equal(*pairs)
        assert {1} in leader.asked

    fetching(pairs, scenario)


def test_an_answer_that_nobody_understands_is_not_the_last(pairs: list[Pair]) -> None:
    nonsense = [ValueError("what?")]

    def spoil(found: FetchedPartition) -> None:
        if nonsense:
            raise nonsense.pop()

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.spoil = spoil
        pairs[0].append()
        await until_equal(*pairs)
        assert not nonsense

    fetching(pairs, scenario)


def test_one_that_is_fenced_stops_until_a_new_epoch(pairs: list[Pair]) -> None:
    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        first = pairs[0]
        first.leader.lead(PartitionMetadata((LEADER, FOLLOWER), LEADER, 1, (LEADER,), 1))
        first.append(1)
        await eventually(lambda: {1} in leader.asked)
        asked = len(leader.asked)
        await eventually(lambda: len(leader.asked) > asked + 3)
        assert all(each == {1} for each in leader.asked[asked:])
        first.begin(1)
        fetcher.add(first.follower)
        await until_equal(first)

    fetching(pairs, scenario)


def test_a_leader_that_knows_an_older_epoch_is_waited_for(pairs: list[Pair]) -> None:
    state = PartitionMetadata((LEADER, FOLLOWER), LEADER, 1, (LEADER,), 1)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        first = pairs[0]
        first.follower.follow(state)
        fetcher.add(first.follower)
        first.append(count=2)
        asked = sum(0 in each for each in leader.asked)
        await eventually(lambda: sum(0 in each for each in leader.asked) > asked + 2)
        assert not first.is_equal
        first.leader.lead(state)
        await until_equal(first)

    fetching(pairs, scenario)


@pytest.mark.parametrize(("cut_at", "high_watermark"), [(4, 3), (2, 2)])
def test_what_is_cut_off_leaves_the_high_watermark_where_it_can(
    pairs: list[Pair], cut_at: int, high_watermark: int
) -> None:
    first = pairs[0]
    first.append(0, cut_at)
    first.append_to_follower(0, 6)
    first.follower.advance_high_watermark(3)
    first.begin(1)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        follower = first.follower
        expected = cut_at, high_watermark
        await eventually(lambda: (follower.log.log_end_offset, follower.high_watermark) == expected)

    fetching(pairs, scenario)


def test_a_log_without_epochs_is_cut_at_its_high_watermark(pairs: list[Pair]) -> None:
    """What lies above may be nobody else's, and no epoch tells."""
    first = pairs[0]
    first.append(0, 3)
    first.append_to_follower(0, 3)
    first.append_to_follower(1, 2)
    first.follower.advance_high_watermark(3)
    first.follower.log.leader_epochs.clear()
    first.begin(2)
    first.append(count=5)

    async def same(leader: Leader, fetcher: ReplicaFetcher) -> None:
        await until_equal(first)

    fetching([first], same)


def test_what_a_leader_has_sent_without_epochs_is_not_cut_again(pairs: list[Pair]) -> None:
    """Its high watermark waits for this follower, which is to ask for what comes next."""
    first = pairs[0]
    first.append(-1, 5)
    ends = []

    def spoil(found: FetchedPartition) -> None:
        ends.append(first.follower.log.log_end_offset)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.spoil = spoil
        await until_equal(first)
        await eventually(lambda: len(ends) > 5)
        assert ends[1:6] == [5] * 5
        first.append(count=2)
        await until_equal(first)

    fetching([first], scenario)


def test_a_leader_that_knows_nothing_of_an_epoch_is_not_asked_without_end(
    pairs: list[Pair],
) -> None:
    """Its epochs went back: by another ZooKeeper, say. The others go on."""
    first, second = pairs
    first.append(0, 5)
    first.append_to_follower(3, 2)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        for _ in range(20):
            asked = len(leader.asked)
            second.append()
            await until_equal(second)
            await eventually(lambda: len(leader.asked) > asked)  # noqa: B023
        assert sum(0 in each for each in leader.asked) < len(leader.asked) // 2
        assert first.follower.log.log_end_offset == 2

    fetching(pairs, scenario)


def test_a_log_that_has_diverged_is_cut_where_the_epochs_part(pairs: list[Pair]) -> None:
    """Twice: an epoch that the leader never had is none of its answers (KIP-279)."""
    first, second = pairs
    first.append(0, 5)
    second.append(0, 5)

    async def same(leader: Leader, fetcher: ReplicaFetcher) -> None:
        await until_equal(*pairs)

    fetching(pairs, same)
    first.append_to_follower(1, 3)
    first.append(2, 2)
    for epoch in (1, 3):
        second.append_to_follower(epoch, 2)
    second.append(2, 4)
    first.begin(4)
    second.begin(4)
    first.append()
    fetching(pairs, same)


def test_a_log_that_ends_above_the_leaders_end_is_cut_there(pairs: list[Pair]) -> None:
    first = pairs[0]
    first.append(count=2)
    first.append_to_follower(0, 6)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        await eventually(lambda: first.follower.log.log_end_offset == 2)

    fetching([first], scenario)


def test_a_log_that_ends_below_the_leaders_start_begins_there(pairs: list[Pair]) -> None:
    first = pairs[0]
    first.append(count=8)
    first.leader.advance_high_watermark(8)
    first.leader.log.advance_log_start_offset(5)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        await eventually(lambda: first.follower.log.log_end_offset == 8)
        assert first.follower.log.log_start_offset == 5
        first.append()
        await eventually(lambda: first.follower.log.log_end_offset == 9)
        assert bytes_of(first.leader.log) == bytes_of(first.follower.log)

    fetching([first], scenario)


def test_a_log_whose_leader_begins_in_the_middle_of_a_batch_begins_there(pairs: list[Pair]) -> None:
    """DeleteRecords names any offset; batches come whole. Others of that leader go on."""
    first, second = pairs
    first.leader.log.append(batch([b"a"] * 8), 0)
    first.append()
    first.leader.advance_high_watermark(9)
    first.leader.log.advance_log_start_offset(5)
    second.append()

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        await until_equal(*pairs)
        log = first.follower.log
        await eventually(lambda: (log.log_start_offset, log.log_end_offset) == (5, 9))

    fetching(pairs, scenario)


def test_what_cannot_follow_keeps_no_other_partition_from_going_on(pairs: list[Pair]) -> None:
    first, second = pairs

    def spoil(found: FetchedPartition) -> None:
        if found.partition == 0 and found.records:
            assert isinstance(found.records, bytes)
            found.records = bytes(8) + found.records[8:]  # at offset 0 again

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        first.append()
        await until_equal(first)
        leader.spoil = spoil
        first.append()
        second.append()
        await until_equal(second)
        assert not first.is_equal
        leader.spoil = lambda found: None
        await until_equal(first)

    fetching(pairs, scenario)


def test_a_partition_that_lacks_much_starves_no_other(pairs: list[Pair]) -> None:
    """An answer holds so much: those that got nothing are asked for first."""
    first, second = pairs
    orders: list[list[int]] = []

    def spoil(found: FetchedPartition) -> None:
        orders[-1:] = [[*orders[-1], found.partition]] if orders else [[found.partition]]
        if len(orders[-1]) == 1:
            return  # the answer is full by then
        found.records = b""
        orders.append([])

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.most_bytes = 1
        leader.spoil = spoil
        first.append(count=1000)
        second.append()
        await until_equal(second)
        assert first.follower.log.log_end_offset < 10

    fetching(pairs, scenario)


def test_what_a_later_leader_has_is_not_taken_from_the_one_before(pairs: list[Pair]) -> None:
    """Who leads no more may send what it has put in the place of what it has cut off, where its
    answer waits: behind what this follower has not cut off yet."""
    first, second = pairs
    first.append(count=2)
    sent: list[bool] = []

    def spoil(found: FetchedPartition) -> None:
        if found.partition == 0 and found.records:
            assert isinstance(found.records, bytes)
            records = bytearray(found.records)
            header = list(batches(records))[-1]
            records[header.position + 12 : header.position + 16] = (1).to_bytes(4, "big")
            found.records = bytes(records)
            sent.append(True)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.spoil = spoil
        await eventually(lambda: len(sent) > 2)
        second.append()
        await until_equal(second)
        log = first.follower.log
        assert (log.log_end_offset, log.leader_epochs.latest_epoch) == (1, 0)
        leader.spoil = lambda found: None
        await until_equal(first)

    fetching(pairs, scenario)


@pytest.mark.parametrize(("is_above", "asked_for"), [(True, LATEST), (False, EARLIEST)])
def test_one_that_is_fenced_while_it_is_out_of_range_stops(
    pairs: list[Pair], is_above: bool, asked_for: int
) -> None:
    """Its log stays as it is until the controller has said who leads."""
    first = pairs[0]
    if is_above:
        first.append_to_follower(5, 6)  # of which the leader knows nothing
    else:
        first.append(count=8)
        first.leader.advance_high_watermark(8)
        first.leader.log.advance_log_start_offset(5)
    has = first.follower.log.log_end_offset

    def elect(timestamp: int) -> None:
        if timestamp == asked_for:
            asked.append(timestamp)
            first.leader.lead(PartitionMetadata((LEADER, FOLLOWER), LEADER, 1, (LEADER,), 1))

    asked: list[int] = []

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.begin_at = elect
        await eventually(lambda: asked)
        fetches = len(leader.asked)
        await eventually(lambda: len(leader.asked) > fetches + 40)
        assert all(each == {1} for each in leader.asked[fetches:])
        assert asked == [asked_for]
        assert first.follower.log.log_end_offset == has
        first.begin(1)
        fetcher.add(first.follower)
        await eventually(
            lambda: first.follower.log.log_end_offset == first.leader.log.log_end_offset
        )

    fetching(pairs, scenario)


def test_nobody_waits_for_a_leader_that_does_not_say_where_its_log_ends(pairs: list[Pair]) -> None:
    """What a controller says of other partitions would wait as well."""
    first, second = pairs
    first.append_to_follower(5, 6)  # of which the leader knows nothing
    asked: list[int] = []

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.offsets_gate = asyncio.Event()
        leader.begin_at = asked.append
        await eventually(lambda: asked)
        await asyncio.wait_for(fetcher.remove([second.place]), EVENT_S)
        leader.offsets_gate.set()
        await until_equal(first)

    fetching(pairs, scenario)


def test_where_the_leader_begins_the_follower_begins(pairs: list[Pair]) -> None:
    first = pairs[0]

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        first.append(count=8)
        await until_equal(first)
        first.leader.advance_high_watermark(8)
        first.leader.log.advance_log_start_offset(5)
        await eventually(lambda: first.follower.log.log_start_offset == 5)

    fetching([first], scenario)


def test_nothing_is_written_to_what_was_removed_while_its_answer_was_under_way(
    pairs: list[Pair],
) -> None:
    first = pairs[0]

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.gate = asyncio.Event()
        first.append()
        await eventually(lambda: leader.asked)
        await fetcher.remove([first.place])
        pairs[1].append()
        leader.gate.set()
        await until_equal(pairs[1])
        assert first.follower.log.log_end_offset == 0

    fetching(pairs, scenario)


def test_what_is_removed_while_the_disk_takes_an_answer_is_no_failure(
    pairs: list[Pair], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is removed once the disk has it."""
    first, log = pairs[0], pairs[0].follower.log
    log.config = replace(log.config, flush_messages=1)
    begun, may_end, sync = threading.Event(), threading.Event(), MemoryFile.sync

    def slow(file: MemoryFile) -> None:
        begun.set()
        may_end.wait(EVENT_S)
        sync(file)

    monkeypatch.setattr(MemoryFile, "sync", slow)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        first.append()
        await eventually(begun.is_set)
        removal = asyncio.create_task(fetcher.remove([first.place]))
        await eventually(lambda: fetcher.is_idle)
        may_end.set()
        await removal
        assert log.recovery_point == 1

    fetching([first], scenario)
    assert "fetcher.failed" not in caplog.text


def test_an_answer_of_the_epoch_before_is_dropped(pairs: list[Pair]) -> None:
    """Also where it says that what is here has diverged: meanwhile another one may lead."""
    first = pairs[0]
    first.append(0, 2)
    first.append_to_follower(0, 6)
    first.begin(1)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.gate = asyncio.Event()
        fetcher.add(first.follower)
        await eventually(lambda: any(0 in each for each in leader.asked))
        await fetcher.remove([first.place])
        # Whoever leads in the next epoch has all of it.
        first.leader.log.append(batch(), 0)
        first.leader.log.truncate_to(0)
        for _ in range(6):
            first.leader.log.append(batch(), 0)
        first.begin(2)
        fetcher.add(first.follower)
        lengths = [first.follower.log.log_end_offset]
        leader.spoil = lambda found: lengths.append(first.follower.log.log_end_offset)
        leader.gate.set()
        asked = len(leader.asked)
        await eventually(lambda: len(leader.asked) > asked + 2)
        assert set(lengths) == {6}

    fetching(pairs, scenario)


@pytest.mark.parametrize("operation", ["append", "cut"])
def test_a_disk_that_refuses_stops_one_partition_alone(pairs: list[Pair], operation: str) -> None:
    first, second = pairs
    if operation == "cut":
        first.append(0, 2)
        first.append_to_follower(0, 6)
        first.begin(1)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        name = "append_as_follower" if operation == "append" else "truncate_to"
        refusing: Any = Refusing(first.follower, name, refuse)
        first.follower = refusing
        fetcher.add(first.follower)
        first.append()
        second.append()
        await until_equal(second)
        await eventually(lambda: leader.asked[-1] == {1})
        asked = len(leader.asked)
        await eventually(lambda: len(leader.asked) > asked + 3)
        assert all(each == {1} for each in leader.asked[asked:])

    fetching(pairs, scenario)


class Refusing:
    """A partition whose log does one thing no more."""

    def __init__(self, partition: Partition, name: str, refuse: Callable[..., None]) -> None:
        self._partition = partition
        self.log = SimpleNamespace(
            log_end_offset=partition.log.log_end_offset,
            log_start_offset=partition.log.log_start_offset,
            leader_epochs=partition.log.leader_epochs,
            **{name: refuse},
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)


def test_a_damaged_answer_is_asked_for_again(pairs: list[Pair]) -> None:
    first, second = pairs
    damaged = [2]

    def spoil(found: FetchedPartition) -> None:
        if found.records and found.partition == 0 and damaged[0]:
            damaged[0] -= 1
            found.records = whole(found.records)[:-1] + b"\xff"

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.spoil = spoil
        first.append(count=3)
        second.append(count=3)
        await until_equal(second)
        assert damaged != [0]  # the other one has not waited for it
        await until_equal(first)
        assert damaged == [0]

    fetching(pairs, scenario)


def test_an_answer_for_what_was_not_asked_changes_nothing(pairs: list[Pair]) -> None:
    def spoil(found: FetchedPartition) -> None:
        if found.partition == 0:
            found.topic_id = UUID(int=8)

    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.spoil = spoil
        for pair in pairs:
            pair.append()
        await until_equal(pairs[1])
        assert pairs[0].follower.log.log_end_offset == 0

    fetching(pairs, scenario)


def test_a_leader_that_is_not_reached_is_asked_again(pairs: list[Pair]) -> None:
    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        leader.is_gone = True
        pairs[0].append()
        await eventually(lambda: leader.refused > 2)
        leader.is_gone = False
        await until_equal(pairs[0])

    fetching(pairs, scenario)


def test_a_throttled_partition_is_not_asked_for_and_the_others_are(pairs: list[Pair]) -> None:
    async def scenario(leader: Leader, fetcher: ReplicaFetcher) -> None:
        held_off, other = pairs
        leader.replicas.held_off.add(held_off.place)
        for pair in pairs:
            pair.append(count=3)
        await until_equal(other)
        await eventually(lambda: len(leader.asked) > 5)
        assert leader.asked[-1] == {1}
        assert leader.replicas.received_bytes == other.leader.log.size_bytes
        leader.replicas.held_off.clear()
        await until_equal(held_off)
        # What is in sync is asked for whatever the rate.
        held_off.leader.advance_high_watermark(3)
        await eventually(lambda: held_off.follower.high_watermark == 3)
        leader.replicas.held_off.add(held_off.place)
        held_off.append()
        await until_equal(held_off)

    fetching(pairs, scenario)
