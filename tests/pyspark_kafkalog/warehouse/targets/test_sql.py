"""The SQL target beyond what every target promises: types, waits, and the tables of others."""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from kafka.structs import TopicPartition
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pyspark_kafkalog import forget
from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.errors import (
    InvalidOptionError,
    InvalidRowError,
    LoadConflictError,
    TargetError,
)
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import NOWHERE, Commit, PendingCommit
from pyspark_kafkalog.warehouse.targets import sql_copy
from pyspark_kafkalog.warehouse.targets.sql_database import Database
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load, rows, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    DATABASES,
    DuckTable,
    PostgresTable,
    SqliteTable,
    SqlTable,
    expected_rows,
)
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, upsert
from tests.support.patience import wait_until
from tests.support.postgres import PASSWORD, postgres

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)


@pytest.fixture(params=DATABASES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTable:
    return DATABASES[request.param](tmp_path)


@pytest.fixture
def lake(tmp_path: Path) -> PostgresTable:
    return PostgresTable(tmp_path)


def load_batch(table: SqlTable, batch: pa.RecordBatch) -> None:
    target = table.open()
    stage = target.stage(batch.schema)
    piece = OffsetRange("orders", 0, 0, batch.num_rows)
    target.commit(
        PendingCommit(
            stage, "nightly", NOWHERE, [piece], list(write_files(stage, "orders", [batch]))
        )
    )


def edge_cases(count: int = 5) -> pa.RecordBatch:
    """Rows whose bytes, texts and nulls are easily mistaken for something else."""
    batch = rows("nightly", OffsetRange("orders", 0, 0, 5), row_schema())
    values = [b"", None, b'",\n\\N\\x', bytes(range(256)), b"\x00"]
    for index, name in ((0, "key"), (1, "value")):
        batch = batch.set_column(index, name, pa.array(values, pa.binary()))
    times = pa.array([None, -1, 0, 1, 253_402_300_799_999_999], pa.int64())
    return batch.set_column(5, "timestamp", times.cast(pa.timestamp("us", "UTC")))


def test_edge_cases_come_through(table: SqlTable) -> None:
    batch = edge_cases()
    load_batch(table, batch)
    found = table.arrow().sort_by("offset")
    # psql prints null and empty alike: PostgreSQL's are looked at below.
    if not isinstance(table, PostgresTable):
        assert found.column("value").to_pylist() == batch.column("value").to_pylist()
    assert found.column("value").to_pylist()[2:] == batch.column("value").to_pylist()[2:]
    times = found.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    assert times.to_pylist() == [None, -1, 0, 1, 253_402_300_799_999_999]


def test_postgresql_tells_null_from_empty(lake: PostgresTable) -> None:
    load_batch(lake, edge_cases())
    found = lake.query("SELECT key IS NULL, value = '' FROM orders ORDER BY \"offset\" LIMIT 2")
    assert found == [["f", "t"], ["t", ""]]


@pytest.mark.parametrize("setting", ["database", "role"])
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_texts_come_through_in_any_encoding(
    lake: PostgresTable, setting: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which clients have that do not ask for another one."""
    if setting == "role":
        monkeypatch.setenv("PGCLIENTENCODING", encoding)
    else:
        database = f"{lake.schema}_encoded"
        postgres().query(f"CREATE DATABASE {database} ENCODING '{encoding}' TEMPLATE template0")
        lake.name = f"sql:{postgres().url.replace('/postgres?', f'/{database}?')}#orders"
    schema = row_schema()
    batch = rows("nightly", OffsetRange("orders", 0, 0, 1), schema)
    batch = batch.append_column(pa.field("name", pa.string()), pa.array(["Zoë"]))
    load_batch(lake, batch)
    url = lake.name.removeprefix("sql:").partition("#")[0]
    with psycopg.connect(url, client_encoding="utf8") as connection:
        table = lake.name.partition("#")[2]
        assert connection.execute(f"SELECT name FROM {table}").fetchone() == ("Zoë",)
    assert lake.open().position("nightly").offsets == {ORDERS_0: 1}


@pytest.mark.parametrize("style", ["German", "SQL"])
def test_dates_may_have_any_style(lake: PostgresTable, style: str) -> None:
    url, _, table = lake.name.partition("#")
    target = open_target(f"{url}&options={quote(f'-c DateStyle={style}')}#{table}")
    load(target, "nightly", 5)
    load(target, "nightly", 7)
    assert lake.rows() == expected_rows("nightly", 7)
    assert len(list(target.history())) == 2


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (253_402_300_800_000_000, "10000-01-01 00:00:00+00"),
        (1_700_000_000_000_000_000, "55840-11-08 22:13:20+00"),
        (2**63 - 1, "294247-01-10 04:00:54.775807+00"),
        (-62_135_596_800_000_001, "0001-12-31 23:59:59.999999+00 BC"),
        (-2_440_588 * 86_400_000_000, "4714-11-24 00:00:00+00 BC"),
    ],
)
def test_times_for_which_there_is_no_date_are_kept(
    lake: PostgresTable, time_us: int, text: str
) -> None:
    """A producer that took microseconds for milliseconds must not stop a load for ever."""
    batch = rows("nightly", OffsetRange("orders", 0, 0, 1), row_schema())
    times = pa.array([time_us], pa.int64()).cast(pa.timestamp("us", "UTC"))
    load_batch(lake, batch.set_column(5, "timestamp", times))
    assert lake.query("SELECT timestamp FROM orders") == [[text]]


def test_sqlite_keeps_times_before_all_calendars(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    batch = rows("nightly", OffsetRange("orders", 0, 0, 1), row_schema())
    times = pa.array([-(2**62)], pa.int64()).cast(pa.timestamp("us", "UTC"))
    load_batch(table, batch.set_column(5, "timestamp", times))
    assert table.query("SELECT timestamp FROM orders") == [("144170-06-28 09:59:32.612096 BC",)]


def test_sqlalchemy_reads_the_times_of_sqlite(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    load(table.open(), "nightly", 2)
    engine = sa.create_engine(f"sqlite:///{table.file}")
    with engine.connect() as connection:
        orders = sa.Table("orders", sa.MetaData(), autoload_with=connection)
        [moment] = connection.execute(sa.select(sa.func.min(orders.c.timestamp))).scalars()
    engine.dispose()
    assert f"{moment:%Y-%m-%d %H:%M:%S.%f}" == "2023-11-14 22:13:20.123456"


def test_columns_have_the_types_of_the_database(lake: PostgresTable, tmp_path: Path) -> None:
    load(lake.open(), "nightly", 2, headers=True)
    found = lake.query(
        "SELECT column_name, data_type FROM information_schema.columns WHERE is_nullable = 'YES' "
        f"AND table_schema = '{lake.schema}' AND table_name = 'orders' ORDER BY ordinal_position"
    )
    assert [column[1] for column in found] == [
        *("bytea", "bytea", "text", "integer", "bigint"),
        *("timestamp with time zone", "integer", "jsonb"),
    ]
    [[headers]] = lake.query('SELECT headers FROM orders WHERE partition = 0 AND "offset" = 0')
    assert json.loads(headers) == [{"key": "h", "value": "/jA="}, {"key": "n", "value": None}]
    duck = DuckTable(tmp_path)
    load(duck.open(), "nightly", 2, headers=True)
    kinds = duck.query("DESCRIBE orders").column("column_type").to_pylist()
    assert kinds[-3:] == [
        *("TIMESTAMP WITH TIME ZONE", "INTEGER"),
        'STRUCT("key" VARCHAR, "value" BLOB)[]',
    ]


def test_many_batches_and_files_come_through(
    table: SqlTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_copy, "BATCH_ROWS", 7)
    load(table.open(), "nightly", 50)
    load(table.open(), "nightly", 120)
    assert table.rows() == expected_rows("nightly", 120)


def test_the_history_of_loads_can_be_queried(lake: PostgresTable) -> None:
    for until_offset in (3, 5):
        load(lake.open(), "nightly", until_offset)
    load(lake.open(), "hourly", 2)
    found = lake.query(
        "SELECT load_name, commit_number, records, committed_at > now() - interval '1 hour' "
        "FROM kafkalog_commits WHERE table_name = 'orders' ORDER BY 1, 2"
    )
    assert found == [
        ["hourly", "1", "4", "t"],
        ["nightly", "1", "6", "t"],
        ["nightly", "2", "4", "t"],
    ]


def test_nothing_stays_in_the_temporary_directory(
    table: SqlTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    load(table.open(), "nightly", 3)
    target = table.open()
    stage = target.stage(row_schema())
    assert os.stat(stage.path).st_mode & 0o777 == 0o700
    piece = OffsetRange("orders", 0, 3, 5)
    files = write_rows(stage, "nightly", piece)
    os.unlink(f"{stage.path}/{files[0].name}")
    last = target.position("nightly")
    with pytest.raises(TargetError, match="set TMPDIR to one that the driver and all executors"):
        target.commit(PendingCommit(stage, "nightly", last, [piece], files))
    assert os.listdir(place) == []
    assert table.rows() == expected_rows("nightly", 3)


@pytest.mark.parametrize("part", ["topic=zzz", "a[b]*c?", 'it\'s "{x,y}" \\ 100%'])
def test_rows_are_those_of_the_files_whatever_the_temporary_directory_is_called(
    table: SqlTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str
) -> None:
    place = tmp_path / part
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    load(table.open(), "nightly", 3)
    assert table.rows() == expected_rows("nightly", 3)
    assert set(table.arrow().column("topic").to_pylist()) == {"orders"}


def test_columns_may_have_names_that_duckdb_gives_its_own(tmp_path: Path) -> None:
    table = DuckTable(tmp_path)
    names = ["filename", "file_row_number", "file_index", "rowid"]
    load_batch(table, pa.RecordBatch.from_pydict({name: ["mine"] for name in names}))
    columns = ", ".join(f'"{name}"' for name in names)
    found = table.query(f"SELECT {columns} FROM orders").to_pylist()
    assert found == [dict.fromkeys(names, "mine")]


def test_a_commit_whose_answer_was_lost_is_found(
    table: SqlTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 3)
    dialect = sa.make_url(table.name[4:].replace("mariadb:", "mariadb+pymysql:")).get_dialect()

    def commit_and_lose_the_answer(self: Any, connection: Any) -> None:
        really(self, connection)
        cursor = connection.cursor()
        cursor.execute("SELECT max(load_name) FROM " + place)
        if cursor.fetchone()[0] == "nightly" and armed:
            armed.clear()
            raise DBAPIError("COMMIT", {}, ConnectionError("the connection was lost"))

    armed: list[bool] = [True]
    really = dialect.do_commit
    schema = f"{table.schema}." if isinstance(table, PostgresTable) else ""
    place = f"{schema}kafkalog_commits WHERE commit_number = 2"
    monkeypatch.setattr(dialect, "do_commit", commit_and_lose_the_answer)
    commit = load(table.open(), "nightly", 5)
    assert armed == []
    assert commit is not None
    assert commit.sequence == 2
    monkeypatch.undo()
    assert table.rows() == expected_rows("nightly", 5)
    assert table.offsets("nightly") == {0: 5, 1: 5}


def test_a_transaction_leaves_no_prepared_statements_to_the_next_client_of_a_pool(
    lake: PostgresTable,
) -> None:
    left: list[str] = []

    def look(connection: Connection) -> None:
        left.extend(connection.exec_driver_sql("SELECT name FROM pg_prepared_statements").scalars())

    sa.event.listen(sa.Engine, "commit", look)
    try:
        load(lake.open(), "nightly", 3)
        upsert(open_target(f"{lake.name}2"), "nightly", Record(b"a", b"1"))
    finally:
        sa.event.remove(sa.Engine, "commit", look)
    assert left == []


@pytest.mark.parametrize("loads", [False, True])
def test_a_name_is_forgotten_once_though_the_answer_was_lost(
    table: SqlTable, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load of it that came after that is not forgotten, too."""
    load(table.open(), "nightly", 3)
    transaction = Database.transaction
    begun = count()

    @contextmanager
    def that_loses_an_answer(database: Database) -> Iterator[Connection]:
        with transaction(database) as connection:
            yield connection
        # One looks what there is, the next one forgets.
        if next(begun) == 1:
            if loads:
                load(table.open(), "nightly", 2)
            raise DBAPIError("COMMIT", {}, ConnectionError("the connection was lost"))

    monkeypatch.setattr(Database, "transaction", that_loses_an_answer)
    assert forget(table.name, "nightly")
    monkeypatch.undo()
    places = {ORDERS_0: 2, ORDERS_1: 2}
    assert table.open().position("nightly").offsets == (places if loads else {})
    assert forget(table.name, "nightly") == loads


@pytest.mark.parametrize("outcome", ["rollback", "commit"])
def test_a_rival_waits_for_a_transaction_that_is_under_way(
    lake: PostgresTable, outcome: str
) -> None:
    """It is told that it was overtaken; or, when the first one failed, it goes on."""
    load(lake.open(), "nightly", 2)
    done: list[object] = []

    def rival() -> None:
        try:
            done.append(load(lake.open(), "nightly", 4))
        except LoadConflictError as error:
            done.append(error)

    engine = sa.create_engine(postgres().url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        for statement in (
            "INSERT INTO {}.kafkalog_commits VALUES ('orders', 'nightly', 2, 'x', now(), 0)",
            "UPDATE {}.kafkalog_offsets SET next_offset = 3",
        ):
            connection.exec_driver_sql(statement.format(lake.schema))
        thread = threading.Thread(target=rival)
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        wait_until(lambda: lake.query(waiting) or not thread.is_alive(), "a lock")
        assert thread.is_alive()
        getattr(connection, outcome)()
    thread.join(30)
    engine.dispose()
    expected = {"rollback": Commit, "commit": LoadConflictError}
    assert isinstance(done[0], expected[outcome])
    assert lake.rows() == expected_rows("nightly", 4 if outcome == "rollback" else 2)


def test_a_table_of_others_with_more_columns_takes_loads(lake: PostgresTable) -> None:
    lake.query(
        "CREATE TABLE orders (note text DEFAULT 'x', value bytea, key bytea, topic text, "
        'partition int, "offset" bigint, timestamp timestamptz, "timestampType" int)'
    )
    load(lake.open(), "nightly", 2)
    assert lake.rows() == expected_rows("nightly", 2)
    assert lake.query("SELECT DISTINCT note FROM orders") == [["x"]]


def test_a_nul_in_a_text_is_refused_while_it_lands_or_comes_through(
    table: SqlTable, tmp_path: Path
) -> None:
    batch = pa.RecordBatch.from_pydict({"text": ["a", "a\0b"], "partition": [3, 3], "n": [1, 2]})
    if isinstance(table, PostgresTable):
        with pytest.raises(InvalidRowError, match=r"column text holds .*NUL.* \(partition 3\)"):
            load_batch(table, batch)
        headers = pa.array([[{"key": "\0", "value": b""}]], row_schema(["headers"])[0].type)
        with pytest.raises(InvalidRowError, match="column headers holds"):
            load_batch(
                PostgresTable(tmp_path), pa.RecordBatch.from_arrays([headers], names=["headers"])
            )
    else:
        load_batch(table, batch)
        assert [row["text"] for row in table.all_rows()] == ["a", "a\0b"]


@pytest.mark.parametrize("first", ["orders", "Orders"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_table_has_one_place_however_its_name_is_spelled(
    kind: str, first: str, tmp_path: Path
) -> None:
    table = DATABASES[kind](tmp_path)
    place = table.name.removesuffix("orders")
    for spelled, until_offset in ((first, 3), ("ORDERS", 5), ("orders", 7), ("Orders", 7)):
        load(open_target(place + spelled), "nightly", until_offset)
    load(open_target(place + "main.oRDERS"), "nightly", 9)
    found = []
    for query in ("SELECT value FROM orders", "SELECT DISTINCT table_name FROM kafkalog_commits"):
        rows: Any = table.query(query)
        found.append(rows if isinstance(rows, list) else list(zip(*rows.columns, strict=True)))
    [values, names] = found
    assert Counter(str(value) for [value] in values).most_common(1)[0][1] == 1
    assert len(values) == 18
    assert [str(name) for [name] in names] == [first]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_place_outlives_that_the_table_is_spelled_anew(kind: str, tmp_path: Path) -> None:
    table = DATABASES[kind](tmp_path)
    load(table.open(), "nightly", 3)
    engine = sa.create_engine(table.name[4:].partition("#")[0])
    with engine.begin() as connection:
        for statement in ("orders RENAME TO other", "other RENAME TO Orders"):
            connection.exec_driver_sql(f"ALTER TABLE {statement}")
    engine.dispose()
    assert open_target(table.name.replace("#o", "#O")).position("nightly").offsets == {
        ORDERS_0: 3,
        ORDERS_1: 3,
    }


def test_one_commit_may_give_up_several_ranges_of_a_partition(table: SqlTable) -> None:
    load(table.open(), "nightly", 3)
    target = table.open()
    pieces = [OffsetRange("orders", 0, 5, 6), OffsetRange("orders", 0, 8, 9)]
    last = target.position("nightly")
    commit = target.commit(PendingCommit(target.stage(row_schema()), "nightly", last, pieces, []))
    assert commit.gaps == (OffsetRange("orders", 0, 3, 5), OffsetRange("orders", 0, 6, 8))
    assert sorted(table.gaps()) == [("orders", 0, 3, 5), ("orders", 0, 6, 8)]


def test_postgresql_tells_names_apart_by_case(lake: PostgresTable) -> None:
    load(lake.open(), "nightly", 3)
    load(open_target(lake.name.replace(".orders", ".Orders")), "nightly", 2)
    assert lake.rows() == expected_rows("nightly", 3)
    assert lake.query('SELECT count(*) FROM "Orders"') == [["4"]]


def test_a_table_without_a_column_is_refused(table: SqlTable) -> None:
    load(table.open(), "nightly", 2)
    with pytest.raises(TargetError, match=r"the table .*orders has no column headers"):
        load(table.open(), "nightly", 4, headers=True)
    assert table.rows() == expected_rows("nightly", 2)


def test_rows_that_the_table_does_not_take_are_rolled_back(lake: PostgresTable) -> None:
    load(lake.open(), "nightly", 2)
    lake.query('ALTER TABLE orders ADD CHECK ("offset" < 4)')
    with pytest.raises(TargetError, match=r"run the load again is safe.*CheckViolation"):
        load(lake.open(), "nightly", 6)
    assert lake.open().position("nightly").offsets == {ORDERS_0: 2, ORDERS_1: 2}
    assert lake.rows() == expected_rows("nightly", 2)


@pytest.mark.parametrize("place", ["", "#orders", "sqlite:///x.db", "sqlite:///x.db#"])
def test_a_sql_target_names_url_and_table(place: str) -> None:
    with pytest.raises(InvalidOptionError, match="write URL#TABLE"):
        open_target(f"sql:{place}")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nothing", "not one of SQLAlchemy's"),
        ("mysql://ann:secret@host/db", "not of mysql"),
        ("sqlite://", "a database that does not outlive"),
        ("duckdb:///:memory:", "a database that does not outlive"),
    ],
)
def test_urls_that_cannot_be_loaded_into_are_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said) as raised:
        open_target(f"sql:{url}#orders")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:hunter2@/postgres?host={os.sep}nowhere",
        f"postgresql://ann@/postgres?password=hunter2&host={os.sep}nowhere",
    ],
)
def test_passwords_are_shown_nowhere(url: str) -> None:
    target = open_target(f"sql:{url}#orders")
    with pytest.raises(TargetError, match="cannot open the load target") as raised:
        target.position("nightly")
    for text in (str(raised.value), str(target), repr(target), repr(raised.value.__cause__)):
        assert "hunter2" not in text


def test_words_are_whole_in_an_error_whatever_the_url_says(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    load(table.open(), "nightly", 3)
    target = open_target(f"sql:sqlite:///file:{table.file}?mode=ro&uri=true#orders")
    with pytest.raises(TargetError, match=r"goes on from the newest.* a readonly database"):
        load(target, "nightly", 5)


def test_a_wrong_password_is_not_shown() -> None:
    url = sa.make_url(postgres().url).set(password="hunter2")
    target = open_target(f"sql:{url.render_as_string(hide_password=False)}#orders")
    with pytest.raises(TargetError, match="password authentication failed") as raised:
        target.position("nightly")
    assert "hunter2" not in str(raised.value)
    assert PASSWORD not in str(open_target(f"sql:{postgres().url}#orders"))


def test_default_columns_are_those_of_the_source(lake: PostgresTable) -> None:
    load(lake.open(), "nightly", 2)
    assert lake.arrow().column_names == list(DEFAULT_COLUMNS)
    assert Counter(lake.arrow().column("topic").to_pylist()) == {"orders": 4}


def test_a_duckdb_file_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB itself cannot open a file of which it was killed half way through making it."""
    table = DuckTable(tmp_path)

    def killed(*names: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", killed)
    with pytest.raises(KeyboardInterrupt):
        load(table.open(), "nightly", 2)
    assert not table.file.exists()
    monkeypatch.undo()
    load(table.open(), "nightly", 2)
    assert table.rows() == expected_rows("nightly", 2)
    assert os.listdir(tmp_path) == [table.file.name]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_file_that_cannot_be_opened_is_explained(kind: str, tmp_path: Path) -> None:
    target = open_target(f"sql:{kind}:///{tmp_path}/not/there#orders")
    with pytest.raises(TargetError, match="cannot open the load target sql:"):
        target.position("nightly")
