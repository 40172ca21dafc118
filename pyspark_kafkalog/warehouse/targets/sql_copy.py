"""How landed rows get into a table: many at a time, by what each database has for it.

COPY in PostgreSQL (psycopg), read_parquet in DuckDB, executemany in SQLite, INSERT of many rows in
MariaDB. Nested columns, such as
`headers`, become JSON with bytes in base64 and what is no finite number as text, in DuckDB lists,
structs and maps; times in UTC (text in SQLite, which has no times).

Memory: BATCH_ROWS rows and their text, at most a row group (ROW_GROUP_BYTES of landing.py) and
three times its size as text, whatever the number of rows. Measured with 2 million rows of 100
bytes: 75 MiB more than before the commit with PostgreSQL, 35 MiB with SQLite, 170 MiB with DuckDB,
which has its own `memory_limit`.

Called by the driver, within the transaction that also moves the offsets.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import sqlalchemy as sa

from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.warehouse.rows.calendar_range import (
    DAY_US,
    FIRST_TIME_US,
    LAST_TIME_US,
    MARIADB_DAYS,
    POSTGRESQL_DAYS,
)
from pyspark_kafkalog.warehouse.rows.row_types import rows_out_of_days
from pyspark_kafkalog.warehouse.targets.hexadecimal import hexadecimal
from pyspark_kafkalog.warehouse.targets.mariadb_copy import Insertion
from pyspark_kafkalog.warehouse.targets.sql_database import driver_cursor
from pyspark_kafkalog.warehouse.targets.sql_types import quoted

BATCH_ROWS = 50_000

_WILDCARD = re.compile(r"[\[*?]")
_EPOCH = datetime(1970, 1, 1)
_CYCLE_DAYS = 146_097
"""400 years: after that long, the calendar repeats itself."""

# As PostgreSQL writes them, also in its own JSON.
_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def copy_rows(
    connection: sa.Connection, table: str, schema: pa.Schema, paths: Sequence[str]
) -> int:
    """Inserts the rows of Parquet files with the columns of `schema` into `table`, a name in quotes
    as SQL has it; returns how many the database says went in. Raises InvalidRowError for a value
    that it cannot hold."""
    columns = ", ".join(map(quoted, schema.names))
    into = f"{table} ({columns})"
    if connection.dialect.name == "duckdb":
        # Not what DuckDB reads out of a path: directories named COLUMN=VALUE, wildcards.
        files = "read_parquet(?, hive_partitioning = false)"
        statement = f"INSERT INTO {into} SELECT {columns} FROM {files}"
        escaped = [_WILDCARD.sub(r"[\g<0>]", path) for path in paths]
        return sum(connection.exec_driver_sql(statement, (path,)).scalar_one() for path in escaped)
    if connection.dialect.name == "postgresql":
        # The texts of times name no zone.
        connection.exec_driver_sql("SET LOCAL TIME ZONE 'UTC'")
        with driver_cursor(connection) as cursor:
            with cursor.copy(f"COPY {into} FROM STDIN (FORMAT csv)") as copy:
                for batch in _batches(paths):
                    _refuse_times(batch, POSTGRESQL_DAYS, "PostgreSQL")
                    copy.write(_csv(batch))
            return int(cursor.rowcount)
    if connection.dialect.name == "mariadb":
        insertion = Insertion(connection, into)
        return sum(insertion.insert(_for_mariadb(batch)) for batch in _batches(paths))
    marks = ", ".join("?" * len(schema.names))
    statement = f"INSERT INTO {into} VALUES ({marks})"
    count = 0
    for batch in _batches(paths):
        _refuse_numbers(batch, pc.is_nan, "NaN, which SQLite stores as null")
        rows = zip(*(column.to_pylist() for column in _plain_columns(batch)), strict=True)
        count += connection.exec_driver_sql(statement, list(rows)).rowcount
    return count


def _refuse_numbers(
    batch: pa.RecordBatch, are_refused: Callable[[pa.Array], pa.Array], what: str
) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_floating(column.type) and pc.any(are_refused(column)).as_py():
            raise InvalidRowError(
                f"column {name} holds {what}: leave such rows out, or replace the value, in a "
                "transform"
            )


def _refuse_times(batch: pa.RecordBatch, days: range, database: str) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_nested(column.type) and rows_out_of_days(column, days):
            raise InvalidRowError(
                f"column {name} holds a time that {database} does not have: let on_error be null "
                "or deadletter, or replace the time in a transform"
            )


def _for_mariadb(batch: pa.RecordBatch) -> list[pa.Array]:
    _refuse_times(batch, MARIADB_DAYS, "MariaDB")
    what = "NaN or an infinite number, which MariaDB does not have"
    _refuse_numbers(batch, lambda column: pc.invert(pc.is_finite(column)), what)
    return list(_plain_columns(batch))


def _batches(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH_ROWS)


def _plain_columns(batch: pa.RecordBatch) -> Iterator[pa.Array]:
    """The columns with times, decimals and what is nested as text."""
    for column in batch.columns:
        kind = column.type
        if pa.types.is_timestamp(kind):
            yield _time_texts(column)
        elif pa.types.is_date(kind):
            yield _day_texts(column)
        elif pa.types.is_nested(kind):
            counted = column.cast(_counted(kind))
            yield pa.array([_json(value, kind) for value in counted.to_pylist()], pa.string())
        elif pa.types.is_decimal(kind):
            yield column.cast(pa.string())
        else:
            yield column


def _csv(batch: pa.RecordBatch) -> memoryview:
    """Rows as PostgreSQL's COPY reads them: bytes in hexadecimal, null as nothing at all, every
    text in quotes."""
    columns = [_text_or_number(column) for column in _plain_columns(batch)]
    text = pa.BufferOutputStream()
    options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
    pa.csv.write_csv(pa.RecordBatch.from_arrays(columns, batch.schema.names), text, options)
    return memoryview(text.getvalue())


def _text_or_number(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        return hexadecimal(column, "\\x")
    # All digits of its value, which a column of double precision would miss in 0.1.
    return column.cast(pa.float64()) if column.type == pa.float32() else column


def _time_texts(column: pa.TimestampArray) -> pa.StringArray:
    """Times in UTC as `2026-11-01 00:00:00.000000`, which every database understands."""
    bounds = pc.min_max(column.cast(pa.int64())).as_py()
    if bounds["min"] is None:
        return pa.nulls(len(column), pa.string())
    if bounds["min"] >= FIRST_TIME_US and bounds["max"] <= LAST_TIME_US:
        return column.cast(pa.timestamp("us")).cast(pa.string())
    times_us = column.cast(pa.int64()).to_pylist()
    return pa.array([_time_text(time_us) for time_us in times_us], pa.string())


def _day_texts(column: pa.Date32Array) -> pa.StringArray:
    """Days as `2026-11-01`."""
    bounds = pc.min_max(column.cast(pa.int32())).as_py()
    if bounds["min"] is None:
        return pa.nulls(len(column), pa.string())
    if bounds["min"] * DAY_US >= FIRST_TIME_US and bounds["max"] * DAY_US <= LAST_TIME_US:
        return column.cast(pa.string())
    days = column.cast(pa.int32()).to_pylist()
    return pa.array([_day_text(day) for day in days], pa.string())


def _time_text(time_us: int | None, zone: str = "") -> str | None:
    """As `_time_texts`, also where a producer's clock counts beyond the years 1 to 9999."""
    if time_us is None:
        return None
    days, rest_us = divmod(time_us, DAY_US)
    clock = _EPOCH + timedelta(microseconds=rest_us)
    return _day_text(days, f"{clock: %H:%M:%S.%f}{zone}")


def _day_text(days: int | None, clock: str = "") -> str | None:
    """A day, and the time of it if there is any, in the words of PostgreSQL. The year 0 is the one
    before the first."""
    if days is None:
        return None
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = _EPOCH + timedelta(days=rest)
    year = day.year + 400 * cycles
    text = f"{day:%m-%d}{clock}"
    return f"{year:04}-{text}" if year > 0 else f"{1 - year:04}-{text} BC"


def _counted(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for times and days, of which Python has not all."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _counted(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(_counted(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_counted(kind.key_type), _counted(kind.item_type))
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _json(value: Any, kind: pa.DataType) -> str | None:
    """A nested value, whose times are numbers, as JSON."""
    return None if value is None else json.dumps(_document(value, kind), ensure_ascii=False)


def _document(value: Any, kind: pa.DataType) -> Any:
    """What JSON has for a value: bytes in base64, times, decimals and what is no finite number as
    text, a map as an object."""
    if value is None:
        return None
    if pa.types.is_date(kind):
        return _day_text(value)
    if pa.types.is_timestamp(kind):
        zone = "+00:00" if kind.tz else ""
        if FIRST_TIME_US <= value <= LAST_TIME_US:
            return f"{_EPOCH + timedelta(microseconds=value)}{zone}"
        return _time_text(value, zone)
    if isinstance(value, (bool, int, str)):
        return value
    if pa.types.is_struct(kind):
        return {child.name: _document(value[child.name], child.type) for child in kind}
    if pa.types.is_list(kind):
        return [_document(element, kind.value_type) for element in value]
    if pa.types.is_map(kind):
        return {
            str(_document(key, kind.key_type)): _document(item, kind.item_type)
            for key, item in value
        }
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS[str(value)]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
