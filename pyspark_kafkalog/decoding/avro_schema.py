"""Avro schemas: from their JSON to values that are easy to walk, and to Arrow's types.

Owns names and namespaces, aliases, logical types and the encoding of defaults (Avro 1.12
specification, "Schema Declaration"). Types become those of Spark's `from_avro`: a union of null and
another type is that type, nullable; of int and long a long, of float and double a double; of
several others a struct with a field `member0`, `member1`, ... for each. What Spark leaves as number
or bytes stays so here: times of day, timestamps in nanoseconds, durations. A type that contains
itself has no Arrow type and is refused. All fields are nullable.

A logical type that does not fit its schema is left out, as the specification has it. Pure
functions.
"""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidSchemaError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MOST_DIGITS = 38
_DEEPEST = 64
_MOST_TYPES = 20_000
_LOGICAL_TYPES = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_ARROW_TYPES = {
    # Arrow's own null type is known to few: a text that is always null.
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


@dataclass(slots=True, eq=False)
class AvroType:
    """A type. `kind` is one of PRIMITIVES, record, enum, fixed, array, map or union.

    `items` is the type of an array's items or a map's values; `scale` counts where `precision` is
    not 0, which makes bytes or fixed a decimal.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    items: "AvroType | None" = None
    branches: tuple["AvroType", ...] = ()
    fields: tuple["AvroField", ...] = ()

    @property
    def members(self) -> tuple["AvroType", ...]:
        """The branches of a union that are not null."""
        return tuple(branch for branch in self.branches if branch.kind != "null")

    @property
    def item(self) -> "AvroType":
        assert self.items is not None
        return self.items


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record; `default` counts when `has_default`."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = field(default=None, repr=False)


def parse_avro_schema(text: str, references: Sequence[str] = ()) -> AvroType:
    """The type that a schema's JSON declares; `references` are schemas that it takes names from.

    Raises InvalidSchemaError.
    """
    parser = _Parser({})
    try:
        for reference in references:
            parser.type(_loads(reference), "", 0)
        return parser.type(_loads(text), "", 0)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidSchemaError(f"the Avro schema is malformed: {error!r}") from None


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if _NAME.fullmatch(text.strip()):
            return text.strip()
        raise InvalidSchemaError(f"the Avro schema is not valid JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class _Parser:
    """Types of one schema; `named` are those that it has declared so far, by their full names."""

    named: dict[str, AvroType]

    def type(self, declared: Any, namespace: str, depth: int) -> AvroType:
        if depth > _DEEPEST:
            raise InvalidSchemaError(f"the Avro schema is nested more than {_DEEPEST} deep")
        if isinstance(declared, str):
            return self._called(declared, namespace)
        if isinstance(declared, list):
            return self._union(declared, namespace, depth)
        if not isinstance(declared, dict):
            raise InvalidSchemaError(f"the Avro schema has {declared!r} where a type belongs")
        kind = declared["type"]
        if not isinstance(kind, str):
            return self.type(kind, namespace, depth + 1)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named("record" if kind == "error" else kind, declared, namespace, depth)
        if kind in ("array", "map"):
            inner = declared["items" if kind == "array" else "values"]
            return AvroType(kind, items=self.type(inner, namespace, depth + 1))
        found = self._called(kind, namespace)
        if kind in PRIMITIVES and "logicalType" in declared:
            found = _logical(AvroType(kind), declared)
        return found

    def _called(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self.named.get(full) or self.named.get(name)
        if found is None:
            raise InvalidSchemaError(
                f"the Avro schema names a type {full!r} that is nowhere declared"
            )
        return found

    def _union(self, declared: list[Any], namespace: str, depth: int) -> AvroType:
        branches = tuple(self.type(branch, namespace, depth + 1) for branch in declared)
        kinds = [branch.name or branch.kind for branch in branches]
        if len(set(kinds)) < len(kinds) or "union" in kinds:
            raise InvalidSchemaError(f"the Avro schema has a union of {', '.join(kinds)}")
        return AvroType("union", branches=branches)

    def _named(
        self, kind: str, declared: Mapping[str, Any], namespace: str, depth: int
    ) -> AvroType:
        name, namespace = _full_name(declared["name"], declared.get("namespace"), namespace)
        aliases = tuple(
            _full_name(alias, None, namespace)[0] for alias in declared.get("aliases", ())
        )
        if name in self.named:
            raise InvalidSchemaError(f"the Avro schema declares {name!r} twice")
        found = self.named[name] = AvroType(kind, name=name, aliases=aliases)
        if kind == "record":
            found.fields = tuple(self._field(one, namespace, depth) for one in declared["fields"])
            names = [one.name for one in found.fields]
            if len(set(names)) < len(names):
                raise InvalidSchemaError(f"the Avro record {name} has two fields of one name")
        elif kind == "enum":
            found.symbols = tuple(declared["symbols"])
            found.default_symbol = declared.get("default")
            _check_enum(found)
        else:
            found.size = declared["size"]
            if not isinstance(found.size, int) or not 0 <= found.size < 1 << 31:
                raise InvalidSchemaError(f"the Avro type {name} has a size of {found.size!r}")
            _logical(found, declared)
        return found

    def _field(self, declared: Mapping[str, Any], namespace: str, depth: int) -> AvroField:
        return AvroField(
            name=str(declared["name"]),
            type=self.type(declared["type"], namespace, depth + 1),
            aliases=tuple(declared.get("aliases", ())),
            has_default="default" in declared,
            default=declared.get("default"),
        )


def _check_enum(enum: AvroType) -> None:
    """Raises InvalidSchemaError. Names with characters that Avro does not allow are let pass."""
    symbols = set(enum.symbols)
    if len(symbols) < len(enum.symbols) or not all(
        isinstance(symbol, str) and symbol for symbol in symbols
    ):
        raise InvalidSchemaError(
            f"the Avro enum {enum.name} repeats a symbol, or has one that is not a valid name"
        )
    if enum.default_symbol is not None and enum.default_symbol not in symbols:
        raise InvalidSchemaError(
            f"the Avro enum {enum.name} has the default {enum.default_symbol!r}, which is not one "
            "of its symbols"
        )


def _full_name(name: str, declared: str | None, around: str) -> tuple[str, str]:
    """The full name, and the namespace for what is declared inside."""
    if not _NAME.fullmatch(name):
        raise InvalidSchemaError(f"the Avro schema has the name {name!r}")
    if "." in name:
        return name, name.rpartition(".")[0]
    namespace = around if declared is None else declared
    return (f"{namespace}.{name}" if namespace else name), namespace


def _logical(found: AvroType, declared: Mapping[str, Any]) -> AvroType:
    logical = declared.get("logicalType")
    if (found.kind, logical) in _LOGICAL_TYPES:
        found.logical = str(logical)
    elif logical == "decimal" and found.kind in ("bytes", "fixed"):
        precision, scale = declared.get("precision"), declared.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision:
            if precision > _MOST_DIGITS:
                raise InvalidSchemaError(
                    f"the Avro schema has a decimal of {precision} digits; Spark's have at most "
                    f"{_MOST_DIGITS}"
                )
            found.precision, found.scale = precision, scale
    return found


def arrow_type(avro: AvroType, _inside: tuple[AvroType, ...] = ()) -> pa.DataType:
    """What `avro` is read as; raises InvalidSchemaError for a type that contains itself, and for
    one of too many columns."""
    if not _inside and _type_count(avro, {}) > _MOST_TYPES:
        raise InvalidSchemaError(
            f"the Avro schema has more than {_MOST_TYPES} columns where the types that it names "
            "are written out: read it with a smaller schema"
        )
    if any(avro is outer for outer in _inside):
        raise InvalidSchemaError(
            f"the Avro type {avro.name} contains itself, which Arrow and Spark have no type for"
        )
    inside = (*_inside, avro)
    if avro.kind == "record":
        fields = [pa.field(one.name, arrow_type(one.type, inside)) for one in avro.fields]
        return pa.struct(fields)
    if avro.kind == "array":
        return pa.list_(arrow_type(avro.item, inside))
    if avro.kind == "map":
        return pa.map_(pa.string(), arrow_type(avro.item, inside))
    if avro.kind == "union":
        return _union_type(avro, inside)
    if avro.precision:
        return pa.decimal128(avro.precision, avro.scale)
    if avro.kind in ("enum", "fixed"):
        return pa.string() if avro.kind == "enum" else pa.binary()
    return _LOGICAL_TYPES.get((avro.kind, avro.logical), _ARROW_TYPES[avro.kind])


def _type_count(avro: AvroType, known: dict[int, int]) -> int:
    """How many types `avro` is written out: a few lines may use each of their types twice."""
    if id(avro) not in known:
        # Of a type that contains itself, which is refused later.
        known[id(avro)] = 1
        inner = (*avro.branches, *(one.type for one in avro.fields))
        inner = inner if avro.items is None else (*inner, avro.items)
        known[id(avro)] = 1 + sum(_type_count(one, known) for one in inner)
    return known[id(avro)]


def _union_type(avro: AvroType, inside: tuple[AvroType, ...]) -> pa.DataType:
    if widened := widened_kind(avro):
        return _ARROW_TYPES[widened]
    if len(avro.members) < 2:
        return arrow_type(avro.members[0], inside) if avro.members else pa.string()
    return pa.struct(
        [
            pa.field(f"member{index}", arrow_type(member, inside))
            for index, member in enumerate(avro.members)
        ]
    )


def widened_kind(union: AvroType) -> str:
    """long for a union of int and long, double for one of float and double, else empty."""
    kinds = {member.kind for member in union.members}
    if any(member.logical for member in union.members):
        return ""
    return {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}.get(
        frozenset(kinds), ""
    )


def encode(avro: AvroType, value: Any) -> bytes:
    """The binary encoding of a field's default, as it stands in a schema's JSON.

    Raises InvalidSchemaError when it is not one of the type.
    """
    try:
        return _encode(avro, value)
    except (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError):
        raise InvalidSchemaError(
            f"the Avro schema has a default {value!r} of the type {avro.name or avro.kind}"
        ) from None


def _encode(avro: AvroType, value: Any) -> bytes:
    kind = avro.kind
    if kind == "union":
        # The specification has defaults be of the first branch; newer writers take any.
        for index, branch in enumerate(avro.branches):
            if _fits(branch, value):
                return _long(index) + _encode(branch, value)
        raise ValueError
    if not _fits(avro, value):
        raise ValueError
    if kind == "record":
        return b"".join(
            _encode(one.type, value[one.name] if one.name in value else _default_of(one))
            for one in avro.fields
        )
    if kind in ("array", "map"):
        return _encode_items(avro, value)
    if kind in ("string", "bytes"):
        data: bytes = value.encode("utf-8" if kind == "string" else "iso-8859-1")
        return _long(len(data)) + data
    if kind == "fixed":
        data = value.encode("iso-8859-1")
        if len(data) != avro.size:
            raise ValueError
        return data
    return _encode_plain(avro, value)


def _encode_plain(avro: AvroType, value: Any) -> bytes:
    if avro.kind == "null":
        return b""
    if avro.kind == "boolean":
        return bytes([value])
    if avro.kind in ("int", "long"):
        return _long(int(value))
    if avro.kind == "enum":
        return _long(avro.symbols.index(value))
    return struct.pack("<f" if avro.kind == "float" else "<d", float(value))


def _encode_items(avro: AvroType, value: Any) -> bytes:
    if avro.kind == "array":
        items = [_encode(avro.item, item) for item in value]
    else:
        text = AvroType("string")
        items = [_encode(text, key) + _encode(avro.item, item) for key, item in value.items()]
    return (_long(len(items)) + b"".join(items) if items else b"") + b"\x00"


def _default_of(one: AvroField) -> Any:
    if not one.has_default:
        raise KeyError(one.name)
    return one.default


_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}


def _fits(avro: AvroType, value: Any) -> bool:
    types = _PYTHON_TYPES.get(avro.kind, (str,))
    return isinstance(value, types) and (avro.kind == "boolean" or not isinstance(value, bool))


def _long(number: int) -> bytes:
    """A zigzag varint."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    if rest >> 64:
        raise OverflowError
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
