"""What the snapshots of an Iceberg table tell of a load, as far back as they are kept.

To roll a table back takes rows of later snapshots away and leaves its properties, so a load would
go on beyond what the table holds. The summary of each snapshot of a load says which ranges it
brought (`kafkalog.name`, `kafkalog.ranges`).

Called by iceberg.py and iceberg_upkeep.py. Changes nothing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from kafka.structs import TopicPartition
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from pyspark_kafkalog.source.offsets import Offsets

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
            for topic, partition, _, end in json.loads(_said(snapshot, RANGES) or "[]"):
                ends[TopicPartition(topic, partition)] = end
    return ends


def rolled_back(table: Table, name: str, offsets: Offsets) -> Offsets | None:
    """Where the rows of load `name`, which is to go on at `offsets`, end in a table that was rolled
    back to before the load's last commit, as far as snapshots tell; None where it was not, or its
    owner has moved the load since then.
    """
    of_load = [
        each for each in table.snapshots() if name in (_said(each, NAME), _said(each, FORGOTTEN))
    ]
    last = max(of_load, key=_age, default=None)
    if last is None or _said(last, NAME) != name:
        return None
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    there = list(lineage(by_id, table.metadata.current_snapshot_id))
    ids = {snapshot.snapshot_id for snapshot in there}
    before = [each.snapshot_id for each in lineage(by_id, last.snapshot_id)]
    left = ends_in_snapshots(reversed(there), name)
    if last.snapshot_id in ids:
        # Else the snapshot that took the load further is gone: it expired after the table went
        # back.
        return left if any(offsets.get(key, end) > end for key, end in left.items()) else None
    # Else it is no ancestor that the table went back to: it was replaced as a whole.
    if ids.isdisjoint(before):
        return None
    if any(offsets.get(key) != end for key, end in ends_in_snapshots([last], name).items()):
        return None
    return left


def _said(snapshot: Snapshot, key: str) -> str | None:
    return snapshot.summary.get(key) if snapshot.summary else None


def _age(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def lineage(by_id: Mapping[int, Snapshot], snapshot_id: int | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors that are kept, newest first."""
    while snapshot_id is not None and (snapshot := by_id.get(snapshot_id)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id
