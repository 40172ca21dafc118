"""First numbers: batch read, landing, the broker's start and its idle memory.

    python -m benchmarks.first_numbers [--scale 0.1] [--repeats 3]

Makes its data once on an embedded broker (5 M records of 100 bytes and 1 M of 1 kB, in 4 partitions
each), then measures each row `--repeats` times after one warm-up and prints the median and the
range. Times of one machine under one load: compare ratios of one run, not runs.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import pyspark_kafkalog
from benchmarks.brokers import resident_mb
from benchmarks.made_rows import fill
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client.admin import create_topic
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer

PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Data:
    """One topic of equal records."""

    topic: str
    records: int
    value_bytes: int


def produce(servers: str, data: Data) -> float:
    """Creates and fills the topic; returns the seconds that producing took."""
    config = ClientConfig.from_options({"bootstrap.servers": servers})
    with Cluster(config) as cluster:
        create_topic(cluster, data.topic, PARTITIONS)
        started = time.perf_counter()
        fill(cluster, data.topic, PARTITIONS, data.records, data.value_bytes)
        return time.perf_counter() - started


def measured(work: Callable[[], None], repeats: int) -> list[float]:
    """Seconds of each repeat, after one warm-up."""
    work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return seconds


def first_acknowledged_record(repeats: int) -> list[float]:
    """Seconds from starting the process to the answer to the first produced record."""
    seconds = []
    row = pa.RecordBatch.from_pydict({"value": pa.array([b"first"], pa.binary())})
    for _ in range(repeats + 1):
        started = time.perf_counter()
        with pyspark_kafkalog.EmbeddedBroker() as broker:
            config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
            with Cluster(config) as cluster:
                create_topic(cluster, "first", 1)
                encoder = RecordEncoder(1)
                batches = [*encoder.encode(row), *encoder.finish()]
                with Producer(cluster) as producer:
                    for partition, batch in batches:
                        producer.send(TopicPartition("first", partition), batch)
            seconds.append(time.perf_counter() - started)
    return seconds[1:]


class Rows:
    """The closing table."""

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats
        self.table = Table("work", title="median of repeats (lowest to highest)")
        self.table.add_column("figure", justify="right")
        self.table.add_column("spread", justify="right")

    def rate(self, name: str, records: int, work: Callable[[], None]) -> None:
        rates = sorted(records / seconds / 1e6 for seconds in measured(work, self._repeats))
        spread = f"{rates[0]:.2f} to {rates[-1]:.2f}"
        self.table.add_row(name, f"{statistics.median(rates):.2f} M records/s", spread)

    def figures(self, name: str, unit: str, values: list[float]) -> None:
        spread = f"{min(values):.2f} to {max(values):.2f}"
        self.table.add_row(name, f"{statistics.median(values):.2f} {unit}", spread)


def reads(spark: SparkSession, servers: str, data: Data, rows: Rows) -> None:
    def read(columns: str | None, action: str) -> Callable[[], None]:
        def work() -> None:
            reader = spark.read.format("kafkalog").option("kafka.bootstrap.servers", servers)
            if columns:
                reader = reader.schema(columns)
            loaded = reader.option("subscribe", data.topic).load()
            if action == "noop":
                loaded.write.format("noop").mode("overwrite").save()
            else:
                (total,) = loaded.selectExpr("sum(length(value))").collect()
                assert total[0] == data.records * data.value_bytes

        return work

    name = f"{data.records / 1e6:g} M x {data.value_bytes} B"
    rows.rate(f"batch read {name}, noop", data.records, read(None, "noop"))
    rows.rate(f"batch read {name}, sum(length(value))", data.records, read(None, "sum"))
    rows.rate("the same, .schema('value binary')", data.records, read("value binary", "sum"))


def landing(spark: SparkSession, servers: str, data: Data, rows: Rows) -> None:
    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            result = pyspark_kafkalog.load(
                spark,
                name="bench",
                target=f"parquet:{folder}",
                options={"kafka.bootstrap.servers": servers, "subscribe": data.topic},
            )
            assert result.records == data.records

    name = f"landing {data.records / 1e6:g} M x {data.value_bytes} B in Parquet"
    rows.rate(name, data.records, work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    small = Data("small", int(5_000_000 * options.scale), 100)
    large = Data("large", int(1_000_000 * options.scale), 1000)
    rows = Rows(options.repeats)
    rows.figures("broker start to first record", "s", first_acknowledged_record(options.repeats))
    with pyspark_kafkalog.EmbeddedBroker() as broker:
        rows.figures("broker, idle", "MB", [resident_mb(broker.pid)])
        servers = broker.bootstrap_servers
        for data in (small, large):
            rate = data.records / produce(servers, data) / 1e6
            rows.figures(f"produce {data.topic}, one client", "M records/s", [rate])
        rows.figures("broker, after producing", "MB", [resident_mb(broker.pid)])
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = (
            SparkSession.builder.master("local[*]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        for data in (small, large):
            reads(spark, servers, data, rows)
            landing(spark, servers, data, rows)
        spark.stop()
    Console().print(rows.table)


if __name__ == "__main__":
    main()
