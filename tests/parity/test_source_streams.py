"""Table of the source's behaviour as a stream: the same micro-batches by both connectors.

A query is compared by the end offsets of each batch that had rows, and by the rows that it landed.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafkalog.source.offsets import from_json, to_json
from tests.parity.conftest import ORACLE, OURS, Both, KafkaTopics, words_of

pytestmark = [pytest.mark.spark, pytest.mark.interop]


class Query:
    """One source, one checkpoint and one target; run again and again."""

    def __init__(self, both: Both, source: str, directory: Path) -> None:
        self.both, self.source = both, source
        self.target, self.checkpoint = directory / "target", directory / "checkpoint"

    def start(self, trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        reader = self.both.spark.readStream.format(self.source).options(**self.both.servers)
        writer = reader.options(**options).load().writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start(str(self.target))

    def run(self, **options: Any) -> Any:
        """Reads what is there now; the batches."""
        query = self.start(**options)
        assert query.awaitTermination(300)
        return batches(query)

    def landed(self) -> list[Any]:
        rows = self.both.spark.read.parquet(str(self.target)).collect()
        return sorted(rows, key=lambda row: row[2:5])

    def planned(self, batch: int) -> str:
        """The offsets that a batch was planned to end with, as the checkpoint has them."""
        return (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]


def batches(query: StreamingQuery) -> list[Any]:
    """(end offsets, rows) of each batch that had rows; without where the query starts, which ours
    says with those of its first one."""
    return [
        (to_json(from_json(json.loads(progress.sources[0].endOffset))), progress.numInputRows)
        for progress in query.recentProgress
        if progress.numInputRows
    ]


@pytest.fixture
def queries(both: Both, tmp_path: Path) -> list[Any]:
    """The same query by Spark's connector, and by ours."""
    return [Query(both, source, tmp_path / source) for source in (ORACLE, OURS)]


def run_both(queries: list[Any], **options: object) -> Any:
    """The batches of both, which are equal; so are the rows landed."""
    theirs, ours = (query.run(**options) for query in queries)
    assert ours == theirs
    expected, found = (query.landed() for query in queries)
    assert found == expected
    return ours


def positions(topic: str, *numbers: int) -> str:
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers)}})


def test_available_now_in_batches_of_max_offsets_per_trigger(
    queries: list[Any], topics: KafkaTopics
) -> None:
    topic = topics.create(3)
    topics.fill(topic, 70, 20, 1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 30}
    first = run_both(queries, **options)
    assert sum(rows for _, rows in first) == 91
    assert len(first) > 3
    topics.fill(topic, 5, 0, 40)
    assert sum(rows for _, rows in run_both(queries, **options)) == 45


def test_once_takes_no_notice_of_limits(queries: list[Any], topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, 20)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 3}
    found = run_both(queries, trigger={"once": True}, **options)
    assert [rows for _, rows in found] == [20]


def test_batches_wait_for_min_offsets_per_trigger(queries: list[Any], topics: KafkaTopics) -> None:
    topic = topics.create()
    topics.fill(topic, 2)
    often = {"processingTime": "20 milliseconds"}
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 5}
    running = [query.start(often, **options, maxOffsetsPerTrigger=6) for query in queries]
    for more in (0, 4, 1, 20):
        topics.fill(topic, more)
        for query in running:
            query.processAllAvailable()
    theirs, ours = map(batches, running)
    for query in running:
        query.stop()
    assert ours == theirs
    assert [rows for _, rows in ours] == [2, 5, 6, 6, 6]


@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": (2, -1)},
        {"startingTimestamp": 1500},
        {
            "startingOffsetsByTimestamp": (1000, 9999),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ],
    ids=str,
)
def test_starts(
    queries: list[Any], topics: KafkaTopics, start: dict[str, int | Sequence[int | str]]
) -> None:
    topic = topics.create(2)
    for partition in range(2):
        for time_ms in (1000, 2000, 3000):
            topics.append(topic, [b"before"], partition, timestamp=time_ms)
    options = {"subscribe": topic} | {
        name: positions(topic, *value) if isinstance(value, tuple) else value
        for name, value in start.items()
    }
    run_both(queries, **options)
    topics.fill(topic, 2, 1)
    run_both(queries, **options)
    assert {(row.partition, row.value) for row in queries[0].landed()} >= {
        (0, b"0-0"), (0, b"0-1"), (1, b"1-0"),
    }  # fmt: skip


def test_a_stream_starts_at_the_latest_offsets_by_default(
    queries: list[Any], topics: KafkaTopics
) -> None:
    topic = topics.create()
    topics.fill(topic, 5)
    for query in queries:
        assert query.run(subscribe=topic) == []
    topics.fill(topic, 2)
    assert run_both(queries, subscribe=topic) == [({topic: {"0": 7}}, 2)]


def test_new_partitions_are_read_from_their_beginning(
    queries: list[Any], topics: KafkaTopics
) -> None:
    topic = topics.create()
    topics.fill(topic, 3)
    run_both(queries, subscribe=topic, startingOffsets="earliest")
    topics.grow(topic, 2)
    topics.fill(topic, 1, 4)
    found = run_both(queries, subscribe=topic, startingOffsets="earliest")
    assert found == [({topic: {"0": 4, "1": 4}}, 5)]


def test_streams_are_split_and_have_headers_and_levels_too(
    queries: list[Any], topics: KafkaTopics
) -> None:
    topic = topics.create()
    topics.append(topic, [b"v"], headers=[("a", None)])
    topics.transactions(topic, 3, -2, 1)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    split = {"minPartitions": 3, "maxRecordsPerPartition": 2}
    assert (
        sum(rows for _, rows in run_both(queries, **options, **split, includeHeaders="true")) == 5
    )


@pytest.mark.parametrize("fail", ["true", "false"])
def test_fail_on_data_loss_when_retention_overtakes_a_query(
    queries: list[Any], topics: KafkaTopics, fail: str
) -> None:
    topic = topics.create()
    topics.fill(topic, 4)
    options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": fail}
    run_both(queries, **options)
    topics.fill(topic, 6)
    topics.delete_records(topic, 7)
    if fail == "true":
        for query in queries:
            message = words_of(lambda query=query: query.run(**options))
            assert "failOnDataLoss" in message
    else:
        run_both(queries, **options)
        assert [row.offset for row in queries[1].landed()] == [0, 1, 2, 3, 7, 8, 9]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_fail_on_data_loss_when_a_topic_is_gone(
    queries: list[Any], topics: KafkaTopics, fail: str
) -> None:
    kept, gone = topics.create(), topics.create()
    for topic in (kept, gone):
        topics.fill(topic, 2)
    options = {
        "subscribePattern": f"{kept}|{gone}",
        "startingOffsets": "earliest",
        "failOnDataLoss": fail,
        "fetchOffset.retryIntervalMs": 10,
    }
    run_both(queries, **options)
    topics.delete(gone)
    topics.fill(kept, 3)
    if fail == "true":
        for query in queries:
            message = words_of(lambda query=query: query.run(**options))
            assert gone in message
            assert "failOnDataLoss" in message
    else:
        assert [rows for _, rows in run_both(queries, **options)] == [3]


def test_what_streams_refuse(both: Both, tmp_path: Path) -> None:
    for options, named in [
        ({"endingOffsets": "latest"}, "not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": '{"a":{"0":1}}'}, "not valid in streaming queries"),
        ({"kafka.enable.auto.commit": "true"}, "enable.auto.commit"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "1"}, "9"),
    ]:
        for source in (ORACLE, OURS):
            query = Query(both, source, tmp_path)
            message = words_of(lambda query=query, given=options: query.run(subscribe="a", **given))
            assert named in message


# The checkpoint: a stream moves to the other connector with it


@pytest.mark.parametrize("stops", ["after a batch", "in a batch"])
@pytest.mark.parametrize("first", [ORACLE, OURS])
def test_a_stream_moves_with_its_checkpoint(
    both: Both, topics: KafkaTopics, tmp_path: Path, first: str, stops: str
) -> None:
    topic, other = topics.create(2), topics.create(prefix="another")
    topics.fill(topic, 40, 7)
    topics.fill(other, 5)
    options = {
        "subscribe": f"{topic},{other}",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 20,
    }
    query = Query(both, first, tmp_path)
    query.run(**options)
    if stops == "in a batch":
        newest = max((query.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink()
    topics.fill(topic, 0, 11)
    query.source = OURS if first == ORACLE else ORACLE
    query.run(**options)
    places = [(row.topic, row.partition, row.offset) for row in query.landed()]
    counts = {(topic, 0): 40, (topic, 1): 18, (other, 0): 5}
    assert places == sorted((*where, n) for where, count in counts.items() for n in range(count))


@pytest.mark.parametrize("stops", ["after its first batch", "in its first batch"])
def test_a_stream_that_only_noted_where_it_starts_moves_to_sparks_connector(
    both: Both, topics: KafkaTopics, tmp_path: Path, stops: str
) -> None:
    topic = topics.create()
    topics.fill(topic, 10)
    topics.delete_records(topic, 4)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(both, OURS, tmp_path)
    query.run(**options)
    keeps = ["0"] if stops == "after its first batch" else []
    for directory, kept in (("commits", keeps), ("offsets", ["0"])):
        for path in (query.checkpoint / directory).iterdir():
            if path.name.removeprefix(".").removesuffix(".crc") not in kept:
                path.unlink()
    shutil.rmtree(query.target)
    assert json.loads(query.planned(0))[topic] == {"0": 4}
    query.source = ORACLE
    assert query.run(**options) == [({topic: {"0": 10}}, 6)]


def test_the_offsets_of_a_checkpoint_are_sparks(queries: list[Any], topics: KafkaTopics) -> None:
    first, second = topics.create(11), topics.create(prefix="another")
    topics.fill(first, *range(11))
    topics.fill(second, 3)
    run_both(queries, subscribe=f"{first},{second}", startingOffsets="earliest")
    theirs, ours = (query.planned(0) for query in queries)
    # But for blanks, for the order of the topics, which is that of hashes there, and for the start.
    assert from_json(json.loads(ours)) == from_json(json.loads(theirs))
