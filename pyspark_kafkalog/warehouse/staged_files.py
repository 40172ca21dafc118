"""How rows become Parquet files of a stage.

Owns how the files are written: zstd; the topics' own key and value as DELTA_LENGTH_BYTE_ARRAY
(lengths apart from bytes: a third faster and a tenth smaller than plain, and a dictionary would
only be built to be thrown away), offset and timestamp as DELTA_BINARY_PACKED; dictionaries for all
other columns, which Parquet gives up where they grow. Statistics for all but key, value and
headers, so that readers skip row groups by them. Spark, Arrow and DuckDB read all of these.

Memory: a row group's rows (ROW_GROUP_BYTES and one Arrow batch), and its encoded and compressed
pages.

File names end in an id of the attempt, so a retried or speculative task never writes a name that
another wrote; what no task reports is never published. A file gets its staged name when it is
complete and synced. One thread for each call; runs in Spark's Python workers. Never commits, never
imports Spark.
"""

import uuid
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.row_types import fitted, storable
from pyspark_kafkalog.warehouse.storage import open_stage

ROW_GROUP_BYTES = 32 * 1024 * 1024
ROW_GROUP_ROWS = 1_000_000
FILE_BYTES = 512 * 1024 * 1024
"""A file that has reached this size, compressed, is closed and the rows go on in another."""

_BATCHES_COPIED_TOGETHER = 4
# Columns of topics whose values do not repeat; what is called so and has another type is none.
_PLAIN_ENCODINGS = {
    ("key", pa.binary()): "DELTA_LENGTH_BYTE_ARRAY",
    ("value", pa.binary()): "DELTA_LENGTH_BYTE_ARRAY",
    ("value", pa.string()): "DELTA_LENGTH_BYTE_ARRAY",
    ("offset", pa.int64()): "DELTA_BINARY_PACKED",
    ("timestamp", pa.timestamp("us", "UTC")): "DELTA_BINARY_PACKED",
}
_WITHOUT_STATISTICS = ("key", "value", "headers")


def write_files(stage: Stage, label: str, batches: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
    """Writes rows with the columns of `stage.schema` into as many files as they take.

    Yields a file when it is complete and on disk; no file for no rows. `label`, part of the files'
    names, tells a person where the rows are from.
    """
    attempt = uuid.uuid4().hex[:16]
    count = 0
    file: _StagedFile | None = None
    try:
        for table in _row_groups(stage.schema, batches):
            if file is not None and file.size_bytes >= FILE_BYTES:
                yield file.complete()
                file = None
            if file is None:
                file = _StagedFile(stage, f"part-{label}-{attempt}-{count}.parquet")
                count += 1
            file.write(table)
            # Else this row group would stay in memory while the next one is gathered.
            del table
        if file is not None:
            yield file.complete()
    finally:
        if file is not None:
            file.close()


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gathers batches into tables of about ROW_GROUP_BYTES, at most ROW_GROUP_ROWS.

    A few batches at a time are copied together: each comes with room for more rows than it has,
    and a row group full of such rooms would take several times its size.
    """
    joined: list[pa.Table] = []
    loose: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    # Field ids are the files' alone.
    schema = storable(schema)
    for unfitted in batches:
        batch = fitted(unfitted, schema)
        if rows and rows + batch.num_rows > ROW_GROUP_ROWS:
            yield pa.concat_tables([*joined, pa.Table.from_batches(loose, schema)])
            joined, loose, rows, size_bytes = [], [], 0, 0
        loose.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield pa.concat_tables([*joined, pa.Table.from_batches(loose, schema)])
            joined, loose, rows, size_bytes = [], [], 0, 0
        elif len(loose) == _BATCHES_COPIED_TOGETHER:
            joined.append(pa.Table.from_batches(loose, schema).combine_chunks())
            loose = []
    if rows:
        yield pa.concat_tables([*joined, pa.Table.from_batches(loose, schema)])


def _writer_options(schema: pa.Schema) -> dict[str, Any]:
    encodings = {
        field.name: encoding
        for field in schema
        if (encoding := _PLAIN_ENCODINGS.get((field.name, field.type)))
    }
    leaves = {field.name: list(_leaves(field.name, field.type)) for field in schema}
    return {
        "compression": "zstd",
        "use_dictionary": _of_columns(leaves, {*encodings, "headers"}),
        "column_encoding": encodings,
        "write_statistics": _of_columns(leaves, _WITHOUT_STATISTICS),
    }


def _of_columns(leaves: Mapping[str, list[str]], others: Container[str]) -> list[str]:
    return [path for name, paths in leaves.items() if name not in others for path in paths]


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The names that Parquet gives to the columns of values of a type."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(f"{path}.{child.name}", child.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path


class _StagedFile:
    """One Parquet file being written; removed when writing it fails."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._name = name
        self._sink = open_stage(stage.path).create(name + stage.suffix)
        self._writer = pq.ParquetWriter(self._sink, stage.schema, **_writer_options(stage.schema))
        self._records = 0

    @property
    def size_bytes(self) -> int:
        return self._sink.tell()

    def write(self, table: pa.Table) -> None:
        self._records += table.num_rows
        self._writer.write_table(table, row_group_size=table.num_rows)

    def complete(self) -> DataFile:
        """Finishes the file, which then has the staged form of its final name."""
        self._writer.close()
        size_bytes = self._sink.tell()
        self._sink.complete()
        return DataFile(self._name, self._records, size_bytes)

    def close(self) -> None:
        """Drops the file if it was not completed."""
        if self._sink.closed:
            return
        with suppress(OSError):
            self._writer.close()
        self._sink.drop()
