"""Sweeping what killed loads left behind: nothing that is committed, or that may still be."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog import cli, maintain
from pyspark_kafkalog.errors import InvalidOptionError, TargetError, UnknownTargetError
from pyspark_kafkalog.warehouse.targets import delta
from pyspark_kafkalog.warehouse.targets.delta import DeltaTarget
from tests.pyspark_kafkalog.warehouse.rows_loader import begin, load, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    EVERY_KIND,
    DeltaLakeTable,
    Table,
    expected_rows,
    table_of,
)


def make_table(kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table, and a temporary directory for this test, into which SQL targets stage."""
    (directory / "the place").mkdir()
    (directory / "temporary").mkdir()
    table = table_of(kind, directory / "the place")
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "temporary"))
    return table


@pytest.fixture(params=EVERY_KIND)
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return make_table(request.param, tmp_path, monkeypatch)


@pytest.fixture(params=["delta", "iceberg"])
def files_that_stay(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Table:
    """A table whose files stay where tasks wrote them."""
    return make_table(request.param, tmp_path, monkeypatch)


def swept(table: Table, hours: float | None = None, **flags: bool) -> list[str]:
    """What was swept, with all else of maintenance left out."""
    done = maintain(table.name, retention_hours=hours, compact=False, expire=False, **flags)
    return list(done.removed)


def test_what_a_dead_load_left_is_removed_and_cannot_be_committed(table: Table) -> None:
    load(table.open(), "hourly", 4)
    target, landed = begin(table.open())
    stage = landed.stage
    staged = table.staged(stage)
    assert swept(table) == []
    listed = swept(table, 0, force=True, dry_run=True)
    assert [path.rpartition("/")[2] for path in listed] == [stage.path.split("?")[0].split("/")[-1]]
    assert table.staged(stage) == staged
    assert swept(table, 0, force=True) == listed
    assert table.staged(stage) == []
    assert swept(table, 0, force=True) == []
    with pytest.raises(TargetError, match="nothing was published"):
        target.commit(landed)
    assert table.rows() == expected_rows("hourly", 4)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("hourly", 4) + expected_rows("nightly", 7)
    assert table.offsets("nightly") == {0: 7, 1: 7}


def test_a_target_without_commits_is_swept_too(table: Table) -> None:
    with pytest.raises(UnknownTargetError):
        swept(table, 0, force=True)
    begin(table.open())
    assert len(swept(table, 0, force=True)) == 1
    assert table.open().position("nightly").offsets == {}
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_a_load_that_is_touched_goes_on(table: Table) -> None:
    target, landed = begin(table.open())
    load(table.open(), "hourly", 4)
    assert swept(table, 1, force=True) == []
    target.commit(landed)
    assert table.rows() == expected_rows("hourly", 4) + expected_rows("nightly", 7)


def test_a_short_retention_has_to_be_forced(table: Table) -> None:
    with pytest.raises(InvalidOptionError, match="use force"):
        swept(table, 23.9)
    with pytest.raises(InvalidOptionError):
        swept(table, float("nan"), force=True)


def test_files_of_twins_are_swept_from_a_committed_load(files_that_stay: Table) -> None:
    table = files_that_stay
    target, landed = begin(table.open())
    target.commit(landed)
    [twin] = write_rows(landed.stage, "late twin", landed.ranges[0])
    load(table.open(), "hourly", 4)
    assert swept(table, 0, force=True) == [f"{landed.stage.path}/{twin.name}"]
    assert table.rows() == expected_rows("hourly", 4) + expected_rows("nightly", 7)


def test_files_that_only_an_old_version_of_the_table_names_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table("delta", tmp_path, monkeypatch)
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 7)
    assert isinstance(table, DeltaLakeTable)
    found = table.delta()
    found.optimize.compact()
    found.create_checkpoint()
    assert swept(table, 0, force=True) == []
    found.load_as_version(1)
    assert found.to_pyarrow_table().num_rows == 6


def before_the_commit(
    target: Any, call: Callable[[Callable[[], Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Has `call` made at the commit point of `target`, once, with what commits."""
    place: Any = delta
    name = "_append"
    if not isinstance(target, DeltaTarget):
        place, name = target._catalog_of_target(), "commit_table"
    publish = getattr(place, name)

    def publishing(*arguments: Any) -> Any:
        monkeypatch.setattr(place, name, publish)
        return call(lambda: publish(*arguments))

    monkeypatch.setattr(place, name, publishing)


def test_a_loader_that_commits_while_its_files_are_put_aside_keeps_them(
    files_that_stay: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was about to commit when the sweep began, after long."""
    table = files_that_stay
    load(table.open(), "hourly", 4)
    target, landed = begin(table.open())
    sweeper: Any = table.open()
    removed: list[str] = []
    published: list[Any] = []
    fence = sweeper._fence

    def sweep(publish: Callable[[], Any]) -> Any:
        def publish_first() -> None:
            published.append(publish())
            fence()

        sweeper._fence = publish_first
        removed.extend(sweeper.vacuum(-1, False))
        return published[0]

    before_the_commit(target, sweep, monkeypatch)
    target.commit(landed)
    assert (removed, len(published)) == ([], 1)
    assert table.rows() == expected_rows("hourly", 4) + expected_rows("nightly", 7)


def test_a_loader_that_looked_for_its_files_before_the_sweep_cannot_commit(
    files_that_stay: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = files_that_stay
    load(table.open(), "hourly", 4)
    target, landed = begin(table.open())

    def sweep(publish: Callable[[], Any]) -> Any:
        assert len(table.open().vacuum(-1, False)) == 1
        return publish()

    before_the_commit(target, sweep, monkeypatch)
    with pytest.raises(TargetError, match="the driver does not see it; nothing was published"):
        target.commit(landed)
    assert table.rows() == expected_rows("hourly", 4)


def test_a_killed_sweep_is_finished_by_the_next_or_undone(
    files_that_stay: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = files_that_stay
    load(table.open(), "hourly", 4)
    begin(table.open())

    def kill() -> None:
        raise Killed

    sweeper: Any = table.open()
    monkeypatch.setattr(sweeper, "_fence", kill)
    with pytest.raises(Killed):
        sweeper.vacuum(-1, False)
    assert len(table.open().vacuum(-1, False)) == 1
    assert table.open().vacuum(-1, False) == []
    assert table.rows() == expected_rows("hourly", 4)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", [OSError, Killed])
def test_a_load_that_commits_while_a_sweep_fails_keeps_its_files(
    files_that_stay: Table, kind: type[OSError] | type[Killed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put back by the sweep, or when it was killed by whoever opens the target next."""
    table = files_that_stay
    load(table.open(), "hourly", 4)
    target, landed = begin(table.open())
    sweeper: Any = table.open()

    def sweep(publish: Callable[[], Any]) -> Any:
        published = []

        def commit_and_fail() -> None:
            published.append(publish())
            raise kind

        sweeper._fence = commit_and_fail
        with pytest.raises(Killed if kind is Killed else TargetError):
            sweeper.vacuum(-1, False)
        return published[0]

    before_the_commit(target, sweep, monkeypatch)
    _, begun = begin(table.open(), "dead")
    target.commit(landed)
    everything = expected_rows("hourly", 4) + expected_rows("nightly", 7)
    if kind is Killed:
        assert table.staged(begun.stage) == []
        table.open().position("nightly", read_only=True)
        assert table.staged(landed.stage) == []
        table.open().position("hourly")
        assert table.staged(begun.stage) == []
    assert table.staged(landed.stage)
    assert table.rows() == everything
    assert len(table.open().vacuum(-1, False)) == 1
    assert table.rows() == everything


def test_the_command_line_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_table("parquet", tmp_path, monkeypatch)
    _, landed = begin(table.open())
    assert cli.main(["maintain", table.name]) == 0
    nothing = "0 files with 0 bytes compacted into 0 with 0 bytes; 0 old versions and "
    assert f"{nothing}0 paths removed.\n" in capsys.readouterr().out
    arguments = ["maintain", table.name, "--retention-hours", "0", "--force"]
    assert cli.main([*arguments, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{landed.stage.path}\n")
    assert "1 path would be removed." in out
    assert table.staged(landed.stage)
    assert cli.main(arguments) == 0
    assert table.staged(landed.stage) == []
