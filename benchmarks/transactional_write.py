"""What `transactionalIdPrefix` costs: `df.write` of 1 M rows of 100 B, with and without, in turn.

`python -m benchmarks.transactional_write [PAIRS]`. Against the embedded broker, 4 tasks on 2 cores.
The first pair warms up. Prints seconds, and the ratio of the medians.
"""

import os
import statistics
import sys
import time

from pyspark.sql import SparkSession

from pyspark_kafkalog import EmbeddedBroker

ROWS = 1_000_000
TASKS = 4


def main(pairs: int) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("lpad(cast(id as string), 100, 'x') as value")
    times: dict[bool, list[float]] = {False: [], True: []}
    with EmbeddedBroker() as broker:
        for number in range(pairs + 1):
            for transactional in (False, True):
                sink = rows.write.format("kafkalog").mode("append").option("topic", "rows")
                sink.option("kafka.bootstrap.servers", broker.bootstrap_servers)
                if transactional:
                    sink.option("transactionalIdPrefix", "bench")
                started = time.perf_counter()
                sink.save()
                if number:
                    times[transactional].append(time.perf_counter() - started)
    for transactional, taken in times.items():
        name = "with transactionalIdPrefix" if transactional else "without"
        print(
            f"{name}: {statistics.median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f}, "
            f"{len(taken)} runs)"
        )
    ratios = [b / a for a, b in zip(times[False], times[True], strict=True)]
    ratio = statistics.median(times[True]) / statistics.median(times[False])
    print(f"ratio of the medians {ratio:.2f}, of pairs {min(ratios):.2f} to {max(ratios):.2f}")
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
