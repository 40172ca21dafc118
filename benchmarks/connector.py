"""Our connector beside Spark's own, in one SparkSession of PySpark 4.2 that has both.

Both read the same topics of one Apache Kafka and write to it. Spark's connector gets the fetch
sizes that ours has by default where those are larger than its own, and both the same cores.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.brokers import Broker, cluster, topic
from benchmarks.made_rows import ROWS_PER_SLICE, fill, rows_of
from benchmarks.pairs import Comparison, Measure
from pyspark_kafkalog import DefaultSource, load
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.client.admin import create_topic
from pyspark_kafkalog.client.producer import Producer
from tests.interop.kafka_server import PEERS

PEER = "spark-sql-kafka-0-10"
OURS, THEIRS = "kafkalog", "kafka"
PARTITIONS = 4
STEADY_ROWS_PER_S = 1000
STEADY_S = 15.0
# Spark's own default is 1 MiB a partition; ours is larger.
_FETCH_BYTES = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": "52428800",
}


@contextmanager
def session() -> Iterator[SparkSession]:
    """PySpark 4.2 with both connectors, two cores, workers of this environment."""
    jars = sorted((PEERS / "spark-4.2").glob("*.jar"))
    if not jars:
        raise SystemExit(f"no Spark connector in {PEERS}: make peers")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DefaultSource)
    spark.dataSource.register(ReadyMade)
    yield spark
    spark.stop()


class Rows:
    """A topic of `count` equal records of `value_bytes`."""

    def __init__(self, broker: Broker, count: int, value_bytes: int) -> None:
        self.broker = broker
        self.servers = broker.bootstrap_servers
        self.count = count // ROWS_PER_SLICE * ROWS_PER_SLICE
        self.value_bytes = value_bytes
        self.topic = f"rows-{value_bytes}-{uuid.uuid4().hex[:8]}"
        with cluster(broker) as client:
            create_topic(client, self.topic, PARTITIONS)
            fill(client, self.topic, PARTITIONS, self.count, value_bytes)

    @property
    def name(self) -> str:
        return f"{self.count / 1e6:g} M x {self.value_bytes} B"

    def reader(self, spark: SparkSession, connector: str) -> DataFrameReader:
        reader = spark.read.format(connector).option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", self.topic).option("startingOffsets", "earliest")
        return reader.options(**_FETCH_BYTES) if connector == THEIRS else reader


def comparisons(spark: SparkSession, broker: Broker, scale: float) -> list[Comparison]:
    small = Rows(broker, int(5_000_000 * scale), 100)
    large = Rows(broker, int(1_000_000 * scale), 1000)

    def row(name: str, goal: float, ours: Measure, peer: Measure) -> Comparison:
        return Comparison(name, "M rows/s", goal, ours, peer, peer_name=PEER)

    made = []
    for rows, read_goal, pruned_goal in ((small, 2.0, 3.0), (large, 1.3, 1.5)):
        theirs = read(spark, rows, THEIRS, total)
        ours = read(spark, rows, OURS, total)
        pruned = read(spark, rows, OURS, total, "value binary")
        nooped = [read(spark, rows, connector, noop) for connector in (OURS, THEIRS)]
        made += [
            row(f"read {rows.name}, noop", read_goal, *nooped),
            row(f"read {rows.name}, sum(length)", read_goal, ours, theirs),
            row(f"read {rows.name}, value only, sum(length)", pruned_goal, pruned, theirs),
        ]
    # Not a peer but a bound: what Spark takes from a Python data source that does nothing.
    bound = Comparison(
        f"read {small.name} : ready-made Arrow batches",
        "M rows/s",
        0.8,
        read(spark, small, OURS, noop),
        ready_made(spark, small),
        peer_name="ready-made Arrow batches",
    )
    return [
        *made,
        bound,
        row(
            f"AvailableNow drain {small.name}",
            2,
            drain(spark, small, OURS),
            drain(spark, small, THEIRS),
        ),
        row(f"write {small.name}", 1.5, write(spark, small, OURS), write(spark, small, THEIRS)),
        row(f"land {small.name} in Parquet", 4, landing(spark, small), parquet(spark, small)),
        row(f"land {large.name} in Parquet", 1, landing(spark, large), parquet(spark, large)),
        Comparison(
            f"steady micro-batch, {STEADY_ROWS_PER_S:,} rows/s, p50 of triggerExecution",
            "ms",
            1,
            steady(spark, broker, OURS),
            steady(spark, broker, THEIRS),
            higher_is_better=False,
            peer_name=PEER,
        ),
    ]


Action = Callable[[DataFrame, Rows], None]


def noop(frame: DataFrame, rows: Rows) -> None:
    frame.write.format("noop").mode("overwrite").save()


def total(frame: DataFrame, rows: Rows) -> None:
    (row,) = frame.selectExpr("sum(length(value))").collect()
    assert row[0] == rows.count * rows.value_bytes


def read(
    spark: SparkSession, rows: Rows, connector: str, action: Action, columns: str = ""
) -> Measure:
    """Reads all rows; with `columns`, a schema as `.schema(...)` takes it, only those."""

    def measure() -> float:
        reader = rows.reader(spark, connector)
        began = time.perf_counter()
        action((reader.schema(columns) if columns else reader).load(), rows)
        return rows.count / (time.perf_counter() - began) / 1e6

    return measure


def drain(spark: SparkSession, rows: Rows, connector: str) -> Measure:
    def measure() -> float:
        stream = spark.readStream.format(connector).option("kafka.bootstrap.servers", rows.servers)
        stream = stream.option("subscribe", rows.topic).option("startingOffsets", "earliest")
        if connector == THEIRS:
            stream = stream.options(**_FETCH_BYTES)
        with tempfile.TemporaryDirectory() as checkpoint:
            began = time.perf_counter()
            query = (
                stream.load()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            seconds = time.perf_counter() - began
            assert sum(each["numInputRows"] for each in query.recentProgress) == rows.count
        return rows.count / seconds / 1e6

    return measure


def write(spark: SparkSession, rows: Rows, connector: str) -> Measure:
    def measure() -> float:
        made = spark.range(0, rows.count, 1, PARTITIONS).selectExpr(
            "cast(id as string) as key",
            f"lpad(cast(id as string), {rows.value_bytes}, 'x') as value",
        )
        with topic(rows.broker, PARTITIONS) as name:
            sink = made.write.format(connector).mode("append").option("topic", name)
            began = time.perf_counter()
            sink.option("kafka.bootstrap.servers", rows.servers).save()
            return rows.count / (time.perf_counter() - began) / 1e6

    return measure


def landing(spark: SparkSession, rows: Rows) -> Measure:
    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            options = {"kafka.bootstrap.servers": rows.servers, "subscribe": rows.topic}
            began = time.perf_counter()
            result = load(spark, name="bench", target=f"parquet:{folder}/t", options=options)
            seconds = time.perf_counter() - began
            assert result.records == rows.count
        return rows.count / seconds / 1e6

    return measure


def parquet(spark: SparkSession, rows: Rows) -> Measure:
    """Spark's connector into Spark's Parquet with zstd: what a user would do without a load."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            frame = rows.reader(spark, THEIRS).load()
            began = time.perf_counter()
            frame.write.option("compression", "zstd").parquet(f"{folder}/t")
            return rows.count / (time.perf_counter() - began) / 1e6

    return measure


def steady(spark: SparkSession, broker: Broker, connector: str) -> Measure:
    """Milliseconds of a trigger while rows come in evenly."""

    def measure() -> float:
        done = threading.Event()
        with topic(broker, PARTITIONS) as name, tempfile.TemporaryDirectory() as checkpoint:
            stream = spark.readStream.format(connector).option("subscribe", name)
            frame = stream.option("kafka.bootstrap.servers", broker.bootstrap_servers).load()
            sink = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            feeder = threading.Thread(target=feed, args=(broker, name, done))
            query = sink.start()
            feeder.start()
            query.awaitTermination(int(STEADY_S))
            done.set()
            feeder.join()
            query.stop()
        times = [
            each["durationMs"]["triggerExecution"]
            for each in query.recentProgress
            if each["numInputRows"]
        ]
        # The first batches warm up.
        return float(statistics.median(times[3:]))

    return measure


def feed(broker: Broker, name: str, done: threading.Event) -> None:
    """STEADY_ROWS_PER_S rows of 100 bytes, ten times a second, until `done`."""
    each = STEADY_ROWS_PER_S // 10
    rows = rows_of(100).slice(0, each)
    with cluster(broker) as client, Producer(client) as producer:
        while not done.wait(0.1):
            encoder = RecordEncoder(PARTITIONS)
            for partition, batch in (*encoder.encode(rows), *encoder.finish()):
                producer.send(TopicPartition(name, partition), batch)


def ready_made(spark: SparkSession, rows: Rows) -> Measure:
    """The same rows out of a data source that made them before: Python to JVM, and nothing else."""

    def measure() -> float:
        options = {"count": str(rows.count), "value_bytes": str(rows.value_bytes)}
        began = time.perf_counter()
        noop(spark.read.format("ready-made").options(**options).load(), rows)
        return rows.count / (time.perf_counter() - began) / 1e6

    return measure


class ReadyMade(DataSource):
    """Rows like those of a topic, one batch yielded over and over in each of PARTITIONS tasks."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> StructType:
        return DefaultSource(
            {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"}
        ).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyMadeReader(int(self.options["count"]), int(self.options["value_bytes"]))


class _ReadyMadeReader(DataSourceReader):
    def __init__(self, count: int, value_bytes: int) -> None:
        self._count, self._value_bytes = count, value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = rows_of(self._value_bytes)
        count = rows.num_rows
        now = pa.scalar(time.time_ns() // 1000, pa.timestamp("us", tz="UTC"))
        columns = {
            "key": rows.column("key"),
            "value": rows.column("value"),
            "topic": pa.array(["rows"] * count),
            "partition": pa.array([partition.value] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([now.as_py()] * count, now.type),
            "timestampType": pa.array([0] * count, pa.int32()),
        }
        schema = row_schema(DEFAULT_COLUMNS)
        arrays = [columns[name].cast(schema.field(name).type) for name in DEFAULT_COLUMNS]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for _ in range(self._count // PARTITIONS // count):
            yield batch
