"""Upserts into databases: the newest record of each key, and what is refused because nobody knows
which that is."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

from pyspark_kafkalog import forget
from pyspark_kafkalog.errors import (
    InvalidRowError,
    LoadConflictError,
    TargetError,
)
from pyspark_kafkalog.warehouse.commit import Commit, PendingCommit
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets import sql_database
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import (
    DATABASES,
    DuckTable,
    MariaDbTable,
    PostgresTable,
    SqliteTable,
    SqlTable,
)
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, found, next_offset, upsert
from tests.support.postgres import postgres

BY_TIME = Upsert(order_by="timestamp")


# Of the embedded ones DuckDB is tried by a few tests below, and here where there is time.
HOW_LONG = {"sqlite": [], "postgresql": [pytest.mark.slow]}


@pytest.fixture(
    params=[pytest.param(kind, marks=HOW_LONG.get(kind, [pytest.mark.long])) for kind in DATABASES]
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTable:
    return DATABASES[request.param](tmp_path)


def number(answer: Any) -> int:
    """The one that a query finds, as each database's driver gives it."""
    [row] = answer.to_pylist() if isinstance(answer, pa.Table) else answer
    return int(row["n"] if isinstance(row, dict) else row[0])


@contextmanager
def statements_of_all() -> Iterator[list[str]]:
    """The statements that any database is given."""
    statements: list[str] = []

    def note(*event: Any) -> None:
        statements.append(event[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_a_dropped_table_may_be_loaded_in_another_way(table: SqlTable) -> None:
    upsert(table.open(), "n", Record(b"a", b"1"), Record(b"b", None))
    table.query("DROP TABLE orders")
    assert forget(table.name, "n")
    load(table.open(), "nightly", 2)
    assert sum(table.rows().values()) == 4


def test_a_table_without_its_deleted_keys_is_refused(table: SqlTable) -> None:
    upsert(table.open(), "n", Record(b"a", b"1"), Record(b"b", None))
    table.query("DROP TABLE kafkalog_deleted")
    with pytest.raises(TargetError, match=r"kafkalog_deleted, which says .* is gone"):
        upsert(table.open(), "n", Record(b"c", b"1"))


def test_each_table_has_its_deleted_keys(table: SqlTable) -> None:
    """In one table of records."""
    url, _, name = table.name.partition("#")
    other = open_target(f"{url}#{name.removesuffix('orders')}returns")
    for target in (table.open(), other):
        upsert(target, "n", Record(b"a", None, 0, 5), how=BY_TIME)
    upsert(table.open(), "n", Record(b"a", b"6", 0, 6), how=BY_TIME)
    upsert(other, "n", Record(b"a", b"4", 1, 4), Record(b"b", None, 1, 9), how=BY_TIME)
    upsert(table.open(), "n", Record(b"b", b"3", 0, 3), how=BY_TIME)
    assert found(table) == {b"a": b"6", b"b": b"3"}
    assert number(table.query("SELECT count(*) AS n FROM returns")) == 0
    left = "SELECT count(*) AS n FROM kafkalog_deleted WHERE table_name = '{}'"
    assert number(table.query(left.format("orders"))) == 0
    assert number(table.query(left.format("returns"))) == 2


def test_columns_of_the_tables_own_stay(table: SqlTable) -> None:
    upsert(table.open(), "n", Record(b"a", b"1"))
    table.query("ALTER TABLE orders ADD COLUMN note TEXT")
    table.query("UPDATE orders SET note = 'mine'")
    upsert(table.open(), "n", Record(b"a", b"2"), Record(b"b", b"2"))
    notes = {bytes(row["key"]): row["note"] for row in table.all_rows()}
    assert notes == {b"a": "mine", b"b": None}


def test_a_table_with_two_rows_of_a_key_is_refused(table: SqlTable) -> None:
    """Of the user's own, who said that the load begins anew beside them."""
    load(table.open(), "nightly", 1)
    table.query('UPDATE orders SET "key" = NULL, topic = NULL, "partition" = NULL')
    assert forget(table.name, "nightly")
    upsert(table.open(), "n", Record(b"x", b"1"))
    if isinstance(table, PostgresTable):
        table.query("UPDATE orders SET key = 'a' WHERE key IS NULL")
    elif isinstance(table, MariaDbTable):
        table.query("""UPDATE orders SET "key" = 'a' WHERE "key" IS NULL""")
    else:
        table.query("UPDATE orders SET key = CAST('a' AS BLOB) WHERE key IS NULL")
    with pytest.raises(TargetError, match="has 2 rows of 1 keys"):
        upsert(table.open(), "n", Record(b"a", b"1"))


def test_a_trigger_that_leaves_rows_out_is_found_out(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    table.query(
        "CREATE TRIGGER t BEFORE UPDATE ON orders BEGIN SELECT RAISE(IGNORE) "
        "WHERE old.key = CAST('a' AS BLOB); END"
    )
    with pytest.raises(TargetError, match="has 2 rows of 2 keys after the upsert, 1 of them"):
        upsert(table.open(), "n", Record(b"a", b"2"), Record(b"b", b"2"))
    assert found(table) == {b"a": b"1"}


def test_a_trigger_that_changes_the_order_is_found_out(tmp_path: Path) -> None:
    """By which a later record would stay out."""
    table = SqliteTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1", 0, 1), how=BY_TIME)
    table.query(
        "CREATE TRIGGER t AFTER UPDATE ON orders BEGIN UPDATE orders SET timestamp = "
        "'2100-01-01 00:00:00.000000' WHERE key = new.key; END"
    )
    with pytest.raises(TargetError, match="has 1 rows of 1 keys after the upsert, 0 of them as"):
        upsert(table.open(), "n", Record(b"a", b"2", 0, 2), how=BY_TIME)
    assert found(table) == {b"a": b"1"}


def test_a_trigger_that_changes_a_key_is_found_out(table: SqlTable) -> None:
    """Of a row that is there: its new state would come beside it, as another row."""
    if isinstance(table, DuckTable):
        return  # which has no triggers
    upsert(table.open(), "n", Record(b"a", b"1"))
    if isinstance(table, PostgresTable):
        table.query(
            "CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN NEW.key := 'b'; RETURN NEW; END$$; "
            "CREATE TRIGGER t BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION other()"
        )
    elif isinstance(table, MariaDbTable):
        table.query("""CREATE TRIGGER t BEFORE UPDATE ON orders FOR EACH ROW SET NEW."key" = 'b'""")
    else:
        table.query(
            "CREATE TRIGGER t AFTER UPDATE ON orders BEGIN "
            "UPDATE orders SET key = CAST('b' AS BLOB) WHERE key = new.key; END"
        )
    with pytest.raises(TargetError, match="took 3 rows of 2 keys"):
        upsert(table.open(), "n", Record(b"a", b"2"), Record(b"c", b"2"))
    assert found(table) == {b"a": b"1"}


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("DELETE FROM {} WHERE key = NEW.key", "has 0 rows of 1 keys"),
        ("UPDATE {} SET key = 'z' WHERE key = NEW.key AND key <> 'z'", "has 0 rows of 1 keys"),
        ("UPDATE {} SET topic = 'z' WHERE key = NEW.key AND topic <> 'z'", "0 of them as they"),
    ],
)
def test_a_trigger_at_the_end_of_a_transaction_is_found_out(
    does: str, said: str, tmp_path: Path
) -> None:
    table = PostgresTable(tmp_path)
    does = does.format(f"{table.schema}.orders")
    upsert(table.open(), "n", Record(b"a", b"1"))
    table.query(
        f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; RETURN NULL; "
        "END $$; CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION f()"
    )
    with pytest.raises(TargetError, match=said):
        upsert(table.open(), "n", Record(b"a", b"2"))
    assert found(table) == {b"a": b"1"}


def test_two_rows_of_a_key_do_not_stand_for_two_keys(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    table.query("ALTER TABLE orders RENAME TO old")
    table.query(OWN_TABLE.format(bytes="BLOB", collation="", zone=""))
    table.query("INSERT INTO orders SELECT * FROM old UNION ALL SELECT * FROM old")
    table.query(
        "CREATE TRIGGER t BEFORE INSERT ON orders BEGIN SELECT RAISE(IGNORE) "
        "WHERE new.key = CAST('b' AS BLOB); END"
    )
    with pytest.raises(TargetError, match="has 2 rows of 2 keys after the upsert, 1 of them"):
        upsert(table.open(), "n", Record(b"a", b"2"), Record(b"b", b"2"))
    assert [bytes(row["value"]) for row in table.all_rows()] == [b"1", b"1"]


def test_sqlite_has_no_order_of_times_beyond_the_year_9999(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1", 0, 1), how=BY_TIME)
    with pytest.raises(InvalidRowError, match="timestamp is before the year 1 or after 9999"):
        upsert(table.open(), "n", Record(b"a", b"2", 0, 10**12), how=BY_TIME)


def test_postgresql_finds_the_rows_by_an_index(tmp_path: Path) -> None:
    table = PostgresTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    indexes = table.query(
        f"SELECT indexdef FROM pg_indexes WHERE schemaname = '{table.schema}' "
        "AND tablename = 'orders'"
    )
    assert "UNIQUE" in str(indexes)
    assert "(key)" in str(indexes)


OWN_TABLE = (
    "CREATE TABLE orders (key {bytes}, value {bytes}, topic TEXT {collation}, partition INTEGER, "
    '"offset" BIGINT, timestamp TIMESTAMP{zone}, "timestampType" INTEGER)'
)
BY_TOPIC = Upsert(("topic", "partition"))


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_texts_are_compared_without_their_collation(kind: str, tmp_path: Path) -> None:
    table = DATABASES[kind](tmp_path)
    zone = " WITH TIME ZONE" if kind == "duckdb" else ""
    table.query(OWN_TABLE.format(bytes="BLOB", collation="COLLATE NOCASE", zone=zone))
    target = table.open()
    for topic in ("A", "a"):
        upsert(target, topic, Record(topic.encode(), b"1"), how=BY_TOPIC, topic=topic)
    upsert(target, "a", Record(b"a", b"2"), how=BY_TOPIC, topic="a")
    assert found(table) == {b"A": b"1", b"a": b"2"}
    upsert(target, "A", Record(b"A", None), how=BY_TOPIC, topic="A")
    assert found(table) == {b"a": b"2"}


@pytest.mark.slow
def test_topics_that_a_collation_takes_for_one_are_two(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    table.query(OWN_TABLE.format(bytes="BLOB", collation="COLLATE NOCASE", zone=""))
    upsert(table.open(), "n", Record(b"x", b"1"), topic="A")
    with pytest.raises(InvalidRowError, match="records of one key"):
        upsert(table.open(), "other", Record(b"x", b"1"), topic="a")


@pytest.mark.slow
def test_postgresql_refuses_keys_that_it_takes_for_equal(tmp_path: Path) -> None:
    table = PostgresTable(tmp_path)
    table.query(
        "CREATE COLLATION some_case (provider = icu, locale = 'und-u-ks-level2', "
        "deterministic = false)"
    )
    collation = f"COLLATE {table.schema}.some_case"
    table.query(OWN_TABLE.format(bytes="BYTEA", collation=collation, zone=" WITH TIME ZONE"))
    with pytest.raises(TargetError, match="column topic of the table orders takes texts for equal"):
        upsert(table.open(), "n", Record(b"x", b"1"))
    table.query("CREATE EXTENSION IF NOT EXISTS citext SCHEMA public; DROP TABLE orders")
    table.query("CREATE DOMAIN topic_name AS public.citext")
    own = OWN_TABLE.replace("topic TEXT", "topic topic_name")
    table.query(own.format(bytes="BYTEA", collation="", zone=" WITH TIME ZONE"))
    with pytest.raises(TargetError, match="column topic of the table orders takes texts for equal"):
        upsert(table.open(), "n", Record(b"x", b"1"))


@pytest.mark.slow
def test_postgresql_refuses_an_identity_that_no_upsert_fills(tmp_path: Path) -> None:
    table = PostgresTable(tmp_path)
    own = OWN_TABLE.replace("partition INTEGER", "partition INTEGER GENERATED ALWAYS AS IDENTITY")
    table.query(own.format(bytes="BYTEA", collation="", zone=" WITH TIME ZONE"))
    with pytest.raises(TargetError, match=r"column partition .* make it GENERATED BY DEFAULT"):
        upsert(table.open(), "n", Record(b"x", b"1"))


@pytest.mark.slow
def test_a_table_that_lost_its_keys_is_refused(tmp_path: Path) -> None:
    """Also where a load would add the column again, which no row has."""
    table = PostgresTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    for lost in ("partition", "key"):
        table.query(f'ALTER TABLE orders DROP COLUMN "{lost}"')
        with pytest.raises(TargetError, match=f"was upserted by {lost}, a column that it has no"):
            upsert(table.open(), "n", Record(b"a", b"2"))


@pytest.mark.slow
def test_a_connection_of_a_pool_gets_no_tables_to_keep(tmp_path: Path) -> None:
    """PgBouncer gives it to other transactions, which would find them."""
    with statements_of_all() as statements:
        upsert(PostgresTable(tmp_path).open(), "n", Record(b"x", b"1"))
    made = [each for each in statements if "CREATE TEMPORARY" in each]
    assert len(made) == 2
    assert all(" ON COMMIT DROP AS " in each for each in made)


def test_an_upsert_waits_for_whoever_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not see such a row, and would put another one of the key beside it."""
    table = PostgresTable(tmp_path)
    upsert(table.open(), "n", Record(b"x", b"1"))
    monkeypatch.setattr(sql_database, "LONGEST_WAIT_S", 0.2)
    with psycopg.connect(postgres().url) as connection:
        connection.execute(f"INSERT INTO {table.schema}.orders (key) VALUES ('a')")
        with pytest.raises(TargetError, match="LockNotAvailable"):
            upsert(table.open(), "n", Record(b"b", b"1"))
    assert next_offset(table.open(), "n") == 1


@pytest.mark.slow
def test_of_two_loads_of_one_partition_at_once_one_commits(tmp_path: Path) -> None:
    table = PostgresTable(tmp_path)
    upsert(table.open(), "n", Record(b"x", b"1", 1))
    barrier = threading.Barrier(2)

    def load_one(name: str) -> bool:
        target = table.open()
        commit = target.commit

        def commit_together(pending: PendingCommit) -> Commit:
            barrier.wait(60)
            return commit(pending)

        target.commit = commit_together  # type: ignore[method-assign]
        try:
            upsert(target, name, Record(b"a", name.encode()))
        except LoadConflictError:
            return False
        return True

    for attempt in range(3):
        names = [f"{name}{attempt}" for name in ("a", "b")]
        with ThreadPoolExecutor(2) as pool:
            committed = list(pool.map(load_one, names))
        assert sorted(committed) == [False, True]
        assert found(table) == {b"x": b"1", b"a": names[committed.index(True)].encode()}
        assert forget(table.name, names[committed.index(True)])


def test_sqlite_finds_rows_of_several_columns_by_their_index(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    upsert(table.open(), "n", Record(b"x", b"1"), how=BY_TOPIC)
    with statements_of_all() as statements:
        upsert(table.open(), "n", Record(b"x", None), how=BY_TOPIC)
    [statement] = [each for each in statements if each.startswith("DELETE FROM main.orders")]
    with closing(sqlite3.connect(table.file)) as connection:
        connection.execute(
            "CREATE TEMP TABLE kafkalog_newest AS SELECT *, 1 AS kafkalog_deleted FROM orders"
        )
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
    assert "SEARCH main.orders USING INDEX" in plan[0][3]


def test_a_field_that_rows_have_no_more_keeps_no_older_value(table: SqlTable) -> None:
    """A column of the table's own keeps its values, one that loads have filled is the record's."""
    target = table.open()
    upsert(target, "n", Record(b"a", b"1", note="old"), Record(b"b", b"1", note="old"))
    table.query("ALTER TABLE orders ADD own INTEGER")
    table.query("UPDATE orders SET own = 5")
    upsert(target, "n", Record(b"a", b"2"), Record(b"c", b"1"))
    rows = {bytes(row["key"]): (row["note"], row["own"]) for row in table.all_rows()}
    assert rows == {b"a": (None, 5), b"b": ("old", 5), b"c": (None, None)}
    upsert(target, "n", Record(b"a", b"3", note="new"))
    upsert(target, "n", Record(b"a", b"4"))
    assert [row["note"] for row in table.all_rows() if bytes(row["key"]) == b"a"] == [None]


def test_a_field_that_rows_have_no_more_is_the_columns_default(table: SqlTable) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"1"))
    kind = "LONGTEXT" if isinstance(table, MariaDbTable) else "TEXT"
    table.query(f"ALTER TABLE orders ADD note {kind} DEFAULT '50%'")
    upsert(target, "n", Record(b"a", b"2", note="x"), Record(b"b", b"2", note="x"))
    upsert(target, "n", Record(b"a", b"3"), Record(b"c", b"3"))
    assert sorted(row["note"] for row in table.all_rows()) == ["50%", "50%", "x"]


def test_a_row_may_move_to_another_partition_of_its_table(tmp_path: Path) -> None:
    """MariaDB may come by such a row twice."""
    table = MariaDbTable(tmp_path)
    upsert(table.open(), "n", Record(b"a", b"1"))
    table.query("ALTER TABLE orders DROP INDEX `key`, MODIFY `key` longblob")
    table.query(
        "ALTER TABLE orders PARTITION BY RANGE (`offset`) (PARTITION earlier VALUES LESS THAN (1), "
        "PARTITION later VALUES LESS THAN MAXVALUE)"
    )
    upsert(
        table.open(), "n", Record(b"a", b"2"), *(Record(b"%d" % each, None) for each in range(9))
    )
    assert found(table) == {b"a": b"2"}


def test_names_of_columns_may_be_long(table: SqlTable) -> None:
    name = "x" * 63
    upsert(table.open(), "n", Record(b"a", b"1", note="old"), note=name)
    upsert(table.open(), "n", Record(b"a", b"2", note="new"), note=name)
    assert [row[name] for row in table.all_rows()] == ["new"]


def test_values_that_rows_exchange_are_refused_where_they_are_unique(table: SqlTable) -> None:
    target = table.open()
    upsert(target, "n", Record(b"a", b"1"), Record(b"b", b"2"))
    prefix = "(9)" if isinstance(table, MariaDbTable) else ""
    table.query(f"CREATE UNIQUE INDEX one_of_each ON orders (value{prefix})")
    exchanged = Record(b"a", b"2"), Record(b"b", b"1")
    if isinstance(table, DuckTable):
        upsert(target, "n", *exchanged)
    else:
        with pytest.raises(TargetError, match=r"(?i)unique.* DEFERRABLE INITIALLY DEFERRED"):
            upsert(target, "n", *exchanged)
        table.query("DROP INDEX one_of_each" + (" ON orders" if prefix else ""))
        upsert(target, "n", *exchanged)
    assert found(table) == {b"a": b"2", b"b": b"1"}


def test_postgresql_compares_at_the_end_what_it_is_told_to(tmp_path: Path) -> None:
    table = PostgresTable(tmp_path)
    target = table.open()
    upsert(target, "n", Record(b"a", b"1"), Record(b"b", b"2"))
    table.query("ALTER TABLE orders ADD UNIQUE (value) DEFERRABLE INITIALLY DEFERRED")
    upsert(target, "n", Record(b"a", b"2"), Record(b"b", b"1"))
    assert found(table) == {b"a": b"2", b"b": b"1"}
    with pytest.raises(TargetError, match="unique"):
        upsert(target, "n", Record(b"a", b"1"))
    assert found(table) == {b"a": b"2", b"b": b"1"}
