"""What a Delta table's log says, read from its files: the versions of all `txn`s, which deltalake
tells of an appId that one names alone, and every file that it names.

Others may make checkpoints and clean the log up meanwhile: what is read is the log as of some
instant, or it is read again. Changes nothing; errors are OSErrors and ValueErrors.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow.parquet as pq

from pyspark_kafkalog.warehouse.targets.delta_history import actions
from pyspark_kafkalog.warehouse.targets.delta_table import LOG
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace

# Of one file, of several, or of a file that is called by a UUID.
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(\.\d{10}\.(?P<parts>\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)"
)
_TRIES = 10
_Read = TypeVar("_Read")


class Txn(NamedTuple):
    """What the log says of an appId in `entry`, the table version that it is of."""

    entry: int
    is_checkpoint: bool
    app_id: str
    version: int


def app_ids(place: TablePlace) -> set[str]:
    return {txn.app_id for txn in txns(place)}


def named_files(place: TablePlace) -> set[str]:
    """Every file that the log, as far back as it goes, adds or removes."""
    return _undisturbed(lambda: _named_in(place))


def _named_in(place: TablePlace) -> set[str]:
    found: set[str] = set()
    listed = [f"{LOG}/{name}" for name in _listed(place)]
    sidecars = set(place.changed(LOG)).difference(listed)
    names = [*listed, *sorted(name for name in sidecars if name.count("/") > 1)]
    for name in names:
        if name.endswith(".parquet"):
            with pq.ParquetFile(place.source(name)) as file:
                for kind in {"add", "remove"}.intersection(file.schema_arrow.names):
                    column = file.read([f"{kind}.path"]).column(kind).drop_null()
                    found.update(one["path"] for one in column.to_pylist())
    for content in place.read([name for name in names if name.endswith(".json")]):
        for kind in ("add", "remove"):
            found.update(action[kind]["path"] for action in actions(content, kind))
    return {unquote(path) for path in found}


def txns(place: TablePlace) -> list[Txn]:
    """Those of the log's last checkpoint and of all entries after it, oldest first, and perhaps of
    later ones than the table version that somebody has open."""
    return _undisturbed(lambda: list(_txns_of(place, _listed(place))))


def _txns_of(place: TablePlace, listed: Sequence[str]) -> Iterator[Txn]:
    checkpoint, names = _newest_checkpoint(listed)
    for name, content in zip(names, place.read([f"{LOG}/{name}" for name in names]), strict=True):
        if name.endswith(".parquet"):
            column = pq.read_table(io.BytesIO(content), columns=["txn"]).column("txn")
            for txn in column.drop_null().to_pylist():
                yield Txn(checkpoint, True, txn["appId"], txn["version"])
        else:
            yield from _txns_in(content, checkpoint, True)
    entries = _entries(listed, checkpoint)
    contents = place.read([f"{LOG}/{name}" for _, name in entries])
    for (version, _), content in zip(entries, contents, strict=True):
        yield from _txns_in(content, version, False)


def _undisturbed(read: Callable[[], _Read]) -> _Read:
    """What `read` finds in a log that others may clean up meanwhile: then it reads again."""
    for _ in range(_TRIES - 1):
        with suppress(FileNotFoundError):
            return read()
    return read()


def _listed(place: TablePlace) -> list[str]:
    """What is in a log: not a part of it only, as where others made a checkpoint and removed the
    entries before it while names were read."""
    for _ in range(_TRIES):
        names = place.names(LOG)
        checkpoint, _ = _newest_checkpoint(names)
        entries = [version for version, _ in _entries(names, checkpoint)]
        if entries == list(range(checkpoint + 1, checkpoint + 1 + len(entries))):
            break
    return names


def _entries(names: Iterable[str], after: int) -> list[tuple[int, str]]:
    """The log entries of later versions than `after`, oldest first."""
    parts = [(name, *name.partition(".")) for name in names]
    return sorted(
        (int(version), name)
        for name, version, _, rest in parts
        if rest == "json" and version.isdecimal() and int(version) > after
    )


def _newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """The table version of the log's last complete checkpoint and the names of its files; -1 and
    none where there is no checkpoint. By the files alone: the log's own note of it,
    `_last_checkpoint`, may be older, or missing."""
    files: dict[tuple[int, int], list[str]] = {}
    for name in names:
        found = _CHECKPOINT.fullmatch(name)
        if found:
            key = int(found["version"]), int(found["parts"] or 1)
            files.setdefault(key, []).append(name)
    newest = max((key for key, parts in files.items() if len(parts) >= key[1]), default=(-1, 0))
    return newest[0], files.get(newest, [])


def _txns_in(content: bytes, entry: int, is_checkpoint: bool) -> Iterator[Txn]:
    """Those of JSON objects, one a line."""
    for action in actions(content, "txn"):
        yield Txn(entry, is_checkpoint, action["txn"]["appId"], action["txn"]["version"])
