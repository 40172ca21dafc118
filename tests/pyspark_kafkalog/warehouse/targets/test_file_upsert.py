"""Upserts into tables of files: what is written anew, what is refused, and what others do.

What a table holds afterwards, test_upsert.py tries of every kind of target."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import QueryBuilder, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetLocationUpdate

from pyspark_kafkalog import forget, maintain, rewind
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.row_types import fitted
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets import (
    deleted_keys,
    staged_files,
    upkeep,
    upserted_files,
)
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from tests.pyspark_kafkalog.warehouse.deletion_vector import delete_by_vector
from tests.pyspark_kafkalog.warehouse.position_delete import delete_by_position
from tests.pyspark_kafkalog.warehouse.tables import DeltaLakeTable, IcebergTable, Table, table_of
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, batch_of, found, upsert

BY_TIME = Upsert(order_by="timestamp")


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return table_of(request.param, tmp_path)


def upsert_numbers(
    table: Table, numbers: Iterable[int], value: bytes, kind: pa.DataType, how: Upsert
) -> None:
    """Rows that have a column `id` of a kind, of as many records of one partition."""
    target, ids = table.open(), list(numbers)
    position = target.position("n")
    start = max(position.offsets.values(), default=0)
    schema = row_schema().append(pa.field("id", kind))
    columns: dict[str, Any] = {
        "key": [b"k"] * len(ids),
        "value": [value] * len(ids),
        "topic": ["orders"] * len(ids),
        "partition": [0] * len(ids),
        "offset": range(start, start + len(ids)),
        "timestamp": [0] * len(ids),
        "timestampType": [0] * len(ids),
        "id": pa.array(ids, pa.int32() if pa.types.is_date(kind) else pa.int64()),
    }
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    stage = target.stage(how.schema(schema), (), SchemaChange(adds=True), how)
    files = list(write_files(stage, "orders", [how.marked(rows)]))
    pieces = [OffsetRange("orders", 0, start, start + len(ids))]
    target.commit(PendingCommit(stage, "n", position, pieces, files))


def upsert_structs(
    table: Table, rows: dict[bytes, Any], elements: pa.DataType, *flags: str
) -> None:
    """Rows of these keys with a `note` of fields a, l and the flags."""
    target, how = table.open(), Upsert()
    position = target.position("n")
    start = max(position.offsets.values(), default=0)
    records = [(start + at, Record(key, b"v")) for at, key in enumerate(rows)]
    plain = batch_of(records, "orders")
    fields = [("a", pa.int64()), ("l", elements), *((flag, pa.bool_()) for flag in flags)]
    notes = pa.array(list(rows.values()), pa.struct(fields))
    schema = plain.schema.append(pa.field("note", notes.type))
    batch = pa.RecordBatch.from_arrays([*plain.columns, notes], schema=schema)
    stage = target.stage(how.schema(schema), (), SchemaChange(adds=True), how)
    files = list(write_files(stage, "orders", [fitted(how.marked(batch), stage.schema)]))
    pieces = [OffsetRange("orders", 0, start, start + len(rows))]
    target.commit(PendingCommit(stage, "n", position, pieces, files))


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.string(), pa.date32(), pa.decimal128(21, 2)], ids=str
)
@pytest.mark.parametrize("key", [("id",), ("partition", "id")], ids=["one", "two"])
def test_columns_of_every_kind_are_keys(
    kind: pa.DataType, key: tuple[str, ...], tmp_path: Path
) -> None:
    table = DeltaLakeTable(tmp_path)
    upsert_numbers(table, range(8), b"old", kind, Upsert(key))
    upsert_numbers(table, range(6, 10), b"new", kind, Upsert(key))
    upsert_numbers(table, range(-3, 0), b"other", kind, Upsert(key))
    values = sorted(table.arrow().column("value").to_pylist())
    assert values == [b"new"] * 4 + [b"old"] * 6 + [b"other"] * 3


def test_row_groups_without_such_keys_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are files copied in which there is none."""
    table = DeltaLakeTable(tmp_path)
    monkeypatch.setattr(staged_files, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(upkeep, "_READ_ROWS", 100)
    for numbers in (range(1000), range(1000, 2000)):
        upsert_numbers(table, numbers, b"old", pa.int64(), Upsert(("id",)))
    before = set(table.delta().file_uris())
    read: list[int] = []
    numbers_of = upserted_files._Newest.numbers

    def counted(newest: Any, columns: Any) -> Any:
        read.append(len(columns["id"]))
        return numbers_of(newest, columns)

    monkeypatch.setattr(upserted_files._Newest, "numbers", counted)
    upsert_numbers(table, [1250], b"new", pa.int64(), Upsert(("id",)))
    assert read == [100]
    assert len(before & set(table.delta().file_uris())) == 1
    assert sorted(table.arrow().column("id").to_pylist()) == list(range(2000))
    assert table.rows() == {b"old": 1999, b"new": 1}
    # The last one of a group, and the first one of the next.
    read.clear()
    upsert_numbers(table, [199, 200], b"new", pa.int64(), Upsert(("id",)))
    assert read == [100, 100]
    assert sorted(table.arrow().column("id").to_pylist()) == list(range(2000))
    assert table.rows() == {b"old": 1997, b"new": 3}


def test_columns_come_with_the_rows_that_need_them(table: Table) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"1"), Record(b"b", b"1"), Record(b"c", b"1"))
    upsert(target, "n", Record(b"a", b"2", note="x"), Record(b"b", b"2", note="x"))
    upsert(target, "n", Record(b"b", b"3"), Record(b"d", b"3"))
    rows = {bytes(row["key"]): (bytes(row["value"]), row["note"]) for row in table.all_rows()}
    assert rows == {
        b"a": (b"2", "x"),
        b"b": (b"3", None),
        b"c": (b"1", None),
        b"d": (b"3", None),
    }


def test_a_table_with_columns_of_its_own_is_refused(tmp_path: Path) -> None:
    """A row that changes would lose what it has there."""
    table = DeltaLakeTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    rows = table.arrow().append_column("mine", pa.array(["x"]))
    write_deltalake(table.uri, rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TargetError, match="has a column mine that the rows have not"):
        upsert(table.open(), "n", Record(b"b", b"1"))


def test_a_table_with_two_rows_of_a_key_is_refused(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"), Record(b"b", b"1"))
    write_deltalake(table.uri, table.arrow(), mode="append")
    with pytest.raises(TargetError, match="several rows of a key: nothing was committed"):
        upsert(table.open(), "n", Record(b"a", b"2"))
    assert table.offsets("n")[0] == 2
    named = {uri.split("/")[-2] for uri in table.delta().file_uris()}
    assert {path.name for path in Path(table.uri).glob("load-*")} <= named


@pytest.mark.parametrize("setting", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_table_whose_files_must_not_go_is_refused(setting: str, tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    table.delta().alter.set_table_properties({setting: "true"})
    with pytest.raises(TargetError, match=rf"{setting} = true\): mode upsert replaces files"):
        upsert(table.open(), "n", Record(b"a", b"2"))


def test_a_tombstone_may_lack_what_rows_must_have(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    schema = pa.schema([field.with_nullable(field.name != "value") for field in row_schema()])
    write_deltalake(table.uri, schema.empty_table())
    upsert(table.open(), "n", Record(b"a", b"1"), Record(b"b", None))
    assert found(table) == {b"a": b"1"}


def test_a_row_may_not_lack_what_rows_must_have(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    schema = row_schema().append(pa.field("note", pa.string()))
    needed = [field.with_nullable(field.name != "note") for field in schema]
    write_deltalake(table.uri, pa.schema(needed).empty_table())
    target = table.open()
    upsert(target, "n", Record(b"a", b"1", note="x"))
    with pytest.raises(TargetError, match=r"column note of the Delta table .* may not be null"):
        upsert(target, "n", Record(b"b", b"1", note="x"), Record(b"c", b"1"))
    assert found(table) == {b"a": b"1"}


def test_upkeep_leaves_rows_and_deleted_keys(table: Table) -> None:
    """Also by force, and of files that the table does not name."""
    for number in range(6):
        upsert(table.open(), "n", Record(b"%d" % number, b"1", 0, 5), how=BY_TIME)
    upsert(table.open(), "n", Record(b"0", None, 0, 6), how=BY_TIME)
    maintain(table.name, retention_hours=0, force=True)
    upsert(table.open(), "n", Record(b"0", b"older", 1, 4), Record(b"1", b"2", 1, 7), how=BY_TIME)
    rows = {b"1": b"2", **{b"%d" % number: b"1" for number in range(2, 6)}}
    assert found(table) == rows


def test_deleted_keys_are_known_after_many_loads(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_keys, "_MOST_FILES", 3)
    for number in range(8):
        again = [Record(b"again", None, 0, number)] if number < 3 else []
        upsert(table.open(), "n", Record(b"%d" % number, None, 0, 9), *again, how=BY_TIME)
    kept = list(Path(table.directory).rglob("_kafkalog_deleted/**/*.parquet"))
    assert len(kept) <= 4
    old = [Record(b"%d" % number, b"older", 1, 8) for number in range(8)]
    old.append(Record(b"again", b"older", 1, 1))
    upsert(table.open(), "n", *old, Record(b"x", b"1", 1), how=BY_TIME)
    assert found(table) == {b"x": b"1"}


@contextmanager
def no_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A load in it is killed when it has written down which keys it deletes."""
    change = upserted_files.FileUpsert.change

    def die(*arguments: Any) -> None:
        change(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(upserted_files.FileUpsert, "change", die)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_a_commit_that_never_comes_deletes_no_keys(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(table.open(), "n", Record(b"x", b"1"), how=BY_TIME)
    with no_commit(monkeypatch):
        upsert(table.open(), "n", Record(b"a", None, 0, 9), how=BY_TIME)
    upsert(table.open(), "other", Record(b"a", b"1", 1, 5), how=BY_TIME)
    assert found(table) == {b"x": b"1", b"a": b"1"}


@pytest.mark.parametrize("how", [Upsert(), BY_TIME], ids=["by offset", "by time"])
def test_a_commit_that_never_comes_deletes_no_keys_of_a_topic_created_again(
    how: Upsert, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a record of the new one is at its offset, and the key is in another partition."""
    monkeypatch.setattr(deleted_keys, "_MOST_FILES", 1)
    old, new = UUID(int=1), UUID(int=2)
    first = [Record(b"x", b"1"), Record(b"y", None)]
    upsert(table.open(), "n", *first, how=how, topic_id=old)
    with no_commit(monkeypatch):
        upsert(table.open(), "n", Record(b"a", None, 0, 9), how=how, topic_id=old)
    again = [Record(b"z", None), *(Record(b"%d" % number, b"1") for number in range(3))]
    upsert(table.open(), "n", *again, how=how, topic_id=new)
    upsert(table.open(), "n", Record(b"a", b"1", 1, 5), how=how, topic_id=new)
    rows = {b"%d" % number: b"1" for number in range(3)}
    assert found(table) == {b"x": b"1", b"a": b"1", **rows}


def test_an_upsert_says_that_rows_changed(table: Table) -> None:
    """To whoever streams the table."""
    upsert(table.open(), "n", Record(b"a", b"1"))
    upsert(table.open(), "n", Record(b"a", b"2"))
    if isinstance(table, IcebergTable):
        operations = [each.summary.operation for each in _loaded(table).snapshots()]
        assert operations[-1] == Operation.OVERWRITE
        return
    [entry] = Path(table.directory).glob("table/_delta_log/*02.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    files = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
    assert [file["dataChange"] for file in files] == [True, True]


def test_steps_back_keep_the_deleted_keys_of_what_moves(tmp_path: Path) -> None:
    """Once, however often a load goes back."""
    table = DeltaLakeTable(tmp_path)
    deleted = Record(b"a", None, 0, 9), Record(b"b", None, 1, 9)
    upsert(table.open(), "n", *deleted, Record(b"x", b"1", 1, 9), how=BY_TIME)
    for place in (1, 0):
        rewind(table.name, "n", {"orders": {"0": 1, "1": place + 1}})
        rewind(table.name, "n", {"orders": {"0": 1, "1": place}})
    files = Path(table.directory).rglob("_kafkalog_deleted/*.parquet")
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    kept = [row["key"] for row in rows if row["offset"] < 0]
    assert kept == [b"b"]
    upsert(table.open(), "n", Record(b"b", b"older", 0, 8), how=BY_TIME)
    assert found(table) == {b"x": b"1"}


def test_a_load_that_is_late_looks_again(table: Table) -> None:
    """Both are there, and of one key the newer."""
    target = table.open()
    upsert(target, "n", Record(b"a", b"1", 0, 1), Record(b"b", b"1", 0, 1), how=BY_TIME)
    upsert(target, "other", Record(b"x", b"1", 1, 1), how=BY_TIME)
    late = _CommitsLater(table, Record(b"a", b"3", 1, 3), Record(b"y", b"3", 1, 3))
    upsert(late, "n", Record(b"a", b"2", 0, 2), Record(b"b", None, 0, 2), how=BY_TIME)
    assert found(table) == {b"a": b"3", b"x": b"1", b"y": b"3"}
    stages = {path.parent.name for path in Path(table.directory).rglob("load-*/*.parquet")}
    assert {path.name for path in Path(table.directory).rglob("load-*")} == stages


def test_rows_of_others_are_found_by_their_keys(tmp_path: Path) -> None:
    """Also where they do not say which record they were made of."""
    table = DeltaLakeTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    rows = pa.table({"key": pa.array([b"b"]), "value": pa.array([b"mine"])})
    write_deltalake(table.uri, rows, mode="append", schema_mode="merge")
    upsert(table.open(), "n", Record(b"b", b"2"))
    assert found(table) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("copied_by", ["upsert", "maintain"])
def test_times_of_96_bits_stay_what_they_are(copied_by: str, tmp_path: Path) -> None:
    """As Spark writes them into Delta tables. Of such Arrow makes nanoseconds, up to 2262."""
    table, late_s = DeltaLakeTable(tmp_path), 253_370_764_800
    upsert(table.open(), "n", Record(b"a", b"1", 0, late_s), Record(b"b", b"1"), how=BY_TIME)
    [path] = table.delta().file_uris()
    pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True)
    upsert(table.open(), "n", Record(b"a", None, 0, 5), Record(b"c", b"1", 0, 6), how=BY_TIME)
    if copied_by == "upsert":
        upsert(table.open(), "n", Record(b"b", b"2", 0, 6), how=BY_TIME)
    else:
        assert maintain(table.name).compacted_files == 2
    years = {row["key"]: row["timestamp"].year for row in table.all_rows()}
    assert years == {b"a": 9999, b"b": 1970, b"c": 1970}


def test_times_of_96_bits_in_structs_stay_what_they_are(tmp_path: Path) -> None:
    table, times = DeltaLakeTable(tmp_path), pa.list_(pa.struct([("x", pa.timestamp("us", "UTC"))]))
    late = {"a": 1, "l": [{"x": datetime(9999, 1, 1, tzinfo=timezone.utc)}]}
    upsert_structs(table, {b"1": late, b"2": late, b"3": None}, times)
    [path] = table.delta().file_uris()
    pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True)
    upsert_structs(table, {b"2": {"a": 2}}, times)
    rows = {row["key"]: row["note"] for row in table.all_rows()}
    assert rows == {b"1": late, b"2": {"a": 2, "l": None}, b"3": None}


@pytest.mark.slow
def test_a_table_that_lost_its_keys_is_refused(tmp_path: Path) -> None:
    """Also where a load would add the column again, which no row has."""
    table = IcebergTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    for lost in ("partition", "key"):
        with _loaded(table).update_schema(allow_incompatible_changes=True) as update:
            update.delete_column(lost)
        with pytest.raises(TargetError, match=f"was upserted by {lost}, a column that it has no"):
            upsert(table.open(), "n", Record(b"a", b"2"))


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["key", "timestamp", "partition"])
def test_a_table_whose_keys_were_made_anew_is_refused(lost: str, tmp_path: Path) -> None:
    """The column of that name is another one, which is null in all rows."""
    table = IcebergTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1", 0, 1), how=BY_TIME)
    kind = _loaded(table).schema().find_type(lost)
    with _loaded(table).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column(lost)
    with _loaded(table).update_schema() as update:
        update.add_column(lost, kind)
    with pytest.raises(TargetError, match=f"was upserted by {lost}, a column that it has no more"):
        upsert(table.open(), "n", Record(b"a", b"2", 0, 2), how=BY_TIME)


@pytest.mark.slow
def test_a_table_with_delete_files_is_refused(tmp_path: Path) -> None:
    """Which rows there are, they say."""
    table = IcebergTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"), Record(b"b", b"1"))
    delete_by_position(_loaded(table), 0, tmp_path)
    for record in (Record(b"a", b"2"), Record(b"b", None), Record(b"c", b"1")):
        with pytest.raises(TargetError, match=r"delete files.*nothing was committed"):
            upsert(table.open(), "n", record)
    assert _loaded(table).scan().to_arrow().column("key").to_pylist() == [b"b"]
    assert table.offsets("n") == {0: 2}


def test_a_file_with_a_deletion_vector_stays_as_it_is(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    upsert(table.open(), "n", Record(b"x", b"1"))
    upsert(table.open(), "n", Record(b"a", b"1"), Record(b"b", b"1"))
    delete_by_vector(table.delta(), [0])
    for key in (b"a", b"b"):
        with pytest.raises(TargetError, match="it has a deletion vector"):
            upsert(table.open(), "n", Record(key, b"2"))
    upsert(table.open(), "n", Record(b"x", None), Record(b"y", b"1"))
    query = QueryBuilder().register("orders", table.delta())
    rows = pa.table(query.execute('SELECT "key" FROM orders').read_all())
    assert sorted(rows.column("key").to_pylist()) == [b"b", b"y"]


def test_fields_of_structs_come_with_the_rows_that_need_them(table: Table) -> None:
    """At any depth; rows that are copied have none."""
    inner = pa.list_(pa.struct([("x", pa.int32())]))
    wider = pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())]))
    upsert_structs(table, {b"1": {"a": 1, "l": [{"x": 1}]}, b"2": None, b"3": {"a": 3}}, inner)
    upsert_structs(table, {b"1": {"a": 5, "l": [{"x": 5, "y": "n"}], "b": True}}, wider, "b")
    upsert_structs(table, {b"2": {"a": 6}}, wider, "b")
    rows = {bytes(row["key"]): row["note"] for row in table.all_rows()}
    assert rows == {
        b"1": {"a": 5, "l": [{"x": 5, "y": "n"}], "b": True},
        b"2": {"a": 6, "l": None, "b": None},
        b"3": {"a": 3, "l": None, "b": None},
    }


@pytest.mark.slow
def test_rows_in_files_without_field_ids_are_found(tmp_path: Path) -> None:
    """Of which Iceberg's mapping of names tells the columns."""
    table = IcebergTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    files = f"{tmp_path}/mine.parquet"
    pq.write_table(pa.table({"key": [b"b"], "value": [b"mine"]}), files)
    _loaded(table).add_files([files])
    upsert(table.open(), "n", Record(b"a", b"2"))
    with pytest.raises(TargetError, match=r"mine\.parquet.* has rows of keys .*, or no ids"):
        upsert(table.open(), "n", Record(b"b", b"2"))
    assert found(table) == {b"a": b"2", b"b": b"mine"}


@pytest.mark.slow
def test_deleted_keys_stay_known_when_data_goes_elsewhere(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", None, 0, 6), Record(b"b", b"1"), how=BY_TIME)
    # Trino sweeps what it does not know below `data`, whatever its name.
    assert not list(Path(table.directory).rglob("data/**/_kafkalog_deleted"))
    with _loaded(table).transaction() as transaction:
        transaction.set_properties({"write.data.path": f"file://{tmp_path}/other"})
    upsert(table.open(), "n", Record(b"b", None, 0, 6), how=BY_TIME)
    old = [Record(b"a", b"older", 1, 4), Record(b"b", b"older", 1, 4)]
    upsert(table.open(), "n", *old, Record(b"c", b"1", 1, 4), how=BY_TIME)
    assert found(table) == {b"c": b"1"}


def test_a_table_that_lost_its_deleted_keys_is_refused(table: Table) -> None:
    upsert(table.open(), "n", Record(b"a", None, 0, 6), Record(b"b", b"1"), how=BY_TIME)
    [place] = Path(table.directory).rglob("_kafkalog_deleted")
    place.rename(place.with_name("elsewhere"))
    with pytest.raises(TargetError, match=r"_kafkalog_deleted.*, which says which, is not"):
        upsert(table.open(), "n", Record(b"a", b"older", 1, 4), how=BY_TIME)
    with pytest.raises(TargetError, match="which says which, is not there"):
        rewind(table.name, "n", {"orders": {"0": 0}})
    place.with_name("elsewhere").rename(place)
    upsert(table.open(), "n", Record(b"a", b"older", 1, 4), how=BY_TIME)
    assert found(table) == {b"b": b"1"}


@pytest.mark.slow
def test_a_table_that_lies_elsewhere_is_refused_without_its_deleted_keys(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", None, 0, 6), Record(b"b", b"1"), how=BY_TIME)
    with _loaded(table).transaction() as transaction:
        # As Spark's ALTER TABLE ... SET LOCATION.
        transaction._apply((SetLocationUpdate(location=f"file://{tmp_path}/other"),))
    with pytest.raises(TargetError, match=r"other/_kafkalog_deleted.*, which says which, is not"):
        upsert(table.open(), "n", Record(b"a", b"older", 1, 4), how=BY_TIME)


@pytest.mark.slow
def test_a_table_in_the_place_of_another_has_no_deleted_keys(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", None), Record(b"b", b"1"))
    _catalog(table).drop_table(_NAME)
    upsert(table.open(), "n", Record(b"c", b"1"), Record(b"d", b"1"))
    upsert(table.open(), "n", Record(b"a", b"1", 1))
    assert found(table) == dict.fromkeys((b"a", b"c", b"d"), b"1")


def test_a_table_restored_to_its_beginning_has_no_deleted_keys(tmp_path: Path) -> None:
    """Once its load is forgotten: in another order they would be newer than all that comes."""
    table = DeltaLakeTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", None, 0, 6), Record(b"b", b"1"), how=BY_TIME)
    table.delta().restore(0)
    assert forget(table.name, "n")
    for value in (b"1", b"2", b"3"):
        upsert(table.open(), "n", Record(b"a", value), how=Upsert(order_by="offset"))
        assert found(table) == {b"a": value}


def test_a_load_may_start_over_while_it_is_forgotten(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has deleted by then stays deleted."""
    upsert(table.open(), "n", Record(b"x", None, 0, 5), how=BY_TIME)
    drop = deleted_keys.DeletedKeys.drop

    def late(keys: Any, *what: Any) -> None:
        upsert(table.open(), "n", Record(b"x", None, 0, 5), Record(b"a", None, 0, 5), how=BY_TIME)
        drop(keys, *what)

    monkeypatch.setattr(deleted_keys.DeletedKeys, "drop", late)
    forget(table.name, "n")
    old = [Record(b"a", b"older", 1, 4), Record(b"x", b"older", 1, 4)]
    upsert(table.open(), "n", *old, Record(b"b", b"1", 1, 4), how=BY_TIME)
    assert found(table) == {b"b": b"1"}


_NAME = "lake.raw.orders"


def _catalog(table: IcebergTable) -> Any:
    return load_catalog("kafkalog", uri=table.uri, warehouse=f"file://{table.directory}/lake")


def _loaded(table: IcebergTable) -> Any:
    return _catalog(table).load_table(_NAME)


class _CommitsLater:
    """A target into which load `other` upserts before a commit that has looked already."""

    def __init__(self, table: Table, *records: Record) -> None:
        self._table = table
        self._records = records
        self._target = table.open()

    def commit(self, pending: PendingCommit) -> Any:
        records, look = list(self._records), upserted_files.FileUpsert.change

        def looked(ours: Any, state: Any, current: Any) -> Any:
            change = look(ours, state, current)
            if records and ours._pending.name == pending.name:
                now = [records.pop() for _ in range(len(records))]
                upsert(self._table.open(), "other", *now, how=BY_TIME)
            return change

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upserted_files.FileUpsert, "change", looked)
            return self._target.commit(pending)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)
