"""Which load of many is to begin next. Pure: time and chance are arguments.

At most `most_at_once` are at work, and never two of one load. Who has been due the longest begins
first, so nobody starves: one that ends is due again now at the earliest. What passes while a load
is at work, waits for others or the process stands still, is one run, not many.

A load that failed by what may pass is tried again, each time after a random part of a longer time;
one whose error will stay is held until the loads are read anew. Used by one thread.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from random import Random

from pyspark_kafkalog.warehouse.service.schedule import Due, Moment, Schedule

_MOST_DOUBLINGS = 32
_FAR_BACK = timedelta(hours=3)
"""Less than that is waited for, as Debian's cron does, so that no run comes twice."""


class Ended(Enum):
    """How a run ended."""

    WELL = "well"
    MAY_PASS = "may pass"
    WILL_STAY = "will stay"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Retry:
    """How long to wait after failures, in seconds: up to `first_s`, then up to twice as long each
    time, up to `most_s`."""

    first_s: float = 1.0
    most_s: float = 300.0

    def wait_s(self, failures: int, random: Random) -> float:
        """After so many failures in a row."""
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        return random.uniform(0, min(self.most_s, self.first_s * 2.0**doublings))


@dataclass(slots=True)
class _Entry:
    """What is known of one load."""

    schedule: Schedule
    retry: Retry
    due: Due
    failures: int = 0
    is_held: bool = False
    began: Moment | None = None
    """While it is at work."""
    is_gone: bool = False
    """At work, and in the agenda no more."""
    is_renewed: bool = False
    """The loads were read anew while it was at work: what it fails by may be mended."""


class Agenda:
    """The loads by their keys."""

    def __init__(self, most_at_once: int, random: Random) -> None:
        self.most_at_once = most_at_once
        self._random = random
        self._entries: dict[Hashable, _Entry] = {}
        self._wall_zero: datetime | None = None

    def take(self, loads: Mapping[Hashable, tuple[Schedule, Retry]], now: Moment) -> None:
        """These are the loads from now on. Those that are the same stay as they are, but that none
        is held any more; those that are at work and gone end first."""
        for key in list(self._entries):
            if key not in loads:
                if self._entries[key].began is None:
                    del self._entries[key]
                else:
                    self._entries[key].is_gone = True
        for key, (schedule, retry) in loads.items():
            known = self._entries.get(key)
            if known is None:
                self._entries[key] = _Entry(schedule, retry, schedule.first(now))
                continue
            if known.is_held or known.is_gone:
                known.due = schedule.first(now)
            elif known.schedule != schedule:
                # Not at once: who has just changed how often would not expect it.
                known.due = schedule.after(now, now)
            known.schedule, known.retry = schedule, retry
            known.is_held = known.is_gone = False
            known.is_renewed = known.began is not None

    def begin(self, now: Moment) -> list[Hashable]:
        """The loads that are to begin now; they are at work from here on."""
        self._mind_wall(now)
        free = self.most_at_once - sum(one.began is not None for one in self._entries.values())
        waiting = [
            (-one.due.overdue_s(now), number, key)
            for number, (key, one) in enumerate(self._entries.items())
            if one.began is None and not one.is_held and one.due.overdue_s(now) >= 0
        ]
        chosen = [key for _, _, key in sorted(waiting, key=lambda each: each[:2])[: max(0, free)]]
        for key in chosen:
            self._entries[key].began = now
        return chosen

    def _mind_wall(self, now: Moment) -> None:
        """Where the wall's clock was set far back, what was due by it may be years away."""
        before, self._wall_zero = self._wall_zero, now.wall - timedelta(seconds=now.clock_s)
        if before is None or before - self._wall_zero < _FAR_BACK:
            return
        for one in self._entries.values():
            if one.due.wall is not None:
                one.due = min(
                    one.due, one.schedule.after(now, now), key=lambda due: -due.overdue_s(now)
                )

    def end(self, key: Hashable, how: Ended, now: Moment) -> float | None:
        """The load is at work no more. After a failure: in how many seconds it is tried again, or
        None where it is held."""
        one = self._entries[key]
        began, one.began = one.began, None
        assert began is not None
        is_renewed, one.is_renewed = one.is_renewed, False
        if one.is_gone:
            del self._entries[key]
            return None
        if how is Ended.MAY_PASS:
            one.failures += 1
            wait_s = one.retry.wait_s(one.failures, self._random)
            one.due = Due(clock_s=now.clock_s + wait_s)
            return wait_s
        if how is Ended.WILL_STAY and not is_renewed:
            one.is_held = True
            return None
        one.failures = 0
        one.due = one.schedule.after(began, now)
        return None

    def wait_s(self, now: Moment, most_s: float) -> float:
        """How long nothing is to begin, unless a load ends; `most_s` at most, since the wall's
        clock may be set."""
        if sum(one.began is not None for one in self._entries.values()) >= self.most_at_once:
            return most_s
        waits = [
            -one.due.overdue_s(now)
            for one in self._entries.values()
            if one.began is None and not one.is_held
        ]
        return max(0.0, min([most_s, *waits]))

    def at_work(self) -> list[Hashable]:
        return [key for key, one in self._entries.items() if one.began is not None]

    def held(self) -> list[Hashable]:
        return [key for key, one in self._entries.items() if one.is_held]
