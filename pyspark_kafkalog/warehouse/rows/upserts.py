"""What a load with mode upsert does with its rows: the newest one of each key is the table's.

Records are marked where they become rows, in tasks. A staged file so has columns that the table
has not:

    kafkalog_deleted   the record is a tombstone: no value at all, which a value that is decoded to
                       null is not
    kafkalog_key       the key's own bytes, so that no collation of a database compares them
    kafkalog_order     with `order_by`, its column as a number

Keys and orders are of types of which one value is one sequence of bytes: floating point numbers
have two zeros and many NaNs. Whoever has none is refused. So is another kind of them (`kinds`) than
a table was upserted by before: one day is another number than its midnight. Driver and tasks;
travels pickled.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.errors import BadRecordError, InvalidOptionError

APPEND, UPSERT = "append", "upsert"
RECORD_KEY = "key"
DELETED, KEY, ORDER = "kafkalog_deleted", "kafkalog_key", "kafkalog_order"

_ORDERS = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp)
_KEYS = (*_ORDERS, pa.types.is_string, pa.types.is_binary, pa.types.is_boolean, pa.types.is_decimal)


@dataclass(frozen=True, slots=True)
class Upsert:
    """`key` names the columns that make a key. Of two rows of one key the newer is that with the
    greater value in `order_by`, and where this is the same, or not asked for, the later record of
    their partition. Without `order_by` all records of a key have to be of one partition."""

    key: tuple[str, ...] = (RECORD_KEY,)
    order_by: str | None = None

    def check(self, schema: pa.Schema) -> None:
        """Raises InvalidOptionError unless rows with the columns of `schema` can be upserted."""
        for name in schema.names:
            if name.lower() in (DELETED, KEY, ORDER):
                raise InvalidOptionError(
                    f"the values have a field {name}, which is what mode upsert calls a column of "
                    "its own: give the field another name"
                )
        for option, columns, kinds in (
            ("key", self.key, _KEYS),
            ("order_by", [self.order_by] if self.order_by else [], _ORDERS),
        ):
            for name in columns:
                if name not in schema.names:
                    raise InvalidOptionError(
                        f"{option} names {name}, and the rows have {', '.join(schema.names)}"
                    )
                kind = schema.field(name).type
                if not any(each(kind) for each in kinds):
                    raise InvalidOptionError(
                        f"{option} names {name}, which is {kind}: name a column of "
                        + (
                            "whole numbers, days or times"
                            if kinds is _ORDERS
                            else "whole numbers, decimals, texts, bytes, days or times"
                        )
                    )

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of staged files, of which the table is going to have `schema`."""
        fields = [pa.field(DELETED, pa.bool_()), pa.field(KEY, pa.binary())]
        if self.order_by:
            fields.append(pa.field(ORDER, pa.int64()))
        return pa.schema([*schema, *fields])

    def kinds(self, schema: pa.Schema) -> dict[str, str]:
        """What the columns that it names hold. Values of one kind are the same key where their
        bytes are, and are in order."""
        names = (*self.key, *([self.order_by] if self.order_by else []))
        return {name: _kind(schema.field(name).type) for name in names}

    def unfit(self, rows: Mapping[str, pa.Array]) -> dict[int, str]:
        """Which rows of these columns have no key or no order, and why."""
        found: dict[int, str] = {}
        for name in (*self.key, *([self.order_by] if self.order_by else [])):
            if rows[name].null_count:
                nulls = pc.indices_nonzero(pc.is_null(rows[name])).to_pylist()
                found |= dict.fromkeys(nulls, self._lacking(name))
        return found

    def marked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are staged; those of undecoded values need not say which are DELETED. Raises
        BadRecordError for those without a key or an order."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        if DELETED not in columns:
            columns[DELETED] = pc.is_null(columns["value"])
        unfit = self.unfit(columns)
        if unfit:
            row = min(unfit)
            place = "{}-{} at offset {}".format(
                *(columns[name][row].as_py() for name in ("topic", "partition", "offset"))
            )
            raise BadRecordError(
                f"{place}: {unfit[row]}, and mode upsert needs it. Nothing was published. With "
                "on_error (--on-error) deadletter a load goes on without such records"
            )
        columns[KEY] = self.keys(columns)
        if self.order_by:
            columns[ORDER] = self.orders(columns)
        return pa.RecordBatch.from_pydict(columns)

    def keys(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """The keys of rows, none of which lacks one, as bytes that differ where the keys do."""
        parts = [columns[name] for name in self.key]
        kind = parts[0].type
        if len(parts) == 1 and pa.types.is_binary(kind):
            return parts[0]
        if len(parts) == 1 and pa.types.is_string(kind):
            return parts[0].cast(pa.binary())
        rows = zip(*(_texts(part) for part in parts), strict=True)
        return pa.array([json.dumps(row).encode() for row in rows], pa.binary())

    def orders(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """With `order_by`, its column as numbers."""
        column = columns[self.order_by or ""]
        return column.cast(_number(column.type)).cast(pa.int64())

    def _lacking(self, name: str) -> str:
        if name == RECORD_KEY:
            return "the record has no key"
        return f"{name} is null (a tombstone has no columns but those of its record)"


def with_deleted(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(DELETED, pa.bool_()))


def table_columns(schema: pa.Schema, upsert: Upsert | None) -> pa.Schema:
    """Those of staged files that the table has, too: all, where rows are appended."""
    if upsert is None:
        return schema
    return pa.schema([field for field in schema if field.name not in (DELETED, KEY, ORDER)])


def parse_upsert(mode: str, key: str | Sequence[str] | None, order_by: str | None) -> Upsert | None:
    """What a user said of it; None is append. Raises InvalidOptionError."""
    if mode not in (APPEND, UPSERT):
        raise InvalidOptionError(f"mode is {mode!r}: write {APPEND} or {UPSERT}")
    if mode == APPEND:
        if key or order_by:
            raise InvalidOptionError("key and order_by have no effect without mode=upsert")
        return None
    columns = [key] if isinstance(key, str) else key or [RECORD_KEY]
    names = tuple(name.strip() for each in columns for name in each.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise InvalidOptionError("key names a column twice, or one without a name")
    return Upsert(names, order_by or None)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimals with {kind.scale} digits after the point"
    for is_one, name in (
        (pa.types.is_integer, "whole numbers"),
        (pa.types.is_boolean, "truth values"),
        (pa.types.is_date, "days"),
        (pa.types.is_timestamp, "times"),
        (pa.types.is_string, "texts"),
    ):
        if is_one(kind):
            return name
    return "bytes"


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def _texts(column: pa.Array) -> list[Any]:
    """Values that JSON tells apart just where they differ, whatever the width of their type."""
    kind = column.type
    if pa.types.is_temporal(kind):
        return list(column.cast(_number(kind)).to_pylist())
    if pa.types.is_decimal(kind):
        return [_digits(value) for value in column.to_pylist()]
    if pa.types.is_binary(kind):
        return [value.hex() for value in column.to_pylist()]
    return list(column.to_pylist())


def _digits(value: Decimal) -> str:
    """A decimal without zeros that say nothing."""
    text = f"{value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
