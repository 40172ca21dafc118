"""Streaming writes: each micro-batch's rows as records of topics, at least once.

The rules for rows and the writing of a task's rows are those of `writer`. Spark makes a new writer
for every micro-batch, and one more to commit or abort it, so that nothing is kept between them. A
micro-batch that Spark runs again after a failure writes its rows again.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_kafkalog.source.options import SinkOptions
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.writer import (
    WrittenRecords,
    check_columns,
    warn_of_records_that_stay,
    write_rows,
)


class KafkalogStreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of micro-batches to topics, in any output mode."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options

    @PlainErrors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRecords:
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the tasks' records are acknowledged already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        warn_of_records_that_stay(messages)
