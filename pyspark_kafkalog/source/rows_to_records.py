"""Rows become records: the columns of Arrow batches, checked, encoded and sent on to a producer.

For a task of a write, and for the dead letters of a load. Knows nothing of Spark.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.encode import MAX_OPEN_BYTES, RecordEncoder
from pyspark_kafkalog.arrow.schema import COLUMN_TYPES
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.source.options import SinkOptions
from pyspark_kafkalog.source.placement import Placement

# `timestamp` is an extension: Spark's sink always takes the clock's time.
RECORD_COLUMNS = ("value", "key", "headers", "partition", "timestamp")
"""What a record is made of."""

_MOST_OPEN_BYTES = 2 * MAX_OPEN_BYTES


class RowsToRecords:
    """Sends rows on to a producer, with one encoder for each topic. One task, one thread.

    Memory: _MOST_OPEN_BYTES of open batches, in however many topics; those of the topic that was
    written least recently are sent as they are when there would be more.
    """

    def __init__(self, options: SinkOptions, producer: Producer) -> None:
        self._options = options
        self._producer = producer
        self._topics: dict[str, tuple[Placement, RecordEncoder]] = {}
        self._open: dict[str, RecordEncoder] = {}
        """Those that may have open batches; the topic that was written last comes last."""
        self._open_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for topic, rows in rows_by_topic(batch, self._options.topic):
            for partition, encoded in self._encode(topic, record_columns(rows)):
                self._producer.send(TopicPartition(topic, partition), encoded)
            self._bound_open_batches()

    def finish(self) -> None:
        while self._open:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        topic, encoder = next(iter(self._open.items()))
        del self._open[topic]
        self._open_bytes -= encoder.open_bytes
        for partition, encoded in encoder.finish():
            self._producer.send(TopicPartition(topic, partition), encoded)

    def _bound_open_batches(self) -> None:
        while self._open_bytes > _MOST_OPEN_BYTES and len(self._open) > 1:
            self._finish_oldest()

    def _encode(self, topic: str, records: pa.RecordBatch) -> Iterator[tuple[int, bytearray]]:
        placement, encoder = self._encoder(topic)
        self._open.pop(topic, None)
        self._open[topic] = encoder
        before_bytes = encoder.open_bytes
        try:
            yield from encoder.encode(placement.place(records))
        except ValueError as error:
            raise InvalidRowError(f"Column 'partition', topic {topic}: {error}.") from None
        self._open_bytes += encoder.open_bytes - before_bytes

    def _encoder(self, topic: str) -> tuple[Placement, RecordEncoder]:
        if topic not in self._topics:
            client = self._options.client
            partition_count = len(self._producer.partitions_for(topic))
            batch_bytes = client.open_batch_bytes(self._producer.largest_batch_bytes(topic))
            self._topics[topic] = (
                Placement(client.partitioner, partition_count),
                RecordEncoder(partition_count, client.compression_type, batch_bytes),
            )
        return self._topics[topic]


def rows_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order; all of them for `topic` if that is given.

    Raises InvalidRowError for a row whose topic is null.
    """
    if topic is not None:
        yield topic, batch
        return
    column = batch.column("topic")
    if column.null_count:
        raise InvalidRowError(
            "Column 'topic' is null in a row: say where to write it to, or set the option topic."
        )
    topics = pc.unique(column).to_pylist()
    for name in topics:
        yield name, batch if len(topics) == 1 else batch.filter(pc.equal(column, name))


def record_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that a record is made of, checked, in the types that the encoder reads."""
    columns = {
        name: _narrow(name, rows.column(name))
        for name in RECORD_COLUMNS
        if name in rows.schema.names
    }
    if "headers" in columns:
        entries = columns["headers"].flatten()
        if entries.null_count or entries.field("key").null_count:
            raise InvalidRowError("Column 'headers' has a header without a key in a row.")
    if "timestamp" in columns:
        _check_timestamps(columns["timestamp"])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _narrow(name: str, column: pa.Array) -> pa.Array:
    """Spark may send strings and binaries with 64-bit offsets; a batch is far smaller than that."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    if name == "headers" and column.type != COLUMN_TYPES[name]:
        return column.cast(COLUMN_TYPES[name])
    return column


def _check_timestamps(column: pa.Array) -> None:
    earliest = pc.min(column.cast(pa.int64())).as_py()
    if earliest is not None and earliest < 0:
        raise InvalidRowError("Column 'timestamp' is before 1970 in a row; records cannot be.")
