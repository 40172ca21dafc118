"""Table of the sink, row by row: what Spark's connector writes and what ours writes is equal."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.parity.conftest import ORACLE, OURS, Both, KafkaTopics, words_of

pytestmark = [pytest.mark.spark, pytest.mark.interop]

JAVA = "org.apache.kafka.clients.producer"


class Sinks:
    """Writes a DataFrame with both connectors; reads what came of it with Spark's own."""

    def __init__(self, both: Both, topics: KafkaTopics) -> None:
        self.both, self.topics = both, topics

    def write(self, source: str, frame: DataFrame, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format(source).mode(mode)
        writer.options(**self.both.servers).options(**options).save()

    def written(self, frame: DataFrame, partitions: int = 3, **options: Any) -> Any:
        """(partition, offset, key, value, headers) of each record; the same for both."""
        found = []
        for source in (ORACLE, OURS):
            topic = self.topics.create(partitions)
            self.write(source, frame.coalesce(1), **{"topic": topic, **options})
            found.append(self.records(topic))
        assert found[1] == found[0]
        return found[1]

    def records(self, topic: str) -> list[Any]:
        reader = self.both.spark.read.format(ORACLE).options(**self.both.servers)
        frame = reader.option("includeHeaders", "true").option("subscribe", topic).load()
        columns = ("partition", "offset", "key", "value", "headers")
        return sorted(map(tuple, frame.select(*columns).collect()), key=lambda record: record[:2])

    def refusals(self, frame: DataFrame, mode: str = "append", **options: object) -> list[Any]:
        """What both say."""
        return [
            words_of(lambda source=source: self.write(source, frame, mode, **options))
            for source in (ORACLE, OURS)
        ]


@pytest.fixture(scope="module")
def sinks(both: Both, topics: KafkaTopics) -> Sinks:
    return Sinks(both, topics)


def test_strings_and_binaries_of_every_kind(spark: SparkSession, sinks: Sinks) -> None:
    rows = [("a", b"1"), ("", b""), (None, None), ("ü", None), ("k" * 1000, b"\x00" * 1000)]
    texts = spark.createDataFrame(rows, "key string, value binary")
    found = sinks.written(texts, partitions=1)
    assert [(key, value) for _, _, key, value, _ in found] == [
        (key if key is None else key.encode(), value) for key, value in rows
    ]
    sinks.written(texts.selectExpr("cast(key as binary) key", "cast(value as string) value"), 1)


def test_headers(spark: SparkSession, sinks: Sinks) -> None:
    schema = "value string, headers array<struct<key: string, value: binary>>"
    headers = [[("a", b"1"), ("a", None)], [], None, [("", b"")]]
    frame = spark.createDataFrame([("v", each) for each in headers], schema)
    found = sinks.written(frame, partitions=1)
    assert [each and len(each) for *_, each in found] == [2, None, None, 1]


def test_keys_choose_the_partition(spark: SparkSession, sinks: Sinks) -> None:
    keys = spark.range(300).selectExpr("cast(id as string) key", "'' value")
    assert {partition for partition, *_ in sinks.written(keys, partitions=7)} == set(range(7))
    sinks.written(keys.selectExpr("cast(repeat(key, 3) as binary) key", "value"), partitions=5)


def test_a_partition_column_chooses_the_partition_where_it_is_not_null(
    spark: SparkSession, sinks: Sinks
) -> None:
    rows = [("a", "1", 2), ("a", "2", None), ("b", "3", 0), ("b", "4", None)]
    sinks.written(spark.createDataFrame(rows, "key string, value string, partition int"))


def test_rows_without_a_key_stay_together(spark: SparkSession, sinks: Sinks) -> None:
    """The Java client's sticky partitions begin at random: what is equal is that there is one."""
    frame = spark.range(100).selectExpr("cast(id as string) value").coalesce(1)
    for source in (ORACLE, OURS):
        topic = sinks.topics.create(5)
        sinks.write(source, frame, topic=topic)
        assert len({partition for partition, *_ in sinks.records(topic)}) == 1


def test_round_robin(spark: SparkSession, sinks: Sinks) -> None:
    """`partitioner.class` of the Java client: rows go around, with a key or without."""
    frame = spark.range(100).selectExpr("'same' key", "cast(id as string) value").coalesce(1)
    given = {"kafka.partitioner.class": f"{JAVA}.RoundRobinPartitioner"}
    for source in (ORACLE, OURS):
        topic = sinks.topics.create(5)
        sinks.write(source, frame, topic=topic, **given)
        partitions = [partition for partition, *_ in sinks.records(topic)]
        # The Java client moves on twice where it begins a batch (KAFKA-9965).
        assert {partitions.count(n) for n in range(5)} <= ({20} if source == OURS else {*range(51)})
        assert len(set(partitions)) > 1


def test_ignored_keys(spark: SparkSession, sinks: Sinks) -> None:
    frame = spark.range(100).selectExpr("cast(id as string) key", "'' value").coalesce(1)
    for source in (ORACLE, OURS):
        topic = sinks.topics.create(5)
        sinks.write(source, frame, topic=topic, **{"kafka.partitioner.ignore.keys": "true"})
        records = sinks.records(topic)
        assert len({partition for partition, *_ in records}) == 1
        assert {key for _, _, key, *_ in records} == {str(n).encode() for n in range(100)}


@pytest.mark.parametrize("name", ["internals.DefaultPartitioner", "UniformStickyPartitioner"])
def test_partitioners_by_their_java_names(spark: SparkSession, sinks: Sinks, name: str) -> None:
    keys = spark.range(50).selectExpr("cast(id as string) key", "'' value").coalesce(1)
    found = []
    for source in (ORACLE, OURS):
        topic = sinks.topics.create(5)
        sinks.write(source, keys, topic=topic, **{"kafka.partitioner.class": f"{JAVA}.{name}"})
        found.append(sinks.records(topic))
    if name == "internals.DefaultPartitioner":
        assert found[0] == found[1]
    assert [len({partition for partition, *_ in records}) for records in found] in ([5, 5], [1, 1])


def test_the_topic_of_a_row_and_the_option_that_overrides_it(
    spark: SparkSession, sinks: Sinks
) -> None:
    first, second = sinks.topics.create(), sinks.topics.create()
    frame = spark.createDataFrame([(first, "1"), (second, "2")], "topic string, value string")
    for source in (ORACLE, OURS):
        sinks.write(source, frame)
    assert [len(sinks.records(topic)) for topic in (first, second)] == [2, 2]
    assert len(sinks.written(frame, 1)) == 2
    third = sinks.topics.create()
    for source in (ORACLE, OURS):
        sinks.write(source, frame, topic=f" {third} ")
    assert len(sinks.records(third)) == 4


def test_a_mode_must_be_given_which_spark_asks_of_python_data_sources(
    spark: SparkSession, sinks: Sinks
) -> None:
    frame, topic = spark.sql("select 'v' value"), sinks.topics.create()
    sinks.write(ORACLE, frame, "errorIfExists", topic=topic)
    message = words_of(lambda: sinks.write(OURS, frame, "errorIfExists", topic=topic))
    assert 'use either the "Append" or "Overwrite" mode' in message


def test_a_timestamp_column_is_the_time_of_the_record_here(
    spark: SparkSession, sinks: Sinks
) -> None:
    frame = spark.sql("select 'v' value, timestamp_millis(1700000000123) timestamp")
    found = []
    for source in (ORACLE, OURS):
        topic = sinks.topics.create()
        sinks.write(source, frame, topic=topic)
        (row,) = (
            sinks.both.spark.read.format(ORACLE)
            .options(**sinks.both.servers)
            .option("subscribe", topic)
            .load()
            .selectExpr("unix_millis(timestamp) ms")
            .collect()
        )
        found.append(row.ms == 1_700_000_000_123)
    assert found == [False, True]


def test_columns_that_are_no_part_of_a_record_are_left_out(
    spark: SparkSession, sinks: Sinks
) -> None:
    sinks.written(spark.sql("select 'v' value, 1 other, array(1) more"), partitions=1)


@pytest.mark.parametrize(
    ("columns", "options", "named"),
    [
        ("'v' value", {}, ["topic"]),
        ("'v' value, 1 topic", {}, ["topic", "string"]),
        ("'k' key", {"topic": "?"}, ["value"]),
        ("1 value", {"topic": "?"}, ["value", "string or binary"]),
        ("'v' value, 1 key", {"topic": "?"}, ["key", "string or binary"]),
        ("'v' value, 'p' partition", {"topic": "?"}, ["partition", "int"]),
        ("'v' value, 1L partition", {"topic": "?"}, ["partition", "int"]),
        ("'v' value, 'h' headers", {"topic": "?"}, ["headers", "array<struct<key:string,value"]),
        ("'v' value, cast(null as string) topic", {}, ["null", "topic"]),
        ("'v' value", {"topic": "?", "kafka.key.serializer": "x"}, ["key.serializer"]),
        ("'v' value", {"topic": "?", "kafka.value.serializer": "x"}, ["value.serializer"]),
        ("'v' value", {"topic": "?", "kafka.partitioner.class": "a.B"}, ["a.B"]),
        ("'v' value, 7 partition", {"topic": "?", "kafka.max.block.ms": 500}, ["7"]),
        ("'v' value", {"topic": "not a name", "kafka.max.block.ms": 500}, ["not a name"]),
    ],
)
def test_what_is_no_record_is_refused(
    spark: SparkSession, sinks: Sinks, columns: str, options: dict[str, Any], named: list[str]
) -> None:
    options = {
        name: value if value != "?" else sinks.topics.create() for name, value in options.items()
    }
    for message in sinks.refusals(spark.sql(f"select {columns}"), **options):
        for word in named:
            assert word in message


@pytest.mark.parametrize("mode", ["overwrite", "ignore"])
def test_modes_that_a_topic_does_not_have(spark: SparkSession, sinks: Sinks, mode: str) -> None:
    for message in sinks.refusals(spark.sql("select 'v' value"), mode, topic=sinks.topics.create()):
        assert "append" in message.lower()


def test_a_row_that_is_too_large(spark: SparkSession, sinks: Sinks) -> None:
    frame = spark.sql("select repeat('x', 2000000) value")
    for message in sinks.refusals(frame, topic=sinks.topics.create()):
        assert "max.request.size" in message
    given: dict[str, Any] = {"kafka.max.request.size": 5_000_000, "topic": sinks.topics.create()}
    theirs, ours = sinks.refusals(frame, **given)
    assert "larger than the max message size the server will accept" in theirs
    assert "raise the topic's max.message.bytes" in ours
