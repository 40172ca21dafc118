"""Commits as values: what passes between tasks, driver and every kind of target.

A DataFile is written in a Stage; a PendingCommit is what a load wants published, from the Position
where its name goes on; a Commit is what was. Also owns what follows from positions alone: what a
load gives up, when it conflicts with another one, and which topics were recreated.

Never reads or writes anything, never imports Spark or Arrow, nor another module of the warehouse
but for values that commits carry.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import LoadConflictError, TopicRecreatedError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.caught_up import NO_CAUGHT, Caught
from pyspark_kafkalog.warehouse.rows.allowed_change import UNSAID, SchemaChange

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.warehouse.rows.layout import Partitioning
    from pyspark_kafkalog.warehouse.rows.upserts import Upsert

_log = logging.getLogger(__name__)


TopicIds = Mapping[str, UUID]
Epochs = Mapping[TopicPartition, int]
NO_IDS: TopicIds = {}
NO_EPOCHS: Epochs = {}
Marks = Mapping[TopicPartition, int]
NO_MARKS: Marks = {}
Queries = Mapping[TopicPartition, int]
NO_QUERIES: Queries = {}
_DELETED = b"deleted\0"
_T = TypeVar("_T")


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
    without `takes_nan` and `takes_infinity` no column such a number, and with `days` none a time on
    others, counted from 1970 on. `change` says what the commit may do to the table's columns. With
    `upsert` the rows take the place of older ones of their keys.
    """

    load_id: str
    path: str
    schema: "pa.Schema"
    suffix: str = ""
    partitioning: "Partitioning | None" = None
    takes_nul: bool = True
    takes_nan: bool = True
    takes_infinity: bool = True
    days: range | None = None
    change: SchemaChange = UNSAID
    upsert: "Upsert | None" = None


@dataclass(frozen=True, slots=True)
class Position:
    """Where a load name goes on: the next offset of each partition, and the ids that their topics
    had, as far as brokers said them; `epochs` are those of their leaders when they were planned,
    and `marks` tell which record was read last (marks.py). `queries` are those that moved each
    partition last, as far as queries did (sink/query_number.py), and `caught_up` tells of upserts
    since when tombstones are sure to be there (caught_up.py)."""

    offsets: Offsets
    topic_ids: TopicIds
    epochs: Epochs = field(default_factory=dict)
    marks: Marks = field(default_factory=dict)
    queries: Queries = field(default_factory=dict)
    caught_up: Caught = field(default_factory=dict)

    def moved(
        self,
        ranges: Sequence[OffsetRange],
        topic_ids: TopicIds,
        epochs: Epochs = NO_EPOCHS,
        marks: Marks = NO_MARKS,
        queries: Queries = NO_QUERIES,
        caught_up: Caught = NO_CAUGHT,
    ) -> "Position":
        """This position, with each partition moved to the end of its last piece in `ranges`, and
        with its epoch in `epochs` and mark in `marks`, or without one, and its query in `queries`
        and what `caught_up` tells of it, or what it had.

        That may lie before the old offset: where a topic was recreated and the user chose to go
        on. A topic with another id than before keeps nothing of what was.
        """
        kept = self._kept(ranges, topic_ids)
        ends = {piece.topic_partition: piece.until_offset for piece in sorted(ranges)}
        return Position(
            {**kept.offsets, **ends},
            kept.topic_ids,
            _moved(kept.epochs, epochs, ends),
            _moved(kept.marks, marks, ends),
            {**kept.queries, **queries},
            {**kept.caught_up, **caught_up},
        )

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
        return self._of(lambda each: each.topic not in gone, there)

    def check_back(self, topics: Collection[str], name: str, ways_on: str) -> None:
        """Raises TopicRecreatedError for those of `topics` that load `name` was told to go on
        without. They are there again, without an id that a commit could keep, which so could not
        say that their offsets count from now on: they would be loaded again and again."""
        back = sorted(topic for topic in topics if _is_deleted(self.topic_ids.get(topic)))
        if back:
            raise TopicRecreatedError(
                f"{', '.join(back)}: deleted, as load {name!r} has recorded, and created again. "
                f"Which topic that is now, only its id tells: {ways_on}."
            )

    def _kept(self, ranges: Sequence[OffsetRange], topic_ids: TopicIds) -> "Position":
        """What holds still for topics that have `topic_ids` now, with these."""
        topics = {piece.topic for piece in ranges}
        ids = {**self.topic_ids, **{t: one for t, one in topic_ids.items() if t in topics}}
        offsets = {
            key
            for key in self.offsets
            if _is_same(self.topic_ids.get(key.topic), ids.get(key.topic))
        }
        return self._of(offsets.__contains__, ids)

    def _of(self, holds: Callable[[TopicPartition], bool], topic_ids: TopicIds) -> "Position":
        """All that is known of the partitions of which `holds` is true, with these ids."""

        def only(known: Mapping[TopicPartition, _T]) -> dict[TopicPartition, _T]:
            return {each: one for each, one in known.items() if holds(each)}

        return Position(
            only(self.offsets),
            topic_ids,
            only(self.epochs),
            only(self.marks),
            only(self.queries),
            only(self.caught_up),
        )


NOWHERE = Position({}, NO_IDS)

OTHER_NAME = "give the load another name"
"""What a user may do who wants to load all of a topic again, in rows of their own."""


def _moved(
    kept: Mapping[TopicPartition, int], new: Mapping[TopicPartition, int], ends: Offsets
) -> dict[TopicPartition, int]:
    """What is known of partitions of which those of `ends` have moved."""
    left = {each: one for each, one in kept.items() if each not in ends}
    return {**left, **{each: new[each] for each in ends if each in new}}


def deleted(topic_id: UUID) -> UUID:
    """The id that a topic has for a load that goes on without it. No topic has it, and it tells
    the one that was from any other: half of it is the id's own."""
    return UUID(bytes=_DELETED + topic_id.bytes[len(_DELETED) :])


def _is_deleted(topic_id: UUID | None) -> bool:
    return topic_id is not None and topic_id.bytes.startswith(_DELETED)


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
class PendingCommit:
    """What a load wants published in one step: the `files` of a stage, and that `name` has passed
    `ranges`.

    `planned_from` is where the target said that the name goes on when the ranges were planned, and
    `topic_ids` are those of their topics, as far as brokers say them, as are the `epochs` of their
    partitions' leaders; `marks` are of the ranges' ends, and `queries` those that move partitions.
    `caught_up` is of these partitions, where their rows are upserted.
    """

    stage: Stage
    name: str
    planned_from: Position
    ranges: Sequence[OffsetRange]
    files: Sequence[DataFile]
    topic_ids: TopicIds = field(default_factory=dict)
    epochs: Epochs = field(default_factory=dict)
    marks: Marks = field(default_factory=dict)
    queries: Queries = field(default_factory=dict)
    caught_up: Caught = field(default_factory=dict)

    def check_unmoved(self, current: Position, target: str) -> None:
        """Raises LoadConflictError unless the name is still where the ranges were planned from:
        it goes on at `current` now, in `target`."""
        planned, now = self.planned_from.offsets, current.offsets
        gone = sorted(planned.keys() - now.keys())
        if gone:
            # Offsets only grow in number, but where a name is forgotten or a topic created again.
            # What else this load read may be in partitions of its own: it was not planned as a
            # first load.
            raise LoadConflictError(
                f"{target} does not know any more where load {self.name!r} goes on in "
                f"{gone[0].topic}-{gone[0].partition}: the name was forgotten, or the topic "
                "recreated and loaded by another load, while this one was at work. Nothing of this "
                "load was published. Run it again to begin from what is known now."
            )
        for piece in self.ranges:
            key = piece.topic_partition
            if now.get(key) != planned.get(key):
                raise LoadConflictError(
                    f"another load named {self.name!r} committed to {target} meanwhile: it moved "
                    f"{piece.topic}-{piece.partition} from {planned.get(key)} to "
                    f"{now.get(key)}. Nothing of this load was published. Run it again to go "
                    "on from there, or give loads that run side by side different names and topics."
                )
            if not self._is_topic(piece.topic, current.topic_ids.get(piece.topic)):
                raise LoadConflictError(
                    f"another load named {self.name!r} committed to {target} meanwhile: it found "
                    f"{piece.topic} created again, and the same offset means another record now. "
                    "Nothing of this load was published. Run it again to go on from there."
                )

    def _is_topic(self, topic: str, now: UUID | None) -> bool:
        """Whether offsets with the id `now` are those of the topic that was planned from. It may
        have been marked meanwhile as one to go on without, or be back, or have got its id by a
        rival."""
        planned = self.planned_from.topic_ids.get(topic)
        if planned is None:
            return now in (None, self.topic_ids.get(topic))
        return now == deleted(planned) or (now is not None and _is_same(planned, now))

    def step_from(self, current: Position) -> "Step":
        """What becomes of the name when it goes on at `current`."""
        return Step(
            current.moved(
                self.ranges,
                self.topic_ids,
                self.epochs,
                self.marks,
                self.queries,
                self.caught_up,
            ),
            current.gaps(self.ranges, self.topic_ids),
        )

    def committed(self, sequence: int, step: "Step") -> "Commit":
        """What was published as the target's number `sequence`, with the clock's time."""
        return Commit(
            sequence=sequence,
            name=self.name,
            load_id=self.stage.load_id,
            committed_at_ms=now_ms(),
            ranges=tuple(self.ranges),
            files=tuple(self.files),
            offsets={self.name: step.position.offsets},
            topic_ids={self.name: step.position.topic_ids},
            gaps=tuple(step.gaps),
            epochs={self.name: step.position.epochs},
            marks={self.name: step.position.marks},
            queries={self.name: step.position.queries},
            caught_up={self.name: step.position.caught_up} if self.stage.upsert is not None else {},
        )


@dataclass(frozen=True, slots=True)
class Step:
    """By what a commit moves a load name: where it goes on then, and the offsets given up."""

    position: Position
    gaps: Sequence[OffsetRange]


@dataclass(frozen=True, slots=True)
class Commit:
    """One published load.

    `sequence` is the target's own number of it: a Parquet target counts its commits, the others say
    in their heads what theirs is. `load_id` names the staging directory that the files came from.
    `offsets` holds the next offset of every partition of this load's name, `topic_ids` the ids that
    their topics had, `epochs` those of their leaders, as far as brokers said them, `marks` which
    records were read last, `queries` which queries moved them; in a Parquet target, those of every
    other name too. `gaps` are the offsets that this load gave up, because
    they were gone. Of a Parquet target alone: `columns`, the Arrow type of every column that any of
    its files has, `partition_by`, what the last files were partitioned by, and `abandoned`, the
    staging directories of dead loads that this commit declared unable to commit. Of an upsert
    alone: `caught_up`.
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
    epochs: Mapping[str, Epochs] = field(default_factory=dict)
    marks: Mapping[str, Marks] = field(default_factory=dict)
    queries: Mapping[str, Queries] = field(default_factory=dict)
    caught_up: Mapping[str, Caught] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()

    @property
    def commit_id(self) -> str:
        """What a person calls it: the number as text."""
        return str(self.sequence)

    def position(self, name: str) -> Position:
        """Where a load `name` goes on after this commit, which knows of it."""
        return Position(
            self.offsets.get(name, {}),
            self.topic_ids.get(name, NO_IDS),
            self.epochs.get(name, NO_EPOCHS),
            self.marks.get(name, NO_MARKS),
            self.queries.get(name, NO_QUERIES),
            self.caught_up.get(name, NO_CAUGHT),
        )


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What a target's history tells of a commit: whose it was, its number as text, its time, and
    the offsets that it gave up."""

    name: str
    commit_id: str
    committed_at_ms: int
    gaps: tuple[OffsetRange, ...]


def now_ms() -> int:
    """The clock's time, as commits have it."""
    return time.time_ns() // 1_000_000


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
    other_load: str = OTHER_NAME,
) -> Offsets:
    """The offsets where load `name` goes on, from the beginning for topics that were deleted and
    created again since then: `topic_ids` are those of now. Without topics that it goes on without.

    Raises TopicRecreatedError for them, unless `fail_on_data_loss` is false. It says how to
    `begin_anew`, and how to make an `other_load` of them. Where brokers say no ids, or the last
    commit has none, only a log that ends before its offsets gives that away.
    """
    position = position.without_deleted(topic_ids)
    recreated = recreated_topics(position, topic_ids)
    if not recreated:
        return position.offsets
    what = f"{', '.join(recreated)}: deleted and created again since the last commit of load"
    if fail_on_data_loss:
        raise TopicRecreatedError(
            f"{what} {name!r}, whose offsets mean other records now. To load what is there from "
            f"the beginning, {begin_anew}, or {other_load}."
        )
    _log.warning("%s %r. Loading what is there, because failOnDataLoss is false.", what, name)
    return {each: 0 if each.topic in recreated else n for each, n in position.offsets.items()}


def ids_to_json(topic_ids: TopicIds) -> dict[str, str]:
    return {topic: str(topic_id) for topic, topic_id in sorted(topic_ids.items())}


def ids_from_json(topics: Mapping[str, str]) -> dict[str, UUID]:
    return {topic: UUID(topic_id) for topic, topic_id in topics.items()}


def ranges_to_json(ranges: Sequence[OffsetRange]) -> list[list[str | int]]:
    """As people read it: topic, partition, first offset, offset after the last one."""
    return [[r.topic, r.partition, r.start_offset, r.until_offset] for r in sorted(ranges)]


def ranges_from_json(ranges: Sequence[tuple[str, int, int, int]]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*each) for each in ranges)
