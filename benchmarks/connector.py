"""Our connector beside Spark's own, in one SparkSession of PySpark 4.2 that has both.

Both read the same topics of one Apache Kafka and write to it, with the same cores. Spark's
connector gets the fetch and batch sizes that ours has by default, as its own are smaller. Besides
rows a second, reads tell what they cost: processor time of the driver's JVM and all Python workers.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.made_rows import HEADERS_PER_ROW, PARTITIONS, Kind, MadeTopic, rows_of
from benchmarks.pairs import Comparison, Measure, Row
from benchmarks.processes import cpu_s, cpu_s_since
from benchmarks.running import (
    FETCH_OPTIONS,
    OURS,
    SPARK_CONNECTOR,
    THEIRS,
    WRITE_OPTIONS,
    Running,
    jvm_pid,
    records_in,
    topic,
)
from pyspark_kafkalog import DefaultSource, load
from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, row_schema
from pyspark_kafkalog.record.compression import Codec

GROUP = "Connector"
BEYOND = "Connector, beyond the goals"
MANY, VERY_MANY = 64, 1000
_FIRST_ID = 100_000_000
"""All ids that are written have as many digits."""
# The JVM goes on compiling what all reads share for as many queries of either connector: ours came
# from 2.3 to 4.0 M rows a second meanwhile, Spark's own from 1.6 to 2.2. What each kind of query
# has for itself takes a few more.
_FIRST_WARM_UP = 5
_WARM_UP = 3
# A task takes 50,000 offsets of small partitions together at most.
_PARTITIONS_PER_TASK = "250"
# Arrow's level of zstd where none is given is 1, that of Spark's Parquet 3.
_ZSTD = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
_LANDING = {
    "ours": "load() to parquet, zstd",
    "peer": f"format('kafka') written by Spark's Parquet, {_ZSTD}",
}

Action = Callable[[DataFrame, MadeTopic], None]


def noop(frame: DataFrame, made: MadeTopic) -> None:
    frame.write.format("noop").mode("overwrite").save()


def total(frame: DataFrame, made: MadeTopic) -> None:
    (row,) = frame.selectExpr("sum(length(value))").collect()
    assert row[0] == made.size_bytes, f"{row[0]} bytes of values read of {made.size_bytes}"


def coalesced(frame: DataFrame, made: MadeTopic) -> None:
    total(frame.coalesce(2), made)


def total_headers(frame: DataFrame, made: MadeTopic) -> None:
    (row,) = frame.selectExpr("sum(length(value))", "sum(size(headers))").collect()
    assert tuple(row) == (made.size_bytes, HEADERS_PER_ROW * made.count), row


@dataclass(frozen=True, slots=True)
class Read:
    """A batch read of a whole topic. With `columns`, a schema as `.schema(...)` takes it, only
    these are read. Spark's own connector gets FETCH_OPTIONS, or, not `is_tuned`, its defaults."""

    running: Running
    made: MadeTopic
    connector: str
    action: Action = total
    columns: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    is_tuned: bool = True

    def rate(self) -> float:
        """Millions of rows a second."""
        return self.made.count / self.seconds() / 1e6

    def rate_and_cost(self) -> tuple[float, float]:
        """Millions of rows a second; seconds of processor time for a GB of values."""
        pid = jvm_pid(self.running.spark)
        before_s = cpu_s(pid)
        rate = self.rate()
        return rate, cpu_s_since(pid, before_s) / self.made.size_bytes * 1e9

    def seconds(self) -> float:
        began = time.perf_counter()
        self.action(self.frame(), self.made)
        return time.perf_counter() - began

    def frame(self) -> DataFrame:
        reader = self.running.spark.read.format(self.connector).option("subscribe", self.made.name)
        reader = reader.option("kafka.bootstrap.servers", self.made.servers)
        reader = reader.option("startingOffsets", "earliest").options(**self.options)
        if self.connector == THEIRS and self.is_tuned:
            reader = reader.options(**FETCH_OPTIONS)
        return (reader.schema(self.columns) if self.columns else reader).load()


def comparisons(running: Running) -> list[Comparison]:
    """The rows of the design."""
    small = _topic(running, 5_000_000)
    large = _topic(running, 1_000_000, Kind(1000))
    return [
        *_reads(running, small, goal=2.0, pruned_goal=3.0, pair_s=5, warm_up=_FIRST_WARM_UP),
        *_reads(running, large, goal=1.3, pruned_goal=1.5, pair_s=4, warm_up=_WARM_UP),
        # Not a peer but a bound: what Spark takes from a Python data source that does nothing.
        Comparison.of_one(
            _row(f"read {small.title} : ready-made Arrow batches", 0.8, "ready-made batches"),
            Read(running, small, OURS, noop).rate,
            ready_made(running, small),
            pair_s=4,
            warm_up=_WARM_UP,
        ),
        Comparison.of_one(
            _row(f"write {small.title}", 1.5),
            write(running, small, OURS),
            write(running, small, THEIRS),
            pair_s=15,
        ),
        *(
            Comparison.of_one(
                _row(f"land {made.title} in Parquet", goal, settings=_LANDING),
                landing(running, made),
                parquet(running, made),
                pair_s,
            )
            for made, goal, pair_s in ((small, 4, 13), (large, None, 8))
        ),
    ]


def beyond(running: Running) -> list[Comparison]:
    """Other kinds of topics, read by both."""
    read_committed = {"kafka.isolation.level": "read_committed"}
    kinds: list[tuple[str, Kind, Action, dict[str, str]]] = [
        ("read_committed", Kind(in_transactions=True), total, read_committed),
        ("headers", Kind(has_headers=True), total_headers, {"includeHeaders": "true"}),
        ("JSON", Kind(is_json=True), total, {}),
        *(
            (f"JSON, {codec.name.lower()}", Kind(is_json=True, codec=codec), total, {})
            for codec in Codec
            if codec is not Codec.NONE
        ),
        (f"{MANY} partitions", Kind(partitions=MANY), total, {}),
    ]
    made = [
        _kind(running, _topic(running, 1_000_000, kind), name, action, options)
        for name, kind, action, options in kinds
    ]
    plain = _topic(running, 5_000_000)
    few = _topic(running, 200_000, Kind(partitions=VERY_MANY))
    settings = {"ours": f"maxPartitionsPerTask={_PARTITIONS_PER_TASK}", "peer": "coalesce(2)"}
    return [
        *made,
        Comparison.of_one(
            _row(
                f"read {plain.title}, sum(length), both as they come",
                settings={"both": "no options beyond topic and brokers"},
                group=BEYOND,
            ),
            Read(running, plain, OURS).rate,
            Read(running, plain, THEIRS, is_tuned=False).rate,
            pair_s=11,
        ),
        Comparison.of_one(
            _row(f"read {few.title}, {VERY_MANY:,} partitions", settings=settings, group=BEYOND),
            Read(
                running, few, OURS, total, options={"maxPartitionsPerTask": _PARTITIONS_PER_TASK}
            ).rate,
            Read(running, few, THEIRS, coalesced).rate,
            pair_s=25,
            quick=False,
        ),
    ]


def _topic(running: Running, count: int, kind: Kind | None = None) -> MadeTopic:
    return MadeTopic(lambda: running.kafka, int(count * running.scale), kind)


def _row(
    name: str,
    goal: float | None = None,
    peer_name: str = SPARK_CONNECTOR,
    settings: Mapping[str, str] | None = None,
    group: str = GROUP,
) -> Row:
    return Row(group, name, "M rows/s", goal, peer_name=peer_name, settings=settings or {})


def _reads(
    running: Running,
    made: MadeTopic,
    goal: float,
    pruned_goal: float,
    pair_s: float,
    warm_up: int,
) -> list[Comparison]:
    ours, theirs = Read(running, made, OURS), Read(running, made, THEIRS)
    name = f"read {made.title}"
    cost = Row(
        BEYOND,
        f"processor time of {name}",
        "s/GB",
        higher_is_better=False,
        peer_name=SPARK_CONNECTOR,
    )
    return [
        Comparison.of_one(
            _row(f"{name}, noop", goal),
            Read(running, made, OURS, noop).rate,
            Read(running, made, THEIRS, noop).rate,
            pair_s,
            warm_up=warm_up,
        ),
        Comparison(
            (_row(f"{name}, sum(length)", goal), cost),
            ours.rate_and_cost,
            theirs.rate_and_cost,
            pair_s,
            warm_up=_WARM_UP,
        ),
        Comparison.of_one(
            _row(f"{name}, value only", pruned_goal, settings={"ours": '.schema("value binary")'}),
            Read(running, made, OURS, columns="value binary").rate,
            theirs.rate,
            pair_s,
            warm_up=_WARM_UP,
        ),
    ]


def _kind(
    running: Running, made: MadeTopic, name: str, action: Action, options: dict[str, str]
) -> Comparison:
    return Comparison.of_one(
        _row(f"read {made.title}, {name}", settings=_both(options), group=BEYOND),
        Read(running, made, OURS, action, options=options).rate,
        Read(running, made, THEIRS, action, options=options).rate,
        pair_s=3.5,
    )


def _both(options: Mapping[str, str]) -> dict[str, str]:
    return {"both": str(options)} if options else {}


def write(running: Running, rows: MadeTopic, connector: str) -> Measure:
    # Not by lpad, which pads byte by byte: it took most of the JVM's time on both sides.
    padding = "x" * (rows.kind.value_bytes - len(str(_FIRST_ID)))

    def measure() -> float:
        made = running.spark.range(0, rows.count, 1, PARTITIONS).selectExpr(
            "cast(id as string) as key",
            f"concat(cast(id + {_FIRST_ID} as string), '{padding}') as value",
        )
        with topic(rows.broker, PARTITIONS) as name:
            sink = made.write.format(connector).mode("append").option("topic", name)
            sink = sink.option("kafka.bootstrap.servers", rows.servers)
            if connector == THEIRS:
                sink = sink.options(**WRITE_OPTIONS)
            began = time.perf_counter()
            sink.save()
            seconds = time.perf_counter() - began
            assert records_in(rows.broker, name, PARTITIONS) == rows.count
        return rows.count / seconds / 1e6

    return measure


def landing(running: Running, rows: MadeTopic) -> Measure:
    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            options = {"kafka.bootstrap.servers": rows.servers, "subscribe": rows.name}
            began = time.perf_counter()
            result = load(
                running.spark, name="bench", target=f"parquet:{folder}/t", options=options
            )
            seconds = time.perf_counter() - began
            assert result.records == rows.count
        return rows.count / seconds / 1e6

    return measure


def parquet(running: Running, rows: MadeTopic) -> Measure:
    """Spark's connector into Spark's Parquet: what a user would do without a load."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            frame = Read(running, rows, THEIRS).frame()
            frame.write.options(**_ZSTD).parquet(f"{folder}/t")
            seconds = time.perf_counter() - began
            assert running.spark.read.parquet(f"{folder}/t").count() == rows.count
        return rows.count / seconds / 1e6

    return measure


def ready_made(running: Running, rows: MadeTopic) -> Measure:
    """The same rows out of a data source that made them before: Python to JVM, and nothing else."""

    def measure() -> float:
        running.spark.dataSource.register(ReadyMade)
        options = {"count": str(rows.count), "value_bytes": str(rows.kind.value_bytes)}
        began = time.perf_counter()
        noop(running.spark.read.format("ready-made").options(**options).load(), rows)
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
        rows = rows_of(Kind(self._value_bytes))
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
        left = self._count // PARTITIONS
        while left > 0:
            yield batch.slice(0, min(left, count))
            left -= count
