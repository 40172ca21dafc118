"""A user's job for spark-submit: a topic is written and read, by tasks that are not this process.

spark-submit submitted_job.py SERVERS
"""

import sys

from pyspark.sql import SparkSession


def main(servers: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    import pyspark_kafkalog  # after the session was made: where Spark finds no formats by itself

    options = {"kafka.bootstrap.servers": servers}
    numbers = spark.range(10).selectExpr("cast(id as string) as value")
    numbers.write.format("kafkalog").mode("append").options(**options, topic="t").save()
    rows = spark.read.format("kafkalog").options(**options, subscribe="t").load()
    print(f"read {rows.count()} by {pyspark_kafkalog.__file__}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
