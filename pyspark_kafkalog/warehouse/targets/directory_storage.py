"""A Parquet target in a directory of a file system with hard links and atomic rename.

See `storage` for the layout and the promises. Any thread or process. Errors are OSErrors.
"""

import errno
import os
import shutil
import time
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.targets.storage import (
    COMMITS,
    NEWEST,
    STAGED_SUFFIX,
    STAGING,
    is_of_others,
    sequence_of,
    staged_name,
)

_DISCARDED_SUFFIX = ".discarded"


class DirectoryStorage:
    """A directory of a file system with hard links and atomic rename, local or mounted.

    A name is given by `link`, which fails when it is taken. A stage is discarded by renaming its
    directory.
    """

    advice = (
        "A target is a directory that the driver and all executors can write, on a file system "
        "with hard links and atomic rename."
    )

    def __init__(self, root: str) -> None:
        self._root = root
        self._commits = os.path.join(root, COMMITS)
        self._staging = os.path.join(root, STAGING)

    def __str__(self) -> str:
        return self._root

    def path_of(self, name: str) -> str:
        return os.path.join(self._root, name)

    def visible_name(self) -> str | None:
        names = os.listdir(self._root) if os.path.isdir(self._root) else []
        return min((name for name in names if is_of_others(name)), default=None)

    def commit_names(self) -> list[str]:
        try:
            return os.listdir(self._commits)
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            if os.path.isfile(self._root):
                raise TargetError(
                    f"the load target {self._root} is a file: name a directory"
                ) from None
            raise

    def read_commit(self, name: str) -> bytes:
        with open(os.path.join(self._commits, name), "rb") as file:
            return file.read()

    def create_commit(self, name: str, content: bytes, load_id: str) -> bool:
        path = os.path.join(self._commits, name)
        scratch = os.path.join(self.stage_path(load_id), f"commit-{name}")
        return create_by_link(scratch, path, content)

    def sync_commits(self) -> None:
        sync_directory(self._commits)

    def note_newest(self, sequence: int, load_id: str) -> None:
        scratch = os.path.join(self.stage_path(load_id), f"newest-{uuid.uuid4().hex}")
        # Another process may have put the commit in place, and discarded the stage with it.
        with suppress(FileNotFoundError):
            with open(scratch, "wb") as file:
                file.write(b"%d" % sequence)
            os.rename(scratch, os.path.join(self._root, NEWEST))

    def noted_newest(self) -> int:
        try:
            with open(os.path.join(self._root, NEWEST), "rb") as file:
                return sequence_of(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def make_stage(self, load_id: str) -> str:
        path = self.stage_path(load_id)
        make_directory(self._commits)
        make_directory(path)
        # Another loader, killed since, may have made these and not synced them.
        sync_directory(os.path.dirname(self._commits))
        sync_directory(self._root)
        try:
            _check_links(path)
        except BaseException:
            self.discard_stage(load_id)
            raise
        return path

    def sync_stage(self, load_id: str) -> None:
        sync_directory(self.stage_path(load_id))

    def has_stage(self, load_id: str) -> bool:
        return os.path.isdir(self.stage_path(load_id))

    def stages(self) -> dict[str, float]:
        return {
            name: last_change(self.stage_path(name))
            for name in self._staging_names()
            if not name.endswith(_DISCARDED_SUFFIX)
        }

    def sweep(self) -> None:
        for name in self._staging_names():
            if name.endswith(_DISCARDED_SUFFIX):
                shutil.rmtree(self.stage_path(name), ignore_errors=True)

    def staged_path(self, load_id: str, name: str) -> str:
        return os.path.join(self.stage_path(load_id), staged_name(name) + STAGED_SUFFIX)

    def staged_sizes(self, load_id: str, names: Sequence[str]) -> dict[str, int]:
        sizes = {}
        for name in names:
            with suppress(FileNotFoundError):
                sizes[name] = os.stat(self.staged_path(load_id, name)).st_size
        return sizes

    def put_in_place(self, load_id: str, names: Sequence[str]) -> list[str]:
        missing = []
        for name in names:
            final = os.path.join(self._root, name)
            make_directory(os.path.dirname(final))
            try:
                os.rename(self.staged_path(load_id, name), final)
            except FileNotFoundError:
                if not os.path.exists(final):
                    missing.append(name)
        for path in {os.path.dirname(os.path.join(self._root, name)) for name in [*names, ""]}:
            sync_directory(path)
        return missing

    def discard_stage(self, load_id: str) -> None:
        path = self.stage_path(load_id)
        with suppress(FileNotFoundError):
            os.rename(path, path + _DISCARDED_SUFFIX)
        shutil.rmtree(path + _DISCARDED_SUFFIX, ignore_errors=True)

    def stage_path(self, load_id: str) -> str:
        return os.path.join(self._staging, load_id)

    def _staging_names(self) -> list[str]:
        return sorted(os.listdir(self._staging)) if os.path.isdir(self._staging) else []


class DirectoryStageFiles:
    """The files of a stage that is a directory."""

    def __init__(self, path: str) -> None:
        self._path = path

    def create(self, name: str) -> "DirectorySink":
        return DirectorySink(self._path, name)

    def write(self, name: str, content: bytes) -> None:
        with open(os.path.join(self._path, name), "wb") as file:
            file.write(content)

    def read(self, suffix: str) -> list[bytes]:
        found = []
        for name in os.listdir(self._path):
            if name.endswith(suffix):
                with (
                    suppress(FileNotFoundError),
                    open(os.path.join(self._path, name), "rb") as file,
                ):
                    found.append(file.read())
        return found

    def path_of(self, name: str) -> str:
        return os.path.join(self._path, name)

    def source(self, name: str) -> str:
        return self.path_of(name)

    def sizes(self, names: Collection[str]) -> dict[str, int]:
        found = {}
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = os.stat(self.path_of(name)).st_size
        return found

    def modified_ms(self, names: Collection[str]) -> dict[str, int]:
        return {name: os.stat(self.path_of(name)).st_mtime_ns // 1_000_000 for name in names}

    def sync(self) -> None:
        sync_directory(self._path)

    def keep_only(self, names: Collection[str]) -> None:
        with suppress(OSError):
            for name in os.listdir(self._path):
                if name not in names:
                    with suppress(OSError):
                        os.unlink(self.path_of(name))
            if not names:
                os.rmdir(self._path)

    def discard(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


class DirectorySink:
    """A file that is written under a name of its own and gets the right one at the end."""

    def __init__(self, directory: str, name: str) -> None:
        self._final_path = os.path.join(directory, name)
        self._path = os.path.join(directory, f"{uuid.uuid4().hex}.writing")
        self._file = open(self._path, "xb")  # noqa: SIM115 - outlives this function
        self.write = self._file.write
        self.tell = self._file.tell
        self.flush = self._file.flush

    @property
    def closed(self) -> bool:
        return self._file.closed

    def complete(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._path, self._final_path)

    def drop(self) -> None:
        if not self._file.closed:
            self._file.close()
            with suppress(FileNotFoundError):
                os.unlink(self._path)


def create_by_link(scratch: str, path: str, content: bytes) -> bool:
    """Gives `content` the name `path` in one step, and for good; False when that was taken before
    by others. `scratch` is where it is written first."""
    with open(scratch, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(scratch, path)
    except FileExistsError:
        # A network file system may carry the call out and lose the answer: then it is ours.
        if not os.path.samefile(scratch, path):
            return False
    sync_directory(os.path.dirname(path))
    return True


def make_directory(path: str) -> None:
    """Makes a directory and its missing parents so that a power failure does not undo them."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directory(parent)
    with suppress(FileExistsError):
        os.mkdir(path)
    sync_directory(parent)


def sync_directory(path: str) -> None:
    """Makes the names in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def last_change(path: str) -> float:
    """When anything in a directory last changed, in seconds; now, when it goes away meanwhile."""
    try:
        with os.scandir(path) as entries:
            return max([entry.stat().st_mtime for entry in entries] + [os.stat(path).st_mtime])
    except OSError:
        return time.time()


def _check_links(stage_path: str) -> None:
    """Raises OSError where a name cannot be given by `link`, once and not twice."""
    probe, name = os.path.join(stage_path, "probe"), os.path.join(stage_path, "probe-link")
    with open(probe, "xb"):
        pass
    os.link(probe, name)
    try:
        os.link(probe, name)
    except FileExistsError:
        pass
    else:
        raise OSError(errno.ENOTSUP, "it gives the name of a file to another one", name)
    os.unlink(name)
    os.unlink(probe)
