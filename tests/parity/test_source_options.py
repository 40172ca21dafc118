"""Table of source options, row by row: batch reads by Spark's connector and by ours are equal."""

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from tests.parity.conftest import Both, KafkaTopics, words_of
from tests.support.patience import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.interop]


def positions(topic: str, *numbers: int) -> str:
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers)}})


@pytest.fixture(scope="module")
def timed(topics: KafkaTopics) -> str:
    """Three partitions: records at 1000 to 4000 ms, at 1500 and 2500, and none."""
    topic = topics.create(3)
    for partition, times in enumerate([(1000, 2000, 3000, 4000), (1500, 2500)]):
        for time_ms in times:
            topics.append(topic, [b"v"], partition=partition, timestamp=time_ms)
    return topic


# assign, subscribe, subscribePattern


def test_subscribe_names_topics(both: Both, topics: KafkaTopics) -> None:
    first, second = topics.create(2), topics.create(1)
    topics.fill(first, 3, 2)
    topics.fill(second, 4)
    assert len(both.rows(subscribe=f" {first} ,{second},,{second}")) == 9


def test_subscribe_pattern_is_found_in_names_and_in_no_internal_topic(
    both: Both, topics: KafkaTopics
) -> None:
    marker = topics.create(1, "pattern")
    topics.fill(marker, 2)
    assert len(both.rows(subscribePattern=f"{marker[:-2]}..")) == 2
    assert len(both.rows(subscribePattern=marker[1:4] + ".*" + marker[-5:-2])) == 2
    assert both.rows(subscribePattern=f"{marker}.") == []
    assert both.rows(subscribePattern="__.*") == []


def test_assign_names_partitions(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create(3)
    topics.fill(topic, 1, 2, 3)
    assert both.offsets(assign=json.dumps({topic: [2, 0, 2]})) == [(0, 0), (2, 0), (2, 1), (2, 2)]


# startingOffsets, endingOffsets


def test_offsets_of_each_partition(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create(3)
    topics.fill(topic, 10, 5, 0)
    starts, ends = positions(topic, 3, -2, 0), positions(topic, 9, -1, 0)
    found = both.offsets(subscribe=topic, startingOffsets=starts, endingOffsets=ends)
    assert found == [(0, n) for n in range(3, 9)] + [(1, n) for n in range(5)]
    assert (
        len(both.rows(subscribe=topic, startingOffsets=" Earliest", endingOffsets="LATEST ")) == 15
    )


# startingTimestamp > startingOffsetsByTimestamp > startingOffsets; the strategy; the ends


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingTimestamp": 2000}, [(0, 1), (0, 2), (0, 3), (1, 1)]),
        ({"startingTimestamp": 2000, "endingTimestamp": 3000}, [(0, 1), (1, 1)]),
        (
            {"startingTimestamp": 2000, "startingOffsets": "earliest"},
            [(0, 1), (0, 2), (0, 3), (1, 1)],
        ),
        ({"startingOffsetsByTimestamp": (3000, 0, 9)}, [(0, 2), (0, 3), (1, 0), (1, 1)]),
        (
            {"startingTimestamp": 4000, "startingOffsetsByTimestamp": (0, 0, 0)},
            [(0, 3)],
        ),
        (
            {"startingOffsetsByTimestamp": (4000, 0, 0), "startingOffsets": "earliest"},
            [(0, 3), (1, 0), (1, 1)],
        ),
        ({"endingOffsetsByTimestamp": (3000, 9999, 0)}, [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ({"endingTimestamp": 2500, "endingOffsets": "latest"}, [(0, 0), (0, 1), (1, 0)]),
    ],
)
def test_times(
    both: Both, timed: str, given: dict[str, object], expected: list[tuple[int, int]]
) -> None:
    given = {
        name: positions(timed, *value) if isinstance(value, tuple) else value
        for name, value in given.items()
    }
    found = both.offsets(subscribe=timed, startingOffsetsByTimestampStrategy="latest", **given)
    assert found == expected


@pytest.mark.parametrize("strategy", [{}, {"startingOffsetsByTimestampStrategy": "error"}])
def test_a_start_without_a_record_is_an_error_by_default(
    both: Both, timed: str, strategy: dict[str, str]
) -> None:
    for message in both.refusals(subscribe=timed, startingTimestamp=1600, **strategy):
        assert f"{timed}-2" in message
        assert "1600" in message


# failOnDataLoss


def test_fail_on_data_loss_when_the_beginning_is_gone(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    topics.delete_records(topic, 4)
    start = {"subscribe": topic, "startingOffsets": positions(topic, 2)}
    for message in both.refusals(**start):
        assert "failOnDataLoss" in message
        assert topic in message
    assert both.offsets(**start, failOnDataLoss="False") == [(0, n) for n in range(4, 10)]
    assert both.offsets(subscribe=topic) == [(0, n) for n in range(4, 10)]


def test_fail_on_data_loss_when_the_end_was_never_there(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, 5)
    beyond = {
        "subscribe": topic,
        "endingOffsets": positions(topic, 7),
        "kafkaConsumer.pollTimeoutMs": 1000,
    }
    for message in both.refusals(**beyond):
        assert "failOnDataLoss" in message
    assert both.offsets(**beyond, failOnDataLoss="false") == [(0, n) for n in range(5)]


# minPartitions, maxRecordsPerPartition


@pytest.mark.parametrize(
    "given",
    [
        {"minPartitions": 1},
        {"minPartitions": 7},
        {"minPartitions": 20},
        # Spark takes no notice of it where a batch goes from the earliest to the latest offsets.
        {"maxRecordsPerPartition": 300, "endingOffsets": (990, 100, 1)},
        {"maxRecordsPerPartition": 300, "minPartitions": 9},
    ],
    ids=str,
)
def test_partitions_are_split_alike(both: Both, skewed: str, given: dict[str, Any]) -> None:
    def pieces(frame: DataFrame) -> list[Any]:
        where = frame.withColumn("task", spark_partition_id())
        found = where.groupBy("task", "partition").agg({"offset": "min", "*": "count"}).collect()
        return sorted((row["partition"], row["min(offset)"], row["count(1)"]) for row in found)

    if "endingOffsets" in given:
        given = given | {"endingOffsets": positions(skewed, *given["endingOffsets"])}
    theirs, ours = both.frames(subscribe=skewed, **given)
    assert pieces(ours) == pieces(theirs)


@pytest.fixture(scope="module")
def skewed(topics: KafkaTopics) -> str:
    topic = topics.create(3)
    topics.fill(topic, 1000, 100, 1)
    return topic


# groupIdPrefix, kafka.group.id; fetchOffset.*, kafkaConsumer.pollTimeoutMs; limits of streams


@pytest.mark.parametrize(
    "given",
    [
        {"groupIdPrefix": "mine"},
        {"kafka.group.id": "mine", "groupIdPrefix": "ignored"},
        {"fetchOffset.numRetries": 5, "fetchOffset.retryIntervalMs": 10},
        {"kafkaConsumer.pollTimeoutMs": 30_000},
        {"maxOffsetsPerTrigger": 1, "minOffsetsPerTrigger": 1, "maxTriggerDelay": "1m"},
        {"INCLUDEHEADERS": "TRUE", "FailOnDataLoss": "FALSE"},
    ],
    ids=str,
)
def test_options_that_change_no_row(both: Both, skewed: str, given: dict[str, object]) -> None:
    assert len(both.rows(subscribe=skewed, **given)) == 1101


# includeHeaders, and everything that a record may hold


def test_records_of_every_kind(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create(2)
    headers = [("a", b"1"), ("a", None), ("", b""), ("ü", b"\xff\x00")]
    topics.append(topic, [b"value"], key=b"key", headers=headers, timestamp=1_700_000_000_123)
    topics.append(topic, [None, b""], key=b"tombstone", timestamp=1)
    topics.append(topic, [None], partition=1)
    topics.append(topic, [b"x" * 900_000, b"\x00\xff" * 10], partition=1, key=b"")
    rows = both.rows(subscribe=topic, includeHeaders="true")
    assert [tuple(header) for header in rows[0].headers] == headers
    assert [row.headers for row in rows[1:]] == [None] * 5
    assert [row.key for row in rows] == [b"key", b"tombstone", b"tombstone", None, b"", b""]
    assert [row.value is None for row in rows] == [False, True, False, True, False, False]
    assert both.rows(subscribe=topic)[0].asDict().keys() == rows[0].asDict().keys() - {"headers"}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records(both: Both, topics: KafkaTopics, codec: str) -> None:
    topic = topics.create(1, compression_type=codec)
    topics.fill(topic, 500)
    rows = both.rows(subscribe=topic, startingOffsets=positions(topic, 3))
    assert [row.value for row in rows] == [b"0-%d" % n for n in range(3, 500)]


def test_log_append_time(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create(1, message_timestamp_type="LogAppendTime")
    topics.append(topic, [b"1", b"2"], timestamp=5)
    assert [row.timestampType for row in both.rows(subscribe=topic)] == [1, 1]


def test_a_timestamp_that_spark_cannot_hold(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create(1, message_timestamp_after_max_ms=str(2**63 - 1))
    topics.append(topic, [b"microseconds"], timestamp=1_700_000_000_000_000)
    assert both.rows(subscribe=topic)[0].value == b"microseconds"
    topics.append(topic, [b"nanoseconds"], timestamp=1_700_000_000_000_000_000)
    for message in both.refusals(subscribe=topic):
        assert "timestamp" in message
        assert "1700000000000000000" in message


# kafka.isolation.level


def test_isolation_levels(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create()
    producer = topics.transactions(topic, 3, -2, 4, -1, open_at_end=2)
    committed = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    assert len(both.rows(subscribe=topic)) == 12
    assert both.offsets(subscribe=topic) == both.offsets(
        **{"subscribe": topic, "kafka.isolation.level": "read_uncommitted"}
    )
    assert [row.value[:1] for row in both.rows(**committed)] == [b"3"] * 3 + [b"4"] * 4
    for start, until in [(1, 4), (3, 9), (4, 7)]:  # Offset 3 is a marker, 4 and 5 are aborted.
        both.rows(
            **committed,
            startingOffsets=positions(topic, start),
            endingOffsets=positions(topic, until),
        )
    producer.abort_transaction(30)


def test_gaps_that_compaction_left(both: Both, topics: KafkaTopics) -> None:
    topic = topics.create(
        1,
        cleanup_policy="compact",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms="0",
    )
    for number in range(3000):
        topics.produce(topic, b"x" * 1000, key=b"key-%d" % (number % 10))
    topics.flush()
    wait_for(
        lambda: sum(rows.num_rows for rows in both.ours(subscribe=topic)),
        lambda count: count < 3000,
        pause_s=0.2,
    )
    found = both.offsets(subscribe=topic)
    assert found[0][1] + 1 < found[-1][1]
    inside = positions(topic, found[0][1] + 1)
    both.rows(subscribe=topic, startingOffsets=inside)
    both.rows(subscribe=topic, endingOffsets=inside)


# refused options: both refuse, and name what is wrong


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, ["subscribe", "assign"]),
        ({"subscribe": "a", "assign": "{}"}, ["subscribe", "assign"]),
        ({"subscribe": " ,"}, ["subscribe"]),
        ({"assign": "a"}, ["assign"]),
        ({"assign": '{"a":"b"}'}, ['{"a":"b"}', '{"topicA":[0,1]']),
        ({"subscribePattern": " "}, ["subscribePattern"]),
        ({"subscribePattern": "["}, ["["]),
        ({"subscribe": "?", "startingOffsets": "latest"}, ["latest", "batch quer"]),
        ({"subscribe": "?", "endingOffsets": "earliest"}, ["earliest", "batch quer"]),
        ({"subscribe": "?", "startingOffsets": (0, -1)}, ["startingOffsets", "?-1", "latest"]),
        ({"subscribe": "?", "endingOffsets": (-2, 0)}, ["?-0", "earliest"]),
        ({"subscribe": "?", "startingOffsets": (0,)}, ["?-1", "-1 for latest, -2 for earliest"]),
        ({"subscribe": "?", "endingOffsets": (0, 0, 0)}, ["?-2", "-1 for latest, -2 for earliest"]),
        ({"subscribe": "?", "startingOffsets": (9, 0)}, ["9", "5"]),
        (
            {"subscribe": "?", "startingOffsets": (3, 0), "endingOffsets": (2, 0)},
            ["offset 3", "offset 2"],
        ),
        (
            {"subscribe": "?", "startingOffsets": (3, 0), "endingOffsets": (4,)},
            ["?-1"],
        ),
        (
            {
                "subscribe": "?",
                "startingOffsetsByTimestamp": (3, 0),
                "endingOffsetsByTimestamp": (2, 0),
            },
            ["3", "2", "than the"],
        ),
        ({"subscribe": "?", "startingOffsetsByTimestamp": (0,)}, ["?-1"]),
        (
            {"subscribe": "?", "startingOffsets": "nonsense"},
            ["nonsense", '{"topicA":{"0":23,"1":-1}'],
        ),
        ({"subscribe": "?", "startingOffsetsByTimestamp": "nonsense"}, ["nonsense", "topicA"]),
        ({"subscribe": "?", "startingTimestamp": "soon"}, ["soon"]),
        ({"subscribe": "?", "startingOffsetsByTimestampStrategy": "nope"}, []),
        ({"subscribe": "?", "minPartitions": "0"}, ["minPartitions"]),
        ({"subscribe": "?", "minPartitions": "many"}, ["many"]),
        ({"subscribe": "?", "maxRecordsPerPartition": "0"}, []),
        ({"subscribe": "?", "failOnDataLoss": "maybe"}, ["maybe"]),
        ({"subscribe": "?", "includeHeaders": "maybe"}, ["maybe"]),
        ({"subscribe": "?", "minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 3}, ["5", "3"]),
        (
            {"subscribe": "?", "kafka.auto.offset.reset": "x"},
            ["auto.offset.reset", "not supported"],
        ),
        ({"subscribe": "?", "kafka.key.deserializer": "x"}, ["key.deserializer", "not supported"]),
        (
            {"subscribe": "?", "kafka.value.deserializer": "x"},
            ["value.deserializer", "not supported"],
        ),
        (
            {"subscribe": "?", "kafka.enable.auto.commit": "x"},
            ["enable.auto.commit", "not supported"],
        ),
        (
            {"subscribe": "?", "kafka.interceptor.classes": "x"},
            ["interceptor.classes", "not supported"],
        ),
        ({"subscribe": "?", "kafka.isolation.level": "x"}, ["isolation.level", "read_committed"]),
        ({"subscribe": "?", "kafkaConsumer.pollTimeoutMs": "x"}, ["x"]),
        ({"subscribe": "there-is-none", "fetchOffset.numRetries": 1}, []),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_refused_options(
    both: Both, small: str, given: dict[str, object], named: list[str]
) -> None:
    given = {
        name: positions(small, *value) if isinstance(value, tuple) else value
        for name, value in given.items()
    }
    if given.get("subscribe") == "?":
        given["subscribe"] = small
    for message in both.refusals(**given):
        for word in named:
            assert word.replace("?", small) in message.replace(f"{small} partition ", f"{small}-")


@pytest.fixture(scope="module")
def small(topics: KafkaTopics) -> str:
    topic = topics.create(2)
    topics.fill(topic, 5, 3)
    return topic


@pytest.mark.parametrize("source", ["kafka", "kafkalog"])
def test_brokers_are_required(spark: SparkSession, source: str) -> None:
    message = words_of(lambda: spark.read.format(source).option("subscribe", "a").load())
    assert "kafka.bootstrap.servers" in message


# where ours says more, and docs/coming-from-spark.md says so


def test_partitions_that_do_not_exist_are_an_error_here_and_nothing_there(
    both: Both, small: str
) -> None:
    theirs = both.spark.read.format("kafka").options(**both.servers)
    assert theirs.option("assign", json.dumps({small: [7]})).load().collect() == []
    message = words_of(lambda: list(both.ours(assign=json.dumps({small: [7]}))))
    assert f"Option assign names partitions that do not exist: {small}-7" in message


def test_a_start_beyond_the_end_may_be_passed_over_here(both: Both, small: str) -> None:
    beyond = {"subscribe": small, "startingOffsets": positions(small, 9, 3)}
    theirs = both.spark.read.format("kafka").options(**both.servers).options(**beyond)
    message = words_of(theirs.option("failOnDataLoss", "false").load().collect)
    assert "start offset 9 is greater than the resolved end offset 5" in message
    assert list(both.ours(**beyond, failOnDataLoss="false")) == []


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_a_malformed_option_is_refused_here_even_where_it_has_no_effect(
    both: Both, small: str, name: str
) -> None:
    theirs = both.spark.read.format("kafka").options(**both.servers)
    assert len(theirs.options(**{"subscribe": small, name: "x"}).load().collect()) == 8
    assert name in words_of(lambda: list(both.ours(**{"subscribe": small, name: "x"})))


def test_a_schema_names_columns_here_and_is_refused_there(both: Both, small: str) -> None:
    reader = both.spark.read.format("kafka").options(**both.servers).schema("value binary")
    assert "schema" in words_of(lambda: reader.option("subscribe", small).load())
    reader = both.spark.read.format("kafkalog").options(**both.servers).schema("value binary")
    assert reader.option("subscribe", small).load().columns == ["value"]


def test_max_records_per_partition_splits_whole_topics_here(both: Both, skewed: str) -> None:
    theirs, ours = both.frames(subscribe=skewed, maxRecordsPerPartition=300)
    assert (theirs.rdd.getNumPartitions(), ours.rdd.getNumPartitions()) == (3, 6)
