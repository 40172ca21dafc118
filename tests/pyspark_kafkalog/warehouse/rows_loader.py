"""A load without Spark and without a broker: real Parquet files of rows that name their offsets."""

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    Commit,
    DataFile,
    PendingCommit,
    Position,
    Stage,
)
from pyspark_kafkalog.warehouse.landing import range_label
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange
from pyspark_kafkalog.warehouse.rows.layout import PLAIN, Layout
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import Target

PARTITIONS = (0, 1)
TIME_US = 1_700_000_000_123_456
"""The time of offset 0; each record is a second later."""


def rows(name: str, piece: OffsetRange, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a range; each value names the load and the offset."""
    offsets = range(piece.start_offset, piece.until_offset)
    columns = {
        "key": [None if offset % 3 == 0 else b"\x00\xff key %d" % offset for offset in offsets],
        "value": [b"%s %d %d" % (name.encode(), piece.partition, offset) for offset in offsets],
        "topic": [piece.topic] * len(offsets),
        "partition": [piece.partition] * len(offsets),
        "offset": list(offsets),
        "timestamp": [TIME_US + 1_000_000 * offset for offset in offsets],
        "timestampType": [0] * len(offsets),
        "headers": [
            None if offset % 2 else [{"key": "h", "value": b"\xfe%d" % offset}, {"key": "n"}]
            for offset in offsets
        ],
    }
    return pa.RecordBatch.from_pydict(
        {name: columns[name] for name in schema.names}, row_schema(schema.names)
    )


def write_rows(
    stage: Stage, name: str, piece: OffsetRange, layout: Layout = PLAIN
) -> list[DataFile]:
    """Staged files of a range, as a landing task writes them."""
    return list(write_files(stage, range_label(piece), [rows(name, piece, stage.schema)], layout))


def plan(target: Target, name: str, until_offset: int) -> tuple[Position, list[OffsetRange]]:
    """Where load `name` is, and what it lacks up to `until_offset` of both partitions."""
    last = target.position(name)
    keys = [TopicPartition("orders", partition) for partition in PARTITIONS]
    return last, [
        OffsetRange(key.topic, key.partition, last.offsets.get(key, 0), until_offset)
        for key in keys
        if last.offsets.get(key, 0) < until_offset
    ]


def load(
    target: Target,
    name: str,
    until_offset: int,
    headers: bool = False,
    change: SchemaChange = UNSAID,
    layout: Layout = PLAIN,
) -> Commit | None:
    """Loads both partitions of `orders`; None when they were there before."""
    last, ranges = plan(target, name, until_offset)
    if not ranges:
        return None
    columns = (*DEFAULT_COLUMNS, "headers") if headers else DEFAULT_COLUMNS
    stage = target.stage(row_schema(columns), layout.partition_by, change)
    files = [file for piece in ranges for file in write_rows(stage, name, piece, layout)]
    return target.commit(PendingCommit(stage, name, last, ranges, files))


def begin(
    target: Target, name: str = "nightly", until_offset: int = 7
) -> tuple[Target, PendingCommit]:
    """A load that has landed and not committed: its target and the pending commit."""
    last, ranges = plan(target, name, until_offset)
    stage = target.stage(row_schema())
    files = [file for piece in ranges for file in write_rows(stage, name, piece)]
    return target, PendingCommit(stage, name, last, ranges, files)
