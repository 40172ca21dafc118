"""`format("kafkalog_load")`: the class that a user registers with Spark.

Light to import; writer.py brings Arrow and the targets when a writer is made.
"""

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.plain_errors import PlainErrors
from pyspark_kafkalog.source.worker_process import WorkerDataSource


class LoadSink(WorkerDataSource):
    """Rows of topics, transformed or not, into a warehouse: each once, also without a checkpoint.

        spark.dataSource.register(LoadSink)
        query = (
            rows.writeStream.format("kafkalog_load")
            .option("target", "delta:/lake/orders")
            .option("name", "nightly")
            .option("kafka.bootstrap.servers", "localhost:9092")
            .option("startingOffsets", "earliest")
            .option("checkpointLocation", "/lake/checkpoints/orders")
            .start()
        )

    `rows` have the columns topic, partition and offset of the records that they were made of, and
    any others. `target` and `name` are those of `pyspark_kafkalog.load`, and what the one has
    loaded the other leaves out. The options `kafka.*` are those of the read, to ask whether a topic
    was created again, and `startingOffsets` is that of the read, too: where the name has no place
    yet, or rows were filtered, nothing else says that no record was left out. `df.write` takes the
    same options, in mode append.
    """

    @classmethod
    def name(cls) -> str:
        return "kafkalog_load"

    @PlainErrors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_kafkalog.source.options import warn_again
        from pyspark_kafkalog.warehouse.sink.writer import LoadWriter, load_sink_options

        warn_again()
        if overwrite:
            raise InvalidOptionError('A load adds rows: use mode("append").')
        return LoadWriter(load_sink_options(self.options), schema)

    @PlainErrors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_kafkalog.warehouse.sink.writer import LoadStreamWriter, load_sink_options

        if overwrite:
            raise InvalidOptionError('A load adds rows: use outputMode("append").')
        return LoadStreamWriter(load_sink_options(self.options), schema)
