"""A log's life in which each call to the file system fails once: who is told, and what is there
after the next start.

What refuses says so (KafkaStorageError, nothing else), and has the log taken offline. Nothing that
was acknowledged is lost, and no transaction that was aborted is shown.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from kafka.errors import KafkaStorageError

from broker.log.checkpoint import LogCheckpoint
from broker.log.log import Log
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log import test_crash_points
from tests.broker.log.batches import NOW_MS, batch, contents
from tests.broker.log.conftest import Clock
from tests.broker.log.failing_files import FailingFiles
from tests.broker.log.memory_files import MemoryFiles

CONFIG = dataclasses.replace(test_crash_points.CONFIG, retention_bytes=2000)


@dataclasses.dataclass
class Life:
    """What one log's clients and followers have been told."""

    log: Log
    told: list[Log]
    values: dict[int, bytes] = dataclasses.field(default_factory=dict)
    aborted: list[int] = dataclasses.field(default_factory=list)

    def append(self, count: int = 1) -> None:
        values = [b"%050d" % (self.log.log_end_offset + number) for number in range(count)]
        info = self.log.append(batch(values), 0)
        self.values |= {info.first_offset + number: each for number, each in enumerate(values)}

    def transaction(self, *, is_commit: bool) -> None:
        producer_id = self.log.log_end_offset
        records = batch([b"t" * 50], producer=(producer_id, 0, 0), transactional=True)
        info = self.log.append(records, 0, transactional=True)
        self.log.append_end_marker(producer_id, 0, TransactionMarker(is_commit, 0), 0)
        if is_commit:
            self.values[info.first_offset] = b"t" * 50
        else:
            self.aborted.append(info.first_offset)

    def cut(self, offset: int) -> None:
        try:
            self.log.truncate_to(offset)
        except KafkaStorageError:
            assert self.log.has_failed, "what comes next would lie behind what was cut, or not"
            raise
        finally:
            self.values = {each: value for each, value in self.values.items() if each < offset}
            self.aborted = [each for each in self.aborted if each < offset]

    def steps(self) -> Iterator[Callable[[], object]]:
        log = self.log
        for _ in range(2):
            yield lambda: self.append(2)
            yield lambda: self.transaction(is_commit=False)
            yield lambda: self.append(5)
            yield log.flush
            yield lambda: self.transaction(is_commit=True)
            yield log.roll
            yield lambda: self.append(4)
            yield lambda: self.append(4)
            yield lambda: self.append(4)
            yield lambda: self.cut(log.log_end_offset - 8)
            yield self.append
        yield lambda: self.transaction(is_commit=False)
        yield lambda: log.offset_for_timestamp(NOW_MS - 1)
        yield log.offset_of_max_timestamp
        yield lambda: log.advance_log_start_offset(log.log_start_offset + 3)
        yield lambda: log.delete_old_segments(log.log_end_offset)
        yield log.remove_deleted_files
        yield self.append

    def begin_anew(self) -> Iterator[Callable[[], object]]:
        """As a follower does whose leader has nothing that belongs behind its log."""
        log = self.log
        for _ in range(6):
            yield lambda: self.append(5)
        yield log.flush
        yield lambda: log.restart_at(1000)
        yield lambda: log.truncate_to(500)
        yield lambda: log.offset_for_timestamp(NOW_MS)
        yield lambda: log.read(log.log_start_offset, 100, log.log_end_offset)

    def take(self, steps: Iterator[Callable[[], object]]) -> None:
        for step in steps:
            try:
                step()
            except KafkaStorageError:
                assert self.told == [self.log] * len(self.told) != []


def open_log(directory: Path, clock: Clock, files: FailingFiles | MemoryFiles) -> Life:
    told: list[Log] = []
    return Life(Log(directory, CONFIG, clock, files, on_refused=told.append), told)


def opened_again(life: Life, directory: Path, clock: Clock, files: MemoryFiles) -> Log:
    """After its broker has stopped."""
    log = life.log
    try:
        log.close()
        was_clean = not life.told
    except KafkaStorageError:
        was_clean = False
    known = LogCheckpoint(log.recovery_point, log.log_start_offset, was_clean=was_clean)
    return Log(directory, CONFIG, clock, files.crash(), known)


def lives(
    directory: Path, clock: Clock, steps: Callable[[Life], Iterator[Callable[[], object]]]
) -> Iterator[tuple[Life, Log, str]]:
    """One for each call that may fail, the log opened again, and that call."""
    left = 0
    while True:
        files = MemoryFiles()
        files.make_directory(directory)
        failing = FailingFiles(files, left)
        left += 1
        try:
            life = open_log(directory, clock, failing)
        except OSError:
            continue  # there is no log
        life.take(steps(life))
        yield life, opened_again(life, directory, clock, files), failing.failed
        if not failing.failed:
            assert left > 50
            return


def test_each_call_that_fails_is_told_and_loses_nothing(directory: Path, clock: Clock) -> None:
    for life, again, failed in lives(directory, clock, Life.steps):
        found, start_offset = contents(again), again.log_start_offset
        expected = {each: value for each, value in life.values.items() if each >= start_offset}
        assert {each: found.get(each) for each in expected} == expected, failed
        skipped = again.read_committed(start_offset, 1 << 20, again.log_end_offset)[1]
        aborted = {each for each in life.aborted if each >= start_offset}
        assert {each.first_offset for each in skipped} >= aborted, failed


def test_a_log_that_could_not_begin_anew_is_closed_and_opened(
    directory: Path, clock: Clock
) -> None:
    for _, again, failed in lives(directory, clock, Life.begin_anew):
        end_offset = again.log_end_offset
        again.append(batch([b"goes on"]), 0)
        again.close()
        assert contents(again)[end_offset] == b"goes on", failed
