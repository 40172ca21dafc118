"""The ordered map of a log's segments: base offset to LogSegment, nothing but that.

Copy-on-write: a change builds a new tuple and replaces the old one in a single assignment, so a
reader takes `snapshot()` or `floor()` in any thread without a lock and keeps a consistent view
while retention drops segments. Changes happen under the log's lock. Opens and removes no file.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from broker.log.segment import LogSegment


class LogSegments:
    """A log's segments, by base offset. Readers take what there is now, in any thread, without a
    lock; changes happen under the log's."""

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments: tuple[LogSegment, ...] = ()
        self._replace(segments)

    def snapshot(self) -> tuple[LogSegment, ...]:
        """All segments now, oldest first."""
        return self._segments

    @property
    def active(self) -> LogSegment:
        """The last one, which is appended to."""
        return self._segments[-1]

    @property
    def first(self) -> LogSegment:
        return self._segments[0]

    def floor(self, offset: int) -> LogSegment | None:
        """The segment that would hold `offset`: the last with a base offset at or below it."""
        segments = self._segments
        slot = bisect_right(segments, offset, key=_base_offset)
        return segments[slot - 1] if slot else None

    def higher(self, base_offset: int) -> LogSegment | None:
        """The segment after the one with this base offset."""
        segments = self._segments
        slot = bisect_right(segments, base_offset, key=_base_offset)
        return segments[slot] if slot < len(segments) else None

    def from_floor(self, offset: int) -> tuple[LogSegment, ...]:
        """The segment that would hold `offset`, and all after it."""
        segments = self._segments
        slot = bisect_right(segments, offset, key=_base_offset)
        return segments[max(0, slot - 1) :]

    def from_base(self, offset: int) -> tuple[LogSegment, ...]:
        """The segments with a base offset at or above `offset`."""
        segments = self._segments
        return segments[bisect_left(segments, offset, key=_base_offset) :]

    def add(self, segment: LogSegment) -> None:
        """Adds a segment, in place of one with the same base offset."""
        others = [each for each in self._segments if each.base_offset != segment.base_offset]
        self._replace([*others, segment])

    def remove(self, segments: Iterable[LogSegment]) -> None:
        gone = set(map(id, segments))
        self._replace(each for each in self._segments if id(each) not in gone)

    def replace(self, segments: Iterable[LogSegment], new_segment: LogSegment) -> None:
        """Puts one segment in the place of others, at once: a reader sees either."""
        gone = set(map(id, segments))
        self._replace([new_segment, *(each for each in self._segments if id(each) not in gone)])

    def clear(self) -> None:
        self._segments = ()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def _replace(self, segments: Iterable[LogSegment]) -> None:
        self._segments = tuple(sorted(segments, key=_base_offset))


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset
