"""What one task of a load does: ranges of offsets into staged Parquet files.

Wire to Parquet happens in this process, no row crosses into the JVM. Owns what happens to records
on the way (read, decode, transform) and the marks of progress; staged_files.py owns the files.

Memory of a task: what staged_files.py says, a few batches of 4 MiB with room to spare, and the
fetches in flight (two of 4 MiB, of 8 where the network is slow, and one decompressed record
batch). Measured: 150 MiB beyond the interpreter with its libraries, 260 MiB with headers,
180 MiB in 48 partitions of files, 470 MiB with sort_by.

Runs in Spark's Python workers, or those of the local engine, in one thread. Never commits.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.source.options import SourceOptions
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.python_worker import freeze_imports, kept_cluster
from pyspark_kafkalog.source.reading import read_range
from pyspark_kafkalog.warehouse.commit import DataFile, Epochs, Stage
from pyspark_kafkalog.warehouse.holes import Holes
from pyspark_kafkalog.warehouse.progress import Passed, tell_passed
from pyspark_kafkalog.warehouse.rows.dead_letters import DeadLetters
from pyspark_kafkalog.warehouse.rows.layout import PLAIN, Layout
from pyspark_kafkalog.warehouse.rows.row_types import check_made, fitted, storable
from pyspark_kafkalog.warehouse.rows.transformation import Batches, transformed, transformed_schema
from pyspark_kafkalog.warehouse.rows.upserts import Upsert, with_deleted
from pyspark_kafkalog.warehouse.rows.values import DEAD_LETTER, FAIL, Values
from pyspark_kafkalog.warehouse.targets.staged_files import write_files

_OFFSETS_BETWEEN_MARKS = 100_000
_LONGEST_TOPIC_IN_NAME = 120


@dataclass(frozen=True, slots=True)
class Reading:
    """How the records of a load become rows; travels to the tasks pickled.

    `columns` are the topic's, of which rows are made: decoded as `values` says and changed by
    `transform`, a function of Arrow batches, on the way. `topic_ids` are those of the topics and
    `epochs` those of the partitions' leaders when the load was planned, where brokers say them.
    With `upsert` rows are marked for it.
    """

    options: SourceOptions
    columns: tuple[str, ...]
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    values: Values | None = None
    transform: Batches | None = None
    epochs: Epochs = field(default_factory=dict)
    upsert: Upsert | None = None

    def schema(self) -> pa.Schema:
        """The columns of the rows, before any transformation, in types that targets hold, or that
        one has to make such of."""
        schema = row_schema(self.columns)
        if self.values is None:
            return schema
        return storable(self.values.schema(schema), intervals=True)

    def stored_schema(self) -> pa.Schema:
        """The columns of the files: those of the rows, transformed, in types that targets hold."""
        if self.transform is not None:
            return transformed_schema(self.transform, self.schema())
        schema = storable(self.schema())
        return schema if self.upsert is None else self.upsert.schema(schema)

    def rows_of(self, landed: "Landed") -> int | None:
        """How many rows a range has to have become; None where the transformation decides."""
        if self.transform is not None:
            return None
        left_out = self.values is not None and self.values.on_error == DEAD_LETTER
        return landed.records - (landed.bad_records if left_out else 0)


@dataclass(frozen=True, slots=True)
class Landing:
    """All that the tasks of a load have in common; travels to them pickled. `made` are the columns
    that a transformation makes; the stage's, in which they are written, may have wider types."""

    reading: Reading
    stage: Stage
    layout: Layout = PLAIN
    made: pa.Schema | None = None


@dataclass(frozen=True, slots=True)
class Landed:
    """What became of one range: how many records were read, from which offset to which (inclusive;
    -1 for none), how many of them could not be decoded, the files that the rows went into, and the
    offsets that were gone and given up (failOnDataLoss=false). Of an upsert also the time before
    the offsets without a record, if there are such (holes.py)."""

    offset_range: OffsetRange
    records: int = 0
    bad_records: int = 0
    first_offset: int = -1
    last_offset: int = -1
    files: tuple[DataFile, ...] = ()
    gaps: tuple[OffsetRange, ...] = ()
    hole_after_us: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Landed":
        fields = json.loads(text)
        fields["offset_range"] = OffsetRange(**fields["offset_range"])
        fields["files"] = tuple(map(file_from_json, fields["files"]))
        fields["gaps"] = tuple(OffsetRange(**gap) for gap in fields["gaps"])
        return cls(**fields)


def file_from_json(fields: Mapping[str, Any]) -> DataFile:
    return DataFile(**{**fields, "partition": tuple(fields["partition"])})


def land(landing: Landing, ranges: Iterable[OffsetRange]) -> Iterator[Landed]:
    """Lands ranges one after the other. Errors are raised: where Spark runs the tasks, its
    settings say how often it tries one again."""
    freeze_imports()
    with kept_cluster(landing.reading.options.client) as cluster:
        for offset_range in ranges:
            records = Records(cluster, landing.reading, offset_range, landing.stage.path)
            label = range_label(offset_range)
            rows = records.rows()
            if landing.reading.transform is not None:
                schema = storable(landing.made or landing.stage.schema)
                rows = (check_made(batch, schema) for batch in rows)
            files = tuple(write_files(landing.stage, label, rows, landing.layout))
            yield replace(records.landed(), files=files)


class Records:
    """The records of a range on their way: read once, counted, decoded, transformed."""

    def __init__(
        self,
        cluster: Cluster,
        reading: Reading,
        offset_range: OffsetRange,
        stage_path: str | None,
    ) -> None:
        self._cluster = cluster
        self._reading = reading
        self._range = offset_range
        self._count = self._bad = 0
        self._first_offset = self._last_offset = -1
        self._bytes = 0
        self._gaps: list[OffsetRange] = []
        self._holes = Holes(offset_range.start_offset) if reading.upsert else None
        self._stage_path = stage_path
        self._attempt = uuid.uuid4().hex[:16]

    def landed(self) -> Landed:
        """What was read, and so far went into no file."""
        return Landed(
            self._range,
            self._count,
            self._bad,
            self._first_offset,
            self._last_offset,
            gaps=tuple(self._gaps),
            hole_after_us=self._holes.after_us if self._holes else None,
        )

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows; when the last one is there, every dead letter is acknowledged."""
        values, transform = self._reading.values, self._reading.transform
        batches = self._batches() if values is None else self._decoded(values)
        if self._reading.upsert is not None:
            yield from map(self._reading.upsert.marked, batches)
        elif transform is None:
            yield from batches
        else:
            for batch in batches:
                yield from transformed(transform, batch)

    def _decoded(self, values: Values) -> Iterator[pa.RecordBatch]:
        schema = self._reading.schema()
        decoded = values.schema(row_schema(self._reading.columns))
        if self._reading.upsert is not None:
            schema, decoded = with_deleted(schema), with_deleted(decoded)
        with DeadLetters(self._reading.options.client, values.letters_to) as letters:
            for batch in self._batches():
                for rows, bad in values.rows(batch, decoded, letters):
                    self._bad += bad
                    yield fitted(rows, schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """The records as they are read, which go through here once."""
        reading, marked = self._reading, self._range.start_offset
        columns, options = reading.columns, reading.options
        if reading.values is not None:
            columns = reading.values.columns_to_read(columns)
            if reading.values.on_error != FAIL:
                options = replace(options, permissive=True)
        topic_id = reading.topic_ids.get(self._range.topic)
        epoch = reading.epochs.get(self._range.topic_partition)
        on_gap = self._gaps.append
        for batch in read_range(
            self._cluster, options, columns, self._range, topic_id, on_gap, epoch
        ):
            if batch.num_rows:
                offsets = batch.column("offset")
                if not self._count:
                    self._first_offset = offsets[0].as_py()
                self._last_offset = offsets[-1].as_py()
                self._count += batch.num_rows
                self._bytes += batch.nbytes
                if self._holes:
                    self._holes.pass_records(batch)
            yield batch
            if self._last_offset + 1 - marked >= _OFFSETS_BETWEEN_MARKS:
                marked = self._last_offset + 1
                self._mark(marked)
        if self._holes:
            self._holes.end(self._range.until_offset)
        self._mark(self._range.until_offset)

    def _mark(self, next_offset: int) -> None:
        if self._stage_path is not None:
            passed = Passed(
                self._range.topic,
                self._range.partition,
                self._range.start_offset,
                next_offset - self._range.start_offset,
                self._count,
                self._bytes,
            )
            tell_passed(self._stage_path, self._attempt, passed)


def range_label(offset_range: OffsetRange) -> str:
    """A range as part of a file's name."""
    topic = quote(offset_range.topic, safe="")[:_LONGEST_TOPIC_IN_NAME]
    return (
        f"{topic}-{offset_range.partition}-{offset_range.start_offset}-{offset_range.until_offset}"
    )
