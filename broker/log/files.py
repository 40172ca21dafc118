"""The file system as the log uses it: one small interface, so that a test can lose power.

`Files` opens, lists, renames and removes; `File` reads and writes at positions. `DiskFiles` is the
real one. The twin in the tests keeps files in memory and drops what was not synced.

A written byte is in the page cache when `pwrite` returns: it survives the death of this process.
It survives the machine's only after `sync` (and, for a new or renamed name, `sync_directory`).
A File has no close: its descriptor closes when the last reference to it goes, so a FileSlice that
is still being sent keeps a deleted segment readable. Any thread; two writers of one file must agree
on positions between themselves. OSErrors pass through: who calls knows what they mean.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class File(Protocol):
    """One open file."""

    def fileno(self) -> int:
        """The descriptor, for sendfile."""
        ...

    def size(self) -> int: ...

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` bytes at `position`; fewer only where the file ends."""
        ...

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fills `buffer` from `position`; the number of bytes read, fewer only at the end."""
        ...

    def pwrite(self, data: "Buffer", position: int) -> None:
        """Writes all of `data` at `position`, or raises OSError."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def reserve(self, size_bytes: int) -> None:
        """Grows the file to `size_bytes` with its disk space taken."""
        ...

    def sync(self) -> None:
        """Forces content and size to disk."""
        ...


class CutFileError(OSError):
    """A file ends before what was written there."""


def pread_all(file: File, size_bytes: int, position: int) -> bytes:
    """As `pread`, of what is there. Raises CutFileError where it is not."""
    data = file.pread(size_bytes, position)
    if len(data) < size_bytes:
        raise CutFileError(
            errno.EIO, f"the file ends at byte {position + len(data)}, before {size_bytes} more"
        )
    return data


class DirectoryLock(Protocol):
    """Keeps a second broker out of a data directory until it is released or the process ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """The operations on names."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """For reading and writing. `create` makes a missing file; else FileNotFoundError."""
        ...

    def exists(self, path: Path) -> bool: ...

    def list(self, directory: Path) -> list[str]:
        """Names in `directory`, sorted."""
        ...

    def read(self, path: Path) -> bytes: ...

    def replace(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Makes `data` the content of `path` at once: never half of it, whatever crashes."""
        ...

    def make_directory(self, path: Path) -> None:
        """With its parents; an existing one is fine. The name is durable on return."""
        ...

    def rename(self, path: Path, new_path: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """A missing file is fine."""
        ...

    def remove_tree(self, path: Path) -> None:
        """A missing one is fine."""
        ...

    def sync_directory(self, path: Path) -> None: ...

    def modified_ms(self, path: Path) -> int: ...

    def lock(self, path: Path) -> DirectoryLock:
        """Raises BlockingIOError when another process has it."""
        ...


class FileSlice:
    """Bytes of a file that are to be sent, and not yet read: (file, position, size_bytes).

    Never changes. Holds the file open, also after its segment is deleted.
    """

    __slots__ = ("_refused", "file", "position", "size_bytes")

    def __init__(
        self,
        file: File,
        position: int,
        size_bytes: int,
        refused: Callable[[OSError], object] | None = None,
    ) -> None:
        """`refused` is told where the disk does not give the bytes."""
        self.file = file
        self.position = position
        self.size_bytes = size_bytes
        self._refused = refused

    def __len__(self) -> int:
        return self.size_bytes

    def read(self) -> bytes:
        """The bytes themselves: for what cannot sendfile (tests, TLS)."""
        try:
            return pread_all(self.file, self.size_bytes, self.position)
        except OSError as error:
            self.not_read(error)
            raise

    def part(self, size_bytes: int, position: int) -> "FileSlice":
        """So many of its bytes, from that position in the file on."""
        return FileSlice(self.file, position, size_bytes, self._refused)

    def not_read(self, error: OSError) -> None:
        """The disk has refused them to who sends them, or has not got them."""
        if self._refused is not None:
            is_cut = self.file.size() < self.position + self.size_bytes
            self._refused(CutFileError(*error.args) if is_cut else error)

    def __repr__(self) -> str:
        return f"FileSlice({self.size_bytes} bytes at {self.position})"


class DiskFile:
    """A File on disk."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = os.open(path, flags, 0o644)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def pread(self, size_bytes: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, position)
        while 0 < len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pread_into(self, buffer: memoryview, position: int) -> int:
        done_bytes = 0
        while done_bytes < len(buffer):
            read_bytes = os.preadv(self._descriptor, [buffer[done_bytes:]], position + done_bytes)
            if not read_bytes:
                break
            done_bytes += read_bytes
        return done_bytes

    def pwrite(self, data: "Buffer", position: int) -> None:
        view = memoryview(data)
        written_bytes = os.pwrite(self._descriptor, view, position)
        while written_bytes < len(view):
            written_bytes += os.pwrite(
                self._descriptor, view[written_bytes:], position + written_bytes
            )

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def reserve(self, size_bytes: int) -> None:
        os.posix_fallocate(self._descriptor, 0, size_bytes)

    def sync(self) -> None:
        os.fsync(self._descriptor)


class DiskFiles:
    """The real file system."""

    def open(self, path: Path, *, create: bool = False) -> File:
        return DiskFile(path, create=create)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def replace(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            self.sync_directory(path.parent)

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)

    def rename(self, path: Path, new_path: Path) -> None:
        os.replace(path, new_path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def lock(self, path: Path) -> DirectoryLock:
        return _DiskLock(path)


class _DiskLock:
    """A file that is locked until `release`. Raises OSError where another process has it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        os.close(self._descriptor)
