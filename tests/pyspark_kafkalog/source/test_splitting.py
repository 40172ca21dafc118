"""How ranges are cut into tasks.

The pieces are those of Spark 4.2.0's connector, whose own class gave the same in 20,000 random
cases when this was written.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.splitting import Splitting, plan_tasks, share_tasks, split_ranges


def ranges_of(*sizes: int) -> list[Any]:
    return [OffsetRange("orders", number, 5, 5 + size) for number, size in enumerate(sizes)]


def split(
    sizes: Sequence[int], min_partitions: int | None = None, max_records: int | None = None
) -> list[Any]:
    """The (partition, size) of each piece."""
    pieces = split_ranges(ranges_of(*sizes), Splitting(min_partitions, max_records))
    return [(piece.partition, piece.offset_count) for piece in pieces]


def test_nothing_is_split_unless_asked_for() -> None:
    assert split([5, 0, 7]) == [(0, 5), (2, 7)]


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "pieces"),
    [
        ([5, 7], 2, [(0, 5), (1, 7)]),
        ([5, 7], 1, [(0, 5), (1, 7)]),
        ([10], 3, [(0, 3), (0, 3), (0, 4)]),
        ([2], 3, [(0, 1), (0, 1)]),
        ([0, 0], 3, []),
        # The small ones stay whole, the large one gets the other tasks.
        ([1, 1, 100], 5, [(0, 1), (1, 1), (2, 33), (2, 33), (2, 34)]),
        ([10, 90], 4, [(0, 10), (1, 30), (1, 30), (1, 30)]),
        ([50, 50], 3, [(0, 25), (0, 25), (1, 25), (1, 25)]),
        ([10, 10, 10], 4, [(0, 10), (1, 10), (2, 10)]),
    ],
)
def test_a_least_number_of_tasks_splits_the_large_ranges(
    sizes: list[int], min_partitions: int, pieces: list[tuple[int, int]]
) -> None:
    assert split(sizes, min_partitions) == pieces


@pytest.mark.parametrize(
    ("sizes", "max_records", "pieces"),
    [
        ([5, 0, 3], 5, [(0, 5), (2, 3)]),
        ([11, 3], 5, [(0, 3), (0, 4), (0, 4), (1, 3)]),
        ([3], 1, [(0, 1), (0, 1), (0, 1)]),
    ],
)
def test_a_most_for_each_task_cuts_equal_pieces(
    sizes: list[int], max_records: int, pieces: list[tuple[int, int]]
) -> None:
    assert split(sizes, max_records=max_records) == pieces


def test_both_first_cut_by_the_most_and_then_up_to_the_least() -> None:
    assert split([10, 4], min_partitions=3, max_records=5) == [(0, 5), (0, 5), (1, 4)]
    more = split([8, 8], min_partitions=8, max_records=4)
    assert more == [(0, 2)] * 4 + [(1, 2)] * 4
    # Of one partition all pieces are cut or none, also where rounding tells them apart.
    assert split([11], min_partitions=5, max_records=4) == [(0, 3), (0, 4), (0, 4)]


@given(
    st.lists(st.integers(0, 1000), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 500),
)
def test_the_pieces_are_the_whole(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = ranges_of(*sizes)
    pieces = split_ranges(ranges, Splitting(min_partitions, max_records))
    assert pieces == sorted(pieces)
    assert all(piece.offset_count for piece in pieces)
    assert max_records is None or all(piece.offset_count <= max_records for piece in pieces)
    offsets = [(p.partition, n) for p in pieces for n in range(p.start_offset, p.until_offset)]
    assert offsets == [
        (p.partition, n) for p in ranges for n in range(p.start_offset, p.until_offset)
    ]


def shared(sizes: list[Any], *limits: int) -> list[Any]:
    return [
        [piece.offset_count for piece in task] for task in share_tasks(ranges_of(*sizes), *limits)
    ]


def test_short_ranges_share_a_task_and_long_ones_have_their_own() -> None:
    assert shared([3, 0, 4, 3, 1, 20, 2], 9, 10) == [[3, 4, 3], [1], [20], [2]]
    assert shared([1] * 7, 3, 10) == [[1, 1, 1], [1, 1, 1], [1]]
    assert shared([5, 5, 5], 1) == [[5], [5], [5]]
    assert shared([0]) == []


@given(
    st.lists(st.integers(0, 100_000), max_size=12),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 50_000),
    st.integers(1, 20),
)
def test_tasks_have_all_the_pieces_in_order_and_no_more_than_they_may(
    sizes: list[int], least: int | None, most: int | None, shares: int
) -> None:
    splitting = Splitting(least, most, shares)
    pieces = split_ranges(ranges_of(*sizes), splitting)
    tasks = plan_tasks(ranges_of(*sizes), splitting)
    assert [piece for task in tasks for piece in task] == pieces
    assert all(1 <= len(task) <= shares for task in tasks)
    assert least is None or len(tasks) >= min(least, len(pieces))
