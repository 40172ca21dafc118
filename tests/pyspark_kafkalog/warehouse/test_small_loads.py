"""Loads from the call to the rows, without Spark: what an error says to do next, and odd wishes."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import Field
from deltalake.schema import PrimitiveType
from kafka.structs import TopicPartition
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType
from pyspark.sql import functions

import pyspark_kafkalog
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import BadRecordError, InvalidRowError, TargetError
from pyspark_kafkalog.record.compression import Codec
from tests.property.task_session import TaskFunction, TaskSession
from tests.pyspark_kafkalog.warehouse.tables import (
    KINDS,
    DeltaLakeTable,
    DuckTable,
    IcebergTable,
    MariaDbTable,
    ParquetTable,
    PostgresTable,
    S3Table,
    SqliteTable,
    Table,
)

Load = Callable[..., Any]
Fill = Callable[[dict[str, pa.Array]], None]

FIRST_US = -2_440_588 * 86_400_000_000
"""The first time of PostgreSQL."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(servers: str, tmp_path: Path) -> str:
    name = f"t-{tmp_path.name}"
    with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
        admin.create_topic(cluster, name, 1, 1)
    return name


@pytest.fixture
def fill(servers: str, topic: str) -> Fill:
    """Appends records with these columns to the topic."""

    def fill_topic(columns: dict[str, pa.Array]) -> None:
        encoder = RecordEncoder(1, Codec.NONE, max_batch_bytes=1000)
        rows = pa.RecordBatch.from_pydict(columns)
        with Producer(ClientConfig.from_options({"bootstrap.servers": servers})) as producer:
            for _, batch in [*encoder.encode(rows), *encoder.finish()]:
                producer.send(TopicPartition(topic, 0), batch)

    return fill_topic


@pytest.fixture
def load(servers: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setattr(functions, "udf", TaskFunction)

    def load_topic(target: str, **how: Any) -> Any:
        session: Any = TaskSession()
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        return pyspark_kafkalog.load(session, "nightly", target, given, **how)

    return load_topic


def add_text(table: Table, column: str) -> None:
    """By the means of the format itself."""
    match table:
        case DeltaLakeTable():
            table.delta().alter.add_columns([Field(column, PrimitiveType("string"))])
        case IcebergTable():
            catalog = load_catalog("kafkalog", uri=table.uri)
            with catalog.load_table("lake.raw.orders").update_schema() as update:
                update.add_column(column, StringType())
        case DuckTable():
            with closing(duckdb.connect(table.file)) as connection:
                connection.execute(f"ALTER TABLE orders ADD COLUMN {column} TEXT")
        case MariaDbTable():
            table.query(f"ALTER TABLE orders ADD COLUMN {column} LONGTEXT CHARACTER SET utf8mb4")
        case SqliteTable() | PostgresTable():
            table.query(f"ALTER TABLE orders ADD COLUMN {column} TEXT")
        case _:
            raise AssertionError(table)


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_that_failed_for_a_bad_record_goes_on_as_it_says(
    kind: str, tmp_path: Path, load: Load, fill: Fill
) -> None:
    directory = tmp_path / "the place"
    directory.mkdir()
    table = KINDS[kind](directory)
    fill({"value": pa.array([b'{"id": 7}', b"no json"], pa.binary())})
    how = {"value_format": "json", "value_schema": "id BIGINT"}
    with pytest.raises(
        BadRecordError, match=r"deadletter a load goes on, or with null, .* column value_error"
    ):
        load(table.name, **how)
    if not isinstance(table, ParquetTable | S3Table):
        with pytest.raises(
            TargetError, match=r"(?i)no column value_error(?!.*Primitive).*(str|te)"
        ):
            load(table.name, **how, on_error="null")
        add_text(table, "value_error")
    result = load(table.name, **how, on_error="null")
    assert (result.records, result.bad_records) == (2, 1)
    rows = sorted(table.all_rows(), key=lambda row: int(row["offset"]))
    assert ["not a JSON" in (row["value_error"] or "") for row in rows] == [False, True]


def widened(rows: pa.RecordBatch) -> pa.RecordBatch:
    values = [json.loads(value) for value in rows.column("value").to_pylist()]
    names = sorted({"a", *(name for value in values for name in value)})
    columns = [pa.array([value.get(name) for value in values], pa.int64()) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def narrowed(rows: pa.RecordBatch) -> pa.RecordBatch:
    kind = pa.float64() if rows.num_rows else pa.float32()
    return pa.RecordBatch.from_arrays([pa.array([0.1] * rows.num_rows, kind)], names=["f"])


@pytest.mark.parametrize(
    ("transform", "made"), [(widened, "a int64, b int64"), (narrowed, "f double")]
)
def test_what_a_transform_makes_of_records_alone_is_neither_dropped_nor_changed(
    transform: Any, made: str, tmp_path: Path, load: Load, fill: Fill
) -> None:
    fill({"value": pa.array([b'{"a": 1}', b'{"a": 2, "b": 7}'], pa.binary())})
    with pytest.raises(InvalidRowError, match=rf"made other columns of records \({made}\)"):
        load(f"parquet:{tmp_path}/table", transform=transform)


def test_what_a_transform_makes_may_be_narrower_and_in_another_order(
    tmp_path: Path, load: Load, fill: Fill
) -> None:
    def made(rows: pa.RecordBatch) -> pa.RecordBatch:
        if not rows.num_rows:
            schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(9, 2))])
            return pa.RecordBatch.from_pylist([], schema)
        columns = {
            "d": pa.array([Decimal("1.5")], pa.decimal128(3, 1)),
            "s": pa.array([None]),
            "n": pa.array([7], pa.int16()),
        }
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

    fill({"value": pa.array([b"x"], pa.binary())})
    load(f"parquet:{tmp_path}/table", transform=made)
    found = ParquetTable(tmp_path).arrow()
    assert found.to_pydict() == {"n": [7], "s": [None], "d": [Decimal("1.50")]}


@pytest.mark.parametrize("name", [".x", "a\nb", "a desc\n b", "x desc"])
def test_columns_of_any_name_are_sorted_by(
    name: str, tmp_path: Path, load: Load, fill: Fill
) -> None:
    def renamed(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([rows.column("offset")], names=[name])

    fill({"value": pa.array([b"x"] * 3, pa.binary())})
    load(f"parquet:{tmp_path}/table", transform=renamed, sort_by=[f"{name} desc"])
    found = ParquetTable(tmp_path).arrow()
    assert found.to_pydict() == {name: [2, 1, 0]}


def test_a_plan_has_no_more_commits_than_there_are_offsets(
    tmp_path: Path, load: Load, fill: Fill
) -> None:
    fill({"value": pa.array([b"x" * 5000] * 3, pa.binary())})
    target, how = f"parquet:{tmp_path}/table", {"chunk_bytes": 10}
    planned = load(target, **how, dry_run=True)
    assert planned.commits == load(target, **how).commits == 3


@pytest.mark.parametrize("on_error", ["null", "deadletter", "fail"])
def test_times_that_postgresql_does_not_have_are_bad_records(
    tmp_path: Path, load: Load, fill: Fill, on_error: str
) -> None:
    table = PostgresTable(tmp_path)
    times = [0, FIRST_US, FIRST_US - 1000, -(2**62)]
    fill(
        {
            "value": pa.array([b"v"] * 4, pa.binary()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    if on_error == "fail":
        with pytest.raises(InvalidRowError, match="on_error be null or deadletter"):
            load(table.name)
        assert table.query("SELECT 1 FROM orders") == []
        return
    assert load(table.name, on_error=on_error).bad_records == 2
    found = [row[0] for row in table.query('SELECT "timestamp" FROM orders ORDER BY "offset"')]
    held = ["1970-01-01 00:00:00+00", "4714-11-24 00:00:00+00 BC"]
    assert found == [*held, *([""] * 2 if on_error == "null" else [])]


def test_values_with_such_times_are_bad_too(tmp_path: Path, load: Load, fill: Fill) -> None:
    table = PostgresTable(tmp_path)
    fill({"value": pa.array([_zigzag(0), _zigzag(-2_440_589)], pa.binary())})
    day = '{"type": "int", "logicalType": "date"}'
    load(table.name, value_format="avro", value_schema=day, on_error="null")
    rows = table.query('SELECT value, value_error FROM orders ORDER BY "offset"')
    assert rows == [["1970-01-01", ""], ["", "it holds a time that the target does not have"]]


def _zigzag(number: int) -> bytes:
    """A number as Avro writes it."""
    left, text = (number << 1) ^ (number >> 63), bytearray()
    while left > 127:
        text.append(left & 127 | 128)
        left >>= 7
    return bytes([*text, left])
