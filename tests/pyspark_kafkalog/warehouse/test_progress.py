"""How far a load is, from what its tasks write down; bars and lines."""

import errno
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse import progress as progress_module
from pyspark_kafkalog.warehouse.progress import (
    Lines,
    LoadProgress,
    Meter,
    PartitionProgress,
    Passed,
    describe_bytes,
    describe_progress,
    reported,
    tell_passed,
)

FIRST = OffsetRange("orders", 0, 0, 100)
SECOND = OffsetRange("orders", 0, 100, 150)
OTHER = OffsetRange("orders", 1, 7, 17)


def test_what_tasks_pass_adds_up_and_a_twin_counts_once(tmp_path: Path) -> None:
    path = str(tmp_path)
    meter = Meter([FIRST, SECOND, OTHER])
    assert (meter.read(path).landed, meter.read(path).total) == (0, 160)
    assert meter.read(path).left_s is None
    tell_passed(path, "a", Passed("orders", 0, 0, 40, 30, 1000))
    tell_passed(path, "b", Passed("orders", 0, 0, 60, 50, 1500))
    tell_passed(path, "c", Passed("orders", 0, 100, 10, 10, 100))
    (tmp_path / "half.progress").write_text('{"topic": "or')
    (tmp_path / "part-orders.parquet").write_text("")
    found = meter.read(path)
    assert (found.landed, found.records, found.bytes) == (70, 60, 1600)
    assert found.partitions == (
        PartitionProgress("orders", 0, 70, 150, 60, 1600),
        PartitionProgress("orders", 1, 0, 10, 0, 0),
    )
    assert found.left_s is not None


def test_commit_after_commit_adds_up(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    meter = Meter([OffsetRange("orders", 0, 0, 150), OTHER])
    tell_passed(str(first), "a", Passed("orders", 0, 0, 100, 90, 1000))
    done = meter.finish(str(first), [FIRST, OTHER])
    assert [(each.landed, each.total) for each in done.partitions] == [(100, 150), (10, 10)]
    tell_passed(str(second), "a", Passed("orders", 0, 100, 20, 20, 200))
    assert meter.read(str(second)).landed == 130
    done = meter.finish(str(second), [SECOND])
    assert (done.landed, done.records, done.bytes) == (160, 110, 1200)


def a_progress(landed: int, seconds: float = 2.0) -> LoadProgress:
    partitions = (
        PartitionProgress("orders", 0, landed, 1000, landed, 10 * landed),
        PartitionProgress("orders", 1, 0, 0, 0, 0),
    )
    return LoadProgress(partitions, seconds)


def test_a_line_says_how_much_how_fast_and_how_long() -> None:
    assert describe_progress(a_progress(250)) == (
        "250 of 1,000 offsets landed (25 %), 1 of 2 partitions to go, "
        "125 rows/s, 2.4 KiB, 0:06 left"
    )
    assert describe_progress(a_progress(1000)) == (
        "1,000 of 1,000 offsets landed (100 %), 500 rows/s, 9.8 KiB"
    )
    assert a_progress(1, 100.0).left_s == pytest.approx(99_900)
    assert describe_progress(a_progress(1, 100.0)).endswith("27:45:00 left")


def test_lines_come_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines()
    lines(a_progress(10))
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(progress_module, "LINE_EVERY_S", 0.0)
    lines = Lines()
    lines(a_progress(10))
    lines(a_progress(1000))
    lines(a_progress(1000))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("10 of 1,000 offsets landed")
    assert second.startswith("1,000 of 1,000 offsets landed")


def test_a_load_whose_lines_nobody_reads_any_more_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `kafkalog load ... | head -1`."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("sys.stdout", Closed())
    Lines()(a_progress(1000))


def test_bars_where_there_is_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(Console):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "force_terminal": True, "width": 120})

    monkeypatch.setattr("rich.console.Console", Terminal)
    monkeypatch.setattr("rich.progress.get_console", Terminal)
    with reported(True, [FIRST, OTHER]) as watch, watch(str(tmp_path), [FIRST, OTHER]):
        tell_passed(str(tmp_path), "a", Passed("orders", 0, 0, 100, 90, 2048))
    out = capsys.readouterr().out
    assert "records landed" in out
    assert "orders-0" in out
    assert "orders-1" in out
    assert re.search(r"orders-0 .* rows/s, 2\.0 KiB", out)


def test_a_load_whose_terminal_has_gone_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress as Bars

    def gone(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    for name in ("start", "update", "stop"):
        monkeypatch.setattr(Bars, name, gone)
    with progress_module._bars() as tell:
        tell(LoadProgress((), 1.0))
    with pytest.raises(OSError, match="theirs"), progress_module._bars():
        raise OSError("theirs")


def test_a_load_that_fails_does_not_say_that_all_has_landed(tmp_path: Path) -> None:
    told: list[LoadProgress] = []
    with (
        pytest.raises(KeyError),
        reported(told.append, [FIRST]) as watch,
        watch(str(tmp_path), [FIRST]),
    ):
        raise KeyError
    assert all(progress.landed == 0 for progress in told)


def test_sizes_read_well() -> None:
    assert [describe_bytes(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 1 << 50)] == [
        "0 bytes",
        "1,023 bytes",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "1,024.0 TiB",
    ]
