"""Child program of test_load_stream_crash: a streaming query into a load target.

`python -m tests.crash.load_stream SERVERS TOPIC TARGET CHECKPOINT OFFSETS TASKS`. Loads what there
is in micro-batches of so many offsets, whose rows are spread over so many tasks, and ends.
"""

import sys

from pyspark.sql import SparkSession

from pyspark_kafkalog import LoadSink


def main(
    servers: str, topic: str, target: str, checkpoint: str, max_offsets: str, tasks: str
) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.dataSource.register(LoadSink)
    rows = (
        spark.readStream.format("kafkalog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max_offsets)
        .load()
    )
    query = (
        rows.where("offset % 5 <> 3")
        .repartition(int(tasks))
        .writeStream.format("kafkalog_load")
        .option("target", target)
        .option("name", "nightly")
        .option("kafka.bootstrap.servers", servers)
        .option("startingOffsets", "earliest")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
