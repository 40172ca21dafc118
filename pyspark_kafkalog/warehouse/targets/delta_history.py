"""What the entries of a Delta table's log tell of a load, as far back as they are kept.

A restore takes rows of later versions away and leaves the txns, so a load would go on beyond what
the table holds. The entry of each of a load's commits says in commitInfo up to where it went
(`kafkalog.name`, `kafkalog.offsets`): the newest one that is left of the table tells.

Called by delta.py alone. Changes nothing; errors are OSErrors and ValueErrors.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark_kafkalog.source.offsets import Offsets, to_json
from pyspark_kafkalog.warehouse.targets.delta_table import LOG
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace

# A clone takes the place of the table with the rows of another one, such as a backup.
_RESTORE = ("RESTORE", "CLONE")


@dataclass(frozen=True, slots=True)
class Restored:
    """A table that was restored, by its entry `version`, to before a load's last commit. The rows
    that are there came up to `offsets`, in the form of startingOffsets; `{}` where no commit of the
    load is left of it, None where nobody can tell."""

    version: int
    offsets: str | None


def restored(
    place: TablePlace, name: str, offsets: Offsets, newest: int, oldest: int = 0
) -> Restored | None:
    """How the table version `newest` lacks rows of load `name`, which is to go on at `offsets`.

    Looked for are restores from the version `oldest` on; None where there is none after the load's
    last commit, where one went to where the load was at these very offsets, or where the history
    does not reach back to that.
    """
    restore, left = None, "{}"
    try:
        while (found := _last_word(place, name, newest, oldest)) is not None:
            version, said = found
            if _is_of(said, name):
                left = said.get("kafkalog.offsets", left)
                break
            restore = restore or version
            before = _restored_to(place, version, said)
            if before is None:
                return Restored(restore, None)
            newest, oldest = before, 0
    except FileNotFoundError:
        return None  # cleaned up
    if restore is None or json.loads(left) == to_json(offsets):
        return None
    return Restored(restore, left)


def _last_word(
    place: TablePlace, name: str, newest: int, oldest: int
) -> tuple[int, Mapping[str, Any]] | None:
    """The last entry up to `newest` that is of load `name`, or gives the table other rows."""
    for version in range(newest, oldest - 1, -1):
        said = commit_info(place, version)
        if _is_of(said, name) or said.get("operation") in _RESTORE:
            return version, said
    return None


def _is_of(said: Mapping[str, Any], name: str) -> bool:
    return name in (said.get("kafkalog.name"), said.get("kafkalog.forgotten"))


def _restored_to(place: TablePlace, version: int, said: Mapping[str, Any]) -> int | None:
    """The version that the table is like since this entry; None where that is not said. Spark says
    a time in the zone of a session."""
    asked = said.get("operationParameters") or {}
    if str(asked.get("version", "")).isdecimal():
        return min(int(asked["version"]), version - 1)
    if str(asked.get("datetime", "")).isdecimal():
        earlier = range(version - 1, -1, -1)
        times = ((each, commit_info(place, each).get("timestamp", 0)) for each in earlier)
        return next((each for each, time_ms in times if time_ms <= int(asked["datetime"])), None)
    return None


def names_load(place: TablePlace, name: str, versions: range) -> bool:
    """Whether the history says that one of these versions is of load `name`. Not of later ones: a
    rival may have made the load's first commit since the table was opened."""
    names = [
        f"{LOG}/{name}"
        for name in place.names(LOG)
        if (version := name.removesuffix(".json")).isdecimal() and int(version) in versions
    ]
    with suppress(FileNotFoundError):
        return _any_names_load(place.read(names), name)
    # Cleaned up meanwhile, all or some: those that are left.
    for each in names:
        with suppress(FileNotFoundError):
            if _any_names_load(place.read([each]), name):
                return True
    return False


def _any_names_load(entries: Iterable[bytes], name: str) -> bool:
    return any(
        action["commitInfo"].get("kafkalog.name") == name
        for entry in entries
        for action in actions(entry, "commitInfo")
    )


def commit_info(place: TablePlace, version: int) -> Mapping[str, Any]:
    [entry] = place.read([f"{LOG}/{version:020}.json"])
    return next((action["commitInfo"] for action in actions(entry, "commitInfo")), {})


def actions(content: bytes, kind: str) -> Iterator[dict[str, Any]]:
    """The actions of one kind in a log entry. Lines without that word are not parsed: an entry may
    add thousands of files."""
    word = f'"{kind}"'.encode()
    for line in content.split(b"\n"):
        if word in line:
            action = json.loads(line)
            if kind in action:
                yield action
