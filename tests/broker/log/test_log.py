"""Log through its public door, on the disk's twin in memory (and on a real one for slices)."""

import dataclasses
import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidTimestampError,
    KafkaStorageError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
)

from broker.config.log import LogConfig
from broker.log.checkpoint import CLEAN, LogCheckpoint
from broker.log.files import File
from broker.log.log import Log
from pyspark_kafkalog.record.batch import batches
from tests.broker.log.batches import (
    GZIP,
    NOW_MS,
    ZSTD,
    batch,
    bytes_of,
    contents,
    together,
    values_in,
)
from tests.broker.log.conftest import Clock
from tests.broker.log.memory_files import MemoryFiles
from tests.support.present import present

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)


@pytest.fixture
def open_log(directory: Path, clock: Clock, files: MemoryFiles) -> Callable[..., Log]:
    def open_log(
        config: LogConfig = SMALL, on_flush_due: Callable[[Log], None] | None = None, **known: Any
    ) -> Log:
        checkpoint = LogCheckpoint(**known)
        return Log(directory, config, clock, files, checkpoint, on_flush_due=on_flush_due)

    return open_log


@pytest.fixture
def log(open_log: Callable[..., Log]) -> Log:
    return open_log()


def fill(log: Log, count: int, *, epoch: int = 0, size: int = 50) -> None:
    for number in range(count):
        log.append(batch([b"%d" % number + b"." * size]), epoch)


class TestAppend:
    def test_numbers_records_from_zero_on_and_stamps_the_bytes_given(self, log: Log) -> None:
        records = batch([b"a", b"b", b"c"])
        first = log.append(batch([b"x"]), 4)
        second = log.append(records, 5)
        assert (first.first_offset, first.last_offset) == (0, 0)
        assert (second.first_offset, second.last_offset) == (1, 3)
        assert second.size_bytes == len(records)
        assert second.max_timestamp_ms == NOW_MS
        assert second.log_append_time_ms == -1
        header = next(batches(records))
        assert (header.base_offset, header.partition_leader_epoch) == (1, 5)
        assert contents(log) == {0: b"x", 1: b"a", 2: b"b", 3: b"c"}

    def test_takes_several_batches_at_once(self, log: Log) -> None:
        info = log.append(together(batch([b"a", b"b"]), batch([b"c"]), batch([b"d"])), 0)
        assert (info.first_offset, info.last_offset) == (0, 3)
        assert contents(log) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}

    @pytest.mark.parametrize("codec", [GZIP, ZSTD])
    def test_keeps_the_producers_compression(self, log: Log, codec: int) -> None:
        sent = batch([b"v" * 200], codec=codec)
        log.append(sent, 0)
        assert present(log.read(0, 10_000, 1)).read() == bytes(sent)

    def test_stamps_the_brokers_time_where_the_topic_wants_it(
        self, open_log: Callable[..., Log], clock: Clock
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, message_timestamp_type="LogAppendTime"))
        clock.now_ms += 77
        info = log.append(batch([b"a"], timestamp_ms=5), 0)
        assert info.log_append_time_ms == info.max_timestamp_ms == clock.now_ms
        data = present(log.read(0, 10_000, 1)).read()
        assert values_in(data) == {0: b"a"}
        assert next(batches(data)).is_log_append_time

    @pytest.mark.parametrize("timestamp_ms", [NOW_MS + 11, NOW_MS - 21])
    def test_refuses_timestamps_out_of_the_topics_bounds(
        self, open_log: Callable[..., Log], timestamp_ms: int
    ) -> None:
        config = dataclasses.replace(
            SMALL, message_timestamp_after_max_ms=10, message_timestamp_before_max_ms=20
        )
        log = open_log(config)
        log.append(together(batch(timestamp_ms=NOW_MS + 10), batch(timestamp_ms=NOW_MS - 20)), 0)
        with pytest.raises(InvalidTimestampError, match=r"message\.timestamp\.after\.max\.ms=10"):
            log.append(batch(timestamp_ms=timestamp_ms), 0)

    def test_refuses_what_is_too_large_for_a_batch_or_a_segment(
        self, open_log: Callable[..., Log]
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, max_message_bytes=300))
        with pytest.raises(MessageSizeTooLargeError, match=r"max\.message\.bytes=300"):
            log.append(batch([b"." * 300]), 0)
        with pytest.raises(RecordListTooLargeError, match=r"segment\.bytes=1000"):
            log.append(together(*[batch([b"." * 200])] * 5), 0)
        assert log.log_end_offset == 0

    def test_leaves_nothing_behind_when_the_disk_is_full(
        self, log: Log, files: MemoryFiles
    ) -> None:
        fill(log, 5)
        before = contents(log)
        files.fail_next("pwrite")
        with pytest.raises(KafkaStorageError, match="No space left"):
            log.append(batch([b"lost"]), 0)
        assert contents(log) == before
        info = log.append(batch([b"next"]), 0)
        assert info.first_offset == 5
        assert contents(log) == {**before, 5: b"next"}

    @pytest.mark.parametrize("refused", [".log", ".index", ".timeindex", ".snapshot", "seal"])
    def test_goes_on_in_the_old_segment_when_it_cannot_roll(
        self, open_log: Callable[..., Log], files: MemoryFiles, refused: str
    ) -> None:
        """What is too large for the old segment is refused; what fits outlives a restart."""
        interval_bytes = 10_000 if refused == "seal" else 0  # sealing writes only what is missing
        log = open_log(dataclasses.replace(SMALL, index_interval_bytes=interval_bytes))
        fill(log, 5)
        open_file, replace_file = files.open, files.replace

        def refuse(path: Path) -> None:
            if path.suffix == refused:
                raise OSError(errno.ENOSPC, "No space left on device")

        def open_or_refuse(path: Path, *, create: bool = False) -> File:
            refuse(path)
            file = open_file(path, create=create)
            if refused == "seal" and path.suffix == ".timeindex":
                files.fail_next("pwrite")
            return file

        def replace_or_refuse(path: Path, data: bytes, *, sync: bool = True) -> None:
            refuse(path)
            replace_file(path, data, sync=sync)

        log.append(batch([b"later"], timestamp_ms=NOW_MS + 1), 0)  # not yet in the time index
        files.open, files.replace = open_or_refuse, replace_or_refuse  # type: ignore[method-assign]
        with pytest.raises(KafkaStorageError, match="No space"):
            log.append(batch([b"." * 600]), 0)
        files.open, files.replace = open_file, replace_file  # type: ignore[method-assign]
        for number in (6, 7):
            assert log.append(batch([b"small"]), 0).first_offset == number
        expected = contents(log)
        assert expected[7] == b"small"
        log.close()
        again = open_log(was_clean=True)
        assert again.log_end_offset == 8
        assert contents(again) == expected

    def test_leaves_nothing_behind_when_an_index_cannot_be_written(
        self, open_log: Callable[..., Log], files: MemoryFiles
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, index_interval_bytes=0))
        fill(log, 2)
        files.takes_failure("pwrite")
        original = files.takes_failure
        calls = []

        def fail_on_second(operation: str) -> bool:
            calls.append(operation)
            return len(calls) == 2 or original(operation)

        files.takes_failure = fail_on_second  # type: ignore[method-assign]
        with pytest.raises(KafkaStorageError):
            log.append(batch([b"lost"]), 0)
        files.takes_failure = original  # type: ignore[method-assign]
        log.append(batch([b"kept"]), 0)
        assert contents(log)[2] == b"kept"

    def test_refuses_after_close(self, log: Log) -> None:
        log.close()
        with pytest.raises(KafkaStorageError, match="closed"):
            log.append(batch(), 0)


class TestIdempotence:
    def test_answers_a_retry_with_the_offsets_of_the_first_time(self, log: Log) -> None:
        for sequence in range(5):
            log.append(batch([b"%d" % sequence], producer=(9, 0, sequence)), 0)
        retry = log.append(batch([b"1"], producer=(9, 0, 1)), 0)
        assert (retry.first_offset, retry.last_offset, retry.is_duplicate) == (1, 1, True)
        assert log.log_end_offset == 5

    def test_refuses_a_gap_and_what_is_older_than_five_batches(self, log: Log) -> None:
        for sequence in range(6):
            log.append(batch([b"x"], producer=(9, 0, sequence)), 0)
        for sequence in (0, 7):
            with pytest.raises(OutOfOrderSequenceNumberError, match="expected 6"):
                log.append(batch([b"x"], producer=(9, 0, sequence)), 0)

    def test_fences_an_old_epoch_and_lets_a_new_one_begin_at_zero(self, log: Log) -> None:
        log.append(batch([b"x", b"y"], producer=(9, 3, 0)), 0)
        with pytest.raises(InvalidProducerEpochError):
            log.append(batch([b"x"], producer=(9, 2, 2)), 0)
        with pytest.raises(OutOfOrderSequenceNumberError):
            log.append(batch([b"x"], producer=(9, 4, 2)), 0)
        log.append(batch([b"z"], producer=(9, 4, 0)), 0)
        assert len(contents(log)) == 3

    def test_sequences_wrap_to_zero(self, log: Log) -> None:
        top = 2**31 - 1
        log.append(batch([b"a"], producer=(1, 0, top - 1)), 0)
        log.append(batch([b"b", b"c"], producer=(1, 0, top)), 0)
        assert log.append(batch([b"b", b"c"], producer=(1, 0, top)), 0).is_duplicate
        log.append(batch([b"d"], producer=(1, 0, 1)), 0)
        assert log.log_end_offset == 4

    @pytest.mark.parametrize("closes", [True, False])
    def test_is_remembered_over_a_restart(self, open_log: Callable[..., Log], closes: bool) -> None:
        log = open_log()
        for sequence in range(12):
            log.append(batch([b"." * 100], producer=(7, 1, sequence)), 0)
        if closes:
            log.close()
        again = open_log(was_clean=closes)
        assert again.append(batch([b"." * 100], producer=(7, 1, 11)), 0).is_duplicate
        assert again.append(batch([b"new"], producer=(7, 1, 12)), 0).first_offset == 12

    def test_is_forgotten_by_truncation(self, log: Log) -> None:
        for sequence in range(12):
            log.append(batch([b"." * 100], producer=(7, 1, sequence)), 0)
        log.truncate_to(4)
        with pytest.raises(OutOfOrderSequenceNumberError, match="expected 4"):
            log.append(batch([b"x"], producer=(7, 1, 12)), 0)
        assert log.append(batch([b"x"], producer=(7, 1, 4)), 0).first_offset == 4

    def test_is_forgotten_after_the_expiration(self, log: Log, clock: Clock) -> None:
        log.append(batch([b"a"], producer=(7, 1, 0)), 0)
        clock.now_ms += 1000
        log.append(batch([b"a"], producer=(8, 1, 0)), 0)
        log.remove_expired_producers(1000)
        assert set(log.producers.entries) == {8}


class TestRead:
    def test_gives_the_whole_batch_that_holds_an_offset_in_its_middle(self, log: Log) -> None:
        log.append(batch([b"a"]), 0)
        log.append(batch([b"b", b"c", b"d"]), 0)
        data = present(log.read(2, 1000, 4)).read()
        assert values_in(data) == {1: b"b", 2: b"c", 3: b"d"}

    def test_every_offset_is_found_in_a_log_of_many_segments(self, log: Log) -> None:
        fill(log, 100)
        assert log.segment_count > 5
        for offset in range(100):
            data = present(log.read(offset, 1, 100)).read()
            assert list(values_in(data)) == [offset]

    def test_max_bytes_cuts_but_the_first_batch_comes_whole(self, log: Log) -> None:
        fill(log, 3)
        size_bytes = log.size_bytes // 3
        assert present(log.read(0, size_bytes * 2, 3)).size_bytes == size_bytes * 2
        assert present(log.read(0, size_bytes + 10, 3)).size_bytes == size_bytes + 10
        assert present(log.read(0, 10, 3)).size_bytes == size_bytes
        assert present(log.read(0, 10, 3, min_one_batch=False)).size_bytes == 10
        assert log.read(0, 0, 3, min_one_batch=False) is None

    def test_stops_below_the_upper_bound(self, log: Log) -> None:
        log.append(batch([b"a", b"b"]), 0)
        log.append(batch([b"c", b"d"]), 0)
        log.append(batch([b"e"]), 0)
        assert list(values_in(present(log.read(0, 9999, 4)).read())) == [0, 1, 2, 3]
        assert list(values_in(present(log.read(0, 9999, 3)).read())) == [0, 1]
        assert log.read(2, 9999, 3) is None
        assert log.read(4, 9999, 4) is None
        assert log.read(5, 9999, 5) is None

    def test_refuses_offsets_outside_of_the_log(self, log: Log) -> None:
        fill(log, 30)
        log.advance_log_start_offset(10)
        for offset in (9, 31, -1):
            with pytest.raises(OffsetOutOfRangeError, match=r"10\.\.30"):
                log.read(offset, 100, 30)

    def test_slices_outlive_their_segment_on_a_real_disk(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        log = Log(tmp_path, dataclasses.replace(SMALL, retention_bytes=0), clock)
        fill(log, 40)
        piece = log.read(0, 500, 40)
        expected = present(piece).read()
        assert log.delete_old_segments(40) > 1
        clock.now_ms += SMALL.file_delete_delay_ms
        log.remove_deleted_files()
        assert not list(tmp_path.glob("*.deleted"))
        assert log.log_start_offset == 40
        assert (
            os.pread(present(piece).file.fileno(), len(present(piece)), present(piece).position)
            == expected
        )

    def test_goes_on_in_other_threads_while_the_log_grows_and_shrinks(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        log = Log(tmp_path, dataclasses.replace(SMALL, retention_bytes=2000), clock)
        problems = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                offset = log.log_start_offset
                try:
                    data = log.read(offset, 500, log.log_end_offset)
                    assert min(values_in(bytes_of(data)), default=offset) <= offset
                    log.flush()
                    log.delete_old_segments(log.log_end_offset)
                except OffsetOutOfRangeError:
                    continue
                except Exception as error:
                    problems.append(error)
                    return

        thread = threading.Thread(target=read)
        thread.start()
        fill(log, 600)
        stop.set()
        thread.join()
        assert not problems
        assert log.log_end_offset == 600


class TestTimestamps:
    def test_finds_the_first_record_at_or_after(self, log: Log) -> None:
        for start in (1000, 2000, 1500, 3000):
            values = [b"." * 60] * 4
            log.append(batch(values, timestamp_ms=start, step_ms=10, codec=GZIP), 0)
        assert log.offset_for_timestamp(0) == (0, 1000)
        assert log.offset_for_timestamp(1011) == (2, 1020)
        assert log.offset_for_timestamp(1031) == (4, 2000)
        assert log.offset_for_timestamp(2031) == (12, 3000)
        assert log.offset_for_timestamp(3031) is None
        assert log.offset_of_max_timestamp() == (15, 3030)

    def test_agrees_with_a_scan_over_many_segments_and_a_restart(
        self, open_log: Callable[..., Log]
    ) -> None:
        log = open_log()
        stamps = []
        for number in range(120):
            stamp = NOW_MS + (number * 7919) % 400
            stamps.append(stamp)
            log.append(batch([b"." * 30], timestamp_ms=stamp), 0)
        for again in (log, open_log()):
            for target in range(NOW_MS - 1, NOW_MS + 401, 7):
                expected = next(((o, s) for o, s in enumerate(stamps) if s >= target), None)
                assert again.offset_for_timestamp(target) == expected

    def test_skips_what_lies_below_the_log_start(self, log: Log) -> None:
        log.append(batch([b"a", b"b", b"c"], timestamp_ms=10, step_ms=1), 0)
        log.advance_log_start_offset(1)
        assert log.offset_for_timestamp(0) == (1, 11)

    def test_finds_the_brokers_own_time(self, open_log: Callable[..., Log], clock: Clock) -> None:
        log = open_log(dataclasses.replace(SMALL, message_timestamp_type="LogAppendTime"))
        log.append(batch([b"a", b"b"]), 0)
        clock.now_ms += 5
        log.append(batch([b"c", b"d"]), 0)
        assert log.offset_for_timestamp(NOW_MS + 1) == (2, NOW_MS + 5)

    def test_an_empty_log_has_none(self, log: Log) -> None:
        assert log.offset_for_timestamp(0) is None
        assert log.offset_of_max_timestamp() is None


class TestRoll:
    def test_rolls_by_size(self, log: Log) -> None:
        fill(log, 60)
        assert log.segment_count > 3
        assert present(log.read(0, 10**6, 60)).size_bytes <= 1000

    def test_rolls_by_the_records_time(self, open_log: Callable[..., Log]) -> None:
        log = open_log(dataclasses.replace(SMALL, segment_ms=100))
        log.append(batch(timestamp_ms=1000), 0)
        log.append(batch(timestamp_ms=1100), 0)
        assert log.segment_count == 1
        log.append(batch(timestamp_ms=1101), 0)
        assert log.segment_count == 2

    def test_rolls_by_the_clock_where_records_have_no_time(
        self, open_log: Callable[..., Log], clock: Clock
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, segment_ms=100))
        log.append(batch(timestamp_ms=-1), 0)
        clock.now_ms += 101
        log.append(batch(timestamp_ms=-1), 0)
        assert log.segment_count == 2

    def test_jitter_makes_a_log_roll_earlier_never_later(
        self, open_log: Callable[..., Log]
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, segment_ms=100, segment_jitter_ms=100))
        log.append(batch(timestamp_ms=1000), 0)
        log.append(batch(timestamp_ms=1101), 0)
        assert log.segment_count == 2

    def test_rolls_when_an_index_is_full(self, open_log: Callable[..., Log]) -> None:
        full = dataclasses.replace(
            SMALL, segment_bytes=10**6, segment_index_bytes=36, index_interval_bytes=0
        )
        log = open_log(full)
        fill(log, 20)
        assert log.segment_count > 3
        assert len(contents(log)) == 20

    def test_does_not_roll_an_empty_segment(self, log: Log) -> None:
        log.roll()
        assert log.segment_count == 1

    def test_reserves_disk_space_and_gives_it_back(
        self, open_log: Callable[..., Log], files: MemoryFiles, directory: Path
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, preallocate=True))
        path = directory / f"{0:020d}.log"
        assert len(files.names[path].data) == 1000
        log.append(batch(), 0)
        size_bytes = log.size_bytes
        again = Log(directory, SMALL, files=files.crash())
        assert (again.log_end_offset, again.size_bytes) == (1, size_bytes)
        log.roll()
        assert len(files.names[path].data) == size_bytes


class TestTruncate:
    def test_to_every_offset_keeps_exactly_what_is_below(
        self, directory: Path, clock: Clock
    ) -> None:
        for target in range(0, 61, 3):
            files = MemoryFiles()
            log = Log(directory, SMALL, clock, files)
            fill(log, 60)
            everything = contents(log)
            log.truncate_to(target)
            assert contents(log) == {o: v for o, v in everything.items() if o < target}
            assert log.log_end_offset == target
            assert log.append(batch([b"new"]), 1).first_offset == target
            assert contents(Log(directory, SMALL, clock, files.crash())) == contents(log)

    def test_into_a_batch_takes_the_whole_batch(self, log: Log) -> None:
        log.append(batch([b"a"]), 0)
        log.append(batch([b"b", b"c"]), 0)
        log.truncate_to(2)
        assert log.log_end_offset == 1

    def test_forgets_leader_epochs_and_the_recovery_point(self, log: Log) -> None:
        fill(log, 5, epoch=1)
        fill(log, 5, epoch=2)
        log.flush()
        log.truncate_to(5)
        assert log.leader_epochs.latest_epoch == 1
        assert log.recovery_point == 5

    def test_below_the_first_segment_begins_anew(self, open_log: Callable[..., Log]) -> None:
        log = open_log(dataclasses.replace(SMALL, retention_bytes=0))
        fill(log, 40)
        log.delete_old_segments(40)
        log.truncate_to(7)
        assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (7, 7, 1)

    def test_a_log_that_begins_elsewhere_knows_nothing_of_what_it_was(
        self, open_log: Callable[..., Log]
    ) -> None:
        """Of an epoch that it ended with, a leader would say where that ends."""
        log = open_log()
        log.append(batch([b"a"], producer=(7, 0, 0)), 3)
        fill(log, 40)
        log.restart_at(1000)
        assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (1000, 1000, 1)
        assert (log.leader_epochs.entries, log.producers.entries) == ((), {})
        assert log.recovery_point == log.first_dirty_offset == 1000
        assert log.append(batch([b"b"]), 5).first_offset == 1000
        assert open_log().leader_epochs.entries == ((5, 1000),)

    def test_past_the_end_changes_nothing(self, log: Log) -> None:
        fill(log, 3)
        log.truncate_to(4)
        assert log.log_end_offset == 3


class TestRetention:
    def test_drops_by_size_whole_segments_oldest_first(self, open_log: Callable[..., Log]) -> None:
        log = open_log(dataclasses.replace(SMALL, retention_bytes=2500))
        fill(log, 100)
        everything = contents(log)
        assert log.delete_old_segments(100) > 0
        assert 2500 <= log.size_bytes < 3500
        start = log.log_start_offset
        assert contents(log) == {o: v for o, v in everything.items() if o >= start}

    def test_drops_by_age_of_the_newest_record(
        self, open_log: Callable[..., Log], clock: Clock
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, retention_ms=1000))
        log.append(batch([b"." * 700], timestamp_ms=NOW_MS), 0)
        log.append(batch([b"." * 700], timestamp_ms=NOW_MS + 500), 0)
        clock.now_ms += 1000
        assert log.delete_old_segments(2) == 0
        clock.now_ms += 1
        assert log.delete_old_segments(2) == 1
        assert log.log_start_offset == 1
        clock.now_ms += 500
        assert log.delete_old_segments(2) == 1
        assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (2, 2, 1)

    def test_keeps_what_is_not_below_the_high_watermark(self, open_log: Callable[..., Log]) -> None:
        log = open_log(dataclasses.replace(SMALL, retention_bytes=0))
        fill(log, 100)
        log.delete_old_segments(50)
        assert 35 < log.log_start_offset <= 50

    @pytest.mark.parametrize("policy", [("compact",), ("compact", "delete")])
    def test_only_the_delete_policy_deletes(
        self, open_log: Callable[..., Log], policy: tuple[str, ...]
    ) -> None:
        config = dataclasses.replace(SMALL, retention_bytes=0, cleanup_policy=policy)
        log = open_log(config)
        for _ in range(60):
            log.append(batch([bytes(100)], keys=[b"k"]), 0)
        assert (log.delete_old_segments(60) > 0) == ("delete" in policy)

    def test_drops_segments_below_the_start_that_delete_records_set(self, log: Log) -> None:
        fill(log, 60)
        log.advance_log_start_offset(45)
        assert log.delete_old_segments(60) > 0
        assert min(contents(log)) == 45
        with pytest.raises(OffsetOutOfRangeError):
            log.advance_log_start_offset(61)

    def test_files_wait_for_their_delay(
        self, open_log: Callable[..., Log], clock: Clock, files: MemoryFiles, directory: Path
    ) -> None:
        config = dataclasses.replace(SMALL, retention_bytes=0, file_delete_delay_ms=50)
        log = open_log(config)
        fill(log, 30)
        log.delete_old_segments(30)
        assert any(name.endswith(".deleted") for name in files.list(directory))
        clock.now_ms += 49
        log.remove_deleted_files()
        assert log.has_deleted_files
        assert any(name.endswith(".deleted") for name in files.list(directory))
        clock.now_ms += 1
        log.remove_deleted_files()
        assert not log.has_deleted_files
        assert not any(name.endswith(".deleted") for name in files.list(directory))

    def test_files_do_not_wait_for_a_clock_set_back(
        self, open_log: Callable[..., Log], clock: Clock, files: MemoryFiles, directory: Path
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, retention_bytes=0, file_delete_delay_ms=50))
        fill(log, 30)
        log.delete_old_segments(30)
        clock.now_ms -= 86_400_000
        log.remove_deleted_files()
        assert not log.has_deleted_files
        assert not any(name.endswith(".deleted") for name in files.list(directory))

    def test_moves_the_leader_epochs_start(self, open_log: Callable[..., Log]) -> None:
        log = open_log(dataclasses.replace(SMALL, retention_bytes=0))
        fill(log, 30, epoch=3)
        log.delete_old_segments(30)
        assert log.leader_epochs.epoch_for_offset(29) is None
        assert log.leader_epochs.entries == ((3, 30),)


class TestFlush:
    def test_what_was_flushed_survives_power_loss(
        self, log: Log, files: MemoryFiles, directory: Path, clock: Clock
    ) -> None:
        fill(log, 40)
        log.flush()
        expected = contents(log)
        fill(log, 20)
        again = Log(
            directory, SMALL, clock, files.crash(power_loss=True), LogCheckpoint(log.recovery_point)
        )
        assert contents(again) == expected
        assert again.leader_epochs.entries == ((0, 0),)

    def test_what_was_not_flushed_survives_the_death_of_the_process(
        self, log: Log, files: MemoryFiles, directory: Path, clock: Clock
    ) -> None:
        fill(log, 40)
        assert contents(Log(directory, SMALL, clock, files.crash())) == contents(log)

    def test_is_due_by_messages_and_by_time(
        self, open_log: Callable[..., Log], clock: Clock
    ) -> None:
        log = open_log(dataclasses.replace(SMALL, flush_messages=3, flush_ms=100))
        assert not log.is_flush_due
        fill(log, 2)
        assert not log.is_flush_due
        fill(log, 1)
        assert log.is_flush_due
        log.flush()
        fill(log, 1)
        assert not log.is_flush_due
        clock.now_ms += 100
        assert log.is_flush_due

    def test_is_due_when_the_clock_was_set_back(
        self, open_log: Callable[..., Log], clock: Clock
    ) -> None:
        """Power loss must not take what was appended until the clock catches up."""
        log = open_log(dataclasses.replace(SMALL, flush_ms=100))
        clock.now_ms -= 1_800_000
        fill(log, 1)
        assert log.is_flush_due
        log.flush()
        fill(log, 1)
        assert not log.is_flush_due
        clock.now_ms += 100
        assert log.is_flush_due

    def test_is_asked_for_when_the_log_rolls_or_enough_records_came(
        self, open_log: Callable[..., Log]
    ) -> None:
        asked: list[Log] = []
        log = open_log(dataclasses.replace(SMALL, flush_messages=4), on_flush_due=asked.append)
        fill(log, 3)
        assert asked == []
        fill(log, 1)
        assert asked == [log]
        log.flush()
        log.roll()
        assert asked == [log, log]

    def test_a_failed_sync_ends_writing_for_good(self, log: Log, files: MemoryFiles) -> None:
        fill(log, 3)
        files.fail_next("sync")
        with pytest.raises(KafkaStorageError, match="Input/output error"):
            log.flush()
        with pytest.raises(KafkaStorageError, match="no more writes"):
            log.append(batch(), 0)
        with pytest.raises(KafkaStorageError, match="no more writes"):
            log.flush()  # the disk would say yes now, though it lost what it refused before
        assert log.recovery_point == 0
        assert len(contents(log)) == 3

    def test_does_not_move_the_recovery_point_over_a_truncation(
        self, log: Log, files: MemoryFiles
    ) -> None:
        fill(log, 10)
        original = files.sync_directory

        def truncate_meanwhile(path: Path) -> None:
            original(path)
            files.sync_directory = original  # type: ignore[method-assign]
            log.truncate_to(4)

        files.sync_directory = truncate_meanwhile  # type: ignore[method-assign]
        log.flush()
        assert log.recovery_point <= 4


class TestClose:
    def test_opens_clean_with_everything_and_reads_no_batch_twice(
        self, log: Log, open_log: Callable[..., Log]
    ) -> None:
        fill(log, 50, epoch=2)
        expected = contents(log)
        log.close()
        log.close()
        again = open_log(was_clean=True)
        assert contents(again) == expected
        assert again.recovery_point == 50
        assert again.leader_epochs.entries == ((2, 0),)

    def test_survives_power_loss(
        self, log: Log, files: MemoryFiles, directory: Path, clock: Clock
    ) -> None:
        fill(log, 50)
        log.close()
        disk = files.crash(power_loss=True)
        assert contents(Log(directory, SMALL, clock, disk, CLEAN)) == contents(log)

    def test_an_empty_log_reopens_empty(self, log: Log, open_log: Callable[..., Log]) -> None:
        log.close()
        again = open_log(was_clean=True)
        assert (again.log_start_offset, again.log_end_offset) == (0, 0)


def test_indexes_have_kafkas_bytes(
    open_log: Callable[..., Log], files: MemoryFiles, directory: Path
) -> None:
    """Golden: three 100-byte batches, an entry once more than 150 bytes lie since the last."""
    log = open_log(dataclasses.replace(SMALL, index_interval_bytes=150))
    size_bytes = len(batch([b"." * 31]))
    for number in range(3):
        log.append(batch([b"." * 31], timestamp_ms=1000 + number), 0)
    index = bytes(files.names[directory / f"{0:020d}.index"].data)
    time_index = bytes(files.names[directory / f"{0:020d}.timeindex"].data)
    assert index == struct.pack(">ii", 2, 2 * size_bytes)
    assert time_index == struct.pack(">qi", 1002, 2)
