"""The .txnindex file of a segment: which aborted transactions end in it.

Entry, 34 bytes, big-endian (Apache Kafka's AbortedTxn, version 0):

    version             int16  0
    producer id         int64
    first offset        int64  of the transaction's first batch, perhaps in an earlier segment
    last offset         int64  of its abort marker, in this segment
    last stable offset  int64  of the log when the marker was appended

Entries come in the order of their last offsets. A segment in which nothing was aborted has no file:
it is made with the first entry. One thread at a time appends and truncates (Log sees to it);
lookups: any thread, no lock. Recovery rebuilds it from the markers in the log.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from broker.log.files import File, Files, pread_all

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One transaction whose records a read_committed consumer must skip."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """A segment's aborted transactions, in the order of their markers. One thread at a time
    changes it; lookups: any thread."""

    def __init__(self, path: Path, base_offset: int, files: Files) -> None:
        self.path = path
        self._base_offset = base_offset
        self._files = files
        self._file: File | None = None
        self._count = 0

    @property
    def entry_count(self) -> int:
        return self._count

    @property
    def is_cut(self) -> bool:
        """Whether its file lacks entries. Raises OSError."""
        return self._file is not None and self._file.size() < self._count * _ENTRY.size

    def create(self) -> None:
        """Starts without entries, whatever the file held."""
        self._file = None
        self._count = 0
        self._files.remove(self.path)

    def load(self) -> None:
        """Opens the file, if there is one."""
        if self._files.exists(self.path):
            self._file = self._files.open(self.path)
            self._count = self._file.size() // _ENTRY.size

    def sanity_check(self) -> bool:
        """Whether the file holds whole entries that can be this segment's."""
        if self._file is None:
            return True
        if self._file.size() % _ENTRY.size:
            return False
        last_offset = self._base_offset - 1
        for version, entry in self._versioned_entries(0):
            if version != _VERSION or not last_offset < entry.last_offset:
                return False
            if not 0 <= entry.first_offset <= entry.last_offset:
                return False
            last_offset = entry.last_offset
        return True

    def reserve(self) -> None:
        """Takes the disk space of one more entry, so that `append` finds it also on a full disk;
        `trim` gives it back. Raises OSError."""
        self._open_file().pwrite(bytes(_ENTRY.size), self._count * _ENTRY.size)

    def trim(self) -> None:
        """Cuts what lies behind the last entry."""
        if self._file is not None and self._file.size() > self._count * _ENTRY.size:
            self._file.truncate(self._count * _ENTRY.size)

    def append(self, entry: AbortedTransaction) -> None:
        """Raises OSError; nothing is counted then. An entry not past the last one is known."""
        if self._count and self._entry(self._count - 1).last_offset >= entry.last_offset:
            return
        self._open_file().pwrite(_ENTRY.pack(_VERSION, *entry), self._count * _ENTRY.size)
        self._count += 1

    def truncate_to(self, offset: int) -> None:
        """Cuts the transactions whose marker lies at or above `offset`."""
        count = self._slot_of(offset)
        self._count = count
        self.trim()

    def entries_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """The transactions whose marker lies at or above `offset`, in the markers' order."""
        for _, entry in self._versioned_entries(self._slot_of(offset)):
            yield entry

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def _open_file(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path, create=True)
        return self._file

    def _versioned_entries(self, slot: int) -> Iterator[tuple[int, AbortedTransaction]]:
        while slot < self._count:
            version, *fields = _ENTRY.unpack(self._read(slot))
            yield version, AbortedTransaction(*fields)
            slot += 1

    def _entry(self, slot: int) -> AbortedTransaction:
        _, *fields = _ENTRY.unpack(self._read(slot))
        return AbortedTransaction(*fields)

    def _read(self, slot: int) -> bytes:
        return pread_all(self._open_file(), _ENTRY.size, slot * _ENTRY.size)

    def _slot_of(self, offset: int) -> int:
        """Of the first entry whose last offset is at or above `offset`."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle).last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low
