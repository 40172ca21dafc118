"""A user's job: a topic is written, read and landed by the formats' names.

Only where the import comes first is the second format to be registered: Spark finds one.

python unactivated_job.py "import first" | "session first"
"""

import sys
import tempfile

from pyspark.sql import SparkSession


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[1]")
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    return builder.config("spark.driver.host", "127.0.0.1").getOrCreate()


def main(order: str) -> None:
    if order == "session first":
        session()
    from pyspark_kafkalog import EmbeddedBroker, LoadSink

    spark = session()
    if order == "import first":
        spark.dataSource.register(LoadSink)
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        numbers = spark.range(10).selectExpr("cast(id as string) as value")
        numbers.write.format("kafkalog").mode("append").options(**servers, topic="t").save()
        rows = spark.read.format("kafkalog").options(**servers, subscribe="t").load()
        target = {"name": "job", "target": f"parquet:{folder}/table"}
        rows.write.format("kafkalog_load").mode("append").options(**servers, **target).save()
        print(f"read {rows.count()}, loaded {spark.read.parquet(f'{folder}/table').count()}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
