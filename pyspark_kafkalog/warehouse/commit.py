"""Commits: what one load published and where each load name goes on, in one atomic step.

Owns the values that pass between tasks, driver and every kind of target (DataFile, Stage, Commit),
the rule by which a load conflicts with another one, and the Parquet target's commit files,
`00000000000000000001.json`, `...2.json` and so on. A commit file is one JSON object, which gets its
name whole and in one step that fails when the name is taken (storage.py): of any number of loaders
that race for a sequence number exactly one wins, and nobody ever sees half a commit. Each commit
repeats the next offsets of EVERY load name, so the newest file alone says where each name goes on.
A checksum over the object's canonical form tells a damaged or foreign file from one of ours: a
flipped digit of an offset would otherwise lose or double records in silence.

Called by the driver, from any thread or process. Never moves or reads data files, never deletes a
commit, never imports Spark or Arrow.
"""

import json
import logging
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from pyspark_kafkalog.errors import LoadConflictError, TargetError, TopicRecreatedError
from pyspark_kafkalog.source.offsets import Offsets, from_json, to_json
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.storage import COMMIT_FILE

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.warehouse.layout import Partitioning

FORMAT = "kafkalog-commit"
VERSION = 1

_PLAIN_NAME = re.compile(r"[^/\0]+")

_log = logging.getLogger(__name__)


TopicIds = Mapping[str, UUID]
NO_IDS: TopicIds = {}
_DELETED = b"deleted\0"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One written file of `records` rows. What offsets they are from, its commit's ranges say: a
    transformation may have left rows out, or made others of them.

    `name` is that below the target's root, with the directories of a Hive-style partition; a staged
    file lies in its stage without these. `partition` has a value for each of the stage's fields.
    """

    name: str
    records: int
    size_bytes: int
    partition: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Where and how the tasks of one load write.

    `path` is a directory that no other load touches; the files have the columns of `schema`, of the
    types of row_types.storable, field ids included, but for what `partitioning` leaves out, and
    names that end in `suffix`. Without `takes_nul` no text may hold the character NUL,
    and without `takes_nan` no column NaN.
    """

    load_id: str
    path: str
    schema: "pa.Schema"
    suffix: str = ""
    partitioning: "Partitioning | None" = None
    takes_nul: bool = True
    takes_nan: bool = True


@dataclass(frozen=True, slots=True)
class Position:
    """Where a load name goes on: the next offset of each partition, and the ids that their topics
    had, as far as brokers said them."""

    offsets: Offsets
    topic_ids: TopicIds

    def moved(self, ranges: Sequence[OffsetRange], topic_ids: TopicIds) -> "Position":
        """This position, with each partition moved to the end of its last piece in `ranges`.

        That may lie before the old offset: where a topic was recreated and the user chose to go
        on. A topic with another id than before keeps nothing of what was.
        """
        kept = self._kept(ranges, topic_ids)
        ends = {piece.topic_partition: piece.until_offset for piece in sorted(ranges)}
        return Position({**kept.offsets, **ends}, kept.topic_ids)

    def gaps(self, ranges: Sequence[OffsetRange], topic_ids: TopicIds) -> list[OffsetRange]:
        """The offsets that a load gives up: what its ranges leave out, from where it should go on.

        A partition without a place, or whose topic has another id than before, begins where its
        ranges do: a range of no offsets there says what is given up before the first record.
        """
        at = dict(self._kept(ranges, topic_ids).offsets)
        found = []
        for piece in sorted(ranges):
            key = piece.topic_partition
            start = at.get(key, piece.start_offset)
            if start < piece.start_offset:
                found.append(replace(piece, start_offset=start, until_offset=piece.start_offset))
            at[key] = piece.until_offset
        return found

    def without_deleted(self, topic_ids: TopicIds = NO_IDS) -> "Position":
        """This position, without topics that the load was told to go on without: one that is there
        again under such a name is new to it, unless `topic_ids`, those of now, say that it is the
        very same one, which had only been out of sight."""
        there = {}
        for topic, one in self.topic_ids.items():
            now = topic_ids.get(topic)
            if not _is_deleted(one):
                there[topic] = one
            elif now is not None and one == deleted(now):
                there[topic] = now
        gone = self.topic_ids.keys() - there.keys()
        return Position({tp: n for tp, n in self.offsets.items() if tp.topic not in gone}, there)

    def _kept(self, ranges: Sequence[OffsetRange], topic_ids: TopicIds) -> "Position":
        """What holds still for topics that have `topic_ids` now, with these."""
        topics = {piece.topic for piece in ranges}
        ids = {**self.topic_ids, **{t: one for t, one in topic_ids.items() if t in topics}}
        offsets = {
            key: offset
            for key, offset in self.offsets.items()
            if _is_same(self.topic_ids.get(key.topic), ids.get(key.topic))
        }
        return Position(offsets, ids)


NOWHERE = Position({}, NO_IDS)


def deleted(topic_id: UUID) -> UUID:
    """The id that a topic has for a load that goes on without it. No topic has it, and it tells
    the one that was from any other: half of it is the id's own."""
    return UUID(bytes=_DELETED + topic_id.bytes[len(_DELETED) :])


def _is_deleted(topic_id: UUID) -> bool:
    return topic_id.bytes.startswith(_DELETED)


def _is_same(before: UUID | None, now: UUID | None) -> bool:
    """Whether offsets of a topic with the id `before` hold for it as it is now, as far as known."""
    return before in (None, now) or (now is not None and before == deleted(now))


def without_gaps(pieces: Sequence[OffsetRange], gaps: Sequence[OffsetRange]) -> list[OffsetRange]:
    """`pieces` without the `gaps` that lie in them, as `Position.gaps` finds these again: also
    where nothing is left, a range of no offsets says where a piece began and ended."""
    left = []
    for piece in pieces:
        for gap in sorted(gaps):
            if (
                gap.topic_partition == piece.topic_partition
                and piece.start_offset <= gap.start_offset < gap.until_offset <= piece.until_offset
            ):
                left.append(replace(piece, until_offset=gap.start_offset))
                piece = replace(piece, start_offset=gap.until_offset)
        left.append(piece)
    return left


@dataclass(frozen=True, slots=True)
class Commit:
    """One published load.

    `sequence` is the target's own number of it: a Parquet target counts its commits, the others say
    in their heads what theirs is. `load_id` names the staging directory that the files came from.
    `offsets` holds the next offset of every partition of this load's name, `topic_ids` the ids that
    their topics had, as far as brokers said them; in a Parquet target, those of every other name
    too. `gaps` are the offsets that this load gave up, because they were gone. Of a Parquet target
    alone: `columns`, the Arrow type of every column that any of its files has, `partition_by`, what
    the last files were partitioned by, and `abandoned`, the staging directories of dead loads that
    this commit declared unable to commit.
    """

    sequence: int
    name: str
    load_id: str
    committed_at_ms: int
    ranges: tuple[OffsetRange, ...]
    files: tuple[DataFile, ...]
    offsets: Mapping[str, Offsets]
    topic_ids: Mapping[str, TopicIds] = field(default_factory=dict)
    gaps: tuple[OffsetRange, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()

    @property
    def commit_id(self) -> str:
        """What a person calls it: the number as text."""
        return str(self.sequence)


def next_commit(
    newest: Commit | None,
    name: str,
    load_id: str,
    ranges: Sequence[OffsetRange],
    files: Sequence[DataFile],
    position: Position,
    gaps: Sequence[OffsetRange],
    columns: Mapping[str, str],
    partition_by: Sequence[str] = (),
    abandoned: Sequence[str] = (),
) -> Commit:
    """The commit that follows `newest`: its offsets, with `name` moved to `position`, and its
    columns, with those of `files`."""
    sequence = newest.sequence + 1 if newest else 1
    commit = commit_of_now(sequence, name, load_id, ranges, files, position, gaps)
    return replace(
        commit,
        offsets={**(newest.offsets if newest else {}), **commit.offsets},
        topic_ids={**(newest.topic_ids if newest else {}), **commit.topic_ids},
        columns={**(newest.columns if newest else {}), **(columns if files else {})},
        partition_by=tuple(newest.partition_by if newest and not files else partition_by),
        abandoned=tuple(abandoned),
    )


def sweeping_commit(newest: Commit | None, load_id: str, abandoned: Sequence[str]) -> Commit:
    """A commit of no load: it leaves all as `newest` does, and names stages as abandoned."""
    nothing = commit_of_now(1, "", load_id, [], [], NOWHERE, [])
    if newest is None:
        return replace(nothing, offsets={}, topic_ids={}, abandoned=tuple(abandoned))
    return replace(
        nothing,
        sequence=newest.sequence + 1,
        offsets=newest.offsets,
        topic_ids=newest.topic_ids,
        columns=newest.columns,
        partition_by=newest.partition_by,
        abandoned=tuple(abandoned),
    )


def commit_of_now(
    sequence: int,
    name: str,
    load_id: str,
    ranges: Sequence[OffsetRange],
    files: Sequence[DataFile],
    position: Position,
    gaps: Sequence[OffsetRange],
) -> Commit:
    """The commit that moved load `name` to `position`, with the clock's time."""
    return Commit(
        sequence=sequence,
        name=name,
        load_id=load_id,
        committed_at_ms=time.time_ns() // 1_000_000,
        ranges=tuple(ranges),
        files=tuple(files),
        offsets={name: position.offsets},
        topic_ids={name: position.topic_ids},
        gaps=tuple(gaps),
    )


def check_unmoved(
    name: str, place: str, current: Offsets, planned_from: Offsets, ranges: Sequence[OffsetRange]
) -> None:
    """Raises LoadConflictError unless load `name` is still where `ranges` were planned from."""
    gone = sorted(planned_from.keys() - current.keys())
    if gone:
        # Offsets only grow in number, but where a name is forgotten or a topic created again. What
        # else this load read may be in partitions of its own: it was not planned as a first load.
        raise LoadConflictError(
            f"{place} does not know any more where load {name!r} goes on in {gone[0].topic}-"
            f"{gone[0].partition}: the name was forgotten, or the topic recreated and loaded by "
            "another load, while this one was at work. Nothing of this load was published. Run it "
            "again to begin from what is known now."
        )
    for piece in ranges:
        key = piece.topic_partition
        if current.get(key) != planned_from.get(key):
            raise LoadConflictError(
                f"another load named {name!r} committed to {place} meanwhile: it moved "
                f"{piece.topic}-{piece.partition} from {planned_from.get(key)} to "
                f"{current.get(key)}. Nothing of this load was published. Run it again to go on "
                "from there, or give loads that run side by side different names and topics."
            )


def recreated_topics(position: Position, topic_ids: TopicIds) -> list[str]:
    """The topics of `position` that were deleted and created again since then: `topic_ids` are
    those of now."""
    before = position.topic_ids
    both = before.keys() & topic_ids.keys()
    return sorted(topic for topic in both if before[topic] != topic_ids[topic])


def without_recreated(
    position: Position,
    topic_ids: TopicIds,
    name: str,
    fail_on_data_loss: bool,
    begin_anew: str = "set the option failOnDataLoss to false",
) -> Offsets:
    """The offsets where load `name` goes on, from the beginning for topics that were deleted and
    created again since then: `topic_ids` are those of now. Without topics that it goes on without.

    Raises TopicRecreatedError for them, which says how to `begin_anew`, unless `fail_on_data_loss`
    is false. Where brokers say no ids, or the last commit has none, only a log that ends before its
    offsets gives that away.
    """
    position = position.without_deleted(topic_ids)
    recreated = recreated_topics(position, topic_ids)
    if not recreated:
        return position.offsets
    what = f"{', '.join(recreated)}: deleted and created again since the last commit of load"
    if fail_on_data_loss:
        raise TopicRecreatedError(
            f"{what} {name!r}, whose offsets mean other records now. To load what is there from "
            f"the beginning, {begin_anew}, or give the load another name."
        )
    _log.warning("%s %r. Loading what is there, because failOnDataLoss is false.", what, name)
    return {tp: 0 if tp.topic in recreated else n for tp, n in position.offsets.items()}


def ids_to_json(topic_ids: TopicIds) -> dict[str, str]:
    return {topic: str(topic_id) for topic, topic_id in sorted(topic_ids.items())}


def ids_from_json(topics: Mapping[str, str]) -> dict[str, UUID]:
    return {topic: UUID(topic_id) for topic, topic_id in topics.items()}


def ranges_to_json(ranges: Sequence[OffsetRange]) -> list[list[str | int]]:
    """As people read it: topic, partition, first offset, offset after the last one."""
    return [[r.topic, r.partition, r.start_offset, r.until_offset] for r in sorted(ranges)]


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

    def read(self, sequence: int) -> Commit:
        name = _file_name(sequence)
        content = self._files.read_commit(name)
        try:
            return decode(content, sequence)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TargetError(
                f"{self._files.path_of(f'_kafkalog/commits/{name}')} is not an intact commit of "
                f"kafkalog ({_reason(error)}), so it is unknown up to where this target was "
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
        "gaps": [asdict(piece) for piece in commit.gaps],
        "columns": dict(commit.columns),
        "partition_by": list(commit.partition_by),
        "abandoned": list(commit.abandoned),
    }
    return json.dumps({**fields, "crc32": checksum(fields)}, indent=1).encode() + b"\n"


def decode(content: bytes, sequence: int) -> Commit:
    """The commit in a file's `content`; ValueError, KeyError or TypeError when it is not one."""
    fields = json.loads(content)
    if fields["format"] != FORMAT:
        raise ValueError(f"its format is {fields['format']!r}")
    if fields["version"] > VERSION:
        raise TargetError(
            f"commit {sequence} has version {fields['version']}, this pyspark-kafkalog knows "
            f"{VERSION}: upgrade pyspark-kafkalog to load into this target"
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
