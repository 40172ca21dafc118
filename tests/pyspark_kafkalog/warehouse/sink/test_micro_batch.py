"""Which offsets a micro-batch reads, from a checkpoint as Spark writes it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import CheckpointError, InvalidRowError
from pyspark_kafkalog.source.log_identity import LogIdentity
from pyspark_kafkalog.source.offsets import with_start
from pyspark_kafkalog.warehouse.sink.micro_batch import MicroBatch, micro_batch
from pyspark_kafkalog.warehouse.sink.row_places import Span

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
METADATA = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {"spark.sql.x": "200"}}


@pytest.fixture
def wrote(tmp_path: Path) -> Callable[..., str]:
    """Writes what batch number n ends with, one document for each source."""
    (tmp_path / "offsets").mkdir()

    def write(batch: int, *sources: int | Mapping[str, object]) -> str:
        lines = ["v1", json.dumps(METADATA), *map(json.dumps, sources), "-"]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines))
        return str(tmp_path)

    return write


def test_a_batch_reads_from_the_end_of_the_one_before(wrote: Callable[..., str]) -> None:
    checkpoint = wrote(4, {"orders": {"0": 10}}, {"sourceVersion": 1, "reservoirId": "x"})
    wrote(5, {"orders": {"0": 20, "1": 3}}, 17)
    reads = micro_batch(checkpoint, 5)
    assert reads == MicroBatch({ORDERS_0: 10}, {ORDERS_0: 20, ORDERS_1: 3}, is_first=False)
    assert micro_batch(f"file://{checkpoint}", 5) == reads
    assert micro_batch(f"file:{checkpoint}", 5) == reads


def test_the_first_batch_of_a_query_begins_anywhere(wrote: Callable[..., str]) -> None:
    checkpoint = wrote(0, {"orders": {"0": 10}})
    reads = micro_batch(checkpoint, 0)
    assert reads == MicroBatch({}, {ORDERS_0: 10})
    reads.check({ORDERS_0: Span(7, 9)})


def test_sources_may_have_names(wrote: Callable[..., str], tmp_path: Path) -> None:
    checkpoint = wrote(3, {"orders": {"0": 10}})
    for batch, end in ((4, 10), (5, 20)):
        text = f'v2\n{json.dumps(METADATA)}\na:b:{{}}\n1:{{"orders":{{"0":{end}}}}}\n2:-'
        (tmp_path / "offsets" / str(batch)).write_text(text)
    assert micro_batch(checkpoint, 5) == MicroBatch({ORDERS_0: 10}, {ORDERS_0: 20}, is_first=False)


@pytest.fixture
def wrote_named(tmp_path: Path) -> Callable[..., str]:
    """Writes what batch number n ends with, of sources with names."""
    (tmp_path / "offsets").mkdir()

    def write(batch: int, **sources: Mapping[str, object]) -> str:
        lines = [f"{name}:{json.dumps(source)}" for name, source in sources.items()]
        text = "\n".join(["v2", json.dumps(METADATA), *lines])
        (tmp_path / "offsets" / str(batch)).write_text(text)
        return str(tmp_path)

    return write


def test_a_source_that_is_new_begins_where_it_notes(wrote_named: Callable[..., str]) -> None:
    old = {"clicks": {"0": 3}}
    wrote_named(0, old=old)
    checkpoint = wrote_named(1, new=with_start({"orders": {"0": 20}}, {ORDERS_0: 10}), old=old)
    clicks = TopicPartition("clicks", 0)
    expected = MicroBatch({ORDERS_0: 10, clicks: 3}, {ORDERS_0: 20, clicks: 3}, is_first=False)
    reads = micro_batch(checkpoint, 1)
    assert reads == expected
    assert (reads.start_of(ORDERS_0), reads.start_of(clicks), reads.start_of(ORDERS_1)) == (
        10,
        3,
        0,
    )


def test_a_source_that_is_new_and_notes_nothing_begins_anywhere(
    wrote_named: Callable[..., str],
) -> None:
    wrote_named(0, old={"clicks": {"0": 3}})
    checkpoint = wrote_named(1, new={"orders": {"0": 20}}, old={"clicks": {"0": 4}})
    reads = micro_batch(checkpoint, 1)
    assert reads is not None
    assert reads.start_of(ORDERS_0) is None
    assert reads.start_of(TopicPartition("clicks", 0)) == 3


def test_a_source_that_comes_back_elsewhere_than_it_went_is_refused(
    wrote_named: Callable[..., str],
) -> None:
    old = {"clicks": {"0": 3}}
    checkpoint = wrote_named(0, old=old, gone={"orders": {"0": 15}})
    wrote_named(1, old=old)
    wrote_named(2, old=old, gone=with_start({"orders": {"0": 20}}, {ORDERS_0: 20}))
    with pytest.raises(CheckpointError, match=r"read up to .*15.* startingOffsets"):
        micro_batch(checkpoint, 2)
    # What it would read again may have been passed by a micro-batch that ran without it.
    wrote_named(2, old=old, gone=with_start({"orders": {"0": 20}}, {ORDERS_0: 0}))
    with pytest.raises(CheckpointError, match=r"read up to .*15.* while micro-batch 0 was under"):
        micro_batch(checkpoint, 2)
    wrote_named(2, old=old, gone=with_start({"orders": {"0": 20}}, {ORDERS_0: 15}))
    reads = micro_batch(checkpoint, 2)
    assert reads is not None
    assert reads.start_of(ORDERS_0) == 15


def test_a_file_that_is_cut_short_is_refused(wrote: Callable[..., str], tmp_path: Path) -> None:
    """Its sources are read from `latest` on, say, and what came before would count as loaded."""
    checkpoint = wrote(0, {"orders": {"0": 10}})
    (tmp_path / "offsets" / "0").write_text(f"v2\n{json.dumps(METADATA)}\n")
    wrote(1, {"orders": {"0": 90}})
    with pytest.raises(CheckpointError, match="offsets/0 of the checkpoint is cut short"):
        micro_batch(checkpoint, 1)


def test_what_cannot_be_read_is_not_known(wrote: Callable[..., str], tmp_path: Path) -> None:
    checkpoint = wrote(1, {"orders": {"0": 10}})
    assert micro_batch(checkpoint, 1) is None
    assert micro_batch(str(tmp_path / "gone"), 0) is None
    assert micro_batch("dbfs:/somewhere", 0) is None


BATCH = MicroBatch({ORDERS_0: 10}, {ORDERS_0: 20, ORDERS_1: 3})


def test_rows_of_the_batch_are_fine() -> None:
    BATCH.check({ORDERS_0: Span(10, 19), ORDERS_1: Span(0, 0)})
    BATCH.check({})


@pytest.mark.parametrize("span", [Span(9, 9), Span(9, 15), Span(15, 20)])
def test_rows_that_were_held_back_are_refused(span: Span) -> None:
    with pytest.raises(InvalidRowError, match="orders-0 in a micro-batch that reads 10 to 19"):
        BATCH.check({ORDERS_0: span})


def test_rows_of_no_topic_of_the_query_are_refused() -> None:
    with pytest.raises(InvalidRowError, match="rows of payments-0, which no source of this query"):
        BATCH.check({TopicPartition("payments", 0): Span(0, 0)})


def test_a_topic_that_is_read_twice_in_different_portions_is_refused(
    wrote: Callable[..., str],
) -> None:
    checkpoint = wrote(0, {"orders": {"0": 10, "1": 5}}, {"orders": {"0": 12, "1": 5}})
    reads = micro_batch(checkpoint, 0)
    assert reads is not None
    reads.check({ORDERS_1: Span(0, 4)})
    with pytest.raises(InvalidRowError, match="Two sources of this query read orders-0"):
        reads.check({ORDERS_0: Span(0, 4)})


def test_topics_that_brokers_do_not_show_are_left_where_they_are_unless_rows_came() -> None:
    gone = TopicPartition("gone", 0)
    ids = {"orders": UUID(int=1), "gone": UUID(int=2)}
    starts, untils = {ORDERS_0: 1, gone: 2}, {ORDERS_0: 3, gone: 4}
    batch = MicroBatch(starts, untils, is_first=False, logs=LogIdentity(ids))
    shown = {"orders": UUID(int=1)}
    assert batch.without_recreated(shown, {}).untils == {ORDERS_0: 3}
    assert batch.without_recreated(shown, {gone: Span(2, 3)}) == batch
    # Nobody asked, or brokers say no ids.
    assert batch.without_recreated({}, {}) == batch
