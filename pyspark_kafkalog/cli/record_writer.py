"""Rows of one topic as they are written: what `produce` has read, and what of it is there.

Whoever mends what was refused begins with that: so a record that is too large is found before any
after it is sent, and any other failure says how many records are written for certain.
"""

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.errors import DeliveryError, MessageTooLargeError

_AROUND_BYTES = 128
"""More than a record batch and a record have around key, value and headers."""


class RecordWriter:
    """Sends rows on to a producer, in order; `count` are accepted. One thread."""

    def __init__(self, producer: Producer, config: ClientConfig, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._codec = config.compression_type
        self.partitions = producer.partitions_for(topic)
        self._largest_bytes = producer.largest_batch_bytes(topic)
        self._encoder = RecordEncoder(
            len(self.partitions), self._codec, config.open_batch_bytes(self._largest_bytes)
        )
        self.count = 0
        self._written = 0
        """What is acknowledged for certain."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Raises MessageTooLargeError for a record that no broker would take, once all before it
        are written; DeliveryError."""
        fitting = self._fitting(rows)
        self._send(rows.slice(0, fitting))
        if fitting == rows.num_rows:
            return
        self.flush()
        raise MessageTooLargeError(
            f"Record {self.count + 1} is too large for topic {self._topic}, which takes batches of "
            f"{self._largest_bytes} bytes: raise its max.message.bytes, and --property "
            "max.request.size, or compress records (--compression zstd). Records written before "
            f"it: {self.count}; after it: none."
        )

    def flush(self) -> None:
        """Returns when all is acknowledged; raises DeliveryError."""
        try:
            for partition, batch in self._encoder.finish():
                self._producer.send(TopicPartition(self._topic, partition), batch)
            self._producer.flush()
        except DeliveryError as error:
            raise self._told(error) from error
        self._written = self.count

    def _send(self, rows: pa.RecordBatch) -> None:
        try:
            for partition, batch in self._encoder.encode(rows):
                self._producer.send(TopicPartition(self._topic, partition), batch)
        except DeliveryError as error:
            raise self._told(error) from error
        self.count += rows.num_rows

    def _told(self, error: DeliveryError) -> DeliveryError:
        return type(error)(
            f"{str(error).removesuffix('.')}. Written for certain are the first {self._written} "
            "records; those after them may be, or some of them."
        )

    def _fitting(self, rows: pa.RecordBatch) -> int:
        """How many rows come before the first that is too large."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        bound = pc.add(_lengths(columns["value"]), _AROUND_BYTES)
        if "key" in columns:
            bound = pc.add(bound, _lengths(columns["key"]))
        if "headers" in columns:
            # Of all rows: only those that may be too large are looked at one by one.
            bound = pc.add(bound, columns["headers"].nbytes)
        large = pc.indices_nonzero(pc.greater(bound, self._largest_bytes))
        for row in large.to_pylist():
            if self._encoded_bytes(rows.slice(row, 1)) > self._largest_bytes:
                return int(row)
        return int(rows.num_rows)

    def _encoded_bytes(self, row: pa.RecordBatch) -> int:
        if "partition" in row.schema.names:
            row = row.drop_columns(["partition"])
        alone = RecordEncoder(1, self._codec, max_batch_bytes=1)
        return sum(len(batch) for _, batch in (*alone.encode(row), *alone.finish()))


def _lengths(column: pa.Array) -> pa.Array:
    return pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())
