"""How a table is upserted, whatever its kind: what is kept of it, and who may go on with it.

A table belongs to one way of loading: which columns make a key, what they hold, and by what rows
are ordered. Of two loads of one partition the later commit may be the older record, so one alone
has a place in it.

Values and rules; reads and writes nothing.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafkalog.errors import (
    InvalidRowError,
    LoadConflictError,
    OtherModeError,
    TargetError,
)
from pyspark_kafkalog.warehouse.commit import PendingCommit
from pyspark_kafkalog.warehouse.rows.upserts import Upsert, table_columns

PROPERTY = "kafkalog.upsert"
"""Of a Delta or Iceberg table."""


@dataclass(frozen=True, slots=True)
class Upserted:
    """How a table is upserted, and the columns that loads have filled, each with what it holds
    where `how` names it; `ids` are the field ids of its `columns` in Iceberg. `has_deleted`: keys
    were deleted from a table of files."""

    how: Upsert
    kinds: Mapping[str, str | None]
    ids: Mapping[str, int] = field(default_factory=dict)
    has_deleted: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Those by which rows are told."""
        order = [self.how.order_by] if self.how.order_by else []
        return tuple(dict.fromkeys((*self.how.key, *order, "topic", "partition")))

    def to_json(self) -> str:
        how = {"key": list(self.how.key), "order_by": self.how.order_by}
        ids = {"ids": dict(self.ids)} if self.ids else {}
        deleted = {"has_deleted": True} if self.has_deleted else {}
        return json.dumps({**how, "kinds": dict(self.kinds), **ids, **deleted})

    @classmethod
    def from_json(cls, text: str) -> "Upserted":
        said = json.loads(text)
        how = Upsert(tuple(said["key"]), said["order_by"])
        return cls(how, said["kinds"], said.get("ids", {}), said.get("has_deleted", False))

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> "Upserted | None":
        """What a table's properties say; None where it is appended to, or nothing was loaded."""
        text = properties.get(PROPERTY)
        return cls.from_json(text) if text else None


def upserted_by(
    recorded: Upserted | None, upsert: Upsert, schema: pa.Schema, deletes: bool = False
) -> Upserted:
    """What is to be kept of a table once a load with staged files of `schema` has filled columns,
    too, and `deletes` keys or not; nothing is `recorded` before the first one."""
    filled = {**dict.fromkeys(table_columns(schema, upsert).names), **upsert.kinds(schema)}
    has_deleted = deletes or (recorded is not None and recorded.has_deleted)
    kinds = {**(recorded.kinds if recorded else {}), **filled}
    return Upserted(upsert, kinds, has_deleted=has_deleted)


def is_loaded(pending: PendingCommit, names: Iterable[str]) -> bool:
    """Whether a table had a load before this one was planned, or has another one among `names`."""
    return bool(pending.planned_from.offsets) or any(each != pending.name for each in names)


def refuse_other_mode(
    recorded: Upserted | None,
    upsert: Upsert | None,
    schema: pa.Schema,
    is_loaded: bool,
    table: str,
) -> None:
    """Raises OtherModeError unless the table is loaded as it was before. `upsert` None is append;
    `is_loaded`: a load has a place in it."""
    if recorded is not None and recorded.how != upsert:
        key, order = ", ".join(recorded.how.key), recorded.how.order_by
        raise OtherModeError(
            f"the table {table} is upserted by key {key}"
            f"{f' and order_by {order}' if order else ''}: load into it in the same way, or name "
            "another table"
        )
    if recorded is not None and upsert is not None:
        for name, kind in upsert.kinds(schema).items():
            if recorded.kinds[name] != kind:
                raise OtherModeError(
                    f"the table {table} is upserted by {name} with {recorded.kinds[name]}, "
                    f"and the rows have {kind}, which do not compare with them: give it the type "
                    "that it had, or name another table"
                )
    if recorded is None and upsert is not None and is_loaded:
        raise OtherModeError(
            f"rows were appended to the table {table}, which may have more than one of a key: "
            "name another table for mode upsert"
        )


def refuse_lost_keys(recorded: Upserted | None, there: Collection[str], target: str) -> None:
    """Raises TargetError where a column of the key, order or partition is gone. A load may add it
    again, but rows without a value in it are not found any more, and their keys would get other
    ones; or nobody knows of which partition they are."""
    for name in recorded.columns if recorded else ():
        if name not in there:
            raise TargetError(
                f"{target} was upserted by {name}, a column that it has no more, so its rows "
                "cannot be told: name another table"
            )


def refuse_other_loads(
    others: Iterable[tuple[str, Iterable[TopicPartition]]],
    partitions: Iterable[TopicPartition],
    table: str,
) -> None:
    """Raises LoadConflictError where one of the other loads has a place in one of the partitions
    that a load moves."""
    moved = set(partitions)
    for other, places in others:
        shared = sorted(moved.intersection(places))
        if shared:
            raise other_load(other, f"{shared[0].topic}-{shared[0].partition}", table)


def topics_alone(
    partitions: Iterable[TopicPartition], others: Iterable[Iterable[TopicPartition]]
) -> set[str]:
    """The topics of a load's partitions in which none of the other loads has a place."""
    shared = {each.topic for places in others for each in places}
    return {each.topic for each in partitions} - shared


def other_load(other: str, place: str, table: str) -> LoadConflictError:
    return LoadConflictError(
        f"load {other!r} has a place in {place} in the table {table} already, and of two "
        "loads of one partition the later commit may be the older record. Nothing was "
        f"published. Go on under that name, or forget it: pyspark_kafkalog.forget(target, "
        f"{other!r}) or kafkalog load --forget"
    )


def two_partitions(one: str, other: str) -> InvalidRowError:
    return InvalidRowError(
        f"{one} and {other} have records of one key, and nothing says which is newer. Nothing was "
        "published. Name a column that does in order_by (--order-by), such as timestamp, in a load "
        "into a new table; or write each key to one partition"
    )


def cannot_take_back(table: str) -> TargetError:
    """Of a rewind that is to delete rows."""
    return TargetError(
        f"the table {table} is upserted: a row that took the place of an older one "
        "cannot be taken back, so none are deleted after an offset; nothing was changed. "
        "Rewind without truncate_after: the records come again over the rows of their "
        "keys; delete before what is not to be seen meanwhile"
    )
