"""`load()` with Spark and a broker, of rows that change on the way."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameReader

import pyspark_kafkalog
from pyspark_kafkalog.errors import BadRecordError, InvalidOptionError, KafkalogError
from pyspark_kafkalog.warehouse import portions
from pyspark_kafkalog.warehouse.targets.parquet import ParquetTarget
from tests.pyspark_kafkalog.warehouse.tables import KINDS
from tests.spark.conftest import Topics

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "the warehouse")


@pytest.fixture
def load(spark: SparkSession, servers: str, path: str) -> Callable[..., Any]:
    """`load(topic, ...)` into the test's own target."""

    def loader(topic: str, **how: Any) -> Any:
        options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        return pyspark_kafkalog.load(spark, "nightly", f"parquet:{path}", options, **how)

    return loader


def rows_in(path: str) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist() if os.path.isdir(path) else []


def offsets_in(path: str, topic: str) -> dict[int, int]:
    found = ParquetTarget(path).position("nightly").offsets
    return {each.partition: offset for each, offset in found.items() if each.topic == topic}


def test_a_query_between_topic_and_warehouse_sees_the_planned_records_once(
    load: Callable[..., Any], path: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "MOST_OFFSETS_PER_TASK", 4)
    monkeypatch.setattr(portions, "FEW_OFFSETS", 4)
    topic = topics.create(2)
    topics.fill(topic, 10, 5)
    seen = []

    def by_partition(df: DataFrame) -> DataFrame:
        # What comes after the plan is for the next load.
        seen.append(df.columns)
        topics.fill(topic, 1)
        return df.groupBy("partition").agg(F.count("*").alias("records"))

    result = load(topic, transform=by_partition)
    assert (result.records, result.bad_records) == (2, 0)
    assert seen[0] == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    ]
    counts = sorted((row["partition"], row["records"]) for row in rows_in(path))
    assert counts == [(0, 10), (1, 5)]
    assert offsets_in(path, topic) == {0: 10, 1: 5}
    load(topic, transform=by_partition)
    assert sorted(row["records"] for row in rows_in(path)) == [2, 5, 10]


def test_queries_run_in_threads_of_the_program(
    load: Callable[..., Any],
    read: Callable[..., DataFrameReader],
    servers: str,
    path: str,
    topics: Topics,
) -> None:
    """Such a thread has no active session, in which Spark looks for formats to write to."""
    topic, copy = topics.create(), topics.create()
    topics.fill(topic, 10)

    def written() -> int:
        load(topic, transform=lambda df: df.where("offset > 3"))
        rows = read(subscribe=topic).load().select("value").write.format("kafkalog")
        rows.mode("append").options(topic=copy, **{"kafka.bootstrap.servers": servers}).save()
        return read(subscribe=copy).load().count()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(written).result() == 10
    assert len(rows_in(path)) == 6


def test_a_session_learns_of_one_data_source_however_many_loads_it_runs(
    spark: SparkSession,
    servers: str,
    load: Callable[..., Any],
    topics: Topics,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    field = manager.getClass().getDeclaredField("runtimeDataSourceBuilders")
    field.setAccessible(True)
    topic, counts, shown = topics.create(), [], []

    def all_of_it(df: DataFrame) -> DataFrame:
        df.explain(extended=True)
        shown.append(df._jdf.queryExecution().toString())
        return df

    for _ in range(3):
        topics.fill(topic, 1)
        assert load(topic, transform=all_of_it).records == 1
        counts.append(field.get(manager).size())
    assert counts[0] == counts[1] == counts[2]
    # What it is to do holds the options of the load, passwords included.
    assert "kafkalog_load_frames" in shown[0]
    assert "secretplan" not in "".join([*shown, capsys.readouterr().out]).lower()


@pytest.fixture
def absurd(topics: Topics) -> str:
    """A topic whose offset 1 has nanoseconds for milliseconds, and 3 a time before 1970."""
    topic = topics.create(message_timestamp_after_max_ms=str((1 << 63) - 1))
    for value, time_ms in ((b"a", 1000), (b"b", 1_700_000_000_123_456_789), (b"c", 2000)):
        topics.append(topic, [value], timestamp=time_ms)
    topics.append(topic, [b"\xff"], timestamp=-1_000_000, headers=[("h", b"x")])
    return topic


@pytest.mark.parametrize("value_format", ["binary", "string"])
def test_a_record_with_an_absurd_time_costs_itself_alone(
    load: Callable[..., Any], path: str, absurd: str, value_format: str
) -> None:
    said = f"{absurd}-0 at offset 1 has the timestamp 1700000000123456789 ms.*set on_error"
    with pytest.raises(BadRecordError, match=said):
        load(absurd)
    result = load(absurd, on_error="null", value_format=value_format)
    bad = {"binary": [1], "string": [1, 3]}[value_format]
    assert (result.records, result.bad_records) == (4, len(bad))
    rows = sorted(rows_in(path), key=lambda row: row["offset"])
    assert [row["timestamp"] is None for row in rows] == [False, True, False, False]
    assert [row["offset"] for row in rows if row["value_error"]] == bad
    assert "later or earlier than any time" in rows[1]["value_error"]
    assert rows[1]["value"] in (b"b", "b")
    assert rows[3]["timestamp"].timestamp() == -1000


def test_a_record_with_an_absurd_time_goes_to_the_dead_letters(
    load: Callable[..., Any], path: str, absurd: str, read: Callable[..., DataFrameReader]
) -> None:
    result = load(absurd, on_error="deadletter", transform=lambda df: df.select("offset"))
    assert (result.records, result.bad_records) == (3, 1)
    assert sorted(row["offset"] for row in rows_in(path)) == [0, 2, 3]
    letters = read(subscribe=f"{absurd}-dead-letters", includeHeaders="true").load().collect()
    [letter] = letters
    said = {header.key: bytes(header.value) for header in letter.headers}
    assert (bytes(letter.value), said["kafkalog.offset"]) == (b"b", b"1")


def test_reads_and_streams_take_a_record_with_an_absurd_time_if_they_are_told_to(
    spark: SparkSession, read: Callable[..., DataFrameReader], absurd: str, servers: str
) -> None:
    with pytest.raises(Exception, match=r"BadRecordError: The record of .* at offset 1 has the"):
        read(subscribe=absurd).load().count()
    assert read(subscribe=absurd).schema("value binary").load().count() == 4
    rows = read(subscribe=absurd, mode="permissive").load()
    assert [row.offset for row in rows.where("timestamp is null").collect()] == [1]
    source = spark.readStream.format("kafkalog").option("kafka.bootstrap.servers", servers)
    stream = source.options(subscribe=absurd, startingOffsets="earliest", mode="PERMISSIVE").load()
    query = stream.writeStream.format("memory").queryName("absurd")
    query.trigger(availableNow=True).start().awaitTermination(300)
    assert spark.table("absurd").where("timestamp is not null").count() == 3
    with pytest.raises(Exception, match="mode must be FAILFAST or PERMISSIVE"):
        read(subscribe=absurd, mode="DROPMALFORMED").load()


@pytest.mark.parametrize("kind", ["delta", "sqlite"])
def test_offsets_move_when_nothing_is_left(
    spark: SparkSession, servers: str, topics: Topics, tmp_path: Path, kind: str
) -> None:
    table = KINDS[kind](tmp_path)
    topic = topics.create()
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}

    def nothing(batch: pa.RecordBatch) -> Any | None:
        return batch.slice(0, 0) if batch.num_rows < 3 else None

    for until, transform in enumerate([lambda df: df.where("value is null"), nothing], 1):
        topics.fill(topic, 5)
        result = pyspark_kafkalog.load(spark, "nightly", table.name, options, transform=transform)
        assert (result.records, len(result.files)) == (0, 0)
        assert result.commit_id is not None
        last = table.open().position("nightly").offsets
        assert last == {TopicPartition(topic, 0): 5 * until}
    assert table.all_rows() == []


def test_what_is_wrong_with_a_query_is_said_and_nothing_is_published(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 5)

    def refuse(value: str) -> str:
        raise ZeroDivisionError("not today")

    # PySpark reads the annotations of a function as a choice of Arrow's kinds, and warns.
    broken = F.udf(lambda value: refuse(value))
    with pytest.raises(KafkalogError, match=r"A task of the load failed .*not today"):
        load(topic, transform=lambda df: df.select(broken("value").alias("v")))
    with pytest.raises(InvalidOptionError, match="returned a int for a DataFrame"):
        load(topic, transform=lambda df: df.count())
    with pytest.raises(InvalidOptionError, match="partition_by names day"):
        load(topic, transform=lambda df: df.select("offset"), partition_by="day")
    assert offsets_in(path, topic) == {}
    assert not os.path.exists(f"{path}/_kafkalog/staging") or not os.listdir(
        f"{path}/_kafkalog/staging"
    )


def test_bad_records_go_to_a_topic_before_the_commit(
    load: Callable[..., Any], path: str, topics: Topics, read: Callable[..., DataFrameReader]
) -> None:
    topic = topics.create()
    good = [json.dumps({"id": n, "at": f"2026-11-{n:02}"}).encode() for n in (1, 2)]
    topics.append(topic, [good[0], b"bad", good[1]], headers=[("trace", b"\x01")])
    schema = {"value_format": "json", "value_schema": "id BIGINT, at DATE"}
    with pytest.raises(BadRecordError, match=f"{topic}-0 at offset 1 cannot be decoded"):
        load(topic, **schema)
    result = load(
        topic, **schema, on_error="deadletter", partition_by="days(at)", sort_by="id desc"
    )
    assert (result.records, result.bad_records, len(result.files)) == (2, 1, 2)
    assert sorted((row["id"], row["offset"]) for row in rows_in(path)) == [(1, 0), (2, 2)]
    assert os.path.isdir(f"{path}/at_day=2026-11-01")
    [letter] = read(subscribe=f"{topic}-dead-letters", includeHeaders="true").load().collect()
    headers = {header.key: bytes(header.value) for header in letter.headers}
    assert bytes(letter.value) == b"bad"
    assert (headers["trace"], headers["kafkalog.offset"]) == (b"\x01", b"1")
    assert headers["kafkalog.topic"] == topic.encode()
    assert headers["kafkalog.reason"]
    topics.append(topic, [b"bad"])
    with pytest.raises(InvalidOptionError, match="which this load reads"):
        load(topic, **schema, on_error="deadletter", dead_letter_topic=topic)


@pytest.mark.parametrize("function", ["none", "batches", "dataframes"])
def test_a_protobuf_duration_is_loaded_as_what_a_transform_makes_of_it(
    load: Callable[..., Any], path: str, topics: Topics, function: str
) -> None:
    def in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
        took = batch.column("took").cast(pa.int64())
        return pa.RecordBatch.from_arrays([took], names=["took"])

    schema = (
        'syntax = "proto3"; import "google/protobuf/duration.proto";'
        "message Job { google.protobuf.Duration took = 1; }"
    )
    topic = topics.create()
    topics.append(topic, [b"\x0a\x02\x08\x05"])
    how: dict[str, Any] = {"value_format": "protobuf", "value_schema": schema}
    if function == "none":
        with pytest.raises(InvalidOptionError, match=r"column took is .* cast it in a transform"):
            load(topic, **how)
    elif function == "batches":
        load(topic, transform=in_microseconds, **how)
        assert rows_in(path) == [{"took": 5_000_000}]
    else:
        load(topic, transform=lambda df: df.selectExpr("CAST(took AS STRING) took"), **how)
        assert rows_in(path) == [{"took": "INTERVAL '0 00:00:05' DAY TO SECOND"}]


@pytest.mark.long
def test_a_query_counts_bad_records_and_reads_decoded_columns(
    load: Callable[..., Any], path: str, topics: Topics
) -> None:
    topic = topics.create()
    topics.append(topic, [b'{"id": 1}', b"bad", b'{"id": 3}'])
    result = load(
        topic,
        value_format="json",
        value_schema="id BIGINT",
        on_error="null",
        transform=lambda df: df.selectExpr("id", "value_error is null as good"),
    )
    assert result.bad_records == 1
    assert sorted(map(str, rows_in(path))) == sorted(
        ["{'id': 1, 'good': True}", "{'id': None, 'good': False}", "{'id': 3, 'good': True}"]
    )


@pytest.mark.long
def test_a_task_that_spark_runs_again_doubles_nothing(
    load: Callable[..., Any], path: str, topics: Topics, tmp_path: Path
) -> None:
    """Each task fails once after it has written: its first files are in no commit."""
    topic = topics.create()
    topics.fill(topic, 20)
    marks = str(tmp_path)

    def once(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and not os.path.exists(f"{marks}/failed"):
            Path(marks, "failed").touch()
            raise ConnectionError("only once")
        return batch.select(["offset"])

    with pytest.raises(KafkalogError, match="only once"):
        load(topic, transform=once)
    assert load(topic, transform=once).records == 20
    assert sorted(row["offset"] for row in rows_in(path)) == list(range(20))


@pytest.mark.long
def test_the_command_line_shapes_rows(
    servers: str, topics: Topics, path: str, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.append(topic, [b'{"id": 1}', b"bad"])
    (tmp_path / "schema.ddl").write_text("id BIGINT")
    (tmp_path / "rows.py").write_text(
        "import pyarrow as pa\n\n"
        "def named(batch: pa.RecordBatch) -> pa.RecordBatch:\n"
        "    return batch.select(['id', 'offset', 'value_error'])\n"
    )
    arguments = ["load", topic, "--bootstrap-servers", servers, "--name", "nightly"]
    shape = ["--value-format", "json", "--value-schema", "schema.ddl", "--on-error", "null"]
    files = ["--transform", "rows:named", "--compression", "gzip", "--target-file-size", "2m"]
    command = [sys.executable, "-m", "pyspark_kafkalog.cli", *arguments, *shape, *files]
    done = subprocess.run(
        [*command, "--to", f"parquet:{path}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "Could not be decoded: 1 record."
    assert [(row["id"], row["offset"]) for row in rows_in(path)] == [(1, 0), (None, 1)]
