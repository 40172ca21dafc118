"""By what a write moves a load's name, and which holes it refuses to leave."""

from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source.offsets import Offsets, parse_start
from pyspark_kafkalog.warehouse.sink.micro_batch import MicroBatch
from pyspark_kafkalog.warehouse.sink.row_places import Span
from pyspark_kafkalog.warehouse.sink.written_ranges import Begins, written_ranges

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
    only_rows_tell: bool = False,
) -> list[tuple[int, int]]:
    seen = {} if rows is None else {ORDERS_0: Span(*rows)}
    starting = None if said is None else parse_start("startingOffsets", said)
    begins = Begins(starting, earliest or {}, fail_on_data_loss, only_rows_tell)
    ranges = written_ranges("nightly", last or {}, seen, batch, begins)
    return [(piece.start_offset, piece.until_offset) for piece in ranges if piece.partition == 0]


def test_a_micro_batch_moves_to_where_it_read_also_without_rows() -> None:
    for rows in (None, (12, 15)):
        assert moved(LATER, rows, last={ORDERS_0: 10}) == [(10, 20)]
        assert moved(LATER, rows, last={ORDERS_0: 13}) == [(13, 20)]
        assert moved(LATER, rows, last={ORDERS_0: 20}) == []
        assert moved(LATER, rows, last={ORDERS_0: 30}) == []


def test_a_batch_of_rows_moves_to_after_them() -> None:
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
        (LATER, (12, 15), {}, '{"orders":{"0":0}}', "offset 0 of orders-0, which is new"),
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
def test_holes_are_refused_or_become_gaps(
    batch: MicroBatch | None,
    rows: tuple[int, int] | None,
    last: dict[Any, int],
    said: str | None,
    holes: str,
) -> None:
    with pytest.raises(DataLossError, match=holes):
        moved(batch, rows, last, said)
    goes_on = last.get(ORDERS_0, 0)
    [anchor, (start, until)] = moved(batch, rows, last, said, fail_on_data_loss=False)
    assert anchor == (goes_on, goes_on)
    assert (start > goes_on, until) == (True, 20 if batch else 16)


def test_where_a_read_began_may_be_said() -> None:
    for batch in (FIRST, None):
        until = 20 if batch else 16
        assert moved(batch, (12, 15), said='{"orders":{"0":12}}') == [(12, until)]
        assert moved(batch, (12, 15), said='{"orders":{"0":11}}') == [(11, until)]
        assert moved(batch, (12, 15), said="earliest", earliest={ORDERS_0: 0}) == [(0, until)]
        assert moved(batch, (12, 15), said='{"orders":{"0":14}}') == [(12, until)]
        assert moved(batch, (12, 15), said="latest") == [(12, until)]
        for said in ("earliest", '{"orders":{"0":9}}', '{"orders":"earliest"}'):
            assert moved(batch, (12, 15), {ORDERS_0: 9}, said, {ORDERS_0: 0}) == [(9, until)]
    assert moved(LATER, None, said="latest") == [(10, 20)]


def test_the_earliest_offset_of_a_place_is_where_its_log_begins_now() -> None:
    for batch in (FIRST, None):
        until = 20 if batch else 16
        last = {ORDERS_0: 9}
        assert moved(batch, (12, 15), last, "earliest", {ORDERS_0: 9}) == [(9, until)]
        with pytest.raises(DataLossError, match="from offset 10 on"):
            moved(batch, (12, 15), last, "earliest", {ORDERS_0: 10})
        # The rows themselves say that it began before.
        assert moved(batch, (8, 15), last, "earliest", {ORDERS_0: 10}) == [(9, until)]


def test_an_empty_partition_is_recorded_once() -> None:
    empty = MicroBatch(untils={ORDERS_0: 0})
    assert moved(empty) == [(0, 0)]
    assert moved(empty, last={ORDERS_0: 0}) == []


def test_partitions_that_two_sources_read_in_different_portions_stay() -> None:
    assert moved(MicroBatch({}, {ORDERS_0: 20}, frozenset([ORDERS_0])), said="earliest") == []


def test_a_place_that_lags_behind_the_checkpoint_goes_on_where_it_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Earlier releases moved a place to after the last row, whatever more was read."""
    last = {ORDERS_0: 4}
    for rows in (None, (12, 15)):
        with pytest.raises(DataLossError, match=r"""'\{"orders": \{"0": 4\}\}' until this"""):
            moved(LATER, rows, last)
        for said in ("earliest", "latest", '{"orders":{"0":10}}', '{"orders":{"0":3}}'):
            with pytest.raises(DataLossError, match=r"offset 4 of orders-0.*from offset 10 on"):
                moved(LATER, rows, last, said)
        assert "taken for read" not in caplog.text
        assert moved(LATER, rows, last, '{"orders":{"0":4}}') == [(4, 20)]
        assert "from offset 10 on: what is between is taken for read" in caplog.text
        caplog.clear()


def test_a_partition_of_which_all_rows_were_filtered_goes_on_where_it_is_named() -> None:
    for last in ({}, {ORDERS_1: 9}):
        with pytest.raises(DataLossError, match=r"""which is new to it.*'\{"orders": \{"0": 10"""):
            moved(LATER, None, last)
        assert moved(LATER, None, last, '{"orders":{"0":10}}') == [(10, 20)]
        with pytest.raises(DataLossError, match=r"goes on at offset 0 .*from offset 10 on"):
            moved(LATER, None, last, '{"orders":{"0":0}}')


def test_all_places_that_lag_are_in_one_message() -> None:
    batch = MicroBatch({ORDERS_0: 10, ORDERS_1: 5}, {ORDERS_0: 20, ORDERS_1: 9}, is_first=False)
    last = {ORDERS_0: 4, ORDERS_1: 3}
    told = r"""The same holds for orders-1.*'\{"orders": \{"0": 4, "1": 3\}\}'"""
    with pytest.raises(DataLossError, match=told):
        moved(batch, None, last)
    assert moved(batch, None, last, '{"orders":{"0":4,"1":3}}') == [(4, 20)]


def test_a_topic_that_is_new_begins_where_its_log_does() -> None:
    for batch in (FIRST, None):
        until = 20 if batch else 16
        for said in (None, "earliest"):
            assert moved(batch, (12, 15), said=said, earliest={ORDERS_0: 12}) == [(12, until)]
        # Since the plan, retention went on: these were read, and are there.
        assert moved(batch, (12, 15), earliest={ORDERS_0: 14}) == [(12, until)]
        with pytest.raises(DataLossError, match=r"offset 11 of orders-0, which is new to it"):
            moved(batch, (12, 15), earliest={ORDERS_0: 11})
        # In a topic with a place, what is gone may have been there since.
        with pytest.raises(DataLossError, match=r"offset 0 of orders-0, which is new to it"):
            moved(batch, (12, 15), {ORDERS_1: 3}, earliest={ORDERS_0: 12})
    assert moved(FIRST, None, earliest={ORDERS_0: 20}) == [(20, 20)]


def test_a_new_target_does_not_take_an_old_checkpoint_for_the_beginning() -> None:
    with pytest.raises(DataLossError, match=r"offset 3 of orders-0, which is new.*from offset 10"):
        moved(LATER, (12, 15), said="earliest", earliest={ORDERS_0: 3})
    assert moved(LATER, (12, 15), said="earliest", earliest={ORDERS_0: 10}) == [(10, 20)]


def test_an_earliest_offset_that_nobody_knows_hides_no_loss() -> None:
    for batch in (FIRST, None):
        with pytest.raises(DataLossError, match=r"goes on at offset 9 .*from offset 12 on"):
            moved(batch, (12, 15), {ORDERS_0: 9}, "earliest")
        until = 20 if batch else 16
        told = moved(batch, (12, 15), {ORDERS_0: 9}, "earliest", only_rows_tell=True)
        assert told == [(9, until)]
