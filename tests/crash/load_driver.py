"""Child program of test_load_crash: one driver that starts Spark and loads once.

`python -m tests.crash.load_driver SERVERS TOPIC TARGET`. Ranges are cut small, so that there are
many files, tasks and renames to be killed between. Prints the result on stdout.
"""

import sys

from pyspark.sql import SparkSession

import pyspark_kafkalog
from pyspark_kafkalog.warehouse import portions


def main(servers: str, topic: str, target: str) -> None:
    portions.MOST_OFFSETS_PER_TASK = 2_000
    portions.FEW_OFFSETS = 4_000
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    print(pyspark_kafkalog.load(spark, name="nightly", target=target, options=options))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
