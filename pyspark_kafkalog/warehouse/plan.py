"""What a load is going to do: where it begins and ends, how much that is, in how many commits.

Owns the keyword forms of `load` for where to begin and end, which become the connector's own
options (startingOffsets, startingTimestamp, endingOffsets, endingTimestamp); the bounds in bytes;
and LoadPlan, which a dry run gives back. Bytes are those of the log, compressed where they are, and
estimated from a look at the batches that come next (client/sizes.py).

Runs on the driver, with a Cluster handed in. Writes nothing.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone, tzinfo
from typing import Any, TypeAlias

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.sizes import sample_sizes
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.offsets import OFFSETS_EXAMPLE
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.source.trigger_limits import OffsetSizes, limit_untils_by_bytes
from pyspark_kafkalog.warehouse.progress import describe_bytes

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
_MOST_SHOWN = 100


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


def parse_time(text: str) -> datetime | None:
    """ISO 8601, such as 2026-11-01T00:00 or 2026-11-01T00:00:00Z; None for any other text."""
    text = text.strip()
    if not text[:4].isdigit() or "-" not in text:
        return None
    try:
        # Python 3.10 does not know the letter.
        return datetime.fromisoformat(text[:-1] + "+00:00" if text[-1] in "zZ" else text)
    except ValueError:
        return None


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
        moment = moment.astimezone() if wanted is None else moment.replace(tzinfo=wanted)
    # In whole numbers: a record of just that millisecond is in.
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


@dataclass(frozen=True, slots=True, repr=False)
class LoadPlan:
    """What a load would do now; nothing of it is done.

    `ranges` are the offsets of each partition, `bytes` about how many bytes of the log these are
    (empty where the brokers did not tell). They would be landed by `tasks` Spark tasks, and
    published in about `commits` commits.
    """

    name: str
    target: str
    ranges: tuple[OffsetRange, ...]
    bytes: Mapping[TopicPartition, int]
    tasks: int
    commits: int

    @property
    def offset_count(self) -> int:
        """Offsets, not records: compaction and transaction markers leave gaps."""
        return sum(piece.offset_count for piece in self.ranges)

    def __repr__(self) -> str:
        if not self.ranges:
            return f"<LoadPlan {self.name!r} to {self.target}: nothing new>"
        partitions = {piece.topic_partition for piece in self.ranges}
        lines = [
            f"<LoadPlan {self.name!r} to {self.target}: {self.offset_count:,} offsets of "
            f"{len(partitions)} partitions{self._about(sum(self.bytes.values()))}, "
            f"tasks: {self.tasks}, commits: {self.commits}"
        ]
        for piece in self.ranges[:_MOST_SHOWN]:
            size = self._about(self.bytes.get(piece.topic_partition, 0))
            lines.append(
                f"  {piece.topic}-{piece.partition}: from {piece.start_offset} until "
                f"{piece.until_offset}, {piece.offset_count:,} offsets{size}"
            )
        if len(self.ranges) > _MOST_SHOWN:
            lines.append(f"  and {len(self.ranges) - _MOST_SHOWN} more partitions")
        return "\n".join(lines) + ">"

    def _about(self, size_bytes: int) -> str:
        return f", about {describe_bytes(size_bytes)} of the log" if self.bytes else ""


def bytes_of(cluster: Cluster, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, int]:
    """About how many bytes of the log the ranges are, one for each partition; empty if no broker
    tells."""
    starts = {piece.topic_partition: piece.start_offset for piece in ranges if piece.offset_count}
    sizes = OffsetSizes()
    samples = sample_sizes(cluster, starts)
    if not samples:
        return {}
    sizes.update(samples)
    of_each = sizes.of(starts)
    counts = {piece.topic_partition: piece.offset_count for piece in ranges}
    return {tp: round(of_each[tp] * counts[tp]) for tp in starts}


def within_bytes(
    cluster: Cluster, ranges: Sequence[OffsetRange], max_bytes: int
) -> list[OffsetRange]:
    """As much of `ranges`, one for each partition beside those of no offsets, as comes to about
    `max_bytes`: the same part of each, one offset at least."""
    full = [piece for piece in ranges if piece.offset_count]
    starts = {piece.topic_partition: piece.start_offset for piece in full}
    untils = {piece.topic_partition: piece.until_offset for piece in full}
    sizes = OffsetSizes()
    sizes.update(sample_sizes(cluster, starts))
    limited = limit_untils_by_bytes(max_bytes, starts, untils, sizes.of(starts))
    return [
        replace(piece, until_offset=limited[piece.topic_partition]) if piece.offset_count else piece
        for piece in ranges
    ]


def rest_of(ranges: Sequence[OffsetRange], taken: Sequence[OffsetRange]) -> list[OffsetRange]:
    """What is left of `ranges` when `taken`, which begin where they do, are done."""
    untils = {piece.topic_partition: piece.until_offset for piece in taken}
    return [
        replace(piece, start_offset=untils[piece.topic_partition])
        for piece in ranges
        if untils[piece.topic_partition] < piece.until_offset
    ]


def chunks_of(
    ranges: Sequence[OffsetRange],
    take: Callable[[Sequence[OffsetRange]], list[OffsetRange]] | None,
) -> Iterator[list[OffsetRange]]:
    """`ranges` in portions, each of which is what `take` takes of what is left; in one if None."""
    left = list(ranges)
    while left:
        chunk = left if take is None else take(left)
        left = rest_of(left, chunk)
        yield chunk
