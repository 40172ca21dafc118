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

from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.errors import InvalidRowError
from pyspark_kafkalog.source.checkpoint import NOT_KNOWN, planned_from
from pyspark_kafkalog.source.decisions import WrittenTransaction
from pyspark_kafkalog.source.options import SinkOptions, nearest, warn_once
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.planned_on_pickle import PlannedOnPickle
from pyspark_kafkalog.source.python_worker import freeze_imports, kept_producer
from pyspark_kafkalog.source.row_digest import RowDigest
from pyspark_kafkalog.source.rows_to_records import RECORD_COLUMNS, RowsToRecords
from pyspark_kafkalog.source.two_phase import BATCH_QUERY, NO_BATCH, Lead, TransactionalWrites

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
        planned = NOT_KNOWN if batch == NO_BATCH else planned_from(location, batch)
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
    used = {*RECORD_COLUMNS, *(["topic"] if topic is None else [])}
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
    written = {*RECORD_COLUMNS, *(["topic"] if topic is None else [])}
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
