"""How far a load is: what its tasks write down, what the driver makes of it, and how it is shown.

A task writes a small JSON file into its load's stage, over and over: which range it lands, how many
offsets it has passed, rows and bytes. The driver reads these files every POLL_S (less often in an
object store) in a thread of its own and adds them up, so that nothing else is asked of Spark. A
task that runs twice counts once. A file that is being written is read the next time; nothing here
can fail a load.

Shown as bars in a terminal or notebook, one for each partition where there are few; as a line now
and then elsewhere, for logs.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from kafka.structs import TopicPartition

from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.targets.storage import is_url
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage

if TYPE_CHECKING:
    from rich.progress import TaskID

PROGRESS_SUFFIX = ".progress"
POLL_S = 0.2
POLL_OF_STORE_S = 2.0
LINE_EVERY_S = 10.0
_MOST_BARS = 16


@dataclass(frozen=True, slots=True)
class Passed:
    """How much of a range a task has passed: offsets, and the rows and bytes of them in Arrow."""

    topic: str
    partition: int
    start_offset: int
    offsets: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How much of what a load takes of one partition has landed, in offsets; the rows that these
    were, and how many bytes of Arrow."""

    topic: str
    partition: int
    landed: int
    total: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is, partition by partition, after `elapsed_s` seconds of landing.

    Offsets can be counted in advance, rows and bytes (in memory) only as they come.
    """

    partitions: tuple[PartitionProgress, ...]
    elapsed_s: float

    @property
    def landed(self) -> int:
        """Offsets that have landed."""
        return sum(each.landed for each in self.partitions)

    @property
    def total(self) -> int:
        """Offsets in all."""
        return sum(each.total for each in self.partitions)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions)

    @property
    def records_per_s(self) -> float:
        return self.records / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until all has landed, at the pace so far; None where there is none yet."""
        if not self.landed:
            return None
        return self.elapsed_s * (self.total - self.landed) / self.landed


Progress: TypeAlias = Callable[[LoadProgress], None]
"""Called now and then from another thread, at last with all that was landed."""


def tell_passed(stage_path: str, attempt: str, passed: Passed) -> None:
    """Writes down, in a task, how far it is; `attempt` is its own."""
    content = json.dumps(asdict(passed)).encode()
    open_stage(stage_path).write(attempt + PROGRESS_SUFFIX, content)


def passed_in(stage_path: str) -> Iterator[Passed]:
    """What the tasks that write to `stage_path` wrote down last."""
    with suppress(OSError):
        for content in open_stage(stage_path).read(PROGRESS_SUFFIX):
            # Half written.
            with suppress(ValueError, TypeError):
                yield Passed(**json.loads(content))


class Meter:
    """Adds up what the tasks of one load pass, commit after commit. Thread-safe."""

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._totals: dict[TopicPartition, int] = {}
        for piece in ranges:
            key = piece.topic_partition
            self._totals[key] = self._totals.get(key, 0) + piece.offset_count
        self._passed: dict[tuple[str, int, int], Passed] = {}
        self._began_s = time.monotonic()
        self._lock = threading.Lock()

    def read(self, stage_path: str) -> LoadProgress:
        """How far the load is, with what the tasks that write to `stage_path` say now."""
        with self._lock:
            for told in passed_in(stage_path):
                key = (told.topic, told.partition, told.start_offset)
                known = self._passed.get(key)
                if known is None or known.offsets < told.offsets:
                    self._passed[key] = told
            return self._progress()

    def finish(self, stage_path: str, pieces: Iterable[OffsetRange]) -> LoadProgress:
        """How far it is when all of `pieces` have landed, whether their tasks said so or not."""
        self.read(stage_path)
        with self._lock:
            for piece in pieces:
                key = (piece.topic, piece.partition, piece.start_offset)
                told = self._passed.get(key)
                rows, size_bytes = (told.records, told.bytes) if told else (0, 0)
                self._passed[key] = Passed(*key, piece.offset_count, rows, size_bytes)
            return self._progress()

    def _progress(self) -> LoadProgress:
        sums: dict[TopicPartition, list[int]] = {key: [0, 0, 0] for key in self._totals}
        for told in self._passed.values():
            found = sums.get(TopicPartition(told.topic, told.partition))
            if found is not None:
                found[0] += told.offsets
                found[1] += told.records
                found[2] += told.bytes
        partitions = [
            PartitionProgress(
                topic=key.topic,
                partition=key.partition,
                landed=min(landed, self._totals[key]),
                total=self._totals[key],
                records=rows,
                bytes=size_bytes,
            )
            for key, (landed, rows, size_bytes) in sorted(sums.items())
        ]
        return LoadProgress(tuple(partitions), time.monotonic() - self._began_s)


Watch: TypeAlias = Callable[[str, Sequence[OffsetRange]], AbstractContextManager[None]]
"""`with watch(stage_path, pieces):` around the landing of pieces."""


@contextmanager
def reported(progress: bool | Progress, ranges: Sequence[OffsetRange]) -> Iterator[Watch]:
    """Reports what is landed of `ranges` within the body, which says when by `Watch`."""
    if not progress:
        yield lambda _path, _pieces: nullcontext()
        return
    meter = Meter(ranges)
    with _shown() if progress is True else nullcontext(progress) as tell:
        yield lambda path, pieces: _watched(meter, tell, path, pieces)


@contextmanager
def _watched(
    meter: Meter, tell: Progress, stage_path: str, pieces: Sequence[OffsetRange]
) -> Iterator[None]:
    done = threading.Event()

    def poll() -> None:
        while not done.wait(POLL_OF_STORE_S if is_url(stage_path) else POLL_S):
            tell(meter.read(stage_path))

    thread = threading.Thread(target=poll, name="kafkalog-load-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    tell(meter.finish(stage_path, pieces))


@contextmanager
def _shown() -> Iterator[Progress]:
    from rich.console import Console

    console = Console()
    if console.is_terminal or console.is_jupyter:
        with _bars() as tell:
            yield tell
    else:
        yield Lines()


class Lines:
    """Prints a line every LINE_EVERY_S, and one when all has landed."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + LINE_EVERY_S
        self._all_told = False

    def __call__(self, progress: LoadProgress) -> None:
        now_s = time.monotonic()
        has_ended = progress.landed == progress.total
        # Between the last record and the commit it is asked for a while.
        if has_ended and self._all_told:
            return
        if now_s >= self._next_s or has_ended:
            self._next_s = now_s + LINE_EVERY_S
            self._all_told = has_ended
            # Who reads it may have gone: `... | head -1`. The load goes on.
            with suppress(OSError):
                print(describe_progress(progress), flush=True)


def describe_progress(progress: LoadProgress) -> str:
    """One line, for logs."""
    percent = 100 * progress.landed // max(1, progress.total)
    text = f"{progress.landed:,} of {progress.total:,} offsets landed ({percent} %), "
    behind = [each for each in progress.partitions if each.landed < each.total]
    if behind and len(progress.partitions) > 1:
        text += f"{len(behind)} of {len(progress.partitions)} partitions to go, "
    return text + _pace(progress)


def _pace(progress: LoadProgress) -> str:
    pace = f"{progress.records_per_s:,.0f} rows/s, {describe_bytes(progress.bytes)}"
    if progress.left_s:
        pace += f", {_duration(progress.left_s)} left"
    return pace


def describe_bytes(size_bytes: float) -> str:
    """`1.5 GiB`: as much as a person wants to know."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes}:{rest_s:02}"


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[pace]}"),
    )
    bars = Bars(*columns)
    tasks: dict[tuple[str, int], TaskID] = {}

    def tell(progress: LoadProgress) -> None:
        # The terminal may have gone: the load goes on.
        with suppress(OSError):
            draw(progress)

    def draw(progress: LoadProgress) -> None:
        bars.update(whole, completed=progress.landed, total=progress.total, pace=_pace(progress))
        if not 1 < len(progress.partitions) <= _MOST_BARS:
            return
        for each in progress.partitions:
            key = (each.topic, each.partition)
            if key not in tasks:
                tasks[key] = bars.add_task(f"  {each.topic}-{each.partition}", pace="")
            pace = _pace(LoadProgress((each,), progress.elapsed_s))
            bars.update(tasks[key], completed=each.landed, total=each.total, pace=pace)

    with suppress(OSError):
        bars.start()
    whole = bars.add_task("records landed", total=None, pace="")
    try:
        yield tell
    finally:
        with suppress(OSError):
            bars.stop()
