"""A program of all four jobs for a Spark that is not in the test's process; asserts as it goes.

Arguments: a master (`local-cluster[...]`) or a Spark Connect address (`sc://...`), the brokers, a
folder. Run by test_where_it_runs. `serve` as the only argument is a Spark Connect server, which
prints its port and ends with its standard input.
"""

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.readwriter import DataFrameReader

import pyspark_kafkalog
from pyspark_kafkalog.functions import from_avro


def serve() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    service = "org.apache.spark.sql.connect.service.SparkConnectService$"
    jvm: Any = spark._jvm
    module = jvm.java.lang.Class.forName(service).getField("MODULE$").get(None)
    print("port", module.localPort(), flush=True)
    sys.stdin.read()
    spark.stop()


def session(where: str) -> SparkSession:
    if where.startswith("sc://"):
        return SparkSession.builder.remote(where).getOrCreate()
    builder = SparkSession.builder.master(where).config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(where: str, servers: str, directory: Path) -> None:
    spark = session(where)
    options = {"kafka.bootstrap.servers": servers}
    write(spark, options)
    read(spark, options)
    for _ in range(2):
        stream(spark, options, directory)
        assert source(spark, options, "copies").load().count() == 1000
    decodes(spark, options)
    fails(spark, options)
    if not where.startswith("sc://"):
        uses_executors(spark, options)
    loads(spark, options, directory)
    spark.stop()


def write(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.range(1000, numPartitions=4).selectExpr(
        "cast(id as string) as value", "cast(id % 2 as int) as partition"
    )
    sink = rows.write.format("kafkalog").mode("append").options(**options)
    sink.option("topic", "orders").save()


def source(spark: SparkSession, options: dict[str, str], topic: str = "orders") -> DataFrameReader:
    reader = spark.read.format("kafkalog").options(**options)
    return reader.option("subscribe", topic).option("minPartitions", "8")


def read(spark: SparkSession, options: dict[str, str]) -> None:
    frame = source(spark, options).load()
    assert frame.columns[:5] == ["key", "value", "topic", "partition", "offset"]
    assert frame.select("partition", "offset").distinct().count() == 1000
    values = source(spark, options).schema("value binary").load()
    assert sorted(int(row.value) for row in values.collect()) == list(range(1000))


def stream(spark: SparkSession, options: dict[str, str], directory: Path) -> None:
    reader = spark.readStream.format("kafkalog").options(**options).option("subscribe", "orders")
    frame = reader.option("startingOffsets", "earliest").load()
    writer = frame.select("value", "partition").writeStream.format("kafkalog").options(**options)
    query = (
        writer.option("topic", "copies")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert query.exception() is None


def decodes(spark: SparkSession, options: dict[str, str]) -> None:
    """One digit is the varint of a long; several are one with bytes left over."""
    number = from_avro("value", '"long"', {"mode": "PERMISSIVE"})
    assert source(spark, options).load().select(number.alias("n")).dropna().count() == 10


def fails(spark: SparkSession, options: dict[str, str]) -> None:
    said = ""
    try:
        source(spark, options, "there-is-none").load().count()
    except Exception as error:
        said = str(error)
    assert "UnknownTopicError: Topic there-is-none does not exist" in said, said


def uses_executors(spark: SparkSession, options: dict[str, str]) -> None:
    """The tasks of a read ran in the workers of two executors."""
    executor = udf(lambda _: str(os.getppid()), "string")
    frame = source(spark, options).load().repartition(8)
    assert frame.select(executor("offset").alias("id")).distinct().count() == 2


def loads(spark: SparkSession, options: dict[str, str], directory: Path) -> None:
    target = directory / "warehouse"
    result = pyspark_kafkalog.load(
        spark,
        name="jobs",
        target=f"parquet:{target}",
        options={**options, "subscribe": "copies"},
    )
    assert result.records == 1000
    assert spark.read.parquet(str(target)).count() == 1000


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
