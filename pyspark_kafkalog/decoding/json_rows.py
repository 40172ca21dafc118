"""JSON values into Arrow: documents by orjson, one Arrow conversion for a batch.

Owns what a JSON value may be where the type is known. Close to Spark's `from_json`: members that
the type does not have are passed over, missing ones are null; a `string` takes anything and keeps
what is not a string as JSON text; timestamps are ISO 8601 (UTC where they name no offset) or
seconds since 1970, dates `YYYY-MM-DD`, binary is base64, decimals are numbers or strings and keep
every digit. Stricter than Spark: a value of another kind, or a number that does not fit, is the
row's error, not a null in its place.

Reals are doubles, as JSON libraries agree on; whole numbers, decimals and their text keep every
digit. orjson makes doubles of whole numbers beyond 64 bits: where one is met, and for types with
decimals, the document is read once more by `json`, slower and to the digit. Refused are bytes that
are no JSON or no UTF-8, a byte order mark, and nesting deeper than about 1,000.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any

import orjson
import pyarrow as pa

from pyspark_kafkalog.decoding.columns import (
    CHUNK_BYTES,
    check_room,
    decode_column,
    joined,
    without_collections,
)
from pyspark_kafkalog.decoding.decoder import BadValueError, Decoded, unframed
from pyspark_kafkalog.decoding.json_columns import (
    BuildColumn,
    UnusualValueError,
    column_builder,
    doubles_are_exact,
)
from pyspark_kafkalog.decoding.json_type import json_type
from pyspark_kafkalog.decoding.room import small_bytes

Convert = Callable[[Any], Any]

_MOST_AT_ONCE = 4_000
"""Of values that become columns together, and are looked at where one of them has to be."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_MOST_SECONDS = (1 << 63) // 1_000_000
_EXACT_IN_DOUBLE = 1 << 53
_WHOLE_DIGITS = 19
_BEYOND_FLOAT32 = (2 - 2**-24) * 2.0**127
"""No float is near. 3.4028235e38, as the largest one is written, is."""

_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?([Zz]|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
"""A time of ISO 8601, or its day alone: day, hour, minute, second, fraction, zone."""
# A double beyond 64 bits as orjson writes it; in a string it costs a second look, no more.
_HUGE = re.compile(rb"\de\+?(19|[2-9]\d|\d{3})")


class _InexactError(Exception):
    """A document has a number of which orjson may have lost digits."""


@dataclass(slots=True)
class JsonDecoder:
    """JSON documents by a schema: see `json_type.py` for what schemas there are.

    `framed`: documents are in Confluent's wire format, five bytes before the JSON; the id in them
    is that of the schema they were written with, which takes no part in reading JSON."""

    schema: str
    references: Sequence[tuple[str, str]] = ()
    framed: bool = False
    _type: pa.DataType = field(init=False, repr=False, compare=False)
    _convert: Convert | None = field(init=False, repr=False, compare=False)
    _exact: bool = field(init=False, repr=False, compare=False)
    _small_bytes: int = field(init=False, repr=False, compare=False)
    _build_column: BuildColumn | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._type = json_type(self.schema, self.references)
        self._convert = _converter(self._type)
        self._exact = _has_decimals(self._type)
        self._small_bytes = small_bytes(self._type)
        self._build_column = column_builder(self._type)

    def __reduce__(self) -> tuple[type["JsonDecoder"], tuple[Any, ...]]:
        return JsonDecoder, (self.schema, tuple(self.references), self.framed)

    @property
    def type(self) -> pa.DataType:
        return self._type

    @without_collections()
    def decode(self, values: pa.Array) -> Decoded:
        if self._build_column is None:
            return decode_column(values, self._type, self._one)
        average_bytes = values.nbytes // max(1, len(values))
        count = min(_MOST_AT_ONCE, max(1, CHUNK_BYTES // max(1, average_bytes)))
        starts = range(0, max(1, len(values)), count)
        build = self._build_column
        return joined([self._slice(values.slice(start, count), build) for start in starts])

    def _slice(self, values: pa.Array, build: BuildColumn) -> Decoded:
        column = self._column(values, build)
        return decode_column(values, self._type, self._one) if column is None else Decoded(column)

    def _column(self, values: pa.Array, build: BuildColumn) -> pa.Array | None:
        """All values at once; None where one of them has to be looked at."""
        if values.nbytes > min(2 * CHUNK_BYTES, self._small_bytes):
            return None
        if self._exact and not doubles_are_exact(values):
            return None
        try:
            if self.framed or values.null_count:
                parsed = [
                    None if one is None else orjson.loads(self._document(one))
                    for one in values.to_pylist()
                ]
            else:
                parsed = list(map(orjson.loads, values.to_pylist()))
            return build(parsed)
        except (orjson.JSONDecodeError, BadValueError, UnusualValueError):
            return None

    def _document(self, value: bytes) -> bytes:
        return unframed(value)[1] if self.framed else value

    def _one(self, value: bytes) -> Any:
        document = self._document(value)
        if not self._exact:
            try:
                return self._converted(orjson.loads(document), len(document))
            except (orjson.JSONDecodeError, _InexactError):
                pass
        return self._converted(_exact_loads(document), len(document))

    def _converted(self, document: Any, size_bytes: int) -> Any:
        if document is None or self._convert is None:
            return document
        try:
            if size_bytes > self._small_bytes:
                check_room(document, self._type, size_bytes, _member)
            return self._convert(document)
        except RecursionError:
            raise BadValueError("a value is nested too deep") from None


def _member(value: Any, name: str) -> Any:
    return value.get(name) if type(value) is dict else None


def _exact_loads(document: bytes) -> Any:
    """A document whose numbers keep their digits: int within 64 bits, Decimal for all others.

    Raises BadValueError.
    """
    try:
        text = document.decode()
    except UnicodeDecodeError as error:
        raise BadValueError(f"not valid UTF-8: {error.reason} at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise BadValueError("not a JSON document: it begins with a byte order mark")
    try:
        return json.loads(
            text, parse_float=_exact_real, parse_int=_exact_int, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        said = f"not understood at character {error.pos}" if text.strip() else "it is empty"
        raise BadValueError(f"not a JSON document: {said}") from None
    except RecursionError:
        raise BadValueError("not a JSON document: it is nested too deep") from None


def _exact_real(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise BadValueError(f"the number {text[:40]} is beyond every type") from None


def _exact_int(text: str) -> int | Decimal:
    if len(text) < _WHOLE_DIGITS:
        return int(text)
    number = Decimal(text)
    return int(number) if -(1 << 63) <= number < 1 << 64 else number


def _refuse_constant(name: str) -> None:
    raise BadValueError(f"not a JSON document: {name} is not a JSON number")


def _has_decimals(data_type: pa.DataType) -> bool:
    if pa.types.is_nested(data_type):
        children = [data_type.field(index).type for index in range(data_type.num_fields)]
        return any(map(_has_decimals, children))
    return bool(pa.types.is_decimal(data_type))


def _converter(data_type: pa.DataType) -> Convert | None:
    """What makes a JSON value one that Arrow takes for the type; None where Arrow sees to it."""
    if pa.types.is_struct(data_type):
        return _struct_converter(data_type)
    if pa.types.is_list(data_type):
        return _list_converter(_converter(data_type.value_type))
    if pa.types.is_map(data_type):
        return _map_converter(_converter(data_type.item_type))
    if pa.types.is_decimal(data_type):
        return _decimal_converter(data_type)
    for matches, convert in _CONVERTERS:
        if matches(data_type):
            return convert
    if pa.types.is_timestamp(data_type):
        return _timestamp if data_type.tz else _local_timestamp
    return None


def _struct_converter(data_type: pa.DataType) -> Convert:
    members = [(one.name, one.type, _converter(one.type)) for one in data_type]
    # Most members are what they should be, which is found out without a call.
    checked = [
        (name, _usual_type(member_type), convert)
        for name, member_type, convert in members
        if convert
    ]

    def convert_struct(value: Any) -> Any:
        if type(value) is not dict:
            raise BadValueError(f"{_shown(value)} where an object belongs")
        for name, usual, convert in checked:
            member = value.get(name)
            if type(member) is not usual and member is not None:
                try:
                    value[name] = convert(member)
                except BadValueError as error:
                    raise BadValueError(f"{name}: {error}") from None
        return value

    return convert_struct


def _usual_type(data_type: pa.DataType) -> type | None:
    """The Python type of which every value can be left as it is."""
    if pa.types.is_string(data_type):
        return str
    if pa.types.is_integer(data_type):
        return int
    if pa.types.is_boolean(data_type):
        return bool
    return float if pa.types.is_float64(data_type) else None


def _list_converter(convert: Convert | None) -> Convert:
    def convert_list(value: Any) -> Any:
        if type(value) is not list:
            raise BadValueError(f"{_shown(value)} where an array belongs")
        if convert is None:
            return value
        return [None if item is None else convert(item) for item in value]

    return convert_list


def _map_converter(convert: Convert | None) -> Convert:
    def convert_map(value: Any) -> Any:
        if type(value) is not dict:
            raise BadValueError(f"{_shown(value)} where an object belongs")
        if convert is None:
            return value
        return {name: None if item is None else convert(item) for name, item in value.items()}

    return convert_map


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    try:
        text = orjson.dumps(value, default=_number)
    except TypeError:
        raise BadValueError(
            "a value that cannot be kept as text: it is nested too deep, or a text in it is "
            "not valid Unicode"
        ) from None
    if _HUGE.search(text) and _has_float(value):
        raise _InexactError
    return text.decode()


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    raise TypeError


def _has_float(value: Any) -> bool:
    """Whether orjson has read the value, as far as can be seen: `_exact_loads` makes no float."""
    if isinstance(value, (dict, list)):
        return any(map(_has_float, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise BadValueError(f"{_shown(value)} where true or false belongs")
    return value


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float and abs(value) >= _EXACT_IN_DOUBLE:
        raise _InexactError
    if isinstance(value, Decimal) and value.adjusted() > _WHOLE_DIGITS:
        raise BadValueError(f"{_shown(value)} is too large for a whole number")
    if not isinstance(value, (float, Decimal)) or value % 1:
        raise BadValueError(f"{_shown(value)} where a whole number belongs")
    return int(value)


def _real(value: Any) -> Any:
    if type(value) is float:
        return value
    if type(value) is bool or not isinstance(value, (int, Decimal)):
        raise BadValueError(f"{_shown(value)} where a number belongs")
    real = float(value)
    if math.isinf(real):
        raise BadValueError(f"{_shown(value)} is too large for a double")
    return real


def _real32(value: Any) -> Any:
    real = _real(value)
    if abs(real) >= _BEYOND_FLOAT32:
        raise BadValueError(f"{_shown(value)} is too large for a float")
    return real


def _decimal_converter(data_type: pa.Decimal128Type) -> Convert:
    unit = Decimal(1).scaleb(-data_type.scale)
    exactly = Context(
        data_type.precision, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation, Inexact]
    )

    def convert_decimal(value: Any) -> Decimal:
        is_number = type(value) is int or isinstance(value, Decimal)
        if not is_number and not (type(value) is str and _DECIMAL.fullmatch(value)):
            raise BadValueError(f"{_shown(value)} where a decimal belongs")
        try:
            # Arrow is given the scale that it needs: with exponents of other sizes it looks for
            # a power of ten where its table of them has long ended.
            return Decimal(value).quantize(unit, context=exactly)
        except (InvalidOperation, Inexact):
            raise BadValueError(f"{_shown(value)} does not fit {data_type}") from None

    return convert_decimal


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise BadValueError(f"{_shown(value)} where base64 belongs") from None


def _date(value: Any) -> date:
    try:
        # Newer Pythons take other forms, too.
        if _DATE.fullmatch(value):
            return date.fromisoformat(value)
    except (ValueError, TypeError):
        pass
    raise BadValueError(f"{_shown(value)} where a date belongs")


def _timestamp(value: Any) -> int:
    """Microseconds since 1970."""
    if type(value) is int and abs(value) < _MOST_SECONDS:
        return value * 1_000_000
    moment = _moment(value)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH) // _MICROSECOND


def _local_timestamp(value: Any) -> int:
    return (_moment(value).replace(tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND


def _moment(value: Any) -> datetime:
    parts = _MOMENT.fullmatch(value) if type(value) is str else None
    if parts is None:
        raise BadValueError(f"{_shown(value)} where a timestamp belongs")
    day, hour, minute, second, fraction, zone = parts.groups()
    try:
        # In a form that Python 3.10 takes, too: no Z, and fractions of 6 digits.
        text = f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}.{fraction or '':0<6.6}"
        return datetime.fromisoformat(f"{text}{_zone(zone)}")
    except ValueError:
        raise BadValueError(f"{_shown(value)} where a timestamp belongs") from None


def _zone(text: str | None) -> str:
    if text is None or text in "Zz":
        return "" if text is None else "+00:00"
    digits = text[1:].replace(":", "")
    return f"{text[0]}{digits[:2]}:{digits[2:] or '00'}"


def _shown(value: Any) -> str:
    try:
        text = orjson.dumps(value, default=_number).decode()
    except TypeError:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_CONVERTERS: Sequence[tuple[Callable[[pa.DataType], bool], Convert]] = (
    (pa.types.is_string, _text),
    (pa.types.is_integer, _whole),
    (pa.types.is_float32, _real32),
    (pa.types.is_floating, _real),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_binary, _binary),
    (pa.types.is_date, _date),
)
