"""DataFrames written to topics, through Spark."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader

from tests.spark.conftest import Topics

pytestmark = pytest.mark.spark


@pytest.fixture
def write(servers: str) -> Callable[..., None]:
    def writer(frame: DataFrame, **options: str) -> None:
        sink = frame.write.format("kafkalog").mode("append")
        sink.option("kafka.bootstrap.servers", servers).options(**options).save()

    return writer


@pytest.fixture
def records_of(servers: str) -> Callable[[str], Any]:
    """All records of a topic, as librdkafka sees them, sorted by partition and offset."""

    def consume(topic: str) -> list[Any]:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "log_level": 0})
        try:
            partitions = consumer.list_topics(topic, 30).topics[topic].partitions
            everything = [TopicPartition(topic, partition, 0) for partition in partitions]
            count = sum(consumer.get_watermark_offsets(where, 30)[1] for where in everything)
            consumer.assign(everything)
            records = consumer.consume(count, 30) if count else []
        finally:
            consumer.close()
        assert len(records) == count
        assert all(record.error() is None for record in records)
        return sorted(records, key=lambda record: (record.partition(), record.offset()))

    return consume


def message_of(action: Callable[..., None]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own class varies
        action()
    return str(caught.value)


def test_all_columns_of_a_row_arrive(
    spark: SparkSession,
    write: Callable[..., None],
    topics: Topics,
    records_of: Callable[[str], Any],
) -> None:
    topic = topics.create(2)
    when = datetime.datetime.fromtimestamp(1_700_000_000.123)
    headers = [("a", b"1"), ("a", None)]
    schema = (
        "key string, value string, topic string, partition int, timestamp timestamp, "
        "headers array<struct<key: string, value: binary>>"
    )
    rows = [("k", "v", topic, 1, when, headers), (None, None, topic, 1, None, None)]
    write(spark.createDataFrame(rows, schema).coalesce(1))
    first, second = records_of(topic)
    assert (first.key(), first.value(), first.partition()) == (b"k", b"v", 1)
    assert (first.timestamp()[1], first.headers()) == (1_700_000_000_123, headers)
    assert (second.key(), second.value(), second.headers()) == (None, None, None)
    assert abs(second.timestamp()[1] / 1000 - datetime.datetime.now().timestamp()) < 600


def test_every_row_is_written_once(
    spark: SparkSession,
    write: Callable[..., None],
    read: Callable[..., DataFrameReader],
    topics: Topics,
) -> None:
    topic = topics.create(3)
    rows = spark.range(50_000).selectExpr("cast(id % 7 as string) key", "cast(id as string) value")
    write(rows, topic=topic, **{"kafka.compression.type": "zstd"})
    found = read(subscribe=topic).load().selectExpr("cast(value as string) value", "partition")
    found = found.selectExpr("cast(value as long) number", "partition")
    assert found.count() == 50_000
    assert found.select("number").distinct().count() == 50_000
    assert found.selectExpr("number % 7 key", "partition").distinct().count() == 7


def test_keys_choose_the_partitions_that_other_clients_would(
    spark: SparkSession,
    write: Callable[..., None],
    topics: Topics,
    records_of: Callable[[str], Any],
) -> None:
    ours, theirs = topics.create(5), topics.create(5)
    keys = [f"key-{number}" for number in range(40)]
    write(
        spark.createDataFrame([(key, "") for key in keys], "key string, value string"), topic=ours
    )
    producer = Producer(
        {"bootstrap.servers": topics.servers, "partitioner": "murmur2_random", "log_level": 0}
    )
    for key in keys:
        producer.produce(theirs, b"", key=key.encode())
    assert producer.flush(30) == 0
    placed, expected = (
        sorted((record.key(), record.partition()) for record in records_of(topic))
        for topic in (ours, theirs)
    )
    assert placed == expected


def test_rows_go_to_the_topic_of_their_column_unless_the_option_names_one(
    spark: SparkSession,
    write: Callable[..., None],
    read: Callable[..., DataFrameReader],
    topics: Topics,
) -> None:
    first, second, third = (topics.create() for _ in range(3))
    rows = spark.createDataFrame([(first, "1"), (second, "2")], "topic string, value string")
    write(rows)
    write(rows, topic=third)
    assert [read(subscribe=topic).load().count() for topic in (first, second, third)] == [1, 1, 2]


def test_a_topic_is_copied_with_its_timestamps(
    write: Callable[..., None], read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    source, copy = topics.create(), topics.create()
    topics.append(source, [b"v"], key=b"k", timestamp=1_700_000_000_123)
    write(read(subscribe=source).load(), topic=copy)
    (original,) = read(subscribe=source).load().drop("topic").collect()
    (copied,) = read(subscribe=copy).load().drop("topic").collect()
    assert copied == original


@pytest.mark.parametrize(
    ("rows", "options", "problem"),
    [
        ("'t' topic, 1 value", {}, "Column 'value' must be string or binary, and is int"),
        ("'t' topic, 'k' key", {}, "needs a column 'value', and has only topic, key"),
        ("'v' value", {}, "set the option topic, or add a column 'topic'"),
        ("'v' value, cast(null as string) topic", {}, "Column 'topic' is null in a row"),
        ("'v' value, 7 partition", {"topic": "?"}, "names partition 7, the topic has 0 to 0"),
        ("'v' value", {"topic": "t", "kafka.key.serializer": "x"}, "key.serializer is not"),
    ],
)
def test_what_is_no_record_is_refused(
    spark: SparkSession,
    write: Callable[..., None],
    topics: Topics,
    rows: str,
    options: dict[str, str],
    problem: str,
) -> None:
    if options.get("topic") == "?":
        options = {"topic": topics.create()}
    frame = spark.sql(f"select {rows}")
    message = message_of(lambda: write(frame, **options))
    assert problem in message
    assert "InvalidRowError: " in message or "InvalidOptionError: " in message


def test_a_topic_is_not_overwritten(spark: SparkSession, servers: str) -> None:
    sink = spark.sql("select 'v' value").write.format("kafkalog").mode("overwrite")
    sink.option("kafka.bootstrap.servers", servers).option("topic", "any")
    assert 'A topic cannot be overwritten: use mode("append")' in message_of(sink.save)


def test_a_write_in_transactions_is_seen_as_a_whole_or_not_at_all(
    spark: SparkSession,
    write: Callable[..., None],
    read: Callable[..., DataFrameReader],
    topics: Topics,
) -> None:
    topic = topics.create(2)
    committed = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    rows = spark.range(20_000).selectExpr("cast(id as string) value")
    write(rows.repartition(3), topic=topic, transactionalIdPrefix="whole")
    assert read(**committed).load().select("value").distinct().count() == 20_000
    assert read(**committed).load().count() == 20_000
    failing = rows.selectExpr("value", "if(value = '19999', 7, 0) partition").repartition(3)
    problem = message_of(lambda: write(failing, topic=topic, transactionalIdPrefix="whole"))
    assert "names partition 7, the topic has 0 to 1" in problem
    assert read(**committed).load().count() == 20_000
