"""The clock that is handed down: tests give their own.

Wall-clock milliseconds, as Kafka stamps records and ages segments by. Any thread.
"""

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


def system_clock_ms() -> int:
    return time.time_ns() // 1_000_000
