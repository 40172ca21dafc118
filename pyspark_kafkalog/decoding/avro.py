"""Avro values into Arrow: which step reads what, by the rules of schema resolution.

Owns "Schema Resolution" of the Avro 1.12 specification: fields by name or the reader's alias, the
reader's defaults, promotions, unions on either side, enums with a default. Names of records, enums
and fixed are compared without their namespace, as Avro's own implementations do it. What can never
be read is refused when the decoder is made; what depends on the value (a branch, a symbol) is that
value's error.

`AvroDecoder` is for plain values of one writer's schema; `confluent.py` has the one for many.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.decoding.avro_rows import (
    Bytes,
    Items,
    Numbers,
    ReadBoolean,
    ReadBytes,
    ReadDecimal,
    ReadDefault,
    ReadEnum,
    ReadFloatAsDouble,
    ReadItems,
    ReadLong,
    ReadLongAsReal,
    ReadMember,
    ReadNull,
    ReadReal,
    ReadRecord,
    ReadUnion,
    Refuse,
    Struct,
    read_rows,
)
from pyspark_kafkalog.decoding.avro_schema import (
    AvroField,
    AvroType,
    arrow_type,
    encode,
    parse_avro_schema,
    widened_kind,
)
from pyspark_kafkalog.decoding.decoder import Decoded
from pyspark_kafkalog.errors import InvalidSchemaError

_PROMOTIONS = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
_BITS = {"int": 32, "long": 64, "float": 32, "double": 64}


@dataclass(slots=True)
class AvroReader:
    """The columns of one reader's schema, and the steps that fill them. One thread."""

    schema: AvroType
    type: pa.DataType
    column: Any

    @classmethod
    def of(cls, schema: AvroType) -> "AvroReader":
        """Raises InvalidSchemaError for a schema without an Arrow type."""
        data_type = arrow_type(schema)
        return cls(schema, data_type, _column(schema, data_type))

    def step_for(self, writer: AvroType, *, whole: bool = False) -> Any:
        """How values of `writer` are read. Raises InvalidSchemaError when they never can be.

        `whole`: bytes are written without their length, as Confluent's serializers write a schema
        that is nothing else.
        """
        if whole and writer.kind == "bytes" and self.schema.kind in ("bytes", "string"):
            if not self.schema.precision:
                return ReadBytes(self.column, self.schema.kind == "string", -2)
            _check_decimals(writer, self.schema)
            return ReadDecimal(self.column, self.schema.precision, -2)
        return _resolve(writer, self.schema, self.column)

    def read(
        self, values: pa.Array, step: Any, step_of: Callable[[int], Any] | None = None
    ) -> Decoded:
        return Decoded(*read_rows(values, self.column, step, step_of))


@dataclass(slots=True)
class AvroDecoder:
    """Plain Avro: every value is one datum of `writer_schema`, with nothing before or after it."""

    schema: str
    writer_schema: str
    _reader: AvroReader = field(init=False, repr=False, compare=False)
    _step: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reader = parse_avro_schema(self.schema)
        same = self.schema == self.writer_schema
        self._reader = AvroReader.of(reader)
        self._step = self._reader.step_for(
            reader if same else parse_avro_schema(self.writer_schema)
        )

    def __reduce__(self) -> tuple[type["AvroDecoder"], tuple[str, str]]:
        return AvroDecoder, (self.schema, self.writer_schema)

    @property
    def type(self) -> pa.DataType:
        return self._reader.type

    def decode(self, values: pa.Array) -> Decoded:
        return self._reader.read(values, self._step)


def _column(avro: AvroType, data_type: pa.DataType) -> Any:
    """The column that `arrow_type` gave the type for."""
    if avro.kind == "union" and len(avro.members) == 1:
        return _column(avro.members[0], data_type)
    if avro.kind == "record":
        return Struct(
            data_type,
            [
                _column(one.type, data_type.field(index).type)
                for index, one in enumerate(avro.fields)
            ],
        )
    if avro.kind == "array":
        return Items(data_type, _column(avro.item, data_type.value_type))
    if avro.kind == "map":
        return Items(data_type, _column(avro.item, data_type.item_type), Bytes(pa.string()))
    if pa.types.is_struct(data_type):
        return Struct(
            data_type,
            [
                _column(member, data_type.field(index).type)
                for index, member in enumerate(avro.members)
            ],
        )
    byte_like = pa.types.is_string(data_type) or pa.types.is_binary(data_type)
    return Bytes(data_type) if byte_like or avro.precision else Numbers(data_type)


def _resolve(writer: AvroType, reader: AvroType, column: Any) -> Any:
    if writer.kind == "union":
        return ReadUnion([_branch(branch, reader, column) for branch in writer.branches])
    if reader.kind == "union":
        return _into_union(writer, reader, column)
    if not _matches(writer, reader):
        raise InvalidSchemaError(
            f"Avro {_shown(writer)} was written where the reader's schema has {_shown(reader)}"
        )
    if writer.kind == "record":
        return _resolve_record(writer, reader, column)
    if writer.kind == "array":
        return ReadItems(column, _resolve(writer.item, reader.item, column.item()), False)
    if writer.kind == "map":
        return ReadItems(column, _resolve(writer.item, reader.item, column.item()), True)
    return _resolve_plain(writer, reader, column)


def _branch(branch: AvroType, reader: AvroType, column: Any) -> Any:
    try:
        return _resolve(branch, reader, column)
    except InvalidSchemaError as error:
        return Refuse(str(error))


def _into_union(writer: AvroType, reader: AvroType, column: Any) -> Any:
    """By the first branch of the reader's that is the same type, or else the first that fits.

    Of two that are called alike in their namespaces it is the one of the writer's."""
    candidates = [branch for branch in reader.branches if _matches(writer, branch)]
    candidates.sort(
        key=lambda branch: (
            branch.kind != writer.kind,
            writer.name not in (branch.name, *branch.aliases),
        )
    )
    reasons = []
    for branch in candidates:
        try:
            return _into_branch(writer, reader, branch, column)
        except InvalidSchemaError as error:
            reasons.append(str(error))
    raise InvalidSchemaError(
        reasons[0]
        if reasons
        else f"Avro {_shown(writer)} was written where the reader's schema has a union without it"
    )


def _into_branch(writer: AvroType, reader: AvroType, branch: AvroType, column: Any) -> Any:
    if branch.kind == "null":
        return ReadNull(column)
    if widened := widened_kind(reader):
        return _resolve(writer, AvroType(widened), column)
    if len(reader.members) == 1:
        return _resolve(writer, branch, column)
    index = next(at for at, member in enumerate(reader.members) if member is branch)
    return ReadMember(column, index, _resolve(writer, branch, column.field(index)))


def _matches(writer: AvroType, reader: AvroType) -> bool:
    """Whether the two are of one type as far as can be seen without looking inside."""
    if writer.kind == "union" or reader.kind == "union":
        return True
    if writer.kind in ("record", "enum", "fixed"):
        names = {_unqualified(name) for name in (reader.name, *reader.aliases)}
        return (
            writer.kind == reader.kind
            and _unqualified(writer.name) in names
            and writer.size == reader.size
        )
    return reader.kind in _PROMOTIONS.get(writer.kind, (writer.kind,))


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _shown(avro: AvroType) -> str:
    return f"{avro.kind} {avro.name}".strip()


def _resolve_record(writer: AvroType, reader: AvroType, column: Any) -> Any:
    wanted = {}
    for index, one in enumerate(reader.fields):
        source = _written_field(writer, one)
        if source is not None:
            wanted[source.name] = index
    steps: list[Any] = []
    for one in writer.fields:
        index = wanted.get(one.name, -1)
        if index < 0:
            steps.append(_skip(one.type, {}))
        else:
            steps.append(_resolve(one.type, reader.fields[index].type, column.field(index)))
    filled = set(wanted.values())
    for index, one in enumerate(reader.fields):
        if index not in filled:
            if not one.has_default:
                raise InvalidSchemaError(
                    f"the reader's Avro schema has the field {reader.name}.{one.name}, which was "
                    "not written and has no default"
                )
            step = _resolve(one.type, one.type, column.field(index))
            steps.append(ReadDefault(step, encode(one.type, one.default)))
    return ReadRecord(column, steps)


def _written_field(writer: AvroType, wanted: AvroField) -> AvroField | None:
    by_name = {one.name: one for one in writer.fields}
    for name in (wanted.name, *wanted.aliases):
        if name in by_name:
            return by_name[name]
    return None


def _resolve_plain(writer: AvroType, reader: AvroType, column: Any) -> Any:
    if writer.kind == "null":
        return ReadNull(column)
    if writer.kind == "boolean":
        return ReadBoolean(column)
    if writer.kind == "enum":
        return _resolve_enum(writer, reader, column)
    if writer.kind in ("bytes", "string", "fixed"):
        return _resolve_bytes(writer, reader, column)
    if reader.kind in ("float", "double"):
        if writer.kind in ("int", "long"):
            return ReadLongAsReal(column, _BITS[reader.kind])
        if writer.kind != reader.kind:
            return ReadFloatAsDouble(column)
        return ReadReal(column, _BITS[reader.kind] // 8)
    # What a number counts is the writer's to say; where it does not, it is what the reader says.
    unit = writer.logical or reader.logical
    if reader.logical and (unit == "date") != (reader.logical == "date"):
        raise InvalidSchemaError(
            f"an Avro {unit} was written where the reader's schema has {reader.logical}"
        )
    is_millis = reader.logical and unit.endswith("millis")
    return ReadLong(column, _BITS[writer.kind], 1000 if is_millis else 1)


def _resolve_enum(writer: AvroType, reader: AvroType, column: Any) -> Any:
    known = set(reader.symbols)
    return ReadEnum(
        column,
        [symbol if symbol in known else reader.default_symbol for symbol in writer.symbols],
    )


def _resolve_bytes(writer: AvroType, reader: AvroType, column: Any) -> Any:
    size = writer.size if writer.kind == "fixed" else -1
    if not reader.precision:
        return ReadBytes(column, reader.kind == "string", size)
    _check_decimals(writer, reader)
    return ReadDecimal(column, reader.precision, size)


def _check_decimals(writer: AvroType, reader: AvroType) -> None:
    written, wanted = (writer.precision, writer.scale), (reader.precision, reader.scale)
    if writer.precision and written != wanted:
        raise InvalidSchemaError(
            f"an Avro decimal{written} was written where the reader's schema has decimal{wanted}"
        )


def _skip(avro: AvroType, recursive: dict[int, Any]) -> Any:
    """Reads a value into nowhere; `recursive` has the records on the way to it."""
    if avro.kind == "record":
        if id(avro) in recursive:
            return recursive[id(avro)]
        record = recursive[id(avro)] = ReadRecord(None, [])
        record.follow([_skip(one.type, recursive) for one in avro.fields])
        return record
    if avro.kind in ("array", "map"):
        return ReadItems(None, _skip(avro.item, recursive), avro.kind == "map")
    if avro.kind == "union":
        return ReadUnion([_skip(branch, recursive) for branch in avro.branches])
    if avro.kind in ("float", "double"):
        return ReadReal(None, _BITS[avro.kind] // 8)
    if avro.kind == "enum":
        return ReadEnum(None, list(avro.symbols))
    if avro.kind in ("bytes", "string", "fixed"):
        return ReadBytes(None, False, avro.size if avro.kind == "fixed" else -1)
    if avro.kind in ("int", "long"):
        return ReadLong(None, _BITS[avro.kind])
    return ReadBoolean(None) if avro.kind == "boolean" else ReadNull(None)
