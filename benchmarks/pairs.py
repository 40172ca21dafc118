"""Two sides measured in turn: A B A B ..., so that what the machine does meanwhile meets both.

A side is a function that does the work once and returns its figure; the first pair warms up and is
dropped. A pair's ratio says how many times better ours was in that pair; the median of the ratios
and their range are what a comparison is judged by. Figures of two runs are never compared.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

Measure = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table: `ours` and `peer` measure the same work in `unit`.

    `goal` is the ratio that the design asks for; `higher_is_better` is False for times and sizes.
    """

    name: str
    unit: str
    goal: float
    ours: Measure
    peer: Measure
    higher_is_better: bool = True
    peer_name: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of every pair, in the order in which they were measured."""

    name: str
    unit: str
    goal: float
    peer_name: str
    higher_is_better: bool
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times better ours was, pair by pair."""
        pairs = zip(self.ours, self.peer, strict=True)
        return [a / b if self.higher_is_better else b / a for a, b in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def reached(self) -> bool:
        return self.ratio >= self.goal


def compare(
    comparison: Comparison, pairs: int, tell: Callable[[str], None] = lambda _: None
) -> Result:
    """Measures `pairs` pairs after one that warms up; every other pair begins with the peer."""
    result = Result(
        comparison.name,
        comparison.unit,
        comparison.goal,
        comparison.peer_name,
        comparison.higher_is_better,
    )
    for number in range(pairs + 1):
        tell(f"pair {number} of {pairs}" if number else "warming up")
        if number % 2:
            ours, peer = comparison.ours(), comparison.peer()
        else:
            peer, ours = comparison.peer(), comparison.ours()
        if number:
            result.ours.append(ours)
            result.peer.append(peer)
    return result
