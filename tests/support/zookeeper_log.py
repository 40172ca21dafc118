"""What was written to a ZooKeeper server, read from its transaction log.

The format is that of ZooKeeper 3.8's FileTxnLog: "ZKLG", then entries of a checksum, a length, a
header (session, number, zxid, time, type), what was done, and a "B"; zeros are what is not written
yet. Numbers are big-endian, texts and values have their lengths first; -1 is null.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FILE_HEADER_BYTES = 16
_CREATE, _DELETE, _SET, _CHECK, _MULTI = 1, 2, 5, 13, 14
_CREATES = {_CREATE, 15, 19, 21}  # with a Stat in the answer, as a container, with a time to live
_CLOSE_SESSION, _ERROR = -11, -1


@dataclass(frozen=True, slots=True)
class Write:
    """Of one node. `kind`: create, set, delete or check; `version`: that it has by a set, or is to
    have for a check."""

    kind: str
    path: str
    value: bytes = b""
    version: int | None = None
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """All or nothing. The end of a session deletes what was ephemeral."""

    zxid: int
    writes: tuple[Write, ...]


def transactions(directory: Path) -> list[Transaction]:
    """All that have changed nodes, of the server with that dataDir, in their order."""
    paths = (directory / "version-2").glob("log.*")
    by_number = sorted(paths, key=lambda path: int(path.suffix[1:], 16))
    return [each for path in by_number for each in _transactions_in(path.read_bytes())]


def _transactions_in(log: bytes) -> Iterator[Transaction]:
    position = _FILE_HEADER_BYTES
    while position + 12 <= len(log):
        (size,) = struct.unpack_from(">i", log, position + 8)
        end = position + 12 + size
        if size <= 0 or log[end : end + 1] != b"B":
            return  # the rest is not written yet
        entry = _Reader(log[position + 12 : end])
        _session, _number, zxid, _time, kind = entry.take(">qiqqi")
        if writes := tuple(_writes(kind, entry)):
            yield Transaction(zxid, writes)
        position = end + 1


def _writes(kind: int, entry: "_Reader") -> Iterator[Write]:
    if kind == _MULTI:
        parts = [(entry.number(), _Reader(entry.value())) for _ in range(entry.number())]
        if all(each != _ERROR for each, _ in parts):
            for each, part in parts:
                yield from _writes(each, part)
    elif kind == _CLOSE_SESSION:
        for _ in range(entry.number()):
            yield Write("delete", entry.text(), is_ephemeral=True)
    elif kind in _CREATES:
        yield _creation(entry)
    elif kind == _DELETE:
        yield Write("delete", entry.text())
    elif kind == _SET:
        yield Write("set", entry.text(), entry.value(), entry.number())
    elif kind == _CHECK:
        # Its server counts on for a check, too, where it writes that down.
        yield Write("check", entry.text(), version=entry.number() - 1)


def _creation(entry: "_Reader") -> Write:
    path, value = entry.text(), entry.value()
    for _ in range(entry.number()):  # who may do what
        entry.number()
        entry.text()
        entry.text()
    (is_ephemeral,) = entry.take(">?")
    return Write("create", path, value, 0, bool(is_ephemeral))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return found

    def number(self) -> int:
        (number,) = self.take(">i")
        return number

    def value(self) -> bytes:
        """Nothing for null, which is what Kafka's folders have."""
        size = max(0, self.number())
        found = self._data[self._position : self._position + size]
        self._position += size
        return found

    def text(self) -> str:
        return self.value().decode()
