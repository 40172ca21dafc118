"""When a load is due: every so often, or by a cron line. Pure: clocks are arguments.

An interval counts by a clock that nobody sets, from the beginning of a run; a cron line by the
wall's, in its own time zone, as Debian's cron: a time that summer time leaves out comes as soon as
it is over, one that it has twice comes once, but for lines that run at every hour or more often.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TypeAlias
from zoneinfo import ZoneInfo

from pyspark_kafkalog.errors import InvalidOptionError, MissingExtraError

_UNITS_S = {
    **dict.fromkeys(("s", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400),
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_LONGEST_S = 366 * 86400


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by both clocks: seconds that only ever grow, and the wall's, in UTC."""

    clock_s: float
    wall: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """When something is due: by the clock, or by the wall's."""

    clock_s: float | None = None
    wall: datetime | None = None

    def overdue_s(self, now: Moment) -> float:
        """Negative while it is not yet due."""
        if self.clock_s is not None:
            return now.clock_s - self.clock_s
        assert self.wall is not None
        return (now.wall - self.wall).total_seconds()


@dataclass(frozen=True, slots=True)
class Every:
    """A run begins `seconds` after the one before began, or when that has ended."""

    seconds: float

    def first(self, now: Moment) -> Due:
        return Due(clock_s=now.clock_s)

    def after(self, began: Moment, now: Moment) -> Due:
        return Due(clock_s=max(began.clock_s + self.seconds, now.clock_s))


@dataclass(frozen=True, slots=True)
class Cron:
    """A run begins at the times of a cron line; those that pass while one is at work are missed."""

    line: str
    zone: tzinfo = timezone.utc

    def first(self, now: Moment) -> Due:
        return self.after(now, now)

    def after(self, began: Moment, now: Moment) -> Due:
        from cronsim import CronSim

        found = next(CronSim(self.line, now.wall.astimezone(self.zone)))
        return Due(wall=found.astimezone(timezone.utc))


Schedule: TypeAlias = Every | Cron


def every(text: str) -> Every:
    """Of `5 minutes`; raises InvalidOptionError."""
    return Every(duration_s(text))


def cron(line: str, zone: tzinfo) -> Cron:
    """Of `0 3 * * *`; raises InvalidOptionError, MissingExtraError."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise MissingExtraError(
            "a cron line needs cronsim, which is not installed: "
            "pip install 'pyspark-kafkalog[serve]'"
        ) from error
    try:
        next(CronSim(line, datetime.now(timezone.utc)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "it has no time to come"
        raise InvalidOptionError(
            f"{line!r} is no cron line ({why}): write minute, hour, day, month and day of the week"
        ) from None
    return Cron(line, zone)


def zone_named(name: str) -> tzinfo:
    """Of `Europe/Berlin`; raises InvalidOptionError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidOptionError(
            f"{name!r} is no time zone: write one such as UTC or Europe/Berlin"
        ) from None


def duration_s(text: str) -> float:
    """Seconds of `90 s`, `5 minutes`, `1 h 30 m`; raises InvalidOptionError."""
    parts = _DURATION.findall(text.lower())
    is_whole = not _DURATION.sub("", text.lower()).strip()
    if not parts or not is_whole or any(unit not in _UNITS_S for _, unit in parts):
        raise InvalidOptionError(
            f"{text!r} is no duration: write a number and seconds, minutes, hours, days or weeks, "
            "such as 5 minutes"
        )
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if not 0 < seconds <= _LONGEST_S:
        raise InvalidOptionError(f"{text!r} is not more than nothing and at most a year")
    return seconds


def described(due: Due, now: Moment) -> str:
    """In how long something is due, for people."""
    return str(timedelta(seconds=max(0, round(-due.overdue_s(now)))))
