"""A load name that goes back: its place and its rows at once, whatever is at work."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog import cli, load_status, maintain
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import (
    InvalidOptionError,
    LoadConflictError,
    TargetError,
    WouldDoubleError,
)
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import NOWHERE, PendingCommit
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.layout import make_layout
from pyspark_kafkalog.warehouse.targets import delta_rewind, iceberg_replacement
from pyspark_kafkalog.warehouse.targets.sql_database import Database
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from tests.property.load_targets import OwnedIceberg
from tests.pyspark_kafkalog.warehouse.deletion_vector import delete_by_vector
from tests.pyspark_kafkalog.warehouse.rows_loader import begin, load, rows
from tests.pyspark_kafkalog.warehouse.tables import (
    DATABASES,
    KINDS,
    TABLES_IN_STORES,
    DeltaLakeTable,
    IcebergTable,
    PostgresTable,
    Table,
    expected_rows,
    table_of,
)

# Without brokers: what these tell is tried in test_rewind_places.py.
rewind = partial(pyspark_kafkalog.rewind, options={"failOnDataLoss": "false"})

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
BOTH_TO_3 = {"orders": {"0": 3, "1": 3}}
QUICK = ["delta", "iceberg", "sqlite"]
TRUNCATING = [*QUICK, "duckdb", "postgresql", "mariadb"]


def of(kinds: list[str], quick: tuple[str, ...] = ("delta",)) -> list[Any]:
    """Targets for a test: `make test` tries the quick ones, `make rewinds` all."""
    return [pytest.param(kind, marks=() if kind in quick else pytest.mark.long) for kind in kinds]


@pytest.fixture(params=of([*TRUNCATING, *TABLES_IN_STORES]))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "the place"
    directory.mkdir()
    return table_of(request.param, directory)


every_kind = pytest.mark.parametrize("table", of([*KINDS, *TABLES_IN_STORES]), indirect=True)
by_files = pytest.mark.parametrize(
    "table", of(["delta", "iceberg", *TABLES_IN_STORES]), indirect=True
)


def load_nothing(table: Table, until_offset: int, **more: Any) -> None:
    """A load whose records made no rows, as all of them were bad ones."""
    target = table.open()
    last = target.position("nightly")
    ranges = [
        OffsetRange.of(each, last.offsets.get(each, 0), until_offset)
        for each in (ORDERS_0, ORDERS_1)
    ]
    target.commit(PendingCommit(target.stage(row_schema()), "nightly", last, ranges, [], **more))


def load_rows(
    table: Table, batch: pa.RecordBatch, ranges: list[OffsetRange], partition_by: str = ""
) -> None:
    target = table.open()
    layout = make_layout(partition_by, "", "zstd", 1 << 20)
    stage = target.stage(batch.schema, layout.partition_by, SchemaChange(adds=True))
    files = list(write_files(stage, "rows", [batch], layout))
    target.commit(PendingCommit(stage, "nightly", target.position("nightly"), ranges, files))


@pytest.mark.parametrize("table", of(TRUNCATING, ("delta", "iceberg", "sqlite")), indirect=True)
def test_the_place_and_its_rows_go_back_in_one_commit(table: Table) -> None:
    for until_offset in (2, 5, 7):
        load(table.open(), "nightly", until_offset)
    done = rewind(table.name, "nightly", BOTH_TO_3, truncate_after=True)
    assert done.ranges == (OffsetRange("orders", 0, 3, 7), OffsetRange("orders", 1, 3, 7))
    assert (done.name, done.target, done.deleted_rows) == ("nightly", str(table.open()), 8)
    assert table.rows() == expected_rows("nightly", 3)
    assert table.offsets("nightly") == {0: 3, 1: 3}
    load(table.open(), "nightly", 9)
    assert table.rows() == expected_rows("nightly", 9)


@pytest.mark.parametrize("when", ["IMMEDIATE", "DEFERRED"])
def test_a_trigger_that_keeps_rows_is_found_out(when: str, tmp_path: Path) -> None:
    """Also one that waits for the end of the transaction."""
    table = PostgresTable(tmp_path)
    load(table.open(), "nightly", 7)
    table.query(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"INSERT INTO {table.schema}.orders SELECT OLD.*; RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER t AFTER DELETE ON orders "
        f"DEFERRABLE INITIALLY {when} FOR EACH ROW EXECUTE FUNCTION f()"
    )
    with pytest.raises(TargetError, match=r"8 of 8 rows .* are still there"):
        rewind(table.name, "nightly", BOTH_TO_3, truncate_after=True)
    assert table.rows() == expected_rows("nightly", 7)
    assert table.offsets("nightly") == {0: 7, 1: 7}


def test_partitions_that_are_not_named_stay(table: Table) -> None:
    load(table.open(), "nightly", 5)
    done = rewind(table.name, "nightly", '{"orders":{"1":0}}', truncate_after=True)
    assert done.deleted_rows == 5
    assert table.offsets("nightly") == {0: 5, 1: 0}
    kept = {value: one for value, one in expected_rows("nightly", 5).items() if b" 0 " in value}
    assert table.rows() == kept


def test_it_is_refused_where_rows_would_be_doubled(table: Table) -> None:
    load(table.open(), "nightly", 5)
    with pytest.raises(
        WouldDoubleError, match=r"4 rows of orders-0, orders-1.*truncate.*forget"
    ) as told:
        rewind(table.name, "nightly", BOTH_TO_3)
    assert told.value.rows == 4
    assert table.offsets("nightly") == {0: 5, 1: 5}
    assert table.rows() == expected_rows("nightly", 5)


@pytest.mark.parametrize("table", of(["parquet", "s3"], ("parquet",)), indirect=True)
@pytest.mark.parametrize("truncate_after", [True, False])
def test_a_parquet_target_deletes_no_rows(table: Table, truncate_after: bool) -> None:
    load(table.open(), "nightly", 2)
    load(table.open(), "nightly", 5)
    with pytest.raises(WouldDoubleError, match=r"up to 6 rows.*another directory") as told:
        rewind(table.name, "nightly", BOTH_TO_3, truncate_after)
    assert told.value.rows == 6
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


@every_kind
def test_without_rows_in_the_way_it_just_goes_back(table: Table) -> None:
    """Marks of later offsets go, and epochs and ids stay."""
    load(table.open(), "nightly", 3)
    kept = {"topic_ids": {"orders": UUID(int=1)}, "epochs": {ORDERS_0: 4, ORDERS_1: 4}}
    load_nothing(table, 7, **kept, marks={ORDERS_0: 9, ORDERS_1: 9})
    assert rewind(table.name, "nightly", {"orders": {"0": 3}}).deleted_rows == 0
    found = table.open().position("nightly")
    assert found.offsets == {ORDERS_0: 3, ORDERS_1: 7}
    assert (found.topic_ids, found.epochs) == tuple(kept.values())
    assert found.marks == {ORDERS_1: 9}
    load(table.open(), "nightly", 7)
    assert table.rows()[b"nightly 0 6"] == 1


@every_kind
def test_to_where_the_load_is_changes_nothing(table: Table) -> None:
    load(table.open(), "nightly", 5)
    [before] = load_status(table.name)
    done = rewind(table.name, "nightly", {"orders": {"0": 5}}, True)
    assert (done.ranges, done.deleted_rows) == ((), 0)
    assert load_status(table.name) == [before]


def test_a_rewind_is_no_commit_of_the_load(table: Table) -> None:
    load(table.open(), "nightly", 5)
    [before] = load_status(table.name)
    rewind(table.name, "nightly", BOTH_TO_3, True)
    [after] = load_status(table.name)
    assert after.last == before.last
    assert after.position.offsets == {ORDERS_0: 3, ORDERS_1: 3}


@pytest.mark.slow
def test_twice_and_further_back(table: Table) -> None:
    load(table.open(), "nightly", 5)
    rewind(table.name, "nightly", BOTH_TO_3, True)
    with pytest.raises(InvalidOptionError, match=r"goes on at offset 3 .*beyond"):
        rewind(table.name, "nightly", {"orders": {"0": 4}}, True)
    rewind(table.name, "nightly", {"orders": {"0": 0, "1": 0}}, True)
    assert not table.rows()
    load(table.open(), "nightly", 5)
    assert table.rows() == expected_rows("nightly", 5)


@every_kind
@pytest.mark.parametrize(
    ("to", "said"),
    [
        ({"orders": {"0": 6}}, "beyond"),
        ({"orders": {"7": 0}}, "no place in orders-7"),
        ({"others": {"0": 0}}, "no place in others-0"),
        ("earliest", "brokers have to be asked"),
        ({"orders": {"0": 1, "1": -2}}, "brokers have to be asked"),
        ("latest", "latest"),
        ("yesterday", "no place"),
    ],
)
def test_places_that_are_none_are_refused(table: Table, to: Any, said: str) -> None:
    load(table.open(), "nightly", 5)
    with pytest.raises(InvalidOptionError, match=said):
        rewind(table.name, "nightly", to, True)
    assert table.open().position("nightly").offsets == {ORDERS_0: 5, ORDERS_1: 5}


@every_kind
def test_a_load_that_never_was_is_refused(table: Table) -> None:
    for _ in range(2):
        with pytest.raises(InvalidOptionError, match="no commit of load 'nightly'"):
            rewind(table.name, "nightly", BOTH_TO_3)
        load(table.open(), "hourly", 3)
    with pytest.raises(InvalidOptionError, match="by its name"):
        rewind(table.name, " ", BOTH_TO_3)


def test_rows_of_another_load_are_not_deleted(table: Table) -> None:
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 4)
    with pytest.raises(TargetError, match="'hourly' has a place in orders-"):
        rewind(table.name, "nightly", BOTH_TO_3, True)
    with pytest.raises(WouldDoubleError) as told:
        rewind(table.name, "nightly", BOTH_TO_3)
    assert told.value.rows == 6
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 4)


def test_rows_from_beyond_where_the_load_is_are_not_deleted(table: Table) -> None:
    """Of a topic that was created again, whose old rows do not come again."""
    load(table.open(), "nightly", 7)
    target = table.open()
    last = target.position("nightly")
    stage = target.stage(row_schema())
    anew = [OffsetRange("orders", 0, 0, 2)]
    target.commit(PendingCommit(stage, "nightly", last, anew, []))
    with pytest.raises(TargetError, match="5 rows of orders-0 from beyond where load"):
        rewind(table.name, "nightly", {"orders": {"0": 1}}, True)
    assert table.rows() == expected_rows("nightly", 7)


@pytest.mark.parametrize("left_out", ["topic", "offset"])
def test_rows_that_do_not_say_what_they_are_of_are_left(table: Table, left_out: str) -> None:
    batch = rows("nightly", OffsetRange("orders", 0, 0, 5), row_schema()).drop_columns([left_out])
    load_rows(table, batch, [OffsetRange("orders", 0, 0, 5)])
    for truncate_after in (True, False):
        with pytest.raises(TargetError, match=f"do not say which records .* no column {left_out}"):
            rewind(table.name, "nightly", {"orders": {"0": 3}}, truncate_after)
    assert sum(table.rows().values()) == 5


def test_nor_are_rows_deleted_beside_some_that_do_not(table: Table) -> None:
    load(table.open(), "nightly", 5)
    batch = rows("nightly", OffsetRange("orders", 0, 5, 7), row_schema())
    topics = pa.array(["another", None], pa.string())
    load_rows(table, batch.set_column(2, batch.schema.field(2), topics), [])
    with pytest.raises(TargetError, match=r"do not say which records .* null"):
        rewind(table.name, "nightly", {"orders": {"0": 3}}, True)
    assert sum(table.rows().values()) == 12


def test_odd_names_of_topics_are_told_apart(table: Table) -> None:
    names = ("orders", "Orders", "orders%", "or_ers", "orders-0", "a.b")
    ranges = [OffsetRange(name, 0, 0, 4) for name in sorted(names)]
    together = [rows("n", piece, row_schema()) for piece in ranges]
    batch = pa.Table.from_batches(together).combine_chunks().to_batches()[0]
    load_rows(table, batch, ranges)
    for name in ("orders%", "or_ers", "Orders"):
        assert rewind(table.name, "nightly", {name: {"0": 1}}, True).deleted_rows == 3
    left = Counter(table.arrow().column("topic").to_pylist())
    assert left == {"orders": 4, "Orders": 1, "orders%": 1, "or_ers": 1, "orders-0": 4, "a.b": 4}


def test_a_collation_does_not_make_two_topics_one(tmp_path: Path) -> None:
    table = DATABASES["sqlite"](tmp_path)
    table.query(
        "CREATE TABLE orders (value BLOB, topic TEXT COLLATE NOCASE, 'partition' INTEGER, "
        "'offset' BIGINT, 'key' BLOB, 'timestamp' TEXT, timestampType INTEGER)"
    )
    ranges = [OffsetRange(name, 0, 0, 4) for name in ("ORDERS", "orders")]
    together = [rows("n", piece, row_schema()) for piece in ranges]
    load_rows(table, pa.Table.from_batches(together).combine_chunks().to_batches()[0], ranges)
    assert rewind(table.name, "nightly", {"orders": {"0": 1}}, True).deleted_rows == 3
    assert table.query("SELECT topic, count(*) FROM orders GROUP BY topic COLLATE BINARY") == [
        ("ORDERS", 4),
        ("orders", 1),
    ]


@pytest.mark.long
def test_very_many_partitions_go_back_at_once(tmp_path: Path) -> None:
    table = DATABASES["sqlite"](tmp_path)
    ranges = [OffsetRange("orders", number, 0, 2) for number in range(1200)]
    together = [rows("n", piece, row_schema()) for piece in ranges]
    load_rows(table, pa.Table.from_batches(together).combine_chunks().to_batches()[0], ranges)
    to = {"orders": {str(number): 1 for number in range(1200)}}
    assert rewind(table.name, "nightly", to, True).deleted_rows == 1200
    assert table.query('SELECT count(*), max("offset") FROM orders') == [(1200, 0)]


def test_an_upserted_table_goes_back_over_its_rows(tmp_path: Path) -> None:
    from pyspark_kafkalog.warehouse.rows.upserts import parse_upsert

    table = DATABASES["sqlite"](tmp_path)
    upsert = parse_upsert("upsert", "offset", None)
    assert upsert is not None
    target = table.open()
    stage = target.stage(row_schema(), upsert=upsert)
    piece = OffsetRange("orders", 0, 0, 5)
    ours = rows("nightly", piece, row_schema())
    whole = {
        name: ours.column(name) if name in ours.schema.names else _extra(name, ours)
        for name in stage.schema.names
    }
    batch = pa.RecordBatch.from_pydict(whole, stage.schema)
    files = list(write_files(stage, "rows", [batch]))
    target.commit(PendingCommit(stage, "nightly", NOWHERE, [piece], files))
    with pytest.raises(TargetError, match=r"upserted.*without truncate_after"):
        rewind(table.name, "nightly", {"orders": {"0": 3}}, True)
    assert rewind(table.name, "nightly", {"orders": {"0": 3}}).deleted_rows == 0
    assert table.offsets("nightly") == {0: 3}
    assert sum(table.rows().values()) == 5


def _extra(name: str, batch: pa.RecordBatch) -> pa.Array:
    if "deleted" in name:
        return pa.array([False] * batch.num_rows)
    if "order" in name:
        return pa.nulls(batch.num_rows, pa.int64())
    return pa.array([b"%d" % number for number in range(batch.num_rows)])


def test_a_load_at_work_ends_in_a_conflict(table: Table) -> None:
    load(table.open(), "nightly", 5)
    target, landed = begin(table.open())
    rewind(table.name, "nightly", BOTH_TO_3, True)
    with pytest.raises(LoadConflictError):
        target.commit(landed)
    assert table.rows() == expected_rows("nightly", 3)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


LATE: dict[str, tuple[object, str, int]] = {
    "delta": (delta_rewind, "write_entry", 0),
    "iceberg": (iceberg_replacement, "commit_transaction", 0),
    "sqlite": (Database, "transaction", 1),
    "duckdb": (Database, "transaction", 1),
    "postgresql": (Database, "transaction", 1),
    "mariadb": (Database, "transaction", 1),
}


@pytest.mark.parametrize(
    "rival",
    [
        lambda table: load(table.open(), "nightly", 7),
        lambda table: (
            load(table.open(), "nightly", 5) or rewind(table.name, "nightly", BOTH_TO_3, True)
        ),
        lambda table: maintain(table.name),
    ],
    ids=["load", "rewind", "maintain"],
)
@pytest.mark.parametrize("table", of([*LATE]), indirect=True)
def test_whoever_is_too_late_looks_again(
    table: Table,
    rival: Callable[[Table], object],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rival is done when the rewind, which has looked, is about to commit."""
    load(table.open(), "nightly", 2)
    load(table.open(), "nightly", 5)
    owner, step, number = LATE[request.node.callspec.params["table"]]
    really, taken = getattr(owner, step), count()

    def be_late(*arguments: Any) -> Any:
        if next(taken) == number:
            monkeypatch.undo()
            rival(table)
        return really(*arguments)

    monkeypatch.setattr(owner, step, be_late)
    rewind(table.name, "nightly", {"orders": {"0": 1, "1": 1}}, True)
    assert table.rows() == expected_rows("nightly", 1)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)


@every_kind
def test_of_two_without_rows_each_did(table: Table) -> None:
    load_nothing(table, 7)
    rewind(table.name, "nightly", BOTH_TO_3)
    rewind(table.name, "nightly", BOTH_TO_3)
    assert table.open().position("nightly").offsets == {ORDERS_0: 3, ORDERS_1: 3}


@by_files
@pytest.mark.parametrize("partition_by", ["topic", "partition", "months(timestamp)"])
def test_files_of_partitions_keep_theirs(table: Table, partition_by: str) -> None:
    ranges = [OffsetRange("orders", number, 0, 6) for number in (0, 1)]
    together = [rows("nightly", piece, row_schema()) for piece in ranges]
    batch = pa.Table.from_batches(together).combine_chunks().to_batches()[0]
    load_rows(table, batch, ranges, partition_by)
    assert rewind(table.name, "nightly", {"orders": {"0": 2}}, True).deleted_rows == 4
    assert rewind(table.name, "nightly", {"orders": {"1": 0}}, True).deleted_rows == 6
    found = table.arrow()
    if isinstance(table, IcebergTable):
        found = table.iceberg().scan().to_arrow()
    columns = [found.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    assert sorted(zip(*columns, strict=True)) == [("orders", 0, 0), ("orders", 0, 1)]


@by_files
def test_compacted_files_are_cut_and_others_stay_as_they_are(table: Table) -> None:
    for until_offset in range(1, 6):
        load(table.open(), "nightly", until_offset)
    maintain(table.name)
    rewind(table.name, "nightly", BOTH_TO_3, True)
    assert table.rows() == expected_rows("nightly", 3)
    maintain(table.name)
    load(table.open(), "nightly", 6)
    assert table.rows() == expected_rows("nightly", 6)


def test_readers_of_delta_are_told_that_rows_went(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 2)
    load(table.open(), "nightly", 5)
    rewind(table.name, "nightly", BOTH_TO_3, True)
    entry = (tmp_path / "table/_delta_log/00000000000000000003.json").read_text()
    assert entry.count('"remove"') == entry.count('"add"') == 2
    assert entry.count('"dataChange": true') == 4


@pytest.mark.parametrize("setting", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_delta_tables_that_must_not_be_cut_are_refused(tmp_path: Path, setting: str) -> None:
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 5)
    table.delta().alter.set_table_properties({setting: "true"})
    with pytest.raises(TargetError, match=setting):
        rewind(table.name, "nightly", BOTH_TO_3, True)
    assert table.rows() == expected_rows("nightly", 5)


def test_rows_of_a_deletion_vector_are_the_engines_that_made_it(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 3)
    delete_by_vector(table.delta(), [0])
    load(table.open(), "nightly", 6)
    assert rewind(table.name, "nightly", BOTH_TO_3, True).deleted_rows == 6
    for truncate_after in (True, False):
        with pytest.raises(TargetError, match=r"has a deletion vector.*REORG"):
            rewind(table.name, "nightly", {"orders": {"0": 1, "1": 1}}, truncate_after)


def test_a_restore_to_before_a_rewind_is_found_out(tmp_path: Path) -> None:
    """The rows are back, and the place is not."""
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 5)
    rewind(table.name, "nightly", BOTH_TO_3, True)
    DeltaTable(f"{tmp_path}/table").restore(1)
    with pytest.raises(TargetError, match=r"was restored.*`starting` .* at .*\"0\": 5") as raised:
        load(table.open(), "nightly", 7)
    # Where the load was, it would land again what is back.
    assert 'to do without it, with `starting` at {"orders": {"0": 5, "1": 5}}' in str(raised.value)


@pytest.mark.slow
def test_a_restore_to_a_rewind_ends_where_that_went(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 5)
    rewind(table.name, "nightly", BOTH_TO_3, True)
    load(table.open(), "nightly", 7)
    DeltaTable(f"{tmp_path}/table").restore(2)
    with pytest.raises(TargetError, match=r"was restored.*`starting` .* at .*\"0\": 3"):
        load(table.open(), "nightly", 9)


@pytest.mark.slow
@pytest.mark.parametrize(("then", "to", "left"), [(3, 0, 5), (7, 1, 3)])
def test_so_is_an_iceberg_table_that_was_rolled_back(
    tmp_path: Path, then: int, to: int, left: int
) -> None:
    table = KINDS["iceberg"](tmp_path)
    load(table.open(), "nightly", 5)
    rewind(table.name, "nightly", BOTH_TO_3, True)
    load(table.open(), "nightly", then)
    owned = OwnedIceberg(table).iceberg()
    snapshots = [each.snapshot_id for each in owned.snapshots()]
    owned.manage_snapshots().rollback_to_snapshot(snapshots[to]).commit()
    refused = rf"rolled back.*`starting` .* at .*\"0\": {left}"
    with pytest.raises(TargetError, match=refused) as raised:
        load(table.open(), "nightly", 9)
    furthest = json.dumps({"orders": dict.fromkeys("01", max(then, left))})
    assert f"to do without it, with `starting` at {furthest}" in str(raised.value)


def test_the_command_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = DATABASES["sqlite"](tmp_path)
    load(table.open(), "nightly", 5)
    arguments = ["load", "--to", table.name, "--name", "nightly", "--rewind", '{"orders":{"1":3}}']
    assert cli.main(arguments) == 1
    assert "2 rows of orders-1" in capsys.readouterr().err
    assert cli.main([*arguments, "--truncate-after", "--option", "failOnDataLoss=false"]) == 0
    said = "Load nightly goes on in orders-1 at 3 (was 5); rows deleted: 2.\n"
    assert capsys.readouterr().out == said
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == "Load nightly is there already; rows deleted: 0.\n"
