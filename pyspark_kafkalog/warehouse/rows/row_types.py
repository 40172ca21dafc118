"""The Arrow types of rows that every kind of target can hold, and how others become one of them.

Rows of topics have these types already. What a decoder or a transformation made may come in
narrower integers, in the large variants, as dictionaries or in other units of time: that is cast,
column by column and without loss, or refused before anything is written. Every column may be null,
as nobody can promise for the rows of later loads.

Pure functions: any thread, driver and tasks.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRowError
from pyspark_kafkalog.warehouse.rows.calendar_range import DAY_US

_MOST_DECIMAL_DIGITS = 38

_Kinds = Sequence[Callable[[pa.DataType], bool]]

_CASTS: Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType]] = (
    (pa.types.is_int8, pa.int32()),
    (pa.types.is_int16, pa.int32()),
    (pa.types.is_uint8, pa.int32()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
)
_WIDER = (
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.float32(), pa.float64()),
)
_HELD: _Kinds = (
    pa.types.is_boolean,
    pa.types.is_int32,
    pa.types.is_int64,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_date32,
    pa.types.is_string,
    pa.types.is_binary,
)


def storable(schema: pa.Schema, intervals: bool = False) -> pa.Schema:
    """`schema` with types that targets hold, all columns nullable. With `intervals` those may stay,
    which a transformation can make something else of, and no target holds.

    Raises InvalidOptionError for a type that has no counterpart, and for names, at any depth, that
    differ by case alone, which Spark takes for one.
    """
    seen: set[str] = set()
    for name in schema.names:
        if not name or name.lower() in seen:
            raise InvalidOptionError(
                f"rows with the columns {', '.join(schema.names)} cannot be loaded: "
                + (f"there are two named {name}" if name else "one has no name")
            )
        seen.add(name.lower())
    if not schema.names:
        raise InvalidOptionError("rows without any column cannot be loaded")
    held = (*_HELD, pa.types.is_duration) if intervals else _HELD
    return pa.schema(
        [pa.field(field.name, _storable(field.type, field.name, held)) for field in schema]
    )


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, in its order and types; the same batch when it has them already.

    Raises InvalidRowError when a column is missing, or a value does not fit.
    """
    if batch.schema.equals(schema):
        return batch
    columns = [_fitted(batch, field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_made(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch, which a transformation made of records, when it has the columns of `schema`, which
    it made of none: in whichever order, and in types that become those without loss.

    Raises InvalidRowError.
    """
    if sorted(batch.schema.names) == sorted(schema.names) and all(
        keeps(field.type, schema.field(field.name).type) for field in batch.schema
    ):
        return batch
    made, expected = (
        ", ".join(f"{field.name} {field.type}" for field in each) for each in (batch.schema, schema)
    )
    raise InvalidRowError(
        f"transform made other columns of records ({made}) than of a batch without rows "
        f"({expected}), by which the table was made or checked: make the same of both"
    )


def keeps(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a type is one of another."""
    if pa.types.is_null(kind):
        return True
    try:
        kind = _storable(kind, "")
    except InvalidOptionError:
        return False
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wanted):
        spare = wanted.scale - kind.scale
        return bool(0 <= spare <= wanted.precision - kind.precision)
    return kind.equals(wanted) or (kind, wanted) in _WIDER


def holds(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of a type can be cast to another, which may have more fields in its
    structs, at any depth: these are null then."""
    if not _has_all(kind, wanted):
        return False
    try:
        # Arrow before 19 adds no fields.
        pa.nulls(0, kind).cast(wanted)
    except pa.ArrowException:
        return False
    return True


def _has_all(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        return all(
            field.name in wanted.names and _has_all(field.type, wanted.field(field.name).type)
            for field in kind
        )
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return _has_all(kind.value_type, wanted.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        is_key = keeps(kind.key_type, wanted.key_type)
        return is_key and _has_all(kind.item_type, wanted.item_type)
    return keeps(kind, wanted)


def rows_with_nul(column: pa.Array) -> set[int]:
    """Which rows have a NUL in a text at any depth."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return set(pc.indices_nonzero(pc.match_substring(column, "\0")).to_pylist())
    if pa.types.is_struct(kind):
        return set().union(*map(rows_with_nul, column.flatten()))
    if pa.types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return rows_with_nul(column.cast(pa.list_(entry)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = rows_with_nul(pc.list_flatten(column))
        rows = pc.list_parent_indices(column).to_pylist() if found else []
        return {rows[each] for each in found}
    return set()


def rows_with_nan(column: pa.Array) -> set[int]:
    """Which rows have NaN, in a column of numbers or a field of a struct; not deeper."""
    return _rows_with_numbers(column, pc.is_nan)


def rows_with_infinity(column: pa.Array) -> set[int]:
    """Which rows have an infinite number, in a column of numbers or a field of a struct; not
    deeper."""
    return _rows_with_numbers(column, pc.is_inf)


def _rows_with_numbers(column: pa.Array, are_wanted: Callable[[pa.Array], pa.Array]) -> set[int]:
    kind = column.type
    if pa.types.is_struct(kind):
        numbers = [field for field in column.flatten() if pa.types.is_floating(field.type)]
        return set().union(*(_rows_with_numbers(each, are_wanted) for each in numbers))
    if not pa.types.is_floating(kind):
        return set()
    return set(pc.indices_nonzero(are_wanted(column)).to_pylist())


def rows_out_of_days(column: pa.Array, days: range) -> set[int]:
    """Which rows have a time on none of the `days` from 1970 on that a database has, in a column or
    a field of a struct; not deeper."""
    kind = column.type
    if pa.types.is_struct(kind):
        fields = [field for field in column.flatten() if pa.types.is_temporal(field.type)]
        return set().union(*(rows_out_of_days(each, days) for each in fields))
    if pa.types.is_date32(kind):
        counts = column.cast(pa.int32())
        first, last = days[0], days[-1]
    elif pa.types.is_timestamp(kind):
        counts = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        # There is no time that is too late for PostgreSQL.
        first, last = days[0] * DAY_US, min(days.stop * DAY_US, 2**63) - 1
    else:
        return set()
    bounds = pc.min_max(counts).as_py()
    if bounds["min"] is None or (first <= bounds["min"] and bounds["max"] <= last):
        return set()
    return set(
        pc.indices_nonzero(pc.or_(pc.less(counts, first), pc.greater(counts, last))).to_pylist()
    )


def settled(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, set[int]]:
    """A column as one of another type, and the rows whose values are none of that, which are null
    in it: of numbers those that would not stay what they are, of others all."""
    if _is_number(column.type) and _is_number(kind):
        found: set[int] = set()
        parts: list[pa.Array] = []
        _settle(column, kind, 0, parts, found)
        return pa.concat_arrays(parts) if parts else pa.array([], kind), found
    if column.type == kind:
        return column, set()
    rows = pc.indices_nonzero(pc.is_valid(column)).to_pylist()
    return pa.nulls(len(column), kind), set(rows)


def _settle(
    column: pa.Array, kind: pa.DataType, first: int, parts: list[pa.Array], bad: set[int]
) -> None:
    """Rows that do not fit are found by halving, so that few of them cost little."""
    with suppress(pa.ArrowInvalid):
        cast = column.cast(kind)
        # Of decimals and floating point numbers a cast loses digits without a word.
        if pc.all(pc.equal(cast.cast(column.type), column)).as_py() is not False:
            parts.append(cast)
            return
    if len(column) == 1:
        parts.append(pa.nulls(1, kind))
        bad.add(first)
        return
    half = len(column) // 2
    _settle(column[:half], kind, first, parts, bad)
    _settle(column[half:], kind, first + half, parts, bad)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def refuse_nul(batch: pa.RecordBatch) -> None:
    """Raises InvalidRowError, which names the record where rows say it, for a NUL in a text."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        rows = rows_with_nul(column)
        if rows:
            origin = {
                key: batch.column(key)[min(rows)].as_py()
                for key in ("topic", "partition", "offset")
                if key in batch.schema.names
            }
            where = (
                ", ".join(f"{key} {value}" for key, value in origin.items()) or "no place is known"
            )
            raise InvalidRowError(
                f"column {name} holds the character NUL in a text ({where}), which the target "
                "cannot hold: leave the column out, or replace the character in a transform"
            )


def _fitted(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    indices = batch.schema.get_all_field_indices(field.name)
    if len(indices) != 1:
        raise InvalidRowError(
            f"rows should have one column {field.name}, but have {', '.join(batch.schema.names)}"
        )
    column = batch.column(indices[0])
    try:
        return column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRowError(
            f"column {field.name} is {column.type} and should be {field.type}: {error}"
        ) from None


def _storable(kind: pa.DataType, column: str, held: _Kinds = _HELD) -> pa.DataType:
    if any(is_held(kind) for is_held in held):
        return kind
    for is_kind, wanted in _CASTS:
        if is_kind(kind):
            return wanted
    if pa.types.is_decimal(kind) and kind.precision <= _MOST_DECIMAL_DIGITS and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_dictionary(kind):
        return _storable(kind.value_type, column, held)
    return _storable_nested(kind, column, held)


def _storable_nested(kind: pa.DataType, column: str, held: _Kinds) -> pa.DataType:
    if pa.types.is_map(kind):
        key, item = (_storable(one, column, held) for one in (kind.key_type, kind.item_type))
        return pa.map_(key, item)
    if pa.types.is_struct(kind) and kind.num_fields:
        names = [child.name.lower() for child in kind]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidOptionError(
                f"column {column} has two fields named {twice[0]}, in whichever case, which Spark, "
                "Delta and DuckDB take for one: rename one of them, or keep the column as text"
            )
        return pa.struct(
            [
                pa.field(child.name, _storable(child.type, f"{column}.{child.name}", held))
                for child in kind
            ]
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_storable(kind.value_type, column, held))
    raise InvalidOptionError(
        f"column {column} is of type {kind}, which not every warehouse can hold: cast it in a "
        "transform, or leave it out"
    )
