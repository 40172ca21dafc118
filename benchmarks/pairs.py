"""Two sides measured in turn: A B, B A, A B ..., so that what the machine does meets both.

A side is a function that does the work once and returns its figures, one for each row of the table
that the work gives; the first pair, or as many as a comparison says, warms up (the very first also
makes the data) and is dropped. A pair's ratio says how many times better ours was in that
pair; the median of the ratios and their range are what a row is judged by. Figures of two runs are
never compared.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

Measure = Callable[[], float]
Measures = Callable[[], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a figure in `unit`.

    `goal` is the ratio that the design asks for; without one, ours shall not be worse than the
    peer. `limit` is a goal in the row's own unit, which our figure shall not exceed, whatever the
    peer's is. `higher_is_better` is False for times and sizes. `group` gathers rows under one
    heading; `settings` says what the two sides were given beyond their defaults.
    """

    group: str
    name: str
    unit: str
    goal: float | None = None
    limit: float | None = None
    higher_is_better: bool = True
    peer_name: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Work that `ours` and `peer` do the same of; each returns a figure for every one of `rows`.

    `pair_s` is about how long a pair takes at full size on two quiet cores. What is not `quick` is
    left out of a quick run. `warm_up` pairs come first and do not count.
    """

    rows: tuple[Row, ...]
    ours: Measures
    peer: Measures
    pair_s: float
    quick: bool = True
    warm_up: int = 1

    @classmethod
    def of_one(
        cls,
        row: Row,
        ours: Measure,
        peer: Measure,
        pair_s: float,
        quick: bool = True,
        warm_up: int = 1,
    ) -> "Comparison":
        return cls((row,), lambda: (ours(),), lambda: (peer(),), pair_s, quick, warm_up)


def chosen(
    comparisons: Sequence[Comparison], texts: Sequence[str], quick: bool
) -> list[Comparison]:
    """Those with a row whose name has one of `texts`, or all where there are none; of a quick run
    as it measures them."""
    found = [
        each
        for each in comparisons
        if not texts or any(text in row.name for text in texts for row in each.rows)
    ]
    return [replace(each, warm_up=1) for each in found if each.quick] if quick else found


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of every pair, in the order in which they were measured; or why there are none.

    `seconds` is how long the whole comparison took, which its other rows share; `run` says when the
    run began that it was measured in.
    """

    row: Row
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""
    run: str = ""

    @property
    def ratios(self) -> list[float]:
        """How many times better ours was, pair by pair."""
        pairs = zip(self.ours, self.peer, strict=True)
        return [a / b if self.row.higher_is_better else b / a for a, b in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def reached(self) -> bool:
        if self.error:
            return False
        if self.row.limit is not None:
            return statistics.median(self.ours) <= self.row.limit
        return self.ratio >= (1 if self.row.goal is None else self.row.goal)


def compare(
    comparison: Comparison, pairs: int, tell: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Measures `pairs` pairs after those that warm up; every other pair begins with the peer.

    A side that raises an exception gives results with its text in place of figures.
    """
    ours: list[Sequence[float]] = []
    peer: list[Sequence[float]] = []
    began_s = time.perf_counter()
    try:
        for number in range(1 - comparison.warm_up, pairs + 1):
            tell(f"pair {number} of {pairs}" if number > 0 else "warming up")
            if number % 2:
                pair = comparison.ours(), comparison.peer()
            else:
                pair = (comparison.peer(), comparison.ours())[::-1]
            if number > 0:
                ours.append(pair[0])
                peer.append(pair[1])
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        seconds = time.perf_counter() - began_s
        return [Result(row, seconds=seconds, error=text[:300]) for row in comparison.rows]
    seconds = time.perf_counter() - began_s
    columns = zip(zip(*ours, strict=True), zip(*peer, strict=True), strict=True)
    return [
        Result(row, list(our_figures), list(peer_figures), seconds)
        for row, (our_figures, peer_figures) in zip(comparison.rows, columns, strict=True)
    ]
