"""Compaction of a log: what stays, what goes, and that a crash at any step loses nothing."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.config.log import LogConfig
from broker.log.checkpoint import CLEAN, LogCheckpoint
from broker.log.cleaner import (
    CleaningResult,
    SegmentExtent,
    Throttler,
    group_segments,
)
from broker.log.cleaner_manager import CleanableLog, LogCleaner
from broker.log.files import DiskFiles
from broker.log.log import Log, LogAppendInfo
from pyspark_kafkalog.record.batch import DELETE_HORIZON_BIT, batches
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import GZIP, LZ4, NOW_MS, SNAPPY, ZSTD, batch
from tests.broker.log.compaction import (
    SETTINGS,
    TP,
    InlineWorker,
    cleaner_of,
    compact,
    names,
    rows,
    stored,
)
from tests.broker.log.conftest import Clock
from tests.broker.log.cut_files import CutFiles, PowerCut
from tests.broker.log.memory_files import MemoryFiles
from tests.support.present import present

CONFIG = LogConfig(
    segment_bytes=1000,
    index_interval_bytes=150,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
    file_delete_delay_ms=10,
)
COMMIT, ABORT = TransactionMarker(True, 0), TransactionMarker(False, 0)


@pytest.fixture
def log(directory: Path, files: MemoryFiles, clock: Clock) -> Log:
    return Log(directory, CONFIG, clock, files, CLEAN)


def put(log: Log, *pairs: tuple[bytes | None, bytes | None], **options: Any) -> LogAppendInfo:
    keys, values = zip(*pairs, strict=True)
    transactional = bool(options.get("transactional"))
    return log.append(batch(values, keys=keys, **options), 0, transactional=transactional)


def pairs(log: Log) -> list[Any]:
    return [(row.offset, row.key, row.value) for row in rows(log)]


class TestWhatStays:
    def test_the_latest_record_of_each_key_at_its_offset(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        for number in range(60):
            put(log, (b"k%d" % (number % 5), b"%d" % number))
        assert compact(log, files, clock) == 1
        assert pairs(log) == [(n, b"k%d" % (n % 5), b"%d" % n) for n in range(55, 60)]
        assert (log.log_start_offset, log.log_end_offset) == (0, 60)
        assert log.first_dirty_offset == 60

    def test_the_active_segment_is_not_touched(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        for number in range(5):
            put(log, (b"k", b"%d" % number))
        cleaner = cleaner_of({TP: log}, files, clock)
        assert not cleaner.clean_next(InlineWorker(files))
        assert len(rows(log)) == 5

    @pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
    def test_a_batch_kept_in_part_has_the_same_codec_offsets_and_timestamps(
        self, log: Log, files: MemoryFiles, clock: Clock, codec: int
    ) -> None:
        pairs_given = [(b"k%d" % (n % 7), b"v%d" % n + bytes(70)) for n in range(10)]
        put(log, *pairs_given, codec=codec, step_ms=3)
        put(log, (b"k9", bytes(99)), codec=codec)
        whole = stored(log)[list(batches(stored(log)))[1].position :]
        compact(log, files, clock)
        first, second = batches(stored(log))
        assert (first.base_offset, first.last_offset, first.record_count) == (0, 9, 7)
        assert first.codec == codec
        assert stored(log).endswith(whole)
        assert second.base_offset == 10
        expected = [(n, NOW_MS + 3 * n) for n in range(3, 10)]
        assert [(r.offset, r.timestamp_ms) for r in rows(log)][:-1] == expected

    def test_headers_of_records_survive(self, log: Log, files: MemoryFiles, clock: Clock) -> None:
        from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

        builder = MemoryRecordsBuilder(2, 0, 1 << 20)
        for key, header in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None)):
            builder.append(NOW_MS, key, None if header is None else b"v", [("h", header)])
        builder.close()
        log.append(memoryview(bytearray(builder.buffer())), 0)
        compact(log, files, clock)
        kept = [record.headers for record in MemoryRecords(stored(log)).next_batch()]
        assert kept == [[("h", b"3")], [("h", None)]]

    def test_records_without_a_key_go(self, log: Log, files: MemoryFiles, clock: Clock) -> None:
        log.config = dataclasses.replace(CONFIG, cleanup_policy=("delete",))
        put(log, (b"a", b"1"), (None, b"2"), (b"b", b"3"))
        log.config = CONFIG
        compact(log, files, clock)
        assert pairs(log) == [(0, b"a", b"1"), (2, b"b", b"3")]

    def test_append_time_stays_what_it_was(
        self, directory: Path, files: MemoryFiles, clock: Clock
    ) -> None:
        config = dataclasses.replace(CONFIG, message_timestamp_type="LogAppendTime")
        log = Log(directory, config, clock, files, CLEAN)
        put(log, (b"a", b"1"), (b"a", b"2"), (b"b", None), timestamp_ms=5)
        compact(log, files, clock)
        assert [(r.offset, r.timestamp_ms) for r in rows(log)] == [(1, NOW_MS), (2, NOW_MS)]
        assert log.offset_for_timestamp(NOW_MS) == (1, NOW_MS)

    def test_what_the_map_cannot_hold_is_cleaned_in_further_passes(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        for number in range(300):
            put(log, (b"k%d" % (number % 100), b"%d" % number))
        settings = dataclasses.replace(SETTINGS, dedupe_buffer_bytes=24 * 40, load_factor=0.75)
        assert compact(log, files, clock, settings) > 3
        assert pairs(log) == [(n, b"k%d" % (n % 100), b"%d" % n) for n in range(200, 300)]

    def test_a_map_that_fills_within_a_batch_ends_the_pass_there(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        put(log, *[(b"k%d" % (n % 30), b"%d" % n) for n in range(90)], codec=GZIP)
        settings = dataclasses.replace(SETTINGS, dedupe_buffer_bytes=24 * 20, load_factor=0.75)
        assert compact(log, files, clock, settings) > 3
        assert pairs(log) == [(n, b"k%d" % (n % 30), b"%d" % n) for n in range(60, 90)]

    def test_an_aborted_record_counts_for_nothing_in_a_pass_that_begins_after_its_first_one(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        put(log, (b"x", b"aborted"), producer=(7, 0, 0), transactional=True)
        put(log, (b"a", b"kept"))
        for number in range(40):
            put(log, (b"k%d" % number, b"."))
        put(log, (b"a", b"aborted"), producer=(7, 0, 1), transactional=True)
        log.append_end_marker(7, 0, ABORT, 0)
        settings = dataclasses.replace(SETTINGS, dedupe_buffer_bytes=24 * 20, load_factor=0.75)
        assert compact(log, files, clock, settings) > 2
        assert [row.value for row in rows(log) if row.key == b"a"] == [b"kept"]
        assert len(rows(log)) == 41

    def test_an_emptied_batch_has_no_newest_record(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        put(log, (b"a", b"1"), producer=(7, 0, 0), timestamp_ms=NOW_MS + 100)
        put(log, (b"a", b"2"), timestamp_ms=NOW_MS)
        log.roll()
        put(log, (b"z", b"1"), timestamp_ms=NOW_MS - 5)
        compact(log, files, clock)
        assert [header.record_count for header in batches(stored(log))] == [0, 1, 1]
        assert log.offset_of_max_timestamp() == (1, NOW_MS)

    def test_batches_larger_than_the_read_buffer(
        self, directory: Path, files: MemoryFiles, clock: Clock
    ) -> None:
        config = dataclasses.replace(CONFIG, segment_bytes=10**6)
        log = Log(directory, config, clock, files, CLEAN)
        for number in range(4):
            put(log, (b"k", bytes(200_000) + b"%d" % number))
        compact(log, files, clock)
        assert [row.offset for row in rows(log)] == [3]


class TestTombstones:
    def test_stay_for_the_retention_after_the_first_pass_and_then_go(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        put(log, (b"a", b"1"), (b"b", b"1"), step_ms=7)
        put(log, (b"a", None), (b"c", b"1"), step_ms=7)
        compact(log, files, clock)
        assert pairs(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
        assert [row.timestamp_ms - NOW_MS for row in rows(log)] == [7, 0, 7]
        second = list(batches(stored(log)))[1]
        assert second.attributes & DELETE_HORIZON_BIT
        assert second.delete_horizon_ms == NOW_MS + 1000
        clock.now_ms += 999
        put(log, (b"d", b"1"))
        compact(log, files, clock)
        assert (2, b"a", None) in pairs(log)
        assert list(batches(stored(log)))[1].delete_horizon_ms == NOW_MS + 1000
        clock.now_ms += 1
        put(log, (b"d", b"2"))
        compact(log, files, clock)
        assert pairs(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (5, b"d", b"2")]

    def test_an_older_value_never_comes_back(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        for number in range(40):
            put(log, (b"k%d" % number, b"old"))
        compact(log, files, clock)
        for number in range(40):
            put(log, (b"k%d" % number, None))
        for _ in range(4):
            clock.now_ms += 600
            put(log, (b"other", b"x"))
            compact(log, files, clock)
            assert not [row for row in rows(log) if row.value == b"old"]
        assert [row.key for row in rows(log)] == [b"other"]


class TestProducers:
    def test_the_last_batch_of_a_known_producer_stays_empty(
        self, log: Log, files: MemoryFiles, clock: Clock, directory: Path
    ) -> None:
        put(log, (b"a", b"1"), (b"a", b"2"), producer=(7, 0, 0))
        put(log, (b"a", b"3"), producer=(8, 0, 0))
        put(log, (b"a", b"4"))
        compact(log, files, clock)
        first, second, _ = batches(stored(log))
        assert (first.producer_id, first.record_count, first.base_sequence) == (7, 0, 0)
        assert (first.base_offset, first.last_offset) == (0, 1)
        assert (second.producer_id, second.record_count) == (8, 0)
        # Its sequence goes on, also when the state must be found in the log again.
        disk = files.crash()
        for path in [path for path in disk.names if path.suffix == ".snapshot"]:
            disk.remove(path)
        again = Log(directory, CONFIG, clock, disk)
        retry = batch([b"1", b"2"], keys=[b"a", b"a"], producer=(7, 0, 0))
        assert again.append(retry, 0).is_duplicate
        assert not put(again, (b"a", b"5"), producer=(7, 0, 2)).is_duplicate

    def test_of_a_forgotten_producer_nothing_stays(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        put(log, (b"a", b"1"), producer=(7, 0, 0))
        put(log, (b"a", b"2"))
        clock.now_ms += 10
        log.remove_expired_producers(5)
        compact(log, files, clock)
        assert [header.producer_id for header in batches(stored(log))] == [-1]


class TestTransactions:
    def test_aborted_records_go_and_their_marker_later(
        self, log: Log, files: MemoryFiles, clock: Clock, directory: Path
    ) -> None:
        put(log, (b"a", b"kept"))
        put(log, (b"a", b"aborted"), producer=(7, 0, 0), transactional=True)
        log.append_end_marker(7, 0, ABORT, 0)
        put(log, (b"b", b"committed"), producer=(8, 0, 0), transactional=True)
        log.append_end_marker(8, 0, COMMIT, 0)
        put(log, (b"z", b"end"))
        compact(log, files, clock)
        expected = [(0, b"a", b"kept"), (3, b"b", b"committed"), (5, b"z", b"end")]
        assert pairs(log) == expected
        # Producer 7 is known, so its last batch stays, emptied; and so its marker and index entry.
        _, aborted = log.read_committed(0, 10_000, 6)
        assert [each.producer_id for each in aborted] == [7]
        again = Log(directory, CONFIG, clock, files.crash())
        assert again.last_stable_offset(6) == 6
        clock.now_ms += 10
        log.remove_expired_producers(5)
        put(log, (b"z", b"end2"))
        compact(log, files, clock)
        assert [h.producer_id for h in batches(stored(log)) if h.is_control] == [7, 8]
        put(log, (b"z", b"end3"))
        compact(log, files, clock)
        clock.now_ms += 1001
        put(log, (b"z", b"end4"))
        compact(log, files, clock)
        assert [h.producer_id for h in batches(stored(log)) if h.is_control] == [8]
        assert not log.read_committed(0, 10_000, 6)[1]
        assert [p for p in pairs(log) if p[1] == b"b"] == [(3, b"b", b"committed")]

    def test_a_marker_goes_though_another_transaction_of_its_producer_stays(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        put(log, (b"b", b"stays"), producer=(8, 0, 0), transactional=True)
        log.append_end_marker(8, 0, COMMIT, 0)
        put(log, (b"c", b"goes"), producer=(8, 0, 1), transactional=True)
        log.append_end_marker(8, 0, COMMIT, 0)
        put(log, (b"c", b"other"))
        clock.now_ms += 10
        log.remove_expired_producers(5)
        for number in range(4):
            put(log, (b"z", b"%d" % number))
            compact(log, files, clock)
            clock.now_ms += 1001
        assert [h.base_offset for h in batches(stored(log)) if h.is_control] == [1]

    def test_a_marker_that_waits_for_its_horizon_is_understood_by_recovery(
        self, log: Log, files: MemoryFiles, clock: Clock, directory: Path
    ) -> None:
        put(log, (b"a", b"1"), producer=(7, 0, 0), transactional=True)
        log.append_end_marker(7, 0, COMMIT, 0)
        put(log, (b"a", b"2"), producer=(7, 0, 1), transactional=True)
        log.append_end_marker(7, 0, COMMIT, 0)
        put(log, (b"a", b"3"), producer=(9, 0, 0))
        for _ in range(2):
            compact(log, files, clock)
            put(log, (b"z", b"1"))
        control = [header for header in batches(stored(log)) if header.is_control]
        assert control[0].delete_horizon_ms == NOW_MS + 1000
        disk = files.crash()
        for path in [path for path in disk.names if path.suffix == ".snapshot"]:
            disk.remove(path)
        again = Log(directory, CONFIG, clock, disk)
        assert again.last_stable_offset(again.log_end_offset) == again.log_end_offset

    def test_nothing_of_an_open_transaction_is_touched(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        put(log, (b"a", b"0"))
        put(log, (b"a", b"1"))
        log.roll()
        put(log, (b"a", b"2"), producer=(7, 0, 0), transactional=True)
        log.roll()
        put(log, (b"a", b"3"))
        compact(log, files, clock)
        assert [p[0] for p in pairs(log)] == [1, 2, 3]
        assert log.first_dirty_offset == 2


class TestSegments:
    def test_small_ones_become_one(
        self, log: Log, files: MemoryFiles, clock: Clock, directory: Path
    ) -> None:
        for number in range(100):
            put(log, (b"k%d" % (number % 3), b"%d" % number))
        log.roll()
        assert log.segment_count > 8
        compact(log, files, clock)
        put(log, (b"k", b"x"))
        compact(log, files, clock)
        assert log.segment_count == 2
        assert names(files, directory) == []
        clock.now_ms += 11
        log.remove_deleted_files()
        assert [n for n in files.list(directory) if n.endswith(".log")] == [
            f"{0:020d}.log",
            f"{101:020d}.log",
        ]

    def test_a_reader_of_the_old_segments_reads_on(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        for number in range(60):
            put(log, (b"k", b"%d" % number))
        piece = log.read(0, 10_000, 60)
        before = present(piece).read()
        compact(log, files, clock)
        clock.now_ms += 11
        log.remove_deleted_files()
        assert present(piece).read() == before

    def test_offsets_in_gaps_are_read_from_the_next_batch_on(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        for number in range(60):
            put(log, (b"k", b"%d" % number))
        compact(log, files, clock)
        for offset in range(60):
            data = present(log.read(offset, 10_000, 60)).read()
            assert next(batches(data)).last_offset >= offset

    def test_timestamps_are_found_among_what_is_left(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        for number in range(60):
            put(log, (b"k%d" % (number % 4), b"v"), timestamp_ms=NOW_MS + number)
        compact(log, files, clock)
        assert log.offset_for_timestamp(NOW_MS) == (56, NOW_MS + 56)
        assert log.offset_of_max_timestamp() == (59, NOW_MS + 59)
        assert log.offset_for_timestamp(NOW_MS + 60) is None

    def test_groups_keep_to_size_index_and_offset_span(self) -> None:
        config = LogConfig(segment_bytes=100, segment_index_bytes=24)
        sizes = [(0, 60, 8, 12), (10, 40, 8, 12), (20, 1, 8, 0), (30, 1, 16, 0), (40, 90, 8, 0)]
        extents = [SegmentExtent(*each) for each in sizes]
        found = [[e.base_offset for e in g] for g in group_segments(extents, config, 50)]
        assert found == [[0, 10], [20, 30], [40]]
        far = [SegmentExtent(0, 1, 0, 0), SegmentExtent(2**31 - 1, 1, 0, 0)]
        assert len(list(group_segments(far, config, 2**31))) == 1
        assert len(list(group_segments(far, config, 2**31 + 1))) == 2


class TestWithOthers:
    """A log that changes while it is cleaned."""

    def cleaned_while(
        self,
        log: Log,
        files: MemoryFiles,
        clock: Clock,
        act: Callable[[], LogAppendInfo | int | None],
    ) -> LogCleaner:
        log.roll()
        done: list[bool] = []

        def act_once() -> None:
            if not done:
                done.append(True)
                act()

        cleaner = cleaner_of({TP: log}, files, clock)
        worker = InlineWorker(files, check=act_once)
        assert cleaner.clean_next(worker)
        assert cleaner.figures().failures == 0
        return cleaner

    def filled(self, log: Log) -> None:
        for number in range(60):
            put(log, (b"k%d" % (number % 4), b"%d" % number), timestamp_ms=NOW_MS - 60 + number)

    def test_appends_go_on(self, log: Log, files: MemoryFiles, clock: Clock) -> None:
        self.filled(log)
        self.cleaned_while(log, files, clock, lambda: put(log, (b"k0", b"new")))
        assert [row.offset for row in rows(log)] == [56, 57, 58, 59, 60]

    def test_a_truncation_ends_it(
        self, log: Log, files: MemoryFiles, clock: Clock, directory: Path
    ) -> None:
        self.filled(log)
        before = rows(log)
        self.cleaned_while(log, files, clock, lambda: log.truncate_to(30))
        assert rows(log) == before[:30]
        assert names(files, directory) == []
        self.filled(log)
        compact(log, files, clock)
        assert [row.offset for row in rows(log)] == [86, 87, 88, 89]

    def test_a_truncation_within_a_batch_makes_what_takes_its_place_dirty(self, log: Log) -> None:
        put(log, *[(b"k", b"%d" % number) for number in range(4)])
        log.mark_clean(4, log.truncations)
        log.truncate_to(3)
        assert (log.log_end_offset, log.first_dirty_offset) == (0, 0)

    def test_a_truncation_makes_what_comes_next_dirty(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        self.filled(log)
        compact(log, files, clock)
        log.truncate_to(58)
        assert log.first_dirty_offset <= 58
        put(log, (b"k1", b"new"))
        compact(log, files, clock)
        assert [row.key for row in rows(log)].count(b"k1") == 1

    def test_a_truncation_at_its_end_leaves_what_comes_next_dirty(
        self, log: Log, files: MemoryFiles, clock: Clock
    ) -> None:
        put(log, (b"k", b"old"), (b"z", b"1"))
        log.roll()
        put(log, (b"z", b"2"))
        log.roll()
        cleaner = cleaner_of({TP: log}, files, clock)
        finished = cleaner._finished

        def truncated_before(
            chosen: CleanableLog, result: CleaningResult, duration_ms: int
        ) -> None:
            log.truncate_to(2)
            put(log, (b"k", None))
            log.roll()
            finished(chosen, result, duration_ms)

        cleaner._finished = truncated_before  # type: ignore[method-assign]
        cleaner.clean_next(InlineWorker(files))
        for _ in range(3):
            put(log, (b"z", b"end"))
            compact(log, files, clock)
            clock.now_ms += 1001
        assert b"k" not in [row.key for row in rows(log)]

    def test_retention_ends_it(self, directory: Path, files: MemoryFiles, clock: Clock) -> None:
        config = dataclasses.replace(CONFIG, cleanup_policy=("compact", "delete"), retention_ms=30)
        log = Log(directory, config, clock, files, CLEAN)
        self.filled(log)
        self.cleaned_while(log, files, clock, lambda: log.delete_old_segments(60))
        start = log.log_start_offset
        assert start > 0
        assert [row.offset for row in rows(log)] == list(range(start, 60))
        assert names(files, directory) == []
        compact(log, files, clock)
        assert [row.offset for row in rows(log)] == [56, 57, 58, 59]

    def test_retention_between_the_steps_of_a_swap_ends_it(
        self, directory: Path, files: MemoryFiles, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The new segment is named, the old ones are not gone: neither comes back in a crash."""
        config = dataclasses.replace(CONFIG, cleanup_policy=("compact", "delete"), retention_ms=30)
        log = Log(directory, config, clock, files, CLEAN)
        for number in range(60):
            put(log, (b"k%d" % min(number, 55), b""), timestamp_ms=NOW_MS - 60 + number)
        log.roll()
        sync_directory = files.sync_directory
        deleted: list[int] = []
        disks = []

        def act_once(path: Path) -> None:
            sync_directory(path)
            if not deleted and names(files, directory, (".swap",)):
                deleted.append(log.delete_old_segments(60))
                disks.append(files.crash())

        monkeypatch.setattr(files, "sync_directory", act_once)
        assert cleaner_of({TP: log}, files, clock).clean_next(InlineWorker(files))
        (count,) = deleted
        start = log.log_start_offset
        assert count > 0
        assert start > 0
        assert names(files, directory) == []
        for disk in (*disks, files.crash()):
            again = Log(directory, config, clock, disk, LogCheckpoint(recovery_point=0))
            assert [row.offset for row in rows(again)] == list(range(start, 60))

    def test_retention_counts_an_emptied_segment_by_the_time_of_its_records(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        policies = ("compact", "delete")
        config = dataclasses.replace(CONFIG, cleanup_policy=policies, retention_ms=1000)
        log = Log(tmp_path, config, clock, known=CLEAN)
        value = b"." * 900
        put(log, (b"k", value))
        put(log, (b"other", value))
        put(log, (b"k", value))
        compact(log, DiskFiles(), clock)
        first, *_ = log.segments
        assert [header.record_count for header in batches(first.file.pread(2000, 0))] == [0]
        clock.now_ms += 1001
        assert log.delete_old_segments(3) > 1
        assert rows(log) == []

    def test_the_end_of_the_log_ends_it(
        self, log: Log, files: MemoryFiles, clock: Clock, directory: Path
    ) -> None:
        self.filled(log)
        self.cleaned_while(log, files, clock, log.close)
        assert names(files, directory) == []
        assert len(rows(Log(directory, CONFIG, clock, files, CLEAN))) == 60

    def test_compact_alone_is_deleted_only_below_the_log_start(
        self, directory: Path, files: MemoryFiles, clock: Clock
    ) -> None:
        config = dataclasses.replace(CONFIG, retention_ms=1, retention_bytes=1)
        log = Log(directory, config, clock, files, CLEAN)
        self.filled(log)
        clock.now_ms += 10**6
        assert log.delete_old_segments(60) == 0
        log.advance_log_start_offset(40)
        assert log.delete_old_segments(60) > 0
        assert [row.offset for row in rows(log)] == list(range(40, 60))


class TestDamage:
    def test_a_damaged_log_is_left_alone_with_one_line(
        self,
        log: Log,
        files: MemoryFiles,
        clock: Clock,
        directory: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        for number in range(60):
            put(log, (b"k", b"%d" % number))
        log.roll()
        inode = files.names[directory / f"{0:020d}.log"]
        inode.data[70] ^= 1
        cleaner = cleaner_of({TP: log}, files, clock)
        assert cleaner.clean_next(InlineWorker(files))
        assert not cleaner.clean_next(InlineWorker(files))
        (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert line.startswith("log.uncleanable")
        assert cleaner.figures().uncleanable_logs == 1
        assert names(files, directory) == []
        inode.data[70] ^= 1
        assert len(rows(log)) == 60

    @pytest.mark.parametrize("operation", ["pwrite", "sync"])
    def test_a_disk_that_refuses_leaves_the_old_segments(
        self, log: Log, files: MemoryFiles, clock: Clock, directory: Path, operation: str
    ) -> None:
        for number in range(60):
            put(log, (b"k", b"%d" % number))
        log.roll()
        cleaner = cleaner_of({TP: log}, files, clock)
        files.fail_next(operation)
        assert cleaner.clean_next(InlineWorker(files))
        assert cleaner.figures().failures == 1
        assert len(rows(log)) == 60
        assert names(files, directory) == []
        assert not cleaner.clean_next(InlineWorker(files))
        clock.now_ms += 60_001
        assert cleaner.clean_next(InlineWorker(files))
        assert len(rows(log)) == 1


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_every_step_loses_nothing(
    directory: Path, clock: Clock, power_loss: bool
) -> None:
    """After each the log opens and says the same of every key, and the next pass compacts it."""
    before = MemoryFiles()
    before.make_directory(directory)
    log = Log(directory, CONFIG, clock, before, CLEAN)
    for number in range(60):
        put(log, (b"k%d" % (number % 20), b"%d" % number))
    log.roll()
    log.flush()
    steps = 0
    while True:
        files = before.crash()
        cut = CutFiles(files, 10**6)
        log = Log(directory, CONFIG, clock, cut, LogCheckpoint(recovery_point=60))
        assert log.segment_count > 4
        cut.left = steps
        crashed = False
        try:
            assert cleaner_of({TP: log}, cut, clock).clean_next(InlineWorker(cut))
        except PowerCut:
            crashed = True
        disk = files.crash(power_loss=power_loss)
        again = Log(directory, CONFIG, clock, disk, LogCheckpoint(recovery_point=60))
        found = rows(again)
        assert {row.key: row.offset for row in found} == {b"k%d" % n: 40 + n for n in range(20)}
        assert [row.offset for row in found] == sorted({row.offset for row in found})
        assert again.log_end_offset == 60
        assert names(disk, directory, (".cleaned", ".swap", ".deleted")) == []
        compact(again, disk, clock)
        assert [row.offset for row in rows(again)] == list(range(40, 60))
        if not crashed:
            break
        steps += 1
    assert steps > 30


class TestThrottle:
    def test_sleeps_for_what_is_above_the_rate(self) -> None:
        now, slept = [0.0], []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            now[0] += seconds

        throttler = Throttler(1000, lambda: now[0], sleep)
        for _ in range(10):
            throttler.spend(500)
        assert now[0] == pytest.approx(5.0)
        now[0] += 100
        throttler.spend(1)
        assert now[0] == pytest.approx(105.0)
