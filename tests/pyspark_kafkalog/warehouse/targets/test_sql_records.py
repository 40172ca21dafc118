"""Records and table belong together: what is gone is not new, and one name is one table."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import duckdb
import psycopg
import pytest
from kafka.structs import TopicPartition
from sqlalchemy import Connection

from pyspark_kafkalog import forget, load_status, loaded_offsets
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import LoadConflictError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    PendingCommit,
)
from pyspark_kafkalog.warehouse.targets import sql, sql_database, sql_tables
from pyspark_kafkalog.warehouse.targets.sql_records import Records
from pyspark_kafkalog.warehouse.targets.sql_tables import Found
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load, plan, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    DATABASES,
    DuckTable,
    MariaDbTable,
    PostgresTable,
    SqliteTable,
    SqlTable,
    expected_rows,
)
from tests.support.patience import BUSY_S, wait_until
from tests.support.postgres import LosingProxy, postgres
from tests.support.present import present

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
EMPTY = {
    "sqlite": "CREATE TABLE orders (key BLOB, value BLOB, topic TEXT, partition INTEGER, "
    '"offset" BIGINT, timestamp DATETIME, "timestampType" INTEGER)',
    "duckdb": "CREATE TABLE orders (key BLOB, value BLOB, topic VARCHAR, partition INTEGER, "
    '"offset" BIGINT, timestamp TIMESTAMPTZ, "timestampType" INTEGER)',
    "postgresql": "CREATE TABLE orders (key bytea, value bytea, topic text, partition int, "
    '"offset" bigint, timestamp timestamptz, "timestampType" int)',
    "mariadb": 'CREATE TABLE orders ("key" LONGBLOB, value LONGBLOB, topic LONGTEXT CHARACTER SET '
    'utf8mb4, "partition" INT, "offset" BIGINT, timestamp DATETIME(6), "timestampType" INT)',
}


@pytest.fixture(params=DATABASES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTable:
    return DATABASES[request.param](tmp_path)


@pytest.fixture
def lake(tmp_path: Path) -> PostgresTable:
    return PostgresTable(tmp_path)


def run(table: SqlTable, statement: str) -> None:
    """As another client of the database does."""
    if isinstance(table, PostgresTable | MariaDbTable):
        table.query(statement)
    else:
        connect = sqlite3.connect if isinstance(table, SqliteTable) else duckdb.connect
        with closing(connect(str(table.file))) as connection:
            connection.execute(statement)
            connection.commit()


def kind_of(table: SqlTable) -> str:
    return next(kind for kind, of in DATABASES.items() if isinstance(table, of))


def test_rows_without_a_record_of_any_load_are_not_loaded_again(table: SqlTable) -> None:
    """As in a copy of a table alone: a dump of it, a rename, CREATE TABLE AS."""
    load(table.open(), "nightly", 5)
    run(table, "CREATE TABLE copy AS SELECT * FROM orders")
    run(table, "DELETE FROM orders")
    run(table, "INSERT INTO orders SELECT * FROM copy")
    load(table.open(), "nightly", 6)
    copy = table.name.removesuffix("orders") + "copy"
    for name in ("nightly", "hourly"):
        with pytest.raises(TargetError, match=r"copy has rows.*kafkalog_commits.*forget\("):
            load(open_target(copy), name, 7)
    with pytest.raises(TargetError, match="has rows"):
        loaded_offsets(copy, "nightly")
    for records in ("commits", "offsets", "topics", "epochs", "gaps"):
        run(table, f"DROP TABLE kafkalog_{records}")
    with pytest.raises(TargetError, match="orders has rows"):
        load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 6)


def test_rows_of_others_are_no_loss_once_somebody_says_so(table: SqlTable) -> None:
    run(table, EMPTY[kind_of(table)])
    run(table, "INSERT INTO orders (topic, \"partition\") VALUES ('mine', 1)")
    with pytest.raises(TargetError, match="orders has rows"):
        load(table.open(), "nightly", 2)
    assert forget(table.name, "nightly")
    assert not forget(table.name, "nightly")
    load(table.open(), "nightly", 2)
    load(table.open(), "hourly", 2)
    rows = table.rows()
    assert rows - Counter[Any]({None: 1}) == expected_rows("nightly", 2) + expected_rows(
        "hourly", 2
    )


def test_rows_that_a_rival_has_just_loaded_are_known(
    lake: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_really = Records.any

    def any_and_be_late(records: Records) -> bool:
        found = any_really(records)
        monkeypatch.undo()
        load(lake.open(), "hourly", 2)
        return found

    lake.query(EMPTY["postgresql"])
    target = lake.open()
    monkeypatch.setattr(Records, "any", any_and_be_late)
    assert target.position("nightly") == NOWHERE
    assert lake.rows() == expected_rows("hourly", 2)


def test_a_table_that_was_dropped_is_not_made_anew_in_silence(table: SqlTable) -> None:
    load(table.open(), "nightly", 5)
    run(table, "DROP TABLE orders")
    for attempt in (
        lambda: load(table.open(), "nightly", 7),
        lambda: load(table.open(), "hourly", 7),
        lambda: loaded_offsets(table.name, "nightly"),
        lambda: table.open().stage(row_schema()),
    ):
        with pytest.raises(TargetError, match=r"orders is gone.*'nightly'.*forget.*create the"):
            attempt()
    assert not table.exists(*([] if isinstance(table, SqliteTable) else ["orders"]))


def test_a_dropped_table_can_start_over(table: SqlTable) -> None:
    load(table.open(), "nightly", 5)
    run(table, "DROP TABLE orders")
    assert forget(table.name, "nightly")
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)
    assert table.offsets("nightly") == {0: 7, 1: 7}


def test_a_dropped_table_that_its_owner_makes_anew_gets_new_records_only(table: SqlTable) -> None:
    load(table.open(), "nightly", 5)
    run(table, "DROP TABLE orders")
    run(table, EMPTY[kind_of(table)])
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7, 5)


def test_a_table_that_was_renamed_goes_on_when_it_has_its_name_again(table: SqlTable) -> None:
    load(table.open(), "nightly", 5)
    run(table, "ALTER TABLE orders RENAME TO others")
    with pytest.raises(TargetError, match="orders is gone"):
        load(table.open(), "nightly", 7)
    run(table, "ALTER TABLE others RENAME TO orders")
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_a_table_that_was_emptied_goes_on(table: SqlTable) -> None:
    load(table.open(), "nightly", 5)
    run(table, "DELETE FROM orders")
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7, 5)


def test_every_name_that_went_into_a_dropped_table_is_named(table: SqlTable) -> None:
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 5)
    run(table, "DROP TABLE orders")
    assert forget(table.name, "nightly")
    with pytest.raises(TargetError, match="load 'hourly' would go on"):
        load(table.open(), "nightly", 7)
    assert forget(table.name, "hourly")
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_a_table_dropped_while_a_load_is_at_work_fails_it(table: SqlTable) -> None:
    target = table.open()
    load(target, "nightly", 5)
    last, ranges = plan(target, "nightly", 7)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    run(table, "DROP TABLE orders")
    with pytest.raises(TargetError, match="was dropped while a load was at work"):
        target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    assert table.offsets("nightly") == {0: 5, 1: 5}


COARSER = {
    "postgresql": "ALTER TABLE orders ALTER timestamp TYPE timestamptz(0)",
    "duckdb": "ALTER TABLE orders ALTER timestamp TYPE DATE",
    "mariadb": "ALTER TABLE orders MODIFY timestamp DATETIME",
    "sqlite": "DROP TABLE orders; CREATE TABLE orders (key BLOB, value BLOB, topic TEXT, partition "
    'INTEGER, "offset" REAL, timestamp DATETIME, "timestampType" INTEGER)',
}


def test_a_table_that_is_altered_while_rows_land_is_refused_if_it_would_change_them(
    table: SqlTable,
) -> None:
    target = table.open()
    load(target, "nightly", 5)
    last, ranges = plan(target, "nightly", 7)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    for statement in COARSER[kind_of(table)].split("; "):
        run(table, statement)
    with pytest.raises(TargetError, match=r"column (timestamp|offset) .* does not keep every"):
        target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    assert table.offsets("nightly") == {0: 5, 1: 5}
    assert not os.path.exists(stage.path)


def test_a_table_is_not_altered_between_the_last_look_and_the_commit(
    lake: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(lake.open(), "nightly", 3)
    began = threading.Event()

    def alter() -> None:
        began.set()
        lake.query("ALTER TABLE orders ALTER timestamp TYPE timestamptz(0)")

    owner = threading.Thread(target=alter)
    refuse_unfit = sql_tables.refuse_unfit

    def look(connection: Connection, found: Found, *schemas: Any) -> None:
        refuse_unfit(connection, found, *schemas)
        if found.records(connection).newest("nightly") == 2:
            owner.start()
            began.wait(BUSY_S)
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            wait_until(lambda: lake.query(waiting) or not owner.is_alive(), "a lock", BUSY_S)
            assert owner.is_alive()

    monkeypatch.setattr(sql, "refuse_unfit", look)
    load(lake.open(), "nightly", 7)
    owner.join(BUSY_S)
    assert lake.offsets("nightly") == {0: 7, 1: 7}
    assert lake.rows() == expected_rows("nightly", 7)


@pytest.mark.parametrize(
    ("loss", "lost"),
    [
        ("DELETE FROM kafkalog_offsets WHERE load_name = 'nightly'", "offsets"),
        ("DROP TABLE kafkalog_offsets", "offsets"),
        ("DELETE FROM kafkalog_commits WHERE load_name = 'nightly'", "commits"),
        ("DROP TABLE kafkalog_commits", "commits"),
    ],
)
def test_records_that_are_lost_are_not_taken_for_those_of_a_new_load(
    table: SqlTable, loss: str, lost: str
) -> None:
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 3)
    run(table, loss)
    with pytest.raises(TargetError, match=f"kafkalog_{lost} has no row.*forget"):
        load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 3)
    if "DELETE" in loss:
        assert table.open().position("hourly").offsets == {ORDERS_0: 3, ORDERS_1: 3}
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE
    assert not forget(table.name, "nightly")
    run(table, "DELETE FROM orders")
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


ONE_OFFSET = """DELETE FROM kafkalog_offsets WHERE load_name = 'nightly' AND "partition" = 1"""


def test_one_offset_that_is_lost_is_not_taken_for_a_partition_that_is_new(table: SqlTable) -> None:
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 3)
    run(table, ONE_OFFSET)
    with pytest.raises(TargetError, match=r"kafkalog_offsets has 1 of 2 rows.*forget"):
        load(table.open(), "nightly", 7)
    load(table.open(), "hourly", 4)
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 4)
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE
    load(table.open(), "nightly", 2)
    assert table.offsets("nightly") == {0: 2, 1: 2}


def test_one_offset_that_is_lost_while_rows_land_is_noticed(table: SqlTable) -> None:
    target = table.open()
    load(target, "nightly", 5)
    last = target.position("nightly")
    stage, piece = target.stage(row_schema()), OffsetRange("orders", 0, 5, 7)
    files = write_rows(stage, "nightly", piece)
    run(table, ONE_OFFSET)
    with pytest.raises(TargetError, match="1 of 2 rows"):
        target.commit(PendingCommit(stage, "nightly", last, [piece], files))
    assert table.rows() == expected_rows("nightly", 5)


def test_offsets_of_an_older_backup_are_not_gone_on_from(table: SqlTable) -> None:
    """As many rows as there were, with the offsets of before: what came since would come twice."""
    load(table.open(), "nightly", 3)
    run(table, "CREATE TABLE backup AS SELECT * FROM kafkalog_offsets")
    load(table.open(), "nightly", 5)
    run(table, "DELETE FROM kafkalog_offsets")
    run(table, "INSERT INTO kafkalog_offsets SELECT * FROM backup")
    with pytest.raises(TargetError, match=r"kafkalog_offsets.*not what its last commit.*as new"):
        load(table.open(), "nightly", 7)
    run(table, "UPDATE kafkalog_offsets SET next_offset = 5")
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


@pytest.mark.parametrize("records", ["topics", "epochs"])
@pytest.mark.parametrize("loss", ["DELETE FROM", "DROP TABLE"])
def test_what_tells_topics_apart_is_not_lost_in_silence(
    table: SqlTable, loss: str, records: str
) -> None:
    """Without it the offsets would be taken for those of a topic that was created again, or of a
    log that was cut off."""
    target = table.open()
    last, ranges = plan(target, "nightly", 3)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    told = {"orders": uuid4()}, {ORDERS_0: 7, ORDERS_1: 7}
    target.commit(PendingCommit(stage, "nightly", last, ranges, files, *told))
    assert (target.position("nightly").topic_ids, target.position("nightly").epochs) == told
    run(table, f"{loss} kafkalog_{records}")
    with pytest.raises(TargetError, match=f"kafkalog_{records}.*not what its last commit.*forget"):
        load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 3)
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE


EARLIER_LAYOUT = """
CREATE TABLE kafkalog_commits (table_name TEXT NOT NULL, load_name TEXT NOT NULL,
    commit_number BIGINT NOT NULL, load_id TEXT NOT NULL,
    committed_at TIMESTAMP WITH TIME ZONE NOT NULL, records BIGINT NOT NULL,
    PRIMARY KEY (table_name, load_name, commit_number));
CREATE TABLE kafkalog_offsets (table_name TEXT NOT NULL, load_name TEXT NOT NULL,
    topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset BIGINT NOT NULL,
    PRIMARY KEY (table_name, load_name, topic, partition));
INSERT INTO kafkalog_commits VALUES
    ('orders', 'nightly', 1, '20260101T000000Z-0123456789ab', '2026-01-01 00:00:00', 6);
INSERT INTO kafkalog_offsets VALUES ('orders', 'nightly', 'orders', 0, 3),
    ('orders', 'nightly', 'orders', 1, 3)"""


@pytest.fixture(params=[kind for kind in DATABASES if kind != "mariadb"])
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTable:
    """Of a database that loads went into before there was another layout."""
    return DATABASES[request.param](tmp_path)


def test_a_database_of_the_earlier_layout_goes_on_and_counts_from_then_on(
    earlier: SqlTable,
) -> None:
    table = earlier
    run(table, EMPTY[kind_of(table)])
    for statement in EARLIER_LAYOUT.split(";"):
        run(table, statement)
    assert table.open().position("nightly").offsets == {ORDERS_0: 3, ORDERS_1: 3}
    commit = load(table.open(), "nightly", 5)
    assert commit is not None
    assert commit.sequence == 2
    assert table.rows() == expected_rows("nightly", 5, 3)
    run(table, ONE_OFFSET)
    with pytest.raises(TargetError, match="1 of 2 rows"):
        load(table.open(), "nightly", 7)


def test_a_name_of_the_earlier_layout_can_be_forgotten(earlier: SqlTable) -> None:
    table = earlier
    run(table, EMPTY[kind_of(table)])
    for statement in EARLIER_LAYOUT.split(";"):
        run(table, statement)
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE


def test_a_role_that_may_not_alter_the_earlier_layout_goes_on_without_what_is_new(
    lake: PostgresTable,
) -> None:
    load(lake.open(), "nightly", 5)
    role = f"r{lake.schema}"
    lake.query(
        "ALTER TABLE kafkalog_commits DROP COLUMN partitions; DROP TABLE kafkalog_epochs; "
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {lake.schema} TO {role}; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {lake.schema} TO {role}"
    )
    place = f"sql:postgresql://{role}:x@/postgres?host={postgres().directory}#{lake.schema}.orders"
    load(open_target(place), "nightly", 7)
    target = open_target(place)
    piece, stage = OffsetRange("orders", 0, 7, 7), target.stage(row_schema())
    known = target.position("nightly")
    target.commit(PendingCommit(stage, "nightly", known, [piece], [], {}, {ORDERS_0: 1}))
    assert target.position("nightly") == known
    assert forget(place, "nightly")
    load(open_target(place), "nightly", 2)
    assert lake.rows() == expected_rows("nightly", 7) + expected_rows("nightly", 2)


def test_a_name_that_is_no_text_is_refused_in_words(table: SqlTable) -> None:
    """Half of a character, as a program cuts one."""
    load(table.open(), "nightly", 2)
    with pytest.raises(TargetError, match="not allowed"):
        load(table.open(), "half \ud83c", 2)
    assert table.rows() == expected_rows("nightly", 2)


def test_the_last_commit_is_the_one_that_came_last_whatever_clocks_say(table: SqlTable) -> None:
    """One driver's clock may be ahead of the next one's."""
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 2)
    ahead = "committed_at = '2099-01-01 00:00:00+00:00'"
    if kind_of(table) in ("sqlite", "mariadb"):
        ahead = "committed_at = '2099-01-01 00:00:00.000000'"
    run(table, f"UPDATE kafkalog_commits SET {ahead} WHERE load_name = 'nightly'")
    load(table.open(), "nightly", 7)
    hourly, nightly = load_status(table.name)
    assert (present(hourly.last).commit_id, present(nightly.last).commit_id) == ("1", "2")
    assert present(nightly.last).committed_at_ms < 4_000_000_000_000
    history = [(each.name, each.commit_id) for each in table.open().history()]
    assert history == [("nightly", "2"), ("nightly", "1"), ("hourly", "1")]


def test_what_was_forgotten_stays_in_the_history(table: SqlTable) -> None:
    load(table.open(), "nightly", 5)
    forget(table.name, "nightly")
    commit = load(table.open(), "nightly", 7)
    assert commit is not None
    assert commit.sequence == 3
    query = "SELECT count(*) AS n FROM kafkalog_commits WHERE load_id LIKE 'forgotten-%'"
    found: Any = table.query(query)
    assert found in ([(1,)], ((1,),), [["1"]]) or found.to_pylist() == [{"n": 1}]


def with_path(*schemas: str, **settings: int | str) -> str:
    """A URL that names no schema."""
    settings = {"search_path": ",".join(schemas), **settings} if schemas else settings
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return f"sql:{postgres().url}&options={quote(options)}"


@pytest.fixture
def paths(tmp_path: Path) -> tuple[PostgresTable, PostgresTable]:
    """Two schemas that a search_path can name."""
    return PostgresTable(tmp_path), PostgresTable(tmp_path)


def test_a_schema_that_comes_first_later_makes_no_second_table(
    paths: tuple[PostgresTable, PostgresTable],
) -> None:
    old, new = paths
    load(open_target(f"{with_path(old.schema)}#orders"), "nightly", 5)
    both = open_target(f"{with_path(new.schema, old.schema)}#orders")
    load(both, "nightly", 7)
    assert old.rows() == expected_rows("nightly", 7)
    assert not new.exists("orders")
    assert not new.exists("kafkalog_offsets")
    load(old.open(), "nightly", 9)
    assert old.rows() == expected_rows("nightly", 9)
    assert both.position("nightly").offsets == {ORDERS_0: 9, ORDERS_1: 9}


def test_a_table_that_is_found_first_later_is_not_taken_for_the_old_one(
    paths: tuple[PostgresTable, PostgresTable],
) -> None:
    old, new = paths
    load(open_target(f"{with_path(old.schema)}#orders"), "nightly", 5)
    new.query(EMPTY["postgresql"])
    both = open_target(f"{with_path(new.schema, old.schema)}#orders")
    with pytest.raises(TargetError, match=f"finds {new.schema}.orders.*into {old.schema}.orders"):
        load(both, "nightly", 7)
    load(new.open(), "nightly", 3)
    with pytest.raises(TargetError, match=r"write SCHEMA\.orders"):
        load(both, "nightly", 7)
    assert old.rows() == expected_rows("nightly", 5)
    assert new.rows() == expected_rows("nightly", 3)


def test_a_table_that_is_there_is_found_wherever_the_path_finds_it(
    paths: tuple[PostgresTable, PostgresTable],
) -> None:
    first, second = paths
    second.query(EMPTY["postgresql"])
    load(open_target(f"{with_path(first.schema, second.schema)}#orders"), "nightly", 5)
    assert second.rows() == expected_rows("nightly", 5)
    assert second.offsets("nightly") == {0: 5, 1: 5}
    second.query("DROP TABLE orders")
    with pytest.raises(TargetError, match=f"orders is gone from schema {second.schema}"):
        load(open_target(f"{with_path(first.schema, second.schema)}#orders"), "nightly", 7)


def test_a_path_without_a_schema_is_explained() -> None:
    with pytest.raises(TargetError, match=r"write SCHEMA\.orders"):
        open_target(f"{with_path('nowhere')}#orders").position("nightly")


@pytest.mark.parametrize("spelled", ["MAIN.orders", "Main.ORDERS", "main.orders"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_schema_has_one_place_however_it_is_spelled(
    kind: str, spelled: str, tmp_path: Path
) -> None:
    table = DATABASES[kind](tmp_path)
    load(table.open(), "nightly", 5)
    load(open_target(table.name.replace("#orders", f"#{spelled}")), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_a_lock_that_is_held_too_long_ends_a_load(
    lake: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(lake.open(), "nightly", 5)
    monkeypatch.setattr(sql_database, "LONGEST_WAIT_S", 0.2)
    with psycopg.connect(postgres().url) as connection:
        connection.execute(f"LOCK TABLE {lake.schema}.kafkalog_commits")
        with pytest.raises(TargetError, match="LockNotAvailable"):
            load(lake.open(), "nightly", 7)
    load(lake.open(), "nightly", 7)
    assert lake.rows() == expected_rows("nightly", 7)


def test_the_users_own_lock_timeout_counts(lake: PostgresTable) -> None:
    load(lake.open(), "nightly", 5)
    own = open_target(f"{with_path(lock_timeout=100)}#{lake.schema}.orders")
    with psycopg.connect(postgres().url) as connection:
        connection.execute(f"LOCK TABLE {lake.schema}.kafkalog_commits")
        with pytest.raises(TargetError, match="LockNotAvailable"):
            load(own, "nightly", 7)


def test_a_file_of_sqlite_that_is_held_too_long_ends_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SqliteTable(tmp_path)
    load(table.open(), "nightly", 5)
    monkeypatch.setattr(sql_database, "LONGEST_WAIT_S", 0.2)
    with closing(sqlite3.connect(table.file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(TargetError, match="database is locked"):
            load(table.open(), "nightly", 7)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_a_file_of_duckdb_that_another_process_has_open_ends_a_load_at_once(tmp_path: Path) -> None:
    table = DuckTable(tmp_path)
    load(table.open(), "nightly", 5)
    program = f"import duckdb; c = duckdb.connect({str(table.file)!r}); print('open'); input()"
    with subprocess.Popen(
        [sys.executable, "-uc", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert present(other.stdout).readline() == b"open\n"
        with pytest.raises(TargetError, match=r"(?i)lock"):
            load(table.open(), "nightly", 7)
        other.communicate(b"\n")
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


def test_a_load_that_postgresql_gives_up_many_times_goes_on(lake: PostgresTable) -> None:
    load(lake.open(), "nightly", 5)
    give_up(lake, "INSERT ON orders", times=25)
    load(lake.open(), "nightly", 7)
    assert lake.rows() == expected_rows("nightly", 7)


def test_a_load_that_postgresql_gives_up_is_forgotten_in_the_end(lake: PostgresTable) -> None:
    load(lake.open(), "nightly", 5)
    give_up(lake, "DELETE ON kafkalog_offsets", times=3)
    assert lake.open().forget("nightly")
    assert lake.offsets("nightly") == {}


def give_up(lake: PostgresTable, event: str, times: int) -> None:
    """PostgreSQL gives up the first transactions in which `event` occurs."""
    # A sequence keeps its number when a transaction is rolled back.
    lake.query(
        f"SET search_path = {lake.schema};"
        "CREATE SEQUENCE tries;"
        "CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF nextval('{lake.schema}.tries') <= {times} THEN"
        "  RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';"
        " END IF; RETURN NULL; END $$;"
        f"CREATE TRIGGER conflict BEFORE {event} FOR EACH STATEMENT EXECUTE FUNCTION conflict()"
    )


@pytest.mark.parametrize("isolation", ["serializable", "repeatable\\ read"])
def test_loads_in_any_isolation_take_each_record_once(lake: PostgresTable, isolation: str) -> None:
    place = f"{with_path(default_transaction_isolation=isolation)}#{lake.schema}.orders"
    failures = []

    def work(name: str) -> None:
        try:
            for until_offset in (3, 6):
                while True:
                    try:
                        load(open_target(place), name, until_offset)
                        break
                    except LoadConflictError:
                        continue
        except Exception as error:
            failures.append(error)

    names = ["a", "b", "shared", "shared"]
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for name in set(names):
        assert lake.offsets(name) == {0: 6, 1: 6}
    assert lake.rows().total() == 36
    assert set(lake.rows().values()) == {1}


def test_a_role_needs_no_more_than_to_read_and_write_the_tables(lake: PostgresTable) -> None:
    """And what row security would hide is an error, not a new load."""
    load(lake.open(), "nightly", 5)
    role = f"r{lake.schema}"
    lake.query(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {lake.schema} TO {role}; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {lake.schema} TO {role}"
    )
    place = f"sql:postgresql://{role}:x@/postgres?host={postgres().directory}#{lake.schema}.orders"
    load(open_target(place), "nightly", 7)
    lake.query("ALTER TABLE kafkalog_offsets ENABLE ROW LEVEL SECURITY")
    with pytest.raises(TargetError, match="row-level security"):
        load(open_target(place), "nightly", 9)
    lake.query("ALTER TABLE kafkalog_offsets DISABLE ROW LEVEL SECURITY")
    lake.query("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    with pytest.raises(TargetError, match="orders is under row security"):
        load(open_target(place), "nightly", 9)
    lake.query(
        "ALTER TABLE orders DISABLE ROW LEVEL SECURITY; REVOKE INSERT ON orders FROM " + role
    )
    with pytest.raises(TargetError, match=r"cannot write to.*permission denied for table orders"):
        open_target(place).stage(row_schema())
    assert lake.rows() == expected_rows("nightly", 7)


@pytest.mark.parametrize("cut", ["before", "while", "after"])
def test_a_connection_that_is_lost_in_the_commit_leaves_no_doubt(
    lake: PostgresTable, cut: str
) -> None:
    load(lake.open(), "nightly", 5)
    # So that the server is at its commit for a while.
    lake.query(
        "CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION nap()"
    )
    proxy = LosingProxy(postgres(), cut)
    try:
        target = open_target(f"sql:{proxy.url}#{lake.schema}.orders")
        began = time.monotonic()
        if cut == "before":
            with pytest.raises(TargetError, match="to run the load again is safe"):
                load(target, "nightly", 7)
        else:
            commit = load(target, "nightly", 7)
            assert commit is not None
            assert commit.sequence == 2
        assert time.monotonic() - began < 60 + BUSY_S
        assert proxy.cuts == 1
    finally:
        proxy.close()
    until_offset = 5 if cut == "before" else 7
    assert lake.rows() == expected_rows("nightly", until_offset)
    assert lake.offsets("nightly") == {0: until_offset, 1: until_offset}
    load(lake.open(), "nightly", 7)
    assert lake.rows() == expected_rows("nightly", 7)
