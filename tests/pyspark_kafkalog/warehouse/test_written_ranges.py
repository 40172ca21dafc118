"""By what a write moves a load's name, and which holes it refuses to leave."""

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source.offsets import Offsets, parse_start
from pyspark_kafkalog.warehouse.micro_batch import MicroBatch
from pyspark_kafkalog.warehouse.row_places import Span
from pyspark_kafkalog.warehouse.written_ranges import Begins, written_ranges

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
FIRST = MicroBatch(untils={ORDERS_0: 20})
LATER = MicroBatch({ORDERS_0: 10}, {ORDERS_0: 20}, is_first=False)


def moved(
    batch: MicroBatch | None,
    rows: tuple[int, int] | None = None,
    last: Offsets | None = None,
    said: str | None = None,
    earliest: Offsets | None = None,
    fail_on_data_loss: bool = True,
) -> list[tuple[int, int]]:
    seen = {} if rows is None else {ORDERS_0: Span(*rows)}
    starting = None if said is None else parse_start("startingOffsets", said)
    begins = Begins(starting, earliest or {}, fail_on_data_loss)
    ranges = written_ranges("nightly", last or {}, seen, batch, begins)
    return [(piece.start_offset, piece.until_offset) for piece in ranges if piece.partition == 0]


def test_a_micro_batch_moves_to_where_it_read_also_without_rows():
    for rows in (None, (12, 15)):
        assert moved(LATER, rows, last={ORDERS_0: 10}) == [(10, 20)]
        assert moved(LATER, rows, last={ORDERS_0: 13}) == [(13, 20)]
        assert moved(LATER, rows, last={ORDERS_0: 20}) == []
        assert moved(LATER, rows, last={ORDERS_0: 30}) == []


def test_a_batch_of_rows_moves_to_behind_them():
    assert moved(None, (0, 4)) == [(0, 5)]
    assert moved(None, (0, 4), last={ORDERS_0: 3}) == [(3, 5)]
    assert moved(None, (0, 4), last={ORDERS_0: 5}) == []
    assert moved(None) == []


@pytest.mark.parametrize(
    ("batch", "rows", "last", "said", "holes"),
    [
        # A checkpoint that is ahead of the target, such as one restored from a backup.
        (LATER, (12, 15), {ORDERS_0: 9}, "earliest", "offset 9 of orders-0.*from offset 10 on"),
        (LATER, None, {ORDERS_0: 9}, None, "offset 9 of orders-0.*from offset 10 on"),
        # A new target with an old checkpoint.
        (LATER, (12, 15), {}, None, "offset 0 of orders-0.*from offset 10 on"),
        (LATER, (12, 15), {ORDERS_1: 9}, "earliest", "offset 0 of orders-0.*from offset 10 on"),
        # A first batch, of which nothing is known but its end.
        (FIRST, (12, 15), {}, None, "offset 0 of orders-0.*from offset 12 on"),
        (FIRST, None, {}, None, "offset 0 of orders-0.*from offset 20 on"),
        (FIRST, None, {}, '{"orders":{"1":7}}', "from offset 20 on"),
        (FIRST, (12, 15), {ORDERS_0: 9}, None, "offset 9 of orders-0.*from offset 12 on"),
        (FIRST, (12, 15), {ORDERS_0: 9}, "latest", "offset 9 of orders-0.*from offset 12 on"),
        (FIRST, (12, 15), {ORDERS_0: 9}, '{"orders":{"0":11}}', "from offset 11 on"),
        (None, (12, 15), {ORDERS_0: 9}, '{"orders":{"0":11}}', "from offset 11 on"),
    ],
)
def test_holes_are_refused_or_become_gaps(batch, rows, last, said, holes):
    with pytest.raises(DataLossError, match=holes):
        moved(batch, rows, last, said)
    goes_on = last.get(ORDERS_0, 0)
    [anchor, (start, until)] = moved(batch, rows, last, said, fail_on_data_loss=False)
    assert anchor == (goes_on, goes_on)
    assert (start > goes_on, until) == (True, 20 if batch else 16)


def test_where_a_read_began_may_be_said():
    for batch in (FIRST, None):
        until = 20 if batch else 16
        assert moved(batch, (12, 15), said='{"orders":{"0":12}}') == [(12, until)]
        assert moved(batch, (12, 15), said='{"orders":{"0":11}}') == [(11, until)]
        assert moved(batch, (12, 15), said="earliest") == [(0, until)]
        assert moved(batch, (12, 15), said="latest") == [(12, until)]
        for said in ("earliest", '{"orders":{"0":9}}', '{"orders":"earliest"}'):
            assert moved(batch, (12, 15), {ORDERS_0: 9}, said) == [(9, until)]
    assert moved(LATER, None, said="latest") == [(10, 20)]


def test_the_earliest_offset_of_a_place_is_where_its_log_begins_now():
    for batch in (FIRST, None):
        until = 20 if batch else 16
        last = {ORDERS_0: 9}
        assert moved(batch, (12, 15), last, "earliest", {ORDERS_0: 9}) == [(9, until)]
        with pytest.raises(DataLossError, match="from offset 10 on"):
            moved(batch, (12, 15), last, "earliest", {ORDERS_0: 10})
        # The rows themselves say that it began before.
        assert moved(batch, (8, 15), last, "earliest", {ORDERS_0: 10}) == [(9, until)]


def test_an_empty_partition_is_recorded_once():
    empty = MicroBatch(untils={ORDERS_0: 0})
    assert moved(empty) == [(0, 0)]
    assert moved(empty, last={ORDERS_0: 0}) == []


def test_partitions_that_two_sources_read_in_different_portions_stay():
    assert moved(MicroBatch({}, {ORDERS_0: 20}, frozenset([ORDERS_0])), said="earliest") == []
