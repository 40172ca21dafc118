"""Columns that rows have and the table has not: added, widened or refused, with the commit."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import LoadConflictError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Commit, PendingCommit
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange, parse_schema_change
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import Target
from tests.pyspark_kafkalog.warehouse.tables import (
    BEHIND_REST,
    EVERY_KIND,
    DeltaLakeTable,
    DuckTable,
    IcebergTable,
    MariaDbTable,
    PostgresTable,
    SqliteTable,
    Table,
    table_of,
)
from tests.support.postgres import postgres

ADD, WIDEN, FAIL = map(parse_schema_change, ("add", "widen", "fail"))
ORDERS_0 = TopicPartition("orders", 0)
ID = ("id", pa.int32())
Columns = Sequence[tuple[str, pa.DataType]]


@pytest.fixture(params=[*EVERY_KIND, BEHIND_REST])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "the place"
    directory.mkdir()
    return table_of(request.param, directory)


class Landed:
    """A load that has landed rows of `columns` and not committed."""

    def __init__(
        self,
        table: Table,
        columns: Columns,
        rows: Sequence[Mapping[str, Any]],
        change: SchemaChange = UNSAID,
        name: str = "nightly",
    ) -> None:
        self.target: Target = table.open()
        schema = pa.schema(list(columns))
        position = self.target.position(name)
        start = position.offsets.get(ORDERS_0, 0)
        piece = OffsetRange("orders", 0, start, start + len(rows))
        stage = self.target.stage(schema, (), change)
        batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema)
        files = list(write_files(stage, "orders", [batch]))
        self.pending = PendingCommit(stage, name, position, [piece], files)

    def commit(self) -> Commit:
        return self.target.commit(self.pending)


def land(
    table: Table,
    columns: Columns,
    rows: Sequence[Mapping[str, Any]],
    change: SchemaChange = UNSAID,
    name: str = "nightly",
) -> Commit:
    return Landed(table, columns, rows, change, name).commit()


def found(table: Table) -> list[dict[str, Any]]:
    """All rows, those with the least id first."""
    rows = table.all_rows()
    if isinstance(table, IcebergTable):
        # By its own reader, and not file by file.
        metadata = table.iceberg()
        rows = metadata.scan().to_arrow().to_pylist() if metadata else []
    return sorted(rows, key=lambda row: row["id"])


def test_a_new_column_is_there_with_the_commit_that_needs_it(table: Table) -> None:
    land(table, [ID], [{"id": 1}])
    landed = Landed(table, [ID, ("note", pa.string())], [{"id": 2, "note": "new"}], ADD)
    assert found(table) == [{"id": 1}]
    landed.commit()
    assert found(table) == [{"id": 1, "note": None}, {"id": 2, "note": "new"}]
    assert table.offsets("nightly") == {0: 2}
    # A field that vanished is null from then on.
    land(table, [ID], [{"id": 3}])
    assert found(table)[2] == {"id": 3, "note": None}


def test_a_table_stays_as_it_is_unless_the_load_may_change_it(table: Table) -> None:
    land(table, [ID], [{"id": 1}])
    changes = [FAIL] if table.name.startswith("parquet:") else [FAIL, UNSAID]
    for change in changes:
        with pytest.raises(TargetError, match="no column note"):
            Landed(table, [ID, ("note", pa.string())], [{"id": 2, "note": "new"}], change)
    assert found(table) == [{"id": 1}]


def test_a_commit_without_files_adds_no_column(table: Table) -> None:
    land(table, [ID], [{"id": 1}])
    landed = Landed(table, [ID, ("note", pa.string())], [{"id": 2, "note": "new"}], ADD)
    landed.target.commit(replace(landed.pending, files=[]))
    assert found(table) == [{"id": 1}]
    assert table.offsets("nightly") == {0: 2}


def test_a_column_is_not_added_twice_in_other_case(table: Table) -> None:
    land(table, [ID], [{"id": 1}])
    columns = [("Id", pa.int32()), ("note", pa.string())]
    if isinstance(table, SqliteTable | DuckTable | MariaDbTable):
        # These take both for one themselves.
        land(table, columns, [{"Id": 2}], ADD)
        assert [row["id"] for row in found(table)] == [1, 2]
        return
    with pytest.raises(TargetError, match="a column id, and"):
        land(table, columns, [{"Id": 2}], ADD)
    assert found(table) == [{"id": 1}]


LARGE = 1 << 40
GROWS = {
    "long": (pa.int32(), 5, pa.int64(), LARGE),
    "double": (pa.float32(), 0.1, pa.float64(), 0.1),
    "decimal": (pa.decimal128(4, 2), Decimal("1.25"), pa.decimal128(9, 2), Decimal("1234567.25")),
}


@pytest.mark.parametrize("kind", GROWS)
def test_a_type_gets_wider_where_the_format_can(table: Table, kind: str) -> None:
    narrow, first, wide, second = GROWS[kind]
    land(table, [ID, ("n", narrow)], [{"id": 1, "n": first}])
    grown = [ID, ("n", wide)]
    if table.name.startswith(("parquet:", "delta:")):
        with pytest.raises(TargetError, match="n of type"):
            Landed(table, grown, [{"id": 2, "n": second}], WIDEN)
        assert [row["id"] for row in found(table)] == [1]
        return
    # SQLite's columns hold both, and so does MariaDB's for floating point numbers.
    if "sqlite" not in table.name and not (isinstance(table, MariaDbTable) and kind == "double"):
        with pytest.raises(TargetError, match="column n"):
            Landed(table, grown, [{"id": 2, "n": second}], ADD)
    land(table, grown, [{"id": 2, "n": second}], WIDEN)
    # Exactly what there was: a float has no more digits by being a double.
    before = pa.scalar(first, narrow).as_py()
    rows = [(row["id"], Decimal(str(row["n"]))) for row in found(table)]
    assert rows == [(1, Decimal(str(before))), (2, Decimal(str(second)))]
    # Rows that are narrower take the column's type from then on.
    land(table, [ID, ("n", narrow)], [{"id": 3, "n": first}], WIDEN)
    assert [row["id"] for row in found(table)] == [1, 2, 3]


def test_rows_of_a_narrower_type_take_the_columns(table: Table) -> None:
    land(table, [ID, ("n", pa.int64())], [{"id": 1, "n": LARGE}])
    land(table, [ID, ("n", pa.int32())], [{"id": 2, "n": 5}], WIDEN)
    assert [row["n"] for row in found(table)] == [LARGE, 5]


def test_a_type_that_cannot_become_the_other_is_refused(table: Table) -> None:
    land(table, [ID, ("n", pa.int64())], [{"id": 1, "n": 5}])
    for kind, value in ((pa.string(), "5"), (pa.date32(), None)):
        with pytest.raises(TargetError, match="n "):
            Landed(table, [ID, ("n", kind)], [{"id": 2, "n": value}], WIDEN)
    assert [row["id"] for row in found(table)] == [1]


def test_a_column_that_is_sorted_out_keeps_its_type(table: Table) -> None:
    land(table, [ID, ("n", pa.int32()), ("t", pa.string())], [{"id": 1, "n": 5, "t": "a"}])
    change = replace(ADD, sorted_out=frozenset(["n", "t"]))
    others = pa.schema([ID, ("n", pa.string()), ("t", pa.int32())])
    stage = table.open().stage(others, (), change)
    # An integer of SQLite is a long one.
    assert stage.schema.field("n").type in (pa.int32(), pa.int64())
    assert stage.schema.field("t").type == pa.string()


INNER = pa.struct([("a", pa.int32())])
MORE = pa.struct([("b", pa.string()), ("a", pa.int32())])


def test_a_struct_gets_new_fields(table: Table) -> None:
    land(table, [ID, ("s", INNER), ("l", pa.list_(INNER))], [{"id": 1, "s": {"a": 1}, "l": []}])
    columns = [ID, ("s", MORE), ("l", pa.list_(MORE))]
    rows = [{"id": 2, "s": {"b": "x", "a": 2}, "l": [{"b": "y", "a": 3}]}]
    if table.name.startswith("parquet:"):
        with pytest.raises(TargetError, match="column s of type"):
            Landed(table, columns, rows, ADD)
        return
    land(table, columns, rows, ADD)
    structs = [
        json.loads(row["s"]) if isinstance(row["s"], str) else row["s"] for row in found(table)
    ]
    assert [(one["a"], one.get("b")) for one in structs] == [(1, None), (2, "x")]
    # Fields that vanished are null.
    land(table, [ID, ("s", INNER)], [{"id": 3, "s": {"a": 4}}], ADD)
    last = found(table)[2]["s"]
    last = json.loads(last) if isinstance(last, str) else last
    assert (last["a"], last.get("b")) == (4, None)


def test_two_loads_that_add_the_same_column_both_go_on(table: Table) -> None:
    land(table, [ID], [{"id": 1}])
    columns = [ID, ("note", pa.string())]
    landed = [
        Landed(table, columns, [{"id": number, "note": name}], ADD, name)
        for number, name in ((2, "left"), (3, "right"))
    ]
    for each in landed:
        each.commit()
    assert [row["note"] for row in found(table)] == [None, "left", "right"]


def test_of_two_loads_that_add_other_columns_the_second_goes_on_or_conflicts(table: Table) -> None:
    land(table, [ID], [{"id": 1}])
    left = Landed(table, [ID, ("left", pa.string())], [{"id": 2, "left": "l"}], ADD, "left")
    right = Landed(table, [ID, ("right", pa.int64())], [{"id": 3, "right": 5}], ADD, "right")
    left.commit()
    try:
        right.commit()
    except LoadConflictError:
        # Its files name columns by the ids that the other ones have now.
        assert isinstance(table, IcebergTable)
        assert len(found(table)) == 2
        land(table, [ID, ("right", pa.int64())], [{"id": 3, "right": 5}], ADD, "right")
    assert found(table) == [
        {"id": 1, "left": None, "right": None},
        {"id": 2, "left": "l", "right": None},
        {"id": 3, "left": None, "right": 5},
    ]
    assert table.offsets("right") == {0: 1}


def test_two_loads_that_add_a_column_of_two_types_do_not_mix(table: Table) -> None:
    land(table, [ID], [{"id": 1}])
    left = Landed(table, [ID, ("n", pa.string())], [{"id": 2, "n": "5"}], ADD, "left")
    right = Landed(table, [ID, ("n", pa.int32())], [{"id": 3, "n": 5}], ADD, "right")
    left.commit()
    with pytest.raises((TargetError, LoadConflictError), match="n "):
        right.commit()
    assert [row["id"] for row in found(table)] == [1, 2]
    assert table.offsets("right") == {}


@pytest.mark.parametrize("table", ["delta", "iceberg", "duckdb"], indirect=True)
def test_a_struct_that_another_load_extends_meanwhile_is_a_conflict(table: Table) -> None:
    land(table, [ID, ("s", INNER)], [{"id": 1, "s": {"a": 1}}])
    slow = Landed(table, [ID, ("s", INNER)], [{"id": 3, "s": {"a": 3}}], ADD, "slow")
    land(table, [ID, ("s", MORE)], [{"id": 2, "s": {"b": "x", "a": 2}}], ADD)
    with pytest.raises(LoadConflictError, match=r"column s of .* was changed while rows landed"):
        slow.commit()
    land(table, [ID, ("s", INNER)], [{"id": 3, "s": {"a": 3}}], ADD, "slow")
    assert [row["s"]["a"] for row in found(table)] == [1, 2, 3]


def test_a_load_of_the_same_name_conflicts_before_it_changes_anything(table: Table) -> None:
    land(table, [ID], [{"id": 1}])
    slow = Landed(table, [ID, ("slow", pa.string())], [{"id": 3, "slow": "x"}], ADD)
    land(table, [ID], [{"id": 2}])
    with pytest.raises(LoadConflictError):
        slow.commit()
    assert found(table) == [{"id": 1}, {"id": 2}]


def test_a_strict_table_of_sqlite_gets_columns_of_its_few_types(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    with closing(sqlite3.connect(table.file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER) STRICT")
    kinds = [("flag", pa.bool_()), ("x", pa.float64()), ("b", pa.binary()), ("t", pa.string())]
    more = [("n", pa.int64()), ("d", pa.decimal128(9, 2)), ("s", INNER)]
    row = {"id": 1, "flag": True, "x": 0.5, "b": b"b", "t": "t", "n": LARGE, "s": {"a": 1}}
    land(table, [ID, *kinds, *more], [row | {"d": Decimal("1.25")}], ADD)
    expected = row | {"flag": 1, "d": "1.25", "s": '{"a": 1}'}
    assert found(table) == [expected]


def test_a_table_of_another_role_is_not_altered(tmp_path: Path) -> None:
    table = PostgresTable(tmp_path)
    land(table, [ID], [{"id": 1}])
    role = f"r{table.schema}"
    table.query(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {table.schema} TO {role}; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {table.schema} TO {role}"
    )
    url = f"postgresql://{role}:x@/postgres?host={postgres().directory}"
    table.name = f"sql:{url}#{table.schema}.orders"
    columns = [ID, ("note", pa.string())]
    said = 'does not own .* ALTER TABLE .* ADD COLUMN "note" TEXT'
    with pytest.raises(TargetError, match=said):
        Landed(table, columns, [{"id": 2, "note": "new"}], ADD)
    table.query("ALTER TABLE orders ADD COLUMN note TEXT")
    land(table, columns, [{"id": 2, "note": "new"}], ADD)
    assert found(table) == [{"id": 1, "note": None}, {"id": 2, "note": "new"}]


def test_a_column_that_another_column_hangs_on_is_not_widened(tmp_path: Path) -> None:
    table = PostgresTable(tmp_path)
    land(table, [ID, ("n", pa.int32())], [{"id": 1, "n": 5}])
    table.query("CREATE VIEW seen AS SELECT n FROM orders")
    with pytest.raises(TargetError, match="used by a view"):
        land(table, [ID, ("n", pa.int64())], [{"id": 2, "n": LARGE}], WIDEN)
    table.query("DROP VIEW seen")
    assert found(table) == [{"id": 1, "n": 5}]
    assert table.offsets("nightly") == {0: 1}


def test_a_time_without_a_zone_needs_the_tables_feature(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    land(table, [ID], [{"id": 1}])
    columns = [ID, ("at", pa.timestamp("us"))]
    with pytest.raises(TargetError, match="no feature timestampNtz"):
        Landed(table, columns, [{"id": 2, "at": None}], ADD)


def test_what_is_said_of_a_delta_table_stays(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    land(table, [ID, ("s", INNER)], [{"id": 1}])
    delta = table.delta()
    delta.alter.set_table_name("Orders")
    delta.alter.set_column_metadata("s", {"comment": "theirs"})
    delta.alter.set_table_properties({"delta.appendOnly": "true"})
    before = table.delta()
    land(table, [ID, ("s", MORE), ("note", pa.string())], [{"id": 2, "note": "x"}], ADD)
    after = table.delta()
    assert after.metadata().name == "Orders"
    assert after.metadata().id == before.metadata().id
    assert after.metadata().configuration == before.metadata().configuration
    assert after.schema().fields[1].metadata == {"comment": "theirs"}
    assert after.version() == before.version() + 1
    # to_pyarrow_dataset() finds no null in files without the column, whoever has added it.
    query = QueryBuilder().register("orders", after)
    for wanted, ids in (("note = 'x'", [2]), ("note IS NULL", [1]), ("s.b IS NULL", [1, 2])):
        rows = pa.table(query.execute(f"SELECT id FROM orders WHERE {wanted} ORDER BY id"))
        assert rows["id"].to_pylist() == ids


def test_files_of_before_are_found_by_a_promoted_column_of_iceberg(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    land(table, [ID, ("n", pa.int32())], [{"id": 1, "n": 5}])
    land(table, [ID, ("n", pa.int64()), ("x", pa.string())], [{"id": 2, "n": LARGE}], WIDEN)
    metadata = table.iceberg()
    assert metadata
    for wanted, ids in (("n = 5", [1]), ("n > 100", [2]), ("x is null", [1, 2])):
        rows = metadata.scan(row_filter=wanted).to_arrow()
        assert sorted(rows["id"].to_pylist()) == ids
    assert [snapshot.schema_id for snapshot in metadata.snapshots()] == [0, 1]
