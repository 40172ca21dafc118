"""What becomes of a table's columns when the rows of a load have other ones.

A column that is new is added. One whose type has changed may get a wider type, if every value that
is there stays what it is and the table's format knows how (`Promotes`); rows that are narrower take
the column's. What is within a struct, a list or a map's values is joined likewise. All else is left
as it came, and the target refuses it by its own rules.

Pure functions: driver.
"""

from collections.abc import Callable, Iterable

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidOptionError, LoadConflictError, TargetError
from pyspark_kafkalog.warehouse.rows.allowed_change import SchemaChange
from pyspark_kafkalog.warehouse.rows.row_types import keeps, storable

Promotes = Callable[[pa.DataType, pa.DataType], bool]
"""Whether a table's format makes a column of the one type one of the other, without loss."""

ADVICE = "let the load add it (on_schema_change, --on-schema-change add)"


def never(there: pa.DataType, wanted: pa.DataType) -> bool:
    return False


def joined(
    there: pa.Schema, rows: pa.Schema, change: SchemaChange, promotes: Promotes = never
) -> pa.Schema:
    """The columns of `rows` in the types in which they are going to be written: those that the
    table, which has the columns `there`, has for them or gets, and their own where these cannot
    be joined, or the table has none."""
    fields = []
    for field in rows:
        kind, index = field.type, there.get_field_index(field.name)
        if index >= 0:
            old = plain(there.field(index).type)
            both = joined_type(old, kind, change, promotes)
            if both is None and field.name in change.sorted_out and is_storable(old):
                both = old
            kind = both or kind
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def joined_type(
    there: pa.DataType, rows: pa.DataType, change: SchemaChange, promotes: Promotes = never
) -> pa.DataType | None:
    """The type that a column gets; None where no type holds both."""
    if _is_same(there, rows):
        return rows
    if pa.types.is_struct(there) and pa.types.is_struct(rows):
        return _joined_struct(there, rows, change, promotes) if change.adds else None
    if pa.types.is_list(there) and pa.types.is_list(rows):
        element = joined_type(there.value_type, rows.value_type, change, promotes)
        return element and pa.list_(element)
    if pa.types.is_map(there) and pa.types.is_map(rows):
        item = joined_type(there.item_type, rows.item_type, change, promotes)
        same_key = _is_same(there.key_type, rows.key_type)
        return pa.map_(rows.key_type, item) if item and same_key else None
    if change.widens and keeps(rows, there):
        return there
    return rows if change.widens and promotes(there, rows) else None


def _joined_struct(
    there: pa.DataType, rows: pa.DataType, change: SchemaChange, promotes: Promotes
) -> pa.DataType | None:
    """The fields that are there, and then the new ones."""
    fields: dict[str, pa.DataType] = {child.name: child.type for child in there}
    for child in rows:
        if child.name in fields:
            kind = joined_type(fields[child.name], child.type, change, promotes)
            if kind is None:
                return None
            fields[child.name] = kind
        else:
            fields[child.name] = child.type
    if len({name.lower() for name in fields}) < len(fields):
        return None
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


def refuse_spellings(there: Iterable[str], rows: Iterable[str], table: str) -> None:
    """Raises TargetError for a new column that differs from one of the `table` by case alone."""
    there = list(there)
    spelled = {name.lower(): name for name in there}
    for name in set(rows).difference(there):
        if name.lower() in spelled:
            raise TargetError(
                f"{table} has a column {spelled[name.lower()]}, and the rows one named {name}, "
                "which Spark takes for the same: rename it, or name another table"
            )


def check_unchanged(written: pa.Schema, now: pa.Schema, table: str) -> None:
    """Raises LoadConflictError where rows that were `written` would be written with other types
    now, as others changed the table meanwhile."""
    for field in written:
        kind = now.field(field.name).type
        if not _is_same(field.type, kind):
            raise LoadConflictError(
                f"column {field.name} of {table} was changed while rows landed, which have it as "
                f"{field.type} and would have it as {kind} now. Nothing of this load was "
                "published. Run it again."
            )


def kept_columns(
    change: SchemaChange, rows: pa.Schema, written: pa.Schema
) -> dict[str, pa.DataType]:
    """The columns of which values have to be sorted out, with the types that these have to fit:
    those that kept theirs when rows came with another one."""
    return {
        name: written.field(name).type
        for name in sorted(change.sorted_out)
        if joined_type(written.field(name).type, rows.field(name).type, change) is None
    }


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without large variants, and without what is noted in it."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, plain(child.type)) for child in kind])
    return kind


def is_storable(kind: pa.DataType) -> bool:
    """Whether rows may be of a type."""
    try:
        return bool(storable(pa.schema([("column", kind)])).field(0).type == kind)
    except InvalidOptionError:
        return False


def _is_same(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(plain(one) == plain(other))
