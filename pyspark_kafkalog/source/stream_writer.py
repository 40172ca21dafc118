"""Streaming writes: each micro-batch's rows as records of topics.

The rules for rows and the writing of a task's rows are those of `writer`. Spark makes a new writer
for every micro-batch, and one more to commit or abort it, so that nothing is kept between them. At
least once: a micro-batch that Spark runs again after a failure writes its rows again. Exactly once
with the option `transactionalIdPrefix`: `two_phase` says how.
"""

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_kafkalog.source.checkpoint import query_id_at
from pyspark_kafkalog.source.options import SinkOptions
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.writer import SinkWriter


class KafkalogStreamWriter(SinkWriter, DataSourceStreamArrowWriter):
    """Appends the rows of micro-batches to topics, in any output mode."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema, query_id_at(options.checkpoint_location))

    @PlainErrors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    @PlainErrors()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)
