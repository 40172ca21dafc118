"""Tables that others made: which are taken, what comes out of them, and what is refused."""

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import Engine, event

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRowError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    Commit,
    PendingCommit,
)
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import Target, open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import (
    DATABASES,
    DuckTable,
    MariaDbTable,
    PostgresTable,
    SqliteTable,
    SqlTable,
)
from tests.support.postgres import postgres

UTC = timezone.utc
MOMENT = datetime(2026, 11, 1, 12, 30, 1, 234567)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# By Arrow type: values that a narrower column would change, or refuse.
BOOL = (pa.bool_(), [True, False, None])
INT = (pa.int32(), [-(2**31), 2**31 - 1, None])
LONG = (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1, None])
FLOAT = (pa.float32(), [1.5, 0.10000000149011612, math.inf, None])
FINITE_FLOAT = (pa.float32(), [1.5, 0.10000000149011612, 3.4028234663852886e38, None])
FINITE = (pa.float64(), [0.1, 123456789.125, 5e-324, 1.7976931348623157e308, None])
DOUBLE = (pa.float64(), [0.1, 123456789.125, -math.inf, 5e-324, None])
PRICE = (pa.decimal128(10, 3), [Decimal("1.239"), Decimal("-9999999.999"), None])
WHOLE = (pa.decimal128(9, 0), [Decimal(10**9 - 1), None])
DAY = (pa.date32(), [date(2026, 11, 1), None])
TIME = (pa.timestamp("us"), [MOMENT, None])
ZONED = (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC), None])
TEXT = (pa.string(), ["007", "", "1e3", " x ", "Ä", "null", None])
BYTES = (pa.binary(), [b"\x00\xff", b"7", None])
NESTED = (HEADERS, [[{"key": "h", "value": b"1"}], [], None])

UTF8 = "CHARACTER SET utf8mb4"

HOLDS: dict[str, list[tuple[str, Any]]] = {
    "postgresql": [
        ("boolean", BOOL),
        ("integer", INT),
        ("bigint", INT),
        ("numeric", INT),
        ("numeric(10)", INT),
        ("double precision", INT),
        ("integer GENERATED ALWAYS AS IDENTITY", (pa.int32(), [7])),
        ("bigint", LONG),
        ("numeric(20,1)", LONG),
        ("real", FLOAT),
        ("double precision", FLOAT),
        ("double precision", DOUBLE),
        ("numeric", PRICE),
        ("numeric(38,10)", PRICE),
        ("numeric(10,3)", PRICE),
        ("integer", WHOLE),
        ("date", DAY),
        ("timestamp", TIME),
        ("timestamp(6)", TIME),
        ("timestamptz", ZONED),
        ("text", TEXT),
        ("text NOT NULL", (pa.string(), ["x"])),  # Alone in its list: in every row.
        ("varchar", TEXT),
        ("citext", TEXT),
        ("any_text", TEXT),
        ("bytea", BYTES),
        ("jsonb", NESTED),
        ("json", NESTED),
        ("text", NESTED),
    ],
    "duckdb": [
        ("BOOLEAN", BOOL),
        ("INTEGER", INT),
        ("BIGINT", INT),
        ("DECIMAL(12,2)", INT),
        ("DOUBLE", INT),
        ("HUGEINT", LONG),
        ("FLOAT", FLOAT),
        ("DOUBLE", FLOAT),
        ("DOUBLE", DOUBLE),
        ("DECIMAL(10,3)", PRICE),
        ("DECIMAL(38,10)", PRICE),
        ("BIGINT", WHOLE),
        ("DATE", DAY),
        ("TIMESTAMP", TIME),
        ("TIMESTAMPTZ", ZONED),
        ("TEXT", TEXT),
        ("VARCHAR(2)", TEXT),  # DuckDB enforces no length.
        ("BLOB", BYTES),
        ("STRUCT(key VARCHAR, value BLOB)[]", NESTED),
    ],
    "mariadb": [
        ("boolean", BOOL),
        ("tinyint(4)", BOOL),
        ("integer", INT),
        ("bigint", INT),
        ("decimal(12,2)", INT),
        ("double", INT),
        ("bigint", LONG),
        ("decimal(20,1)", LONG),
        ("double", FINITE_FLOAT),
        ("double", FINITE),
        ("decimal(10,3)", PRICE),
        ("decimal(65,38)", PRICE),
        ("int", WHOLE),
        ("date", DAY),
        ("datetime(6)", TIME),
        ("datetime(6)", ZONED),
        (f"longtext {UTF8}", TEXT),
        ("longtext CHARACTER SET utf32", TEXT),
        (f"varchar(9) {UTF8} UNIQUE", TEXT),
        ("longblob", BYTES),
        ("varbinary(9) UNIQUE", BYTES),
        ("json", NESTED),
        (f"longtext {UTF8}", NESTED),
    ],
    "sqlite": [
        ("BOOLEAN", BOOL),
        ("INTEGER", LONG),
        ("UNSIGNED BIG INT", LONG),
        ("NUMERIC", LONG),
        ("DOUBLE", INT),
        ("REAL", FLOAT),
        ("FLOAT", DOUBLE),
        ("TEXT", PRICE),
        ("DATE", DAY),
        ("DATETIME", TIME),
        ("TIMESTAMP", ZONED),
        ("TEXT", ZONED),
        ("VARCHAR(1)", TEXT),  # SQLite enforces no length.
        ("", TEXT),
        ("", LONG),
        ("BLOB", BYTES),
        ("TEXT", NESTED),
    ],
}
CHANGES = {
    "postgresql": [
        ("integer", BOOL),
        ("text", BOOL),
        ("smallint", INT),
        ("real", INT),
        ("numeric(9)", INT),
        ("numeric(12,-2)", INT),
        ("text", INT),
        ("integer", LONG),
        ("double precision", LONG),
        ("numeric(19,1)", LONG),
        ("real", DOUBLE),
        ("numeric", DOUBLE),
        ("numeric(10,2)", PRICE),
        ("numeric(9,3)", PRICE),
        ("bigint", PRICE),
        ("double precision", PRICE),
        ("date", TIME),
        ("date", ZONED),
        ("timestamp(3)", TIME),
        ("timestamptz(0)", ZONED),
        ("timestamptz", TIME),
        ("timestamp", ZONED),
        ("time", TIME),
        ("text", ZONED),
        ("timestamp", DAY),
        ("varchar(100)", TEXT),
        ("char(10)", TEXT),
        ('"char"', TEXT),
        ("name", TEXT),
        ("json", TEXT),
        ("jsonb", TEXT),
        ("uuid", TEXT),
        ("bytea", TEXT),
        ("mood", TEXT),
        ("short_text", TEXT),
        ("text[]", TEXT),
        ("text", BYTES),
        ("varchar(20)", NESTED),
        ("hstore_like", NESTED),
    ],
    "duckdb": [
        ("INTEGER", BOOL),
        ("VARCHAR", INT),
        ("SMALLINT", INT),
        ("UINTEGER", INT),
        ("UBIGINT", INT),
        ("FLOAT", INT),
        ("DECIMAL(10,1)", INT),
        ("INTEGER", LONG),
        ("DOUBLE", LONG),
        ("INTEGER", FLOAT),
        ("INTEGER", DOUBLE),
        ("FLOAT", DOUBLE),
        ("DECIMAL(18,3)", DOUBLE),
        ("DECIMAL(10,2)", PRICE),
        ("DOUBLE", PRICE),
        ("DATE", TIME),
        ("TIMESTAMP_S", TIME),
        ("TIMESTAMP_MS", TIME),
        ("TIMESTAMP_NS", TIME),
        ("TIMESTAMP", ZONED),
        ("TIMESTAMPTZ", TIME),
        ("VARCHAR", ZONED),
        ("TIMESTAMP", DAY),
        ("BLOB", TEXT),
        ("JSON", TEXT),
        ("UUID", TEXT),
        ("ENUM('007')", TEXT),
        ("INTEGER", TEXT),
        ("VARCHAR", BYTES),
        ("VARCHAR", NESTED),
        ("JSON", NESTED),
        ("STRUCT(key VARCHAR, value VARCHAR)[]", NESTED),
        ("STRUCT(value BLOB, key VARCHAR)[]", NESTED),
        ("STRUCT(key VARCHAR, value BLOB, more INTEGER)[]", NESTED),
    ],
    "mariadb": [
        ("int", BOOL),
        ("bit(1)", BOOL),
        ("smallint", INT),
        ("int unsigned", INT),
        ("bigint unsigned", INT),
        ("int AUTO_INCREMENT UNIQUE", INT),
        ("decimal(9)", INT),
        ("decimal(10,2) unsigned", INT),
        ("float", INT),
        ("int", LONG),
        ("double", LONG),
        ("float", FLOAT),
        ("double unsigned", FLOAT),
        ("double(9,3)", FLOAT),
        ("float", DOUBLE),
        ("decimal(65,30)", DOUBLE),
        ("decimal(10,2)", PRICE),
        ("double", PRICE),
        ("datetime", TIME),
        ("datetime(3)", TIME),
        ("timestamp(6) NULL", TIME),
        ("timestamp(6) NULL", ZONED),
        ("date", TIME),
        ("datetime(6)", DAY),
        ("longtext CHARACTER SET latin1", TEXT),
        ("longtext CHARACTER SET utf8mb3", TEXT),
        ("varchar(9) CHARACTER SET latin1 UNIQUE", TEXT),
        (f"varchar(100) {UTF8}", TEXT),
        (f"char(10) {UTF8} UNIQUE", TEXT),
        (f"text {UTF8}", TEXT),
        (f"mediumtext {UTF8}", TEXT),
        (f"enum('007') {UTF8}", TEXT),
        ("longblob", TEXT),
        ("varbinary(100)", BYTES),
        ("binary(9) UNIQUE", BYTES),
        ("blob", BYTES),
        (f"longtext {UTF8}", BYTES),
        ("longtext CHARACTER SET latin1", NESTED),
        ("longblob", NESTED),
    ],
    "sqlite": [
        ("TEXT", BOOL),
        ("TEXT", INT),
        ("REAL", LONG),
        ("INTEGER PRIMARY KEY", INT),
        ("INTEGER", DOUBLE),
        ("NUMERIC", DOUBLE),
        ("TEXT", DOUBLE),
        ("NUMERIC", PRICE),
        ("REAL", PRICE),
        ("INTEGER", ZONED),
        ("REAL", DAY),
        ("INTEGER", TEXT),
        ("NUMERIC", TEXT),
        ("STRING", TEXT),  # Which has the affinity NUMERIC.
        ("BLOB", TEXT),
        ("TEXT", BYTES),
        ("NUMERIC", NESTED),
    ],
}


def make(kind: str, directory: Path) -> tuple[SqlTable, Callable[[str], list[list[str]] | None]]:
    """A place for a table, and what runs SQL there: through no code of ours."""
    table = DATABASES[kind](directory)
    if isinstance(table, MariaDbTable):
        return table, lambda statement: [list(row) for row in table.query(statement)]
    if not isinstance(table, PostgresTable):
        connect = sqlite3.connect if isinstance(table, SqliteTable) else duckdb.connect

        def run(statement: str) -> None:
            with closing(connect(str(table.file))) as connection:
                connection.execute("SELECT 1")
                if isinstance(connection, sqlite3.Connection):
                    connection.executescript(statement)
                else:
                    connection.execute(statement)

        return table, run
    postgres().query("CREATE EXTENSION IF NOT EXISTS citext")
    table.query(
        "CREATE TYPE mood AS ENUM ('007'); CREATE DOMAIN any_text AS text; "
        "CREATE DOMAIN short_text AS varchar(3); CREATE DOMAIN hstore_like AS bytea"
    )
    return table, lambda statement: table.query(
        f"SET search_path = {table.schema}, public; {statement}"
    )


def values_of(table: SqlTable, column: str = "x") -> list[Any]:
    """What is in a column, as the database's own driver gives it."""
    query = f'SELECT "{column}" FROM orders'
    if isinstance(table, PostgresTable):
        with psycopg.connect(postgres().url) as connection:
            connection.execute(f"SET search_path = {table.schema}, public")
            connection.execute("SET TIME ZONE 'UTC'")
            return [row[0] for row in connection.execute(query)]
    if isinstance(table, MariaDbTable):
        # Of an index alone it would give them in its order.
        return [row[0] for row in table.query(f'SELECT "{column}", orders.* FROM orders')]
    connect = sqlite3.connect if isinstance(table, SqliteTable) else duckdb.connect
    with closing(connect(str(table.file))) as connection:
        connection.execute("SET TimeZone = 'UTC'") if connect is duckdb.connect else None
        return [row[0] for row in connection.execute(query).fetchall()]


def load_columns(
    table: SqlTable,
    columns: Mapping[str, tuple[Any, int | Any | list[Any]]],
    target: Target | None = None,
) -> Commit | Any:
    """Loads columns, each a pair of Arrow type and values, under their names."""
    arrays = [pa.array(values, kind) for kind, values in columns.values()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    target = target or table.open()
    last = target.position("nightly")
    stage = target.stage(batch.schema)
    begin = max(last.offsets.values(), default=0)
    piece = OffsetRange("orders", 0, begin, begin + batch.num_rows)
    files = list(write_files(stage, "orders", [batch]))
    return target.commit(PendingCommit(stage, "nightly", last, [piece], files))


def padded(values: list[Any], count: int) -> list[Any]:
    return values + [None] * (count - len(values))


def as_python(kind: Any, value: Any) -> Any:
    """A value as a driver should give it: SQLite has texts for times and decimals."""
    if pa.types.is_nested(kind) and isinstance(value, str):
        return json.loads(value)
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value).replace(tzinfo=UTC if kind.tz else None)
    if isinstance(value, str) and pa.types.is_date(kind):
        return date.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is None and kind == pa.timestamp("us", "UTC"):
        return value.replace(tzinfo=UTC)
    if kind == pa.bool_() and value is not None:
        return bool(value)
    if kind == pa.float32() and value is not None:
        return pa.scalar(value, kind).as_py()
    if pa.types.is_decimal(kind) and value is not None:
        return Decimal(value)
    return value


@pytest.mark.parametrize("database", DATABASES)
def test_columns_that_hold_ours_give_them_back_unchanged(database: str, tmp_path: Path) -> None:
    table, run = make(database, tmp_path)
    columns = {f"c{number}": column for number, column in enumerate(HOLDS[database])}
    run(
        "CREATE TABLE orders (own integer DEFAULT 3, "
        + ", ".join(f"{name} {declared}" for name, (declared, _) in columns.items())
        + ")"
    )
    row_count = max(len(values) for _, (_, values) in HOLDS[database])
    wanted = {
        name: (kind, values * row_count if len(values) == 1 else padded(values, row_count))
        for name, (_, (kind, values)) in columns.items()
    }
    load_columns(table, wanted)
    for name, (declared, _) in columns.items():
        kind, values = wanted[name]
        found = [as_python(kind, value) for value in values_of(table, name)]
        if pa.types.is_nested(kind) and database != "duckdb":
            values = padded([[{"key": "h", "value": "MQ=="}], [], None], row_count)
        assert found == values, declared
        if kind in (pa.string(), pa.binary()):
            assert [type(value) for value in found] == [type(value) for value in values], declared


@pytest.mark.parametrize("database", DATABASES)
def test_columns_that_would_change_ours_are_refused_before_anything_is_written(
    database: str, tmp_path: Path
) -> None:
    table, run = make(database, tmp_path)
    columns = {f"c{number}": column for number, column in enumerate(CHANGES[database])}
    run(
        "CREATE TABLE orders ("
        + ", ".join(f"{name} {declared}" for name, (declared, _) in columns.items())
        + ")"
    )
    for name, (_, (kind, _)) in columns.items():
        with pytest.raises(TargetError, match=f"column {name} of the table orders is "):
            table.open().stage(pa.schema([(name, kind)]))
    assert table.open().position("nightly") == NOWHERE


@pytest.mark.parametrize("database", DATABASES)
def test_what_a_load_makes_itself_holds_every_type(database: str, tmp_path: Path) -> None:
    """And is taken again by the next load."""
    table, _ = make(database, tmp_path)
    every: list[Any] = [BOOL, INT, LONG, FLOAT, DOUBLE, PRICE, WHOLE, DAY, TIME, ZONED]
    every += [TEXT, BYTES, NESTED]
    columns = {
        f"c{number}": (kind, [values[0], None]) for number, (kind, values) in enumerate(every)
    }
    for _ in range(2):
        load_columns(table, columns)
    for name, (kind, values) in columns.items():
        if kind != HEADERS:
            found = [as_python(kind, value) for value in values_of(table, name)]
            assert found == [*values, *values]


@pytest.mark.parametrize("database", DATABASES)
def test_columns_of_the_table_alone_need_a_default_or_take_null(
    database: str, tmp_path: Path
) -> None:
    table, run = make(database, tmp_path)
    run("CREATE TABLE orders (x integer, own integer NOT NULL)")
    with pytest.raises(TargetError, match="a column own that may not be null"):
        load_columns(table, {"x": INT})
    run("DROP TABLE orders")
    run("CREATE TABLE orders (own integer NOT NULL DEFAULT 7, more text, x integer)")
    load_columns(table, {"x": INT})
    assert values_of(table) == INT[1]
    assert values_of(table, "own") == [7, 7, 7]


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(
    "declared", ["integer NOT NULL", "integer CHECK (x < 5)", "integer UNIQUE"]
)
def test_what_a_constraint_refuses_is_rolled_back(
    database: str, declared: str, tmp_path: Path
) -> None:
    table, run = make(database, tmp_path)
    run(f'CREATE TABLE orders ("x" {declared})')
    load_columns(table, {"x": (pa.int32(), [1, 2])})
    with pytest.raises(
        TargetError, match=r"(?i)to run the load again is safe.*(constraint|null|duplicate)"
    ):
        load_columns(table, {"x": (pa.int32(), [3, 9, 9, None])})
    assert values_of(table) == [1, 2]
    assert list(table.open().position("nightly").offsets.values()) == [2]


@pytest.mark.parametrize("database", DATABASES)
def test_rows_refer_to_what_is_there(database: str, tmp_path: Path) -> None:
    """SQLite looks after foreign keys in those connections alone that ask for it."""
    table, run = make(database, tmp_path)
    run("CREATE TABLE known (y integer PRIMARY KEY)")
    run("CREATE TABLE orders (x integer REFERENCES known (y)); INSERT INTO known VALUES (1), (2)")
    load_columns(table, {"x": (pa.int32(), [1, None])})
    with pytest.raises(TargetError, match=r"(?i)to run the load again is safe.*foreign key"):
        load_columns(table, {"x": (pa.int32(), [2, 9])})
    assert Counter(values_of(table)) == Counter([1, None])
    load_columns(table, {"x": (pa.int32(), [2])})


def test_what_a_deferred_constraint_refuses_at_the_commit_is_rolled_back(tmp_path: Path) -> None:
    table, run = make("postgresql", tmp_path)
    run("CREATE TABLE orders (x integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(TargetError, match="UniqueViolation"):
        load_columns(table, {"x": (pa.int32(), [1, 1])})
    assert values_of(table) == []
    assert table.open().position("nightly") == NOWHERE


@pytest.mark.parametrize("database", DATABASES)
def test_a_column_that_is_computed_is_refused(database: str, tmp_path: Path) -> None:
    table, run = make(database, tmp_path)
    # MariaDB and DuckDB do not take the NOT NULL.
    stored = {"duckdb": "", "mariadb": "STORED"}.get(database, "STORED NOT NULL")
    run(f"CREATE TABLE orders (y integer, x integer GENERATED ALWAYS AS (y + 1) {stored})")
    with pytest.raises(TargetError, match=r"(?i)generated|to column .*x"):
        table.open().stage(pa.schema([("x", pa.int32())]))
    load_columns(table, {"y": (pa.int32(), [1])})
    assert values_of(table) == [2]


@pytest.mark.parametrize(
    ("database", "trigger"),
    [
        (
            "postgresql",
            "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF NEW.x = 2 THEN RETURN NULL; END IF; RETURN NEW; END $$; "
            "CREATE TRIGGER skip BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION skip()",
        ),
        (
            "sqlite",
            "CREATE TRIGGER skip BEFORE INSERT ON orders WHEN NEW.x = 2 "
            "BEGIN SELECT raise(IGNORE); END",
        ),
        ("sqlite", "DROP TABLE orders; CREATE TABLE orders (x integer UNIQUE ON CONFLICT IGNORE)"),
    ],
)
def test_rows_that_the_table_leaves_out_are_not_reported_as_loaded(
    database: str, trigger: str, tmp_path: Path
) -> None:
    table, run = make(database, tmp_path)
    run(f"CREATE TABLE orders (x integer); {trigger}")
    load_columns(table, {"x": (pa.int32(), [1])})
    with pytest.raises(TargetError, match=r"took 2 of 5 rows.*Nothing was committed"):
        load_columns(
            table,
            {"x": (pa.int32(), [2, 3, 2, 2, 4])}
            if "UNIQUE" not in trigger
            else {"x": (pa.int32(), [1, 3, 1, 1, 4])},
        )
    assert values_of(table) == [1]
    assert list(table.open().position("nightly").offsets.values()) == [1]


def test_a_trigger_that_writes_elsewhere_does_not_disturb_the_count(tmp_path: Path) -> None:
    for database, function in (
        (
            "postgresql",
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "EXECUTE format('INSERT INTO %I.notes VALUES (1), (2)', TG_TABLE_SCHEMA); "
            "RETURN NEW; END $$; "
            "CREATE TRIGGER note AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note()",
        ),
        (
            "sqlite",
            "CREATE TRIGGER note AFTER INSERT ON orders BEGIN "
            "INSERT INTO notes VALUES (NEW.x), (NEW.x); END",
        ),
    ):
        table, run = make(database, tmp_path)
        run(f"CREATE TABLE orders (x integer); CREATE TABLE notes (x integer); {function}")
        load_columns(table, {"x": (pa.int32(), [1, 2])})
        assert values_of(table) == [1, 2]


@pytest.mark.parametrize(
    ("database", "statement", "said"),
    [
        ("postgresql", "CREATE VIEW orders AS SELECT 1 AS x", "a view"),
        ("postgresql", "CREATE MATERIALIZED VIEW orders AS SELECT 1 AS x", "a view"),
        ("postgresql", "CREATE UNLOGGED TABLE orders (x integer)", "unlogged"),
        (
            "postgresql",
            "CREATE TABLE orders (x integer) PARTITION BY RANGE (x); "
            "CREATE UNLOGGED TABLE low PARTITION OF orders DEFAULT",
            "unlogged",
        ),
        (
            "postgresql",
            "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE "
            "FOREIGN TABLE orders (x integer) SERVER files OPTIONS (filename '/nowhere'); "
            "ALTER EXTENSION file_fdw SET SCHEMA pg_catalog",
            "a foreign table",
        ),
        ("postgresql", "CREATE SEQUENCE orders", "no table"),
        (
            "postgresql",
            "CREATE TABLE orders (x integer); CREATE RULE none AS ON INSERT TO orders WHERE x > 1 "
            "DO INSTEAD NOTHING",
            "rewritten by a rule on INSERT",
        ),
        ("duckdb", "CREATE VIEW orders AS SELECT 1 AS x", "a view"),
        ("sqlite", "CREATE VIEW orders AS SELECT 1 AS x", "a view"),
        ("sqlite", "CREATE VIRTUAL TABLE orders USING fts5(x)", "a virtual table"),
        (
            "sqlite",
            "CREATE TABLE orders (x integer UNIQUE ON CONFLICT  REPLACE)",
            "ON CONFLICT REPLACE",
        ),
    ],
)
def test_what_rows_cannot_be_safely_loaded_into_is_refused(
    database: str, statement: str, said: str, tmp_path: Path
) -> None:
    table, run = make(database, tmp_path)
    run(statement)
    with pytest.raises(TargetError, match=f"orders is .*{said}"):
        table.open().stage(pa.schema([("x", pa.int32())]))
    if "file_fdw" in statement:
        postgres().query("DROP EXTENSION file_fdw CASCADE")


def test_a_table_that_ends_with_its_connection_is_refused(tmp_path: Path) -> None:
    target = open_target(f"sql:sqlite:///{tmp_path}/lake.db#temp.orders")
    with pytest.raises(TargetError, match="orders is gone again, as all in the schema temp is"):
        target.stage(pa.schema([("x", pa.int32())]))


def test_a_partitioned_table_takes_the_rows_for_which_it_has_partitions(tmp_path: Path) -> None:
    table, run = make("postgresql", tmp_path)
    run(
        "CREATE TABLE orders (x integer) PARTITION BY RANGE (x); CREATE TABLE low PARTITION OF "
        "orders FOR VALUES FROM (0) TO (10); CREATE TABLE high PARTITION OF orders "
        "FOR VALUES FROM (10) TO (20)"
    )
    load_columns(table, {"x": (pa.int32(), [1, 11])})
    with pytest.raises(TargetError, match="no partition of relation"):
        load_columns(table, {"x": (pa.int32(), [2, 99])})
    assert sorted(values_of(table)) == [1, 11]


def test_a_strict_table_of_sqlite_takes_what_its_types_hold(tmp_path: Path) -> None:
    table, run = make("sqlite", tmp_path)
    run("CREATE TABLE orders (x ANY, y INT, z TEXT, b BLOB) STRICT")
    columns: dict[str, Any] = {"x": TEXT, "y": INT, "z": ZONED, "b": BYTES}
    load_columns(table, {name: (kind, [values[0]]) for name, (kind, values) in columns.items()})
    assert values_of(table) == ["007"]


def test_a_table_of_sqlite_without_row_ids_may_have_an_integer_key(tmp_path: Path) -> None:
    table, run = make("sqlite", tmp_path)
    run("CREATE TABLE orders (x INTEGER PRIMARY KEY) WITHOUT ROWID")
    load_columns(table, {"x": (pa.int32(), [1, 2])})
    with pytest.raises(TargetError, match="NOT NULL"):
        load_columns(table, {"x": (pa.int32(), [None])})
    assert values_of(table) == [1, 2]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_sqlite_refuses_what_it_would_make_null_of(kind: Any, tmp_path: Path) -> None:
    table, _ = make("sqlite", tmp_path)
    load_columns(table, {"x": (kind, [1.5, math.inf, None])})
    with pytest.raises(InvalidRowError, match="column x holds NaN"):
        load_columns(table, {"x": (kind, [2.5, math.nan])})
    assert values_of(table) == [1.5, math.inf, None]
    assert list(table.open().position("nightly").offsets.values()) == [3]


@pytest.mark.parametrize("database", ["postgresql", "duckdb"])
def test_other_databases_hold_what_is_no_number(database: str, tmp_path: Path) -> None:
    table, _ = make(database, tmp_path)
    load_columns(table, {"x": (pa.float64(), [math.nan, math.inf, -math.inf])})
    assert [str(value) for value in values_of(table)] == ["nan", "inf", "-inf"]


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_what_is_no_number_is_a_text_in_json(database: str, tmp_path: Path) -> None:
    table, _ = make(database, tmp_path)
    kind = pa.list_(pa.float64())
    load_columns(table, {"x": (kind, [[math.nan, math.inf, -math.inf, 1.5, None]])})
    [found] = [as_python(kind, value) for value in values_of(table)]
    assert found == ["NaN", "Infinity", "-Infinity", 1.5, None]


DAYS: dict[int | None, str | None] = {
    2**31 - 10**7: "5854201-06-17",
    2_932_897: "10000-01-01",
    0: "1970-01-01",
}
DAY_TEXTS: dict[str, dict[int | None, str | None]] = {
    "postgresql": {
        2_145_042_905: "5874897-12-31",
        **DAYS,
        None: "",
        -719_529: "0002-12-31 BC",
        -2_440_588: "4714-11-24 BC",
    },
    "sqlite": {
        2**31 - 1: "5881580-07-11",
        **DAYS,
        None: None,
        -719_529: "0002-12-31 BC",
        -(2**31): "5877642-06-23 BC",
    },
}


@pytest.mark.parametrize("database", DAY_TEXTS)
def test_days_for_which_python_has_no_date_are_kept(database: str, tmp_path: Path) -> None:
    """Arrow's own texts of them are `<value out of range: ...>`, and what PostgreSQL refuses."""
    table, _ = make(database, tmp_path)
    days = list(DAY_TEXTS[database])
    load_columns(table, {"n": (pa.int32(), list(range(len(days)))), "x": (pa.date32(), days)})
    rows = table.query("SELECT n, x FROM orders ORDER BY n")
    assert [row[1] for row in rows] == list(DAY_TEXTS[database].values())


FIRST_US = -2_440_588 * 86_400_000_000


@pytest.mark.parametrize(
    ("kind", "held", "beyond"),
    [
        (pa.date32(), -2_440_588, -2_440_589),
        (pa.date32(), 2_145_042_905, 2_145_042_906),
        (pa.timestamp("us"), FIRST_US, FIRST_US - 1),
        (pa.timestamp("us", "UTC"), FIRST_US, -(2**63)),
    ],
)
def test_postgresql_refuses_times_that_it_does_not_have(
    kind: Any, held: int, beyond: int, tmp_path: Path
) -> None:
    table, _ = make("postgresql", tmp_path)
    load_columns(table, {"x": (kind, [held, None])})
    with pytest.raises(InvalidRowError, match="column x holds a time that PostgreSQL does not"):
        load_columns(table, {"x": (kind, [held, beyond])})
    assert table.query("SELECT count(*) FROM orders") == [["2"]]


@pytest.mark.parametrize("database", DAY_TEXTS)
def test_times_in_nested_columns_for_which_python_has_no_date_are_kept(
    database: str, tmp_path: Path
) -> None:
    table, _ = make(database, tmp_path)
    local, zoned = pa.timestamp("us"), pa.timestamp("us", "UTC")
    kind = pa.struct([("d", pa.list_(pa.date32())), ("m", pa.map_(zoned, local))])
    times = [5, 2**63 - 1, -(2**63), -62_135_596_800_000_001]
    value = {"d": [0, 2**31 - 1, -(2**31)], "m": [(time, time) for time in times] + [(6, None)]}
    load_columns(table, {"x": (kind, [value])})
    [found] = [as_python(kind, value) for value in values_of(table)]
    assert found["d"] == ["1970-01-01", "5881580-07-11", "5877642-06-23 BC"]
    assert found["m"] == {
        "1970-01-01 00:00:00.000005+00:00": "1970-01-01 00:00:00.000005",
        "294247-01-10 04:00:54.775807+00:00": "294247-01-10 04:00:54.775807",
        "290309-12-21 19:59:05.224192+00:00 BC": "290309-12-21 19:59:05.224192 BC",
        "0001-12-31 23:59:59.999999+00:00 BC": "0001-12-31 23:59:59.999999 BC",
        "1970-01-01 00:00:00.000006+00:00": None,
    }


NAMES = ["it's we\"ird; -- %s %(x)s :c a?b$1 \\ Größe 表 🦆", "select", "MiXed"]


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("name", NAMES)
def test_tables_and_columns_may_be_called_anything(
    database: str, name: str, tmp_path: Path
) -> None:
    table, _ = make(database, tmp_path)
    if database == "mariadb":
        name = name.replace(" 🦆", "")
    target = open_target(f"{table.name.removesuffix('orders')}{name}")
    for _ in range(2):
        load_columns(table, dict.fromkeys([name, *NAMES[1:]], INT), target)
    quoted = name.replace('"', '""')
    statement = f'SELECT "{quoted}" FROM "{quoted}"'
    if isinstance(table, PostgresTable):
        with psycopg.connect(postgres().url) as connection:
            connection.execute(f"SET search_path = {table.schema}")
            found = connection.cursor().execute(statement.encode()).fetchall()
    elif isinstance(table, MariaDbTable):
        found = list(table.query(statement))
    else:
        connect = sqlite3.connect if database == "sqlite" else duckdb.connect
        with closing(connect(str(table.file))) as connection:
            found = connection.execute(statement).fetchall()
    assert [row[0] for row in found] == [*INT[1], *INT[1]]
    assert list(target.position("nightly").offsets.values()) == [6]


@pytest.mark.parametrize("place", ["kafkalog_offsets", "public.KAFKALOG_commits", ".orders", "s."])
def test_names_that_are_no_tables_are_refused(place: str) -> None:
    with pytest.raises(InvalidOptionError):
        open_target(f"sql:{postgres().url}#{place}")


@pytest.mark.parametrize("place", ["x" * 64, "ä" * 32, f"{'s' * 64}.orders"])
def test_names_that_postgresql_would_cut_are_refused(place: str) -> None:
    with pytest.raises(InvalidOptionError, match="longer than the 63 bytes"):
        open_target(f"sql:{postgres().url}#{place}")


def test_columns_that_postgresql_would_cut_are_refused_before_the_table_is_made(
    tmp_path: Path,
) -> None:
    table, _ = make("postgresql", tmp_path)
    with pytest.raises(InvalidOptionError, match="longer than the 63 bytes"):
        table.open().stage(pa.schema([("c" * 64, pa.int32())]))
    assert isinstance(table, PostgresTable)
    assert not table.exists("orders")
    load_columns(table, {"c" * 63: INT})
    assert values_of(table, "c" * 63) == INT[1]


@pytest.mark.parametrize("database", ["duckdb", "sqlite"])
def test_other_databases_keep_long_names_apart(database: str, tmp_path: Path) -> None:
    table, _ = make(database, tmp_path)
    for last in "ab":
        target = open_target(f"{table.name.removesuffix('orders')}{'x' * 80}{last}")
        load_columns(table, {"c" * 80: INT}, target)
    found = [
        open_target(f"{table.name.removesuffix('orders')}{'x' * 80}{last}").position("nightly")
        for last in "abc"
    ]
    assert [list(position.offsets.values()) for position in found] == [[3], [3], []]


def test_a_sqlite_that_is_too_old_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3.dbapi2, "sqlite_version_info", (3, 36, 0))
    monkeypatch.setattr(sqlite3.dbapi2, "sqlite_version", "3.36.0")
    with pytest.raises(TargetError, match=r"SQLite 3\.36\.0.*need 3\.37 or newer"):
        SqliteTable(tmp_path).open()


@pytest.mark.parametrize("table_of", [SqliteTable, DuckTable])
def test_a_load_does_not_look_through_all_commits_for_its_table(
    tmp_path: Path, table_of: type[SqliteTable] | type[DuckTable]
) -> None:
    table = table_of(tmp_path)
    load(table.open(), "nightly", 3)
    statements = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        load(table.open(), "nightly", 5)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert statements
    assert not [one for one in statements if "DISTINCT" in one]
