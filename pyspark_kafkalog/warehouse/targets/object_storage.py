"""A Parquet target in an object store: S3 and what speaks like it, Google's, Azure's.

What a directory does by link and rename, an object store does so:
- a commit gets its name by a conditional put (If-None-Match: *), which one loader wins. Where the
  store says "taken" or nothing, the content tells whether it was this one: requests are repeated
  when an answer is lost. A store that ignores the condition is found out when a load begins.
- a file goes into place by a copy within the store; doing so again changes nothing. One copy may
  have 5 GB (S3), ten times what tasks put into a file.
- a stage exists as long as its first object does (object_stage.py).

URLs and credentials are those of object_location.py. Any thread or process.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from obstore.exceptions import BaseError

from pyspark_kafkalog.warehouse.targets.object_location import Location, as_os_errors
from pyspark_kafkalog.warehouse.targets.object_stage import MARKER, make_marker
from pyspark_kafkalog.warehouse.targets.storage import (
    COMMIT_FILE,
    COMMITS,
    NEWEST,
    STAGED_SUFFIX,
    STAGING,
    is_of_others,
    sequence_of,
    staged_name,
)

COPIES_AT_ONCE = 8


class ObjectStorage:
    """A target in an object store: the driver's Storage, by puts, conditional puts and copies.

    Raises InvalidOptionError for a URL that names no location in a store.
    """

    advice = (
        "A target in an object store needs a store with conditional puts (If-None-Match), "
        "and credentials that may list, read, write and delete, for the driver and all executors."
    )

    def __init__(self, url: str) -> None:
        self._location = Location(url)
        self._known_commits: list[str] = []

    def __str__(self) -> str:
        return self._location.shown

    def path_of(self, name: str) -> str:
        return f"{self._location.shown}/{name}"

    def visible_name(self) -> str | None:
        with as_os_errors():
            for found in self._location.store.list(chunk_size=100):
                for one in found:
                    # The mark of the folder itself has no name below it.
                    if one["path"] and is_of_others(one["path"]):
                        return str(one["path"])
        return None

    def commit_names(self) -> list[str]:
        # Commits are never deleted, so those that are known need not be listed again.
        after = f"{COMMITS}/{self._known_commits[-1]}" if self._known_commits else None
        with as_os_errors():
            listed = [
                _name(one["path"])
                for found in self._location.store.list(COMMITS, offset=after)
                for one in found
            ]
        # What is not a commit, such as the mark of a folder, may lie behind those to come.
        self._known_commits += sorted(filter(COMMIT_FILE.fullmatch, listed))
        return list(self._known_commits)

    def read_commit(self, name: str) -> bytes:
        return self._location.read(f"{COMMITS}/{name}")

    def create_commit(self, name: str, content: bytes, load_id: str) -> bool:
        return self._location.create(f"{COMMITS}/{name}", content)

    def sync_commits(self) -> None:
        """An object that can be seen is kept."""

    def note_newest(self, sequence: int, load_id: str) -> None:
        with as_os_errors():
            self._location.store.put(NEWEST, b"%d" % sequence)

    def noted_newest(self) -> int:
        try:
            return sequence_of(self._location.read(NEWEST))
        except FileNotFoundError:
            return 0

    def make_stage(self, load_id: str) -> str:
        make_marker(self._location, f"{STAGING}/{load_id}")
        return self._location.below(f"{STAGING}/{load_id}")

    def sync_stage(self, load_id: str) -> None:
        """An object that can be seen is kept."""

    def has_stage(self, load_id: str) -> bool:
        return self._location.has(f"{STAGING}/{load_id}/{MARKER}")

    def stages(self) -> dict[str, float]:
        alive, changed = self._stages()
        return {load_id: changed[load_id] for load_id in sorted(alive)}

    def sweep(self) -> None:
        alive, changed = self._stages()
        with as_os_errors():
            for load_id in changed.keys() - alive:
                self._delete_below(load_id)

    def stage_path(self, load_id: str) -> str:
        return f"{self._location.shown}/{STAGING}/{load_id}"

    def _stages(self) -> tuple[set[str], dict[str, float]]:
        """The load ids of stages, and when each prefix of one, also of a discarded one, changed."""
        alive: set[str] = set()
        changed: dict[str, float] = {}
        with as_os_errors():
            for found in self._location.store.list(STAGING):
                for one in found:
                    load_id, _, name = one["path"].removeprefix(f"{STAGING}/").partition("/")
                    when = one["last_modified"].timestamp()
                    changed[load_id] = max(when, changed.get(load_id, when))
                    if name == MARKER:
                        alive.add(load_id)
        return alive, changed

    def staged_path(self, load_id: str, name: str) -> str:
        return f"{self.stage_path(load_id)}/{staged_name(name)}{STAGED_SUFFIX}"

    def staged_sizes(self, load_id: str, names: Sequence[str]) -> dict[str, int]:
        with as_os_errors():
            sizes = {
                _name(one["path"]).removesuffix(STAGED_SUFFIX): one["size"]
                for found in self._location.store.list(f"{STAGING}/{load_id}")
                for one in found
            }
        return {name: sizes[staged_name(name)] for name in names if staged_name(name) in sizes}

    def put_in_place(self, load_id: str, names: Sequence[str]) -> list[str]:
        def is_missing(name: str) -> bool:
            staged = f"{STAGING}/{load_id}/{staged_name(name)}{STAGED_SUFFIX}"
            try:
                with as_os_errors():
                    self._location.store.copy(staged, name)
            except FileNotFoundError:
                return not self._location.has(name)
            return False

        with ThreadPoolExecutor(COPIES_AT_ONCE) as threads:
            missing = list(threads.map(is_missing, names))
        return [name for name, gone in zip(names, missing, strict=True) if gone]

    def discard_stage(self, load_id: str) -> None:
        with as_os_errors():
            with suppress(FileNotFoundError):
                self._location.store.delete(f"{STAGING}/{load_id}/{MARKER}")
            self._delete_below(load_id)

    def _delete_below(self, load_id: str) -> None:
        """Deletes what is left of a stage. What stays because of an error is found by `stages`."""
        paths = [
            one["path"]
            for found in self._location.store.list(f"{STAGING}/{load_id}")
            for one in found
        ]
        if paths:
            with suppress(FileNotFoundError, BaseError):
                self._location.store.delete(paths)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
