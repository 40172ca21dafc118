"""Maintenance of tables: small files become larger ones, and no load is moved, lost or doubled."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.types import IntegerType

from pyspark_kafkalog import cli, maintain
from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import PendingCommit
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.layout import make_layout
from pyspark_kafkalog.warehouse.targets import (
    delta_entry,
    delta_upkeep,
    iceberg_replacement,
    iceberg_transaction,
)
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.upkeep import LiveFile, Upkeep, merges_of
from tests.property.load_targets import OwnedIceberg
from tests.pyspark_kafkalog.warehouse.deletion_vector import delete_by_vector
from tests.pyspark_kafkalog.warehouse.rows_loader import load, plan, write_rows
from tests.pyspark_kafkalog.warehouse.tables import (
    KINDS,
    DeltaLakeTable,
    IcebergTable,
    Table,
    expected_rows,
)

KB = 1000


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return KINDS[request.param](tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> DeltaLakeTable:
    return DeltaLakeTable(tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> IcebergTable:
    return IcebergTable(tmp_path)


def live_files(table: Table) -> list[Path]:
    """The data files of the newest state."""
    if isinstance(table, DeltaLakeTable):
        return sorted(
            table.directory / "table" / path
            for path in table.delta().get_add_actions()["path"].to_pylist()
        )
    assert isinstance(table, IcebergTable)
    files = table.iceberg().scan().plan_files()
    return sorted(Path(task.file.file_path.removeprefix("file://")) for task in files)


def load_directories(table: Table) -> list[Path]:
    return sorted(table.directory.rglob("load-*"))


def delete_rows(table: Table, where: str) -> None:
    if isinstance(table, DeltaLakeTable):
        table.delta().delete(where)
    else:
        OwnedIceberg(table).iceberg().delete(where)


def sorted_rows(delta: DeltaLakeTable, query: str = "SELECT value FROM rows") -> list[Any]:
    """By deltalake's own way, which knows deletion vectors."""
    rows = pa.table(QueryBuilder().register("rows", delta.delta()).execute(query).read_all())
    return sorted(map(str, rows.to_pylist()))


def on_disk(table: Table) -> list[Path]:
    return sorted(path for path in table.directory.rglob("*") if path.is_file())


def load_rows(table: Table, name: str, rows: pa.RecordBatch, partition_by: str = "") -> None:
    """Rows of any columns, as one load of a topic's next offset."""
    target = table.open()
    last = target.position(name)
    start = max(last.offsets.values(), default=0)
    layout = make_layout(partition_by, "", "zstd", 1 << 20)
    stage = target.stage(rows.schema, layout.partition_by, SchemaChange(adds=True))
    files = list(write_files(stage, name, [rows], layout))
    piece = OffsetRange("orders", 0, start, start + rows.num_rows)
    target.commit(PendingCommit(stage, name, last, [piece], files))


def test_small_loads_become_one_file_and_the_next_goes_on(table: Table) -> None:
    for until_offset in range(1, 8):
        load(table.open(), "nightly", until_offset)
    before = table.arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert len(live_files(table)) == 14
    done = maintain(table.name)
    assert (done.compacted_files, done.written_files, done.left) == (14, 1, ())
    [file] = live_files(table)
    assert file.stat().st_size == done.written_bytes < done.compacted_bytes
    after = table.arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert after.equals(before)
    load(table.open(), "nightly", 9)
    assert table.rows() == expected_rows("nightly", 9)
    assert table.offsets("nightly") == {0: 9, 1: 9}


def test_what_is_in_order_is_left_alone(delta: DeltaLakeTable) -> None:
    for until_offset in range(1, 4):
        load(delta.open(), "nightly", until_offset)
    maintain(delta.name)
    version, files = delta.delta().version(), on_disk(delta)
    done = maintain(delta.name)
    assert (done.compacted_files, done.written_files, done.removed) == (0, 0, ())
    assert (delta.delta().version(), on_disk(delta)) == (version, files)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(table: Table) -> None:
    for until_offset in range(1, 4):
        load(table.open(), "nightly", until_offset)
    files = on_disk(table)
    would = maintain(table.name, dry_run=True)
    assert on_disk(table) == files
    done = maintain(table.name)
    assert (would.compacted_files, would.compacted_bytes) == (6, done.compacted_bytes)
    assert would.written_files == done.written_files == 1
    files = on_disk(table)
    would = maintain(table.name, retention_hours=0, force=True, dry_run=True)
    assert on_disk(table) == files
    assert [path for path in would.removed if path.endswith(".parquet")] == [
        path
        for path in maintain(table.name, retention_hours=0, force=True).removed
        if path.endswith(".parquet")
    ]


@pytest.mark.slow
def test_many_small_loads_reach_the_wanted_size(table: Table) -> None:
    """Each load brings about 150 KB, and every fifth is followed by maintenance."""
    chance = random.Random(7)
    wanted = 1 << 20
    for number in range(40):
        values = [chance.randbytes(1000) for _ in range(150)]
        load_rows(table, "nightly", pa.RecordBatch.from_pydict({"value": values}))
        if number % 5 == 4:
            maintain(table.name, target_file_bytes=wanted)
    sizes = sorted(file.stat().st_size for file in live_files(table))
    large = [size for size in sizes if size >= 0.7 * wanted]
    print(f"\n{len(sizes)} files of 40, {sum(large) / sum(sizes):.0%} in large ones: {sizes}")
    assert len(sizes) <= 10
    assert max(sizes) <= 1.02 * wanted
    assert sum(large) >= 0.8 * sum(sizes)
    assert table.arrow().num_rows == 6000


def test_a_load_that_lands_meanwhile_is_there_once(table: Table) -> None:
    for until_offset in range(1, 4):
        load(table.open(), "nightly", until_offset)
    target = table.open()
    last, ranges = plan(target, "nightly", 7)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    assert maintain(table.name, retention_hours=30 * 24).compacted_files == 6
    target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    assert table.rows() == expected_rows("nightly", 7)
    assert maintain(table.name).compacted_files == 3
    assert table.rows() == expected_rows("nightly", 7)


def test_files_that_a_load_has_staged_are_no_orphans(table: Table) -> None:
    load(table.open(), "nightly", 3)
    target = table.open()
    last, ranges = plan(target, "nightly", 7)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, "nightly", piece)]
    table.open().upkeep(Upkeep(retention_s=0, forced=True))
    target.commit(PendingCommit(stage, "nightly", last, ranges, files))
    assert table.rows() == expected_rows("nightly", 7)


def before_the_entry(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Has `do` done right before a compaction is published, once."""
    ways: list[tuple[Any, str, Any]] = [
        (delta_upkeep, "write_entry", delta_entry.write_entry),
        (iceberg_replacement, "commit_transaction", iceberg_transaction.commit_transaction),
    ]

    def replaced(publish: Any) -> Any:
        def publishing(*arguments: Any) -> None:
            for module, name, original in ways:
                monkeypatch.setattr(module, name, original)
            do()
            publish(*arguments)

        return publishing

    for module, name, original in ways:
        monkeypatch.setattr(module, name, replaced(original))


def test_a_load_that_commits_first_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for until_offset in range(1, 4):
        load(table.open(), "nightly", until_offset)
    before_the_entry(monkeypatch, lambda: load(table.open(), "nightly", 7))
    assert maintain(table.name).compacted_files == 6
    assert table.rows() == expected_rows("nightly", 7)
    assert len(live_files(table)) == 3


def test_rows_that_an_owner_deletes_meanwhile_do_not_come_back(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for until_offset in range(1, 4):
        load(table.open(), "nightly", until_offset)
    before_the_entry(monkeypatch, lambda: delete_rows(table, "offset = 1 AND partition = 0"))
    done = maintain(table.name)
    assert (done.compacted_files, done.written_files) == (0, 0)
    assert "others altered the table" in done.left[0]
    expected = expected_rows("nightly", 3)
    del expected[b"nightly 0 1"]
    assert table.rows() == expected
    assert maintain(table.name).compacted_files == 5
    assert table.rows() == expected


def test_a_forced_sweep_of_another_takes_what_was_copied_and_nothing_is_published(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for until_offset in range(1, 4):
        load(table.open(), "nightly", until_offset)
    before_the_entry(monkeypatch, lambda: table.open().vacuum(-1, False))
    with pytest.raises(TargetError, match="nothing was published"):
        maintain(table.name)
    assert table.rows() == expected_rows("nightly", 3)
    assert maintain(table.name).compacted_files == 6


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_copying_that_is_cut_short_leaves_nothing(
    table: Table, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    for until_offset in range(1, 4):
        load(table.open(), "nightly", until_offset)
    files = on_disk(table)
    batches = pq.ParquetFile.iter_batches
    read = []

    def read_some(*arguments: Any, **options: Any) -> Any:
        read.append(1)
        if len(read) == 4:
            raise error
        return batches(*arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", read_some)
    with pytest.raises(TargetError if error is OSError else error):
        maintain(table.name)
    assert on_disk(table) == files
    assert len(load_directories(table)) == 3


def test_old_versions_and_log_entries_go_and_the_next_load_goes_on(delta: DeltaLakeTable) -> None:
    for until_offset in range(1, 4):
        load(delta.open(), "nightly", until_offset)
    log = {
        "delta.logRetentionDuration": "interval 0 days",
        "delta.deletedFileRetentionDuration": "interval 0 days",
    }
    delta.delta().alter.set_table_properties(log)
    done = maintain(delta.name)
    assert done.expired >= 4
    assert len([path for path in done.removed if path.endswith(".parquet")]) == 6
    assert list(delta.directory.glob("table/load-*/*")) == live_files(delta)
    load(delta.open(), "nightly", 5)
    assert delta.rows() == expected_rows("nightly", 5)
    maintain(delta.name)
    load(delta.open(), "nightly", 7)
    assert delta.rows() == expected_rows("nightly", 7)
    assert delta.offsets("nightly") == {0: 7, 1: 7}


def test_old_versions_stay_as_long_as_the_table_says(delta: DeltaLakeTable) -> None:
    for until_offset in range(1, 4):
        load(delta.open(), "nightly", until_offset)
    done = maintain(delta.name)
    assert (done.removed, done.expired) == ((), 0)
    assert DeltaTable(f"{delta.directory}/table", version=2).to_pyarrow_table().num_rows == 4
    files = on_disk(delta)
    with pytest.raises(InvalidOptionError, match="deletedFileRetentionDuration"):
        maintain(delta.name, retention_hours=48)
    assert on_disk(delta) == files
    delta.delta().alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 1 days"}
    )
    assert maintain(delta.name, retention_hours=48).removed == ()


def test_a_log_clean_up_that_is_switched_off_is_left_out(delta: DeltaLakeTable) -> None:
    load(delta.open(), "nightly", 1)
    delta.delta().alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 0 days", "delta.enableExpiredLogCleanup": "false"}
    )
    load(delta.open(), "nightly", 3)
    assert maintain(delta.name).expired == 0
    assert (delta.directory / "table/_delta_log" / f"{0:020}.json").exists()


def test_a_restored_table_keeps_what_may_put_it_right(delta: DeltaLakeTable) -> None:
    for until_offset in range(1, 6):
        load(delta.open(), "nightly", until_offset)
    newest = delta.delta().version()
    delta.delta().restore(2)
    for _ in range(2):
        done = maintain(delta.name, retention_hours=0, force=True)
        assert done.removed == ()
        assert done.expired == 0
        assert "load nightly is refused" in done.left[0]
        with pytest.raises(TargetError, match="was restored"):
            load(delta.open(), "nightly", 7)
        assert delta.rows() == expected_rows("nightly", 2)
    delta.delta().restore(newest)
    load(delta.open(), "nightly", 7)
    assert delta.rows() == expected_rows("nightly", 7)


def test_a_table_restored_after_compaction_is_found_out(delta: DeltaLakeTable) -> None:
    for until_offset in range(1, 4):
        load(delta.open(), "nightly", until_offset)
    maintain(delta.name)
    compacted = delta.delta().version()
    load(delta.open(), "nightly", 5)
    maintain(delta.name)
    delta.delta().restore(compacted)
    with pytest.raises(TargetError, match="was restored"):
        load(delta.open(), "nightly", 7)


def test_files_of_several_schemas_become_one(table: Table) -> None:
    load(table.open(), "nightly", 2)
    load(table.open(), "nightly", 4, headers=True, change=SchemaChange(adds=True))
    load(table.open(), "nightly", 6)
    before = table.arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert maintain(table.name).compacted_files == 6
    after = table.arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert after.to_pylist() == before.to_pylist()
    load(table.open(), "nightly", 7, headers=True, change=SchemaChange(adds=True))
    assert table.rows() == expected_rows("nightly", 7)


ODD = pa.RecordBatch.from_pydict(
    {
        "day": pa.array([0, 86_400_000_000, None, 1], pa.timestamp("us", "UTC")),
        "empty": ["", None, "", "x"],
        "text": ["c", "a b/c%=\u00e9", None, "\U0010ffff" * 40],
        "number": [1.5, math.nan, None, -0.0],
        "nested": [
            {"x": math.nan, "y": [7, None]},
            None,
            {"x": None, "y": []},
            {"x": 1.0, "y": None},
        ],
        "when": pa.array([1 << 62, -(1 << 62), None, 0], pa.timestamp("us", "UTC")),
        "flag": [True, None, False, True],
        "bytes": [b"", b"\x00\xff", None, b"z" * 5000],
    }
)


def exact_rows(table: Table) -> list[str]:
    """All values, times as numbers: they may be beyond what there are dates for."""
    found = table.arrow()
    for number, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            found = found.set_column(number, field.name, found.column(number).cast(pa.int64()))
    return sorted(map(repr, found.to_pylist()))


def found_by_number(table: Table, number: float) -> int:
    """How many rows readers find that skip files."""
    if isinstance(table, DeltaLakeTable):
        filters = [("number", "=", number)]
        found = table.delta().to_pyarrow_table(filters=filters, columns=["number"])
        return int(found.num_rows)
    assert isinstance(table, IcebergTable)
    scan = table.iceberg().scan(row_filter=f"number = {number}", selected_fields=("number",))
    return int(scan.to_arrow().num_rows)


@pytest.mark.parametrize("partition_by", ["", "days(day)", "text", "flag", "flag, months(day)"])
def test_odd_values_stay_as_they_are(table: Table, partition_by: str) -> None:
    for _ in range(3):
        load_rows(table, "nightly", ODD, partition_by)
    before = exact_rows(table)
    files = len(live_files(table))
    done = maintain(table.name)
    assert (done.left, done.compacted_files, len(live_files(table))) == ((), files, files // 3)
    assert exact_rows(table) == before
    assert found_by_number(table, 1.5) == 3
    load_rows(table, "nightly", ODD, partition_by)
    assert table.arrow().num_rows == 16


def test_tables_that_cannot_be_written_are_left(delta: DeltaLakeTable) -> None:
    for until_offset in range(1, 4):
        load(delta.open(), "nightly", until_offset)
    log = delta.directory / "table/_delta_log"
    entry = json.loads(
        next(
            line for line in (log / f"{0:020}.json").read_text().splitlines() if "metaData" in line
        )
    )
    entry["metaData"]["configuration"] |= {"delta.columnMapping.mode": "name"}
    (log / f"{4:020}.json").write_text(json.dumps(entry) + "\n")
    done = maintain(delta.name)
    assert done.compacted_files == 0
    assert "has column mapping" in done.left[0]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["ofTomorrow"]}
    (log / f"{5:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    before = on_disk(delta)
    done = maintain(delta.name, retention_hours=0, force=True)
    assert "old versions: the table wants writers to have the features ofTomorrow" in done.left
    assert (done.expired, done.removed, on_disk(delta)) == (0, (), before)


def test_orphans_go_when_they_are_old(delta: DeltaLakeTable) -> None:
    for until_offset in range(1, 4):
        load(delta.open(), "nightly", until_offset)
    orphan = delta.directory / "table" / "part-of-another-engine.parquet"
    orphan.write_bytes(b"PAR1")
    assert maintain(delta.name).removed == ()
    assert orphan.exists()
    assert str(orphan) in maintain(delta.name, retention_hours=0, force=True).removed
    assert not orphan.exists()
    assert delta.rows() == expected_rows("nightly", 3)


def test_rows_that_a_deletion_vector_deletes_stay_so(delta: DeltaLakeTable) -> None:
    for until_offset in (2, 4, 6):
        load(delta.open(), "nightly", until_offset)
    vector = delete_by_vector(delta.delta(), [1])
    left = sorted_rows(delta)
    assert len(left) == 11
    done = maintain(delta.name, retention_hours=0, force=True)
    assert (done.compacted_files, str(vector) in done.removed) == (5, False)
    assert sorted_rows(delta) == left
    load(delta.open(), "nightly", 8)
    maintain(delta.name, retention_hours=0, force=True)
    assert len(sorted_rows(delta)) == 15


@pytest.mark.parametrize("kind", ["parquet", "sqlite"])
def test_other_targets_are_swept_and_say_so(kind: str, tmp_path: Path) -> None:
    table = KINDS[kind](tmp_path)
    load(table.open(), "nightly", 3)
    load(table.open(), "nightly", 5)
    done = maintain(table.name)
    assert (done.compacted_files, done.expired) == (0, 0)
    assert len(done.left) == 1
    assert table.rows() == expected_rows("nightly", 5)


def test_the_command_says_what_was_done(
    delta: DeltaLakeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    for until_offset in range(1, 4):
        load(delta.open(), "nightly", until_offset)
    assert cli.main(["maintain", delta.name, "--dry-run"]) == 0
    assert "would be compacted into 1;" in capsys.readouterr().out
    assert cli.main(["maintain", delta.name, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["compacted_files"], said["written_files"], said["removed"]) == (6, 1, [])
    assert cli.main(["maintain", delta.name, "--retention-hours", "1"]) == 1
    assert "use force" in capsys.readouterr().err
    assert cli.main(["maintain", delta.name, "--target-file-size", "1k"]) == 1
    assert "1 MiB" in capsys.readouterr().err


def sized(*sizes: int, partition: str = "") -> list[LiveFile]:
    return [
        LiveFile(f"{partition}{number}", "", size, (("p", partition),))
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "together"),
    [
        ([10, 10, 10], [3]),  # little altogether
        ([750, 10, 10], [2]),  # the first is large enough
        ([600, 10, 10], []),  # not worth to copy the first
        ([600, 10, 10, 10, 10], [5]),
        ([600, 300], [2]),
        ([400, 400, 400, 400], [2, 2]),
        ([700, 700], []),
        ([10], []),
        ([], []),
    ],
)
def test_files_go_together_where_it_is_worth_it(sizes: list[int], together: list[int]) -> None:
    assert [len(merge.files) for merge in merges_of(sized(*sizes), 1000)] == together


def test_files_of_two_partitions_never_go_together() -> None:
    files = [*sized(1, 1, partition="a"), *sized(1, partition="b")]
    assert [len(merge.files) for merge in merges_of(files, 1000)] == [2]


def test_an_iceberg_table_says_that_only_files_were_replaced(iceberg: IcebergTable) -> None:
    for until_offset in range(1, 4):
        load(iceberg.open(), "nightly", until_offset)
    before = iceberg.iceberg()
    maintain(iceberg.name)
    after = iceberg.iceberg()
    summary = after.current_snapshot().summary
    assert summary.operation.value == "replace"
    assert (summary["added-data-files"], summary["deleted-data-files"]) == ("1", "6")
    assert summary["total-records"] == "6"
    assert after.properties == before.properties
    assert after.schema() == before.schema()
    [task] = after.scan().plan_files()
    assert task.file.record_count == 6
    [footer] = [pq.read_schema(file) for file in live_files(iceberg)]
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in footer]
    assert ids == [field.field_id for field in after.schema().fields]


def test_old_snapshots_go_with_their_files_and_the_next_load_goes_on(
    iceberg: IcebergTable,
) -> None:
    for until_offset in range(1, 4):
        load(iceberg.open(), "nightly", until_offset)
    assert maintain(iceberg.name).expired == 0
    assert maintain(iceberg.name, retention_hours=0, force=True).expired == 3
    [file] = live_files(iceberg)
    assert list(iceberg.directory.rglob("*.parquet")) == [file]
    load(iceberg.open(), "nightly", 5)
    assert iceberg.rows() == expected_rows("nightly", 5)
    for _ in range(3):
        maintain(iceberg.name, retention_hours=0, force=True)
        assert len(list(iceberg.directory.rglob("*.avro"))) <= 8
    load(iceberg.open(), "nightly", 7)
    assert iceberg.rows() == expected_rows("nightly", 7)
    assert iceberg.offsets("nightly") == {0: 7, 1: 7}


def test_snapshots_stay_that_a_branch_a_tag_or_the_table_keeps(iceberg: IcebergTable) -> None:
    for until_offset in range(1, 7):
        load(iceberg.open(), "nightly", until_offset)
    table = OwnedIceberg(iceberg).iceberg()
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    table.manage_snapshots().create_tag(ids[0], "first").create_branch(ids[2], "old").commit()
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.min-snapshots-to-keep": "2"})
    with pytest.raises(InvalidOptionError, match="max-snapshot-age-ms"):
        maintain(iceberg.name, retention_hours=48, compact=False)
    assert maintain(iceberg.name, retention_hours=0, force=True, compact=False).expired == 1
    kept = {snapshot.snapshot_id for snapshot in iceberg.iceberg().snapshots()}
    assert kept.issuperset({ids[0], ids[1], ids[2], ids[4], ids[5]})
    assert ids[3] not in kept
    for snapshot_id, rows in zip(ids, (2, 4, 6, None, 10, 12), strict=True):
        if rows is not None:
            scan = iceberg.iceberg().scan(snapshot_id=snapshot_id)
            assert scan.to_arrow().num_rows == rows


def test_nothing_goes_where_the_table_says_so(iceberg: IcebergTable) -> None:
    for until_offset in range(1, 4):
        load(iceberg.open(), "nightly", until_offset)
    with OwnedIceberg(iceberg).iceberg().transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    write_rows(iceberg.open().stage(row_schema()), "dead", OffsetRange("orders", 0, 4, 5))
    done = maintain(iceberg.name, retention_hours=0, force=True, compact=False)
    assert (done.expired, done.removed) == (0, ())
    assert "gc.enabled" in done.left[0]


def test_a_table_that_was_rolled_back_keeps_what_may_put_it_right(iceberg: IcebergTable) -> None:
    for until_offset in range(1, 6):
        load(iceberg.open(), "nightly", until_offset)
    ids = [snapshot.snapshot_id for snapshot in iceberg.iceberg().snapshots()]
    OwnedIceberg(iceberg).iceberg().manage_snapshots().set_current_snapshot(ids[1]).commit()
    for _ in range(2):
        done = maintain(iceberg.name, retention_hours=0, force=True)
        assert (done.expired, done.removed) == (0, ())
        assert "load nightly is refused" in done.left[0]
        with pytest.raises(TargetError, match="was rolled back"):
            load(iceberg.open(), "nightly", 7)
    assert iceberg.rows() == expected_rows("nightly", 2)
    OwnedIceberg(iceberg).iceberg().manage_snapshots().set_current_snapshot(ids[-1]).commit()
    load(iceberg.open(), "nightly", 7)
    assert iceberg.rows() == expected_rows("nightly", 7)


def test_a_column_that_was_renamed_or_made_anew_is_told_by_its_id(iceberg: IcebergTable) -> None:
    for until_offset in range(1, 3):
        load(iceberg.open(), "nightly", until_offset)
    with OwnedIceberg(iceberg).iceberg().update_schema() as update:
        update.rename_column("key", "label")
        update.delete_column("timestampType")
    with OwnedIceberg(iceberg).iceberg().update_schema() as update:
        update.add_column("timestampType", IntegerType())
    rows = OwnedIceberg(iceberg).iceberg().scan().to_arrow().to_pylist()
    assert maintain(iceberg.name).compacted_files == 4
    found = OwnedIceberg(iceberg).iceberg().scan().to_arrow().to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, rows))


def test_a_load_that_waits_before_its_swap_does_not_lose_its_manifests(
    iceberg: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named by nothing yet, and a forced sweep asks for no age. No snapshot may expire:
    to take them is the only change."""
    load(iceberg.open(), "nightly", 3)
    with OwnedIceberg(iceberg).iceberg().transaction() as transaction:
        transaction.set_properties({"history.expire.min-snapshots-to-keep": "9"})
    target: Any = iceberg.open()
    catalog = target._catalog_of_target()
    swap = catalog.commit_table

    def swapping(*arguments: Any) -> Any:
        monkeypatch.setattr(catalog, "commit_table", swap)
        done = iceberg.open().upkeep(Upkeep(retention_s=0, forced=True, compacts=False))
        assert (done.expired, len(done.removed)) == (0, 2)
        return swap(*arguments)

    monkeypatch.setattr(catalog, "commit_table", swapping)
    load(target, "nightly", 7)
    assert iceberg.rows() == expected_rows("nightly", 7)
    assert iceberg.offsets("nightly") == {0: 7, 1: 7}


@pytest.mark.parametrize(
    "target",
    [
        "parquet:{}/there",
        "delta:{}/there",
        "iceberg:lake.there?uri=sqlite:///{0}/catalog.db&warehouse={0}/lake",
        "sql:sqlite:///{}/there.db#there",
    ],
)
def test_a_target_that_is_misspelt_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """A cron that does nothing each night is one of whom nobody hears."""
    assert cli.main(["maintain", target.format(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"kafkalog: There is no target {target.partition(':')[0]}:")
    assert said.err.endswith(" check how it is written. The first load into it makes it.\n")
    assert list(tmp_path.iterdir()) == []
