"""Log at its limits: exactly full, exactly due, the last offset, the instant after a failure."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.errors import (
    KafkaStorageError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
    TransactionCoordinatorFencedError,
)

from broker.config.log import LogConfig
from broker.log.checkpoint import LogCheckpoint
from broker.log.log import Log
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import NOW_MS, batch, contents, together
from tests.broker.log.conftest import Clock
from tests.broker.log.memory_files import MemoryFiles

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
# Room for four entries in an index of offsets, and three in one of times.
TINY_INDEXES = dataclasses.replace(
    SMALL, segment_bytes=10**6, segment_index_bytes=36, index_interval_bytes=0
)


@pytest.fixture
def open_log(directory: Path, clock: Clock, files: MemoryFiles) -> Callable[..., Log]:
    def open_log(config: LogConfig = SMALL, files: MemoryFiles = files, **known: bool) -> Log:
        return Log(directory, config, clock, files, LogCheckpoint(**known))

    return open_log


def test_a_batch_may_fill_a_segment(open_log: Callable[..., Log]) -> None:
    records = batch([b"." * 100])
    log = open_log(dataclasses.replace(SMALL, segment_bytes=len(records)))
    for offset in range(3):
        assert log.append(batch([b"." * 100]), 0).first_offset == offset
    assert log.segment_count == 3
    with pytest.raises(RecordListTooLargeError):
        log.append(batch([b"." * 101]), 0)


def test_the_newest_time_of_several_batches_counts(open_log: Callable[..., Log]) -> None:
    log = open_log()
    times_ms = (NOW_MS, NOW_MS + 500, NOW_MS + 10)
    info = log.append(together(*(batch(timestamp_ms=each) for each in times_ms)), 0)
    assert info.max_timestamp_ms == NOW_MS + 500


def test_what_is_on_disk_is_not_flushed_again(open_log: Callable[..., Log], clock: Clock) -> None:
    log = open_log(dataclasses.replace(SMALL, flush_ms=100))
    clock.now_ms += 1000
    assert not log.is_flush_due
    log.append(batch(), 0)
    assert log.is_flush_due
    log.flush()
    clock.now_ms += 1000
    assert not log.is_flush_due


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_a_disk_that_refuses_log_or_index_leaves_all_as_it_was(
    open_log: Callable[..., Log], files: MemoryFiles, refused: int
) -> None:
    """The batch's bytes, its entry in the index of offsets, and the one in that of times."""
    log = open_log(dataclasses.replace(SMALL, index_interval_bytes=0))
    for later_ms in range(2):
        log.append(batch(timestamp_ms=NOW_MS + later_ms), 0)
    files.fail_next("pwrite", after=refused - 1)
    with pytest.raises(KafkaStorageError):
        log.append(batch([b"lost"], timestamp_ms=NOW_MS + 5000), 0)
    assert log.offset_of_max_timestamp() == (1, NOW_MS + 1)
    assert log.append(batch([b"kept"], timestamp_ms=NOW_MS + 2), 0).first_offset == 2
    for again in (log, open_log(files=files.crash())):
        assert contents(again)[2] == b"kept"
        assert again.offset_of_max_timestamp() == (2, NOW_MS + 2)


def test_rolls_when_the_index_of_times_is_full(open_log: Callable[..., Log]) -> None:
    log = open_log(TINY_INDEXES)
    for later_ms in range(20):
        log.append(batch(timestamp_ms=NOW_MS + later_ms), 0)
    assert {each.offset_index.entry_count for each in log.segments[:-1]} == {2}


def test_the_newest_time_is_known_after_a_restart_though_the_index_was_full(
    open_log: Callable[..., Log],
) -> None:
    log = open_log(TINY_INDEXES)
    log.append(together(*(batch(timestamp_ms=NOW_MS + later) for later in range(6))), 0)
    log.close()
    again = open_log(TINY_INDEXES, was_clean=True)
    assert again.offset_of_max_timestamp() == (5, NOW_MS + 5)
    assert again.offset_for_timestamp(NOW_MS + 5) == (5, NOW_MS + 5)


def test_a_truncation_forgets_the_times_of_what_it_cut(open_log: Callable[..., Log]) -> None:
    log = open_log()
    log.append(batch(timestamp_ms=NOW_MS), 0)
    log.append(batch(timestamp_ms=NOW_MS + 5000), 0)
    log.truncate_to(1)
    assert log.offset_of_max_timestamp() == (0, NOW_MS)
    log.append(batch(timestamp_ms=NOW_MS + 1), 0)
    assert log.offset_of_max_timestamp() == (1, NOW_MS + 1)


def test_what_was_truncated_stays_away_after_a_power_loss(
    open_log: Callable[..., Log], files: MemoryFiles
) -> None:
    log = open_log()
    for _ in range(10):
        log.append(batch(), 0)
    log.flush()
    log.truncate_to(5)
    again = open_log(files=files.crash(power_loss=True))
    assert list(contents(again)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("then", ["nothing", "append", "append, flush", "close", "append, close"])
def test_a_power_loss_takes_no_time_of_a_segment_that_was_synced_before_it_was_sealed(
    open_log: Callable[..., Log], files: MemoryFiles, then: str
) -> None:
    log = open_log()
    log.append(batch(), 0)
    log.flush()
    log.roll()
    files.sync_directory(log.directory)
    if "append" in then:
        log.append(batch(timestamp_ms=NOW_MS + 1), 0)
    if "flush" in then:
        log.flush()
    if "close" in then:
        log.close()
    known = {"was_clean": "close" in then, "recovery_point": log.recovery_point}
    again = open_log(files=files.crash(power_loss=True), **known)
    assert again.offset_for_timestamp(NOW_MS) == (0, NOW_MS)


def test_a_power_loss_takes_no_time_of_an_index_that_was_made_anew(
    open_log: Callable[..., Log], files: MemoryFiles
) -> None:
    log = open_log()
    log.append(batch(), 0)
    log.roll()
    log.append(batch(timestamp_ms=NOW_MS + 1), 0)
    log.close()
    files.remove(log.directory / f"{0:020}.timeindex")
    known = {"was_clean": True, "recovery_point": log.recovery_point}
    rebuilt = open_log(**known)
    files.sync_directory(log.directory)
    again = open_log(files=files.crash(power_loss=True), recovery_point=rebuilt.recovery_point)
    assert again.offset_for_timestamp(NOW_MS) == (0, NOW_MS)


def test_a_flush_takes_what_is_known_of_producers_to_disk(
    open_log: Callable[..., Log], files: MemoryFiles
) -> None:
    log = open_log()
    log.append(batch([b"a"], producer=(7, 0, 0)), 0)
    log.roll()
    log.flush()
    assert log.recovery_point == 1
    path = log.producers.snapshot_path(1)
    assert files.crash(power_loss=True).read(path) == files.read(path)


def test_no_retention_drops_everything_that_is_a_moment_old(
    open_log: Callable[..., Log], clock: Clock
) -> None:
    log = open_log(dataclasses.replace(SMALL, retention_ms=0))
    for _ in range(40):
        log.append(batch([b"." * 50]), 0)
    clock.now_ms += 1
    log.delete_old_segments(40)
    assert (log.log_start_offset, contents(log)) == (40, {})


def test_a_part_of_a_batch_is_no_retry_of_it(open_log: Callable[..., Log]) -> None:
    log = open_log()
    log.append(batch([b"a", b"b"], producer=(7, 0, 0)), 0)
    with pytest.raises(OutOfOrderSequenceNumberError):
        log.append(batch([b"b"], producer=(7, 0, 1)), 0)
    assert log.append(batch([b"a", b"b"], producer=(7, 0, 0)), 0).is_duplicate


def test_a_producer_that_goes_on_is_not_forgotten(
    open_log: Callable[..., Log], clock: Clock
) -> None:
    log = open_log()
    log.append(batch([b"a"], producer=(7, 0, 0)), 0)
    clock.now_ms += 900
    log.append(batch([b"b"], producer=(7, 0, 1)), 0)
    clock.now_ms += 100
    log.remove_expired_producers(1000)
    assert log.append(batch([b"b"], producer=(7, 0, 1)), 0).is_duplicate


@pytest.mark.parametrize("was_clean", [True, False])
def test_an_older_coordinator_is_fenced_after_a_restart(
    open_log: Callable[..., Log], was_clean: bool
) -> None:
    log = open_log()
    log.append(batch([b"a"], producer=(7, 0, 0), transactional=True), 0, transactional=True)
    log.append_end_marker(7, 0, TransactionMarker(True, 3), 0)
    log.close()
    again = open_log(was_clean=was_clean)
    with pytest.raises(TransactionCoordinatorFencedError):
        again.append_end_marker(7, 0, TransactionMarker(True, 2), 0)
