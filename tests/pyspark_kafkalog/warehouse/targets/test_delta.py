"""The Delta target beyond what every target promises: its log, and the tables of others."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.errors import LoadConflictError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    PendingCommit,
)
from pyspark_kafkalog.warehouse.targets.delta import DeltaTarget
from pyspark_kafkalog.warehouse.targets.parquet import ParquetTarget
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from tests.pyspark_kafkalog.warehouse.rows_loader import TIME_US, load, plan, rows, write_rows
from tests.pyspark_kafkalog.warehouse.tables import DeltaLakeTable, expected_rows

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)


@pytest.fixture
def table(tmp_path: Path) -> DeltaLakeTable:
    return DeltaLakeTable(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def test_one_log_entry_holds_files_and_offsets(table: DeltaLakeTable, path: str) -> None:
    commit = load(table.open(), "nightly", 7)
    assert commit is not None
    assert commit.sequence == DeltaTable(path).version() == 1
    entry = Path(path, "_delta_log", f"{1:020}.json").read_text().splitlines()
    kinds = [next(iter(json.loads(line))) for line in entry]
    assert sorted(kinds) == ["add", "add", "commitInfo", "txn", "txn", "txn"]
    [told, *_] = DeltaTable(path).history(1)
    assert told["kafkalog.name"] == "nightly"
    assert json.loads(told["kafkalog.offsets"]) == {"orders": {"0": 7, "1": 7}}


def test_readers_skip_files_by_the_statistics(table: DeltaLakeTable, path: str) -> None:
    load(table.open(), "nightly", 5)
    load(table.open(), "nightly", 9)
    adds = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    assert sorted((a["min.partition"], a["min.offset"], a["max.offset"]) for a in adds) == [
        (0, 0, 4),
        (0, 5, 8),
        (1, 0, 4),
        (1, 5, 8),
    ]
    assert {a["num_records"] for a in adds} == {5, 4}
    first = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=TIME_US)
    assert min(a["min.timestamp"] for a in adds) <= first
    assert min(a["max.timestamp"] for a in adds) >= first + timedelta(seconds=4)
    dataset = DeltaTable(path).to_pyarrow_dataset()
    assert dataset.count_rows(filter=pa.compute.field("offset") >= 5) == 8


@pytest.mark.parametrize("time_us", [-(2**62), 2**62])
def test_times_for_which_there_is_no_date_are_kept(
    table: DeltaLakeTable, path: str, time_us: int
) -> None:
    target = table.open()
    stage = target.stage(row_schema())
    piece = OffsetRange("orders", 0, 0, 1)
    batch = rows("nightly", piece, stage.schema)
    times = pa.array([time_us], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = batch.set_column(5, "timestamp", times)
    files = list(write_files(stage, "orders", [batch]))
    target.commit(PendingCommit(stage, "nightly", NOWHERE, [piece], files))
    assert DeltaTable(path).to_pyarrow_table().column("timestamp").cast("int64").to_pylist() == [
        time_us
    ]


def test_offsets_survive_checkpoints_and_the_cleaning_of_the_log(
    table: DeltaLakeTable, path: str
) -> None:
    load(table.open(), "nightly", 3)
    load(table.open(), "hourly", 2)
    DeltaTable(path).create_checkpoint()
    *old, _newest = sorted(Path(path, "_delta_log").glob("*.json"))
    for entry in old:
        entry.unlink()
    assert table.open().position("hourly").offsets == {ORDERS_0: 2, ORDERS_1: 2}
    load(table.open(), "nightly", 5)
    assert table.open().position("nightly").offsets == {ORDERS_0: 5, ORDERS_1: 5}
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 2)


@pytest.mark.parametrize("note", ["missing", "older", "empty"])
def test_offsets_are_found_whatever_the_note_of_the_last_checkpoint_says(
    table: DeltaLakeTable, path: str, note: str
) -> None:
    """Delta lets writers leave `_last_checkpoint` out, and its readers look for themselves."""
    load(table.open(), "nightly", 3)
    load(table.open(), "hourly", 2)
    DeltaTable(path).create_checkpoint()
    noted = Path(path, "_delta_log", "_last_checkpoint")
    older = noted.read_text()
    load(table.open(), "nightly", 5)
    DeltaTable(path).create_checkpoint()
    noted.write_text(older if note == "older" else "")
    if note == "missing":
        noted.unlink()
    *old, _newest = sorted(Path(path, "_delta_log").glob("*.json"))
    for gone in [*old, Path(path, "_delta_log", f"{2:020}.checkpoint.parquet")]:
        gone.unlink()
    # A checkpoint in parts of which one was not written.
    Path(path, "_delta_log", f"{3:020}.checkpoint.{1:010}.{2:010}.parquet").write_bytes(b"PAR1")
    load(table.open(), "nightly", 7)
    load(table.open(), "hourly", 4)
    assert table.offsets("nightly") == {0: 7, 1: 7}
    assert table.rows() == expected_rows("nightly", 7) + expected_rows("hourly", 4)


def test_offsets_survive_checkpoints_in_parts(table: DeltaLakeTable, path: str) -> None:
    load(table.open(), "nightly", 3)
    DeltaTable(path).create_checkpoint()
    log = Path(path, "_delta_log")
    whole = log / f"{1:020}.checkpoint.parquet"
    actions = pq.read_table(whole)
    for part, (start, stop) in enumerate([(0, 4), (4, None)], 1):
        rows = actions.slice(start, None if stop is None else stop - start)
        pq.write_table(rows, log / f"{1:020}.checkpoint.{part:010}.{2:010}.parquet")
    whole.unlink()
    (log / f"{0:020}.json").unlink()
    note = {"version": 1, "size": actions.num_rows, "parts": 2}
    (log / "_last_checkpoint").write_text(json.dumps(note))
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_offsets_survive_optimize_vacuum_and_writes_of_others(
    table: DeltaLakeTable, path: str
) -> None:
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 5)
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    DeltaTable(path).delete("offset = 4")
    load(table.open(), "nightly", 7)
    assert table.offsets("nightly") == {0: 7, 1: 7}
    expected = expected_rows("nightly", 4) + expected_rows("nightly", 7, start=5)
    assert table.rows() == expected


def test_vacuum_deletes_what_a_dead_load_left(table: DeltaLakeTable, path: str) -> None:
    load(table.open(), "nightly", 3)
    target = table.open()
    stage = target.stage(row_schema())
    write_rows(stage, "dead", OffsetRange("orders", 0, 3, 5))
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not list(Path(stage.path).glob("*.parquet"))
    assert table.rows() == expected_rows("nightly", 3)


def test_a_commit_whose_answer_was_lost_is_found(
    table: DeltaLakeTable, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 3)
    commit_really = DeltaTable.create_write_transaction

    def commit_and_lose_the_answer(*arguments: Any, **options: Any) -> None:
        commit_really(*arguments, **options)
        monkeypatch.undo()
        # Others go on in the meantime.
        load(table.open(), "hourly", 2)
        raise DeltaError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_and_lose_the_answer)
    commit = load(table.open(), "nightly", 5)
    assert commit is not None
    assert commit.sequence == 2
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 2)


def test_a_commit_that_failed_is_an_error_that_says_it_is_safe_to_go_on(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fail)
    with pytest.raises(TargetError, match=r"run the load again is safe.*No space left"):
        load(table.open(), "nightly", 5)
    monkeypatch.undo()
    load(table.open(), "nightly", 5)
    assert table.rows() == expected_rows("nightly", 5)


def test_a_commit_that_fails_though_nobody_else_committed_is_not_tried_for_ever(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise CommitFailedError("the disk does not take it")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fail)
    with pytest.raises(TargetError, match="does not take it"):
        load(table.open(), "nightly", 5)


def test_a_rival_between_the_comparison_and_the_commit_is_noticed(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake itself would let the second one rebase where the appIds differ."""
    rivals = iter(["hourly", "nightly"])
    commit_really = DeltaTable.create_write_transaction

    def commit_after_a_rival(*arguments: Any, **options: Any) -> None:
        rival = next(rivals, None)
        if rival:
            monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_really)
            load(table.open(), rival, 2)
            monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_after_a_rival)
        return commit_really(*arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_after_a_rival)
    with pytest.raises(LoadConflictError, match="orders-0 from None to 2"):
        load(table.open(), "nightly", 5)
    assert table.rows() == expected_rows("nightly", 2) + expected_rows("hourly", 2)


def test_a_first_load_reads_the_history_once_however_often_others_are_faster(
    table: DeltaLakeTable, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be late each time in a table of many versions. What lay there at first says
    something else by then; the checkpoint has what it was."""
    for until_offset in (1, 2, 3):
        load(table.open(), "hourly", until_offset)
    DeltaTable(path).create_checkpoint()
    old = sorted(Path(path, "_delta_log").glob("*.json"))[:-1]
    later = iter((4, 5, 6))
    commit_really = DeltaTable.create_write_transaction

    def commit_after_a_rival(*arguments: Any, **options: Any) -> None:
        for entry in old:
            entry.write_text('{"commitInfo": {"kafkalog.name": "nightly"}}')
        until_offset = next(later, None)
        if until_offset:
            monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_really)
            load(table.open(), "hourly", until_offset)
            monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_after_a_rival)
        return commit_really(*arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_after_a_rival)
    load(table.open(), "nightly", 5)
    assert next(later, None) is None
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 6)


def test_a_log_that_lost_offsets_is_refused(table: DeltaLakeTable, path: str) -> None:
    """As with delta.setTransactionRetentionDuration; to go on would double what was loaded."""
    load(table.open(), "nightly", 3)
    entry = Path(path, "_delta_log", f"{1:020}.json")
    lines = [line for line in entry.read_text().splitlines() if ":orders:1" not in line]
    entry.write_text("\n".join(lines))
    with pytest.raises(TargetError, match="does not hold all offsets of load 'nightly'"):
        table.open().position("nightly")
    assert table.open().position("hourly").offsets == {}


def test_txns_of_others_are_no_offsets(table: DeltaLakeTable, path: str) -> None:
    load(table.open(), "nightly", 3)
    others = [Transaction("kafkalog:nightly:orders:x", 5), Transaction("stream", 9)]
    write_deltalake(
        path,
        DeltaTable(path).to_pyarrow_table().slice(0, 1),
        mode="append",
        commit_properties=CommitProperties(app_transactions=others),
    )
    assert table.open().position("nightly").offsets == {ORDERS_0: 3, ORDERS_1: 3}


def test_a_table_of_others_with_more_columns_takes_loads(table: DeltaLakeTable, path: str) -> None:
    more = row_schema().append(pa.field("loaded_by", pa.string()))
    DeltaTable.create(path, more)
    load(table.open(), "nightly", 2)
    assert DeltaTable(path).to_pyarrow_table().column("loaded_by").to_pylist() == [None] * 4


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (row_schema(), {"partition_by": ["topic"]}, "is partitioned by topic"),
        (row_schema(DEFAULT_COLUMNS[1:]), {}, "has no column key of type"),
        (
            row_schema().set(4, pa.field("offset", pa.string())),
            {},
            "has no column offset of type",
        ),
        (
            row_schema().append(pa.field("must", pa.string(), nullable=False)),
            {},
            "a column must that may not be null",
        ),
        (
            row_schema(),
            {"configuration": {"delta.constraints.c": "offset > 0"}},
            "has constraints",
        ),
    ],
)
def test_tables_that_cannot_take_files_as_they_are_are_refused(
    table: DeltaLakeTable,
    path: str,
    schema: Any,
    options: dict[str, Any],
    said: str,
) -> None:
    DeltaTable.create(path, schema, raise_if_key_not_exists=False, **options)
    with pytest.raises(TargetError, match=said):
        load(table.open(), "nightly", 2)
    assert DeltaTable(path).version() == 0


def partition_anew(path: str) -> None:
    whole = DeltaTable(path).to_pyarrow_table()
    options: dict[str, Any] = {"mode": "overwrite", "schema_mode": "overwrite"}
    write_deltalake(path, whole, partition_by=["topic"], **options)


def make_values_texts(path: str) -> None:
    whole = DeltaTable(path).to_pyarrow_table()
    texts = whole.column("value").cast(pa.string())
    whole = whole.set_column(whole.column_names.index("value"), "value", texts)
    write_deltalake(path, whole, mode="overwrite", schema_mode="overwrite")


def constrain(path: str) -> None:
    DeltaTable(path).alter.add_constraint({"small": '"offset" < 4'})


ALTERATIONS = pytest.mark.parametrize(
    ("alter", "said"),
    [
        (partition_anew, "is partitioned by topic"),
        (make_values_texts, "has no column value of type"),
        (constrain, "has constraints"),
    ],
)


@ALTERATIONS
def test_a_table_that_was_altered_while_rows_landed_is_refused(
    table: DeltaLakeTable, path: str, alter: Callable[[str], None], said: str
) -> None:
    load(table.open(), "nightly", 3)
    target = table.open()
    last, ranges = plan(target, "nightly", 5)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    alter(path)
    with pytest.raises(TargetError, match=said):
        target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    assert DeltaTable(path).version() == 2
    assert table.staged(stage) == []
    assert table.offsets("nightly") == {0: 3, 1: 3}


@ALTERATIONS
def test_a_table_that_is_altered_at_the_commit_is_refused(
    table: DeltaLakeTable,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    alter: Callable[[str], None],
    said: str,
) -> None:
    load(table.open(), "nightly", 3)
    commit_really = DeltaTable.create_write_transaction

    def commit_after_an_alteration(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        alter(path)
        return commit_really(*arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_after_an_alteration)
    with pytest.raises(TargetError, match=said):
        load(table.open(), "nightly", 5)
    assert DeltaTable(path).version() == 2


def test_headers_do_not_come_into_a_table_without_them(table: DeltaLakeTable) -> None:
    load(table.open(), "nightly", 2)
    with pytest.raises(TargetError, match="no column headers"):
        load(table.open(), "nightly", 4, headers=True)
    load(table.open(), "nightly", 4)
    assert table.rows() == expected_rows("nightly", 4)


def test_a_directory_with_files_of_others_is_refused(table: DeltaLakeTable, path: str) -> None:
    os.makedirs(path)
    Path(path, "_SUCCESS").touch()
    assert table.open().position("nightly").offsets == {}
    Path(path, "part-0.parquet").touch()
    with pytest.raises(TargetError, match=r"holds files of others \(part-0\.parquet\)"):
        table.open().position("nightly")
    with pytest.raises(TargetError, match="holds files of others"):
        table.open().stage(row_schema())


def test_the_directory_of_a_parquet_target_is_refused(path: str) -> None:
    ParquetTarget(path).stage(row_schema())
    for act in (
        lambda: DeltaTarget(path).position("n"),
        lambda: DeltaTarget(path).stage(row_schema()),
    ):
        with pytest.raises(TargetError, match=f"is a Parquet target of loads .* parquet:{path}"):
            act()


def test_a_target_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("a file")
    with pytest.raises(TargetError):
        DeltaTarget(str(tmp_path / "table")).position("nightly")


def test_a_log_that_is_damaged_is_explained(table: DeltaLakeTable, path: str) -> None:
    load(table.open(), "nightly", 3)
    Path(path, "_delta_log", f"{1:020}.json").write_text("{half")
    with pytest.raises(TargetError, match="cannot open the load target"):
        table.open().position("nightly")


def test_the_directory_of_a_load_that_moved_is_where_its_files_stay(
    table: DeltaLakeTable, path: str
) -> None:
    """Data files are neither moved nor rewritten: the paths in the log are those of the tasks."""
    target = table.open()
    last, ranges = plan(target, "nightly", 3)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    before = {name: os.stat(f"{stage.path}/{name.name}").st_ino for name in files}
    target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    uris = DeltaTable(path).file_uris()
    assert {os.stat(uri).st_ino for uri in uris} == set(before.values())
    assert sorted(os.listdir(stage.path)) == sorted(file.name for file in files)
    # The whole table can be moved.
    shutil.move(path, f"{path} elsewhere")
    assert DeltaTable(f"{path} elsewhere").to_pyarrow_table().num_rows == 6
