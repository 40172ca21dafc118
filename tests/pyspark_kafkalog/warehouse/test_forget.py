"""A load name that starts over: its place is forgotten at once and whole, whatever is at work."""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog import cli, forget
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import InvalidOptionError, LoadConflictError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import NOWHERE, PendingCommit
from pyspark_kafkalog.warehouse.targets import delta, iceberg
from pyspark_kafkalog.warehouse.targets.commit_file import CommitLog
from pyspark_kafkalog.warehouse.targets.sql_database import Database
from pyspark_kafkalog.warehouse.targets.target import Target
from tests.pyspark_kafkalog.warehouse.rows_loader import load, plan, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    EVERY_KIND,
    KINDS,
    Table,
    expected_rows,
    table_of,
)

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)


@pytest.fixture(params=EVERY_KIND)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "the place"
    directory.mkdir()
    return table_of(request.param, directory)


def begin(table: Table, pieces: Sequence[OffsetRange]) -> tuple[Target, PendingCommit]:
    """A load that has landed `pieces` and not committed: its target and the pending commit."""
    target = table.open()
    last = target.position("nightly")
    stage = target.stage(row_schema())
    files = [file for piece in pieces for file in write_rows(stage, "nightly", piece)]
    return target, PendingCommit(stage, "nightly", last, pieces, files)


def with_ids(table: Table, ranges: list[Any], topic_id: int) -> None:
    target = table.open()
    stage = target.stage(row_schema())
    last = target.position("nightly")
    target.commit(PendingCommit(stage, "nightly", last, ranges, [], {"orders": UUID(int=topic_id)}))


def test_a_forgotten_load_starts_over_and_others_do_not(table: Table) -> None:
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 3)
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE
    assert table.open().position("hourly").offsets == {ORDERS_0: 3, ORDERS_1: 3}
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 3)
    assert not forget(table.name, "nightly")
    load(table.open(), "nightly", 7)
    assert table.rows() == (
        expected_rows("nightly", 5) + expected_rows("nightly", 7) + expected_rows("hourly", 3)
    )
    assert table.open().position("nightly").offsets == {ORDERS_0: 7, ORDERS_1: 7}
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE


def test_there_is_nothing_to_forget_of_a_name_that_never_loaded(table: Table) -> None:
    assert not forget(table.name, "nightly")
    assert list(table.directory.iterdir()) == []
    load(table.open(), "hourly", 3)
    assert not forget(table.name, "nightly")
    with pytest.raises(InvalidOptionError, match="by its name"):
        forget(table.name, " ")


def test_topic_ids_are_forgotten_with_the_offsets(table: Table) -> None:
    for topic_id in (1, 2):
        with_ids(table, [OffsetRange("orders", 0, 0, 5)], topic_id)
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE
    # The first of the ids may come again: a target may be loaded from a restored cluster.
    with_ids(table, [OffsetRange("orders", 1, 0, 5)], 1)
    found = table.open().position("nightly")
    assert found.offsets == {ORDERS_1: 5}
    assert found.topic_ids == {"orders": UUID(int=1)}


def test_a_load_at_work_does_not_bring_back_what_was_forgotten(table: Table) -> None:
    load(table.open(), "nightly", 5)
    _, ranges = plan(table.open(), "nightly", 7)
    target, landed = begin(table, ranges)
    assert forget(table.name, "nightly")
    with pytest.raises(LoadConflictError, match="forgotten"):
        target.commit(landed)
    assert table.staged(landed.stage) == []
    assert table.open().position("nightly") == NOWHERE
    assert table.rows() == expected_rows("nightly", 5)


def test_a_load_at_work_on_a_new_partition_does_not_either(table: Table) -> None:
    """Its own ranges have not moved, but it was not planned as a first load."""
    target, landed = begin(table, [OffsetRange("orders", 0, 0, 5)])
    target.commit(landed)
    target, landed = begin(table, [OffsetRange("orders", 1, 0, 5)])
    assert forget(table.name, "nightly")
    with pytest.raises(LoadConflictError, match="forgotten"):
        target.commit(landed)
    assert table.open().position("nightly") == NOWHERE
    assert len(table.rows()) == 5


@pytest.mark.parametrize(
    ("table", "owner", "step", "number"),
    [
        ("parquet", CommitLog, "publish", 0),
        ("s3", CommitLog, "publish", 0),
        ("delta", delta, "_append", 0),
        ("iceberg", iceberg, "_commit", 0),
        ("sqlite", Database, "transaction", 1),
        ("duckdb", Database, "transaction", 1),
        ("postgresql", Database, "transaction", 1),
        ("mariadb", Database, "transaction", 1),
    ],
    indirect=["table"],
)
def test_of_two_that_forget_at_once_each_did(
    table: Table, owner: object, step: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is done when this one is about to take the step of that number."""
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 3)
    really, taken = getattr(owner, step), count()

    def be_late(*arguments: Any) -> Any:
        if next(taken) == number:
            monkeypatch.undo()
            assert forget(table.name, "nightly")
        return really(*arguments)

    monkeypatch.setattr(owner, step, be_late)
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE
    assert table.open().position("hourly").offsets == {ORDERS_0: 3, ORDERS_1: 3}
    assert not forget(table.name, "nightly")


@pytest.mark.parametrize("table", ["parquet", "s3", "delta", "iceberg"], indirect=True)
def test_to_forget_between_the_comparison_and_the_commit_is_noticed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a database one transaction does both: whoever forgets waits for its end."""
    load(table.open(), "nightly", 5)
    _, ranges = plan(table.open(), "nightly", 7)
    target, landed = begin(table, ranges)
    check_really = PendingCommit.check_unmoved

    def check_and_be_late(*arguments: Any) -> None:
        check_really(*arguments)
        monkeypatch.undo()
        assert forget(table.name, "nightly")

    monkeypatch.setattr(PendingCommit, "check_unmoved", check_and_be_late)
    with pytest.raises(LoadConflictError, match="forgotten"):
        target.commit(landed)
    assert table.open().position("nightly") == NOWHERE
    assert table.rows() == expected_rows("nightly", 5)


def test_the_command_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = KINDS["parquet"](tmp_path)
    load(table.open(), "nightly", 5)
    arguments = ["load", "--forget", "--to", table.name, "--name", "nightly"]
    assert cli.main(arguments) == 0
    assert "its next load is a first one and lands everything again" in capsys.readouterr().out
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == "Nothing to forget: the target knows no load nightly.\n"
    assert table.rows() == Counter(expected_rows("nightly", 5))
