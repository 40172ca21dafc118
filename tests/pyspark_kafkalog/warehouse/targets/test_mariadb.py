"""MariaDB alone: a server that is careless by default (MyISAM, latin1, not strict, another zone),
and what its sessions, engines, collations and implicit commits could do to rows and offsets.

Two tests are in `make test`; the others, and MariaDB in the tests of all targets, in
`make mariadb`.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from sqlalchemy.exc import OperationalError

from pyspark_kafkalog import forget
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import (
    InvalidOptionError,
    InvalidRowError,
    LoadConflictError,
    TargetError,
)
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets import sql, sql_database
from pyspark_kafkalog.warehouse.targets.mariadb_session import lock, table_lock
from pyspark_kafkalog.warehouse.targets.sql_records import Records
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load
from tests.pyspark_kafkalog.warehouse.tables import MariaDbTable, expected_rows
from tests.pyspark_kafkalog.warehouse.targets.test_schema_change import ADD, ID, WIDEN, Landed, land
from tests.pyspark_kafkalog.warehouse.targets.test_sql_tables import load_columns, values_of
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, batch_of, found, upsert
from tests.support.mariadb import mariadb
from tests.support.patience import wait_until

pytestmark = pytest.mark.mariadb
long = pytest.mark.long

EXACT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
TEXTS = ["'", '"', "\\", "\\'", "\0", "\n\\n", "%s %% :x", "a", "A", "a ", "ä", "🦆", "x'41'", ""]


@pytest.fixture
def table(tmp_path: Path) -> MariaDbTable:
    return MariaDbTable(tmp_path)


@contextmanager
def globally(setting: str, value: object, before: object) -> Iterator[None]:
    mariadb().query(f"SET GLOBAL {setting} = {value}")
    try:
        yield
    finally:
        mariadb().query(f"SET GLOBAL {setting} = {before}")


def test_rows_and_offsets_come_with_one_commit_whatever_the_servers_defaults(
    table: MariaDbTable,
) -> None:
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 5)
    assert table.rows() == expected_rows("nightly", 5)
    assert table.offsets("nightly") == {0: 5, 1: 5}
    engines = table.query(
        "SELECT DISTINCT engine, table_collation FROM information_schema.tables "
        f"WHERE table_schema = '{table.schema}'"
    )
    assert engines == (("InnoDB", "utf8mb4_nopad_bin"),)


def test_the_newest_record_of_a_key_is_its_row(table: MariaDbTable) -> None:
    keys = [b"a", b"A", b"a ", b"'\\\0\xff"]
    upsert(table.open(), "n", *(Record(key, b"1") for key in keys))
    upsert(table.open(), "n", Record(b"a", None), Record(keys[3], b"2"))
    rows = {row["key"]: row["value"] for row in table.all_rows()}
    assert rows == {b"A": b"1", b"a ": b"1", keys[3]: b"2"}
    assert table.query("SELECT row_key FROM kafkalog_deleted") == ((b"a",),)


@long
def test_values_come_back_as_they_were(table: MariaDbTable) -> None:
    with globally("sql_mode", "'NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'", "''"):
        columns: dict[str, tuple[Any, list[Any]]] = {
            "text": (pa.string(), [*TEXTS, None]),
            "bytes": (pa.binary(), [*(text.encode() for text in TEXTS), None]),
            "small": (pa.decimal128(38, 38), [Decimal("1.23e-8"), *[None] * len(TEXTS)]),
            "large": (pa.decimal128(38, 0), [Decimal(10**38 - 1), *[None] * len(TEXTS)]),
            "time": (
                pa.timestamp("us", "UTC"),
                [datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1)]
                + [None] * (len(TEXTS) - 1),
            ),
        }
        load_columns(table, columns)
        for name, (_, values) in columns.items():
            assert values_of(table, name) == values


@long
@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY"])
def test_tables_that_roll_nothing_back_are_refused(table: MariaDbTable, engine: str) -> None:
    table.query(f"CREATE TABLE orders (x int) ENGINE={engine}")
    with pytest.raises(TargetError, match=f"orders is of the engine {engine}"):
        load_columns(table, {"x": (pa.int32(), [1])})
    table.query("ALTER TABLE orders ENGINE=InnoDB")
    load_columns(table, {"x": (pa.int32(), [1])})
    if engine == "MyISAM":
        # Its keys are too short for those of records.
        return
    table.query(f"ALTER TABLE kafkalog_offsets ENGINE={engine}")
    with pytest.raises(TargetError, match=f"recorded in kafkalog_offsets, of the engine {engine}"):
        load_columns(table, {"x": (pa.int32(), [2])})
    assert values_of(table) == [1]


@long
@pytest.mark.parametrize(
    "statement", ["CREATE VIEW orders AS SELECT 1 AS x", "CREATE SEQUENCE orders"]
)
def test_what_is_no_table_is_refused(table: MariaDbTable, statement: str) -> None:
    table.query(statement)
    with pytest.raises(TargetError, match=r"orders is (view|sequence)"):
        load_columns(table, {"x": (pa.int32(), [1])})


@long
@pytest.mark.parametrize("mode", ["", "STRICT_ALL_TABLES", "ANSI_QUOTES,STRICT_TRANS_TABLES"])
def test_a_session_that_is_made_careless_again_is_refused(table: MariaDbTable, mode: str) -> None:
    command = quote(f"SET sql_mode = '{mode}'")
    careless = table.name.replace("#", f"&init_command={command}#")
    with pytest.raises(TargetError, match=r"sessions of this MariaDB lack .*init_command"):
        open_target(careless).position("nightly")


@long
def test_an_url_cannot_make_statements_commit_by_themselves(table: MariaDbTable) -> None:
    load(table.open(), "nightly", 2)
    table.query("CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SIGNAL SQLSTATE '45000'")
    place = table.name.replace("#", "&autocommit=true&charset=latin1#")
    with pytest.raises(TargetError, match=r"45000|user-defined exception"):
        load(open_target(place), "nightly", 4)
    assert table.offsets("nightly") == {0: 2, 1: 2}


@long
def test_names_of_loads_and_topics_are_those_that_were_said(table: MariaDbTable) -> None:
    names = ["nightly", "Nightly", "nightly ", "nightlý", "n" * 255]
    for until_offset, name in enumerate(names, 1):
        load(table.open(), name, until_offset)
    assert table.open().names() == sorted(names)
    for until_offset, name in enumerate(names, 1):
        assert table.offsets(name) == {0: until_offset, 1: until_offset}
    with pytest.raises(InvalidOptionError, match="name of a load has 255 characters at most"):
        load(table.open(), "n" * 256, 1)


@long
@pytest.mark.parametrize("name", ["t" * 65, "duck 🦆", "space "])
def test_names_that_mariadb_does_not_keep_are_refused(table: MariaDbTable, name: str) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be a name in MariaDB"):
        open_target(table.name.removesuffix("orders") + name)
    with pytest.raises(InvalidOptionError, match="cannot be a name in MariaDB"):
        load_columns(table, {name: (pa.int32(), [1])})


@long
def test_a_row_that_is_larger_than_a_packet_is_refused_in_words(table: MariaDbTable) -> None:
    with globally("max_allowed_packet", 1 << 20, 16 << 20):
        rows = [b"x" * 300_000] * 9
        load_columns(table, {"x": (pa.binary(), rows)})
        assert values_of(table) == rows
        with pytest.raises(InvalidRowError, match=r"a row is 12000.. bytes .* max_allowed_packet"):
            load_columns(table, {"x": (pa.binary(), [b"", b"x" * 600_000])})
        assert len(values_of(table)) == 9


@long
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), math.inf),
        (pa.float32(), -math.inf),
        (pa.float64(), math.nan),
        (pa.timestamp("us"), -62_135_596_800_000_001),
        (pa.timestamp("us", "UTC"), 253_402_300_800_000_000),
        (pa.date32(), 2_932_897),
    ],
)
def test_what_mariadb_does_not_have_is_refused(table: MariaDbTable, kind: Any, value: Any) -> None:
    number = pa.int32() if pa.types.is_date(kind) else pa.int64()
    column = pa.array([value], None if pa.types.is_floating(kind) else number).cast(kind)
    with pytest.raises(InvalidRowError, match=r"column x holds .*MariaDB does not have"):
        load_columns(table, {"x": (kind, column)})
    assert table.open().position("nightly").offsets == {}


@long
def test_a_wider_column_keeps_what_else_was_said_of_it(table: MariaDbTable) -> None:
    table.query(
        "CREATE TABLE orders (id int, n int(5) NOT NULL DEFAULT 7 COMMENT 'it''s, 3', KEY (n))"
    )
    land(table, [ID, ("n", pa.int32())], [{"id": 1, "n": 5}])
    land(table, [ID, ("n", pa.int64())], [{"id": 2, "n": 1 << 40}], WIDEN)
    land(table, [ID], [{"id": 3}])
    [shown] = [row[1] for row in table.query("SHOW CREATE TABLE orders")]
    assert "\"n\" bigint(20) NOT NULL DEFAULT 7 COMMENT 'it''s, 3'" in shown
    assert sorted(values_of(table, "n")) == [5, 7, 1 << 40]


@long
def test_a_load_that_dies_after_altering_the_table_is_run_again(
    table: MariaDbTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB has committed the new column by then."""
    land(table, [ID], [{"id": 1}])
    more = [ID, ("note", pa.string())]

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sql, "keep", die)
        with pytest.raises(KeyboardInterrupt):
            land(table, more, [{"id": 2, "note": "x"}], ADD)
    assert table.all_rows() == [{"id": 1, "note": None}]
    land(table, more, [{"id": 2, "note": "x"}], ADD)
    assert table.all_rows() == [{"id": 1, "note": None}, {"id": 2, "note": "x"}]


@long
def test_two_loads_that_alter_the_table_at_once_both_go_on(table: MariaDbTable) -> None:
    land(table, [ID], [{"id": 1}])
    names = [f"c{number}" for number in range(4)]
    landed = [
        Landed(table, [ID, (name, pa.int32())], [{"id": 2, name: 3}], ADD, name) for name in names
    ]
    in_threads([each.commit for each in landed])
    rows = table.all_rows()
    assert len(rows) == 5
    assert all(sum(row[name] == 3 for row in rows) == 1 for name in names)


def in_threads(calls: list[Callable[[], object]]) -> list[object]:
    """What each returns or raises."""
    done: list[object] = []

    def run(call: Callable[[], object]) -> None:
        try:
            done.append(call())
        except Exception as error:
            done.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(done) == len(calls)
    assert [each for each in done if isinstance(each, Exception)] == []
    return done


@long
@pytest.mark.parametrize("outcome", ["rollback", "commit"])
def test_a_rival_waits_for_a_transaction_that_is_under_way(
    table: MariaDbTable, outcome: str
) -> None:
    load(table.open(), "nightly", 2)
    done: list[object] = []

    def rival() -> None:
        try:
            done.append(load(table.open(), "nightly", 4))
        except LoadConflictError as error:
            done.append(error)

    with closing(mariadb().connect(database=table.schema)) as connection:
        connection.autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO kafkalog_commits (table_name, load_name, commit_number, load_id, "
                "committed_at, records) VALUES ('orders', 'nightly', 2, 'x', now(), 0)"
            )
            cursor.execute("UPDATE kafkalog_offsets SET next_offset = 3")
        thread = threading.Thread(target=rival)
        thread.start()
        wait_until(
            lambda: mariadb().query("SELECT * FROM information_schema.innodb_lock_waits"),
            "the rival to wait",
            pause_s=0.2,  # asked again within 0.1 s, the server says what it did before
        )
        getattr(connection, outcome)()
        thread.join(60)
    assert len(done) == 1
    assert isinstance(done[0], LoadConflictError) == (outcome == "commit")
    assert table.rows() == expected_rows("nightly", 2 if outcome == "commit" else 4)


@long
def test_a_lock_that_is_held_too_long_ends_a_load(
    table: MariaDbTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 2)
    monkeypatch.setattr(sql_database, "LONGEST_WAIT_S", 1)
    with closing(mariadb().connect(database=table.schema)) as connection:
        connection.autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM kafkalog_offsets FOR UPDATE")
        with pytest.raises(TargetError, match="Lock wait timeout exceeded"):
            load(table.open(), "nightly", 4)
    with closing(mariadb().connect(database=table.schema)) as connection:
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLES orders WRITE")
        with pytest.raises(TargetError, match="Lock wait timeout exceeded"):
            load(table.open(), "nightly", 4)
    load(table.open(), "nightly", 4)
    assert table.rows() == expected_rows("nightly", 4)


@long
def test_a_lock_by_name_that_is_held_too_long_ends_a_load(
    table: MariaDbTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a first load whose machine has stopped in its transaction."""
    monkeypatch.setattr(sql_database, "LONGEST_WAIT_S", 1)
    database = sql_database.Database(mariadb().url(table.schema))
    with database.transaction() as connection:
        lock(connection, table_lock(table.schema, "orders"), 10)
        with pytest.raises(TargetError, match=r"still has the lock 'kafkalog .*SHOW PROCESSLIST"):
            load(table.open(), "nightly", 2)
    load(table.open(), "nightly", 2)


@long
def test_a_deadlock_is_tried_again(table: MariaDbTable, monkeypatch: pytest.MonkeyPatch) -> None:
    load(table.open(), "nightly", 2)
    really, left = Records.take_number, [1, 2, 3]

    def take_number(records: Records, *arguments: Any) -> None:
        really(records, *arguments)
        if left:
            left.pop()
            told = (1213, "Deadlock found when trying to get lock; try restarting transaction")
            raise OperationalError("INSERT", {}, ConnectionError(*told))

    monkeypatch.setattr(Records, "take_number", take_number)
    load(table.open(), "nightly", 4)
    assert left == []
    assert table.rows() == expected_rows("nightly", 4)


@long
def test_a_session_that_is_killed_in_its_transaction_leaves_nothing(
    table: MariaDbTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 2)
    really = Records.move

    def move(records: Records, *arguments: Any) -> None:
        really(records, *arguments)
        number = records._connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar()
        mariadb().query(f"KILL CONNECTION {number}")

    with monkeypatch.context() as patch:
        patch.setattr(Records, "move", move)
        with pytest.raises(TargetError, match="to run the load again is safe"):
            load(table.open(), "nightly", 4)
    assert table.offsets("nightly") == {0: 2, 1: 2}
    load(table.open(), "nightly", 4)
    assert table.rows() == expected_rows("nightly", 4)


OWN = (
    'CREATE TABLE orders ("key" VARBINARY(99) UNIQUE, value LONGBLOB, topic LONGTEXT {topic}, '
    '"partition" INT, "offset" BIGINT, timestamp DATETIME(6), "timestampType" INT, '
    "own VARCHAR(9) DEFAULT 'x')"
)


@long
@pytest.mark.parametrize("collation", ["general_ci", "bin", "uca1400_ai_ci", "nopad_bin"])
def test_columns_in_which_two_keys_or_topics_are_one_are_refused(
    table: MariaDbTable, collation: str
) -> None:
    table.query(OWN.format(topic=f"CHARACTER SET utf8mb4 COLLATE utf8mb4_{collation}"))
    if collation != "nopad_bin":
        with pytest.raises(TargetError, match=f"topic of the table orders has .*_{collation}"):
            upsert(table.open(), "n", Record(b"a", b"1"))
        return
    by_topic = Upsert(("topic", "partition"))
    for topic in ("A", "a"):
        upsert(table.open(), topic, Record(topic.encode(), b"1"), how=by_topic, topic=topic)
    upsert(table.open(), "a", Record(b"a", b"2"), how=by_topic, topic="a")
    rows = {(row["topic"], row["value"], row["own"]) for row in table.all_rows()}
    assert rows == {("A", b"1", "x"), ("a", b"2", "x")}


@long
def test_a_key_that_an_index_has_no_room_for_is_refused(table: MariaDbTable) -> None:
    upsert(table.open(), "n", Record(b"k" * 2_800, b"1"))
    with pytest.raises(TargetError, match="Data too long for column 'key'"):
        upsert(table.open(), "n", Record(b"k" * 2_801, b"1"))
    assert table.offsets("n") == {0: 1}


@long
def test_long_topics_that_begin_alike_are_in_order(table: MariaDbTable) -> None:
    """Whatever a server sorts by; of one time the greater topic's record is the newer."""
    how, places = Upsert(order_by="timestamp"), (("t" * 70 + "b", 0), ("t" * 70 + "a", 5))
    with globally("max_sort_length", 64, 1024):
        target = table.open()
        position = target.position("n")
        stage = target.stage(how.schema(row_schema()), (), SchemaChange(), how)
        records = ([(place, Record(b"k", topic[-1:].encode()))] for topic, place in places)
        rows = [
            how.marked(batch_of(record, topic))
            for record, (topic, _) in zip(records, places, strict=True)
        ]
        files = list(write_files(stage, "orders", rows))
        pieces = [OffsetRange(topic, 0, place, place + 1) for topic, place in sorted(places)]
        target.commit(PendingCommit(stage, "n", position, pieces, files))
    assert found(table) == {b"k": b"b"}


@long
@pytest.mark.parametrize("setting", ["sql_select_limit", "max_join_size"])
def test_a_server_that_gives_few_rows_gives_all_of_them(table: MariaDbTable, setting: str) -> None:
    with globally(setting, 1, 18446744073709551615):
        load(table.open(), "nightly", 3)
        load(table.open(), "nightly", 5)
        assert table.open().names() == ["nightly"]
    assert table.rows() == expected_rows("nightly", 5)


@pytest.mark.parametrize(
    ("setting", "value", "default"), [("sql_notes", 0, 1), ("max_error_count", 0, 64)]
)
def test_no_text_loses_spaces_for_which_there_is_no_room(
    table: MariaDbTable, setting: str, value: int, default: int
) -> None:
    """Of which a strict MariaDB makes a note, and of two keys one."""
    by_topic, key = Upsert(("topic", "partition", "timestamp", "timestampType")), "k" * 175
    upsert(table.open(), "n", Record(b"a", b"1"), how=by_topic, topic=key)
    refused = pytest.raises(InvalidRowError, match=r"longer than its column.* 'topic'")
    with globally(setting, value, default), refused:
        upsert(table.open(), "other", Record(b"a", b"2"), how=by_topic, topic=f"{key} ")
    assert found(table) == {b"a": b"1"}


@long
def test_appends_and_upserts_that_begin_at_once_do_not_mix(table: MariaDbTable) -> None:
    """Either the append comes first, and the upsert is refused, or the other way about."""
    for number in range(6):
        place = open_target(table.name.removesuffix("orders") + f"t{number}")
        done: list[object] = []

        def run(call: Callable[[], object], done: list[object] = done) -> None:
            try:
                done.append(call())
            except TargetError as error:
                done.append(error)

        def append(place: Any = place) -> object:
            return load(place, "a", 2)

        def put(place: Any = place) -> object:
            return upsert(place, "u", Record(b"x", b"1"))

        threads = [threading.Thread(target=run, args=(call,)) for call in (append, put)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(isinstance(each, TargetError) for each in done) == 1
        assert len(place.names()) == 1


@long
def test_a_role_needs_no_more_than_to_read_and_write_the_tables(table: MariaDbTable) -> None:
    load(table.open(), "nightly", 2)
    upserted = table.name.removesuffix("orders") + "keys"
    upsert(open_target(upserted), "n", Record(b"a", b"1"))
    role = f"r{table.schema}"[:30]
    mariadb().query(
        f"CREATE USER {role}@'%' IDENTIFIED BY 'pass:word/@%'; GRANT SELECT, INSERT, UPDATE, "
        f"DELETE, CREATE TEMPORARY TABLES ON {table.schema}.* TO {role}@'%'",
        user="root",
        password="",
    )
    place = f"sql:{mariadb().url(table.schema, role)}"
    load(open_target(f"{place}#orders"), "nightly", 4)
    upsert(open_target(f"{place}#keys"), "n", Record(b"a", b"2"), Record(b"b", None))
    assert table.rows() == expected_rows("nightly", 4)
    with pytest.raises(TargetError, match="denied"):
        load(open_target(f"{place}#others"), "nightly", 4)


@long
def test_a_server_that_folds_names_has_one_place_for_all_spellings() -> None:
    server = mariadb("--lower-case-table-names=1")
    server.query("CREATE DATABASE lake")
    place = f"sql:{server.url('lake')}#"
    for until_offset, spelled in enumerate(("Orders", "orders", "ORDERS", "LAKE.Orders"), 1):
        load(open_target(place + spelled), "nightly", until_offset)
    assert server.query("SELECT count(*) FROM lake.orders") == ((8,),)
    assert server.query("SELECT DISTINCT table_name FROM lake.kafkalog_commits") == (("orders",),)
    server.query("DROP TABLE lake.orders")
    with pytest.raises(TargetError, match="is gone"):
        load(open_target(place + "Orders"), "nightly", 9)
    assert forget(place + "oRders", "nightly")


@long
def test_tables_that_differ_by_case_are_two_where_the_server_keeps_case(
    table: MariaDbTable,
) -> None:
    load(table.open(), "nightly", 2)
    other = open_target(table.name.replace("#orders", "#Orders"))
    load(other, "nightly", 3)
    assert table.offsets("nightly") == {0: 2, 1: 2}
    assert table.rows() == expected_rows("nightly", 2)


@long
def test_mysql_is_refused_and_the_password_is_not_shown(table: MariaDbTable) -> None:
    with pytest.raises(InvalidOptionError, match="not of mysql"):
        open_target("sql:mysql://u:hunter2@h/d#t")
    wrong = table.name.replace("pass%3Aword", "hunter2")
    with pytest.raises(TargetError, match="Access denied") as caught:
        open_target(wrong).position("nightly")
    assert "hunter2" not in str(caught.value)


@long
def test_fields_of_structs_beyond_mariadbs_days_do_not_stop_a_load(table: MariaDbTable) -> None:
    """They are text in a document."""
    kind = pa.struct([("at", pa.timestamp("us", "UTC"))])
    load_columns(table, {"x": (kind, pa.array([{"at": 2**62}], kind))})
    assert "14:00:27.387904+00:00" in values_of(table)[0]
