"""Child program of test_load_kills: loads again and again, with Spark.

`python -m tests.crash.spark_loader_child TARGET SERVERS TOPIC`, with lines in and out as those of
loader_child.py. Its workers are Spark's: processes below its JVM. A task is tried four times.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tests.crash.loader_child import cut_small, load, tell, tell_before

DAEMON = "tests.crash.warm_spark_daemon"
"""What the parent of Spark's workers runs, by which they are found."""


def warm_up(spark: SparkSession) -> None:
    """A job as a load has it, for which Spark's classes are loaded and its daemon is started."""
    text = udf(str, useArrow=False).asNondeterministic()
    spark.range(0, 2, 1, 2).select(text("id")).collect()


def main(target: str, servers: str, topic: str) -> None:
    cut_small()
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.daemon.module", DAEMON)
        .getOrCreate()
    )
    warm_up(spark)
    tell_before("_run_tasks", "landing")
    tell_before("outcome_of", "landed")
    for line in sys.stdin:
        tell(f"driver {os.getpid()}")
        tell(f"ended {load(spark, target, servers, topic, line.split()[0])}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
