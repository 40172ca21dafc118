"""The commit files of a Parquet target: `00000000000000000001.json`, `...2.json` and so on.

A commit file is one JSON object, which gets its name whole and in one step that fails when the
name is taken (storage.py): of any number of loaders that race for a sequence number exactly one
wins, and nobody ever sees half a commit. Each commit repeats the next offsets of EVERY load name,
so the newest file alone says where each name goes on. A checksum over the object's canonical form
tells a damaged or foreign file from one of ours: a flipped digit of an offset would otherwise lose
or double records in silence.

Called by the driver, from any thread or process. Never moves or reads data files, never deletes a
commit, never imports Spark or Arrow.
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import from_json, to_json
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import (
    Commit,
    DataFile,
    Position,
    ids_from_json,
    ids_to_json,
    now_ms,
)
from pyspark_kafkalog.warehouse.targets.storage import COMMIT_FILE

FORMAT = "kafkalog-commit"
VERSION = 1

_PLAIN_NAME = re.compile(r"[^/\0]+")


def next_commit(
    newest: Commit | None,
    commit: Commit,
    columns: Mapping[str, str],
    partition_by: Sequence[str] = (),
    abandoned: Sequence[str] = (),
) -> Commit:
    """`commit` as the one that follows `newest`: with the offsets of all other names, and the
    columns of all other files beside its own, `columns`."""
    files = commit.files
    sequence = newest.sequence + 1 if newest else 1
    return replace(
        commit,
        sequence=sequence,
        offsets={**(newest.offsets if newest else {}), **commit.offsets},
        topic_ids={**(newest.topic_ids if newest else {}), **commit.topic_ids},
        epochs={**(newest.epochs if newest else {}), **commit.epochs},
        marks={**(newest.marks if newest else {}), **commit.marks},
        queries={**(newest.queries if newest else {}), **commit.queries},
        columns={**(newest.columns if newest else {}), **(columns if files else {})},
        partition_by=tuple(newest.partition_by if newest and not files else partition_by),
        abandoned=tuple(abandoned),
    )


def moving_commit(newest: Commit | None, name: str, load_id: str, position: Position) -> Commit:
    """A commit without files, after which `name` goes on at `position`; NOWHERE forgets it."""
    moved = Commit(
        1,
        name,
        load_id,
        now_ms(),
        (),
        (),
        {name: position.offsets},
        {name: position.topic_ids},
        epochs={name: position.epochs},
        marks={name: position.marks},
        queries={name: position.queries},
    )
    return next_commit(newest, moved, {})


def sweeping_commit(newest: Commit | None, load_id: str, abandoned: Sequence[str]) -> Commit:
    """A commit of no load: it leaves all as `newest` does, and names stages as abandoned."""
    nothing = Commit(1, "", load_id, now_ms(), (), (), {}, {})
    return next_commit(newest, nothing, {}, abandoned=abandoned)


class CommitFiles(Protocol):
    """Where commit files lie: see storage.Storage."""

    def path_of(self, name: str) -> str: ...
    def commit_names(self) -> list[str]: ...
    def read_commit(self, name: str) -> bytes: ...
    def create_commit(self, name: str, content: bytes, load_id: str) -> bool: ...


class CommitLog:
    """The commit files of a target, oldest to newest."""

    def __init__(self, files: CommitFiles) -> None:
        self._files = files

    def newest(self) -> Commit | None:
        """The newest commit; None before the first. Raises TargetError when it is not ours."""
        sequences = self._sequences()
        return self.read(sequences[-1]) if sequences else None

    def __iter__(self) -> Iterator[Commit]:
        return map(self.read, self._sequences())

    def __reversed__(self) -> Iterator[Commit]:
        return map(self.read, reversed(self._sequences()))

    def read(self, sequence: int) -> Commit:
        name = _file_name(sequence)
        content = self._files.read_commit(name)
        path = self._files.path_of(f"_kafkalog/commits/{name}")
        try:
            return decode(content, sequence, path)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TargetError(
                f"{path} is not an intact commit of "
                f"kafkalog ({_reason(error)}), so it is unknown up to where its target was "
                "loaded; nothing was written. Restore the file from a backup; if it is not "
                "kafkalog's at all, move it out of that directory."
            ) from error

    def publish(self, commit: Commit) -> bool:
        """Gives `commit` its sequence number; False when another loader took that number first.

        When this returns True the commit is on disk; when it raises, `newest()` tells whether it
        was published.
        """
        name = _file_name(commit.sequence)
        return self._files.create_commit(name, encode(commit), commit.load_id)

    def _sequences(self) -> list[int]:
        names = self._files.commit_names()
        return sorted(int(name[:20]) for name in names if COMMIT_FILE.fullmatch(name))


def _file_name(sequence: int) -> str:
    return f"{sequence:020}.json"


def encode(commit: Commit) -> bytes:
    """The content of a commit file: one JSON object, indented for the person who opens it."""
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "sequence": commit.sequence,
        "name": commit.name,
        "load_id": commit.load_id,
        "committed_at_ms": commit.committed_at_ms,
        "ranges": [asdict(piece) for piece in commit.ranges],
        "files": [asdict(file) for file in commit.files],
        "offsets": {name: to_json(offsets) for name, offsets in commit.offsets.items()},
        "topic_ids": {name: ids_to_json(ids) for name, ids in commit.topic_ids.items()},
        "epochs": {name: to_json(epochs) for name, epochs in commit.epochs.items()},
        "marks": {name: to_json(marks) for name, marks in commit.marks.items()},
        "queries": {name: to_json(queries) for name, queries in commit.queries.items()},
        "gaps": [asdict(piece) for piece in commit.gaps],
        "columns": dict(commit.columns),
        "partition_by": list(commit.partition_by),
        "abandoned": list(commit.abandoned),
    }
    return json.dumps({**fields, "crc32": checksum(fields)}, indent=1).encode() + b"\n"


def decode(content: bytes, sequence: int, path: str) -> Commit:
    """The commit in a file's `content`; ValueError, KeyError or TypeError when it is not one, and
    TargetError when it is of a later version than is known."""
    fields = json.loads(content)
    if fields["format"] != FORMAT:
        raise ValueError(f"its format is {fields['format']!r}")
    if fields["version"] > VERSION:
        raise TargetError(
            f"{path} has version {fields['version']}, this pyspark-kafkalog knows {VERSION}: "
            "upgrade pyspark-kafkalog"
        )
    if fields.pop("crc32") != checksum(fields):
        raise ValueError("its checksum does not match")
    if fields["sequence"] != sequence:
        raise ValueError(f"it says it is commit {fields['sequence']!r}")
    return Commit(
        sequence=sequence,
        name=fields["name"],
        load_id=_plain(fields["load_id"]),
        committed_at_ms=fields["committed_at_ms"],
        ranges=tuple(OffsetRange(**piece) for piece in fields["ranges"]),
        files=tuple(_data_file(file) for file in fields["files"]),
        offsets={name: from_json(topics) for name, topics in fields["offsets"].items()},
        topic_ids={name: ids_from_json(ids) for name, ids in fields.get("topic_ids", {}).items()},
        gaps=tuple(OffsetRange(**piece) for piece in fields.get("gaps", [])),
        epochs={name: from_json(topics) for name, topics in fields.get("epochs", {}).items()},
        marks={name: from_json(topics) for name, topics in fields.get("marks", {}).items()},
        queries={name: from_json(topics) for name, topics in fields.get("queries", {}).items()},
        columns=dict(fields["columns"]),
        partition_by=tuple(fields["partition_by"]),
        abandoned=tuple(_plain(load_id) for load_id in fields["abandoned"]),
    )


def checksum(fields: Mapping[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(canonical.encode()):08x}"


def _data_file(fields: Mapping[str, Any]) -> DataFile:
    for part in fields["name"].split("/"):
        _plain(part)
    return DataFile(**{**fields, "partition": tuple(fields["partition"])})


def _plain(name: str) -> str:
    """`name`, which is going to be joined to a directory: it must not lead out of it."""
    if not _PLAIN_NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} is not a file name")
    return name


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
