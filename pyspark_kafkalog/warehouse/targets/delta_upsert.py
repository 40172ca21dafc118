"""Upserts into a Delta table: files are replaced in the log entry that has the `txn`s.

    TABLE/_delta_log/...   an entry MERGE: metaData where the columns change, txns, removes, adds
    table property `kafkalog.upsert`   how the table is upserted (upserted.Upserted)
    TABLE/_kafkalog_deleted/   deleted_keys.py

Whoever streams the table stops at such an entry, unless it was told not to (skipChangeCommits).
Tables that may only be appended to, and those with a change feed, which would be told of rows that
stay, are refused. Called by delta.py alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema, Transaction

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.warehouse.commit import Stage
from pyspark_kafkalog.warehouse.rows.upserts import Upsert
from pyspark_kafkalog.warehouse.targets.deleted_keys import DeletedKeys
from pyspark_kafkalog.warehouse.targets.delta_entry import txn, write_entry
from pyspark_kafkalog.warehouse.targets.delta_evolution import metadata_of
from pyspark_kafkalog.warehouse.targets.delta_upkeep import (
    all_files,
    by_name,
    file_actions,
    fits_in,
    new_stage,
)
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace
from pyspark_kafkalog.warehouse.targets.upkeep import Columns, LiveFile
from pyspark_kafkalog.warehouse.targets.upserted import (
    PROPERTY,
    Upserted,
    refuse_other_mode,
    upserted_by,
)
from pyspark_kafkalog.warehouse.targets.upserted_files import Change, check_columns, together


def upserted(table: DeltaTable) -> Upserted | None:
    """How the table is upserted; None where it is appended to, or nothing was loaded."""
    return Upserted.of_properties(table.metadata().configuration)


def check_mode(
    table: DeltaTable, upsert: Upsert | None, schema: pa.Schema, is_loaded: bool, place: TablePlace
) -> None:
    """Raises TargetError unless rows with such columns can go into the table in this way, which is
    to append where `upsert` is None; `is_loaded`: a load has a place in it."""
    recorded, target = upserted(table), f"the Delta table {place}"
    refuse_other_mode(recorded, upsert, schema, is_loaded, str(place))
    if upsert is None:
        return
    for setting, what in (
        ("delta.appendOnly", "may only be appended to"),
        ("delta.enableChangeDataFeed", "has a change feed, which would be told of rows that stay"),
    ):
        if table.metadata().configuration.get(setting, "").lower() == "true":
            raise TargetError(
                f"{target} {what} ({setting} = true): mode upsert replaces files. Take that off, "
                "or name another table"
            )
    check_columns(recorded, schema, [field.name for field in table.schema().fields], target)


def deleted_keys(table: DeltaTable, place: TablePlace, passed: Offsets) -> DeletedKeys:
    """Raises TargetError where they are lost."""
    found = DeletedKeys(place, passed)
    found.check_there(upserted(table))
    return found


class UpsertedDelta:
    """A version of the table as one upsert sees it: see upserted_files.UpsertedTable. `schema` are
    its columns as the commit leaves them; loads have `passed` these offsets."""

    def __init__(
        self,
        table: DeltaTable,
        schema: Schema,
        place: TablePlace,
        passed: Mapping[str, Offsets],
    ) -> None:
        self._table = table
        self._schema = schema
        self._place = place
        self.passed = passed

    def deleted(self) -> DeletedKeys:
        return deleted_keys(self._table, self._place, together(self.passed))

    def files(self) -> Sequence[tuple[LiveFile, str | None]]:
        return all_files(self._table, self._place)

    def schema(self) -> pa.Schema:
        # What must not be null is found out of what was written.
        columns = pa.schema(self._schema.to_arrow())
        return pa.schema([field.with_nullable(True) for field in columns])

    def columns(self, schema: pa.Schema) -> Columns:
        return by_name(schema)

    def fits(self, file: LiveFile, schema: pa.Schema) -> bool:
        return fits_in(file, schema)

    def stage(self, schema: pa.Schema) -> Stage:
        return new_stage(self._place, schema)

    def write(
        self,
        change: Change,
        staged: Stage,
        transactions: Sequence[Transaction],
        said: Mapping[str, str],
    ) -> None:
        """The log entry that follows this version: of the rows of a stage, which `change` has
        written. Raises CommitFailedError where the version is taken."""
        table, version = self._table, self._table.version()
        recorded = upserted(table)
        assert staged.upsert is not None
        now = upserted_by(recorded, staged.upsert, staged.schema, change.deletes)
        actions: list[dict[str, Any]] = []
        if now != recorded or self._schema != table.schema():
            metadata = metadata_of(table, self._schema)
            metadata["configuration"] |= {PROPERTY: now.to_json()}
            actions.append({"metaData": metadata})
        actions += map(txn, transactions)
        actions += file_actions(change.stage, change.merges, changes_rows=True)
        info = {
            "operation": "MERGE",
            "operationParameters": {"predicate": "[]"},
            "readVersion": version,
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            **said,
        }
        write_entry(self._place, change.stage, version + 1, info, actions)
