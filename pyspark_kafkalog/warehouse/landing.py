"""What one Spark task of a load does: a range of offsets into staged Parquet files.

Owns how the files are written: zstd; key and value as DELTA_LENGTH_BYTE_ARRAY (lengths apart from
bytes: a third faster and a tenth smaller than plain, and a dictionary would only be built to be
thrown away), offset and timestamp as DELTA_BINARY_PACKED with statistics, so that readers skip row
groups by them; dictionaries for the columns that hardly vary. Spark, Arrow and DuckDB read all of
these. Wire to Parquet happens in this process, no row crosses into the JVM.

Memory of a task: a row group's rows (ROW_GROUP_BYTES and one Arrow batch of 4 MiB), its encoded and
compressed pages, a few batches with room to spare, and the fetches in flight (twice
`max.partition.fetch.bytes` and one decompressed record batch). Measured: 150 MiB beyond the
interpreter with its libraries, 260 MiB with headers.

File names end in an id of the attempt, so a retried or speculative task never writes a name that
another wrote; what no task reports is never published. A file gets its staged name when it is
complete and synced. Runs in Spark's Python workers, one thread. Never commits.
"""

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.reader import read_range
from pyspark_kafkalog.warehouse.commit import DataFile, Stage

ROW_GROUP_BYTES = 32 * 1024 * 1024
ROW_GROUP_ROWS = 1_000_000
FILE_BYTES = 512 * 1024 * 1024
"""A file that has reached this size, compressed, is closed and the range goes on in another."""

PROGRESS_SUFFIX = ".progress"

_WRITER_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["topic", "partition", "timestampType"],
    "column_encoding": {
        "key": "DELTA_LENGTH_BYTE_ARRAY",
        "value": "DELTA_LENGTH_BYTE_ARRAY",
        "offset": "DELTA_BINARY_PACKED",
        "timestamp": "DELTA_BINARY_PACKED",
    },
    "write_statistics": ["topic", "partition", "offset", "timestamp", "timestampType"],
}
_LONGEST_TOPIC_IN_NAME = 120
_BATCHES_COPIED_TOGETHER = 4


@dataclass(frozen=True, slots=True)
class Landing:
    """All that the tasks of a load have in common; travels to them pickled.

    `topic_ids` are those of the topics when the load was planned, where brokers say them.
    """

    options: SourceOptions
    stage: Stage
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Landed:
    """What became of one range: its files in offset order."""

    offset_range: OffsetRange
    files: tuple[DataFile, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Landed":
        fields = json.loads(text)
        return cls(
            OffsetRange(**fields["offset_range"]),
            tuple(DataFile(**file) for file in fields["files"]),
        )


def land(landing: Landing, ranges: Iterable[OffsetRange]) -> Iterator[Landed]:
    """Lands ranges one after the other. Errors are raised: Spark's settings say how often it tries
    a task again."""
    for offset_range in ranges:
        topic_id = landing.topic_ids.get(offset_range.topic)
        columns = landing.stage.schema.names
        batches = read_range(landing.options, columns, offset_range, topic_id)
        files = write_files(landing.stage, offset_range, batches)
        yield Landed(offset_range, tuple(files))


def write_files(
    stage: Stage, offset_range: OffsetRange, batches: Iterable[pa.RecordBatch]
) -> Iterator[DataFile]:
    """Writes the rows of a range, which come in offset order, into as many files as they take.

    Yields a file when it is complete and on disk. No file for no rows. The file names tile the
    range: each goes on where the one before ended, the last one ends where the range does.
    """
    attempt = uuid.uuid4().hex[:16]
    begins_at = offset_range.start_offset
    file: _StagedFile | None = None
    try:
        for table in _row_groups(row_schema(stage.schema.names), batches):
            if file is not None and file.size_bytes >= FILE_BYTES:
                yield file.complete(begins_at, file.last_offset + 1)
                begins_at, file = file.last_offset + 1, None
            if file is None:
                file = _StagedFile(stage, offset_range, attempt)
            file.write(table)
            _tell_progress(stage.path, attempt, file.last_offset + 1 - offset_range.start_offset)
            # Else this row group would stay in memory while the next one is gathered.
            del table
        if file is not None:
            yield file.complete(begins_at, offset_range.until_offset)
    finally:
        if file is not None:
            file.close()


def landed_offsets(stage_path: str) -> int:
    """How many offsets the tasks that write to `stage_path` say they have passed so far."""
    passed = 0
    with suppress(OSError):
        for name in os.listdir(stage_path):
            if name.endswith(PROGRESS_SUFFIX):
                with suppress(OSError), open(os.path.join(stage_path, name)) as file:
                    passed += int(file.read() or 0)
    return passed


def _tell_progress(stage_path: str, attempt: str, offset_count: int) -> None:
    with open(os.path.join(stage_path, attempt + PROGRESS_SUFFIX), "w") as file:
        file.write(str(offset_count))


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gathers batches into tables of about ROW_GROUP_BYTES, at most ROW_GROUP_ROWS.

    A few batches at a time are copied together: each comes with room for more rows than it has,
    and a row group full of such rooms would take several times its size.
    """
    joined: list[pa.Table] = []
    loose: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
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


class _StagedFile:
    """One Parquet file being written; removed when writing it fails."""

    def __init__(self, stage: Stage, offset_range: OffsetRange, attempt: str) -> None:
        self._stage = stage
        self._range = offset_range
        self._attempt = attempt
        self._path = os.path.join(stage.path, f"{uuid.uuid4().hex}.writing")
        self._sink = open(self._path, "xb")  # noqa: SIM115 - outlives this function
        self._writer = pq.ParquetWriter(self._sink, stage.schema, **_WRITER_OPTIONS)
        self._first_offset = -1
        self._records = 0
        self.last_offset = -1

    @property
    def size_bytes(self) -> int:
        return self._sink.tell()

    def write(self, table: pa.Table) -> None:
        offsets = table.column("offset")
        if not self._records:
            self._first_offset = offsets[0].as_py()
        self.last_offset = offsets[-1].as_py()
        self._records += table.num_rows
        self._writer.write_table(table, row_group_size=table.num_rows)

    def complete(self, begins_at: int, until_offset: int) -> DataFile:
        """Finishes and syncs the file and gives it the staged form of its final name."""
        self._writer.close()
        self._sink.flush()
        os.fsync(self._sink.fileno())
        size_bytes = self._sink.tell()
        self._sink.close()
        topic, partition = self._range.topic, self._range.partition
        shown = quote(topic, safe="")[:_LONGEST_TOPIC_IN_NAME]
        name = f"part-{shown}-{partition}-{begins_at}-{until_offset}-{self._attempt}.parquet"
        os.rename(self._path, os.path.join(self._stage.path, name + self._stage.suffix))
        return DataFile(
            name,
            topic,
            partition,
            self._first_offset,
            self.last_offset,
            self._records,
            size_bytes,
        )

    def close(self) -> None:
        """Drops the file if it was not completed."""
        if self._sink.closed:
            return
        with suppress(OSError):
            self._writer.close()
        self._sink.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)
