"""Child program of tests that kill and harm: a streaming query through Spark, exactly once.

`python -m tests.crash.sink_stream SERVERS SOURCE TARGET CHECKPOINT [RECORDS [INTERVAL]]`. Copies
what there is in micro-batches of RECORDS at most and ends, or goes on, beginning one each INTERVAL.
A task is tried again, so that its Python worker may be killed.
"""

import sys

from pyspark.sql import SparkSession


def main(
    servers: str,
    source: str,
    target: str,
    checkpoint: str,
    records: str = "500",
    interval: str | None = None,
) -> None:
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
        .option("maxOffsetsPerTrigger", records)
        .load()
    )
    writer = (
        rows.select("value")
        .writeStream.format("kafkalog")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("transactionalIdPrefix", f"{source}-to-{target}")
        .option("checkpointLocation", checkpoint)
    )
    if interval is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=interval)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
