"""A log that is written as a follower: the leader's bytes, and all that follows from them."""

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError, KafkaStorageError

from broker.config.log import LogConfig
from broker.log.leader_epoch import EpochEntry
from broker.log.log import Log
from broker.log.producer_state import ProducerStateEntry
from broker.log.time_index import TimestampOffset
from broker.log.validator import OffsetsOutOfOrderError
from pyspark_kafkalog.record.batch import batches as headers_of
from pyspark_kafkalog.record.batch import stamp
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import GZIP, NOW_MS, batch, bytes_of, contents
from tests.broker.log.memory_files import MemoryFiles
from tests.support.present import present

SMALL = LogConfig(
    segment_bytes=1000, index_interval_bytes=150, segment_index_bytes=64, retention_ms=-1
)
LEADER, FOLLOWER = Path("/leader/orders-0"), Path("/follower/orders-0")


def opened(directory: Path, config: LogConfig = SMALL, files: MemoryFiles | None = None) -> Log:
    files = files or MemoryFiles()
    files.make_directory(directory)
    return Log(directory, config, lambda: NOW_MS, files)


def written(seed: int, config: LogConfig = SMALL) -> Log:
    """A leader's log with most of what there is; as clients send them, a batch at a time."""
    log, luck = opened(LEADER, config), random.Random(seed)
    sequences: dict[int, int] = {}
    epoch = 0
    for number in range(60):
        epoch += luck.random() < 0.1
        values = [b"%d." % number + b"." * luck.randrange(40)] * luck.randrange(1, 4)
        kind = luck.choice(["plain", "gzip", "idempotent", "transactional", "end"])
        time_ms = NOW_MS + luck.randrange(-100, 100)
        if kind == "end":
            marker = TransactionMarker(luck.random() < 0.5, epoch)
            log.append_end_marker(7 + luck.randrange(2), 0, marker, epoch)
        elif kind in ("plain", "gzip"):
            codec = GZIP if kind == "gzip" else 0
            log.append(batch(values, codec=codec, timestamp_ms=time_ms), epoch)
        else:
            producer_id = 5 if kind == "idempotent" else 7 + luck.randrange(2)
            sequence = sequences.get(producer_id, 0)
            sequences[producer_id] = sequence + len(values)
            numbered = batch(
                values,
                producer=(producer_id, 0, sequence),
                transactional=kind == "transactional",
                timestamp_ms=time_ms,
            )
            log.append(numbered, epoch, transactional=kind == "transactional")
    return log


def copy(leader: Log, follower: Log, sizes: Iterator[Any]) -> None:
    """As a follower's fetches go: from its own end on, with answers that end anywhere."""
    while follower.log_end_offset < leader.log_end_offset:
        end_offset = leader.log_end_offset
        found = bytes_of(leader.read(follower.log_end_offset, next(sizes), end_offset))
        assert follower.append_as_follower(memoryview(found)) is not None


def state(
    log: Log,
) -> tuple[
    dict[str, bytes],
    tuple[EpochEntry, ...],
    dict[int, ProducerStateEntry],
    list[TimestampOffset],
    tuple[int, int, int],
]:
    files = log._files
    directory = log.directory
    return (
        {name: bytes(files.read(directory / name)) for name in files.list(directory)},
        log.leader_epochs.entries,
        log.producers.entries,
        [segment.max_timestamp for segment in log.segments],
        (log.log_start_offset, log.log_end_offset, log.last_stable_offset(log.log_end_offset)),
    )


@pytest.mark.parametrize("segment_bytes", [1000, 1 << 20])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_copy_is_the_leaders_log_in_all_its_files(segment_bytes: int, seed: int) -> None:
    config = dataclasses.replace(SMALL, segment_bytes=segment_bytes)
    leader, follower = written(seed, config), opened(FOLLOWER, config)
    luck = random.Random(seed)
    copy(leader, follower, iter(lambda: luck.randrange(1, 3000), None))
    assert contents(follower) == contents(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    assert follower.producers.entries == leader.producers.entries
    assert state(follower) == state(leader)
    for log in (leader, follower):
        log.close()
    assert state(follower) == state(leader)


def test_gaps_of_a_compacted_leader_are_kept() -> None:
    log = opened(FOLLOWER)
    for offset, epoch in [(5, 0), (9, 2)]:
        records = batch([b"x"])
        stamp(records, next(headers_of(records)), offset, epoch)
        info = log.append_as_follower(records)
        assert (present(info).first_offset, present(info).last_offset) == (offset, offset)
    assert list(contents(log)) == [5, 9]
    assert log.leader_epochs.entries == ((0, 5), (2, 9))


@pytest.fixture
def two() -> memoryview:
    """Two batches at offsets 0 and 1, as a leader has them."""
    leader = opened(LEADER)
    for value in (b"a", b"b"):
        leader.append(batch([value]), 3)
    return memoryview(bytearray(bytes_of(leader.read(0, 10_000, 2))))


@pytest.mark.parametrize(
    ("offsets", "refused", "expected"),
    [
        ((0, 1), 0, 2),
        ((1, 2), 1, 2),
        ((3, 3), 3, 4),
        ((4, 3), 3, 5),
        ((2, 2**31 + 3), 2**31 + 3, 3),
    ],
)
def test_offsets_that_cannot_follow_are_refused_whole(
    two: memoryview, offsets: tuple[int, int], refused: int, expected: int
) -> None:
    log = opened(FOLLOWER)
    log.append_as_follower(two)
    more = memoryview(bytearray(two))
    for header, offset in zip(list(headers_of(more)), offsets, strict=True):
        stamp(more, header, offset, 3)
    before = state(log)
    with pytest.raises(OffsetsOutOfOrderError) as raised:
        log.append_as_follower(more)
    assert (raised.value.offset, raised.value.expected_offset) == (refused, expected)
    assert state(log) == before


def test_the_largest_gap_that_a_segment_can_have(two: memoryview) -> None:
    log = opened(FOLLOWER)
    log.append_as_follower(two)
    far = batch([b"x"])
    stamp(far, next(headers_of(far)), 2 + 2**31 - 1, 3)
    log.append_as_follower(far)
    assert list(contents(log)) == [0, 1, 2 + 2**31 - 1]


def test_damaged_bytes_are_refused_whole(two: memoryview) -> None:
    log = opened(FOLLOWER)
    two[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        log.append_as_follower(two)
    assert log.log_end_offset == log.size_bytes == 0


def test_a_batch_that_is_cut_off_is_left_out(two: memoryview) -> None:
    log = opened(FOLLOWER)
    half = len(two) // 2
    for size_bytes in range(half):
        assert log.append_as_follower(two[:size_bytes]) is None
    assert present(log.append_as_follower(two[: len(two) - 1])).size_bytes == half
    assert present(log.append_as_follower(two[half:])).last_offset == 1
    assert bytes_of(log.read(0, 10_000, 2)) == two


def test_what_the_leader_took_is_not_judged_again() -> None:
    config = dataclasses.replace(
        SMALL, max_message_bytes=10, message_timestamp_type="LogAppendTime"
    )
    log = opened(FOLLOWER, config)
    records = batch([b"x" * 2000], producer=(5, 0, 17), timestamp_ms=5)
    assert (
        present(log.append_as_follower(records)).size_bytes == len(records) > config.segment_bytes
    )
    assert bytes_of(log.read(0, 10_000, 1)) == records


def test_batches_before_the_one_that_the_disk_refused_are_there(two: memoryview) -> None:
    files = MemoryFiles()
    log = opened(FOLLOWER, files=files)
    files.fail_next("pwrite", after=1)
    with pytest.raises(KafkaStorageError):
        log.append_as_follower(two)
    assert log.log_end_offset == 1
    log.append_as_follower(two[len(two) // 2 :])
    assert bytes_of(log.read(0, 10_000, 2)) == two
