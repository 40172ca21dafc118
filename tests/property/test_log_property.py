"""Log against a list: any order of appending, reading, rolling, truncating, retention and crashes.

The model is a dict of offset to value and three numbers. A power loss may take what was appended
since the last flush, and only from the end; the death of the process takes nothing.
"""

import dataclasses
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.errors import OffsetOutOfRangeError

from broker.config.log import LogConfig
from broker.log.checkpoint import LogCheckpoint
from broker.log.log import Log
from tests.broker.log.batches import NOW_MS, batch, bytes_of, contents, values_in
from tests.broker.log.memory_files import MemoryFiles

DIRECTORY = Path("/data/orders-0")
CONFIG = LogConfig(
    segment_bytes=700,
    index_interval_bytes=150,
    segment_index_bytes=64,
    retention_ms=1000,
    retention_bytes=2500,
    file_delete_delay_ms=10,
)


class LogAgainstList(RuleBasedStateMachine):
    @initialize(interval=st.sampled_from([0, 150, 4096]))
    def open(self, interval: int) -> None:
        self.now_ms = NOW_MS
        self.config = dataclasses.replace(CONFIG, index_interval_bytes=interval)
        self.files = MemoryFiles()
        self.files.make_directory(DIRECTORY)
        self.model: dict[int, tuple[bytes, int]] = {}
        self.start = self.end = self.flushed = 0
        self.epoch = 0
        self.sequence = 0
        self.producer_id = 1
        self.log = self.opened()

    def opened(self, **known: Any) -> Log:
        checkpoint = LogCheckpoint(**known)
        return Log(DIRECTORY, self.config, lambda: self.now_ms, self.files, checkpoint)

    @rule(
        sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
        age_ms=st.integers(-500, 500),
        codec=st.sampled_from([0, 0, 1]),
        idempotent=st.booleans(),
        next_epoch=st.booleans(),
    )
    def append(
        self, sizes: list[int], age_ms: int, codec: int, idempotent: bool, next_epoch: bool
    ) -> None:
        self.epoch += next_epoch
        values = [b"%d." % (self.end + number) + b"." * size for number, size in enumerate(sizes)]
        producer = (self.producer_id, 0, self.sequence) if idempotent else None
        timestamp_ms = self.now_ms + age_ms
        records = batch(values, timestamp_ms=timestamp_ms, codec=codec, producer=producer)
        info = self.log.append(records, self.epoch)
        assert (info.first_offset, info.last_offset) == (self.end, self.end + len(values) - 1)
        for value in values:
            self.model[self.end] = value, timestamp_ms
            self.end += 1
        if idempotent:
            self.sequence += len(values)
            self.last_retry = (values, timestamp_ms, codec, producer, info)

    @precondition(lambda self: self.sequence > 0)
    @rule()
    def retry(self) -> None:
        values, timestamp_ms, codec, producer, first = self.last_retry
        if first.last_offset >= self.end:
            return
        records = batch(values, timestamp_ms=timestamp_ms, codec=codec, producer=producer)
        info = self.log.append(records, self.epoch)
        assert info.is_duplicate
        assert (info.first_offset, info.last_offset) == (first.first_offset, first.last_offset)

    @rule(offset=st.integers(0, 400), max_bytes=st.integers(1, 1500), bound=st.integers(0, 400))
    def read(self, offset: int, max_bytes: int, bound: int) -> None:
        if not self.start <= offset <= self.end:
            try:
                self.log.read(offset, max_bytes, bound)
            except OffsetOutOfRangeError:
                return
            raise AssertionError(f"{offset} is outside {self.start}..{self.end}")
        data = bytes_of(self.log.read(offset, max_bytes, bound))
        found = values_in(data)
        assert all(each < bound for each in found)
        assert all(
            self.model[each][0] == value for each, value in found.items() if each in self.model
        )
        if data and max_bytes >= 1000:
            assert offset in found

    @rule(offset=st.integers(0, 400))
    def truncate(self, offset: int) -> None:
        if offset < self.end:
            self.log.truncate_to(offset)
            self.forget_from(self.log.log_end_offset)
            assert offset - 4 < self.end <= offset
            self.start = min(self.start, self.end)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(passed_ms=st.integers(0, 700), lag=st.integers(0, 5))
    def retain(self, passed_ms: int, lag: int) -> None:
        self.now_ms += passed_ms
        self.log.delete_old_segments(max(0, self.end - lag))
        start = self.log.log_start_offset
        assert self.start <= start <= self.end
        expired = [
            stamp for offset, (_, stamp) in self.model.items() if self.start <= offset < start
        ]
        too_large = self.log.size_bytes + 700 > self.config.retention_bytes
        assert not expired or too_large or min(expired) < self.now_ms - self.config.retention_ms
        self.forget_below(start)
        self.log.remove_deleted_files()

    @rule(share=st.integers(0, 100))
    def delete_records(self, share: int) -> None:
        offset = self.start + (self.end - self.start) * share // 100
        self.log.advance_log_start_offset(offset)
        self.forget_below(offset)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end
        assert self.log.recovery_point == self.end

    @rule()
    def kill(self) -> None:
        self.files = self.files.crash()
        self.log = self.opened(recovery_point=self.log.recovery_point, log_start_offset=self.start)

    @rule(kept=st.integers(0, 3000))
    def lose_power(self, kept: int) -> None:
        self.files = self.files.crash(power_loss=True, keep_unsynced=kept)
        recovery_point = min(self.flushed, self.log.recovery_point)
        self.log = self.opened(recovery_point=recovery_point, log_start_offset=self.start)
        assert self.flushed <= self.log.log_end_offset <= max(self.end, self.start)
        self.forget_from(self.log.log_end_offset)

    @rule()
    def close(self) -> None:
        self.log.close()
        self.flushed = self.end
        self.log = self.opened(was_clean=True, log_start_offset=self.start)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert contents(self.log) == {offset: value for offset, (value, _) in self.model.items()}

    @invariant()
    def finds_timestamps(self) -> None:
        stamps = {stamp for _, stamp in self.model.values()}
        for target in {min(stamps, default=0), max(stamps, default=0), NOW_MS}:
            expected = next(
                ((o, stamp) for o, (_, stamp) in self.model.items() if stamp >= target), None
            )
            assert self.log.offset_for_timestamp(target) == expected

    def forget_from(self, end: int) -> None:
        self.model = {offset: kept for offset, kept in self.model.items() if offset < end}
        self.end = end
        self.flushed = min(self.flushed, end)
        self.start_another_producer()

    def start_another_producer(self) -> None:
        self.sequence = 0
        self.producer_id += 1

    def forget_below(self, start: int) -> None:
        self.model = {offset: kept for offset, kept in self.model.items() if offset >= start}
        self.start = start


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(stateful_step_count=40)
