"""A compacted log against a dict: any order of appends, tombstones, cleanings and crashes.

The model is the list of what was appended and, by key, the latest of it. However often the log is
cleaned, what is left is a part of that list, in its order and at its offsets; the latest value of
each key is there; a tombstone is there for its retention and goes in the end, and never does an
older value show again once a reader could have seen the later one.
"""

import dataclasses
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.config.log import LogConfig
from broker.log.checkpoint import CLEAN, LogCheckpoint
from broker.log.log import Log
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import NOW_MS, batch
from tests.broker.log.compaction import SETTINGS, TP, InlineWorker, cleaner_of, rows
from tests.broker.log.memory_files import MemoryFiles

DIRECTORY = Path("/data/orders-0")
CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=150,
    segment_index_bytes=64,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=100,
    file_delete_delay_ms=10,
)
KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])


class CompactedLogAgainstDict(RuleBasedStateMachine):
    @initialize(map_entries=st.integers(1, 8), read_bytes=st.sampled_from([0, 1 << 20]))
    def open(self, map_entries: int, read_bytes: int) -> None:
        self.now_ms = NOW_MS
        self.files = MemoryFiles()
        self.files.make_directory(DIRECTORY)
        self.settings = dataclasses.replace(
            SETTINGS,
            dedupe_buffer_bytes=24 * map_entries,
            load_factor=1.0,
            io_buffer_bytes=read_bytes,
        )
        self.appended: dict[int, Any] = {}
        self.aborted: dict[int, bool] = {}
        self.committed_until = 0
        self.producer_id = 0
        self.log = Log(DIRECTORY, CONFIG, self.clock, self.files, CLEAN)

    def clock(self) -> int:
        return self.now_ms

    @rule(
        pairs=st.lists(st.tuples(KEYS, st.none() | st.integers(0, 60)), min_size=1, max_size=6),
        codec=st.sampled_from([0, 0, 1, 4]),
        age_ms=st.integers(-50, 50),
        producer=st.sampled_from(["none", "idempotent", "committed", "aborted"]),
    )
    def append(
        self, pairs: list[tuple[bytes, int | None]], codec: int, age_ms: int, producer: str
    ) -> None:
        start = self.log.log_end_offset
        values = [None if size is None else b"%d." % start + bytes(size) for _, size in pairs]
        keys = [key for key, _ in pairs]
        self.producer_id += 1
        ends = producer in ("committed", "aborted")
        records = batch(
            values,
            keys=keys,
            codec=codec,
            timestamp_ms=self.now_ms + age_ms,
            step_ms=1,
            producer=None if producer == "none" else (self.producer_id, 0, 0),
            transactional=ends,
        )
        self.log.append(records, 0, transactional=ends)
        if ends:
            marker = TransactionMarker(producer == "committed", 0)
            self.log.append_end_marker(self.producer_id, 0, marker, 0)
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            row = (start + number, key, value, self.now_ms + age_ms + number)
            self.appended[start + number] = row
            self.aborted[start + number] = producer == "aborted"

    @property
    def latest(self) -> dict[Any, Any]:
        """The newest row of each key that a reader may see."""
        start = self.log.log_start_offset
        return {
            row[1]: row
            for offset, row in self.appended.items()
            if offset >= start and not self.aborted[offset]
        }

    @rule(share=st.integers(0, 100))
    def truncate(self, share: int) -> None:
        """Somewhere above the high watermark that the cleaner went by, which was the log's end."""
        first = max(self.committed_until, self.log.log_start_offset)
        self.log.truncate_to(first + (self.log.log_end_offset - first) * share // 100)
        end = self.log.log_end_offset
        self.appended = {offset: row for offset, row in self.appended.items() if offset < end}
        unstable = self.log.last_stable_offset(end)
        for producer_id, entry in list(self.log.producers.entries.items()):
            # Its marker is gone: its coordinator sends another one, also where its records are
            # deleted and there is nothing to wait for.
            if entry.current_txn_first_offset >= 0:
                self.log.append_end_marker(producer_id, 0, TransactionMarker(False, 0), 0)
                self.aborted |= {offset: True for offset in self.appended if offset >= unstable}

    @rule(share=st.integers(0, 100))
    def delete_records(self, share: int) -> None:
        start = self.log.log_start_offset
        self.log.advance_log_start_offset(start + (self.log.log_end_offset - start) * share // 100)
        self.log.delete_old_segments(self.log.log_end_offset)

    @rule(passed_ms=st.integers(0, 80))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.log.remove_expired_producers(60)
        self.log.remove_deleted_files()

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(passes=st.integers(1, 3))
    def clean(self, passes: int) -> None:
        cleaner = cleaner_of({TP: self.log}, self.files, self.clock)
        for _ in range(passes):
            cleaner.clean_next(InlineWorker(self.files, self.settings))
        assert cleaner.figures().failures == 0
        self.committed_until = self.log.log_end_offset

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def crash(self) -> None:
        self.files = self.files.crash()
        self.reopen(first_dirty_offset=self.log.first_dirty_offset)

    @rule()
    def crash_without_the_cleaners_checkpoint(self) -> None:
        self.files = self.files.crash()
        self.reopen()

    @rule()
    def lose_power(self) -> None:
        self.log.flush()
        self.files = self.files.crash(power_loss=True)
        self.reopen(first_dirty_offset=self.log.first_dirty_offset)

    @rule()
    def close(self) -> None:
        self.log.close()
        self.reopen(was_clean=True, first_dirty_offset=self.log.first_dirty_offset)

    def reopen(self, **known: Any) -> None:
        end_offset = self.log.log_end_offset
        points = self.log.recovery_point, self.log.log_start_offset
        checkpoint = LogCheckpoint(*points, **known)
        self.log = Log(DIRECTORY, CONFIG, self.clock, self.files, checkpoint)
        assert self.log.log_end_offset == end_offset

    @invariant()
    def everything_left_was_appended_there(self) -> None:
        self.left: list[tuple[Any, ...]] = [tuple(row) for row in rows(self.log)]
        offsets = [row[0] for row in self.left]
        assert offsets == sorted(set(offsets))
        for row in self.left:
            assert row == self.appended[row[0]]

    @invariant()
    def the_latest_of_each_key_is_there(self) -> None:
        left = {row[0] for row in self.left}
        for offset, key, value, _ in self.latest.values():
            if value is not None:
                assert offset in left
            elif offset not in left:
                # The tombstone has gone: so have all older values.
                assert not [row for row in self.left if row[1] == key and row[0] < offset]

    @invariant()
    def nothing_is_open(self) -> None:
        assert self.log.last_stable_offset(self.log.log_end_offset) == self.log.log_end_offset

    def teardown(self) -> None:
        """In the end, cleaned with a map large enough and after the horizon, only the latest."""
        if not hasattr(self, "log"):
            return
        for _ in range(3):
            self.now_ms += 101
            self.log.append(batch([b"end"], keys=[b"end"]), 0)
            self.log.roll()
            cleaner = cleaner_of({TP: self.log}, self.files, self.clock)
            while cleaner.clean_next(InlineWorker(self.files)):
                pass
        left = {row.offset for row in rows(self.log) if row.key != b"end"}
        assert left == {row[0] for row in self.latest.values() if row[2] is not None}


TestCompactedLogAgainstDict = CompactedLogAgainstDict.TestCase
TestCompactedLogAgainstDict.settings = settings(stateful_step_count=40)
