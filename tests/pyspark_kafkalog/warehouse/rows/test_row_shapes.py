"""Rows that are no longer those of a topic, in every kind of target."""

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRowError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    PendingCommit,
)
from pyspark_kafkalog.warehouse.rows.row_types import fitted, storable
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from tests.pyspark_kafkalog.warehouse.tables import KINDS, Table

PIECE = OffsetRange("orders", 0, 0, 100)
DAY = date(2026, 11, 21)
MOMENT = datetime(2026, 11, 21, 17, 0, 0, 123456)
WIDE = {
    "paid": pa.array([True, None], pa.bool_()),
    "small": pa.array([-3, None], pa.int8()),
    "huge": pa.array([2**64 - 1, None], pa.uint64()),
    "half": pa.array([0.5, None], pa.float16()),
    "price": pa.array([Decimal("1234.50"), None], pa.decimal128(12, 2)),
    "ratio": pa.array([0.1, None], pa.float64()),
    "day": pa.array([DAY, None], pa.date64()),
    "at": pa.array([1_700_000_000_123, None], pa.timestamp("ms", "Europe/Berlin")),
    "local": pa.array([MOMENT, None], pa.timestamp("us")),
    "Name of it": pa.array(["ä\n\"quoted\", '1'", None], pa.large_string()),
    "raw": pa.array([b"\x00\xff", None], pa.large_binary()),
    "colour": pa.array(["red", None]).dictionary_encode(),
    "lines": pa.array(
        [[{"sku": "a", "n": 2, "tags": ["x", None]}], None],
        pa.list_(
            pa.struct([("sku", pa.string()), ("n", pa.int16()), ("tags", pa.list_(pa.string()))])
        ),
    ),
    "labels": pa.array([[("a", 1.5)], None], pa.map_(pa.string(), pa.float64())),
}


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "place"
    directory.mkdir()
    return KINDS[request.param](directory)


def load(table: Table, rows: pa.RecordBatch, start: int = 0, until: int = 100) -> None:
    target = table.open()
    last = target.position("nightly")
    stage = target.stage(storable(rows.schema))
    files = list(write_files(stage, "orders", [rows]))
    target.commit(
        PendingCommit(stage, "nightly", last, [OffsetRange("orders", 0, start, until)], files)
    )


def plain(value: Any) -> Any:
    """A value as it is in each of the formats: nested ones may have become JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return plain(json.loads(value))
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        pairs = [isinstance(item, tuple) for item in value]
        return dict(value) if pairs and all(pairs) else [plain(item) for item in value]
    return value


def test_rows_of_any_types_read_back(table: Table) -> None:
    load(table, pa.RecordBatch.from_pydict(WIDE))
    assert table.offsets("nightly") == {0: 100}
    first, second = table.all_rows()
    assert set(first) == set(WIDE)
    assert {name for name, value in second.items() if value is not None} == set()
    assert first["paid"] in (True, 1)
    assert first["small"] == -3
    assert Decimal(first["huge"]) == 2**64 - 1
    assert (first["half"], first["ratio"]) == (0.5, 0.1)
    assert Decimal(first["price"]) == Decimal("1234.50")
    assert str(first["day"]) == "2026-11-21"
    assert str(first["local"]).replace("T", " ") == "2026-11-21 17:00:00.123456"
    at = first["at"]
    if isinstance(at, str):
        at = datetime.fromisoformat(at).replace(tzinfo=timezone.utc)
    assert at.timestamp() == 1_700_000_000.123
    assert first["Name of it"] == "ä\n\"quoted\", '1'"
    assert (first["raw"], first["colour"]) == (b"\x00\xff", "red")
    assert plain(first["lines"]) == [{"sku": "a", "n": 2, "tags": ["x", None]}]
    assert plain(first["labels"]) == {"a": 1.5}


def test_rows_need_no_offsets_and_ranges_no_files(table: Table) -> None:
    counted = pa.RecordBatch.from_pydict({"carrier": ["AA", "UA"], "flights": [3, 4]})
    load(table, counted)
    load(table, counted.slice(0, 0), 100, 200)
    assert table.offsets("nightly") == {0: 200}
    rows = sorted((row["carrier"], row["flights"]) for row in table.all_rows())
    assert rows == [("AA", 3), ("UA", 4)]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_column_of_another_type_is_refused_before_anything_is_read(
    tmp_path: Path, kind: str
) -> None:
    table = KINDS[kind](tmp_path)
    load(table, pa.RecordBatch.from_pydict({"n": [1]}))
    with pytest.raises(TargetError, match=r"column n of type"):
        load(table, pa.RecordBatch.from_pydict({"n": ["one"]}), 100, 200)


def test_a_parquet_directory_keeps_the_types_of_the_loader_that_was_faster(tmp_path: Path) -> None:
    table = KINDS["parquet"](tmp_path)
    target = table.open()
    rows = pa.RecordBatch.from_pydict({"n": ["one"]})
    stage = target.stage(rows.schema)
    files = list(write_files(stage, "orders", [rows]))
    load(table, pa.RecordBatch.from_pydict({"n": [1]}))
    with pytest.raises(TargetError, match="column n of type int64, not string"):
        target.commit(PendingCommit(stage, "hourly", NOWHERE, [PIECE], files))
    # What a directory has and a load does not, reads as null.
    load(table, pa.RecordBatch.from_pydict({"more": ["x"]}), 100, 200)
    assert {row["n"] for row in table.all_rows()} == {1, None}


def test_a_parquet_directory_has_no_columns_that_differ_by_case_alone(tmp_path: Path) -> None:
    """Spark takes them for one, and reads neither."""
    table = KINDS["parquet"](tmp_path)
    load(table, pa.RecordBatch.from_pydict({"id": [1]}))
    for again in ({"ID": ["one"]}, {"Id": [2]}):
        with pytest.raises(TargetError, match=r"have a column id, and these rows one named I"):
            load(table, pa.RecordBatch.from_pydict(again), 100, 200)
    assert table.all_rows() == [{"id": 1}]


def test_field_ids_of_nested_columns_are_those_of_the_table(tmp_path: Path) -> None:
    table = KINDS["iceberg"](tmp_path)
    target = table.open()
    stage = target.stage(storable(pa.schema({name: WIDE[name].type for name in WIDE})))
    [file] = write_files(stage, "orders", [pa.RecordBatch.from_pydict(WIDE)])
    schema = str(pq.ParquetFile(f"{stage.path}/{file.name}").schema)
    assert (
        schema.count("field_id=-1") == 4
    )  # The root, and what Parquet puts between list and element.


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": pa.int32(), "A": pa.int32()}, "two named A"),
        (
            {"s": pa.list_(pa.struct([("a", pa.int32()), ("A", pa.int32())]))},
            "column s has two fields named a",
        ),
        ({"": pa.int32()}, "one has no name"),
        ({}, "without any column"),
        ({"gap": pa.duration("s")}, "column gap is of type duration"),
        ({"nothing": pa.null()}, "column nothing is of type null"),
        ({"s": pa.struct([("t", pa.time32("s"))])}, r"column s\.t is of type time32"),
        ({"s": pa.struct([])}, "column s is of type struct"),
        ({"d": pa.decimal256(40, 2)}, "column d is of type decimal256"),
    ],
)
def test_types_that_some_warehouse_cannot_hold_are_refused(
    columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        storable(pa.schema(columns))


def test_a_batch_that_does_not_fit_is_refused_with_its_column() -> None:
    schema = pa.schema({"n": pa.int32()})
    assert fitted(pa.RecordBatch.from_pydict({"x": [1], "n": [7]}), schema).to_pydict() == {
        "n": [7]
    }
    with pytest.raises(InvalidRowError, match="column n is int64 and should be int32"):
        fitted(pa.RecordBatch.from_pydict({"n": [2**40]}), schema)
    with pytest.raises(InvalidRowError, match="should have one column n, but have m"):
        fitted(pa.RecordBatch.from_pydict({"m": [1]}), schema)
