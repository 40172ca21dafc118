"""The files that a task writes: their rows, names, limits, and who can read them."""

import os
import pickle
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source.options import SourceOptions, batch_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse import landing
from pyspark_kafkalog.warehouse.commit import (
    DataFile,
    Stage,
)
from pyspark_kafkalog.warehouse.landing import (
    Landed,
    Landing,
    Reading,
    land,
    range_label,
)
from pyspark_kafkalog.warehouse.progress import passed_in
from pyspark_kafkalog.warehouse.rows.layout import PLAIN, Layout
from pyspark_kafkalog.warehouse.rows.values import Values
from pyspark_kafkalog.warehouse.targets import staged_files
from pyspark_kafkalog.warehouse.targets.staged_files import write_files

WITH_HEADERS = (*DEFAULT_COLUMNS, "headers")


def rows(start: int, until: int, topic: str = "orders", size_bytes: int = 20) -> pa.RecordBatch:
    """Rows with a null now and then in each column that can have one."""
    offsets = range(start, until)
    return pa.RecordBatch.from_pydict(
        {
            "key": [None if offset % 3 == 0 else b"key %d" % offset for offset in offsets],
            "value": [
                None if offset % 7 == 6 else b"%0*d" % (size_bytes, offset) for offset in offsets
            ],
            "topic": [topic] * len(offsets),
            "partition": [3] * len(offsets),
            "offset": list(offsets),
            "timestamp": [1_700_000_000_000_000 + 1000 * offset for offset in offsets],
            "timestampType": [0] * len(offsets),
            "headers": [
                None if offset % 2 else [{"key": "trace", "value": b"%d" % offset}]
                for offset in offsets
            ],
        },
        row_schema(WITH_HEADERS),
    )


def written(
    directory: str,
    until: int,
    batches: list[pa.RecordBatch],
    columns: Sequence[str] = WITH_HEADERS,
    layout: Layout = PLAIN,
) -> list[DataFile]:
    offset_range = OffsetRange(batches[0].column("topic")[0].as_py(), 3, 0, until)
    selected = [batch.select(columns) for batch in batches]
    return list(
        write_files(stage_in(directory, columns), range_label(offset_range), selected, layout)
    )


def stage_in(directory: str, columns: Sequence[str] = WITH_HEADERS) -> Stage:
    return Stage("load-1", directory, row_schema(columns), ".staged")


def a_landing(directory: str, topic_ids: Mapping[str, UUID] | None = None) -> Landing:
    options = batch_options({"kafka.bootstrap.servers": "nowhere:1", "subscribe": "orders"})
    return Landing(Reading(options, WITH_HEADERS, topic_ids or {}), stage_in(directory))


def staged(directory: str, file: DataFile) -> str:
    return os.path.join(directory, f"{file.name}.staged")


def test_what_is_read_back_is_what_was_written(tmp_path: Path) -> None:
    batches = [rows(0, 1000), rows(1000, 1700), rows(1900, 1901)]
    [file] = written(str(tmp_path), 2000, batches)
    path = staged(str(tmp_path), file)
    assert pq.read_table(path) == pa.Table.from_batches(batches)
    assert file == DataFile(file.name, 1701, os.path.getsize(path))
    assert file.name.startswith("part-orders-3-0-2000-")


def test_another_reader_of_parquet_agrees(tmp_path: Path) -> None:
    [file] = written(str(tmp_path), 1000, [rows(0, 1000)])
    relation = duckdb.connect().read_parquet(staged(str(tmp_path), file))
    assert relation.types[relation.columns.index("timestamp")] == "TIMESTAMP WITH TIME ZONE"
    wanted = rows(0, 1000).to_pydict()
    for column in ("key", "value", "offset", "timestampType"):
        assert [row[0] for row in relation.select(f'"{column}"').fetchall()] == wanted[column]


def test_how_the_columns_are_written(tmp_path: Path) -> None:
    [file] = written(str(tmp_path), 1000, [rows(0, 1000)], DEFAULT_COLUMNS)
    group = pq.ParquetFile(staged(str(tmp_path), file)).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(7)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "DELTA_LENGTH_BYTE_ARRAY" in columns["value"].encodings
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert not columns["value"].has_dictionary_page
    assert columns["topic"].has_dictionary_page
    assert columns["value"].statistics is None
    assert (columns["offset"].statistics.min, columns["offset"].statistics.max) == (0, 999)
    assert columns["timestamp"].statistics.has_min_max


def test_row_groups_are_bounded_in_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "ROW_GROUP_ROWS", 250)
    monkeypatch.setattr(staged_files, "ROW_GROUP_BYTES", 20_000)
    small = [rows(start, start + 100) for start in range(0, 1000, 100)]
    large = [rows(start, start + 100, size_bytes=400) for start in range(1000, 1300, 100)]
    [file] = written(str(tmp_path), 1300, small + large)
    metadata = pq.ParquetFile(staged(str(tmp_path), file)).metadata
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert groups == [200] * 5 + [100] * 3


def test_a_row_group_holds_no_more_memory_than_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder's batches keep room for 4 MiB each, however little of it they fill."""
    small, peaks = rows(0, 100).select(DEFAULT_COLUMNS), []

    def batches() -> Iterator[pa.RecordBatch]:
        before = pa.total_allocated_bytes()
        for start in range(0, 10_000, 100):
            room = pa.allocate_buffer(4 << 20)
            memoryview(room).cast("B").cast("q")[:100] = array("q", range(start, start + 100))
            offsets = pa.Array.from_buffers(pa.int64(), 100, [None, room])
            del room
            yield small.set_column(4, small.schema.field("offset"), offsets)
            del offsets
            peaks.append(pa.total_allocated_bytes() - before)

    [file] = write_files(stage_in(str(tmp_path), DEFAULT_COLUMNS), "x", batches())
    assert file.records == 10_000
    assert max(peaks) < 10 * (4 << 20)


def test_a_large_range_becomes_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "ROW_GROUP_ROWS", 100)
    layout = Layout(file_bytes=1)
    batches = [rows(0, 100), rows(150, 200), rows(200, 250), rows(300, 390)]
    files = written(str(tmp_path), 400, batches, layout=layout)
    tables = [pq.read_table(staged(str(tmp_path), file)) for file in files]
    assert [file.records for file in files] == [100, 50, 50, 90]
    assert pa.concat_tables(tables) == pa.Table.from_batches(batches)
    assert {file.name[:18] for file in files} == {"part-orders-3-0-40"}


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    empty = rows(0, 0)
    assert list(write_files(stage_in(str(tmp_path)), "x", [empty])) == []
    assert list(write_files(stage_in(str(tmp_path)), "x", [])) == []
    assert os.listdir(tmp_path) == []


def test_a_topic_name_that_is_no_file_name_is_quoted_and_cut(tmp_path: Path) -> None:
    name = "a/../%" + "x" * 300
    [file] = written(str(tmp_path), 10, [rows(0, 10, topic=name)])
    assert "/" not in file.name
    assert len(file.name) < 230


def test_two_attempts_never_write_the_same_name(tmp_path: Path) -> None:
    [first] = written(str(tmp_path), 10, [rows(0, 10)])
    [second] = written(str(tmp_path), 10, [rows(0, 10)])
    assert first.name != second.name


def test_a_file_that_fails_half_way_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_files, "ROW_GROUP_ROWS", 100)

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(0, 100)
        yield rows(100, 200)
        raise ConnectionError("the broker went away")

    with pytest.raises(ConnectionError):
        list(write_files(stage_in(str(tmp_path)), "x", broken()))
    assert os.listdir(tmp_path) == []


def test_progress_is_told_on_the_way_and_counts_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing, "_OFFSETS_BETWEEN_MARKS", 100)
    told: list[Any] = []

    def read(
        _cluster: Cluster,
        _options: SourceOptions,
        columns: Sequence[str],
        piece: OffsetRange,
        topic_id: UUID | None,
        on_gap: Callable[[OffsetRange], None] | None,
        leader_epoch: int | None,
    ) -> Iterator[Any]:
        for start in (0, 100, 250):
            yield rows(start, start + 100).select(columns)
            told.extend(passed.offsets for passed in passed_in(str(tmp_path)))

    monkeypatch.setattr(landing, "read_range", read)
    [landed] = land(a_landing(str(tmp_path)), [OffsetRange("orders", 3, 0, 400)])
    assert (landed.records, landed.first_offset, landed.last_offset) == (300, 0, 349)
    assert told == [100, 200, 350]
    [passed] = passed_in(str(tmp_path))
    assert (passed.offsets, passed.records) == (400, 300)
    assert passed.bytes == sum(rows(start, start + 100).nbytes for start in (0, 100, 250))
    assert list(passed_in(str(tmp_path / "gone"))) == []


def test_ranges_land_one_after_the_other_up_to_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [OffsetRange("orders", 3, 0, 10), OffsetRange("orders", 3, 10, 30)]

    def read(
        _cluster: Cluster,
        _options: SourceOptions,
        columns: Sequence[str],
        piece: OffsetRange,
        topic_id: UUID | None,
        on_gap: Callable[[OffsetRange], None] | None,
        leader_epoch: int | None,
    ) -> Iterator[Any]:
        assert topic_id == UUID(int=7)
        if piece == pieces[1]:
            raise DataLossError("offsets are gone")
        yield rows(0, 10).select(columns)

    monkeypatch.setattr(landing, "read_range", read)
    results = land(a_landing(str(tmp_path), {"orders": UUID(int=7)}), pieces)
    landed = next(results)
    assert landed.offset_range == pieces[0]
    assert [file.records for file in landed.files] == [10]
    assert Landed.from_json(landed.to_json()) == landed
    with pytest.raises(DataLossError):
        next(results)


def test_a_landing_travels_to_tasks(tmp_path: Path) -> None:
    landing = a_landing(str(tmp_path))
    assert pickle.loads(pickle.dumps(landing)) == landing


@pytest.mark.parametrize(("on_error", "expected"), [("fail", 10), ("null", 10), ("deadletter", 8)])
def test_bad_records_are_rows_unless_they_become_dead_letters(on_error: str, expected: int) -> None:
    options = batch_options({"kafka.bootstrap.servers": "unused:1", "subscribe": "orders"})
    values = Values(open_decoder("string"), on_error)
    landed = Landed(OffsetRange("orders", 0, 0, 10), records=10, bad_records=2)
    assert Reading(options, DEFAULT_COLUMNS, values=values).rows_of(landed) == expected
    assert Reading(options, DEFAULT_COLUMNS, transform=lambda rows: rows).rows_of(landed) is None
