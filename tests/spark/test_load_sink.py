"""`format("kafkalog_load")`: rows of streams and DataFrames into a warehouse, each once."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kafka.structs import TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameReader

import pyspark_kafkalog
from tests.pyspark_kafkalog.warehouse.tables import KINDS, Table
from tests.spark.conftest import Topics, configured

pytestmark = pytest.mark.spark

# Not the object store: Spark's workers have the environment of before its server was started.
OTHERS = [
    pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind not in ("parquet", "s3")
]


@pytest.fixture(params=["parquet", *OTHERS])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "place"
    directory.mkdir()
    return KINDS[request.param](directory)


@pytest.fixture
def parquet(tmp_path: Path) -> Table:
    (tmp_path / "place").mkdir()
    return KINDS["parquet"](tmp_path / "place")


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    spark.dataSource.register(pyspark_kafkalog.LoadSink)


@pytest.fixture
def stream(spark: SparkSession, servers: str) -> Callable[..., DataFrame]:
    def source(topic: str, **options: str) -> DataFrame:
        return (
            spark.readStream.format("kafkalog")
            .option("kafka.bootstrap.servers", servers)
            .options(subscribe=topic, startingOffsets="earliest")
            .options(**options)
            .load()
        )

    return source


@pytest.fixture
def run(tmp_path: Path, servers: str) -> Callable[..., Any]:
    """Loads what a stream has until nothing is left; its numbers of input rows."""

    def until_done(
        rows: DataFrame, table: Table, checkpoint: str = "checkpoint", **options: str
    ) -> list[Any]:
        query = (
            rows.writeStream.format("kafkalog_load")
            .option("kafka.bootstrap.servers", servers)
            .options(target=table.name, name="nightly", startingOffsets="earliest")
            .options(**options)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        if (failure := query.exception()) is not None:
            raise failure
        return [progress.numInputRows for progress in query.recentProgress]

    return until_done


def places(table: Table) -> Counter[Any]:
    rows = table.arrow().select(["partition", "offset"]).to_pylist()
    return Counter((row["partition"], row["offset"]) for row in rows)


def once(*counts: int) -> Counter[Any]:
    return Counter((partition, n) for partition, count in enumerate(counts) for n in range(count))


def test_each_row_is_there_once_also_when_the_checkpoint_is_lost(
    stream: Callable[..., DataFrame],
    run: Callable[..., Any],
    table: Table,
    topics: Topics,
    tmp_path: Path,
) -> None:
    topic = topics.create(2)
    topics.fill(topic, 20, 5)
    # Rows of a partition are in all tasks, and in other batches each time.
    rows = stream(topic, maxOffsetsPerTrigger="13").repartition(3)
    assert sum(run(rows, table)) == 25
    assert places(table) == once(20, 5)
    shutil.rmtree(tmp_path / "checkpoint")
    topics.fill(topic, 3, 4)
    rows = stream(topic, maxOffsetsPerTrigger="17").repartition(2)
    assert sum(run(rows, table)) == 32
    assert places(table) == once(23, 9)
    last = table.open().position("nightly").offsets
    assert last == {TopicPartition(topic, 0): 23, TopicPartition(topic, 1): 9}
    assert run(rows, table) in ([], [0])


@pytest.mark.long
def test_a_load_and_a_stream_of_one_name_go_on_from_each_other(
    spark: SparkSession,
    servers: str,
    stream: Callable[..., DataFrame],
    run: Callable[..., Any],
    parquet: Table,
    topics: Topics,
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    pyspark_kafkalog.load(spark, "nightly", parquet.name, options)
    topics.fill(topic, 5)
    run(stream(topic), parquet)
    topics.fill(topic, 2)
    assert pyspark_kafkalog.load(spark, "nightly", parquet.name, options).records == 2
    assert places(parquet) == once(17)
    assert spark.read.parquet(f"{parquet.directory}/table").schema == stream(topic).schema


def test_a_second_query_of_a_name_is_refused_what_the_first_one_has_filtered(
    stream: Callable[..., DataFrame], run: Callable[..., Any], parquet: Table, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    rows = stream(topic)
    run(rows.where("offset % 2 = 0"), parquet, "even")
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"LoadConflictError: Another query"):
            run(rows.where("offset % 2 = 1"), parquet, "odd")
    run(rows.where("offset % 2 = 1"), parquet, "odd", name="odd")
    assert places(parquet) == once(10)


def test_records_become_other_rows_or_many_or_none(
    stream: Callable[..., DataFrame], run: Callable[..., Any], parquet: Table, topics: Topics
) -> None:
    topic = topics.create(2)
    topics.append(topic, [b"a,b", b"", b"c"], timestamp=1_700_000_000_000)
    topics.append(topic, [b"", b""], partition=1)
    words = stream(topic).select(
        "topic",
        F.col("partition").cast("long").alias("partition"),
        "offset",
        F.explode(F.split(F.col("value").cast("string"), ",")).alias("word"),
        F.struct(F.col("timestamp"), F.lit(1.5).alias("factor")).alias("more"),
    )
    run(words.where("word <> ''"), parquet)
    table = pq.read_table(f"{parquet.directory}/table")
    assert sorted(table.column("word").to_pylist()) == ["a", "b", "c"]
    assert {row["factor"] for row in table.column("more").to_pylist()} == {1.5}
    # A place says what was read, also where no row came of it.
    last = parquet.open().position("nightly").offsets
    assert last == {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 2}


def test_a_topic_that_was_created_again_is_refused(
    stream: Callable[..., DataFrame], run: Callable[..., Any], parquet: Table, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 5)
    run(stream(topic), parquet)
    topics.delete(topic)
    topics.create_again(topic)
    topics.fill(topic, 8)
    # Where the old checkpoint ended means other records: the first 5 would be passed over.
    sources = "created again since the query read them last.*query with a new checkpoint"
    targets = r"created again since .* load 'nightly'.*stream with a new checkpoint.*of the write"
    for checkpoint, said in (("checkpoint", sources), ("another", targets)):
        with pytest.raises(StreamingQueryException, match=said):
            run(stream(topic), parquet, checkpoint)
    assert places(parquet) == once(5)
    run(stream(topic), parquet, "new", failOnDataLoss="false")
    assert places(parquet) == once(5) + once(8)


def test_batches_without_rows_move_the_place(
    stream: Callable[..., DataFrame], run: Callable[..., Any], parquet: Table, topics: Topics
) -> None:
    topic, other = topics.create(), topics.create()
    topics.fill(topic, 5)
    rows = stream(f"{topic},{other}", maxOffsetsPerTrigger="2").where("offset > 3")
    assert run(rows, parquet) == [2, 2, 1]
    position = parquet.open().position("nightly")
    assert position.offsets == {TopicPartition(topic, 0): 5, TopicPartition(other, 0): 0}
    assert position.topic_ids.keys() == {topic, other}
    assert places(parquet) == Counter({(0, 4): 1})
    assert list(parquet.directory.glob("table/_kafkalog/staging/*")) == []


@pytest.mark.long
def test_a_source_that_is_new_counts_as_loaded_from_where_it_began(
    spark: SparkSession,
    servers: str,
    run: Callable[..., Any],
    parquet: Table,
    topics: Topics,
) -> None:
    first, second = topics.create(), topics.create()

    def source(topic: str, starting: str) -> DataFrame:
        found = spark.readStream.format("kafkalog").option("kafka.bootstrap.servers", servers)
        options = {"subscribe": topic, "startingOffsets": starting}
        return found.options(**options).name(topic.replace("-", "_")).load()

    topics.fill(first, 5)
    topics.fill(second, 7)
    with configured(spark, "spark.sql.streaming.queryEvolution.enableSourceEvolution", "true"):
        run(source(first, "earliest"), parquet)
        both = source(first, "earliest").unionAll(source(second, "latest"))
        with pytest.raises(Exception, match=f"DataLossError: .*{second}-0, which is new to it"):
            run(both, parquet)
        run(both, parquet, startingOffsets=json.dumps({second: {"0": 7}}))
        topics.fill(second, 2)
        run(both, parquet)
    found = parquet.arrow().select(["topic", "offset"]).to_pylist()
    rows = Counter((row["topic"], row["offset"]) for row in found)
    assert rows == Counter([*((first, n) for n in range(5)), (second, 7), (second, 8)])


def test_a_query_that_would_leave_records_out_is_refused(
    stream: Callable[..., DataFrame], run: Callable[..., Any], parquet: Table, topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    starts = {"startingOffsets": f'{{"{topic}":{{"0":4}}}}'}
    elsewhere = {"startingOffsets": '{"x":{"0":1}}'}
    with pytest.raises(StreamingQueryException, match=r"goes on at offset 0 .* from offset 4 on"):
        run(stream(topic, **starts), parquet, **elsewhere)
    # It is meant so.
    run(stream(topic, **starts), parquet, **starts)
    assert places(parquet) == Counter((0, n) for n in range(4, 10))
    # A new table, and the old checkpoint.
    shutil.rmtree(parquet.directory / "table")
    topics.fill(topic, 2)
    with pytest.raises(StreamingQueryException, match=r"goes on at offset 0 .* from offset 10 on"):
        run(stream(topic), parquet, **elsewhere)


def join_that_holds_back(stream: Callable[..., DataFrame], topics: Topics) -> tuple[DataFrame, str]:
    """A join that gives one of three records, and the topic on whose `k1` the two others wait."""
    left, right = topics.create(), topics.create()
    topics.append(left, [b"1", b"2"], key=b"k1")
    topics.append(left, [b"3"], key=b"k2")
    topics.append(right, [b""], key=b"k2")
    joined = stream(left).join(
        stream(right).select(F.col("key").alias("other")), F.expr("key = other")
    )
    return joined, right


@pytest.mark.long
def test_rows_that_a_join_held_back_are_refused_and_nothing_is_lost(
    stream: Callable[..., DataFrame], run: Callable[..., Any], parquet: Table, topics: Topics
) -> None:
    joined, right = join_that_holds_back(stream, topics)
    run(joined, parquet)
    assert places(parquet) == Counter({(0, 2): 1})
    topics.append(right, [b""], key=b"k1")
    with pytest.raises(Exception, match="InvalidRowError: There are rows of offsets 0 to 1"):
        run(joined, parquet)
    assert places(parquet) == Counter({(0, 2): 1})


@pytest.mark.long
def test_rows_that_a_join_held_back_are_refused_in_foreach_batch_too(
    stream: Callable[..., DataFrame], parquet: Table, topics: Topics, servers: str, tmp_path: Path
) -> None:
    joined, right = join_that_holds_back(stream, topics)

    def each(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("kafkalog_load").mode("append")
        writer = writer.option("kafka.bootstrap.servers", servers)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.options(target=parquet.name, name="nightly", startingOffsets="earliest").save()

    def run() -> None:
        writer = joined.writeStream.foreachBatch(each).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(300)
        if (failure := query.exception()) is not None:
            raise failure

    run()
    topics.append(right, [b""], key=b"k1")
    with pytest.raises(Exception, match="InvalidRowError: There are rows of offsets 0 to 1"):
        run()
    assert places(parquet) == Counter({(0, 2): 1})


@pytest.mark.long
def test_a_batch_that_was_committed_and_not_noted_is_not_committed_again(
    stream: Callable[..., DataFrame],
    run: Callable[..., Any],
    parquet: Table,
    topics: Topics,
    tmp_path: Path,
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    # Like a driver that was killed between the target's commit and Spark's note of it.
    run(stream(topic), parquet)
    for note in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        note.unlink()
    topics.fill(topic, 5)
    run(stream(topic), parquet)
    assert places(parquet) == once(15)


def test_a_dataframe_is_loaded_once(
    spark: SparkSession,
    read: Callable[..., DataFrameReader],
    table: Table,
    topics: Topics,
    servers: str,
) -> None:
    topic = topics.create(2)
    topics.fill(topic, 20, 5)

    def write() -> None:
        rows = read(subscribe=topic).load().repartition(3).selectExpr("*", "1 as version")
        writer = rows.write.format("kafkalog_load").mode("append")
        writer = writer.option("kafka.bootstrap.servers", servers)
        writer.options(target=table.name, name="nightly").save()

    write()
    write()
    topics.fill(topic, 1)
    write()
    assert places(table) == once(21, 5)
    assert set(table.arrow().column("version").to_pylist()) == {1}


def test_a_backfill_with_the_later_offsets_first_is_refused(
    read: Callable[..., DataFrameReader], parquet: Table, topics: Topics, servers: str
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)

    def write(start: int, until: int) -> None:
        offsets = {"startingOffsets": start, "endingOffsets": until}
        pieces = {name: f'{{"{topic}":{{"0":{offset}}}}}' for name, offset in offsets.items()}
        rows = read(subscribe=topic, **pieces).load()
        writer = rows.write.format("kafkalog_load").mode("append")
        writer = writer.option("kafka.bootstrap.servers", servers)
        writer.options(target=parquet.name, name="nightly").save()

    with pytest.raises(Exception, match=r"DataLossError: .*at offset 0 .*from offset 5 on"):
        write(5, 10)
    write(0, 5)
    write(5, 10)
    assert places(parquet) == once(10)


def test_wrong_use_is_said(
    spark: SparkSession,
    read: Callable[..., DataFrameReader],
    topics: Topics,
    parquet: Table,
    servers: str,
) -> None:
    rows = read(subscribe=topics.create()).load()
    counted = rows.groupBy("topic").count().write.format("kafkalog_load").mode("append")
    with pytest.raises(Exception, match="need the columns topic, partition and offset"):
        counted.options(target=parquet.name, name="nightly", uncheckedTopicIds="true").save()
    load = rows.write.format("kafkalog_load").options(target=parquet.name, name="nightly")
    with pytest.raises(Exception, match=r"kafka.bootstrap.servers must be set on the write, too"):
        load.mode("append").save()
    load = load.option("kafka.bootstrap.servers", servers)
    with pytest.raises(Exception, match="A load adds rows"):
        load.mode("overwrite").save()
    with pytest.raises(Exception, match="Option name must be set"):
        rows.write.format("kafkalog_load").mode("append").option("target", parquet.name).save()
    with pytest.raises(Exception, match="'hive' does not name a kind of target"):
        load.mode("append").option("target", "hive:/x").save()
