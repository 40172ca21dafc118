"""Where a table lies whose files stay where tasks write them: a directory, or a place in a store.

Names are relative to the table, with `/` between their parts; the files of a load are below
`load-<load id>/`. A place decides nothing about the table: each format does. Called by the driver,
from any thread or process. Errors are OSErrors; FileNotFoundError for what is not there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pyspark_kafkalog.errors import MissingExtraError
from pyspark_kafkalog.warehouse.targets.directory_table import DirectoryTable
from pyspark_kafkalog.warehouse.targets.storage import is_url


class TablePlace(Protocol):
    """What a table's format needs of the place where it lies."""

    uri: str
    """What the format's own library opens."""

    advice: str
    """What the place has to be, as the end of an error's text."""

    def __str__(self) -> str:
        """The place as a user may see it."""

    def options(self) -> Mapping[str, str] | None:
        """What it opens that with. It may hold secrets: never to be shown."""

    def path_of(self, name: str) -> str:
        """A file as a user may see it."""

    def in_words(self, error: BaseException) -> str:
        """What an error says that may be shown."""

    def make(self) -> None:
        """Makes the place when it is missing. Raises OSError where it is a file."""

    def names(self, below: str = "") -> list[str]:
        """What is right below a directory, which need not be there: files and directories."""

    def changed(self, below: str = "") -> dict[str, float]:
        """All files below a directory, which need not be there, at any depth, and when they last
        changed, in seconds."""

    def exists(self, name: str) -> bool: ...

    def read(self, names: Sequence[str]) -> Iterator[bytes]:
        """The files' content, in that order."""

    def source(self, name: str) -> Any:
        """What Arrow reads a file from."""

    def create(self, name: str, content: bytes, stage_path: str) -> bool:
        """Gives `content` its name in one step, and for good; False when the name was taken before
        by others. `stage_path` is a stage that may be used for it. An error leaves open whether it
        was done."""

    def remove(self, names: Collection[str]) -> None:
        """Removes those of the files that are there."""

    def make_stage(self, load_id: str) -> str:
        """A new place for files of a load; its path."""

    def try_create(self, load_id: str) -> None:
        """Raises OSError where `create` could not keep its promise: better before anything is
        landed in this stage than after. Drops the stage then."""

    def sweep(
        self, idle_s: float, dry_run: bool, named: Callable[[], set[str]], fence: Callable[[], None]
    ) -> list[str]:
        """Removes what dead loads left, unchanged for `idle_s`; returns its paths.

        `named` gives the files that any commit names. A stage of which there is none may be that of
        a loader which sleeps before its commit. So it is made such that `check_staged` fails, then
        `fence` makes a commit: a loader that had looked for its files before cannot commit any
        more, or has done so by now, and then the files stay. Of a stage that commits name goes what
        they do not name."""

    def restore(self, named: Callable[[], set[str]]) -> None:
        """Undoes what a sweep that was killed had done to the stages of committed loads."""


def open_place(path: str) -> TablePlace:
    """The place at `path`: absolute, or an object store's URL. Reads and writes nothing. Raises
    InvalidOptionError, or MissingExtraError where the library of stores is not installed."""
    if is_url(path):
        try:
            from pyspark_kafkalog.warehouse.targets.object_table import ObjectTable
        except ImportError as error:
            raise MissingExtraError(
                "a table in an object store needs obstore, which is not installed: "
                "pip install 'pyspark-kafkalog[objectstore]'"
            ) from error

        return ObjectTable(path)
    return DirectoryTable(path)
