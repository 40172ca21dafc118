"""What a rewind asks of a target, and what comes of it: a load name goes back to earlier offsets.

In one commit of the target, which a load of that name at work does not survive. Rows that the next
load would land a second time are refused, or deleted in that very commit. They are told by their
columns `topic`, `partition` and `offset`, which say nothing of the load that brought them: of a
partition in which another load has a place, none are deleted, nor are rows from beyond where the
load is, which are not its own.

Values and rules for all kinds of targets; reads and writes nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidOptionError, TargetError, WouldDoubleError
from pyspark_kafkalog.source.offsets import Offsets, describe
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.commit import Position

ORIGIN = ("topic", "partition", "offset")
"""The columns that say which record a row was made of."""

SAID_BY = "kafkalog.rewound"
"""What a commit says of itself in the history of a Delta or Iceberg table."""

_TYPES = (
    (pa.types.is_string,),
    (pa.types.is_int32, pa.types.is_int64),
    (pa.types.is_int64,),
)


def furthest(place: Offsets, rows: Offsets) -> Offsets:
    """Where a load may go on without doubling a row, in a table whose owner took it back: at its
    place, or where the rows end. They may end beyond that, with rows back that a rewind deleted."""
    return {**rows, **{each: max(offset, rows.get(each, 0)) for each, offset in place.items()}}


@dataclass(frozen=True, slots=True)
class Rewind:
    """Load `name` is to go on at `places`. One that lies beyond where it is, is an error where it
    is `exact`, and changes nothing otherwise. `truncates`: rows from there on are deleted."""

    name: str
    places: Offsets
    is_exact: bool = True
    truncates: bool = False

    def step_from(self, current: Position, target: str) -> "StepBack":
        """What becomes of the name when it goes on at `current`. Raises InvalidOptionError."""
        known = known_offsets(current, self.name, target)
        for each, place in sorted(self.places.items()) if self.is_exact else ():
            # A partition without a place has lost it since the user was told of it.
            if place > known.get(each, -1):
                raise InvalidOptionError(
                    f"load {self.name!r} goes on at offset {known.get(each)} of "
                    f"{describe([each])}, and is told to go back to {place}, which lies beyond "
                    "that: the records between would be left out"
                )
        places = {
            each: offset
            for each, offset in self.places.items()
            if each in known and offset <= known[each]
        }
        ranges = tuple(
            OffsetRange.of(each, offset, known[each])
            for each, offset in sorted(places.items())
            if offset < known[each]
        )
        moved = {piece.topic_partition for piece in ranges}
        # Epochs of a later offset hold for the earlier ones, too; a mark is of one offset. What is
        # passed once more by an upsert was applied, tombstones too.
        position = replace(
            current,
            offsets={**current.offsets, **places},
            marks={each: mark for each, mark in current.marks.items() if each not in moved},
        )
        return StepBack(position, places, {each: known[each] for each in places}, ranges)

    def check(self, step: "StepBack", rows: "RowsBeyond", target: str) -> None:
        """Raises WouldDoubleError for rows that are there and are not to be deleted, TargetError
        for such as must not be."""
        if not rows.all:
            return
        if not self.truncates:
            raise would_double(
                f"{target} has {rows.all:,} rows of {describe(step.places)} from the offsets on to "
                f"which load {self.name!r} is to go back, and would get them a second time; "
                "nothing was changed. To have them deleted in the same commit, truncate after "
                "these offsets (truncate_after=True, --truncate-after); to land the records a "
                f"second time, start over: pyspark_kafkalog.forget(target, {self.name!r}) or "
                "kafkalog load --forget, and then `starting` (--from) at these offsets",
                rows.all,
            )
        if rows.not_its_own:
            raise TargetError(
                f"{target} has {rows.not_its_own:,} rows of {describe(step.places)} from beyond "
                f"where load {self.name!r} is, which are not its own: of a load that was "
                "forgotten, or of a topic of that name before it was created again. Nothing was "
                "changed. Delete what is wrong of them yourself, and rewind then"
            )

    def refuse_others(self, step: "StepBack", loads: Iterable[tuple[str, Position]]) -> None:
        """Raises TargetError where another load has a place in a partition whose rows go."""
        for name, position in loads:
            shared = sorted(step.places.keys() & position.offsets.keys())
            if shared and name != self.name:
                raise self.not_alone(name, f"{shared[0].topic}-{shared[0].partition}")

    def not_alone(self, other: str, place: str) -> TargetError:
        return TargetError(
            f"load {other!r} has a place in {place}, too, and no row says which of the two brought "
            f"it: to delete after an offset would take what {other!r} does not land again. Nothing "
            "was changed. Delete the wrong rows yourself, and start over from there: "
            f"pyspark_kafkalog.forget(target, {self.name!r}) or kafkalog load --forget, and then "
            f"`starting` (--from) at the offsets; or forget {other!r}, if it is not to load again"
        )


@dataclass(frozen=True, slots=True)
class StepBack:
    """By what a rewind moves a load name: where it goes on then; of the partitions that it names,
    the `places` from which rows would be doubled, and where the load is `now`; and the `ranges`
    that are to be landed again, of those that move."""

    position: Position
    places: Offsets
    now: Offsets
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class RowsBeyond:
    """How many rows a table has from the places on, and of these from beyond where the load is."""

    all: int = 0
    not_its_own: int = 0


@dataclass(frozen=True, slots=True)
class Rewound:
    """What was done: the `ranges` that the next load lands again, and how many rows went."""

    ranges: Sequence[OffsetRange] = ()
    deleted_rows: int = 0


def known_offsets(current: Position, name: str, target: str) -> Offsets:
    """Where load `name`, which is at `current`, goes on in the topics that it goes on with. Raises
    InvalidOptionError for one that is nowhere."""
    known = current.without_deleted().offsets
    if not known:
        raise InvalidOptionError(f"{target} has no commit of load {name!r}")
    return known


def would_double(message: str, rows: int) -> WouldDoubleError:
    error = WouldDoubleError(message)
    error.rows = rows
    return error


def refuse_without_origin(schema: pa.Schema, target: str) -> None:
    """Raises TargetError for a table, with such columns, whose rows do not say what they are of."""
    for name, kinds in zip(ORIGIN, _TYPES, strict=True):
        index = schema.get_field_index(name)
        if index < 0 or not any(is_one(schema.field(index).type) for is_one in kinds):
            raise no_origin(target, f"it has no column {name} as loads make it")


def no_origin(target: str, why: str) -> TargetError:
    return TargetError(
        f"the rows of {target} do not say which records they were made of ({why}), so nobody can "
        "tell which ones a load that goes back would land a second time; nothing was changed. "
        "Delete them yourself, and start over from there: pyspark_kafkalog.forget or kafkalog load "
        "--forget, and then `starting` (--from) at the offsets"
    )


def cannot_cut(why: str) -> TargetError:
    """`why` begins with the table."""
    return TargetError(
        f"{why}: its rows cannot be told apart or deleted here, and nothing was changed. Delete "
        "those that are wrong with the table's own engine, and start over from there: "
        "pyspark_kafkalog.forget or kafkalog load --forget, and then `starting` (--from) at the "
        "offsets"
    )
