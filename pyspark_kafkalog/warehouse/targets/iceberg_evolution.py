"""An Iceberg table's columns when rows with other ones are added, in the same swap of metadata.

Files are written with the field ids that new columns are going to have: ids are given in order, so
whoever computes them again from the same table finds the same ones, and from a table that others
have changed meanwhile finds out (iceberg_rules.refuse_other_ids). Promotions are those of format
version 2: int to long, float to double, decimals of more digits before the point.

Called by iceberg.py alone.
"""

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.schema import UpdateSchema

from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.row_types import storable
from pyspark_kafkalog.warehouse.rows.schema_change import (
    joined,
    joined_type,
    plain,
    refuse_spellings,
)


def joined_columns(table: Table, schema: pa.Schema, change: SchemaChange) -> pa.Schema:
    """The columns of rows as files get them, without ids."""
    if not change.adds:
        return storable(schema)
    there = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return joined(there, storable(schema), change, _promotes)


def changed_schema(table: Table, schema: pa.Schema, change: SchemaChange) -> Schema:
    """The table's columns as a commit of rows with those of `schema` leaves them. Raises
    TargetError for what it cannot get."""
    wanted = _changes(table, schema, change)
    if not wanted:
        return table.schema()
    return _update(table.transaction(), wanted)._apply()


def change_schema(
    transaction: Transaction, table: Table, schema: pa.Schema, change: SchemaChange
) -> None:
    """Makes the same changes part of a transaction, if there are any."""
    wanted = _changes(table, schema, change)
    if wanted:
        _update(transaction, wanted).commit()


def _changes(table: Table, schema: pa.Schema, change: SchemaChange) -> list[pa.Field]:
    """The columns that are new, or get another type."""
    if not change.adds:
        return []
    there = schema_to_pyarrow(table.schema(), include_field_ids=False)
    identifier = ".".join(table.name())
    refuse_spellings(there.names, schema.names, f"the Iceberg table {identifier}")
    return [
        field
        for field in joined(there, storable(schema), change, _promotes)
        if field.name not in there.names
        or _becomes(plain(there.field(field.name).type), field.type, change)
    ]


def _becomes(there: pa.DataType, wanted: pa.DataType, change: SchemaChange) -> bool:
    """Whether a column gets another type. What it cannot get, the table's rules refuse."""
    return bool(there != wanted and joined_type(there, wanted, change, _promotes) == wanted)


def _update(transaction: Transaction, wanted: list[pa.Field]) -> UpdateSchema:
    return transaction.update_schema().union_by_name(pa.schema(wanted))


def _promotes(there: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_decimal(there) and pa.types.is_decimal(wanted):
        return bool(there.scale == wanted.scale and there.precision < wanted.precision)
    return (there, wanted) in (
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
    )
