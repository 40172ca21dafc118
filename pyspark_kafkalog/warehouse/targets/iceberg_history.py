"""What the snapshots of an Iceberg table tell of a load, as far back as they are kept.

To roll a table back takes rows of later snapshots away and leaves its properties, so a load would
go on beyond what the table holds. The summary of each snapshot of a load says which ranges it
brought (`kafkalog.name`, `kafkalog.ranges`).

Called by iceberg.py and iceberg_upkeep.py. Changes nothing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafka.structs import TopicPartition
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.warehouse.targets.rewound import SAID_BY

NAME, FORGOTTEN, RANGES = "kafkalog.name", "kafkalog.forgotten", "kafkalog.ranges"


def is_named(table: Table, name: str) -> bool:
    """Whether a snapshot says that it is of load `name`."""
    return any(_said(snapshot, NAME) == name for snapshot in table.snapshots())


def ends_in_snapshots(snapshots: Iterable[Snapshot], name: str) -> Offsets:
    """Where the ranges of a load end in `snapshots`, oldest first."""
    ends: dict[TopicPartition, int] = {}
    for snapshot in snapshots:
        if _said(snapshot, FORGOTTEN) == name:
            ends.clear()
        if _said(snapshot, NAME) == name:
            ends |= {where: end for where, _, end in _ranges(snapshot)}
    return ends


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Where the rows of a load end in a table that was rolled back to before its last commit.
    `unknown` are partitions of which no snapshot tells that any more."""

    ends: Offsets
    unknown: Sequence[TopicPartition]


def rolled_back(table: Table, name: str, offsets: Offsets) -> RolledBack | None:
    """How the table lacks rows of load `name`, which is to go on at `offsets`, as far as snapshots
    tell; None where it was not rolled back to before the load's last commit, or its owner has moved
    the load since then.
    """
    of_load = [
        each for each in table.snapshots() if name in (_said(each, NAME), _said(each, FORGOTTEN))
    ]
    last = max(of_load, key=_age, default=None)
    if last is None or _said(last, NAME) != name:
        return None
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    there = list(lineage(by_id, table.metadata.current_snapshot_id))
    ends = ends_in_snapshots(reversed(there), name)
    # What a snapshot brought that has expired is not among the ends.
    untold = sorted(offsets.keys() - ends.keys())
    if last in there:
        # Else the snapshot that took the load further is gone: it expired after the table went
        # back.
        is_behind = any(offsets.get(key, end) > end for key, end in ends.items())
        return RolledBack(ends, untold) if is_behind else None
    if any(offsets.get(key) != end for key, end in ends_in_snapshots([last], name).items()):
        return None
    before, ids = list(lineage(by_id, last.snapshot_id)), _with_parents(there)
    if ids.isdisjoint(_with_parents(before)):
        heads = (ref.snapshot_id for ref in table.refs().values())
        is_kept = any(last in lineage(by_id, head) for head in heads)
        if _is_replaced(last, there, before, is_kept):
            return None
        return RolledBack(ends, untold)
    starts = _starts([each for each in reversed(before) if each.snapshot_id not in ids], name)
    if starts is None:
        return RolledBack(ends, untold)
    ends = {**{each: starts.get(each, offsets[each]) for each in untold}, **ends}
    # A commit may have brought nothing.
    return None if ends == offsets else RolledBack(ends, [])


def _is_replaced(
    last: Snapshot, there: Sequence[Snapshot], before: Sequence[Snapshot], is_kept: bool
) -> bool:
    """Whether a table that has nothing in common with the lineage `before` of a snapshot was
    replaced as a whole, and did not go back to an ancestor, between which and `last` some expired.
    `is_kept`: a branch or a tag keeps `last`.
    """
    if any(_age(each) < _age(last) for each in there):
        # As the last one would be among them.
        return False
    if not there or before[-1].parent_snapshot_id or there[-1].parent_snapshot_id:
        return True
    # Some who expire snapshots take parents out that are gone. By age, what is between the last one
    # and the current one would be there.
    # Format version 1 does not count them.
    return is_kept or (before[-1].sequence_number or 0) <= 1


def _with_parents(snapshots: Iterable[Snapshot]) -> set[int | None]:
    """The ids of a lineage, and of the parent that its first one had, which has expired: two that
    have it in common are branches."""
    found = {id for each in snapshots for id in (each.snapshot_id, each.parent_snapshot_id)}
    return found - {None}


def _starts(snapshots: Iterable[Snapshot], name: str) -> Offsets | None:
    """Where a load was before `snapshots`, oldest first, of the partitions that it moved in them;
    None where it went back, or started over."""
    starts: dict[TopicPartition, int] = {}
    for snapshot in snapshots:
        if _said(snapshot, FORGOTTEN) == name:
            return None
        if _said(snapshot, NAME) == name:
            if _said(snapshot, SAID_BY):
                return None
            for where, start, _ in _ranges(snapshot):
                starts.setdefault(where, start)
    return starts


def _ranges(snapshot: Snapshot) -> Iterator[tuple[TopicPartition, int, int]]:
    """Where each partition's offsets begin and end that a load brought with it."""
    for topic, partition, start, end in json.loads(_said(snapshot, RANGES) or "[]"):
        yield TopicPartition(topic, partition), start, end


def _said(snapshot: Snapshot, key: str) -> str | None:
    return snapshot.summary.get(key) if snapshot.summary else None


def _age(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def lineage(by_id: Mapping[int, Snapshot], snapshot_id: int | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors that are kept, newest first."""
    while snapshot_id is not None and (snapshot := by_id.get(snapshot_id)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id
