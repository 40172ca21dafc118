"""How rows become Parquet files of a stage.

Owns how the files are written: the topics' own key and value as DELTA_LENGTH_BYTE_ARRAY
(lengths apart from bytes: a third faster and a tenth smaller than plain, and a dictionary would
only be built to be thrown away), offset and timestamp as DELTA_BINARY_PACKED; dictionaries for all
other columns, which Parquet gives up where they grow. Statistics for all but headers and bytes of
key and value, so that readers skip row groups by them, and none of floating point numbers: they
leave NaN out, which Spark and DuckDB hold for the greatest number and would then not find. The
file's own metadata has the nulls and bounds of such columns instead, `kafkalog.floats`, for Delta's
log. Spark, Arrow and DuckDB read all of these. Files of Iceberg tables have encodings of Parquet 1
alone: Iceberg's own vectorized reader in Spark has DELTA_BINARY_PACKED since 1.10, and
DELTA_LENGTH_BYTE_ARRAY since 1.11 (apache/iceberg#15362), which fails at pages of nulls alone.

Memory: a row group's rows (ROW_GROUP_BYTES and one Arrow batch), and its encoded and compressed
pages; a row group is written to each partition that it has rows of, so that many partitions take no
more, but make small row groups. Sorted, SORTED_BYTES twice instead: a file is sorted as a whole.

File names end in an id of the attempt, so a retried or speculative task never writes a name that
another wrote; what no task reports is never published. A file gets its staged name when it is
complete and synced. One thread for each call; runs in Spark's Python workers. Never commits, never
imports Spark.
"""

import json
import math
import uuid
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.rows.layout import (
    PLAIN,
    Layout,
    check_partition,
    directory,
    partitions,
)
from pyspark_kafkalog.warehouse.rows.row_types import fitted, refuse_nul, storable
from pyspark_kafkalog.warehouse.targets.storage import staged_name
from pyspark_kafkalog.warehouse.targets.storage_by_path import open_stage

ROW_GROUP_BYTES = 32 * 1024 * 1024
ROW_GROUP_ROWS = 1_000_000
SORTED_BYTES = 128 * 1024 * 1024
SORTED_ROWS = 4_000_000
"""What is sorted is sorted in memory: a file holds no more of it."""

FIELD_ID = b"PARQUET:field_id"
"""In a field's metadata, where the files are of an Iceberg table: its id, by Arrow's convention."""

MOST_OPEN_FILES = 64
"""A task whose rows go to more partitions closes the file that it wrote to longest ago."""


_BATCHES_COPIED_TOGETHER = 4
# Columns of topics whose values do not repeat; what is called so and has another type is none.
_ENCODINGS = {
    ("key", pa.binary()): "DELTA_LENGTH_BYTE_ARRAY",
    ("value", pa.binary()): "DELTA_LENGTH_BYTE_ARRAY",
    ("value", pa.string()): "DELTA_LENGTH_BYTE_ARRAY",
    ("offset", pa.int64()): "DELTA_BINARY_PACKED",
    ("timestamp", pa.timestamp("us", "UTC")): "DELTA_BINARY_PACKED",
}
_WITHOUT_STATISTICS = ("key", "value")
_FLOATS = "kafkalog.floats"


def write_files(
    stage: Stage, label: str, batches: Iterable[pa.RecordBatch], layout: Layout = PLAIN
) -> Iterator[DataFile]:
    """Writes rows with the columns of `stage.schema` into as many files as they take.

    Yields a file when it is complete and on disk; no file for no rows. `label`, part of the files'
    names, tells a person where the rows are from. Partitions are those of the stage, not of
    `layout`.
    """
    files = _OpenFiles(stage, label, layout)
    try:
        for table in _gathered(stage, batches, *_most_together(layout)):
            for partition, rows in _partitions(table, stage):
                yield from files.write(partition, rows)
                # Else this row group would stay in memory while the next one is gathered.
                del rows
            del table
        yield from files.complete()
    finally:
        files.close()


def float_statistics(
    footer: pq.FileMetaData,
) -> Mapping[str, tuple[int, tuple[float, float] | None]]:
    """How many nulls a file's columns of floating point numbers have, but for nested ones, and the
    least and greatest values; None for those of a column that has a NaN or an infinity."""
    known = json.loads((footer.metadata or {}).get(_FLOATS.encode(), b"{}"))
    return {name: (nulls, tuple(both) if both else None) for name, (nulls, both) in known.items()}


def _most_together(layout: Layout) -> tuple[int, int]:
    """How many bytes and rows are gathered before they are written."""
    if layout.sort_by:
        return min(SORTED_BYTES, layout.file_bytes), SORTED_ROWS
    return min(ROW_GROUP_BYTES, layout.file_bytes), ROW_GROUP_ROWS


def _partitions(table: pa.Table, stage: Stage) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    if stage.partitioning is None:
        return iter([((), table)])
    return partitions(table, stage.partitioning.fields, stage.partitioning.in_files)


def _gathered(
    stage: Stage, batches: Iterable[pa.RecordBatch], most_bytes: int, most_rows: int
) -> Iterator[pa.Table]:
    """Gathers batches into tables of about `most_bytes`, at most `most_rows`.

    A few batches at a time are copied together: each comes with room for more rows than it has,
    and a row group full of such rooms would take several times its size.
    """
    joined: list[pa.Table] = []
    loose: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    # Field ids are the files' alone.
    schema = storable(stage.schema)
    for unfitted in batches:
        batch = fitted(unfitted, schema)
        if not stage.takes_nul:
            refuse_nul(batch)
        if rows and rows + batch.num_rows > most_rows:
            yield pa.concat_tables([*joined, pa.Table.from_batches(loose, schema)])
            joined, loose, rows, size_bytes = [], [], 0, 0
        loose.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if size_bytes >= most_bytes:
            yield pa.concat_tables([*joined, pa.Table.from_batches(loose, schema)])
            joined, loose, rows, size_bytes = [], [], 0, 0
        elif len(loose) == _BATCHES_COPIED_TOGETHER:
            joined.append(pa.Table.from_batches(loose, schema).combine_chunks())
            loose = []
    if rows:
        yield pa.concat_tables([*joined, pa.Table.from_batches(loose, schema)])


class _OpenFiles:
    """The files that one task is writing: one for each partition, MOST_OPEN_FILES at a time."""

    def __init__(self, stage: Stage, label: str, layout: Layout) -> None:
        self._stage = stage
        self._label = label
        self._layout = layout
        self._left_out = _left_out(stage)
        fields = [field for field in stage.schema if field.name not in self._left_out]
        self._schema = pa.schema(fields)
        self._options = _writer_options(self._schema, layout.compression)
        self._attempt = uuid.uuid4().hex[:16]
        self._count = 0
        self._open: OrderedDict[tuple[str | None, ...], _StagedFile] = OrderedDict()

    def write(self, partition: tuple[str | None, ...], rows: pa.Table) -> Iterator[DataFile]:
        """Writes rows of a partition; yields the files that are complete because of it."""
        row_groups = 1
        if self._layout.sort_by:
            # By number: a name may look like a path.
            names = rows.schema.names
            rows = rows.sort_by([(names.index(name), how) for name, how in self._layout.sort_by])
            row_groups = max(1, -(-rows.nbytes // ROW_GROUP_BYTES))
        if self._left_out:
            rows = rows.drop_columns(self._left_out)
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) == MOST_OPEN_FILES:
                yield self._open.popitem(last=False)[1].complete()
            file = self._new_file(partition)
        self._open[partition] = file
        file.write(rows, row_groups)
        # What is sorted is a file's whole content.
        if self._layout.sort_by or file.size_bytes >= self._layout.file_bytes:
            yield self._open.pop(partition).complete()

    def complete(self) -> Iterator[DataFile]:
        while self._open:
            yield self._open.popitem(last=False)[1].complete()

    def close(self) -> None:
        """Drops the files that were not completed."""
        for file in self._open.values():
            file.close()

    def _new_file(self, partition: tuple[str | None, ...]) -> "_StagedFile":
        name = f"part-{self._label}-{self._attempt}-{self._count}.parquet"
        self._count += 1
        partitioning = self._stage.partitioning
        if partitioning is not None:
            check_partition(partitioning, partition)
        if partitioning is not None and partitioning.in_names:
            name = f"{directory(partitioning.fields, partition)}/{name}"
        return _StagedFile(self._stage, name, partition, self._schema, self._options)


def _left_out(stage: Stage) -> list[str]:
    """The columns that the partition of a file says, not the file."""
    if stage.partitioning is None or stage.partitioning.in_files:
        return []
    return [field.column for field in stage.partitioning.fields if field.transform is None]


def _writer_options(schema: pa.Schema, compression: str) -> dict[str, Any]:
    encodings = {
        field.name: "PLAIN" if _is_of_iceberg(field) else encoding
        for field in schema
        if (encoding := _ENCODINGS.get((field.name, field.type)))
    }
    leaves = {field.name: list(_leaves(field.name, field.type)) for field in schema}
    # By paths, which a column a.b and the field b of a column a share.
    floating = {
        path for paths in leaves.values() for path, kind in paths if pa.types.is_floating(kind)
    }
    unmeasured = {
        field.name
        for field in schema
        if (field.name in _WITHOUT_STATISTICS and field.type == pa.binary())
        or (field.name == "headers" and pa.types.is_nested(field.type))
    }
    measured = set(_of_columns(leaves, unmeasured)) - floating
    return {
        "compression": compression,
        "use_dictionary": _of_columns(leaves, {*encodings, "headers"}),
        "column_encoding": encodings,
        "write_statistics": sorted(measured),
    }


def _is_of_iceberg(field: pa.Field) -> bool:
    return FIELD_ID in (field.metadata or {})


def _of_columns(
    leaves: Mapping[str, list[tuple[str, pa.DataType]]], others: Container[str]
) -> list[str]:
    return [path for name, paths in leaves.items() if name not in others for path, _ in paths]


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The names that Parquet gives to the columns of values of a type, and their types."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(f"{path}.{child.name}", child.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


class _StagedFile:
    """One Parquet file being written; removed when writing it fails."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        partition: tuple[str | None, ...],
        schema: pa.Schema,
        options: Mapping[str, Any],
    ) -> None:
        self._name = name
        self._partition = partition
        self._sink = open_stage(stage.path).create(staged_name(name) + stage.suffix)
        self._writer = pq.ParquetWriter(self._sink, schema, **options)
        self._records = 0
        self._floats = {
            field.name: _FloatColumn() for field in schema if pa.types.is_floating(field.type)
        }

    @property
    def size_bytes(self) -> int:
        return self._sink.tell()

    def write(self, table: pa.Table, row_groups: int) -> None:
        self._records += table.num_rows
        self._writer.write_table(table, row_group_size=-(-table.num_rows // row_groups))
        for name, column in self._floats.items():
            column.add(table.column(name))

    def complete(self) -> DataFile:
        """Finishes the file, which then has the staged form of its final name."""
        if self._floats:
            known = {name: column.known() for name, column in self._floats.items()}
            self._writer.add_key_value_metadata({_FLOATS: json.dumps(known)})
        self._writer.close()
        size_bytes = self._sink.tell()
        self._sink.complete()
        return DataFile(self._name, self._records, size_bytes, self._partition)

    def close(self) -> None:
        """Drops the file if it was not completed."""
        if self._sink.closed:
            return
        with suppress(OSError):
            self._writer.close()
        self._sink.drop()


class _FloatColumn:
    """What is known of a column of floating point numbers while it is written."""

    def __init__(self) -> None:
        self._nulls = 0
        self._finite = True
        self._low, self._high = math.inf, -math.inf

    def add(self, column: pa.ChunkedArray) -> None:
        self._nulls += column.null_count
        # Nulls are left out here, and NaN of the bounds.
        self._finite = self._finite and pc.all(pc.is_finite(column)).as_py() is not False
        both = pc.min_max(column).as_py()
        if self._finite and both["min"] is not None:
            # There are two zeros, and some readers tell them apart.
            self._low = min(self._low, both["min"]) or -0.0
            self._high = max(self._high, both["max"]) or 0.0

    def known(self) -> tuple[int, tuple[float, float] | None]:
        bounded = self._finite and self._low <= self._high
        return self._nulls, (self._low, self._high) if bounded else None
