"""The Parquet target's protocol: what readers see, who may commit, what is cleaned up."""

import itertools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import LoadConflictError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    Commit,
    DataFile,
    PendingCommit,
    Stage,
)
from pyspark_kafkalog.warehouse.targets import parquet
from pyspark_kafkalog.warehouse.targets.parquet import ParquetTarget, committed_files
from tests.pyspark_kafkalog.warehouse.filesystem_steps import FilesystemSteps
from tests.pyspark_kafkalog.warehouse.lines_loader import (
    expected_lines,
    lines_of,
    load,
    visible_lines,
    write_file,
)

ORDERS_0 = TopicPartition("orders", 0)
FIRST_TEN = [OffsetRange("orders", 0, 0, 10)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a target" / "with spaces")


def staged(
    target: ParquetTarget, offset_range: OffsetRange, name: str = "nightly"
) -> tuple[Stage, list[DataFile]]:
    stage = target.stage(row_schema())
    return stage, [write_file(stage, name, offset_range)]


def staging_of(path: str) -> list[str]:
    return os.listdir(os.path.join(path, "_kafkalog", "staging"))


def commit_id(commit: Commit | None) -> str | None:
    return commit.commit_id if commit else None


def make_idle(stage: Stage) -> None:
    old = time.time() - parquet.ABANDONED_AFTER_S - 60
    for name in os.listdir(stage.path):
        os.utime(os.path.join(stage.path, name), (old, old))
    os.utime(stage.path, (old, old))


def refuse_links(source: str, name: str) -> None:
    raise PermissionError(1, "Operation not permitted")


def overwrite_by_links(source: str, name: str) -> None:
    Path(name).write_bytes(Path(source).read_bytes())


@pytest.mark.parametrize("link", [refuse_links, overwrite_by_links])
def test_a_file_system_without_hard_links_is_refused_before_anything_is_landed(
    path: str, monkeypatch: pytest.MonkeyPatch, link: Callable[[str, str], None]
) -> None:
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(TargetError, match="on a file system with hard links"):
        ParquetTarget(path).stage(row_schema())
    assert staging_of(path) == []


def test_a_target_that_is_not_there_yet_has_no_offsets_and_is_not_made(path: str) -> None:
    assert ParquetTarget(path).position("nightly").offsets == {}
    assert committed_files(path) == []
    assert not os.path.exists(path)


def test_loads_go_on_where_the_last_one_of_their_name_ended(path: str) -> None:
    assert commit_id(load(path, "nightly", 5)) == "1"
    assert load(path, "nightly", 5) is None
    assert commit_id(load(path, "hourly", 3)) == "2"
    assert commit_id(load(path, "nightly", 12)) == "3"
    assert visible_lines(path) == expected_lines("nightly", 12) + expected_lines("hourly", 3)
    assert lines_of(committed_files(path)) == visible_lines(path)
    assert staging_of(path) == []


def test_a_directory_with_files_of_others_is_refused(path: str) -> None:
    os.makedirs(path)
    Path(path, "_SUCCESS").touch()
    assert ParquetTarget(path).position("nightly").offsets == {}
    Path(path, "part-0.parquet").touch()
    with pytest.raises(TargetError, match=r"files of others \(part-0\.parquet\)"):
        ParquetTarget(path).position("nightly")


def test_staged_files_are_invisible_until_the_commit(path: str) -> None:
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    assert visible_lines(path) == Counter()
    target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))
    assert sum(visible_lines(path).values()) == 10


def test_a_staged_file_that_no_task_reported_is_never_published(path: str) -> None:
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    write_file(stage, "twin", FIRST_TEN[0])
    target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))
    assert not any(line.startswith("twin") for line in visible_lines(path))
    assert staging_of(path) == []


def test_a_discarded_load_leaves_nothing(path: str) -> None:
    target = ParquetTarget(path)
    stage, _ = staged(target, FIRST_TEN[0])
    target.discard(stage)
    assert staging_of(path) == []
    assert target.position("nightly").offsets == {}


def test_the_second_of_two_loads_of_one_name_is_refused(path: str) -> None:
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    load(path, "nightly", 4)
    with pytest.raises(LoadConflictError, match=r"'nightly'.*orders-0 from None to 4"):
        target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))
    assert visible_lines(path) == expected_lines("nightly", 4)
    assert staging_of(path) == []


def test_loads_of_one_name_and_different_partitions_do_not_conflict(path: str) -> None:
    target = ParquetTarget(path)
    other = OffsetRange("payments", 0, 0, 3)
    stage, files = staged(target, other)
    load(path, "nightly", 4)
    commit = target.commit(PendingCommit(stage, "nightly", NOWHERE, [other], files))
    assert commit.offsets["nightly"][ORDERS_0] == 4
    assert commit.offsets["nightly"][other.topic_partition] == 3


def test_everything_is_on_disk_before_the_commit_and_the_commit_before_the_renames(
    path: str,
) -> None:
    """The order that a power failure needs. The data files are synced by the tasks."""
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    trace = []
    with FilesystemSteps(lambda _, operation, what: trace.append((operation, name_of(what)))):
        target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))
    changes = [
        (step, re.sub("newest-[0-9a-f]{32}", "newest", str(what)))
        for step, what in trace
        if step in ("fsync", "link", "rename")
    ]
    base, commit = stage.path, f"{stage.path}/commit-{1:020}.json"
    assert changes == [
        ("fsync", base),
        ("fsync", commit),
        ("link", commit),
        ("fsync", f"{path}/_kafkalog/commits"),
        ("fsync", f"{path}/_kafkalog/commits"),
        ("rename", f"{base}/{files[0].name}.staged"),
        ("fsync", path),
        ("rename", f"{base}/newest"),
        ("rename", base),
    ]


def name_of(what: object) -> object:
    return os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what


def test_a_new_target_is_on_disk_with_its_parents(path: str) -> None:
    synced = []
    with FilesystemSteps(lambda _, operation, what: synced.append((operation, name_of(what)))):
        target = ParquetTarget(path)
        target.stage(row_schema())
    parent = os.path.dirname(path)
    for directory in (os.path.dirname(parent), parent, path, f"{path}/_kafkalog"):
        assert ("fsync", directory) in synced
    assert ("fsync", f"{path}/_kafkalog/staging") in synced


def test_another_load_at_any_step_of_a_load_neither_loses_nor_doubles(tmp_path: Path) -> None:
    """Loader A stops before each of its operations in turn, and B loads as a whole."""
    steps = interleavings(tmp_path, lambda path: load(path, "hourly", 4))
    for path, error in steps:
        assert error is None
        assert visible_lines(path) == expected_lines("nightly", 7) + expected_lines("hourly", 4)
    assert len(steps) > 30


def test_another_load_of_the_same_name_at_any_step_never_doubles(tmp_path: Path) -> None:
    refused = 0
    for path, error in interleavings(tmp_path, lambda path: load(path, "nightly", 7)):
        assert error is None or isinstance(error, LoadConflictError)
        refused += error is not None
        assert visible_lines(path) == expected_lines("nightly", 7)
        assert lines_of(committed_files(path)) == visible_lines(path)
    assert refused > 10


def test_a_sweep_at_any_step_stops_the_load_or_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an age of nothing every staging directory looks dead: correctness is not the age's."""
    monkeypatch.setattr(parquet, "ABANDONED_AFTER_S", -60)
    swept = 0
    for path, error in interleavings(tmp_path, lambda path: load(path, "hourly", 4)):
        expected = expected_lines("hourly", 4)
        if error is None:
            expected += expected_lines("nightly", 7)
        else:
            swept += 1
            # A writer whose directory went away sees the bare error of its own open().
            assert isinstance(error, TargetError | FileNotFoundError)
        assert visible_lines(path) == expected
        assert lines_of(committed_files(path)) == expected
        assert load(path, "nightly", 7) is None or error is not None
        assert visible_lines(path) == expected_lines("nightly", 7) + expected_lines("hourly", 4)
    assert swept > 10


def test_a_load_that_dies_at_its_commit_point_at_any_step_of_another_is_finished(
    tmp_path: Path,
) -> None:
    """Only the newest commit may be unfinished: whoever publishes the next one finishes it."""
    for path, error in interleavings(tmp_path, load_and_die_before_the_renames):
        assert error is None
        ParquetTarget(path).position("any")
        assert visible_lines(path) == expected_lines("nightly", 7) + expected_lines("hourly", 4)


def load_and_die_before_the_renames(path: str) -> None:
    operations: list[str] = []

    def before(step: int, operation: str, what: object) -> None:
        operations.append(operation)
        # Not the renames of another loader's commit, which it finishes before its own.
        if operation == "rename" and "link" in operations:
            raise Interruption

    with FilesystemSteps(before), suppress(Interruption):
        load(path, "hourly", 4)


def interleavings(
    tmp_path: Path, other: Callable[[str], object]
) -> list[tuple[str, Exception | None]]:
    """For each operation of a load: a fresh target, `other` run before it, and how it ended."""
    results: list[tuple[str, Exception | None]] = []
    for step in itertools.count(1):
        path = str(tmp_path / f"step-{step}")
        error: Exception | None = None

        def before(
            current: int, operation: str, what: object, step: int = step, path: str = path
        ) -> None:
            if current == step:
                other(path)

        with FilesystemSteps(before) as steps:
            try:
                load(path, "nightly", 7)
            except Exception as caught:
                error = caught
        if steps.count < step:
            break
        results.append((path, error))
    return results


def test_many_loaders_at_once_publish_each_offset_once(tmp_path: Path) -> None:
    path = str(tmp_path)
    names = ["a", "b", "c", "d", "shared", "shared"]
    failures = []

    def run(name: str) -> None:
        try:
            for until_offset in range(3, 31, 3):
                load_through_conflicts(path, name, until_offset)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert visible_lines(path) == sum((expected_lines(n, 30) for n in set(names)), Counter())
    assert lines_of(committed_files(path)) == visible_lines(path)
    assert len(os.listdir(f"{path}/_kafkalog/commits")) == 10 * len(set(names))


def load_through_conflicts(path: str, name: str, until_offset: int) -> Commit | None:
    while True:
        try:
            return load(path, name, until_offset)
        except LoadConflictError:
            continue


def test_idle_staging_directories_are_swept_by_the_next_commit_and_live_ones_kept(
    path: str,
) -> None:
    target = ParquetTarget(path)
    dead, _ = staged(target, FIRST_TEN[0])
    make_idle(dead)
    live, _ = staged(target, FIRST_TEN[0])
    busy, _ = staged(target, FIRST_TEN[0])
    make_idle(busy)
    write_file(busy, "one more", FIRST_TEN[0])
    load(path, "hourly", 4)
    assert sorted(staging_of(path)) == sorted([live.load_id, busy.load_id])


def test_a_loader_that_was_swept_publishes_nothing_and_says_so(path: str) -> None:
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    make_idle(stage)
    load(path, "hourly", 4)
    with pytest.raises(TargetError, match=r"for more than 24 hours .*run it again"):
        target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))
    assert visible_lines(path) == expected_lines("hourly", 4)


def test_what_a_killed_discard_left_behind_is_removed(path: str) -> None:
    target = ParquetTarget(path)
    stage, _ = staged(target, FIRST_TEN[0])
    os.rename(stage.path, stage.path + ".discarded")
    load(path, "hourly", 4)
    assert staging_of(path) == []


def test_a_staged_file_that_the_driver_does_not_see_is_not_committed(path: str) -> None:
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    os.unlink(f"{stage.path}/{files[0].name}.staged")
    with pytest.raises(TargetError, match=r"the driver does not see it.*executors share"):
        target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))
    assert target.position("nightly").offsets == {}


def test_a_staged_file_of_another_size_is_not_committed(path: str) -> None:
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    with open(f"{stage.path}/{files[0].name}.staged", "a") as file:
        file.write("more")
    with pytest.raises(TargetError, match=f"should have {files[0].size_bytes} bytes"):
        target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))
    assert target.position("nightly").offsets == {}


def test_files_deleted_after_their_commit_do_not_hinder_later_loads(path: str) -> None:
    """Whoever rewrites landed files into larger ones deletes the small ones."""
    load(path, "nightly", 5)
    for name in committed_files(path):
        os.unlink(name)
    assert commit_id(load(path, "nightly", 7)) == "2"


def test_a_committed_file_lost_before_it_was_in_place_is_an_error_that_says_so(path: str) -> None:
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    with pytest.raises(Interruption):
        commit_until(target, stage, files, "rename")
    os.unlink(f"{stage.path}/{files[0].name}.staged")
    with pytest.raises(TargetError, match="which commit 1 published, is neither there"):
        target.position("nightly")


def test_committed_files_are_exact_between_the_commit_and_the_renames(path: str) -> None:
    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    with pytest.raises(Interruption):
        commit_until(target, stage, files, "rename")
    assert visible_lines(path) == Counter()
    assert sum(lines_of(committed_files(path)).values()) == 10
    assert ParquetTarget(path).position("nightly").offsets == {ORDERS_0: 10}
    assert sum(visible_lines(path).values()) == 10


class Interruption(BaseException):
    """Stands for the end of the process."""


def commit_until(
    target: ParquetTarget, stage: Stage, files: list[DataFile], operation: str
) -> None:
    def before(step: int, current: str, what: object) -> None:
        if current == operation:
            raise Interruption

    with FilesystemSteps(before):
        target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))


def test_a_target_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "target"
    path.write_text("a file")
    with pytest.raises(TargetError, match="is a file: name a directory"):
        ParquetTarget(str(path)).position("nightly")


@pytest.mark.parametrize("place", ["below/a/file", "_kafkalog"])
def test_a_target_that_cannot_be_written_is_explained(tmp_path: Path, place: str) -> None:
    (tmp_path / "below").write_text("a file in the way")
    (tmp_path / "_kafkalog").write_text("a file in the way")
    path = tmp_path if place == "_kafkalog" else tmp_path / place
    with pytest.raises(TargetError, match=r"cannot write to the load target .* can write"):
        ParquetTarget(str(path)).stage(row_schema())


def test_a_file_system_without_hard_links_is_explained(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, destination: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    target = ParquetTarget(path)
    stage, files = staged(target, FIRST_TEN[0])
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(TargetError, match="hard links"):
        target.commit(PendingCommit(stage, "nightly", NOWHERE, FIRST_TEN, files))
    assert target.position("nightly").offsets == {}


@pytest.mark.parametrize("name", ["_delta_log", ".hoodie", "_spark_metadata"])
def test_a_directory_that_others_keep_a_record_of_is_refused(path: str, name: str) -> None:
    os.makedirs(f"{path}/{name}")
    for read_only in (False, True):
        with pytest.raises(TargetError, match=rf"files of others \({name}\): .*, since"):
            ParquetTarget(path).position("nightly", read_only)
