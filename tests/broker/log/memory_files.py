"""The file system's twin in memory: it knows what was synced, and can lose the rest.

`crash()` gives the disk that a restart finds. After the death of the process that is everything
written; after a power loss it is what was synced, names and contents each, plus any prefix of what
was appended since (`keep_unsynced` says how much). `fail_next` makes an operation raise.
"""

import errno
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from broker.log.files import DirectoryLock, File

if TYPE_CHECKING:
    from typing_extensions import Buffer, ParamSpec

    _P = ParamSpec("_P")

_R = TypeVar("_R")
_LOCK = threading.RLock()


class Inode:
    def __init__(self, data: bytes = b"", synced: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = synced


class MemoryFile:
    def __init__(self, files: "MemoryFiles", inode: Inode) -> None:
        self._files = files
        self._inode = inode

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor")

    def size(self) -> int:
        return len(self._inode.data)

    def pread(self, size_bytes: int, position: int) -> bytes:
        if self._files.takes_failure("pread"):
            raise OSError(errno.EIO, "Input/output error")
        return bytes(self._inode.data[position : position + size_bytes])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: "Buffer", position: int) -> None:
        view = memoryview(data)
        if self._files.takes_failure("pwrite"):
            half = view[: len(view) // 2]
            self._inode.data[position : position + len(half)] = half
            raise OSError(errno.ENOSPC, "No space left on device")
        gap = position - len(self._inode.data)
        if gap > 0:
            self._inode.data += bytes(gap)
        self._inode.data[position : position + len(view)] = view

    def truncate(self, size_bytes: int) -> None:
        del self._inode.data[size_bytes:]

    def reserve(self, size_bytes: int) -> None:
        self._inode.data += bytes(max(0, size_bytes - len(self._inode.data)))

    def sync(self) -> None:
        if self._files.takes_failure("sync"):
            raise OSError(errno.EIO, "Input/output error")
        self._inode.synced = bytes(self._inode.data)


def _one_at_a_time(operation: "Callable[_P, _R]") -> "Callable[_P, _R]":
    """Logs are closed by several threads."""

    @wraps(operation)
    def guarded(*arguments: "_P.args", **named: "_P.kwargs") -> _R:
        with _LOCK:
            return operation(*arguments, **named)

    return guarded


class MemoryFiles:
    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.directories: set[Path] = set()
        self.locked: set[Path] = set()
        self._failures: dict[str, int] = {}
        self._successes: dict[str, int] = {}

    def fail_next(self, operation: str, times: int = 1, after: int = 0) -> None:
        """The next `times` calls raise, those after the first `after` ones."""
        self._failures[operation] = times
        self._successes[operation] = after

    def takes_failure(self, operation: str) -> bool:
        if self._successes.get(operation, 0):
            self._successes[operation] -= 1
            return False
        left = self._failures.get(operation, 0)
        self._failures[operation] = max(0, left - 1)
        return left > 0

    def crash(self, *, power_loss: bool = False, keep_unsynced: int = 0) -> "MemoryFiles":
        """The disk after a restart; `keep_unsynced` bytes behind what was synced survive."""
        after = MemoryFiles()
        after.directories = set(self.directories)
        for path, inode in (self.durable_names if power_loss else self.names).items():
            data = bytes(inode.data)
            if power_loss:
                data = inode.synced + data[len(inode.synced) :][:keep_unsynced]
            after.names[path] = Inode(data, data)
        after.durable_names = dict(after.names)
        return after

    @_one_at_a_time
    def open(self, path: Path, *, create: bool = False) -> File:
        if path not in self.names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
            self.names[path] = Inode()
        return MemoryFile(self, self.names[path])

    def exists(self, path: Path) -> bool:
        return path in self.names or path in self.directories

    @_one_at_a_time
    def list(self, directory: Path) -> list[str]:
        inside = {path.name for path in self.names if path.parent == directory}
        return sorted(inside | {path.name for path in self.directories if path.parent == directory})

    def read(self, path: Path) -> bytes:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return bytes(self.names[path].data)

    @_one_at_a_time
    def replace(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        if self.takes_failure("replace"):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.names[path] = Inode(data, data if sync else b"")
        if sync:
            self.sync_directory(path.parent)

    @_one_at_a_time
    def make_directory(self, path: Path) -> None:
        self.directories |= {path, *path.parents}

    @_one_at_a_time
    def rename(self, path: Path, new_path: Path) -> None:
        if path in self.directories:
            self.directories = {_moved(each, path, new_path) for each in self.directories}
            self.names = {_moved(each, path, new_path): n for each, n in self.names.items()}
        else:
            self.names[new_path] = self.names.pop(path)

    @_one_at_a_time
    def remove(self, path: Path) -> None:
        if self.takes_failure("remove"):
            raise OSError(errno.EIO, "Input/output error")
        self.names.pop(path, None)

    @_one_at_a_time
    def remove_tree(self, path: Path) -> None:
        self.directories = {each for each in self.directories if not _is_in(each, path)}
        self.names = {each: n for each, n in self.names.items() if not _is_in(each, path)}

    @_one_at_a_time
    def sync_directory(self, path: Path) -> None:
        kept = {each: n for each, n in self.durable_names.items() if each.parent != path}
        self.durable_names = kept | {e: n for e, n in self.names.items() if e.parent == path}

    def modified_ms(self, path: Path) -> int:
        return 0

    def lock(self, path: Path) -> DirectoryLock:
        if path in self.locked:
            raise BlockingIOError(errno.EAGAIN, "locked")
        self.locked.add(path)
        return _MemoryLock(self, path)


class _MemoryLock:
    def __init__(self, files: MemoryFiles, path: Path) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        self._files.locked.discard(self._path)


def _is_in(path: Path, directory: Path) -> bool:
    return path == directory or directory in path.parents


def _moved(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old) if _is_in(path, old) else path
