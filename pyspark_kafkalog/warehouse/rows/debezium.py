"""Values of Debezium's change events as the rows that they are about.

Two forms, told apart by the fields of the schema:

    op, after     the envelope: `after` is the row, which `op` d deletes, and c, u and r put
    __deleted     what Debezium's ExtractNewRecordState makes of it with
                  delete.tombstone.handling.mode=rewrite: the row itself, and whether it is deleted

Either may be the `payload` of Kafka Connect's JSON with schemas. Truncations (op t) and messages
(m) are about no row, and bad values. So are rows with PLACEHOLDER, which Debezium puts in the place
of a long value that did not change: to load it would overwrite that. It is of the column's type:

    text, bytes       itself; of bytes as JSON has them in base64; of hstore {"itself":"itself"}
    array             with it as the only element, of uuid with one made of it; of numbers, days and
                      times, its bytes
    geometry          a point that nothing is at

A tombstone, which follows a deletion, is left to whoever knows the record's key. Made on the
driver; travels pickled to tasks.
"""

import functools
import hashlib
import uuid
from base64 import b64encode
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.decoding.decoder import Decoded, Decoder
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.rows.upserts import DELETED

DEBEZIUM = "debezium"
PLACEHOLDER = "__debezium_unavailable_value"
_BYTES = PLACEHOLDER.encode()
_TEXTS = (
    PLACEHOLDER,
    f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}',
    b64encode(_BYTES).decode(),
    str(uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3)),
)
_BINARIES = (
    _BYTES,
    bytes.fromhex("0101000020e6100000000000fc83d797c1000000fc83d797c1"),
    bytes.fromhex("0101000020e61000000c21e7fdff7f66401842cefbff7f5640"),
)
_FLAT = "__deleted"
_LOG_IT = "have the database log unchanged values, too (PostgreSQL: REPLICA IDENTITY FULL)"
_NUMBERS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_date32,
    pa.types.is_timestamp,
)
# Not an array: making one imports pandas.
_PUTS = ("c", "u", "r")


@dataclass(frozen=True, slots=True)
class DebeziumRows:
    """A decoder of change events: structs of the row's fields and, as the last one, DELETED."""

    events: Decoder
    has_payload: bool = False
    is_flat: bool = False

    @property
    def type(self) -> pa.DataType:
        return pa.struct([*self._row_fields(), pa.field(DELETED, pa.bool_())])

    def decode(self, values: pa.Array) -> Decoded:
        decoded = self.events.decode(values)
        event = _field(decoded.column, "payload") if self.has_payload else decoded.column
        if self.is_flat:
            row, says = event, _truth(_field(event, _FLAT))
            is_deleted, is_put = pc.fill_null(says, False), pc.is_valid(says)
        else:
            row, op = _field(event, "after"), _field(event, "op")
            is_deleted = pc.fill_null(pc.equal(op, "d"), False)
            is_put = pc.and_(pc.is_in(op, pa.array(_PUTS, pa.string())), pc.is_valid(row))
        fields = self._row_fields()
        columns = [*(_field(row, field.name) for field in fields), is_deleted]
        made = pa.StructArray.from_arrays(columns, fields=list(self.type))
        unknown = pc.invert(pc.or_(pc.or_(is_deleted, is_put), pc.is_null(values)))
        rows = pc.indices_nonzero(unknown).to_pylist()
        errors = {row: self._reason(event, row) for row in rows}
        for field, column in zip(fields, columns, strict=False):
            found = pc.and_(_is_placeholder(column), pc.invert(is_deleted))
            missing = pc.indices_nonzero(pc.fill_null(found, False)).to_pylist()
            errors |= dict.fromkeys(missing, f"{field.name} is {PLACEHOLDER}: {_LOG_IT}")
        return Decoded(made, {**errors, **decoded.errors})

    def _row_fields(self) -> list[pa.Field]:
        event = self.events.type.field("payload").type if self.has_payload else self.events.type
        row = event if self.is_flat else event.field("after").type
        return [field for field in row if field.name != _FLAT]

    def _reason(self, event: pa.Array, row: int) -> str:
        if not event[row].is_valid:
            return "it holds no change event"
        if self.is_flat:
            return f"it says neither true nor false in {_FLAT}"
        return f"its op is {event[row]['op'].as_py()}, and it has no row after that"


def debezium_rows(events: Decoder) -> DebeziumRows:
    """Raises InvalidOptionError where the schema of values is none of change events."""
    fields, has_payload = _fields(events.type), False
    if "payload" in fields and not {"op", _FLAT} & fields.keys():
        fields, has_payload = _fields(fields["payload"]), True
    if fields.get(_FLAT) in (pa.string(), pa.bool_()):
        return DebeziumRows(events, has_payload, is_flat=True)
    if fields.get("op") == pa.string() and _fields(fields.get("after", pa.null())):
        return DebeziumRows(events, has_payload)
    raise InvalidOptionError(
        "envelope is debezium, and the schema of the values has neither op STRING and after "
        f"STRUCT<...> nor __deleted STRING: it has {', '.join(fields) or 'no fields'}"
    )


def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}


def _field(column: pa.StructArray, name: str) -> pa.Array:
    """A field, which is null where the struct is."""
    return column.flatten()[column.type.get_field_index(name)]


def _is_placeholder(column: pa.Array) -> pa.Array:
    """Null or false where a value is there."""
    kind = column.type
    none = pa.repeat(pa.scalar(False), len(column))
    if pa.types.is_struct(kind):
        return functools.reduce(_either, map(_is_placeholder, column.flatten()), none)
    if pa.types.is_map(kind):
        keys = pa.list_(pa.struct([("key", kind.key_type), ("item", kind.item_type)]))
        return _is_placeholder(column.cast(keys))
    if pa.types.is_list(kind):
        first = pc.list_slice(column, 0, 1, return_fixed_size_list=True)
        return _either(_is_placeholder(pc.list_element(first, 0)), _has_bytes(column))
    known = _TEXTS if pa.types.is_string(kind) else _BINARIES
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return functools.reduce(_either, (pc.equal(column, each) for each in known))
    return none


def _either(one: pa.Array, other: pa.Array) -> pa.Array:
    return pc.or_kleene(one, other)


def _has_bytes(column: pa.ListArray) -> pa.Array:
    """Which lists are the bytes of PLACEHOLDER, each of them a number, a day or a time."""
    found = pa.repeat(pa.scalar(False), len(column))
    wanted = _numbers(column.type.value_type)
    if wanted is None:
        return found
    may_be = pc.fill_null(pc.equal(pc.list_value_length(column), len(wanted)), False)
    lists = column.filter(may_be)
    return pc.replace_with_mask(
        found, may_be, pa.array([each.values.equals(wanted) for each in lists], pa.bool_())
    )


def _numbers(kind: pa.DataType) -> pa.Array | None:
    """The bytes of PLACEHOLDER as values of a type; None where it has no such."""
    if pa.types.is_decimal(kind):
        digits = [Decimal(each).scaleb(-kind.scale) for each in _BYTES]
        return pa.array(digits, kind) if kind.precision > 2 else None
    if any(is_one(kind) for is_one in _NUMBERS):
        width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        return pa.array(list(_BYTES), width).cast(kind)
    return None


def _truth(column: pa.Array) -> pa.Array:
    """Null where it says neither."""
    if pa.types.is_boolean(column.type):
        return column
    text = pc.utf8_lower(column)
    is_said = pc.is_in(text, pa.array(["true", "false"]))
    return pc.if_else(is_said, pc.equal(text, "true"), pa.scalar(None, pa.bool_()))
