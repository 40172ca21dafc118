"""A table in a directory of a file system with hard links and atomic rename.

See `table_place` for the promises. Any thread or process. Errors are OSErrors.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from pyspark_kafkalog.warehouse.targets.directory_storage import create_by_link, make_directory
from pyspark_kafkalog.warehouse.targets.staging import restore_aside, sweep_directories


class DirectoryTable:
    """The table at `path`, absolute. A name is given by `link`, which fails when it is taken."""

    advice = "A delta: target is a directory that the driver and all executors can write."

    def __init__(self, path: str) -> None:
        self.uri = path

    def __str__(self) -> str:
        return self.uri

    def options(self) -> None:
        return None

    def path_of(self, name: str) -> str:
        return os.path.join(self.uri, name)

    def in_words(self, error: BaseException) -> str:
        return str(error)

    def make(self) -> None:
        make_directory(self.uri)

    def names(self, below: str = "") -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(os.listdir(self.path_of(below)))
        return []

    def changed(self, below: str = "") -> dict[str, float]:
        found = {}
        for directory, _, names in os.walk(self.path_of(below)):
            for name in names:
                path = os.path.join(directory, name)
                with suppress(FileNotFoundError):
                    found[os.path.relpath(path, self.uri)] = os.stat(path).st_mtime
        return found

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path_of(name))

    def read(self, names: Sequence[str]) -> Iterator[bytes]:
        for name in names:
            with open(self.path_of(name), "rb") as file:
                yield file.read()

    def source(self, name: str) -> str:
        return self.path_of(name)

    def create(self, name: str, content: bytes, stage_path: str) -> bool:
        scratch, path = os.path.join(stage_path, os.path.basename(name)), self.path_of(name)
        make_directory(os.path.dirname(path))
        return create_by_link(scratch, path, content)

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self.path_of(name))

    def make_stage(self, load_id: str) -> str:
        path = self.path_of(f"load-{load_id}")
        make_directory(path)
        return path

    def try_create(self, load_id: str) -> None:
        """deltalake makes links as well, and fails where there are none."""

    def sweep(
        self, idle_s: float, dry_run: bool, named: Callable[[], set[str]], fence: Callable[[], None]
    ) -> list[str]:
        return sweep_directories(self.uri, idle_s, dry_run, named, fence)

    def restore(self, named: Callable[[], set[str]]) -> None:
        restore_aside(self.uri, named)
