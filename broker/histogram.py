"""A histogram of durations that costs its writer a fraction of a microsecond.

Plain numbers, read by `broker.metrics` when somebody asks. One thread writes, any may read: a
reader may miss what is being written.
"""

from bisect import bisect_left
from typing import Final

BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000)
"""Upper bounds of the buckets; the last bucket has none."""
_LEAST_MS: Final = 0.1


class Histogram:
    """How many durations fell between two bounds, and their sum."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0

    def observe(self, duration_ms: float) -> None:
        bucket = 0
        if duration_ms > _LEAST_MS:  # most are not
            bucket = bisect_left(BOUNDS_MS, duration_ms)
        self.counts[bucket] += 1
        self.sum_ms += duration_ms

    def add(self, other: "Histogram") -> None:
        """Counts what `other` counted, too."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms
