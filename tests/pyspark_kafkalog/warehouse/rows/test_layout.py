"""Partitions, order and size of files: what a load asks for, and what readers find."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import VoidTransform

from pyspark_kafkalog import maintain
from pyspark_kafkalog.errors import (
    InvalidOptionError,
    InvalidRowError,
    MissingExtraError,
    TargetError,
)
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    Commit,
    PendingCommit,
    Stage,
)
from pyspark_kafkalog.warehouse.rows.layout import Layout, Partitioning, check_layout, make_layout
from pyspark_kafkalog.warehouse.targets import staged_files
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from tests.pyspark_kafkalog.warehouse.tables import KINDS, IcebergTable, S3Table, Table
from tests.pyspark_kafkalog.warehouse.upsert_loader import Record, found, upsert
from tests.support.s3_server import BUCKET

NULL = "__HIVE_DEFAULT_PARTITION__"
HOUR_US = 3600 * 1_000_000
ODD = ". %41\n#é\\' "
ROWS = pa.RecordBatch.from_pydict(
    {
        "id": pa.array(range(6), pa.int64()),
        "colour": pa.array(["red", "a/b=c", "red", None, ODD, "red"]),
        "timestamp": pa.array(
            [HOUR_US, 25 * HOUR_US, 2 * HOUR_US, -1, None, 2**62], pa.timestamp("us", "UTC")
        ),
        "loaded": pa.array([1, 2, 1, 1, 1, 1], pa.int32()),
    }
)
DAYS = ["1970-01-01", "1970-01-02", "1970-01-01", "1969-12-31", None, None]
HOURS = ["1970-01-01-01", "1970-01-02-01", "1970-01-01-02", "1969-12-31-23", None, None]
PIECE = OffsetRange("orders", 0, 0, 100)
PARTITIONED = [kind for kind in KINDS if kind in ("parquet", "delta", "iceberg")]


@pytest.fixture(params=PARTITIONED)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return KINDS[request.param](tmp_path)


def layout_of(
    partition_by: Sequence[str] = (),
    sort_by: tuple[()] = (),
    compression: str = "zstd",
    file_bytes: int = 1 << 20,
) -> Layout:
    layout = make_layout(partition_by, sort_by, compression, file_bytes)
    check_layout(layout, ROWS.schema)
    return layout


def load(table: Table, layout: Layout, rows: pa.RecordBatch = ROWS, start: int = 0) -> Commit:
    target = table.open()
    last = target.position("nightly")
    stage = target.stage(rows.schema, layout.partition_by)
    files = list(write_files(stage, "orders", [rows], layout))
    ranges = [OffsetRange("orders", 0, start, start + 100)]
    return target.commit(PendingCommit(stage, "nightly", last, ranges, files))


def hive_rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet directory with the values that its directories say."""
    found = []
    for path in directory.glob("table/**/part-*.parquet"):
        levels = path.parent.relative_to(directory / "table").parts
        said = dict(level.split("=", 1) for level in levels)
        values = {name: unquote(value) for name, value in said.items()}
        table = pq.read_table(path, partitioning=None)
        # Python has no dates for what a producer's clock may count.
        for row in table.drop_columns("timestamp").to_pylist():
            assert not row.keys() & values.keys()
            found.append({**row, **values})
    return sorted(found, key=lambda row: row["id"])


def test_directories_are_called_as_hive_and_spark_do(tmp_path: Path) -> None:
    layout = layout_of("days(timestamp), hours(timestamp), colour")
    load(KINDS["parquet"](tmp_path), layout)
    null = NULL
    rows = hive_rows(tmp_path)
    assert [row["id"] for row in rows] == list(range(6))
    assert [row["timestamp_day"] for row in rows] == [day or null for day in DAYS]
    assert [row["timestamp_hour"] for row in rows] == [hour or null for hour in HOURS]
    assert [row["colour"] for row in rows] == ["red", "a/b=c", "red", null, ODD, "red"]
    assert (tmp_path / "table/timestamp_day=1970-01-02").is_dir()
    assert list(tmp_path.glob("table/*/*/colour=a%2Fb%3Dc/part-orders-*.parquet"))
    assert list(rows[0]) == ["id", "loaded", "timestamp_day", "timestamp_hour", "colour"]


def test_other_readers_find_hive_partitions(tmp_path: Path) -> None:
    load(KINDS["parquet"](tmp_path), layout_of(["days(timestamp)", "loaded"]))
    files = f"{tmp_path}/table/**/*.parquet"
    query = duckdb.connect().sql(
        f"SELECT id FROM read_parquet('{files}', hive_partitioning=true) "
        "WHERE timestamp_day = '1970-01-01' AND loaded = 1 ORDER BY id"
    )
    assert query.fetchall() == [(0,), (2,)]
    found = ds.dataset(tmp_path / "table", partitioning="hive").to_table(
        filter=ds.field("timestamp_day") == "1970-01-02"
    )
    assert found.column("id").to_pylist() == [1]


def test_delta_partitions_are_in_the_log(tmp_path: Path) -> None:
    load(KINDS["delta"](tmp_path), layout_of("days(timestamp),colour"))
    table = DeltaTable(f"{tmp_path}/table")
    assert table.metadata().partition_columns == ["timestamp_day", "colour"]
    found = table.to_pyarrow_table().sort_by("id").drop_columns("timestamp")
    rows = found.to_pylist()
    assert [row["timestamp_day"] and str(row["timestamp_day"]) for row in rows] == DAYS
    assert [row["colour"] for row in rows] == ["red", "a/b=c", "red", None, ODD, "red"]
    assert len(table.file_uris()) == 5


def test_iceberg_partitions_are_hidden_ones(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    load(table, layout_of(["days(timestamp)", "hours(timestamp)", "colour"]))
    found = table.iceberg()
    spec = [(field.name, str(field.transform)) for field in found.spec().fields]
    assert spec == [("timestamp_day", "day"), ("timestamp_hour", "hour"), ("colour", "identity")]
    assert [field.name for field in found.schema().fields] == ROWS.schema.names
    partitions = Counter(
        tuple(task.file.partition) for task in found.scan().plan_files() for _ in range(1)
    )
    assert partitions == {
        (0, 1, "red"): 1,
        (1, 25, "a/b=c"): 1,
        (0, 2, "red"): 1,
        (-1, -1, None): 1,
        (None, None, ODD): 1,
        (2_932_896, 24 * 2_932_896 + 23, "red"): 1,  # 9999-12-31
    }
    day = found.scan(row_filter="timestamp < '1970-01-02T00:00:00+00:00' and colour = 'red'")
    assert sorted(day.to_arrow().column("id").to_pylist()) == [0, 2]
    assert len(list(day.plan_files())) == 2
    assert found.properties["kafkalog.nightly.offsets"] == '{"orders": {"0": 100}}'


OF_TIME = [f"{transform}(timestamp)" for transform in ("years", "months", "days", "hours")]


@pytest.mark.parametrize("partition_by", ["", *OF_TIME, "bucket(3, timestamp)"])
def test_iceberg_finds_rows_of_any_time(tmp_path: Path, partition_by: str) -> None:
    """Also of those that no calendar has: of a producer that counts microseconds, say."""
    table = IcebergTable(tmp_path)
    times = [-(2**62), -HOUR_US - 1, -1, 0, 1_790_000_000_000_000_000, 2**63 - 1]
    column = pa.array(times, pa.timestamp("us", "UTC"))
    rows = ROWS.set_column(2, ROWS.schema.field(2), column)
    for start in (0, 100):
        load(table, layout_of(partition_by), rows, start)
    for row_filter, ids in (
        ("timestamp >= '2026-01-01T00:00:00+00:00'", [4, 5]),
        ("timestamp < '1970-01-01T00:00:00+00:00'", [0, 1, 2]),
        ("timestamp >= '1970-01-01T00:00:00+00:00'", [3, 4, 5]),
        ("timestamp is null", []),
    ):
        found = table.iceberg().scan(row_filter, selected_fields=("id",)).to_arrow()
        assert sorted(found.column("id").to_pylist()) == sorted(2 * ids), row_filter


NUMBERS = [0, -1, 1, 9, 10, -10, -11, 34]
TIMES = [0, -1, 86_400_000_000, 1_790_000_000_123_456, -62_135_596_800_000_000]
EDGES = {
    "int": pa.array([*NUMBERS, 2**31 - 1, -(2**31) + 99], pa.int32()),
    "long": pa.array([*NUMBERS, 2**63 - 1, -(2**63) + 99], pa.int64()),
    "string": pa.array(["", "iceberg", "a\U0001f600b\U0001f600", "ab", "  x", "\u0301e"]),
    "binary": pa.array([b"", b"\x00\x01\x02\x03", b"\xff" * 33]),
    "date": pa.array([0, -1, 365, 20_000, -719_162, 2_932_896], pa.date32()),
    "time": pa.array(TIMES, pa.timestamp("us", "UTC")),
}
TRANSFORMS = {
    "truncate(1, x)": ("int", "long", "string"),
    "truncate(10, x)": ("int", "long", "string"),
    "bucket(16, x)": tuple(EDGES),
    "bucket(1, x)": ("long",),
    "bucket(2147483647, x)": ("long",),
    **dict.fromkeys(("years(x)", "months(x)", "days(x)"), ("date", "time")),
    "hours(x)": ("time",),
}


@pytest.mark.parametrize(
    ("partition_by", "kind"), [(each, kind) for each in TRANSFORMS for kind in TRANSFORMS[each]]
)
def test_partitions_are_those_of_icebergs_own_transforms(
    tmp_path: Path, partition_by: str, kind: str
) -> None:
    table = IcebergTable(tmp_path)
    values = pa.concat_arrays([EDGES[kind], pa.nulls(1, EDGES[kind].type)])
    rows = pa.RecordBatch.from_pydict({"id": range(len(values)), "x": values})
    load(table, make_layout(partition_by, "", "zstd", 1 << 20), rows)
    [field] = table.iceberg().spec().fields
    theirs = field.transform.transform(table.iceberg().schema().find_type(field.source_id))
    found: dict[int, Any] = {}
    for task in table.iceberg().scan().plan_files():
        ids = pq.read_table(task.file.file_path, columns=["id"]).column("id").to_pylist()
        found |= dict.fromkeys(ids, task.file.partition[0])
    plain = values.cast(pa.int64()) if kind == "time" else values
    plain = plain.cast(pa.int32()) if kind == "date" else plain
    assert found == dict(enumerate(map(theirs, plain.to_pylist())))


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("partition_by", ["truncate(2, colour)", "bucket(4, id)"])
def test_partitions_that_only_iceberg_has_are_refused_elsewhere(
    tmp_path: Path, kind: str, partition_by: str
) -> None:
    with pytest.raises(InvalidOptionError, match="which Iceberg tables alone have"):
        load(KINDS[kind](tmp_path), layout_of(partition_by))
    assert os.listdir(tmp_path) == []


def test_the_extra_that_buckets_need_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mmh3", None)
    stage = IcebergTable(tmp_path).open().stage(ROWS.schema, layout_of("colour").partition_by)
    stage = replace(stage, partitioning=Partitioning(layout_of("bucket(4, id)").partition_by, True))
    with pytest.raises(MissingExtraError, match=r"pip install 'pyspark-kafkalog\[iceberg\]'"):
        list(write_files(stage, "orders", [ROWS]))


def test_several_widths_are_listed_in_one_text(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    load(table, layout_of("bucket(4, id), truncate(2, colour),months(timestamp)"))
    spec = [(field.name, str(field.transform)) for field in table.iceberg().spec().fields]
    assert spec == [
        ("id_bucket", "bucket[4]"),
        ("colour_trunc", "truncate[2]"),
        ("timestamp_month", "month"),
    ]
    for number in range(6):
        found = table.iceberg().scan(row_filter=f"id = {number}").to_arrow()
        assert found.column("id").to_pylist() == [number]


def test_fields_that_iceberg_keeps_of_an_earlier_partitioning_are_null(tmp_path: Path) -> None:
    """Format version 1 has `void` for a field that was dropped."""
    table = IcebergTable(tmp_path)
    catalog = load_catalog("kafkalog", uri=table.uri, warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("lake.raw")
    made = catalog.create_table("lake.raw.orders", ROWS.schema, properties={"format-version": "1"})
    with made.update_spec() as update:
        update.add_field("id", "bucket[4]").add_field("loaded", "identity")
        update.add_field("colour", "truncate[2]")
    for name in ("id_bucket_4", "colour_trunc_2"):
        with made.update_spec() as update:
            update.remove_field(name)
    for _ in range(2):
        load(table, layout_of("loaded"))
    found = [task.file for task in table.iceberg().scan(row_filter="loaded = 2").plan_files()]
    assert [list(file.partition) for file in found] == 2 * [[None, 2, None]]
    assert maintain(table.name).left == ()
    assert table.iceberg().scan(row_filter="loaded = 2").to_arrow()["id"].to_pylist() == [1, 1]
    assert len(list(table.iceberg().scan().plan_files())) == 2


def test_rows_are_upserted_where_no_field_but_earlier_ones_is_left(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    upsert(table.open(), "nightly")
    catalog = load_catalog("kafkalog", uri=table.uri, warehouse=f"file://{tmp_path}/lake")
    with catalog.load_table("lake.raw.orders").update_spec() as update:
        update.add_field("topic", VoidTransform(), "earlier")
    upsert(table.open(), "nightly", Record(b"a", b"1"), Record(b"b", b"2"))
    upsert(table.open(), "nightly", Record(b"a", b"3"))
    assert found(table) == {b"a": b"3", b"b": b"2"}
    files = [task.file for task in table.iceberg().scan().plan_files()]
    assert {len(file.partition) for file in files} == {1}


def test_iceberg_keeps_empty_texts_and_nulls_apart(tmp_path: Path) -> None:
    table = IcebergTable(tmp_path)
    colours = pa.array(["red", "", NULL, None, "", "red"])
    load(table, layout_of("colour"), ROWS.set_column(1, "colour", colours))
    for row_filter, ids in (
        ("colour == ''", [1, 4]),
        (f"colour == '{NULL}'", [2]),
        ("colour is null", [3]),
    ):
        found = table.iceberg().scan(row_filter).to_arrow().column("id").to_pylist()
        assert sorted(found) == ids


@pytest.mark.parametrize(("kind", "text"), [("parquet", ""), ("parquet", NULL), ("delta", "")])
def test_texts_that_would_be_null_as_partitions_are_refused(
    tmp_path: Path, kind: str, text: str
) -> None:
    table = KINDS[kind](tmp_path)
    rows = ROWS.set_column(1, "colour", pa.array(["red", text, "red", None, "red", "red"]))
    with pytest.raises(InvalidRowError, match=r"column colour has .* would be null"):
        load(table, layout_of("colour"), rows)
    assert table.open().position("nightly").offsets == {}
    load(table, layout_of("colour"), ROWS)
    assert table.offsets("nightly") == {0: 100}


def test_a_text_that_parquet_directories_have_no_form_for_is_one_in_delta(tmp_path: Path) -> None:
    table = KINDS["delta"](tmp_path)
    rows = ROWS.set_column(1, "colour", pa.array(["red", NULL, "red", None, "red", "red"]))
    load(table, layout_of("colour"), rows)
    found = table.arrow().sort_by("id").column("colour").to_pylist()
    assert found == ["red", NULL, "red", None, "red", "red"]


def test_directories_that_readers_pass_over_are_refused(tmp_path: Path) -> None:
    rows = ROWS.rename_columns(["id", "_colour", "timestamp", "loaded"])
    with pytest.raises(InvalidOptionError, match="directories whose names begin with _"):
        load(KINDS["parquet"](tmp_path), make_layout("_colour", "", "zstd", 1 << 20), rows)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg", "s3"])
def test_partitions_of_odd_texts_read_back_as_they_were(tmp_path: Path, kind: str) -> None:
    """Slashes, percent signs, line ends, equal signs, dots, long ones, by Arrow's readers."""
    texts = ["a/b", "100%", "%2F", "x\ny", "k=v", ".", "..", "é" * 30, "{a}*?", " x ", "null", "~"]
    rows = pa.record_batch({"id": pa.array(range(len(texts))), "colour": pa.array(texts)})
    table = KINDS[kind](tmp_path)
    layout = make_layout("colour", "", "zstd", 1 << 20)
    load(table, layout, rows)
    if kind == "parquet":
        found = ds.dataset(tmp_path / "table", partitioning="hive").to_table()
    elif isinstance(table, S3Table):
        place = f"{BUCKET}/{table.prefix}"
        found = ds.dataset(place, filesystem=table.files(), partitioning="hive").to_table()
    else:
        found = table.arrow()
    assert found.sort_by("id").column("colour").to_pylist() == texts


@pytest.mark.parametrize(
    "partition_by", [["id"], ["loaded", "colour"], *([each] for each in OF_TIME)]
)
def test_every_row_is_in_one_partition(table: Table, partition_by: list[str]) -> None:
    load(table, layout_of(partition_by))
    load(table, layout_of(partition_by), start=100)
    if table.name.startswith("parquet"):
        ids = [row["id"] for row in hive_rows(table.directory)]
    else:
        ids = table.arrow().column("id").to_pylist()
    assert Counter(int(n) for n in ids) == Counter(dict.fromkeys(range(6), 2))
    assert table.offsets("nightly") == {0: 200}


def test_a_commit_without_rows_keeps_a_partitioned_table(table: Table) -> None:
    layout = layout_of("days(timestamp)")
    load(table, layout)
    load(table, layout, ROWS.slice(0, 0), start=100)
    load(table, layout, start=200)
    assert table.offsets("nightly") == {0: 300}


def test_a_table_that_is_partitioned_in_another_way_is_refused(table: Table) -> None:
    load(table, layout_of("days(timestamp)"))
    for other in ("", "hours(timestamp)", "colour", "days(timestamp),colour"):
        with pytest.raises(TargetError, match=r"partitioned by .*, not by"):
            load(table, layout_of(other), start=100)
    assert table.offsets("nightly") == {0: 100}


def test_databases_are_not_partitioned(tmp_path: Path) -> None:
    target = KINDS["sqlite"](tmp_path).open()
    with pytest.raises(InvalidOptionError, match="partition_by has no meaning for sql:"):
        target.stage(ROWS.schema, layout_of("colour").partition_by)


@pytest.mark.parametrize(
    ("partition_by", "said"),
    [
        ("nope", "partition_by names nope, and rows have the columns id, colour"),
        ("timestamp", "partition_by names timestamp, and column timestamp is timestamp"),
        ("days(colour)", r"names days\(colour\), and column colour is string"),
        ("hours(id)", r"names hours\(id\)"),
        ("colour,colour", "names a column twice"),
        ("days(timestamp),days(timestamp)", "twice"),
        ("weeks(timestamp)", r"partition_by names weeks\(timestamp\)"),
        ("months(id)", r"names months\(id\), and column id is int64"),
        ("truncate(2, timestamp)", r"names truncate\(2, timestamp\)"),
        ("truncate(0, id)", r"names truncate\(0, id\), and rows have"),
        ("bucket(colour)", r"names bucket\(colour\), and rows have"),
    ],
)
def test_partitions_that_cannot_be_are_refused(partition_by: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        layout_of(partition_by)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sort_by": "nope"}, "sort_by names nope"),
        ({"compression": "brotli"}, "write one of zstd, snappy, gzip, lz4, none"),
        ({"file_bytes": 1000}, r"give 1048576 \(1 MiB\) to"),
        ({"file_bytes": (4 << 30) + 1}, r"to 4294967296 \(4 GiB\)"),
    ],
)
def test_layouts_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        layout_of(**options)


def test_a_partition_needs_a_value_that_a_directory_can_be_called(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"colour": ["x" * 201], "id": [1]})
    stage = KINDS["parquet"](tmp_path).open().stage(rows.schema, layout_of("colour").partition_by)
    with pytest.raises(InvalidRowError, match="column colour has a value of 201 characters"):
        list(write_files(stage, "orders", [rows]))
    assert os.listdir(stage.path) == []


# Beyond the years 1 to 9999, for some of which Arrow has no text.
ABSURD_DAYS = [2**31 - 1, 2_932_897, -719_163, -719_529, -(2**31)]


def days(numbers: list[int]) -> pa.RecordBatch:
    columns = {"day": pa.array(numbers, pa.date32()), "id": range(len(numbers))}
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("day", ABSURD_DAYS)
def test_a_day_that_no_calendar_has_is_no_partition(table: Table, day: int) -> None:
    """In a directory's name, a text that is no date would make texts of a whole column."""
    rows = days([0, day])
    with pytest.raises(InvalidRowError, match=r"column day has a day beyond .* days\(day\)"):
        load(table, make_layout("day", (), "zstd", 1 << 20), rows)


@pytest.mark.parametrize("transform", ["days", "months", "years"])
def test_days_that_no_calendar_has_are_in_the_partition_of_null(
    table: Table, transform: str
) -> None:
    rows = days([0, *ABSURD_DAYS, -719_162])
    load(table, make_layout(f"{transform}(day)", (), "zstd", 1 << 20), rows)
    if table.name.startswith("parquet"):
        found = ds.dataset(table.directory / "table", exclude_invalid_files=True).to_table()
    else:
        found = table.arrow()
    assert sorted(found.column("day").cast(pa.int32()).to_pylist()) == sorted(
        [0, *ABSURD_DAYS, -719_162]
    )


def written(directory: Path, batches: list[pa.RecordBatch], layout: Layout) -> list[pq.ParquetFile]:
    stage = Stage("load-1", str(directory), batches[0].schema)
    return [
        pq.ParquetFile(directory / file.name) for file in write_files(stage, "x", batches, layout)
    ]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_compressions(tmp_path: Path, compression: str) -> None:
    [file] = written(tmp_path, [ROWS], layout_of(compression=compression))
    found = file.metadata.row_group(0).column(1).compression.lower()
    assert found == {"none": "uncompressed"}.get(compression, compression)
    path = tmp_path / os.listdir(tmp_path)[0]
    assert duckdb.connect().read_parquet(str(path)).count("*").fetchall() == [(6,)]


def test_every_file_is_sorted_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_files, "SORTED_BYTES", 8_000)
    monkeypatch.setattr(staged_files, "ROW_GROUP_BYTES", 4_000)
    batches = [
        pa.RecordBatch.from_pydict({"n": [(7 * i) % 100, None], "s": ["x" * 9, f"{i:09}"]})
        for i in range(700)
    ]
    files = written(tmp_path, batches, Layout(sort_by=(("n", "descending"), ("s", "ascending"))))
    assert len(files) > 2
    rows: list[tuple[Any, ...]] = []
    for file in files:
        assert file.num_row_groups > 1
        table = file.read()
        found = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        assert found == sorted(found, key=lambda row: (row[0] is None, -(row[0] or 0), row[1]))
        rows += found
    before = [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]
    assert Counter(rows) == Counter(before)
    assert make_layout((), "n desc, s", "zstd", 1 << 20).sort_by == (
        ("n", "descending"),
        ("s", "ascending"),
    )


def test_files_end_near_the_size_that_was_asked_for(tmp_path: Path) -> None:
    batches = [
        pa.RecordBatch.from_pydict({"value": [os.urandom(1000) for _ in range(500)]})
        for _ in range(10)
    ]
    files = written(tmp_path, batches, layout_of(file_bytes=1 << 20))
    sizes = sorted(path.stat().st_size for path in tmp_path.iterdir())
    assert len(files) == 4
    assert all(size < 1.6 * (1 << 20) for size in sizes)


def test_a_task_keeps_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that it writes to costs memory, however many partitions rows go to."""
    monkeypatch.setattr(staged_files, "MOST_OPEN_FILES", 3)
    monkeypatch.setattr(staged_files, "ROW_GROUP_ROWS", 10)
    most = []

    def batches() -> Iterator[Any]:
        for start in range(0, 100, 10):
            yield pa.RecordBatch.from_pydict({"p": [n % 7 for n in range(10)], "n": [start] * 10})
            most.append(sum(name.endswith(".writing") for name in os.listdir(stage.path)))

    layout = make_layout("p", (), "zstd", 1 << 20)
    target = KINDS["parquet"](tmp_path).open()
    stage = target.stage(pa.schema({"p": pa.int64(), "n": pa.int64()}), layout.partition_by)
    files = list(write_files(stage, "x", batches(), layout))
    assert max(most) == 3
    assert sum(file.records for file in files) == 100
    assert len({file.name for file in files}) == len(files)
