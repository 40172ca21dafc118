"""What a load needs of a warehouse, whatever its format, and how a target is named.

A target keeps the data and, in the same atomic commit, the next offsets of every load name; nothing
else remembers them. Each kind is one module. `parquet:/path` is always there; the others need an
extra of their name and are imported when such a target is opened: `parquet:s3://BUCKET/PATH` and
other object stores (extra `objectstore`), `delta:/path` and `delta:s3://BUCKET/PATH`,
`iceberg:NAMESPACE.TABLE?uri=...&warehouse=...` (the query holds the catalog's properties),
`sql:SQLALCHEMY_URL#TABLE`.

Called by the driver. Writes nothing itself.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from pyspark_kafkalog.errors import InvalidOptionError, MissingExtraError, UnknownTargetError
from pyspark_kafkalog.warehouse.commit import Commit, CommitRecord, PendingCommit, Position, Stage
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange
from pyspark_kafkalog.warehouse.rows.layout import PartitionField
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets.parquet import ParquetTarget
from pyspark_kafkalog.warehouse.targets.rewound import Rewind, Rewound
from pyspark_kafkalog.warehouse.targets.storage import is_url
from pyspark_kafkalog.warehouse.targets.upkeep import Upkeep, Upkept
from pyspark_kafkalog.warehouse.topic_places import refuse_topic

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class Target(Protocol):
    """A table, or a directory that acts as one. Errors: TargetError, LoadConflictError."""

    def __str__(self) -> str:
        """The target as a user may see it: without passwords."""

    def is_there(self) -> bool:
        """Whether there is a table, or anything that a load made. Changes nothing."""

    def position(self, name: str, read_only: bool = False) -> Position:
        """Where load `name` goes on: NOWHERE before its first commit. Finishes what a killed
        loader had published but not yet put in place, unless `read_only`: then nothing is changed,
        and nothing made that is missing."""

    def names(self) -> list[str]:
        """The loads that have a place to go on from, sorted. Changes nothing."""

    def history(self) -> Iterator[CommitRecord]:
        """The commits of loads as far back as the target tells, newest first. Changes nothing."""

    def stage(
        self,
        schema: "pa.Schema",
        partition_by: Sequence[PartitionField] = (),
        change: SchemaChange = UNSAID,
        upsert: Upsert | None = None,
    ) -> Stage:
        """A new place for the files of one load, which no reader of the target sees.

        Makes the table when it is missing, with nullable columns as in `schema`, whose types are
        those of row_types.storable; raises TargetError when it has other ones which `change` does
        not allow for, or is partitioned in another way, and InvalidOptionError when it cannot be
        partitioned. A table that is there is changed by the commit alone: the stage's schema has
        the columns as they are going to be. With `upsert`, files and `schema` have the columns that
        it adds; raises TargetError where the table was loaded with another one, or none, and so it
        does without where it was loaded with one. Parquet targets are given none.
        """

    def commit(self, pending: PendingCommit) -> Commit:
        """Publishes the files, the ends of the ranges and the ids of their topics in one step.

        So are columns that the rows need, as the stage's `change` allows. Raises LoadConflictError,
        with nothing published, when the offsets of the load's name are no longer those that
        `position` gave when the ranges were planned, or others changed the same columns meanwhile.
        """

    def discard(self, stage: Stage) -> None:
        """Drops what a failed load staged. Never called once `commit` was."""

    def forget(self, name: str) -> bool:
        """Forgets in one commit where load `name` goes on, offsets and topic ids, so that its next
        load is a first one; False when there was nothing to forget. Rows stay. A load of that name
        which is at work ends in LoadConflictError."""

    def rewind(self, asked: Rewind) -> Rewound:
        """Takes a load back in one commit, with the rows that it would double if that is asked for,
        else not where there are any. A load of that name which is at work ends in
        LoadConflictError. Raises InvalidOptionError, WouldDoubleError."""

    def vacuum(self, idle_s: float, dry_run: bool) -> list[str]:
        """Removes what no commit names and no load has touched for `idle_s`; returns paths. What is
        removed cannot be published any more, by whoever wakes up. `dry_run` changes nothing."""

    def upkeep(self, asked: Upkeep) -> Upkept:
        """Compacts small files, and removes old versions with what they alone need, beside loads,
        which it neither moves nor undoes."""


def open_target(target: str) -> Target:
    """The target named `KIND:PLACE`, such as `parquet:/data/orders`. Reads and writes nothing.

    Raises InvalidOptionError, also where it is one for each topic ({topic}), or MissingExtraError
    when the kind's libraries are not installed.
    """
    refuse_topic(target)
    kind, separator, place = target.partition(":")
    if not separator or kind not in _KINDS:
        # The kind alone: what follows it may hold a password.
        raise InvalidOptionError(
            f"target {(kind if separator else target)!r} does not name a kind of target: write "
            "parquet:PATH, delta:PATH, iceberg:NAMESPACE.TABLE?uri=...&warehouse=... or "
            "sql:SQLALCHEMY_URL#TABLE, for example parquet:/data/orders or "
            "sql:duckdb:////data/lake.duckdb#orders"
        )
    try:
        return _KINDS[kind](place)
    except ImportError as error:
        library = (error.name or str(error)).partition(".")[0]
        extra = "objectstore" if kind == "parquet" else kind
        raise MissingExtraError(
            f"target {kind}: needs {library}, which is not installed: "
            f"pip install 'pyspark-kafkalog[{extra}]'"
        ) from error


def open_existing(target: str) -> Target:
    """The same of a target that is there; raises UnknownTargetError, a TargetError."""
    opened = open_target(target)
    if not opened.is_there():
        raise UnknownTargetError(
            f"There is no target {opened}: check how it is written. The first load into it makes "
            "it."
        )
    return opened


def _open_parquet(place: str) -> Target:
    path = place.removeprefix("file://") if place.startswith("file:///") else place
    return ParquetTarget(path if is_url(path) else _directory("parquet", path))


def _open_delta(place: str) -> Target:
    from pyspark_kafkalog.warehouse.targets.delta import DeltaTarget

    in_store = is_url(place) and not place.startswith("file:")
    path = place if in_store else _directory("delta", place)
    shown = path.partition("?")[0] if in_store else path
    # deltalake takes these for something else: to its URLs, or to a path of Windows.
    odd = re.search(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]", shown)
    if odd:
        raise InvalidOptionError(
            f"target delta:{shown} cannot be: deltalake takes {odd[0]!r} in a path for something "
            "else. Name another place"
        )
    return DeltaTarget(path)


def _open_iceberg(place: str) -> Target:
    from pyspark_kafkalog.warehouse.targets.iceberg import IcebergTarget

    identifier, _, query = place.partition("?")
    names = identifier.split(".")
    settings = [setting.partition("=") for setting in query.split("&") if setting]
    if len(names) < 2 or not all(names) or not all(equals for _, equals, _ in settings):
        # Without it: its query may hold secrets, and so may a URL that stands for the table.
        raise InvalidOptionError(
            "what follows iceberg: in the target is not a table: write "
            "NAMESPACE.TABLE?NAME=VALUE&..., for example iceberg:lake.orders?uri=sqlite:////data/catalog.db&warehouse=/data/lake"
        )
    # A plus sign means itself, as in sqlite+pysqlite.
    return IcebergTarget(identifier, {unquote(name): unquote(value) for name, _, value in settings})


def _open_sql(place: str) -> Target:
    from pyspark_kafkalog.warehouse.targets.sql import SqlTarget

    url, _, table = place.rpartition("#")
    if not url or not table:
        # Without the URL, which may hold a password.
        raise InvalidOptionError(
            "target sql: names no table: write URL#TABLE, for example "
            "sql:postgresql://USER:PASSWORD@HOST/DATABASE#orders"
        )
    return SqlTarget(url, table)


def _directory(kind: str, place: str) -> str:
    path = place.removeprefix("file:")
    # hdfs:/data is a URI too; a directory whose name has a colon can be written ./a:b.
    remote = _SCHEME.match(path) or (path.startswith("//") and not path.startswith("///"))
    if not path or remote:
        # Without the place, which may hold secrets: in its query, or before an @.
        raise InvalidOptionError(
            f"what follows {kind}: in the target is not a path: name a directory of a local "
            f"or mounted file system, for example {kind}:/data/orders, or a place in an object "
            f"store: {kind}:s3://BUCKET/PATH"
        )
    return os.path.abspath(os.path.expanduser(path))


_KINDS: Mapping[str, Callable[[str], Target]] = {
    "parquet": _open_parquet,
    "delta": _open_delta,
    "iceberg": _open_iceberg,
    "sql": _open_sql,
}
