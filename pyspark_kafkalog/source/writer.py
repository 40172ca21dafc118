"""Batch writes: the rows of a DataFrame as records of topics.

Owns the rules for rows, which are those of Spark's Kafka sink, and the writing of one task's rows;
`stream_writer` shares both. A writer is made in Spark's planning process and travels pickled to the
tasks, where each has a producer of its own. At least once: a task that Spark runs again writes
its rows again. With the option `transactionalIdPrefix` the rows of all tasks become visible once
and together, or not at all (`two_phase`).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_kafkalog.arrow.encode import MAX_OPEN_BYTES, RecordEncoder
from pyspark_kafkalog.arrow.schema import COLUMN_TYPES
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.source.checkpoint import planned_from
from pyspark_kafkalog.source.decisions import WrittenTransaction
from pyspark_kafkalog.source.options import SinkOptions, nearest, warn_once
from pyspark_kafkalog.source.placement import Placement
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.planned_on_pickle import PlannedOnPickle
from pyspark_kafkalog.source.python_worker import freeze_imports, kept_producer
from pyspark_kafkalog.source.row_digest import RowDigest
from pyspark_kafkalog.source.two_phase import BATCH_QUERY, NO_BATCH, Lead, TransactionalWrites

# What a record is made of. `timestamp` is an extension: Spark's sink always takes the clock's time.
_RECORD_COLUMNS = ("value", "key", "headers", "partition", "timestamp")
# What a read gives and a write leaves out without a word, so that a topic can be copied.
_PLACE_COLUMNS = ("offset", "timestampType")
_BYTES = "string or binary"
_EXPECTED_TYPES = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
}

_MOST_OPEN_BYTES = 2 * MAX_OPEN_BYTES
# What does not compress grows: by a header, and by a few bytes for each block of 16 KiB or more.
_GROWTH_BYTES = 64
_BYTES_PER_GROWN_BYTE = 2048

# The local property by which Spark tells tasks the id of their streaming query.
_QUERY_ID = "sql.streaming.queryId"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenRecords(WriterCommitMessage):
    """What one task reports: so many records were acknowledged.

    In a transactional write also the transaction that holds them, if there are any, and what the
    commit needs, which runs in another process: the lead, and whose the write is.
    """

    record_count: int
    transaction: WrittenTransaction | None = None
    lead: Lead | None = None
    owner: str = BATCH_QUERY


class SinkWriter(PlannedOnPickle[Lead]):
    """What the writers of batches and streams share; the plan of a transactional one is its lead.

    Raises InvalidRowError, naming the column, for columns that are missing or of a wrong type.
    """

    def __init__(self, options: SinkOptions, schema: StructType, owner: str | None) -> None:
        freeze_imports()
        check_columns(schema, options.topic)
        self._options = options
        self._owner = owner

    def make_plan(self) -> Lead | None:
        """Takes the lead of the prefix. Raises PrefixInUseError and the client's errors."""
        if self._options.transactional_id_prefix is None:
            return None
        return self._transactional_writes().take_lead(self._owner)

    @PlainErrors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRecords:
        """Writes one task's rows; all are acknowledged when it returns."""
        freeze_imports()
        if self.plan is None:
            with kept_producer(self._options.client) as producer:
                return WrittenRecords(_write_rows(self._options, lambda: producer, iterator))
        return self._write_in_transaction(self.plan, iterator)

    def _write_in_transaction(
        self, lead: Lead, iterator: Iterator[pa.RecordBatch]
    ) -> WrittenRecords:
        context = TaskContext.get()
        assert context is not None
        owner = self._owner or str(context.getLocalProperty(_QUERY_ID))
        digest = RowDigest(self._options.topic)
        with self._transactional_writes().task(
            lead, owner, context.partitionId(), context.attemptNumber()
        ) as task:
            rows = _digested(iterator, digest, self._options.topic)
            count = _write_rows(self._options, task.begin, rows)
            return WrittenRecords(count, task.written(count, digest.text()), lead, owner)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """A micro-batch without tasks has nothing to write, and may be another one than before."""
        if self._options.transactional_id_prefix is None:
            return
        lead, owner, written = _reported(messages)
        if lead is None and batch == NO_BATCH:
            return
        location = self._options.checkpoint_location
        planned = "" if batch == NO_BATCH else planned_from(location, batch)
        owner = owner or self._owner or ""
        self._transactional_writes().commit(lead, owner, batch, written, planned)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Where no task of a stream reported, its lead is not known here: another one may have
        taken over, whose right it is to clear away what dead tasks left."""
        lead, _, written = _reported(messages)
        lead = lead or self.plan
        if self._options.transactional_id_prefix is None:
            warn_of_records_that_stay(messages)
        elif lead is not None:
            self._transactional_writes().abort(lead, written)

    def _transactional_writes(self) -> TransactionalWrites:
        prefix = self._options.transactional_id_prefix
        assert prefix is not None
        return TransactionalWrites(self._options.client, prefix)


class KafkalogWriter(SinkWriter, DataSourceArrowWriter):
    """Appends a DataFrame's rows to topics."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema, BATCH_QUERY)

    @PlainErrors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, NO_BATCH)

    @PlainErrors()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


def check_columns(schema: StructType, topic: str | None) -> None:
    """Checks a DataFrame's columns for a write whose option `topic` is given, or None.

    Raises InvalidRowError. Warns about columns that are no part of a record.
    """
    names = schema.fieldNames()
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise InvalidRowError(
            f"A DataFrame to be written needs a column 'value', and has only {', '.join(names)}."
        )
    if topic is None and "topic" not in types:
        raise InvalidRowError(
            "No topic to write to: set the option topic, or add a column 'topic'."
        )
    used = {*_RECORD_COLUMNS, *(["topic"] if topic is None else [])}
    for name in sorted(used & types.keys()):
        if names.count(name) > 1:
            raise InvalidRowError(f"A DataFrame to be written has the column {name!r} twice.")
        if not _fits(name, types[name]):
            raise InvalidRowError(
                f"Column {name!r} must be {_EXPECTED_TYPES[name]}, "
                f"and is {types[name].simpleString()}: cast it."
            )
    for name in names:
        if name not in (*_EXPECTED_TYPES, *_PLACE_COLUMNS):
            hint = nearest(name, _EXPECTED_TYPES)
            warn_once(f"Column {name!r} is no part of a record and is not written.{hint}")


def _write_rows(
    options: SinkOptions, begin: Callable[[], Producer], batches: Iterator[pa.RecordBatch]
) -> int:
    """Writes one task's rows and waits until the brokers have acknowledged them all; their count.

    `begin` is called with the first row. Raises InvalidRowError for a row that is no record,
    DeliveryError where the brokers refuse.
    """
    with_rows = (batch for batch in batches if batch.num_rows)
    first = next(with_rows, None)
    if first is None:
        return 0
    producer = begin()
    rows_to_records = RowsToRecords(options, producer)
    record_count = 0
    for batch in chain([first], with_rows):
        rows_to_records.write(batch)
        record_count += batch.num_rows
    rows_to_records.finish()
    producer.flush()
    return record_count


def _digested(
    batches: Iterator[pa.RecordBatch], digest: RowDigest, topic: str | None
) -> Iterator[pa.RecordBatch]:
    """The same batches, whose columns that are written go into `digest` on the way."""
    written = {*_RECORD_COLUMNS, *(["topic"] if topic is None else [])}
    for batch in batches:
        digest.update(batch.select([name for name in batch.schema.names if name in written]))
        yield batch


def _reported(
    messages: Sequence[WriterCommitMessage | None],
) -> tuple[Lead | None, str, list[WrittenTransaction]]:
    """The lead and owner of a transactional write, and its transactions; tasks may have failed."""
    reports = [message for message in messages if isinstance(message, WrittenRecords)]
    transactions = [report.transaction for report in reports if report.transaction is not None]
    if not reports:
        return None, "", []
    return reports[0].lead, reports[0].owner, transactions


def warn_of_records_that_stay(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Says after a failed write what readers may see of it all the same."""
    counts = [message.record_count for message in messages if isinstance(message, WrittenRecords)]
    _log.warning(
        "A write failed. Records of it are in their topics: %d of the tasks that finished, and "
        "perhaps some of the others. Writing again adds them again.",
        sum(counts),
    )


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
            largest_bytes = self._producer.largest_batch_bytes(topic)
            if client.compression_type is not Codec.NONE:
                largest_bytes -= largest_bytes // _BYTES_PER_GROWN_BYTE + _GROWTH_BYTES
            batch_bytes = min(client.batch_size, largest_bytes)
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
        for name in _RECORD_COLUMNS
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


def _fits(name: str, data_type: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(data_type, (StringType, BinaryType))
    if name == "headers":
        return _is_headers(data_type)
    expected: dict[str, Any] = {
        "topic": StringType,
        "partition": IntegerType,
        "timestamp": TimestampType,
    }
    return isinstance(data_type, expected[name])


def _is_headers(data_type: DataType) -> bool:
    if not isinstance(data_type, ArrayType) or not isinstance(data_type.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in data_type.elementType.fields]
    return fields == [("key", StringType()), ("value", BinaryType())]
