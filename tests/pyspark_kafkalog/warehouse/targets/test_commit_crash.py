"""SIGKILL before every single file system operation of a load, and of the load that recovers."""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.warehouse.targets import parquet
from pyspark_kafkalog.warehouse.targets.parquet import ParquetTarget, committed_files
from tests.pyspark_kafkalog.warehouse.lines_loader import (
    expected_lines,
    lines_of,
    load,
    visible_lines,
)

pytestmark = pytest.mark.crash

OTHER = expected_lines("hourly", 4)
WHOLE = OTHER + expected_lines("nightly", 7)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One target per operation of a load, in the state in which the kill left it."""
    source = tmp_path_factory.mktemp("source")
    load(str(source), "hourly", 4)
    dead = ParquetTarget(str(source)).stage(row_schema())
    old = time.time() - parquet.ABANDONED_AFTER_S - 60
    os.utime(dead.path, (old, old))
    return kill_everywhere(source, tmp_path_factory.mktemp("killed"))


def kill_everywhere(source: Path | str, destination: Path) -> list[str]:
    program = "tests.pyspark_kafkalog.warehouse.killed_loader"
    subprocess.run(
        [sys.executable, "-m", program, str(source), str(destination)], check=True, timeout=120
    )
    return [str(destination / name) for name in sorted(os.listdir(destination), key=int)]


def copy_of(path: str, directory: Path) -> str:
    """The states are made once for all tests, so each test recovers copies of them."""
    return shutil.copytree(path, str(directory / os.path.basename(path)))


def check_before_recovery(path: str) -> bool:
    seen, committed = visible_lines(path), lines_of(committed_files(path))
    assert committed in (OTHER, WHOLE)
    assert max(seen.values()) == 1
    assert seen <= committed
    return committed == WHOLE


def check_after_recovery(path: str) -> None:
    load(path, "nightly", 7)
    assert visible_lines(path) == WHOLE
    assert lines_of(committed_files(path)) == WHOLE


def test_a_load_killed_at_any_operation_is_finished_by_the_next(
    killed: list[str], tmp_path: Path
) -> None:
    was_committed = [check_before_recovery(path) for path in killed]
    # The kills fell on both sides of the commit point, which is passed once.
    assert was_committed == sorted(was_committed)
    assert was_committed.count(False) > 20
    assert was_committed.count(True) > 10
    for path in killed:
        check_after_recovery(copy_of(path, tmp_path))


def test_another_name_finishes_it_too(killed: list[str], tmp_path: Path) -> None:
    for path in killed:
        copy = copy_of(path, tmp_path)
        committed = check_before_recovery(copy)
        load(copy, "weekly", 2)
        expected = (WHOLE if committed else OTHER) + expected_lines("weekly", 2)
        assert visible_lines(copy) == expected


def test_a_recovery_killed_at_any_operation_is_finished_by_the_next(
    killed: list[str], tmp_path: Path
) -> None:
    """From every state in which the commit is out and not in place, and one before it."""
    before_commit = [path for path in killed if lines_of(committed_files(path)) == OTHER]
    # Operations that only look leave the same state as the one before: one of each is enough.
    unfinished = {
        tuple(name.endswith(".staged") for name in committed_files(path)): path
        for path in killed
        if lines_of(committed_files(path)) != visible_lines(path)
    }
    assert len(unfinished) > 1
    for number, source in enumerate([*unfinished.values(), before_commit[-1]]):
        destination = tmp_path / str(number)
        destination.mkdir()
        for path in kill_everywhere(source, destination):
            check_before_recovery(path)
            check_after_recovery(path)


def test_nothing_of_a_killed_load_stays_for_ever(
    killed: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(parquet, "ABANDONED_AFTER_S", -60)
    for path in killed:
        copy = copy_of(path, tmp_path)
        load(copy, "weekly", 2)
        assert os.listdir(f"{copy}/_kafkalog/staging") == []
        assert Counter(os.listdir(copy))["_kafkalog"] == 1
