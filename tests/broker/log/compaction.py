"""Compacting a log in a test: without threads, processes and waiting."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from broker.config.broker import BrokerConfig
from broker.log.cleaner import (
    CleanedSegment,
    Cleaner,
    CleanerSettings,
    CleaningJob,
    CleaningResult,
    Throttler,
)
from broker.log.cleaner_manager import LogCleaner
from broker.log.files import DiskFiles
from broker.log.log import Log
from pyspark_kafkalog.record.batch import batches
from tests.broker.log.batches import bytes_of
from tests.broker.log.cut_files import CutFiles
from tests.broker.log.memory_files import MemoryFiles

TP = TopicPartition("orders", 0)
SETTINGS = CleanerSettings(1 << 20, 0.9, 1 << 12, float("inf"))


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class InlineWorker:
    """A CleanerWorker in this thread."""

    def __init__(
        self,
        files: MemoryFiles | DiskFiles | CutFiles,
        settings: CleanerSettings = SETTINGS,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.cleaner = Cleaner(settings, files, Throttler(float("inf")), check)
        self.jobs: list[CleaningJob] = []
        self.is_open = True

    def clean(self, job: CleaningJob) -> Iterator[CleanedSegment | CleaningResult]:
        self.jobs.append(job)
        return self.cleaner.clean(job)

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self.is_open = False


def cleaner_of(
    logs: dict[Any, Any] | Mapping[Any, Log],
    files: MemoryFiles | DiskFiles | CutFiles,
    clock: Callable[[], int],
    **properties: str,
) -> LogCleaner:
    """A LogCleaner over `logs`, not started."""
    given = {name.replace("_", "."): value for name, value in properties.items()}
    return LogCleaner(
        BrokerConfig.from_properties(given),
        lambda: logs,
        lambda each, log: log.log_end_offset,
        lambda: None,
        lambda settings: InlineWorker(files, settings),
        clock,
        files,
    )


def compact(
    log: Log,
    files: MemoryFiles | DiskFiles,
    clock: Callable[[], int],
    settings: CleanerSettings = SETTINGS,
) -> int:
    """Rolls and cleans until nothing is due; how often it was cleaned."""
    log.roll()
    cleaner = cleaner_of({TP: log}, files, clock)
    worker = InlineWorker(files, settings)
    count = 0
    while cleaner.clean_next(worker):
        count += 1
    assert cleaner.figures().failures == 0
    return count


def stored(log: Log) -> bytes:
    """All bytes of the log that may be read, fetched one batch at a time or more."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = bytes_of(log.read(offset, 2000, log.log_end_offset))
        if not data:
            break
        found.append(data)
        offset = max(header.next_offset for header in batches(data))
    return b"".join(found)


def rows(log: Log) -> list[Row]:
    """What a consumer gets, checksums checked; control records are none."""
    found = []
    records = MemoryRecords(stored(log))
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        if not batch.is_control_batch:
            found += [Row(r.offset, r.key, r.value, r.timestamp) for r in batch]
    return [row for row in found if row.offset >= log.log_start_offset]


def names(
    files: MemoryFiles | DiskFiles, directory: Path, suffixes: Sequence[str] = (".cleaned", ".swap")
) -> list[str]:
    return [name for name in files.list(directory) if name.endswith(tuple(suffixes))]
