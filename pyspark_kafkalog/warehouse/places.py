"""Where a load begins and ends, in one word: `starting` and `until` of `load`.

Owns their forms (words, times, offsets, counted back), which become the connector's own options:
startingOffsets, startingTimestamp, endingOffsets, endingTimestamp. Asks nobody but for a time zone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone, tzinfo
from typing import Any, TypeAlias

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.offsets import OFFSETS_EXAMPLE
from pyspark_kafkalog.source.places import parse_time

Place: TypeAlias = str | int | datetime | Mapping[str, Any]
"""Where a load begins or ends: `earliest`, `latest`, offsets as startingOffsets has them (JSON or a
mapping), a time as datetime, as ISO 8601 text or in ms since the epoch; to begin with, also counted
back (`-1000 offsets`, `-10 minutes`)."""

_STARTING = (
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
)
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")


def with_places(
    options: Mapping[str, str],
    starting: Place | None,
    until: Place | None,
    zone: Callable[[], tzinfo | None],
) -> dict[str, str]:
    """`options` with those that `starting` and `until` stand for.

    A partition without a record as late as the time of `starting` begins at its end. `zone` is
    asked where a time names none; None is this machine's. Raises InvalidOptionError.
    """
    merged = dict(options)
    if starting is not None:
        _refuse_twice("starting", options, _STARTING)
        merged |= _place_options("starting", starting, zone)
        if "startingTimestamp" in merged:
            merged.setdefault("startingOffsetsByTimestampStrategy", "latest")
    if until is not None:
        _refuse_twice("until", options, _ENDING)
        merged |= _place_options("ending", until, zone)
    return merged


def _refuse_twice(keyword: str, options: Mapping[str, str], names: Sequence[str]) -> None:
    given = {name.lower() for name in options}
    for name in names:
        if name.lower() in given:
            raise InvalidOptionError(
                f"{keyword} and the option {name} both say it: leave one of them out."
            )


def _place_options(which: str, place: Place, zone: Callable[[], tzinfo | None]) -> dict[str, str]:
    time_ms = _time_ms(place, zone)
    if time_ms is not None:
        return {f"{which}Timestamp": str(time_ms)}
    if isinstance(place, Mapping):
        return {f"{which}Offsets": json.dumps(place)}
    text = str(place).strip()
    counts_back = which == "starting" and text.startswith("-")
    if not (text.startswith("{") or text.lower() in ("earliest", "latest") or counts_back):
        words = (
            "begin: write earliest, -10 minutes," if which == "starting" else "end: write latest,"
        )
        raise InvalidOptionError(
            f"{text[:80]!r} is no place where a load can {words} a time such as 2026-11-01T00:00 "
            f"or 1700000000000, or offsets such as {OFFSETS_EXAMPLE}."
        )
    return {f"{which}Offsets": text}


def _time_ms(place: Place, zone: Callable[[], tzinfo | None]) -> int | None:
    """Milliseconds since the epoch; None where `place` is no time."""
    is_number = isinstance(place, int) and not isinstance(place, bool)
    if is_number or (isinstance(place, str) and place.strip().isdecimal()):
        return int(str(place))
    moment = parse_time(place) if isinstance(place, str) else place
    if not isinstance(moment, datetime):
        return None
    if moment.tzinfo is None:
        wanted = zone()
        try:
            moment = moment.astimezone() if wanted is None else moment.replace(tzinfo=wanted)
        except (ValueError, OverflowError):  # beyond Python's calendar
            return None
    # In whole numbers: a record of just that millisecond is in.
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
