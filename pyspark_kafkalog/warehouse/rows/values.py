"""The values of records as columns, on their way into the files of a load.

A struct's fields become columns in the place of `value`; anything else, such as a string, becomes
the column `value`. A field that is called like a column of the topic (key, topic, timestamp ...)
becomes `value_<field>`. With `null`, a record that could not be decoded keeps its row: the decoded
columns are null, and `value_error` says why. With `deadletter` it goes to a topic (dead_letters.py)
instead. Where a target cannot hold the character NUL, as PostgreSQL cannot, a value or a header
with it in any text is bad, too: it would fail the commit, and every later one. So is a value with
NaN in a column where the target, as SQLite, would make null of it, or with a time that it, as
PostgreSQL, does not have, unless a transformation follows;
and a record whose timestamp is no time, or one of whose headers has no key, whatever its value:
with `null` that is what is null in its row. Made on the driver; travels pickled to tasks, where one
thread uses it.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.arrow.schema import COLUMN_TYPES
from pyspark_kafkalog.decoding.decoder import Decoded, Decoder
from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.decoding.room import slices
from pyspark_kafkalog.errors import BadRecordError, InvalidOptionError
from pyspark_kafkalog.warehouse.rows.dead_letters import DeadLetters, checked_topic
from pyspark_kafkalog.warehouse.rows.debezium import DEBEZIUM, DebeziumRows, debezium_rows
from pyspark_kafkalog.warehouse.rows.row_types import (
    rows_out_of_days,
    rows_with_infinity,
    rows_with_nan,
    rows_with_nul,
    settled,
)
from pyspark_kafkalog.warehouse.rows.upserts import DELETED, Upsert

FAIL, DEAD_LETTER, NULL = "fail", "deadletter", "null"
ON_ERROR = (FAIL, DEAD_LETTER, NULL)
ERROR_COLUMN = "value_error"
_HOLDS_NUL = "holds the character NUL, which the target cannot hold"
_NO_DAY = "a time that the target does not have"
_IS_NAN = "a number is NaN, which the target does not have"
_IS_INFINITE = "a number is infinite, which the target does not have"


@dataclass(frozen=True, slots=True)
class Values:
    """How the values of a load are decoded, and what becomes of bad ones.

    `letters_to` names a topic for all dead letters; None is one for each topic.
    """

    decoder: Decoder
    on_error: str = FAIL
    letters_to: str | None = None
    takes_nul: bool = True
    takes_nan: bool = True
    takes_infinity: bool = True
    days: range | None = None
    narrower: Mapping[str, pa.DataType] = dataclasses.field(default_factory=dict)
    """Columns that keep the type of the table, which not every value fits."""
    upsert: Upsert | None = None
    """What rows have to have beside their values."""

    @property
    def fields(self) -> list[str]:
        """The columns that a value's schema makes; none where it makes the column `value` alone."""
        kind = self.decoder.type
        fields = kind if pa.types.is_struct(kind) else ()
        names = [_column_name(one.name) for one in fields]
        # The last one of change events is a mark.
        return names[:-1] if isinstance(self.decoder, DebeziumRows) else names

    def for_upsert(self, upsert: Upsert) -> "Values":
        """Raises InvalidOptionError where deleted rows would not tell their key."""
        is_envelope = isinstance(self.decoder, DebeziumRows) and not self.decoder.is_flat
        if is_envelope and {*upsert.key, upsert.order_by} & set(self.fields):
            raise InvalidOptionError(
                "Debezium's deletions have no row after them, and so no fields to be found or "
                "ordered by: leave key out, which is then the record's, and order_by timestamp; or "
                "have Debezium rewrite its events (ExtractNewRecordState)"
            )
        return dataclasses.replace(self, upsert=upsert)

    def columns_to_read(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """What has to be read to make rows of the topic's `columns`."""
        wanted = dict.fromkeys((*columns, "value", "topic", "partition", "offset"))
        if self.on_error != FAIL:
            wanted |= dict.fromkeys(("timestamp",))
        if self.on_error == DEAD_LETTER:
            wanted |= dict.fromkeys(("key", "headers"))
        return tuple(name for name in COLUMN_TYPES if name in wanted)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of rows whose topic's columns are `schema`.

        Raises InvalidOptionError where two would have one name.
        """
        fields: list[pa.Field] = []
        for field in schema:
            fields += self._value_fields(schema) if field.name == "value" else [field]
        if self.on_error == NULL:
            fields.append(pa.field(ERROR_COLUMN, pa.string()))
        names = [field.name.lower() for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidOptionError(
                f"the value's schema gives two columns the name {twice[0]}: rename the field, or "
                "load the value as binary"
            )
        return pa.schema(fields)

    def rows(
        self, records: pa.RecordBatch, schema: pa.Schema, letters: DeadLetters
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Rows with the columns of `schema`, and how many of the records were bad: in one batch,
        or in several where these could take much memory.

        Raises BadRecordError, DeliveryError.
        """
        for start, count in slices(records.column("value"), self.decoder.type):
            yield self._rows(records.slice(start, count), schema, letters)

    def _rows(
        self, records: pa.RecordBatch, schema: pa.Schema, letters: DeadLetters
    ) -> tuple[pa.RecordBatch, int]:
        decoded = self.decoder.decode(records.column("value"))
        decoded, settled = self._settled(self._held(self._emptied(decoded)))
        errors = decoded.errors
        columns = self._columns(records, decoded) | settled
        if self.on_error == FAIL:
            if errors:
                raise BadRecordError(_told(records, errors))
        else:
            errors = {**self._bad_beside_value(records, schema, columns), **errors}
        if self.on_error == NULL and "headers" in columns and not self.takes_nul:
            columns["headers"] = _nulled(columns["headers"], rows_with_nul(columns["headers"]))
        if self.on_error == NULL and self.days is not None:
            times = columns["timestamp"]
            columns["timestamp"] = _nulled(times, rows_out_of_days(times, self.days))
        if self.on_error == NULL:
            columns[ERROR_COLUMN] = _reasons(errors, records.num_rows)
        rows = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        if errors and self.on_error == DEAD_LETTER:
            bad = sorted(errors)
            letters.send(records.take(pa.array(bad)), [errors[row] for row in bad])
            rows = rows.filter(pc.invert(_mask(bad, records.num_rows)))
        return rows, len(errors)

    def _emptied(self, decoded: Decoded) -> Decoded:
        """Deletions without the fields by which they are neither found nor ordered: what the target
        does not hold of them keeps no row."""
        if self.upsert is None or not isinstance(self.decoder, DebeziumRows):
            return decoded
        *fields, deleted = decoded.column.flatten()
        if not pc.any(deleted).as_py():
            return decoded
        kept = pc.if_else(
            pc.fill_null(deleted, False), pa.scalar(None, pa.int64()), pa.array(range(len(deleted)))
        )
        wanted = {*self.upsert.key, self.upsert.order_by}
        columns = [
            field if name in wanted else field.take(kept)
            for name, field in zip(self.fields, fields, strict=True)
        ]
        made = pa.StructArray.from_arrays([*columns, deleted], fields=list(decoded.column.type))
        return Decoded(made, decoded.errors)

    def _held(self, decoded: Decoded) -> Decoded:
        """Without what the target cannot hold."""
        if not self.takes_nul:
            rows_of_nul = rows_with_nul(decoded.column)
            decoded = _without(decoded, rows_of_nul, f"a text {_HOLDS_NUL}")
        if not self.takes_nan:
            decoded = _without(decoded, rows_with_nan(decoded.column), _IS_NAN)
        if not self.takes_infinity:
            decoded = _without(decoded, rows_with_infinity(decoded.column), _IS_INFINITE)
        if self.days is not None:
            rows = rows_out_of_days(decoded.column, self.days)
            decoded = _without(decoded, rows, f"it holds {_NO_DAY}")
        return decoded

    def _bad_beside_value(
        self, records: pa.RecordBatch, schema: pa.Schema, columns: Mapping[str, pa.Array]
    ) -> dict[int, str]:
        """Which records are bad though their values are not, and why: headers if they are loaded,
        `columns` where an upsert needs them."""
        times = records.column("timestamp")
        errors = _without_time(times)
        if self.upsert is not None and self.on_error == DEAD_LETTER:
            errors |= self.upsert.unfit(columns)
        if self.days is not None:
            rows = rows_out_of_days(times, self.days)
            errors |= dict.fromkeys(rows, f"its timestamp is {_NO_DAY}")
        if "headers" in schema.names:
            headers = records.column("headers")
            errors |= dict.fromkeys(_without_header_key(headers), "a header has no key")
            if not self.takes_nul:
                rows = rows_with_nul(headers)
                errors |= dict.fromkeys(rows, f"a header's key {_HOLDS_NUL}")
        return errors

    def _value_fields(self, schema: pa.Schema) -> list[pa.Field]:
        kind = self.decoder.type
        if not pa.types.is_struct(kind):
            return [pa.field("value", kind)]
        return [
            pa.field(name, self.narrower.get(name, kind.field(index).type))
            for index, name in enumerate(self.fields)
        ]

    def _settled(self, decoded: Decoded) -> tuple[Decoded, dict[str, pa.Array]]:
        """Without the values that do not fit the columns that are `narrower`, and these columns."""
        bad: dict[int, str] = {}
        columns: dict[str, pa.Array] = {}
        for name, kind in self.narrower.items():
            columns[name], rows = settled(self._field(decoded, name), kind)
            bad |= dict.fromkeys(rows, f"{name} does not fit the table's column, which is {kind}")
        if bad:
            decoded = Decoded(_nulled(decoded.column, set(bad)), {**bad, **decoded.errors})
            columns = {name: _nulled(column, set(bad)) for name, column in columns.items()}
        return decoded, columns

    def _field(self, decoded: Decoded, name: str) -> pa.Array:
        return decoded.column.flatten()[self.fields.index(name)]

    def _columns(self, records: pa.RecordBatch, decoded: Decoded) -> dict[str, pa.Array]:
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        tombstones = pc.is_null(columns["value"])
        kind = self.decoder.type
        if not pa.types.is_struct(kind):
            return {**columns, "value": decoded.column} | self._marks(tombstones)
        # A field of a struct that is null is null.
        fields = decoded.column.flatten()
        columns |= {
            _column_name(field.name): child for field, child in zip(kind, fields, strict=True)
        }
        if isinstance(self.decoder, DebeziumRows):
            tombstones = pc.or_(tombstones, pc.fill_null(columns[DELETED], False))
        return columns | self._marks(tombstones)

    def _marks(self, deleted: pa.Array) -> dict[str, pa.Array]:
        return {} if self.upsert is None else {DELETED: deleted}


def open_values(
    value_format: str,
    schema: str | None,
    registry: Mapping[str, str] | None,
    on_error: str,
    letters_to: str | None,
    envelope: str | None = None,
) -> Values | None:
    """How to decode; None for records that all stay as they are.

    Raises InvalidOptionError, and what `open_decoder` raises.
    """
    if on_error not in ON_ERROR:
        raise InvalidOptionError(
            f"on_error is {on_error!r}: write one of {', '.join(ON_ERROR[:-1])} or {NULL}"
        )
    if letters_to is not None and on_error != DEAD_LETTER:
        raise InvalidOptionError("dead_letter_topic has no effect without on_error=deadletter")
    if envelope not in (None, DEBEZIUM):
        raise InvalidOptionError(f"envelope is {envelope!r}: write {DEBEZIUM}, or leave it out")
    decoder = open_decoder(value_format, schema, registry)
    if envelope is not None:
        decoder = debezium_rows(decoder)
    if value_format == "binary" and on_error == FAIL:
        return None
    return Values(decoder, on_error, checked_topic(letters_to))


def _column_name(field: str) -> str:
    return f"value_{field}" if field.lower() in _TAKEN else field


_TAKEN = {name.lower() for name in COLUMN_TYPES}


def _told(records: pa.RecordBatch, errors: Mapping[int, str]) -> str:
    row = min(errors)
    topic, partition, offset = (
        records.column(name)[row].as_py() for name in ("topic", "partition", "offset")
    )
    more = f" ({len(errors) - 1} more nearby)" if len(errors) > 1 else ""
    return (
        f"the value of {topic}-{partition} at offset {offset} cannot be decoded: {errors[row]}"
        f"{more}. Nothing was published. With on_error (--on-error) deadletter a load goes on, or "
        f"with null, which needs a column {ERROR_COLUMN} (a text) in a table that is there."
    )


def _without(decoded: Decoded, rows: set[int], reason: str) -> Decoded:
    """The same, with the values of `rows` as bad ones."""
    if not rows:
        return decoded
    said = dict.fromkeys(rows, reason)
    return Decoded(_nulled(decoded.column, rows), {**decoded.errors, **said})


def _nulled(column: pa.Array, rows: set[int]) -> pa.Array:
    """`column` with null in `rows`."""
    if not rows:
        return column
    kept = [None if row in rows else row for row in range(len(column))]
    return column.take(pa.array(kept, pa.int64()))


def _without_time(timestamps: pa.Array) -> dict[int, str]:
    if not timestamps.null_count:
        return {}
    rows = pc.indices_nonzero(pc.is_null(timestamps)).to_pylist()
    return dict.fromkeys(rows, "its timestamp is later or earlier than any time")


def _without_header_key(headers: pa.Array) -> set[int]:
    keys = pc.list_flatten(headers).field("key")
    if not keys.null_count:
        return set()
    return set(pc.list_parent_indices(headers).filter(pc.is_null(keys)).to_pylist())


def _reasons(errors: Mapping[int, str], count: int) -> pa.Array:
    if not errors:
        return pa.nulls(count, pa.string())
    return pa.array([errors.get(row) for row in range(count)], pa.string())


def _mask(rows: list[int], count: int) -> pa.Array:
    chosen = set(rows)
    return pa.array([row in chosen for row in range(count)], pa.bool_())
