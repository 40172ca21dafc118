"""A log's life, cut at every single operation on its files: what is promised holds after each.

The death of the process takes nothing that was acknowledged; a power loss takes only what came
after the last flush, and only from the end. The step that was under way happened or did not.
"""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.config.log import LogConfig
from broker.log.checkpoint import LogCheckpoint
from broker.log.log import Log
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.log.batches import batch, contents
from tests.broker.log.conftest import Clock
from tests.broker.log.cut_files import CutFiles, PowerCut
from tests.broker.log.memory_files import MemoryFiles
from tests.broker.log.test_transactions import ABORT, COMMIT

CONFIG = LogConfig(
    segment_bytes=600,
    index_interval_bytes=100,
    retention_ms=-1,
    retention_bytes=1500,
    file_delete_delay_ms=0,
)


NUMBERS = itertools.count()


@dataclasses.dataclass(frozen=True)
class State:
    """What a log holds, and up to where all of it is on disk for certain."""

    start: int
    values: dict[int, bytes]
    end: int
    flushed: int

    @classmethod
    def of(cls, log: Log) -> "State":
        values = {offset: value for offset, value in contents(log).items() if offset >= 0}
        return cls(log.log_start_offset, values, log.log_end_offset, log.recovery_point)


def append(count: int) -> Callable[[Log], None]:
    values = [b"%050d" % next(NUMBERS) for _ in range(count)]

    def step(log: Log) -> None:
        log.append(batch(values), 0)

    return step


def transaction(marker: TransactionMarker, first_sequence: int) -> list[Callable[[Log], object]]:
    def step(log: Log) -> None:
        records = batch([b"t"] * 2, producer=(1, 0, first_sequence), transactional=True)
        log.append(records, 0, transactional=True)

    return [step, lambda log: log.append_end_marker(1, 0, marker, 0)]


LIFE = [
    *[append(1), append(3), append(2)],
    *transaction(ABORT, 0),
    *[append(4), Log.flush, append(2), append(2)],
    *transaction(COMMIT, 2),
    *[append(5), append(1), Log.roll, append(3), append(2), Log.flush],
    lambda log: log.truncate_to(log.log_end_offset - 2),
    *[append(2), append(2)],
    *transaction(ABORT, 4),
    *[append(3), Log.flush],
    lambda log: log.advance_log_start_offset(9),
    lambda log: log.delete_old_segments(log.log_end_offset),
    Log.remove_deleted_files,
    *[append(6), append(2), append(1)],
    Log.close,
]


@pytest.mark.parametrize("kept_bytes", [None, 0, 100_000])
def test_what_is_promised_holds_wherever_it_is_cut(
    directory: Path, clock: Clock, kept_bytes: int | None
) -> None:
    """`kept_bytes`: None for the death of the process, else the unsynced bytes that a power loss
    leaves of each file."""
    steps = 0
    while True:
        files = MemoryFiles()
        files.make_directory(directory)
        cut = CutFiles(files, steps)
        states = [State(0, {}, 0, 0)]
        try:
            log = Log(directory, CONFIG, clock, cut)
            for step in LIFE:
                step(log)
                states.append(State.of(log))
            assert steps > 150
            return
        except PowerCut:
            check(files, states, directory, clock, kept_bytes, steps)
        steps += 1


def check(
    files: MemoryFiles,
    states: list[State],
    directory: Path,
    clock: Clock,
    kept_bytes: int | None,
    steps: int,
) -> None:
    last = states[-1]
    after = next_state(states)
    power_loss = kept_bytes is not None
    disk = files.crash(power_loss=power_loss, keep_unsynced=kept_bytes or 0)
    log = Log(
        directory, CONFIG, clock, disk, LogCheckpoint(last.flushed, log_start_offset=last.start)
    )
    found = State.of(log)
    where = f"cut after {steps} operations, in step {len(states) - 1}"
    if not power_loss:
        assert found.end in (last.end, after.end), where
    least = min(last.flushed, after.end)
    assert least <= found.end <= max(last.end, after.end), where
    for offset in range(max(found.start, last.start), found.end):
        expected = {state.values.get(offset) for state in (last, after)}
        assert found.values.get(offset) in expected, (where, offset)
    assert found.start <= max(last.start, after.start), where
    log.append(batch([b"goes on"]), 0)
    assert contents(log)[found.end] == b"goes on", where


def next_state(states: list[State]) -> State:
    """What the step under way would have led to: of a life without a cut."""
    return WHOLE[len(states)] if len(states) < len(WHOLE) else states[-1]


WHOLE: list[State] = []


@pytest.fixture(autouse=True)
def whole_life(directory: Path, clock: Clock) -> None:
    files = MemoryFiles()
    files.make_directory(directory)
    log = Log(directory, CONFIG, clock, files)
    WHOLE[:] = [State(0, {}, 0, 0)]
    for step in LIFE:
        step(log)
        WHOLE.append(State.of(log))
