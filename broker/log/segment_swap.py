"""The segments of a log that are on their way in, made by compaction, or out.

One that comes in is named `.swap` while those that it replaces are there, and one that goes out
`.deleted` until its delay is over, as slices in flight still read it. So a crash leaves either the
old segments or the new one, and recovery knows which (see `recovery`). Every method is called under
the log's lock; to sync the directory between the steps is the log's work.
"""

from collections.abc import Iterable, Sequence

from broker.log.delayed import Delayed
from broker.log.names import DELETED_SUFFIX, SWAP_SUFFIX
from broker.log.segment import LogSegment
from broker.log.segments import LogSegments


class SegmentSwap:
    """Changes which segments a log has; one segment at a time comes in."""

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments
        self._incoming: LogSegment | None = None
        self._outgoing: Delayed[LogSegment] = Delayed()

    @property
    def outgoing(self) -> list[LogSegment]:
        """Out of the log, their files still there."""
        return self._outgoing.waiting

    def begin(self, cleaned: LogSegment, replaced: Sequence[LogSegment]) -> bool:
        """Names `cleaned` `.swap`. False where one of `replaced` is gone from the log."""
        present = self._segments.snapshot()[:-1]
        if any(each not in present for each in replaced):
            return False
        cleaned.change_suffix(SWAP_SUFFIX)
        self._incoming = cleaned
        return True

    def finish(
        self, cleaned: LogSegment, replaced: Sequence[LogSegment], now_ms: int, delay_ms: int
    ) -> bool:
        """Puts `cleaned` in the place of `replaced`. False where it was given up in between."""
        if self._incoming is not cleaned:
            return False
        self._incoming = None
        self._segments.replace(replaced, cleaned)
        self.take_out(replaced, now_ms, delay_ms)
        return True

    def give_up(self) -> None:
        """Before segments are dropped: a crash must not bring them back out of a `.swap` file."""
        if self._incoming is not None:
            self._incoming.remove_files()
            self._incoming = None

    def take_out(self, segments: Iterable[LogSegment], now_ms: int, delay_ms: int) -> None:
        """`segments` are out of the log from now on; their files go after `delay_ms`."""
        for segment in segments:
            segment.change_suffix(DELETED_SUFFIX)
            self._outgoing.add(segment, now_ms, delay_ms)

    def take_due(self, now_ms: int) -> list[LogSegment]:
        """Those whose files are to go now."""
        return self._outgoing.take_due(now_ms)
