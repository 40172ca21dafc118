"""A Delta table's columns when rows with other ones are added, and the log entry that says both.

New columns, and new fields of structs, are added as nullable. No column gets another type: that
takes the table feature typeWidening, which deltalake does not write, so such tables are refused
(delta_rules.py). Rows of a narrower type can take the column's.

deltalake writes no `metaData` beside `add`s, so an entry with both is written here
(delta_entry.py).

Called by delta.py alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema, Transaction
from deltalake.schema import ArrayType, DataType, Field, MapType, StructType
from deltalake.transaction import AddAction

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.commit import Stage
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.schema_change import joined, refuse_spellings
from pyspark_kafkalog.warehouse.targets.delta_entry import add, txn, write_entry
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace

_TIME_WITHOUT_ZONE = '"timestamp_ntz"'


def joined_columns(table: DeltaTable, schema: pa.Schema, change: SchemaChange) -> pa.Schema:
    """The columns of rows as files get them."""
    if not change.adds:
        return schema
    return joined(pa.schema(table.schema().to_arrow()), schema, change)


def changed_schema(
    table: DeltaTable, schema: pa.Schema, change: SchemaChange, path: object
) -> Schema:
    """The table's columns as a commit of rows with those of `schema` leaves them. Raises
    TargetError for what it cannot get."""
    now = table.schema()
    if not change.adds:
        return now
    refuse_spellings((field.name for field in now.fields), schema.names, f"the Delta table {path}")
    wanted = {field.name: field for field in Schema.from_arrow(schema).fields}
    kept = [
        _extended(field, wanted[field.name].type) if field.name in wanted else field
        for field in now.fields
    ]
    names = {field.name for field in now.fields}
    changed = Schema([*kept, *(field for name, field in wanted.items() if name not in names)])
    is_new = _TIME_WITHOUT_ZONE in changed.to_json() and _TIME_WITHOUT_ZONE not in now.to_json()
    if is_new and "timestampNtz" not in (table.protocol().writer_features or ()):
        raise TargetError(
            f"the Delta table {path} has no feature timestampNtz, which a time without a zone "
            "needs: set its property delta.feature.timestampNtz to supported, or let a transform "
            "give the time a zone"
        )
    return changed


def append_with_schema(
    place: TablePlace,
    table: DeltaTable,
    stage: Stage,
    schema: Schema,
    adds: Sequence[AddAction],
    transactions: Sequence[Transaction],
    metadata: Mapping[str, str],
) -> None:
    """One log entry that also gives the table `schema`, at the number that follows the version
    `table` was opened at; raises CommitFailedError where that is taken."""
    said = {
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "isBlindAppend": True,
        **metadata,
    }
    actions = [
        {"metaData": metadata_of(table, schema)},
        *map(txn, transactions),
        *map(add, adds),
    ]
    write_entry(place, stage, table.version() + 1, said, actions)


def _extended(field: Field, wanted: DataType) -> Field:
    return Field(
        field.name,
        _with_fields(field.type, wanted),
        nullable=field.nullable,
        metadata=field.metadata,
    )


def _with_fields(there: DataType, wanted: DataType) -> DataType:
    """A type with the fields of structs that it has not, at any depth; what it has stays."""
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        new = {field.name: field for field in wanted.fields}
        kept = [
            _extended(field, new.pop(field.name).type) if field.name in new else field
            for field in there.fields
        ]
        return StructType([*kept, *new.values()])
    if isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        element = _with_fields(there.element_type, wanted.element_type)
        return ArrayType(element, contains_null=there.contains_null)
    if isinstance(there, MapType) and isinstance(wanted, MapType):
        value = _with_fields(there.value_type, wanted.value_type)
        return MapType(there.key_type, value, value_contains_null=there.value_contains_null)
    return there


def metadata_of(table: DeltaTable, schema: Schema) -> dict[str, Any]:
    """What a log entry says that gives the table `schema`, and leaves all else as it is."""
    now = table.metadata()
    said = {"name": now.name, "description": now.description, "createdTime": now.created_time}
    return {
        "id": str(now.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.to_json(),
        "partitionColumns": list(now.partition_columns),
        "configuration": dict(now.configuration),
        **{key: value for key, value in said.items() if value is not None},
    }
