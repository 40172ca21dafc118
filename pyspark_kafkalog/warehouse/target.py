"""What a load needs of a warehouse, whatever its format, and how a target is named.

A target keeps the data and, in the same atomic commit, the next offsets of every load name; nothing
else remembers them. `parquet:/path` is the one kind there is; each kind is one module.

Called by the driver. Writes nothing itself.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Commit, DataFile, Stage
from pyspark_kafkalog.warehouse.parquet import ParquetTarget

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class Target(Protocol):
    """A table, or a directory that acts as one. Errors: TargetError, LoadConflictError."""

    def __str__(self) -> str:
        """The target as a user may see it: without passwords."""

    def last_offsets(self, name: str) -> Offsets:
        """The next offsets of load `name`: empty before its first commit. Finishes what a killed
        loader had published but not yet put in place."""

    def stage(self, schema: "pa.Schema") -> Stage:
        """A new place for the files of one load, which no reader of the target sees.

        Makes the table when it is missing, with nullable columns as in `schema`; raises TargetError
        when it has other ones.
        """

    def commit(
        self,
        stage: Stage,
        name: str,
        planned_from: Offsets,
        ranges: Sequence[OffsetRange],
        files: Sequence[DataFile],
    ) -> Commit:
        """Publishes `files` and the ends of `ranges` in one step.

        Raises LoadConflictError, with nothing published, when the offsets of load `name` are no
        longer those of `planned_from`, which `last_offsets` gave when the ranges were planned.
        """

    def discard(self, stage: Stage) -> None:
        """Drops what a failed load staged. Never called once `commit` was."""


def open_target(target: str) -> Target:
    """The target named `KIND:PLACE`, such as `parquet:/data/orders`. Reads and writes nothing."""
    kind, separator, place = target.partition(":")
    if not separator or kind not in _KINDS:
        raise InvalidOptionError(
            f"target {target!r} does not name a kind of target: write {' or '.join(_KINDS)}"
            ":PLACE, for example parquet:/data/orders"
        )
    return _KINDS[kind](place)


def _open_parquet(place: str) -> Target:
    path = place.removeprefix("file:")
    # hdfs:/data is a URI too; a directory whose name has a colon can be written ./a:b.
    remote = _SCHEME.match(path) or (path.startswith("//") and not path.startswith("///"))
    if not path or remote:
        raise InvalidOptionError(
            f"target parquet:{place} is not a path: name a directory of a local or mounted file "
            "system, for example parquet:/data/orders"
        )
    return ParquetTarget(os.path.abspath(os.path.expanduser(path)))


_KINDS: Mapping[str, Callable[[str], Target]] = {"parquet": _open_parquet}
