"""The .timeindex file of a segment: from a timestamp to an offset.

Entry, 12 bytes, big-endian (Apache Kafka's TimeIndex):

    timestamp        int64   ms; the largest timestamp of the segment up to this entry
    relative offset  int32   the last offset of the batch that brought it, minus the base offset

So every record with a larger timestamp lies after that offset. A sealed segment ends with an entry
for its largest timestamp. Threads as in `index_file`. Never looks into the log.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

from broker.log.files import Files
from broker.log.index_file import IndexFile

ENTRY: Final = struct.Struct(">qi")
NO_TIMESTAMP: Final = -1


class TimestampOffset(NamedTuple):
    """A timestamp in ms, and the offset of the batch that brought it."""

    timestamp_ms: int
    offset: int


class TimeIndex(IndexFile):
    """A segment's sparse map from timestamps to offsets. Threads as in `IndexFile`."""

    def __init__(self, path: Path, base_offset: int, max_bytes: int, files: Files) -> None:
        super().__init__(path, ENTRY, max_bytes, files)
        self.base_offset = base_offset

    @property
    def is_full(self) -> bool:
        """One entry is kept free, for the one that seals the segment."""
        return self._count >= self._max_entries - 1

    @property
    def last(self) -> TimestampOffset:
        if not self._count:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return self.entry(self._count - 1)

    def maybe_append(self, timestamp_ms: int, offset: int, *, sealing: bool = False) -> None:
        """Adds an entry if its timestamp is larger than the last one's; none when full."""
        if self.is_full and not sealing:
            return
        last = self.last
        if timestamp_ms > last.timestamp_ms:
            if offset < last.offset:
                raise ValueError(f"offset {offset} is below the last entry's {last.offset}")
            self._append(timestamp_ms, offset - self.base_offset)

    def entry(self, slot: int) -> TimestampOffset:
        timestamp_ms, relative_offset = self._read(slot)
        return TimestampOffset(timestamp_ms, self.base_offset + relative_offset)

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry at or below `timestamp_ms`; (-1, base offset) when there is none."""
        count = self._slots_until(lambda entry: entry[0] <= timestamp_ms)
        if not count:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return self.entry(count - 1)

    def truncate_to(self, offset: int) -> None:
        """Cuts the entries at and above `offset`."""
        relative_offset = offset - self.base_offset
        self._keep(self._slots_until(lambda entry: entry[1] < relative_offset))

    def sanity_check(self) -> bool:
        """Whether the file can be this segment's index: O(1), as after a clean stop."""
        if not self.has_whole_entries():
            return False
        if not self._count:
            return True
        last = self.last
        return last.offset >= self.base_offset and last.timestamp_ms >= self.entry(0).timestamp_ms
