"""A table that lost where a load goes on, and still tells that it was loaded, is no first load."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table as CatalogTable

from pyspark_kafkalog import forget
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    NOWHERE,
    PendingCommit,
)
from pyspark_kafkalog.warehouse.targets.delta import DeltaTarget
from tests.pyspark_kafkalog.warehouse.rows_loader import load, plan, rows, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    DeltaLakeTable,
    IcebergTable,
    ParquetTable,
    S3Table,
    expected_rows,
)
from tests.support.present import present
from tests.support.s3_server import BUCKET


def iceberg(table: IcebergTable) -> CatalogTable:
    return load_catalog("kafkalog", uri=table.uri).load_table("lake.raw.orders")


def unset(table: IcebergTable, name: str) -> None:
    with iceberg(table).transaction() as transaction:
        transaction.remove_properties(f"kafkalog.{name}.offsets")


def test_an_iceberg_property_that_is_gone_is_not_taken_for_a_first_load(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 2)
    unset(table, "nightly")
    for read_only in (False, True):
        with pytest.raises(TargetError, match=r"no property kafkalog\.nightly\.offsets") as raised:
            table.open().position("nightly", read_only)
    # What its snapshots say is what the property was.
    assert '{"orders": {"0": 5, "1": 5}}' in str(raised.value)
    assert "forget" in str(raised.value)
    load(table.open(), "hourly", 4)
    assert table.open().position("daily") == NOWHERE
    offsets = {"kafkalog.nightly.offsets": '{"orders": {"0": 5, "1": 5}}'}
    with iceberg(table).transaction() as transaction:
        transaction.set_properties(offsets)
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7) + expected_rows("hourly", 4)


def test_an_iceberg_property_that_goes_while_rows_land_is_noticed(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    load(table.open(), "nightly", 3)
    target = table.open()
    last, ranges = plan(target, "nightly", 5)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    unset(table, "nightly")
    with pytest.raises(TargetError, match="no property"):
        target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    assert table.staged(stage) == []


def test_an_iceberg_load_whose_place_is_lost_can_be_forgotten(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    load(table.open(), "nightly", 3)
    unset(table, "nightly")
    assert forget(table.name, "nightly")
    assert not forget(table.name, "nightly")
    load(table.open(), "nightly", 3)
    assert table.rows() == expected_rows("nightly", 3) + expected_rows("nightly", 3)


def expire_all_but_the_current_snapshot(table: IcebergTable) -> None:
    found = iceberg(table)
    current = present(found.current_snapshot()).snapshot_id
    older = [one.snapshot_id for one in found.snapshots() if one.snapshot_id != current]
    found.maintenance.expire_snapshots().by_ids(older).commit()


def test_the_advice_for_an_iceberg_property_says_what_snapshots_cannot_say(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    load(table.open(), "nightly", 3)
    target = table.open()
    last = target.position("nightly")
    stage, piece = target.stage(row_schema()), OffsetRange("orders", 1, 3, 5)
    target.commit(
        PendingCommit(stage, "nightly", last, [piece], write_rows(stage, "nightly", piece))
    )
    expire_all_but_the_current_snapshot(table)
    unset(table, "nightly")
    with pytest.raises(TargetError, match=r'at least \{"orders": \{"1": 5\}\}') as raised:
        load(table.open(), "nightly", 7)
    assert "every other partition at max(offset) + 1 of its rows" in str(raised.value)


def test_iceberg_files_of_loads_whose_snapshots_have_expired_still_tell_of_them(
    tmp_path: Path,
) -> None:
    table = IcebergTable(tmp_path)
    load(table.open(), "nightly", 3)
    iceberg(table).append(present(table.iceberg()).scan().to_arrow().slice(0, 0))
    expire_all_but_the_current_snapshot(table)
    unset(table, "nightly")
    for read_only in (False, True):
        with pytest.raises(TargetError, match=r"files of loads.*max\(offset\) \+ 1") as raised:
            table.open().position("nightly", read_only)
    assert "at least" not in str(raised.value)
    assert forget(table.name, "nightly")
    assert not forget(table.name, "nightly")
    load(table.open(), "nightly", 2)
    assert table.rows() == expected_rows("nightly", 3) + expected_rows("nightly", 2)


def test_an_iceberg_table_of_others_is_no_loss(tmp_path: Path) -> None:
    catalog = load_catalog("kafkalog", uri=IcebergTable(tmp_path).uri, warehouse=f"{tmp_path}/lake")
    catalog.create_namespace("lake.raw")
    others = catalog.create_table("lake.raw.orders", row_schema())
    piece = OffsetRange("orders", 0, 0, 2)
    others.append(pa.Table.from_batches([rows("others", piece, row_schema())]))
    table = IcebergTable(tmp_path)
    load(table.open(), "nightly", 3)
    assert table.rows() - expected_rows("nightly", 3) == Counter([b"others 0 0", b"others 0 1"])


def test_manifests_of_others_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first load into a busy table of others would be late each time."""
    catalog = load_catalog("kafkalog", uri=IcebergTable(tmp_path).uri, warehouse=f"{tmp_path}/lake")
    catalog.create_namespace("lake.raw")
    others = catalog.create_table("lake.raw.orders", row_schema())
    some = pa.Table.from_batches([rows("others", OffsetRange("orders", 0, 0, 2), row_schema())])
    others.append(some)
    read = []
    read_really = ManifestFile.fetch_manifest_entry

    def note(manifest: ManifestFile, *arguments: Any, **options: Any) -> list[ManifestEntry]:
        read.append(manifest.manifest_path)
        return read_really(manifest, *arguments, **options)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", note)
    target = IcebergTable(tmp_path).open()
    for _ in range(3):
        assert target.position("nightly", read_only=True) == NOWHERE
        others.refresh().append(some)
    assert len(read) == 3
    assert len(set(read)) == 3


def without_transactions(table: DeltaLakeTable) -> None:
    """The log as delta.setTransactionRetentionDuration, or a copy of the table, leaves it."""
    for entry in Path(table.directory, "table/_delta_log").glob("*.json"):
        lines = [line for line in entry.read_text().splitlines() if '"txn"' not in line]
        entry.write_text("\n".join(lines))


@pytest.mark.parametrize("history", ["kept", "cleaned"])
def test_delta_txns_that_are_gone_are_not_taken_for_a_first_load(
    tmp_path: Path, history: str
) -> None:
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 5)
    without_transactions(table)
    if history == "cleaned":
        table.delta().create_checkpoint()
        for entry in Path(table.directory, "table/_delta_log").glob("*.json"):
            if entry.stem < f"{2:020}":
                entry.unlink()
        newest = Path(table.directory, f"table/_delta_log/{2:020}.json")
        lines = newest.read_text().splitlines()
        newest.write_text("\n".join(line for line in lines if '"commitInfo"' not in line))
    for read_only in (False, True):
        with pytest.raises(TargetError, match=r"'nightly'.*forget"):
            table.open().position("nightly", read_only)
    assert forget(table.name, "nightly")
    assert not forget(table.name, "nightly")
    load(table.open(), "nightly", 2)
    assert table.rows() == expected_rows("nightly", 5) + expected_rows("nightly", 2)


def test_delta_txns_of_one_name_that_are_gone_are_noticed_by_the_history(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "hourly", 3)
    load(table.open(), "nightly", 3)
    newest = Path(table.directory, f"table/_delta_log/{2:020}.json")
    lines = [line for line in newest.read_text().splitlines() if '"txn"' not in line]
    newest.write_text("\n".join(lines))
    with pytest.raises(TargetError, match="nightly"):
        load(table.open(), "nightly", 5)
    load(table.open(), "hourly", 5)
    assert table.open().position("daily") == NOWHERE
    assert table.rows() == expected_rows("hourly", 5) + expected_rows("nightly", 3)


def test_delta_txns_of_which_some_are_gone_can_be_forgotten(tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 3)
    entry = Path(table.directory, f"table/_delta_log/{1:020}.json")
    lines = [line for line in entry.read_text().splitlines() if "orders:" not in line]
    entry.write_text("\n".join(lines))
    with pytest.raises(TargetError, match="does not hold all offsets"):
        table.open().position("nightly")
    assert forget(table.name, "nightly")
    assert table.open().position("nightly") == NOWHERE


def test_what_others_do_to_a_delta_table_is_no_loss(tmp_path: Path) -> None:
    """To write over it, to compact it and to clean its log keeps the txns."""
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 3)
    table.delta().optimize.compact()
    assert load(table.open(), "nightly", 3) is None
    load(table.open(), "nightly", 5)
    rows = table.delta().to_pyarrow_table()
    write_deltalake(f"{tmp_path}/table", rows, mode="overwrite", schema_mode="overwrite")
    table.delta().create_checkpoint()
    load(table.open(), "nightly", 7)
    load(table.open(), "new", 2)
    assert table.rows() == expected_rows("nightly", 7) + expected_rows("new", 2)


def test_a_delta_table_of_others_is_no_loss_either(tmp_path: Path) -> None:
    DeltaTable.create(f"{tmp_path}/table", row_schema())
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "nightly", 3)
    assert table.rows() == expected_rows("nightly", 3)


def test_a_first_commit_of_a_rival_since_the_table_was_opened_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaLakeTable(tmp_path)
    load(table.open(), "hourly", 3)
    target = table.open()
    open_really = DeltaTarget._table

    def open_and_be_late(self: DeltaTarget) -> DeltaTable | None:
        opened = open_really(self)
        monkeypatch.undo()
        load(table.open(), "nightly", 3)
        return opened

    monkeypatch.setattr(DeltaTarget, "_table", open_and_be_late)
    assert target.position("nightly") == NOWHERE
    assert table.rows() == expected_rows("hourly", 3) + expected_rows("nightly", 3)


def lose_commits(table: ParquetTable | S3Table, first: int, last: int) -> None:
    for number in range(first, last + 1):
        name = f"_kafkalog/commits/{number:020}.json"
        if isinstance(table, ParquetTable):
            (table.directory / "table" / name).unlink()
        else:
            table.files().delete_file(f"{BUCKET}/{table.prefix}/{name}")


@pytest.mark.parametrize("table_of", [ParquetTable, S3Table])
@pytest.mark.parametrize("kept", [1, 0])
def test_commits_that_are_gone_are_not_loaded_again(
    tmp_path: Path, table_of: type[ParquetTable] | type[S3Table], kept: int
) -> None:
    table = table_of(tmp_path)
    for until_offset in (2, 4, 6):
        load(table.open(), "nightly", until_offset)
    lose_commits(table, kept + 1, 3)
    for read_only in (False, True):
        with pytest.raises(TargetError, match=f"came to 3, .* {kept or 'none'}"):
            table.open().position("nightly", read_only)
    with pytest.raises(TargetError, match="once came to 3"):
        load(table.open(), "nightly", 6)


@pytest.mark.parametrize("table_of", [ParquetTable, S3Table])
@pytest.mark.parametrize("way", ["forget", "vacuum", "load"])
def test_no_commit_of_others_hides_that_commits_are_gone(
    tmp_path: Path, table_of: type[ParquetTable] | type[S3Table], way: str
) -> None:
    """What follows the newest commit that is left gets the numbers of those that are gone."""
    table = table_of(tmp_path)
    load(table.open(), "hourly", 2)
    for until_offset in (2, 4):
        load(table.open(), "nightly", until_offset)
    target = table.open()
    last, ranges = plan(target, "hourly", 6)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "hourly", piece)]
    lose_commits(table, 2, 3)
    ways: dict[str, Callable[[], object]] = {
        "forget": lambda: forget(table.name, "hourly"),
        "vacuum": lambda: table.open().vacuum(-1, dry_run=False),
        "load": lambda: target.commit(PendingCommit(stage, "hourly", last, ranges, files)),
    }
    # Whoever has seen the newest one asks for it by its name.
    with pytest.raises(TargetError, match=r"once came to 3|3\.json not found"):
        ways[way]()
    with pytest.raises(TargetError, match="once came to 3"):
        load(table.open(), "nightly", 4)


def test_a_copy_of_a_parquet_target_as_it_was_earlier_goes_on(tmp_path: Path) -> None:
    table = ParquetTable(tmp_path)
    load(table.open(), "nightly", 3)
    shutil.copytree(tmp_path / "table", tmp_path / "earlier")
    load(table.open(), "nightly", 5)
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "earlier").rename(tmp_path / "table")
    load(table.open(), "nightly", 7)
    assert table.rows() == expected_rows("nightly", 7)
