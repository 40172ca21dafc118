"""A stage in an object store: what the tasks of a load write below a place of its own.

A stage exists as long as its object `stage` does: made first and deleted first, in one step each. A
store that ignores the condition of a put is found out when it is made.

Tasks upload as they write, PART_BYTES at a time: 15 MiB of memory measured for an open file,
whatever its size (a task has one, with partition columns up to MOST_OPEN_FILES of staged_files.py).
What a killed task had uploaded of a file is no object: the store keeps it until its lifecycle rule
for incomplete multipart uploads removes it. Any thread or process. Errors are OSErrors.
"""

import errno
import io
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from pyspark_kafkalog.warehouse.targets.object_location import Location, as_os_errors

if TYPE_CHECKING:
    from obstore import ObjectMeta

PART_BYTES = 5 * 1024 * 1024
PARTS_AT_ONCE = 3
MARKER = "stage"


def make_marker(location: Location, prefix: str) -> None:
    """Makes the stage below `prefix`. Raises OSError where a put does what its condition
    forbids."""
    marker = f"{prefix}/{MARKER}".lstrip("/")
    with as_os_errors():
        with suppress(AlreadyExistsError):
            location.store.put(marker, b"", mode="create")
        try:
            location.store.put(marker, b"", mode="create")
        except AlreadyExistsError:
            return
        location.store.delete(marker)
    raise OSError(errno.ENOTSUP, "it lets an object be created twice", location.shown)


def delete(location: Location, paths: Sequence[str]) -> None:
    """Those that are there."""
    if paths:
        with suppress(FileNotFoundError), as_os_errors():
            location.store.delete(list(paths))


class ObjectStageFiles:
    """The files of a load's stage in an object store."""

    def __init__(self, url: str) -> None:
        self._location = Location(url)

    def create(self, name: str) -> "ObjectSink":
        return ObjectSink(self._location, name)

    def write(self, name: str, content: bytes) -> None:
        with as_os_errors():
            self._location.store.put(name, content)

    def read(self, suffix: str) -> list[bytes]:
        found = []
        with as_os_errors():
            for some in self._location.store.list():
                for one in some:
                    if one["path"].endswith(suffix):
                        with suppress(FileNotFoundError):
                            found.append(bytes(self._location.store.get(one["path"]).bytes()))
        return found

    def sizes(self, names: Collection[str]) -> dict[str, int]:
        found = self._listed() if names else {}
        if MARKER not in found:
            return {}
        return {name: int(found[name]["size"]) for name in names if name in found}

    def modified_ms(self, names: Collection[str]) -> dict[str, int]:
        found = self._listed() if names else {}
        return {name: int(found[name]["last_modified"].timestamp() * 1000) for name in names}

    def source(self, name: str) -> "ObjectSource":
        return ObjectSource(self._location, name)

    def path_of(self, name: str) -> str:
        return f"{self._location.shown}/{name}"

    def sync(self) -> None:
        """An object that can be seen is kept."""

    def keep_only(self, names: Collection[str]) -> None:
        with suppress(OSError):
            delete(self._location, [name for name in self._listed() if name not in names])

    def discard(self) -> None:
        with suppress(OSError):
            delete(self._location, [MARKER])
            delete(self._location, list(self._listed()))

    def _listed(self) -> dict[str, "ObjectMeta"]:
        with as_os_errors():
            return {one["path"]: one for some in self._location.store.list() for one in some}


class ObjectSink:
    """An object that is uploaded in parts; it has its name once all are there."""

    def __init__(self, location: "Location", name: str) -> None:
        self._location = location
        self._name = name
        self._size_bytes = 0
        with as_os_errors():
            self._writer = obstore.open_writer(
                location.store, name, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
        self.closed = False

    def write(self, content: bytes) -> int:
        with as_os_errors():
            written = self._writer.write(content)
        self._size_bytes += written
        return written

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        """What fills a part is sent by itself."""

    def complete(self) -> None:
        self.closed = True
        with as_os_errors():
            self._writer.close()

    def drop(self) -> None:
        if not self.closed:
            # An upload that was begun can be ended only by completing it.
            with suppress(OSError):
                self.complete()
            with suppress(OSError, BaseError):
                self._location.store.delete(self._name)


class ObjectSource(io.RawIOBase):
    """An object that is read in pieces, as Arrow asks for them."""

    def __init__(self, location: Location, name: str) -> None:
        with as_os_errors():
            self._size_bytes = int(location.store.head(name)["size"])
        self._location = location
        self._name = name
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size_bytes - self._at, 0)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        with as_os_errors():
            found = self._location.store.get_range(self._name, start=self._at, length=length)
        self._at += length
        return bytes(found)
