"""The order of measuring, what a pair's ratio is, and that one failing row harms no other."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.pairs import Comparison, Result, Row, chosen, compare


def row(**more: Any) -> Row:
    return Row("Group", "work", "MB/s", **more)


def test_sides_are_measured_in_turn_and_the_first_pair_is_dropped() -> None:
    order = []

    def side(name: str, figures: list[Any]) -> Callable[[], Any]:
        def measure() -> Any:
            order.append(name)
            return figures.pop(0)

        return measure

    comparison = Comparison.of_one(row(), side("A", [9, 2, 4, 6]), side("B", [1, 1, 1, 2]), 1.0)
    (result,) = compare(comparison, pairs=3)
    assert order == ["B", "A", "A", "B", "B", "A", "A", "B"]
    assert (result.ours, result.peer) == ([2, 4, 6], [1, 1, 2])
    assert result.ratios == [2, 4, 3]
    assert result.ratio == 3


def test_a_quick_run_leaves_out_what_takes_long_and_warms_up_once() -> None:
    long, short = (
        Comparison.of_one(
            Row("Group", name, "MB/s"), float, float, 1.0, quick=name == "short", warm_up=3
        )
        for name in ("long", "short")
    )
    assert chosen([long, short], [], quick=False) == [long, short]
    assert chosen([long, short], ["on", "other"], quick=False) == [long]
    (quick,) = chosen([long, short], [], quick=True)
    assert (quick.rows, quick.warm_up) == (short.rows, 1)


def test_less_time_is_better() -> None:
    result = Result(row(higher_is_better=False), [1.0, 2.0], [4.0, 4.0])
    assert result.ratios == [4, 2]


@pytest.mark.parametrize(
    ("more", "ours", "reached"),
    [
        ({"goal": 2}, 20, True),
        ({"goal": 2}, 19, False),
        ({"goal": 0.9}, 9, True),
        ({}, 10, True),
        ({}, 9, False),
        ({"limit": 0.5, "higher_is_better": False}, 0.5, True),
        ({"limit": 0.5, "higher_is_better": False}, 0.6, False),
    ],
)
def test_a_goal_is_a_ratio_a_limit_our_own_figure_and_without_both_ours_is_not_worse(
    more: dict[str, Any], ours: float, reached: bool
) -> None:
    assert Result(row(**more), [ours], [10]).reached is reached


def test_one_piece_of_work_gives_several_rows() -> None:
    rows = (row(), Row("Group", "its cost", "s", higher_is_better=False))
    first, second = compare(Comparison(rows, lambda: (8, 1), lambda: (4, 3), 1.0), pairs=2)
    assert (first.ratio, second.ratio) == (2, 3)
    assert first.seconds == second.seconds


def test_a_side_that_fails_leaves_its_text_and_no_figures() -> None:
    def fails() -> float:
        raise RuntimeError("the broker is gone\nand more of it")

    (result,) = compare(Comparison.of_one(row(), lambda: 1.0, fails, 1.0), pairs=5)
    assert result.error == "RuntimeError: the broker is gone"
    assert not result.reached
    assert result.ours == result.peer == []


def test_whoever_ends_the_run_ends_it() -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(Comparison.of_one(row(), interrupted, lambda: 1.0, 1.0), pairs=5)
