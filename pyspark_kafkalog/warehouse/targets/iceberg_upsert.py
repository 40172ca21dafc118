"""Upserts into an Iceberg table: files are replaced in the snapshot that comes with the properties.

    snapshot `overwrite`               without delete files: rows are written anew
    table property `kafkalog.upsert`   how the table is upserted (upserted.Upserted)
    LOCATION/_kafkalog_deleted/UUID/   deleted_keys.py

The keys stay there whatever `write.data.path` becomes, not below `data`, where Trino removes all
that no snapshot names. They are those of the table with that UUID: a location may be given to
another one when its table was dropped.

Tables with delete files are refused: a row may be gone already. Called by iceberg.py, and
iceberg_rewind.py, which asks whether a table is upserted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.source.offsets import Offsets
from pyspark_kafkalog.warehouse.commit import Stage
from pyspark_kafkalog.warehouse.rows.upserts import Upsert, table_columns
from pyspark_kafkalog.warehouse.targets.deleted_keys import DIRECTORY, DeletedKeys
from pyspark_kafkalog.warehouse.targets.iceberg_evolution import change_schema
from pyspark_kafkalog.warehouse.targets.iceberg_place import place_at
from pyspark_kafkalog.warehouse.targets.iceberg_replacement import Said, replace_files
from pyspark_kafkalog.warehouse.targets.iceberg_upkeep import (
    all_files,
    by_id,
    by_mapped_name,
    file_schema,
    fits_in,
    has_ids,
    new_stage,
)
from pyspark_kafkalog.warehouse.targets.upkeep import Columns, LiveFile
from pyspark_kafkalog.warehouse.targets.upserted import (
    PROPERTY,
    Upserted,
    refuse_other_mode,
    upserted_by,
)
from pyspark_kafkalog.warehouse.targets.upserted_files import Change, check_columns, together


def upserted(table: Table) -> Upserted | None:
    """How the table is upserted; None where it is appended to, or nothing was loaded."""
    return Upserted.of_properties(table.metadata.properties)


def check_mode(
    table: Table, upsert: Upsert | None, schema: pa.Schema, is_loaded: bool, identifier: str
) -> None:
    """Raises TargetError unless rows with such columns can go into the table in this way, which is
    to append where `upsert` is None; `is_loaded`: a load has a place in it."""
    recorded = upserted(table)
    refuse_other_mode(recorded, upsert, schema, is_loaded, identifier)
    if upsert is not None:
        ids = recorded.ids if recorded else {}
        # A column of another id is another column.
        there = [
            field.name
            for field in table.schema().fields
            if ids.get(field.name, field.field_id) == field.field_id
        ]
        check_columns(recorded, schema, there, f"the Iceberg table {identifier}")


def deleted_keys(table: Table, passed: Offsets) -> DeletedKeys:
    place = place_at(".".join(table.name()), table.location(), table.io.properties)
    return DeletedKeys(place, passed, f"{DIRECTORY}/{table.metadata.table_uuid}")


def known_deleted_keys(table: Table, passed: Offsets) -> DeletedKeys:
    """Raises TargetError where they are lost."""
    found = deleted_keys(table, passed)
    found.check_there(upserted(table))
    return found


class UpsertedIceberg:
    """A table as one upsert sees it: see upserted_files.UpsertedTable. `schema` are its columns as
    the commit leaves them; loads have `passed` these offsets."""

    def __init__(self, table: Table, schema: Schema, passed: Mapping[str, Offsets]) -> None:
        self._table = table
        self._schema = schema
        self._name = ".".join(table.name())
        self.passed = passed

    def deleted(self) -> DeletedKeys:
        return known_deleted_keys(self._table, together(self.passed))

    def files(self) -> Sequence[tuple[LiveFile, str | None]]:
        found = all_files(self._table)
        if found is None:
            raise TargetError(
                f"the Iceberg table {self._name} has delete files, which its own engine has to "
                "apply before its rows can be told: nothing was committed. Have it rewrite the "
                "files, and drop those (in Spark: CALL system.rewrite_data_files twice, with the "
                "options rewrite-all and remove-dangling-deletes true; the second time drops "
                "them), and run the load again"
            )
        return found

    def schema(self) -> pa.Schema:
        schema = file_schema(self._schema)
        if schema is None:
            raise TargetError(
                f"the Iceberg table {self._name} has columns of types that loads do not write, and "
                "an upsert writes rows anew: name another table"
            )
        return schema

    def columns(self, schema: pa.Schema) -> Columns:
        """Files that others have added may have no field ids: of these the table's mapping of names
        tells the columns."""
        ids, names = by_id(schema), by_mapped_name(schema, self._table.name_mapping())

        def where(there: pa.Schema) -> Sequence[int | None]:
            return ids(there) if has_ids(there) else names(there)

        return where

    def fits(self, file: LiveFile, schema: pa.Schema) -> bool:
        return fits_in(file, schema)

    def stage(self, schema: pa.Schema) -> Stage:
        return new_stage(self._table, schema)

    def publish(
        self,
        newest: Callable[[], Table],
        change: Change,
        staged: Stage,
        properties: Mapping[str, str],
        summary: Mapping[str, str],
    ) -> int | None:
        """The snapshot of the rows of a stage, which `change` has written; None where it did not
        follow this state of the table, but another one did."""
        recorded = upserted(self._table)
        assert staged.upsert is not None
        now = upserted_by(recorded, staged.upsert, staged.schema, change.deletes)
        named = now.columns
        ids = {each.name: each.field_id for each in self._schema.fields if each.name in named}
        now = replace(now, ids=ids)

        def alter(transaction: Transaction) -> None:
            if change.merges:
                rows = table_columns(staged.schema, staged.upsert)
                change_schema(transaction, self._table, rows, staged.change)

        said = Said(
            Operation.OVERWRITE if change.merges else Operation.APPEND,
            summary,
            {**properties, PROPERTY: now.to_json()},
            alter,
        )
        return replace_files(newest, self._table, change.stage, change.merges, said)
