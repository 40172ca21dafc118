"""The clock that is handed down: tests give their own.

Wall-clock milliseconds, as Kafka stamps records and ages segments by. It may be set forward and
back at any time: who waits for a time asks `has_passed`. Any thread.
"""

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


def system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def has_passed(wait_ms: int, since_ms: int, now_ms: int) -> bool:
    """Whether `wait_ms` went by since `since_ms`, or nobody can say, as the clock was set back:
    what waits must not do so until the clock has caught up, which may take days."""
    return not 0 <= now_ms - since_ms < wait_ms
