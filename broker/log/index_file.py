"""What the two indexes of a segment share: fixed-size entries in one file, looked up by bisection.

An index is a cache of its log: no checksum, never a second truth. `recovery` rebuilds one that is
missing or fails `sanity_check`. While its segment is appended to, the entries are also in memory;
a sealed index reads the few entries a lookup needs from its file, so that memory stays flat
however long the log is. Entries are written as they come, without buffering.

One thread at a time appends, truncates and seals (Log sees to it); lookups: any thread, no lock.
"""

import struct
from collections.abc import Callable
from pathlib import Path

from broker.log.files import File, Files, pread_all


class IndexFile:
    """Entries of one `struct` format, ordered, at most `max_bytes` of them."""

    def __init__(self, path: Path, entry: struct.Struct, max_bytes: int, files: Files) -> None:
        self.path = path
        self._entry = entry
        self._files = files
        self._max_entries = max(1, max_bytes // entry.size)
        self._file: File | None = None
        self._tail: bytearray | None = None
        self._count = 0

    @property
    def entry_count(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return self._count * self._entry.size

    @property
    def is_full(self) -> bool:
        return self._count >= self._max_entries

    @property
    def is_cut(self) -> bool:
        """Whether its file lacks entries. Raises OSError."""
        return self._file is not None and self._file.size() < self.size_bytes

    def create(self) -> None:
        """Starts empty and writable, whatever the file held."""
        self._file = self._files.open(self.path, create=True)
        if self._file.size():
            self._file.truncate(0)
        else:
            # The first entry opens it: of thousands of logs most are empty, or nearly so, and what
            # a process may hold open is limited.
            self._file = None
        self._tail = bytearray()
        self._count = 0

    def load(self) -> None:
        """Opens an existing file, sealed. FileNotFoundError when it is missing."""
        file = self._files.open(self.path)
        size_bytes = file.size()
        self._file = file if size_bytes else None
        self._tail = None
        self._count = size_bytes // self._entry.size

    def has_whole_entries(self) -> bool:
        return self._file is None or self._file.size() % self._entry.size == 0

    def unseal(self) -> None:
        """Makes a loaded index writable."""
        if self._tail is None:
            data = pread_all(self._open_file(), self.size_bytes, 0) if self._count else b""
            self._tail = bytearray(data)

    def seal(self) -> None:
        """Drops the copy in memory: nothing is appended any more."""
        self._tail = None

    def sync(self) -> None:
        """Does nothing where nothing was written."""
        if self._file is not None:
            self._file.sync()

    def _open_file(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file

    def _read(self, slot: int) -> tuple[int, int]:
        tail = self._tail
        if tail is not None:
            first, second = self._entry.unpack_from(tail, slot * self._entry.size)
        else:
            data = pread_all(self._open_file(), self._entry.size, slot * self._entry.size)
            first, second = self._entry.unpack(data)
        return first, second

    def _append(self, first: int, second: int) -> None:
        if self._tail is None:
            raise ValueError(f"{self.path.name} is sealed")
        data = self._entry.pack(first, second)
        self._open_file().pwrite(data, self.size_bytes)
        self._tail += data
        self._count += 1

    def _keep(self, count: int) -> None:
        """Cuts all entries but the first `count`."""
        if count >= self._count:
            return
        self._count = count
        if self._tail is not None:
            del self._tail[count * self._entry.size :]
        self._open_file().truncate(count * self._entry.size)

    def _slots_until(self, is_at_most: Callable[[tuple[int, int]], bool]) -> int:
        """How many entries from the first on satisfy `is_at_most`; it holds for a prefix only."""
        low, high = 0, self._count
        if high and is_at_most(self._read(high - 1)):
            return high
        while low < high:
            middle = (low + high) // 2
            if is_at_most(self._read(middle)):
                low = middle + 1
            else:
                high = middle
        return low
