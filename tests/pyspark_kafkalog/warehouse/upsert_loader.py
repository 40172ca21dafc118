"""Upserts of given records into a table, by way of a target alone: what a load does without a
broker."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Commit, PendingCommit
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import Target


class Record(NamedTuple):
    """A record; its timestamp is `time` seconds after the epoch."""

    key: bytes | None
    value: bytes | None
    partition: int = 0
    time: int = 0


def batch_of(records: Sequence[tuple[int, Record]], topic: str) -> pa.RecordBatch:
    """Rows of records with their offsets."""
    columns = {
        "key": [record.key for _, record in records],
        "value": [record.value for _, record in records],
        "topic": [topic] * len(records),
        "partition": [record.partition for _, record in records],
        "offset": [offset for offset, _ in records],
        "timestamp": [record.time * 1_000_000 for _, record in records],
        "timestampType": [0] * len(records),
    }
    schema = row_schema()
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], _plain(field.type)).cast(field.type) for field in schema],
        schema=schema,
    )


def upsert(
    target: Target,
    name: str,
    *records: Record,
    how: Upsert = Upsert(),  # noqa: B008
    topic: str = "orders",
) -> Commit:
    """Loads the records at the offsets that come next in their partitions."""
    position = target.position(name)
    ends = {each.partition: n for each, n in position.offsets.items() if each.topic == topic}
    starts = dict(ends)
    placed = []
    for record in records:
        offset = ends.get(record.partition, 0)
        starts.setdefault(record.partition, offset)
        placed.append((offset, record))
        ends[record.partition] = offset + 1
    stage = target.stage(how.schema(row_schema()), upsert=how)
    pieces = [
        OffsetRange(topic, partition, starts[partition], ends[partition])
        for partition in sorted({record.partition for record in records})
    ]
    rows = how.marked(batch_of(placed, topic))
    files = list(write_files(stage, topic, [rows] if records else []))
    return target.commit(PendingCommit(stage, name, position, pieces, files))


def next_offset(target: Target, name: str, partition: int = 0, topic: str = "orders") -> int:
    return target.position(name).offsets.get(TopicPartition(topic, partition), 0)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind
