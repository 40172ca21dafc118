"""Streaming queries written to topics, through Spark."""

import shutil

import pytest

pytestmark = pytest.mark.spark


@pytest.fixture
def copy(spark, servers, tmp_path):
    """Runs a query from one topic to another until nothing is left; may be run again."""

    def run(source, target, statements=("value",), mode="append", **options):
        frame = (
            spark.readStream.format("kafkalog")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        frame = (
            frame.selectExpr(*statements)
            if mode == "append"
            else (frame.groupBy("key").count().selectExpr("key", "cast(count as string) value"))
        )
        query = (
            frame.writeStream.format("kafkalog")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", target)
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        if query.exception() is not None:
            raise query.exception()

    return run


def values_of(read, topic):
    return sorted(row.value for row in read(subscribe=topic).load().select("value").collect())


def test_each_run_appends_what_is_new(copy, read, topics):
    source, target = topics.create(2), topics.create(2)
    topics.append(source, [b"1", b"2"])
    copy(source, target)
    assert values_of(read, target) == [b"1", b"2"]
    topics.append(source, [b"3"], partition=1)
    copy(source, target)
    assert values_of(read, target) == [b"1", b"2", b"3"]


def test_complete_mode_appends_the_whole_result_each_time(copy, read, topics):
    source, target = topics.create(), topics.create()
    for expected in ([b"2"], [b"2", b"4"]):
        topics.append(source, [b"", b""], key=b"k")
        copy(source, target, mode="complete")
        assert values_of(read, target) == expected


def test_rows_that_are_no_records_stop_the_query(copy, topics):
    source = topics.create()
    topics.append(source, [b"1"])
    with pytest.raises(Exception, match="InvalidRowError: Column 'value' must be string or binary"):
        copy(source, topics.create(), ["offset value"])


@pytest.fixture
def exactly_once(copy):
    """As `copy`, with a prefix for transactional ids."""

    def run(source, target, prefix):
        copy(source, target, transactionalIdPrefix=prefix)

    return run


def test_micro_batches_in_transactions_are_seen_whole(exactly_once, read, topics):
    source, target = topics.create(2), topics.create(2)
    committed = {"subscribe": target, "kafka.isolation.level": "read_committed"}
    for number in range(2):
        topics.append(source, [b"%d" % number, b"x"], partition=number)
        exactly_once(source, target, f"prefix-{target}")
        found = read(**committed).load().select("value").collect()
        expected = [b"0", b"x"] if number == 0 else [b"0", b"1", b"x", b"x"]
        assert sorted(row.value for row in found) == expected


def test_a_prefix_of_another_query_is_refused(exactly_once, topics, tmp_path):
    source, target = topics.create(), topics.create()
    topics.append(source, [b"1"])
    exactly_once(source, target, "shared")
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(
        Exception, match="PrefixInUseError: The transactionalIdPrefix shared belongs"
    ):
        exactly_once(source, target, "shared")
