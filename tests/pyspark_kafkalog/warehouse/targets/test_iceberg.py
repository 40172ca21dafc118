"""The Iceberg target beyond what every target promises: its commits, and the tables of others."""

import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka.structs import TopicPartition
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table import Table as IcebergCatalogTable
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.types import BinaryType, StringType

from pyspark_kafkalog import forget, maintain
from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.errors import InvalidOptionError, LoadConflictError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    PendingCommit,
)
from pyspark_kafkalog.warehouse.targets import iceberg_rest
from pyspark_kafkalog.warehouse.targets.iceberg import IcebergTarget
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import open_target
from tests.pyspark_kafkalog.warehouse.rows_loader import load, plan, rows, write_rows
from tests.pyspark_kafkalog.warehouse.tables import IcebergTable, expected_rows
from tests.support.present import present

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable(tmp_path)


def catalog_of(table: IcebergTable) -> Catalog:
    warehouse = f"file://{table.directory}/lake"
    return load_catalog("kafkalog", uri=table.uri, warehouse=warehouse)


def iceberg(table: IcebergTable) -> Table:
    return catalog_of(table).load_table("lake.raw.orders")


def test_one_snapshot_and_one_property_hold_files_and_offsets(table: IcebergTable) -> None:
    commit = load(table.open(), "nightly", 7)
    assert commit is not None
    found = iceberg(table)
    snapshot = found.current_snapshot()
    assert present(snapshot).snapshot_id == commit.sequence
    assert present(snapshot).parent_snapshot_id is None
    assert json.loads(found.properties["kafkalog.nightly.offsets"]) == {"orders": {"0": 7, "1": 7}}
    assert json.loads(present(present(present(snapshot).summary)["kafkalog.ranges"])) == [
        ["orders", 0, 0, 7],
        ["orders", 1, 0, 7],
    ]
    assert present(present(snapshot).summary)["added-records"] == "14"
    # What was set for the commit alone is not kept.
    assert not [key for key in found.properties if key.startswith(("commit.", "write.metadata.m"))]


def test_readers_skip_files_by_the_statistics(table: IcebergTable) -> None:
    load(table.open(), "nightly", 5)
    load(table.open(), "nightly", 9)
    scan = iceberg(table).scan("offset >= 5 and partition = 1")
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow().num_rows == 4


def test_files_have_the_field_ids_of_the_table(table: IcebergTable) -> None:
    target = table.open()
    stage = target.stage(row_schema((*DEFAULT_COLUMNS, "headers")))
    [file] = write_rows(stage, "nightly", OffsetRange("orders", 0, 0, 3))
    schema = pq.read_schema(f"{stage.path}/{file.name}")
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    assert ids == {field.name: field.field_id for field in iceberg(table).schema().fields}
    element = schema.field("headers").type.value_field
    assert element.metadata[b"PARQUET:field_id"]
    assert element.type.field("value").metadata[b"PARQUET:field_id"]


def test_loads_say_nothing_about_missing_statistics(
    table: IcebergTable, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load(table.open(), "nightly", 5, headers=True)
    assert caplog.records == []


@pytest.mark.parametrize("time_us", [-(2**62), 2**62])
def test_times_for_which_there_is_no_date_are_kept(table: IcebergTable, time_us: int) -> None:
    target = table.open()
    stage = target.stage(row_schema())
    piece = OffsetRange("orders", 0, 0, 1)
    batch = rows("nightly", piece, stage.schema)
    times = pa.array([time_us], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = batch.set_column(5, "timestamp", times)
    target.commit(
        PendingCommit(
            stage, "nightly", NOWHERE, [piece], list(write_files(stage, "orders", [batch]))
        )
    )
    found = table.arrow().column("timestamp")
    assert found.cast("int64").to_pylist() == [time_us]


def test_offsets_survive_the_expiry_of_snapshots(table: IcebergTable) -> None:
    load(table.open(), "nightly", 3)
    first = present(iceberg(table).current_snapshot()).snapshot_id
    load(table.open(), "hourly", 2)
    iceberg(table).maintenance.expire_snapshots().by_ids([first]).commit()
    assert len(iceberg(table).snapshots()) == 1
    load(table.open(), "nightly", 5)
    assert table.offsets("nightly") == {0: 5, 1: 5}
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 2)


def test_what_others_do_to_the_table_does_not_disturb(table: IcebergTable) -> None:
    load(table.open(), "nightly", 3)
    iceberg(table).delete("offset = 2")
    with iceberg(table).update_schema() as update:
        update.add_column("note", StringType())
        update.move_first("note")
    load(table.open(), "nightly", 5)
    assert table.rows() == expected_rows("nightly", 2) + expected_rows("nightly", 5, start=3)


@pytest.mark.parametrize("kind", [CommitStateUnknownException, ConnectionError])
def test_a_commit_whose_answer_was_lost_is_found(
    table: IcebergTable,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[CommitStateUnknownException] | type[ConnectionError],
) -> None:
    load(table.open(), "nightly", 3)
    commit_really = SqlCatalog.commit_table

    def commit_and_lose_the_answer(*arguments: Any, **options: Any) -> None:
        commit_really(*arguments, **options)
        monkeypatch.undo()
        # Others go on in the meantime.
        load(table.open(), "hourly", 2)
        raise kind("the connection was reset")

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_and_lose_the_answer)
    commit = load(table.open(), "nightly", 5)
    assert commit is not None
    assert (
        present(present(iceberg(table).snapshot_by_id(commit.sequence)).summary)["kafkalog.name"]
        == "nightly"
    )
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("hourly", 2)
    assert table.offsets("nightly") == {0: 5, 1: 5}


def ask_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a gateway between loads and catalog, that asks again and keeps the first answer."""
    commit_really = SqlCatalog.commit_table

    def commit_twice(*arguments: Any, **options: Any) -> CommitTableResponse:
        commit_really(*arguments, **options)
        return commit_really(*arguments, **options)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_twice)


def test_a_commit_that_a_gateway_asks_for_twice_stays_whole(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 3)
    with monkeypatch.context() as patched:
        ask_twice(patched)
        commit = load(table.open(), "nightly", 5)
        assert commit is not None
    assert (
        present(present(iceberg(table).snapshot_by_id(commit.sequence)).summary)["kafkalog.name"]
        == "nightly"
    )
    assert table.rows() == expected_rows("nightly", 5)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)
    assert table.offsets("nightly") == {0: 7, 1: 7}


def test_to_forget_is_told_though_a_gateway_asks_for_it_twice(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 3)
    with monkeypatch.context() as patched:
        ask_twice(patched)
        assert forget(table.name, "nightly")
    assert table.rows() == expected_rows("nightly", 3)
    load(table.open(), "nightly", 2)
    assert table.rows() == expected_rows("nightly", 3) + expected_rows("nightly", 2)


def test_a_commit_that_was_too_late_leaves_no_manifests(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 3)
    commit_really = SqlCatalog.commit_table

    def commit_after_a_rival(*arguments: Any, **options: Any) -> CommitTableResponse:
        monkeypatch.undo()
        load(table.open(), "hourly", 2)
        return commit_really(*arguments, **options)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_a_rival)
    load(table.open(), "nightly", 5)
    found = iceberg(table)
    named = {snapshot.manifest_list for snapshot in found.snapshots()}
    named |= {
        manifest.manifest_path
        for snapshot in found.snapshots()
        for manifest in snapshot.manifests(found.io)
    }
    there = Path(found.location().removeprefix("file://"), "metadata").glob("*.avro")
    assert {f"file://{path}" for path in there} == named


def test_a_commit_that_arrives_after_it_was_given_up_is_noticed_by_the_next(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was lost, and when the loader looked, the catalog had not done it yet."""
    delayed = []
    commit_really = SqlCatalog.commit_table

    def take_and_fail(*arguments: Any, **options: Any) -> None:
        delayed.append(lambda: commit_really(*arguments, **options))
        raise CommitStateUnknownException("gateway timeout")

    load(table.open(), "nightly", 3)
    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", take_and_fail)
        with pytest.raises(TargetError, match="run the load again is safe"):
            load(table.open(), "nightly", 5)

    def commit_after_the_delayed_one(*arguments: Any, **options: Any) -> CommitTableResponse:
        monkeypatch.undo()
        delayed.pop()()
        return commit_really(*arguments, **options)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_the_delayed_one)
    with pytest.raises(LoadConflictError, match="orders-0 from 3 to 5"):
        load(table.open(), "nightly", 5)
    assert table.rows() == expected_rows("nightly", 5)


def test_a_rival_between_the_comparison_and_the_commit_is_noticed(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg's own retries would land the files of a stale commit."""
    rivals = iter(["hourly", "nightly"])
    commit_really = SqlCatalog.commit_table

    def commit_after_a_rival(*arguments: Any, **options: Any) -> CommitTableResponse:
        rival = next(rivals, None)
        if rival:
            monkeypatch.setattr(SqlCatalog, "commit_table", commit_really)
            load(table.open(), rival, 2)
            monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_a_rival)
        return commit_really(*arguments, **options)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_a_rival)
    with pytest.raises(LoadConflictError, match="orders-0 from None to 2"):
        load(table.open(), "nightly", 5)
    assert table.rows() == expected_rows("nightly", 2) + expected_rows("hourly", 2)


def test_a_commit_that_fails_though_nobody_else_committed_is_not_tried_for_ever(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise CommitFailedException("no")

    monkeypatch.setattr(SqlCatalog, "commit_table", fail)
    with pytest.raises(TargetError, match="CommitFailedException: no"):
        load(table.open(), "nightly", 5)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (row_schema(DEFAULT_COLUMNS[1:]), "has no column key of type binary"),
        (row_schema().set(4, pa.field("offset", pa.string())), "has no column offset of type"),
        (
            row_schema().append(pa.field("must", pa.string(), nullable=False)),
            "a column must that may not be null",
        ),
    ],
)
def test_tables_that_cannot_take_files_as_they_are_are_refused(
    table: IcebergTable, schema: Any, said: str
) -> None:
    catalog_of(table).create_namespace("lake.raw")
    catalog_of(table).create_table("lake.raw.orders", schema)
    with pytest.raises(TargetError, match=said):
        load(table.open(), "nightly", 2)


def test_partitioned_tables_are_refused(table: IcebergTable) -> None:
    catalog_of(table).create_namespace("lake.raw")
    created = catalog_of(table).create_table("lake.raw.orders", row_schema())
    with created.update_spec() as update:
        update.add_identity("topic")
    with pytest.raises(TargetError, match="is partitioned by"):
        load(table.open(), "nightly", 2)


def partition_anew(found: IcebergCatalogTable) -> None:
    with found.update_spec() as update:
        update.add_identity("partition")


def make_values_anew(found: IcebergCatalogTable) -> None:
    with found.update_schema() as update:
        update.delete_column("value")
    with found.refresh().update_schema() as update:
        update.add_column("value", BinaryType())


def make_keys_texts(found: IcebergCatalogTable) -> None:
    with found.update_schema() as update:
        update.delete_column("key")
    with found.refresh().update_schema() as update:
        update.add_column("key", StringType())


ALTERATIONS = pytest.mark.parametrize(
    ("alter", "said"),
    [
        (partition_anew, r"is partitioned by identity\(partition\)"),
        (make_values_anew, "column value of the Iceberg table .* was made anew"),
        (make_keys_texts, "has no column key of type"),
    ],
)


@ALTERATIONS
def test_a_table_that_was_altered_while_rows_landed_is_refused(
    table: IcebergTable, alter: Callable[[IcebergCatalogTable], None], said: str
) -> None:
    load(table.open(), "nightly", 3)
    target = table.open()
    last, ranges = plan(target, "nightly", 5)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    alter(iceberg(table))
    with pytest.raises(TargetError, match=said):
        target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    assert len(iceberg(table).snapshots()) == 1
    assert table.staged(stage) == []
    assert table.offsets("nightly") == {0: 3, 1: 3}


@ALTERATIONS
def test_a_table_that_is_altered_at_the_commit_is_refused(
    table: IcebergTable,
    monkeypatch: pytest.MonkeyPatch,
    alter: Callable[[IcebergCatalogTable], None],
    said: str,
) -> None:
    load(table.open(), "nightly", 3)
    commit_really = SqlCatalog.commit_table

    def commit_after_an_alteration(*arguments: Any, **options: Any) -> CommitTableResponse:
        monkeypatch.undo()
        alter(iceberg(table))
        return commit_really(*arguments, **options)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_an_alteration)
    with pytest.raises(TargetError, match=said):
        load(table.open(), "nightly", 5)
    assert len(iceberg(table).snapshots()) == 1
    assert table.offsets("nightly") == {0: 3, 1: 3}


def test_a_column_that_is_added_at_the_commit_does_not_disturb(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_really = SqlCatalog.commit_table
    load(table.open(), "nightly", 3, headers=True)

    def commit_after_an_alteration(*arguments: Any, **options: Any) -> CommitTableResponse:
        monkeypatch.undo()
        with iceberg(table).update_schema() as update:
            update.add_column("note", StringType())
        return commit_really(*arguments, **options)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_an_alteration)
    load(table.open(), "nightly", 5, headers=True)
    assert table.rows() == expected_rows("nightly", 5)


def test_headers_do_not_come_into_a_table_without_them(table: IcebergTable) -> None:
    load(table.open(), "nightly", 2)
    with pytest.raises(TargetError, match="no column headers"):
        load(table.open(), "nightly", 4, headers=True)


def test_files_have_the_encodings_that_every_reader_knows(table: IcebergTable) -> None:
    """Those of Parquet 1: Iceberg's own reader in Spark fails at others, up to 1.10 at keys and
    values, and 1.11 where there are only nulls."""
    for until_offset in (2, 4, 6):
        load(table.open(), "nightly", until_offset, headers=True)
    assert maintain(table.name).compacted_files == 6
    load(table.open(), "nightly", 8, headers=True)
    for path in Path(iceberg(table).location().removeprefix("file://")).glob("**/*.parquet"):
        metadata = pq.read_metadata(path)
        for number in range(metadata.num_columns):
            column = metadata.row_group(0).column(number)
            assert {*column.encodings} <= {"PLAIN", "RLE", "RLE_DICTIONARY"}, column


def test_a_location_in_another_store_is_refused(
    tmp_path: Path, table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table.open(), "nightly", 2)
    with iceberg(table).transaction() as transaction:
        transaction.set_properties({"write.data.path": "gs://bucket/data"})
    with pytest.raises(InvalidOptionError, match="gs://bucket/data is in another store than S3"):
        load(table.open(), "nightly", 4)


def test_an_appended_table_is_forgotten_wherever_its_files_are(table: IcebergTable) -> None:
    """Keys that upserts have deleted lie at a table's location: of others nobody looks there."""
    load(table.open(), "nightly", 2)
    metadata = f"{iceberg(table).location()}/metadata"
    with iceberg(table).transaction() as transaction:
        transaction.set_properties({"write.metadata.path": metadata})
    moved = SetLocationUpdate(location="gs://bucket/orders")
    catalog_of(table).commit_table(iceberg(table), (), (moved,))
    assert forget(table.name, "nightly")
    assert table.open().position("nightly", read_only=True).offsets == {}


def test_a_target_without_a_catalog_is_told_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in ("a.b", "a.b?warehouse=/data/lake"):
        target = open_target(f"iceberg:{place}")
        for read_only in (False, True):
            with pytest.raises(InvalidOptionError, match=r"write for example iceberg:a.b\?uri="):
                target.position("nightly", read_only)
    monkeypatch.setenv("PYICEBERG_CATALOG__KAFKALOG__URI", f"sqlite:///{tmp_path}/catalog.db")
    assert open_target("iceberg:a.b").position("nightly").offsets == {}


def test_no_table_is_made_in_a_warehouse_in_another_store(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    target = open_target(f"iceberg:lake.orders?uri={uri}&warehouse=gs://bucket/lake")
    with pytest.raises(InvalidOptionError, match="gs://bucket/lake is in another store than S3"):
        load(target, "nightly", 2)
    assert not load_catalog("kafkalog", uri=uri).namespace_exists("lake")


def test_a_catalog_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_rest, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silence:
        target = open_target(f"iceberg:a.b?uri=http://127.0.0.1:{silence.getsockname()[1]}")
        with pytest.raises(TargetError, match=r"cannot open.*timed out"):
            target.position("nightly")


def test_a_catalog_that_cannot_be_reached_is_explained_without_its_secrets(tmp_path: Path) -> None:
    properties = {
        "uri": f"sqlite:///{tmp_path}/not/there/hunter2.db",
        "warehouse": str(tmp_path),
        "token": "hunter2",
    }
    target = IcebergTarget("a.b", properties)
    with pytest.raises(TargetError, match=r"cannot open the load target iceberg:a\.b") as raised:
        target.position("nightly")
    for text in (str(raised.value), str(target), repr(target)):
        assert "hunter2" not in text


def test_a_warehouse_may_be_a_path_with_spaces(tmp_path: Path) -> None:
    place = f"lake.orders?uri=sqlite+pysqlite:///{tmp_path}/c.db&warehouse={tmp_path}/a%20%26%20b"
    load(open_target(f"iceberg:{place}"), "nightly", 2)
    assert sorted(os.listdir(tmp_path / "a & b" / "lake" / "orders")) == ["data", "metadata"]
    assert open_target(f"iceberg:{place}").position("nightly").offsets == {ORDERS_0: 2, ORDERS_1: 2}
