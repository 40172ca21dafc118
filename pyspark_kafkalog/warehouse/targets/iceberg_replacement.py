"""A snapshot of an Iceberg table in which some of its files take the place of others.

Tried on one state of the table, or not at all. Called by iceberg_upkeep.py, where the rows are the
same, and iceberg_rewind.py, where some are gone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import Record

from pyspark_kafkalog.warehouse.commit import DataFile, Stage
from pyspark_kafkalog.warehouse.targets.iceberg_files import data_files, file_url, partition_of
from pyspark_kafkalog.warehouse.targets.iceberg_transaction import (
    IN_MEMORY,
    commit_transaction,
    require_unaltered,
)
from pyspark_kafkalog.warehouse.targets.upkeep import Merge

_STAGE = "kafkalog.stage"


@dataclass(frozen=True, slots=True)
class Said:
    """What a snapshot says of itself, and which properties the table gets with it."""

    operation: Operation
    summary: Mapping[str, str]
    properties: Mapping[str, str] = field(default_factory=dict)
    alter: Callable[[Transaction], None] = lambda transaction: None
    """Changes the table's columns, for the files that are written."""


def replace_files(
    newest: Callable[[], Table],
    table: Table,
    stage: Stage,
    merges: Sequence[Merge],
    said: Said,
) -> int | None:
    """The snapshot in which the files of `merges` go, and what was written in `stage` comes; None
    where another one followed the state of `table`. `newest` gives its newest one."""
    base = table.metadata_location
    table.metadata.properties.update(IN_MEMORY)
    transaction = table.transaction()
    if said.properties:
        transaction.set_properties(dict(said.properties))
    require_unaltered(table, transaction)
    said.alter(transaction)
    files = {
        file_url(table, stage, file.name): (file, _partition_of(table, merge, file))
        for merge in merges
        for file in merge.written
    }
    summary = {**said.summary, _STAGE: stage.load_id}
    with _ReplaceFiles(transaction, said.operation, summary) as update:
        for merge in merges:
            for old in merge.files:
                update.delete_data_file(old.source)
        for new in data_files(table, transaction.table_metadata.schema(), stage, files):
            update.append_data_file(new)
    try:
        commit_transaction(table, transaction)
    except Exception as error:
        # pyiceberg's errors have no root of their own. Whatever it was, the commit may be there
        # and its answer lost.
        found = newest()
        published = _snapshot_of(found, stage)
        if published is None and (
            not isinstance(error, CommitFailedException) or found.metadata_location == base
        ):
            raise
        return published
    return _snapshot_of(table, stage)


def _partition_of(table: Table, merge: Merge, file: DataFile) -> Record:
    """Files that take no other's place are in a table without partitions."""
    if merge.files:
        partition: Record = merge.files[0].source.partition
        return partition
    return partition_of(table, table.schema(), file)


def _snapshot_of(table: Table, stage: Stage) -> int | None:
    """The one that brought the files of a stage."""
    found = (each for each in table.snapshots() if _stage_of(each) == stage.load_id)
    return next((each.snapshot_id for each in found), None)


class _ReplaceFiles(_OverwriteFiles):
    """A snapshot with other files, perhaps of the same rows, which pyiceberg has no word for."""

    def __init__(
        self, transaction: Transaction, operation: Operation, summary: dict[str, str]
    ) -> None:
        io = transaction._table.io
        super().__init__(Operation.OVERWRITE, transaction, io, snapshot_properties=summary)
        self._said_operation = operation

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        summary = super()._summary(dict(snapshot_properties))
        return Summary(self._said_operation, **summary.additional_properties)


def _stage_of(snapshot: Snapshot) -> str | None:
    return snapshot.summary.get(_STAGE) if snapshot.summary else None
