"""Upserts of given records into a table, by way of a target alone: what a load does without a
broker."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import row_schema
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Commit, PendingCommit
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets.staged_files import write_files
from pyspark_kafkalog.warehouse.targets.target import Target
from tests.pyspark_kafkalog.warehouse.tables import Table


class Record(NamedTuple):
    """A record; its timestamp is `time` seconds after the epoch. A `note` is a column more."""

    key: bytes | None
    value: bytes | None
    partition: int = 0
    time: int = 0
    note: str | None = None


def batch_of(
    records: Sequence[tuple[int, Record]], topic: str, schema: pa.Schema | None = None
) -> pa.RecordBatch:
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
    notes = [record.note for _, record in records]
    schema = schema or row_schema()
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns.get(field.name, notes), _plain(field.type)).cast(field.type)
            for field in schema
        ],
        schema=schema,
    )


def upsert(
    target: Target,
    name: str,
    *records: Record,
    how: Upsert = Upsert(),  # noqa: B008
    topic: str = "orders",
    topic_id: UUID | None = None,
    note: str = "note",
) -> Commit:
    """Loads the records at the offsets that come next in their partitions; of a topic with another
    id than before, from the first on. `note` is what the column more is called."""
    position = target.position(name)
    ids = {} if topic_id is None else {topic: topic_id}
    ends = {each.partition: n for each, n in position.offsets.items() if each.topic == topic}
    if topic_id is not None and position.topic_ids.get(topic) not in (None, topic_id):
        ends = {}
    starts = dict(ends)
    placed = []
    for record in records:
        offset = ends.get(record.partition, 0)
        starts.setdefault(record.partition, offset)
        placed.append((offset, record))
        ends[record.partition] = offset + 1
    schema = row_schema()
    if any(record.note for record in records):
        schema = schema.append(pa.field(note, pa.string()))
    stage = target.stage(how.schema(schema), (), SchemaChange(adds=True), how)
    pieces = [
        OffsetRange(topic, partition, starts[partition], ends[partition])
        for partition in sorted({record.partition for record in records})
    ]
    rows = how.marked(batch_of(placed, topic, schema))
    files = list(write_files(stage, topic, [rows] if records else []))
    return target.commit(PendingCommit(stage, name, position, pieces, files, ids))


def found(table: Table) -> dict[bytes, bytes]:
    """The values of a table's keys."""
    rows = table.all_rows()
    keys = [bytes(row["key"]) for row in rows]
    assert len(set(keys)) == len(keys)
    return {bytes(row["key"]): bytes(row["value"]) for row in rows}


def next_offset(target: Target, name: str, partition: int = 0, topic: str = "orders") -> int:
    return target.position(name).offsets.get(TopicPartition(topic, partition), 0)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind
