"""Topics as DataFrames, through Spark."""

import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.types import StructType

from tests.spark.conftest import Topics
from tests.support.patience import BUSY_S
from tests.support.present import present

pytestmark = pytest.mark.spark


def offsets_of(frame: DataFrame) -> list[Any]:
    return sorted(
        (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
    )


def every_offset(*ranges: tuple[int, int]) -> list[Any]:
    return [
        (p, offset) for p, (start, until) in enumerate(ranges) for offset in range(start, until)
    ]


def positions(topic: str, *offsets: int) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in enumerate(offsets)}})


def message_of(action: Callable[[], int | DataFrame]) -> str:
    """What Spark shows when `action` fails."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own class varies
        action()
    return str(caught.value)


def test_rows_hold_what_was_written(read: Callable[..., DataFrameReader], topics: Topics) -> None:
    topic = topics.create(2)
    headers = [("a", b"1"), ("a", None), ("", b"")]
    topics.append(topic, [b"value"], key=b"key", headers=headers, timestamp=1_700_000_000_123)
    topics.append(topic, [None], partition=1, key=b"deleted", timestamp=5)
    topics.append(topic, [b""], partition=1, timestamp=6)
    frame = read(subscribe=topic, includeHeaders="true").load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, deleted, empty = frame.orderBy("partition", "offset").collect()
    when = datetime.datetime.fromtimestamp(1_700_000_000.123)
    assert first[:7] == (b"key", b"value", topic, 0, 0, when, 0)
    assert [tuple(header) for header in first.headers] == headers
    assert (deleted.key, deleted.value, deleted.offset) == (b"deleted", None, 0)
    assert (empty.key, empty.value, empty.offset) == (None, b"", 1)


def test_a_record_without_headers_has_null_headers_as_in_sparks_connector(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    topic = topics.create()
    topics.append(topic, [b"plain"])
    assert present(read(subscribe=topic, includeHeaders="true").load().first()).headers is None


def test_every_offset_of_the_ranges_comes_exactly_once(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    topic = topics.create(4)
    topics.fill(topic, 25_000, 7, 0, 11_111)
    assert offsets_of(read(subscribe=topic).load()) == every_offset(
        (0, 25_000), (0, 7), (0, 0), (0, 11_111)
    )
    part = read(
        subscribe=topic,
        startingOffsets=positions(topic, 9_999, 7, -2, 3),
        endingOffsets=positions(topic, 20_001, -1, -1, 4),
    ).load()
    assert offsets_of(part) == every_offset((9_999, 20_001), (7, 7), (0, 0), (3, 4))
    assert {row.value for row in part.filter("partition = 3").collect()} == {b"3-3"}


def test_topics_are_found_by_list_by_pattern_and_by_partition(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    first, second = topics.create(2, "found"), topics.create(1, "found")
    for topic in (first, second):
        topics.fill(topic, 3, *([2] if topic == first else []))
    assert read(subscribe=f"{first}, {second}").load().count() == 8
    assert read(subscribePattern="found-.*").load().count() == 8
    assert read(subscribePattern="ound-$").load().count() == 0
    assert offsets_of(read(assign=json.dumps({first: [1]})).load()) == [(1, 0), (1, 1)]


def test_a_schema_names_the_columns_that_are_read(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    topic = topics.create()
    topics.append(topic, [b"a", b"b"], key=b"k")
    pruned = read(subscribe=topic).schema("offset long, value binary").load()
    assert [tuple(row) for row in pruned.orderBy("offset").collect()] == [(0, b"a"), (1, b"b")]
    assert read(subscribe=topic).schema("topic string").load().distinct().count() == 1
    headers = "headers array<struct<key: string, value: binary>>"
    assert read(subscribe=topic).schema(headers).load().count() == 2


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("value string", "column value as string; it is binary"),
        ("payload binary", "has a column 'payload', and rows have only key, value, topic"),
        ("value binary not null", "column value as NOT NULL"),
        (StructType(), "The schema is empty"),
    ],
)
def test_a_schema_that_rows_do_not_have_is_refused(
    read: Callable[..., DataFrameReader], schema: str | StructType, problem: str
) -> None:
    message = message_of(lambda: read(subscribe="any").schema(schema).load().count())
    assert "InvalidOptionError" in message
    assert problem in message


def test_a_dataframe_is_planned_once_and_a_new_load_sees_more(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 3)
    frame = read(subscribe=topic).load()
    assert frame.count() == 3
    topics.fill(topic, 2)
    assert frame.count() == 3
    assert read(subscribe=topic).load().count() == 5


def test_a_filter_leaves_other_scans_of_the_same_frame_alone(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 100)
    frame = read(subscribe=topic).load()
    assert frame.filter("offset < 10").count() == 10
    assert frame.count() == 100
    assert frame.filter("offset < 10").union(frame).count() == 110


def test_an_empty_topic_and_a_pattern_without_a_match_are_empty(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    assert read(subscribe=topics.create(3)).load().collect() == []
    assert read(subscribePattern="there-is-none").load().collect() == []


def test_an_unknown_topic_is_named_in_a_short_message(read: Callable[..., DataFrameReader]) -> None:
    message = message_of(read(subscribe="there-is-none").load().count)
    assert ": pyspark_kafkalog.errors.UnknownTopicError: Topic there-is-none does not" in message
    # The last line is the SQLSTATE.
    assert len(message.splitlines()) == 2, message


def test_a_wrong_option_is_named_when_loading(read: Callable[..., DataFrameReader]) -> None:
    message = message_of(lambda: read(subscribe="any", startingOffsets='{"any":').load())
    assert "InvalidOptionError: Option startingOffsets is malformed" in message
    assert "line 1 column 8" in message


def test_unreachable_brokers_are_an_error_in_time_that_shows_no_secret(
    read: Callable[..., DataFrameReader],
) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.request.timeout.ms": "500",
        "kafka.sasl.jaas.config": 'a.Login required username="me" password="hunter2";',
    }
    began_s = time.monotonic()
    message = message_of(read(subscribe="any", **options).load().count)
    assert "BrokersUnreachableError: " in message
    assert "127.0.0.1:1" in message
    assert "hunter2" not in message
    # With the time that starting Python workers takes; the default is 30 s.
    assert time.monotonic() - began_s < 20 + BUSY_S


def test_offsets_beyond_the_end_are_data_loss(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    topic = topics.create()
    topics.fill(topic, 3)
    beyond = {"subscribe": topic, "startingOffsets": positions(topic, 4)}
    message = message_of(read(**beyond).load().count)
    assert "DataLossError: " in message
    assert f"{topic}-0 ends at offset 3, and offsets from 4 were asked for" in message
    assert read(**beyond, failOnDataLoss="false").load().count() == 0


def test_a_read_between_two_times(read: Callable[..., DataFrameReader], topics: Topics) -> None:
    topic = topics.create(2)
    for partition, times in enumerate([(1000, 2000, 3000, 4000), (1500, 2500)]):
        for time_ms in times:
            topics.append(topic, [b"v"], partition=partition, timestamp=time_ms)
    between = {"startingTimestamp": 2000, "endingTimestamp": 4000}
    assert offsets_of(read(subscribe=topic, **between).load()) == every_offset((1, 3), (1, 2))
    each = {"startingOffsetsByTimestamp": positions(topic, 4000, 2500)}
    assert offsets_of(read(subscribe=topic, **each).load()) == every_offset((3, 4), (1, 2))
    message = message_of(read(subscribe=topic, startingTimestamp=3000).load().count)
    assert f"partition {topic}-1 has no record of the time 3000 or later" in message


def test_large_partitions_are_split_into_more_tasks(
    read: Callable[..., DataFrameReader], topics: Topics
) -> None:
    topic = topics.create(2)
    topics.fill(topic, 25_000, 10)
    frame = read(subscribe=topic, minPartitions=5).load()
    assert frame.rdd.getNumPartitions() == 5
    assert offsets_of(frame) == every_offset((0, 25_000), (0, 10))
    small = read(subscribe=topic, maxRecordsPerPartition=10_000).load()
    assert small.rdd.getNumPartitions() == 4
    assert offsets_of(small) == every_offset((0, 25_000), (0, 10))
