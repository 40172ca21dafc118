"""Things whose turn comes after a delay, by a wall clock that may be set back.

Under its owner's lock.
"""

from typing import Generic, TypeVar

from broker.log.clock import has_passed

T = TypeVar("T")


class Delayed(Generic[T]):
    """What waits, in the order in which it came."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, T]] = []

    @property
    def waiting(self) -> list[T]:
        return [thing for _, _, thing in self._waiting]

    def add(self, thing: T, now_ms: int, delay_ms: int) -> None:
        self._waiting.append((now_ms, delay_ms, thing))

    def take_due(self, now_ms: int) -> list[T]:
        """Those whose delay is over, or since which the clock was set back; no longer waiting."""
        due, waiting = [], []
        for since_ms, delay_ms, thing in self._waiting:
            if has_passed(delay_ms, since_ms, now_ms):
                due.append(thing)
            else:
                waiting.append((since_ms, delay_ms, thing))
        self._waiting = waiting
        return due
