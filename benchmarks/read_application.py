"""A Spark application that reads one topic, and the memory it takes.

    python -m benchmarks.read_application SERVERS TOPIC CONNECTOR VALUES_BYTES

Prints MB: the most memory that the driver's JVM and all of its Python workers have while they read,
and how much of it came with the read. A JVM takes memory as it is let, so both connectors get the
same limit (CONF), and an application of their own for each reading.
"""

import sys

from benchmarks.processes import SharePeak, share_mb
from benchmarks.running import FETCH_OPTIONS, SPARK_CONF, THEIRS, jvm_pid, session

CONF = {**SPARK_CONF, "spark.driver.memory": "1g"}


def run(servers: str, topic: str, connector: str, size_bytes: int) -> tuple[float, float]:
    with session(CONF) as spark:
        assert spark.range(1000).selectExpr("sum(id)").collect()
        pid = jvm_pid(spark)
        before_mb = share_mb(pid)
        reader = spark.read.format(connector).option("kafka.bootstrap.servers", servers)
        if connector == THEIRS:
            reader = reader.options(**FETCH_OPTIONS)
        frame = reader.option("subscribe", topic).load()
        with SharePeak(pid) as peak:
            (row,) = frame.selectExpr("sum(length(value))").collect()
        assert row[0] == size_bytes, f"{row[0]} bytes of values read of {size_bytes}"
        return peak.mb, peak.mb - before_mb


if __name__ == "__main__":
    servers, topic, connector, size_bytes = sys.argv[1:]
    print(*run(servers, topic, connector, int(size_bytes)))
