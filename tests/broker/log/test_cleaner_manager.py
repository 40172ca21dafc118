"""LogCleaner: which log is due, checkpoints, threads and the cleaner's own process."""

import dataclasses
import errno
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from broker.config.broker import BrokerConfig
from broker.config.log import LogConfig
from broker.log.checkpoint import CLEAN
from broker.log.cleaner import CleanedSegment, CleanerSettings, CleaningJob, CleaningResult
from broker.log.cleaner_manager import CleanableLog, CleanerWorker
from broker.log.cleaner_process import (
    CleanerProcess,
    CleaningAbortedError,
    CleaningDeferredError,
)
from broker.log.files import DiskFiles
from broker.log.log import Log
from broker.log.manager import LogManager
from tests.broker.log.batches import NOW_MS, batch
from tests.broker.log.compaction import InlineWorker, cleaner_of, names, rows
from tests.broker.log.conftest import Clock
from tests.broker.log.memory_files import MemoryFiles
from tests.support.present import present

ORDERS, USERS = TopicPartition("orders", 0), TopicPartition("users", 0)
CONFIG = LogConfig(segment_bytes=1000, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.5)
SETTINGS = CleanerSettings(1 << 20, 0.9, 1 << 16, float("inf"))


class _NoNewNames(DiskFiles):
    """Nothing can be renamed."""

    def rename(self, path: Path, new_path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")


def fill(log: Log, count: int, timestamp_ms: int = NOW_MS, keys: int = 3) -> None:
    for number in range(count):
        key = b"k%d" % (number % keys)
        log.append(batch([b"%d" % number], keys=[key], timestamp_ms=timestamp_ms), 0)
    log.roll()


class TestChoice:
    @pytest.fixture
    def opened(self, files: MemoryFiles, clock: Clock) -> Callable[..., Log]:
        def opened(topic_partition: TopicPartition, **changes: Any) -> Log:
            path = files_root / f"{topic_partition.topic}-{topic_partition.partition}"
            files.make_directory(path)
            config = dataclasses.replace(CONFIG, **changes)
            return Log(path, config, clock, files, CLEAN)

        from pathlib import Path

        files_root = Path("/data")
        return opened

    def cleaned(self, logs: Mapping[Any, Log], files: MemoryFiles, clock: Clock) -> list[Any]:
        """The topics cleaned, in order."""
        cleaner, worker = cleaner_of(logs, files, clock), InlineWorker(files)
        while cleaner.clean_next(worker):
            pass
        assert cleaner.figures().cleanings == len(worker.jobs)
        return [job.directory.name.partition("-")[0] for job in worker.jobs]

    def test_the_filthiest_comes_first_and_the_cleaner_ones_wait(
        self, opened: Callable[..., Log], files: MemoryFiles, clock: Clock
    ) -> None:
        orders, users = opened(ORDERS), opened(USERS)
        fill(users, 40, keys=40)
        logs = {ORDERS: orders, USERS: users}
        assert self.cleaned(logs, files, clock) == ["users"]
        fill(users, 20)
        fill(orders, 40)
        assert self.cleaned(logs, files, clock) == ["orders"]
        fill(users, 60)
        assert self.cleaned(logs, files, clock) == ["users"]

    def test_topics_that_are_not_compacted_are_none_of_its_business(
        self, opened: Callable[..., Log], files: MemoryFiles, clock: Clock
    ) -> None:
        log = opened(ORDERS, cleanup_policy=("delete",))
        fill(log, 40)
        assert self.cleaned({ORDERS: log}, files, clock) == []

    def test_compact_and_delete_is_compacted(
        self, opened: Callable[..., Log], files: MemoryFiles, clock: Clock
    ) -> None:
        log = opened(ORDERS, cleanup_policy=("compact", "delete"))
        fill(log, 40)
        assert self.cleaned({ORDERS: log}, files, clock) == ["orders"]
        assert len(rows(log)) == 3

    def test_young_records_wait_for_the_least_lag(
        self, opened: Callable[..., Log], files: MemoryFiles, clock: Clock
    ) -> None:
        log = opened(ORDERS, min_compaction_lag_ms=1000)
        fill(log, 40, timestamp_ms=NOW_MS - 1000)
        fill(log, 40, timestamp_ms=NOW_MS - 999)
        assert self.cleaned({ORDERS: log}, files, clock) == ["orders"]
        assert log.first_dirty_offset == 40
        assert len(rows(log)) == 43
        clock.now_ms += 1
        self.cleaned({ORDERS: log}, files, clock)
        assert len(rows(log)) == 3

    def test_old_records_do_not_wait_for_the_ratio(
        self, opened: Callable[..., Log], files: MemoryFiles, clock: Clock
    ) -> None:
        log = opened(ORDERS, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
        fill(log, 40)
        clock.now_ms += 1000
        assert self.cleaned({ORDERS: log}, files, clock) == []
        clock.now_ms += 1
        assert self.cleaned({ORDERS: log}, files, clock) == ["orders"]

    def test_the_greatest_lag_makes_the_log_roll(
        self, opened: Callable[..., Log], clock: Clock
    ) -> None:
        log = opened(ORDERS, max_compaction_lag_ms=1000)
        log.append(batch([b"1"], keys=[b"k"], timestamp_ms=NOW_MS), 0)
        log.append(batch([b"2"], keys=[b"k"], timestamp_ms=NOW_MS + 1001), 0)
        assert log.segment_count == 2

    def test_nothing_above_the_high_watermark(
        self, opened: Callable[..., Log], files: MemoryFiles, clock: Clock
    ) -> None:
        log = opened(ORDERS)
        fill(log, 40)
        fill(log, 40)
        cleaner = cleaner_of({ORDERS: log}, files, clock)
        cleaner._high_watermark_of = lambda each, log: 45
        assert cleaner.clean_next(InlineWorker(files))
        assert 27 < log.first_dirty_offset <= 45


class TestManager:
    def opened(
        self,
        root: Path,
        worker: Callable[[CleanerSettings], CleanerWorker] = CleanerProcess,
        **properties: str,
    ) -> LogManager:
        given = {"log.dirs": str(root), "log.cleaner.backoff.ms": "10"}
        given |= {name.replace("_", "."): value for name, value in properties.items()}
        manager = LogManager(
            BrokerConfig.from_properties(given),
            lambda topic: {"cleanup.policy": "compact"},
            new_cleaner_worker=worker,
        )
        manager.open()
        return manager

    def wait_for_cleaning(self, manager: LogManager) -> threading.Event:
        done = threading.Event()
        finished = manager.cleaner._finished

        def report(chosen: CleanableLog, result: CleaningResult, duration_ms: int) -> None:
            finished(chosen, result, duration_ms)
            done.set()

        manager.cleaner._finished = report  # type: ignore[method-assign]
        return done

    def test_cleans_in_its_own_process_and_remembers_how_far(self, tmp_path: Path) -> None:
        manager = self.opened(tmp_path)
        done = self.wait_for_cleaning(manager)
        log = manager.create(ORDERS)
        fill(log, 300, keys=3)
        manager.start()
        assert done.wait(20)
        assert [row.offset for row in rows(log)] == [297, 298, 299]
        checkpoint = tmp_path / "cleaner-offset-checkpoint"
        assert checkpoint.read_text() == "0\n1\norders 0 300\n"
        manager.close()
        again = self.opened(tmp_path)
        assert present(again.get(ORDERS)).first_dirty_offset == 300
        assert [row.offset for row in rows(present(again.get(ORDERS)))] == [297, 298, 299]
        again.delete(ORDERS)
        assert again.create(ORDERS).first_dirty_offset == 0
        assert checkpoint.read_text() == "0\n0\n"
        again.close()

    def test_a_checkpoint_beyond_the_log_is_not_believed(self, tmp_path: Path) -> None:
        manager = self.opened(tmp_path)
        fill(manager.create(ORDERS), 10)
        manager.close()
        checkpoint = tmp_path / "cleaner-offset-checkpoint"
        checkpoint.write_text("0\n2\norders 0 1000\ngone 0 5\n")
        again = self.opened(tmp_path)
        assert present(again.get(ORDERS)).first_dirty_offset == 0
        assert checkpoint.read_text() == "0\n1\norders 0 0\n"
        again.close()

    def test_is_off_when_told_so(self, tmp_path: Path) -> None:
        manager = self.opened(tmp_path, log_cleaner_enable="false")
        manager.start()
        assert not [t for t in threading.enumerate() if t.name.startswith("log-cleaner")]
        manager.close()

    @pytest.mark.parametrize("end", ["delete", "close"])
    def test_a_cleaning_under_way_ends_with_its_log(self, tmp_path: Path, end: str) -> None:
        reached, go_on = threading.Event(), threading.Event()

        class Stuck(InlineWorker):
            def __init__(self, settings: Any) -> None:
                super().__init__(DiskFiles(), settings, self.check)

            def check(self) -> None:
                reached.set()
                assert go_on.wait(20)
                raise CleaningAbortedError

            def kill(self) -> None:
                go_on.set()

        manager = self.opened(tmp_path, Stuck)
        fill(manager.create(ORDERS), 100)
        manager.start()
        assert reached.wait(20)
        if end == "delete":
            manager.delete(ORDERS)
            (trash,) = tmp_path.glob("*-delete")
            assert names(DiskFiles(), trash) == []
        manager.close()
        assert manager.cleaner.figures().failures == 0

    def test_a_bug_does_not_end_the_thread(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        manager = self.opened(tmp_path)
        done = self.wait_for_cleaning(manager)
        fill(manager.create(ORDERS), 100)
        choose, failures = manager.cleaner._choose, [ZeroDivisionError("a bug")]

        def choose_later(worker: CleanerWorker) -> CleanableLog | None:
            if failures:
                raise failures.pop()
            return choose(worker)

        manager.cleaner._choose = choose_later  # type: ignore[method-assign]
        manager.start()
        assert done.wait(20)
        manager.close()
        assert "a bug" in caplog.text

    def test_one_that_fails_does_not_keep_the_others(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        manager = self.opened(tmp_path)
        done = self.wait_for_cleaning(manager)
        broken = manager.create(USERS)
        fill(broken, 200)
        path = tmp_path / "users-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[30] ^= 1
        path.write_bytes(data)
        fill(manager.create(ORDERS), 100)
        manager.start()
        assert done.wait(20)
        manager.close()
        lines = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len([line for line in lines if line.startswith("log.uncleanable")]) == 1


def end_of(answers: Iterable[CleanedSegment | CleaningResult]) -> int:
    """Up to where a log was cleaned."""
    *_, result = answers
    assert isinstance(result, CleaningResult)
    return result.end_offset


class TestProcess:
    def job(self, tmp_path: Path, log: Log) -> CleaningJob:
        cleaner = cleaner_of({ORDERS: log}, DiskFiles(), lambda: NOW_MS)
        worker = InlineWorker(DiskFiles())
        chosen = cleaner._choose(worker)
        return cleaner._job(present(chosen), list(log.segments[:-1]))

    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        directory = tmp_path / "orders-0"
        directory.mkdir()
        log = Log(directory, CONFIG, known=CLEAN)
        fill(log, 100)
        return log

    def test_a_killed_one_says_so_and_another_starts(self, tmp_path: Path, log: Log) -> None:
        process = CleanerProcess(dataclasses.replace(SETTINGS, max_bytes_per_second=1))
        job = self.job(tmp_path, log)
        killer = threading.Timer(0.3, process.kill)
        killer.start()
        with pytest.raises(CleaningAbortedError):
            list(process.clean(job))
        killer.join()
        with pytest.raises(CleaningDeferredError, match="No such file"):
            list(process.clean(dataclasses.replace(job, directory=tmp_path / "none")))
        process.close()

    def test_one_that_is_killed_before_it_begins_never_begins(
        self, tmp_path: Path, log: Log
    ) -> None:
        process = CleanerProcess(SETTINGS)
        job = self.job(tmp_path, log)
        process.kill()
        with pytest.raises(CleaningAbortedError):
            list(process.clean(job))
        list(process.clean(job))
        present(process._process).kill()
        present(process._process).wait()
        process.kill()
        with pytest.raises(CleaningAbortedError):
            list(process.clean(job))
        assert end_of(process.clean(job)) == 100
        process.close()

    def test_what_is_left_of_a_failed_cleaning_is_no_answer_for_the_next_log(
        self, tmp_path: Path, log: Log
    ) -> None:
        directory = tmp_path / "users-0"
        directory.mkdir()
        users = Log(directory, CONFIG, known=CLEAN)
        fill(users, 30, keys=20)
        users.append(batch([b"x"] * 15, keys=[b"a%d" % number for number in range(15)]), 0)
        users.roll()
        log.close()
        refusing = Log(log.directory, CONFIG, files=_NoNewNames(), known=CLEAN)
        cleaner = cleaner_of({ORDERS: refusing, USERS: users}, DiskFiles(), lambda: NOW_MS)
        process = CleanerProcess(SETTINGS)
        while cleaner.clean_next(process):
            pass
        process.close()
        assert cleaner.figures().failures == 1
        assert users.first_dirty_offset == 45
        assert len(rows(users)) == 35

    def test_it_ends_with_the_broker(self, tmp_path: Path, log: Log) -> None:
        process = CleanerProcess(SETTINGS)
        assert end_of(process.clean(self.job(tmp_path, log))) == 100
        child = present(process._process)
        present(child.stdin).close()
        assert child.wait(20) == 0
        assert end_of(process.clean(self.job(tmp_path, log))) == 100
        process.close()
