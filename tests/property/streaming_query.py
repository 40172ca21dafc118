"""A streaming query from topic to topic as Spark runs it, without Spark: for histories at random.

The real reader plans and reads, the real writer goes pickled to tasks and commits, and a directory
holds the checkpoint in Spark's form. A query may end in the middle of a micro-batch, as a killed
one does; the next one on its checkpoint goes on, or runs the micro-batch again.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.offsets import JsonOffsets
from pyspark_kafkalog.source.options import sink_options, stream_options
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from pyspark_kafkalog.source.stream_writer import KafkalogStreamWriter
from tests.crash.sink_steps import task_of_batches
from tests.property.task_session import pickled

SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


class Killed(Exception):
    """The query ends here, without a word to anybody."""


@dataclass
class MicroBatch:
    """One as it is planned, and what its tasks have read and told."""

    number: int
    start: JsonOffsets
    end: JsonOffsets
    tasks: list[list[bytes]] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)


def nothing(batch: MicroBatch) -> None:
    """What happens between two steps of a micro-batch where nothing is to happen."""


@dataclass
class StreamingQuery:
    """The query; its checkpoint may be copied and replaced whenever none is running."""

    servers: str
    source: str
    target: str
    prefix: str
    checkpoint: Path

    def next_start(self) -> JsonOffsets:
        """Where the next micro-batch begins, or the one that is to run again."""
        newest = self._newest()
        if not self._is_noted(newest):
            newest -= 1
        return self.end_of(newest) if newest >= 0 else {}

    def micro_batch(
        self,
        limit: int,
        cut: int | None = None,
        twins: int = 0,
        before_commit: Callable[[MicroBatch], None] = nothing,
        after_commit: Callable[[MicroBatch], None] = nothing,
    ) -> MicroBatch | None:
        """Runs one; None where there is nothing to read. Raises what ends a query.

        `cut` is the least number of tasks. Of the first `twins` tasks another attempt has written,
        too, of which nobody is told.
        """
        options = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.source,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            "maxOffsetsPerTrigger": str(limit),
            **({} if cut is None else {"minPartitions": str(cut)}),
        }
        reader = KafkalogStreamReader(stream_options(options), ["value"])
        try:
            batch = self._plan(reader, limit)
            if batch is None:
                return None
            for partition in reader.partitions(batch.start, batch.end):
                batches = reader.read(partition)
                batch.tasks.append([row for each in batches for row in values_of(each)])
        finally:
            reader.stop()
        self._write(batch, twins, before_commit)
        after_commit(batch)
        (self.checkpoint / "commits" / str(batch.number)).write_text("v1\n{}")
        return batch

    def _write(
        self, batch: MicroBatch, twins: int, before_commit: Callable[[MicroBatch], None]
    ) -> None:
        given = {
            "kafka.bootstrap.servers": self.servers,
            "topic": self.target,
            "transactionalIdPrefix": self.prefix,
            "checkpointLocation": str(self.checkpoint),
        }
        options = sink_options(given)
        writer = pickled(KafkalogStreamWriter(options, SCHEMA))
        try:
            for number, rows in enumerate(batch.tasks[:twins]):
                self._task(writer, number, 1, rows)
            for number, rows in enumerate(batch.tasks):
                batch.messages.append(self._task(writer, number, 0, rows))
            before_commit(batch)
            KafkalogStreamWriter(options, SCHEMA).commit(batch.messages, batch.number)
        except KafkalogError:
            KafkalogStreamWriter(options, SCHEMA).abort(batch.messages, batch.number)
            raise

    def _task(self, writer: bytes, number: int, attempt: int, rows: list[bytes]) -> Any:
        # What is there twice since a prefix was given up is not to be compacted away.
        keys = [b"%s %s" % (self.prefix.encode(), row) for row in rows]
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(rows, pa.binary())}
        batches = iter([pa.record_batch(columns)])
        return task_of_batches(writer, self._id(), number, attempt, batches)

    def _plan(self, reader: KafkalogStreamReader, limit: int) -> MicroBatch | None:
        self._id()
        number = self._newest()
        if not self._is_noted(number):
            start = self.end_of(number - 1) if number else reader.initialOffset()
            return MicroBatch(number, start, self.end_of(number))
        start = self.end_of(number) if number >= 0 else reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(limit))
        if end == start:
            return None
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000}
        text = f"v1\n{json.dumps(metadata)}\n{json.dumps(end)}"
        (self.checkpoint / "offsets" / str(number + 1)).write_text(text)
        return MicroBatch(number + 1, start, end)

    def _id(self) -> str:
        """The query's id, which a new checkpoint is given."""
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True, exist_ok=True)
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        return str(json.loads(metadata.read_text())["id"])

    def _newest(self) -> int:
        """The micro-batch that was planned last, or -1."""
        plans = self.checkpoint / "offsets"
        return max((int(each.name) for each in plans.glob("*")), default=-1)

    def _is_noted(self, number: int) -> bool:
        return number < 0 or (self.checkpoint / "commits" / str(number)).exists()

    def end_of(self, number: int) -> JsonOffsets:
        """Where a micro-batch ends, by the checkpoint."""
        lines = (self.checkpoint / "offsets" / str(number)).read_text().splitlines()
        end: JsonOffsets = json.loads(lines[2])
        return end


def values_of(batch: Any) -> Iterator[bytes]:
    """Of a batch of rows as readers give them."""
    yield from batch.column("value").to_pylist()
