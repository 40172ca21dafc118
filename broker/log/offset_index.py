"""The .index file of a segment: from an offset to a position in the .log file.

Entry, 8 bytes, big-endian (Apache Kafka's OffsetIndex):

    relative offset  int32   the last offset of a batch, minus the segment's base offset
    position         int32   where that batch begins in the .log file

Sparse: the segment adds one entry every `index.interval.bytes`. Both columns only grow. Threads as
in `index_file`. Never looks into the log.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

from broker.log.files import Files
from broker.log.index_file import IndexFile

ENTRY: Final = struct.Struct(">ii")


class OffsetPosition(NamedTuple):
    """A batch: its last offset, and where it begins in the .log file."""

    offset: int
    position: int


class OffsetIndex(IndexFile):
    """A segment's sparse map from offsets to positions. Threads as in `IndexFile`."""

    def __init__(self, path: Path, base_offset: int, max_bytes: int, files: Files) -> None:
        super().__init__(path, ENTRY, max_bytes, files)
        self.base_offset = base_offset

    def append(self, offset: int, position: int) -> None:
        """Adds an entry; none when the index is full. ValueError unless it lies after the last."""
        if self.is_full:
            return
        if self._count and offset <= self.last_offset:
            raise ValueError(f"offset {offset} is not above the last entry's {self.last_offset}")
        self._append(offset - self.base_offset, position)

    @property
    def last_offset(self) -> int:
        """Of the last entry; the base offset when there is none."""
        return self.entry(self._count - 1).offset if self._count else self.base_offset

    def entry(self, slot: int) -> OffsetPosition:
        relative_offset, position = self._read(slot)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or below `offset`; (base offset, 0) when there is none."""
        relative_offset = offset - self.base_offset
        count = self._slots_until(lambda entry: entry[0] <= relative_offset)
        return self.entry(count - 1) if count else OffsetPosition(self.base_offset, 0)

    def upper_bound(self, position: int) -> int | None:
        """An offset at or above all that lie before `position`: of the first entry at or after
        it; None when there is none."""
        slot = self._slots_until(lambda entry: entry[1] < position)
        return self.entry(slot).offset if slot < self._count else None

    def truncate_to(self, offset: int) -> None:
        """Cuts the entries at and above `offset`."""
        relative_offset = offset - self.base_offset
        self._keep(self._slots_until(lambda entry: entry[0] < relative_offset))

    def sanity_check(self, log_size_bytes: int) -> bool:
        """Whether the file can be this segment's index: O(1), as after a clean stop."""
        if not self.has_whole_entries():
            return False
        if not self._count:
            return True
        last = self.entry(self._count - 1)
        return last.offset >= self.base_offset and 0 <= last.position < log_size_bytes
