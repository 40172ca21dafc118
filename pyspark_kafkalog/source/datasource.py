"""`format("kafkalog")`: the class that Spark finds, and the schema of its rows.

Spark registers it by importing `pyspark_kafkalog.DefaultSource` in a planning process, so that this
module is light to import: readers and writers bring sockets, Arrow and codecs when they are made.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.worker_process import WorkerDataSource

if TYPE_CHECKING:
    from collections.abc import Sequence

# Names, types and order are Spark's Kafka connector's; all columns are nullable, as there.
_ROW = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
_HEADERS = StructField(
    "headers",
    ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())]),
    ),
)


class DefaultSource(WorkerDataSource):
    """Kafka-protocol topics as DataFrames and streams.

        df = (
            spark.read.format("kafkalog")
            .option("kafka.bootstrap.servers", "localhost:9092")
            .option("subscribe", "orders")
            .load()
        )

    Options and columns are those of Spark's Kafka connector. `.schema("offset long, value binary")`
    before `.load()` reads only the named columns, which is much faster than a `select` after it.
    """

    @classmethod
    def name(cls) -> str:
        return "kafkalog"

    @PlainErrors()
    def schema(self) -> StructType:
        from pyspark_kafkalog.source.options import check_source_options
        from pyspark_kafkalog.source.python_worker import freeze_imports

        freeze_imports()
        include_headers = check_source_options(self.options).include_headers
        return StructType([*_ROW.fields, *([_HEADERS] if include_headers else [])])

    @PlainErrors()
    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_kafkalog.source.options import batch_options, warn_again
        from pyspark_kafkalog.source.reader import KafkalogReader

        warn_again()
        return KafkalogReader(batch_options(self.options), requested_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_kafkalog.source.options import stream_options
        from pyspark_kafkalog.source.refused_stream import RefusedStreamReader
        from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader

        try:
            return KafkalogStreamReader(stream_options(self.options), requested_columns(schema))
        except KafkalogError as error:
            return RefusedStreamReader(error)

    @PlainErrors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_kafkalog.source.options import sink_options, warn_again
        from pyspark_kafkalog.source.writer import KafkalogWriter

        warn_again()
        if overwrite:
            raise InvalidOptionError(
                'A topic cannot be overwritten: use mode("append"), or delete the topic first.'
            )
        return KafkalogWriter(sink_options(self.options), schema)

    @PlainErrors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        # `overwrite` is true in output mode "complete", whose rows are appended, as Spark's
        # Kafka sink does. Spark passes both arguments by keyword.
        from pyspark_kafkalog.source.options import sink_options
        from pyspark_kafkalog.source.stream_writer import KafkalogStreamWriter

        return KafkalogStreamWriter(sink_options(self.options), schema)


def requested_columns(schema: StructType) -> "Sequence[str]":
    """The columns of a read, in order: all, or those of the user's `.schema(...)`.

    Raises InvalidOptionError for a column that rows do not have, or of another type.
    """
    known = {field.name: field for field in [*_ROW.fields, _HEADERS]}
    if not schema.fields:
        raise InvalidOptionError(
            "The schema is empty: name at least one column, e.g. value binary."
        )
    for field in schema.fields:
        column = known.get(field.name)
        if column is None:
            raise InvalidOptionError(
                f"The schema has a column {field.name!r}, and rows have only {', '.join(known)}."
            )
        if column.dataType != field.dataType:
            raise InvalidOptionError(
                f"The schema has column {field.name} as {field.dataType.simpleString()}; "
                f"it is {column.dataType.simpleString()}: read it as that and cast it afterwards."
            )
        if not field.nullable:
            raise InvalidOptionError(
                f"The schema has column {field.name} as NOT NULL; columns of rows are nullable."
            )
    names = [field.name for field in schema.fields]
    if len(set(names)) < len(names):
        raise InvalidOptionError(f"The schema names a column twice: {', '.join(names)}.")
    return names
