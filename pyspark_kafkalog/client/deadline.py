"""A point in time by which a call must be over, handed down through everything the call does.

Passing one Deadline instead of a timeout keeps retries honest: each attempt gets what is left of
the whole, never a timeout of its own. Reads the monotonic clock; one thread at a time.

That clock runs on while a process is suspended (SIGSTOP, a container that is paused). Whoever finds
a deadline long past has not waited in vain then: it slept, and tries once more.
"""

import time

_SUSPENDED_S = 1.0
"""No attempt takes so much longer than its deadline, unless its process does not run."""


class Deadline:
    """`timeout_ms` from now on, on the monotonic clock."""

    __slots__ = ("_at_s", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self._at_s = time.monotonic() + timeout_ms / 1000

    @property
    def remaining_s(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self._at_s - time.monotonic())

    @property
    def remaining_ms(self) -> int:
        """Whole milliseconds that are left, never negative: what a request tells the broker."""
        return int(self.remaining_s * 1000)

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._at_s

    @property
    def was_slept_through(self) -> bool:
        """Whether it passed so long ago that this process was suspended, or its clock jumped."""
        return time.monotonic() >= self._at_s + _SUSPENDED_S

    def part(self, timeout_ms: float) -> "Deadline":
        """A deadline of `timeout_ms` from now that never reaches beyond this one."""
        return Deadline(min(timeout_ms, self.remaining_s * 1000))

    def pause(self, seconds: float) -> None:
        """Waits between two attempts, at most until the deadline."""
        time.sleep(min(seconds, self.remaining_s))

    def __repr__(self) -> str:
        return f"Deadline({self.remaining_ms} of {self.timeout_ms:g} ms left)"
