"""Columns of a database's table that rows need: ALTER TABLE in the transaction of the commit.

A new column takes null. Of one that is there, PostgreSQL and DuckDB widen the type where every
number stays what it is; SQLite alters no type, and needs to for few: its integers are of one size.
DuckDB's structs get new fields; PostgreSQL and SQLite keep what is nested as a document.

PostgreSQL: the role must own the table; ALTER waits for those who read it, and readers for the
commit; a wider type writes the table anew. MariaDB alters in no transaction: sql.py does it before.

Called by sql.py, within a transaction of the caller.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy as sa

from pyspark_kafkalog.errors import TargetError
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.schema_change import joined, joined_type, refuse_spellings
from pyspark_kafkalog.warehouse.targets.mariadb_types import widened
from pyspark_kafkalog.warehouse.targets.sql_tables import Column, Found, columns, key_of
from pyspark_kafkalog.warehouse.targets.sql_types import (
    becomes,
    column_type,
    duckdb_numbers,
    quoted,
)

_SORTED_OUT = (
    pa.int64(),
    pa.int32(),
    pa.float64(),
    pa.float32(),
    pa.bool_(),
    pa.string(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.binary(),
)
"""What a column that keeps its type may hold: the first of them that it does."""
_STRICT = {"BLOB": "BLOB", "INT": "INTEGER", "BOOL": "INTEGER", "REAL": "REAL", "DOUB": "REAL"}
"""The types of columns in strict tables of SQLite, by how those of others begin; else TEXT."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """One column that the table is going to get, or to have with another type."""

    name: str
    statement: str


def joined_columns(
    connection: sa.Connection, found: Found, schema: pa.Schema, change: SchemaChange
) -> pa.Schema:
    """The columns of rows as they are going to be inserted."""
    if not (change.adds and found.is_there):
        return schema
    if connection.dialect.name == "duckdb":
        return joined(_arrow_columns(connection, found, schema), schema, change, _widens_in_duckdb)
    there = columns(connection, found, schema)
    fields = []
    for field in schema:
        kind, column = field.type, there.get(key_of(connection.dialect.name, field.name))
        if column and field.name in change.sorted_out and not _takes(column, kind, change):
            kind = next((each for each in _SORTED_OUT if column.holds(each)), kind)
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def alterations(
    connection: sa.Connection, found: Found, schema: pa.Schema, change: SchemaChange
) -> Sequence[Alteration]:
    """What a commit of rows with `schema` does to the table. Raises TargetError for what this role
    may not do."""
    if not (change.adds and found.is_there):
        return []
    dialect = connection.dialect.name
    there = columns(connection, found, schema)
    table = f"the table {found.name}"
    if dialect == "postgresql":
        refuse_spellings((column.name for column in there.values()), schema.names, table)
    arrow = _arrow_columns(connection, found, schema) if dialect == "duckdb" else pa.schema([])
    found_alterations = []
    for field in schema:
        name, kind = quoted(field.name), _declared(connection, found, field.type)
        column = there.get(key_of(dialect, field.name))
        if column is None:
            statement = f"ALTER TABLE {found.quoted} ADD COLUMN {name} {kind}"
        elif not column.holds(field.type) and _is_altered(column, field, arrow, change):
            statement = f"ALTER TABLE {found.quoted} ALTER COLUMN {name} TYPE {kind}"
            if dialect == "mariadb":
                there_now = (column.name, column.declared)
                statement = widened(connection, found.quoted, *there_now, kind)
        else:
            continue
        found_alterations.append(Alteration(field.name, statement))
    if found_alterations and dialect == "postgresql":
        _refuse_others_table(connection, found, found_alterations)
    return found_alterations


def alter(connection: sa.Connection, wanted: Sequence[Alteration]) -> None:
    for each in wanted:
        statement = each.statement
        if connection.dialect.paramstyle in ("format", "pyformat"):
            statement = statement.replace("%", "%%")
        connection.exec_driver_sql(statement)


def without_altered(schema: pa.Schema, altered: Sequence[Alteration]) -> pa.Schema:
    """The columns that the table has already."""
    names = {each.name for each in altered}
    return pa.schema([field for field in schema if field.name not in names])


def _takes(column: Column, kind: pa.DataType, change: SchemaChange) -> bool:
    return column.holds(kind) or (change.widens and column.becomes(kind))


def _is_altered(column: Column, field: pa.Field, arrow: pa.Schema, change: SchemaChange) -> bool:
    if change.widens and column.becomes(field.type):
        return True
    if field.name not in arrow.names or not pa.types.is_nested(field.type):
        return False
    there = arrow.field(field.name).type
    return bool(joined_type(there, field.type, change, _widens_in_duckdb) == field.type)


def _widens_in_duckdb(there: pa.DataType, wanted: pa.DataType) -> bool:
    numbers = _DUCKDB_NAMES.get(there)
    if pa.types.is_decimal(there):
        numbers = f"DECIMAL({there.precision},{there.scale})"
    return numbers is not None and becomes(duckdb_numbers(numbers), wanted)


_DUCKDB_NAMES: dict[pa.DataType, str] = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
}


def _arrow_columns(connection: sa.Connection, found: Found, schema: pa.Schema) -> pa.Schema:
    """The table's columns that rows have as well, as DuckDB gives them to Arrow; without those of
    types that an extension brings. By the names of the types, in a database of its own: DuckDB
    refuses to make Arrow of a result beside another one of the same connection."""
    import duckdb

    there = columns(connection, found, schema)
    fields = []
    with duckdb.connect() as scratch:
        for name in schema.names:
            column = there.get(key_of("duckdb", name))
            if column is not None:
                with suppress(duckdb.Error):
                    empty = scratch.sql(f"SELECT CAST(NULL AS {column.declared})")
                    fields.append(pa.field(name, empty.to_arrow_table().schema.field(0).type))
    return pa.schema(fields)


def _declared(connection: sa.Connection, found: Found, kind: pa.DataType) -> str:
    declared = str(column_type(kind).compile(dialect=connection.dialect))
    if connection.dialect.name != "sqlite":
        return declared
    query = sa.text("SELECT strict FROM pragma_table_list WHERE schema = :schema AND name = :name")
    names = {"schema": found.schema, "name": found.name}
    if not connection.execute(query, names).scalar():
        return declared
    if declared.startswith("BIGINT"):
        return "INTEGER"
    return next((to for start, to in _STRICT.items() if declared.startswith(start)), "TEXT")


def _refuse_others_table(
    connection: sa.Connection, found: Found, wanted: Sequence[Alteration]
) -> None:
    query = sa.text(
        "SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relname = :name"
    )
    names = {"schema": found.schema, "name": found.name}
    if not connection.execute(query, names).scalar():
        raise TargetError(
            f"the rows need {wanted[0].name} in the table {found.name}, which this role does not "
            f"own and so cannot alter: have its owner run {wanted[0].statement}"
        )
