"""A program of every kind of job over a secured connection, which says all that Spark will say.

Run by test_security: argument is a directory, with the options in `options.json`; event log and
output go there. Batch write and read, a stream, plans in every form, and jobs that fail.
"""

import json
import sys
import traceback
from pathlib import Path

from pyspark.sql import SparkSession


def main(directory: Path) -> None:
    options = json.loads((directory / "options.json").read_text())
    events = directory / "events"
    events.mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", events.as_uri())
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("INFO")
    wrong = {
        name: value.replace('password="', 'password="hunter2') for name, value in options.items()
    }
    for given in (options, wrong):
        for job in (write, read, stream):
            try:
                job(spark, given, directory)
                failed = False
            except Exception:
                traceback.print_exc()
                failed = True
            assert failed == (given is wrong), job
    spark.stop()


def write(spark: SparkSession, options: dict[str, str], _: Path) -> None:
    frame = spark.range(10).selectExpr("cast(id as string) value")
    frame.write.format("kafkalog").mode("append").options(**options).option("topic", "jobs").save()


def read(spark: SparkSession, options: dict[str, str], _: Path) -> None:
    frame = spark.read.format("kafkalog").options(**options).option("subscribe", "jobs").load()
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    print(repr(frame), frame._jdf.queryExecution().toString())
    frame.createOrReplaceTempView("jobs")
    spark.sql("explain extended select count(*) from jobs").show(truncate=False)
    assert frame.count() >= 10


def stream(spark: SparkSession, options: dict[str, str], directory: Path) -> None:
    frame = (
        spark.readStream.format("kafkalog")
        .options(**options)
        .option("subscribe", "jobs")
        .option("startingOffsets", "earliest")
        .load()
    )
    frame.explain(extended=True)
    query = (
        frame.select("value")
        .writeStream.format("kafkalog")
        .options(**options)
        .option("topic", "copies")
        .option("checkpointLocation", str(directory / f"checkpoint-{id(options)}"))
        .trigger(availableNow=True)
        .start()
    )
    query.explain(extended=True)
    query.awaitTermination()
    print(query.lastProgress, query.status)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
