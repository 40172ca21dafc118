"""Child program of test_sink_stream_crash: a streaming query through Spark, exactly once.

`python -m tests.crash.sink_stream SERVERS SOURCE TARGET CHECKPOINT`. Copies what there is in small
micro-batches and ends. A task is tried again, so that its Python worker may be killed.
"""

import sys

from pyspark.sql import SparkSession


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    rows = (
        spark.readStream.format("kafkalog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "500")
        .load()
    )
    query = (
        rows.select("value")
        .writeStream.format("kafkalog")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("transactionalIdPrefix", f"{source}-to-{target}")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
