"""Timers by name: the one place where the coordinators' time passes.

Owns: which timer is due when, at most one by key. Setting a timer anew, as every heartbeat does,
costs no operation on the loop's heap while the new time is the later one: the timer goes off at
the old time, sees that it is early, and waits for the rest. Called by: the event loop's thread
only; clock and `call_later` are handed down. Never polls.
"""

from collections.abc import Callable, Hashable

from broker.replica.purgatory import CallLater, Timer

# A loop may call this much too early.
_EARLY_S = 0.002


class _Entry:
    """A timer: when it is due, and when the loop's timer `handle` goes off, perhaps before that."""

    __slots__ = ("due_s", "fires_s", "handle", "run")

    def __init__(self, due_s: float, run: Callable[[], None]) -> None:
        self.due_s = due_s
        self.fires_s = due_s
        self.run = run
        self.handle: Timer | None = None


class Timers:
    """Runs each scheduled function once, when its time has come and it was not cancelled."""

    def __init__(self, call_later: CallLater, clock_s: Callable[[], float]) -> None:
        """`clock_s`: seconds that never go back, of the same clock as `call_later`."""
        self._call_later = call_later
        self._clock_s = clock_s
        self._entries: dict[Hashable, _Entry] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def schedule(self, key: Hashable, delay_ms: int, run: Callable[[], None]) -> None:
        """Runs `run` in `delay_ms`; takes the place of what was scheduled under `key`."""
        due_s = self._clock_s() + delay_ms / 1000
        entry = self._entries.get(key)
        if entry is not None and entry.fires_s <= due_s:
            entry.due_s = due_s
            entry.run = run
            return
        self.cancel(key)
        entry = _Entry(due_s, run)
        self._entries[key] = entry
        self._arm(key, entry)

    def cancel(self, key: Hashable) -> None:
        """Forgets the timer; an unknown one is fine."""
        entry = self._entries.pop(key, None)
        if entry is not None and entry.handle is not None:
            entry.handle.cancel()

    def cancel_all(self) -> None:
        for key in list(self._entries):
            self.cancel(key)

    def _arm(self, key: Hashable, entry: _Entry) -> None:
        entry.fires_s = entry.due_s
        delay_s = max(0.0, entry.due_s - self._clock_s())
        entry.handle = self._call_later(delay_s, lambda: self._fire(key, entry))

    def _fire(self, key: Hashable, entry: _Entry) -> None:
        if self._entries.get(key) is not entry:
            return
        if entry.due_s - self._clock_s() > _EARLY_S:
            self._arm(key, entry)
            return
        del self._entries[key]
        entry.run()
