"""A table in S3, what speaks like it, or Azure, by puts and conditional puts (If-None-Match: *).

Where the store says of a put that its name is taken, the content tells whether it is this one:
requests are repeated when an answer is lost. A stage is there as long as its object `stage` is
(object_stage.py); a sweep takes that away first, so there is nothing to be put back.

deltalake has a client of its own for the store. It is given the same settings, looks for
credentials in the same places of the environment and, since its version 1.6, commits by conditional
puts alone; these are asked for all the same, since the environment may say otherwise.

See `table_place` for the promises. Any thread or process. Errors are OSErrors.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.targets.object_location import (
    REQUEST_TIMEOUT_S,
    RETRIES,
    Location,
    as_os_errors,
    in_words,
)
from pyspark_kafkalog.warehouse.targets.object_stage import (
    MARKER,
    ObjectSource,
    delete,
    make_marker,
)
from pyspark_kafkalog.warehouse.targets.staging import LOAD_DIRECTORY

READS_AT_ONCE = 16
MOST_KEPT_BYTES = 64 * 1024 * 1024
_S3 = ("s3", "s3a")
_AZURE = ("abfs", "abfss", "az", "azure")


class ObjectTable:
    """The table at `url`. Raises InvalidOptionError for one that names no place in S3 or Azure."""

    advice = (
        "A table in an object store needs a store with conditional puts (If-None-Match), and "
        "credentials that may list, read, write and delete, for the driver and all executors."
    )

    def __init__(self, url: str) -> None:
        self._location = Location(url)
        self.uri = self._location.shown
        self._e_tags: dict[str, str] = {}
        self._contents: dict[str, tuple[str, bytes]] = {}
        self._kept_bytes = 0
        self._scheme = self.uri.partition("://")[0]
        if self._scheme not in (*_S3, *_AZURE):
            raise InvalidOptionError(
                f"the table {self.uri} is in another store than S3, what speaks like it, and "
                "Azure: write s3://BUCKET/PATH or abfs://CONTAINER/PATH, or load into Parquet "
                "there: parquet:gs://..."
            )

    def __str__(self) -> str:
        return self.uri

    def options(self) -> Mapping[str, str]:
        settings = self._location.settings()
        # First by a client of ours, which finds out soon where there are no credentials.
        _ = self._location.store
        return {
            "allow_http": str(self._location.is_plain(settings)).lower(),
            "timeout": f"{REQUEST_TIMEOUT_S}s",
            "max_retries": str(RETRIES),
            **settings,
            **({"conditional_put": "etag"} if self._scheme in _S3 else {}),
        }

    def path_of(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def in_words(self, error: BaseException) -> str:
        return in_words(error)

    def make(self) -> None:
        """There are no directories."""

    def names(self, below: str = "") -> list[str]:
        with as_os_errors():
            found = self._location.store.list_with_delimiter(below or None)
        paths = [*(one["path"] for one in found["objects"]), *found["common_prefixes"]]
        # The mark of a folder itself has no name below it.
        tags = {one["path"]: one["e_tag"] for one in found["objects"]}
        self._e_tags |= {path: tag for path, tag in tags.items() if tag}
        return sorted(filter(None, (path[len(below) :].strip("/") for path in paths)))

    def exists(self, name: str) -> bool:
        return self._location.has(name)

    def read(self, names: Sequence[str]) -> Iterator[bytes]:
        if len(names) < 2:
            yield from map(self._kept, names)
            return
        _ = self._location.store
        with ThreadPoolExecutor(READS_AT_ONCE) as threads:
            yield from threads.map(self._kept, names)

    def source(self, name: str) -> ObjectSource:
        return ObjectSource(self._location, name)

    def create(self, name: str, content: bytes, stage_path: str) -> bool:
        return self._location.create(name, content)

    def remove(self, names: Collection[str]) -> None:
        delete(self._location, list(names))

    def make_stage(self, load_id: str) -> str:
        with as_os_errors():
            self._location.store.put(f"load-{load_id}/{MARKER}", b"")
        return self._location.below(f"load-{load_id}")

    def try_create(self, load_id: str) -> None:
        make_marker(self._location, f"load-{load_id}")

    def sweep(
        self, idle_s: float, dry_run: bool, named: Callable[[], set[str]], fence: Callable[[], None]
    ) -> list[str]:
        oldest = time.time() - idle_s
        committed = named()
        stages = _stages(committed)
        idle = {
            name: changed
            for name, changed in self._stages().items()
            if max(changed.values()) < oldest
        }
        swept = [
            file
            for name, files in idle.items()
            if name in stages
            for file in files
            if file not in committed
        ]
        dead = sorted(idle.keys() - stages)
        if dry_run:
            return [self.path_of(name) for name in [*swept, *dead]]
        self.remove(swept)
        if dead:
            self.remove([f"{name}/{MARKER}" for name in dead])
            fence()
            committed_now = _stages(named())
            dead = [name for name in dead if name not in committed_now]
            self.remove([file for name in dead for file in self.changed(name)])
        return [self.path_of(name) for name in [*swept, *dead]]

    def restore(self, named: Callable[[], set[str]]) -> None:
        """A sweep leaves nothing to be undone."""

    def _stages(self) -> dict[str, dict[str, float]]:
        """The files of each stage, and when they were written."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for name, changed in self.changed().items():
            stage = name.partition("/")[0]
            if LOAD_DIRECTORY.fullmatch(stage):
                found[stage][name] = changed
        return found

    def changed(self, below: str = "") -> dict[str, float]:
        with as_os_errors():
            return {
                one["path"]: one["last_modified"].timestamp()
                for some in self._location.store.list(below or None)
                for one in some
                if one["path"]
            }

    def _kept(self, name: str) -> bytes:
        """A file's content; the one that was read before, where the last listing has it so."""
        e_tag, content = self._contents.get(name, ("", b""))
        if e_tag and self._e_tags.get(name) == e_tag:
            return content
        content = self._location.read(name)
        if self._kept_bytes + len(content) <= MOST_KEPT_BYTES and name in self._e_tags:
            self._kept_bytes += len(content)
            self._contents[name] = self._e_tags[name], content
        return content


def _stages(names: set[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}
