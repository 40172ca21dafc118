"""Where a Parquet target lies: what its protocol needs of a directory, or of an object store.

Owns the layout below the target's root (parquet.py says what it means) and the few things that its
protocol needs; whoever does them (directory_storage.py, object_storage.py) decides nothing.

`Storage` is the driver's view, `StageFiles` that of the tasks of one load, which also Delta and
Iceberg tables use. A stage is opened by its path, on any machine: a directory, or the URL of an
object store. Any thread or process. Errors are OSErrors.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any, Protocol

COMMITS = "_kafkalog/commits"
COMMIT_FILE = re.compile(r"\d{20}\.json")
STAGING = "_kafkalog/staging"
NEWEST = "_kafkalog/newest"
STAGED_SUFFIX = ".staged"

# Where others keep what they know of the files in a directory, hidden from those who read it.
KNOWN_TO_OTHERS = {
    "_delta_log": "it is a Delta table, whose VACUUM would delete what is loaded",
    ".hoodie": "it is a Hudi table, whose cleaning would delete what is loaded",
    "_spark_metadata": "a file sink of Spark writes there, and Spark would read its files alone",
}


class Storage(Protocol):
    """What a Parquet target needs of the place where it lies."""

    advice: str
    """What the place has to be, as the end of an error's text."""

    def __str__(self) -> str:
        """The place as a user may see it."""

    def path_of(self, name: str) -> str:
        """What a reader opens to read the file `name` of the target."""

    def visible_name(self) -> str | None:
        """A file that readers of the target would look at, or one of KNOWN_TO_OTHERS; None when
        there is none."""

    def commit_names(self) -> list[str]:
        """The names of all commits, and perhaps of what else lies there."""

    def read_commit(self, name: str) -> bytes: ...

    def create_commit(self, name: str, content: bytes, load_id: str) -> bool:
        """Gives `content` its name in one step, and for good; False when the name was taken before
        by others. `load_id` is the load whose stage may be used for it."""

    def sync_commits(self) -> None:
        """Makes every commit that can be seen now survive a power failure."""

    def note_newest(self, sequence: int, load_id: str) -> None:
        """Writes down, beside the commits, how far they have come. `load_id` is as for
        `create_commit`. It may be lost, or replaced by an older note of another process."""

    def noted_newest(self) -> int:
        """What was written down last; 0 without a note."""

    def make_stage(self, load_id: str) -> str:
        """A new place for staged files; its path. Raises OSError where `create_commit` could not
        keep its promise: better now than when all is landed."""

    def sync_stage(self, load_id: str) -> None:
        """Makes the names of staged files survive a power failure."""

    def has_stage(self, load_id: str) -> bool:
        """Whether it was made and not discarded."""

    def stages(self) -> dict[str, float]:
        """The load ids of all stages, and when each last changed, in seconds."""

    def sweep(self) -> None:
        """Removes what is left of discarded stages."""

    def stage_path(self, load_id: str) -> str:
        """A stage, as a user may see it."""

    def staged_path(self, load_id: str, name: str) -> str:
        """Where the staged form of a file lies."""

    def staged_sizes(self, load_id: str, names: Sequence[str]) -> dict[str, int]:
        """The sizes in bytes of those of the files `names` that are staged."""

    def put_in_place(self, load_id: str, names: Sequence[str]) -> list[str]:
        """Moves staged files to where readers see them, unless they are there before; for good.
        Returns those that are in neither place. Any number of processes may do so at once."""

    def discard_stage(self, load_id: str) -> None:
        """Removes a stage in one step: to the eyes of all others it is gone."""


class StageFiles(Protocol):
    """The files of one stage: for tasks, and for the driver of a table whose files stay there."""

    def create(self, name: str) -> "Sink":
        """A new file, which has its name once it is complete."""

    def write(self, name: str, content: bytes) -> None:
        """A small file, which need not survive a power failure; again to replace it."""

    def read(self, suffix: str) -> list[bytes]:
        """The content of all small files with names that end in `suffix`."""

    def path_of(self, name: str) -> str:
        """A file, as a user may see it."""

    def source(self, name: str) -> Any:
        """What Arrow reads a file from."""

    def sizes(self, names: Collection[str]) -> dict[str, int]:
        """The sizes in bytes of those of the files `names` that are there; of none where a sweep
        took the stage."""

    def modified_ms(self, names: Collection[str]) -> dict[str, int]:
        """When these files got their content, in milliseconds since 1970."""

    def sync(self) -> None:
        """Makes the names of files survive a power failure."""

    def keep_only(self, names: Collection[str]) -> None:
        """Removes all others, and the stage where nothing is left. What cannot be stays."""

    def discard(self) -> None:
        """Removes the stage. What cannot be removed stays."""


class Sink(Protocol):
    """A file being written, as Arrow does it."""

    @property
    def closed(self) -> bool: ...
    def write(self, content: bytes) -> int: ...
    def tell(self) -> int:
        """The bytes written so far."""

    def flush(self) -> None: ...
    def complete(self) -> None:
        """Makes the file survive a power failure, then gives it its name."""

    def drop(self) -> None:
        """Removes the file, unless it was completed."""


def staged_name(name: str) -> str:
    """What a file is called in its stage: without the directories of its partition."""
    return name.rpartition("/")[2]


def sequence_of(note: bytes) -> int:
    """What a note of the newest commit says; a power failure may have left it empty."""
    return int(note) if note.isdigit() else 0


def is_of_others(name: str) -> bool:
    """Whether a name below a target's root is one that readers look at, or one of others."""
    return not name.startswith(("_", ".")) or name.partition("/")[0] in KNOWN_TO_OTHERS


def is_url(path: str) -> bool:
    """Whether a target's or stage's path is that of an object store."""
    return "://" in path
