"""Protobuf values into Arrow: messages by Google's runtime, one Arrow conversion for a chunk.

Types become those of Spark's `from_protobuf`: enums are their names, maps maps, `Timestamp` a
timestamp, `Duration` an interval; fields of messages without fields are left out, and a message
that contains itself is refused; a field whose default is declared (proto2) has it where it was not
sent. Where Spark has an option for it, the choice is the one that loses
nothing: unsigned numbers become the next wider type (uint32 a long, uint64 a decimal(20,0)),
wrappers such as `StringValue` are what they wrap, and a field without presence that was not sent is
its default, as in every Protobuf library; any other with presence (`optional`, a message, of a
`oneof`) is null. `Struct`, `Value` and `ListValue` are JSON text. An enum's number that has no name
is shown as the number.

Fields are found by their numbers, so any version of a message is read by the reader's. In
Confluent's wire format the indexes after the schema's id say which message of the writer's schema
it is; its name must be the reader's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pyspark_kafkalog.decoding.columns import check_room, decode_column
from pyspark_kafkalog.decoding.confluent import Writers, reader_schema
from pyspark_kafkalog.decoding.decoder import BadValueError, Decoded, Decoder, unframed
from pyspark_kafkalog.decoding.proto_files import compile_proto, message_at, message_type
from pyspark_kafkalog.decoding.registry import (
    MESSAGE,
    RegisteredSchema,
    RegistryConfig,
    decoder_option,
)
from pyspark_kafkalog.decoding.room import small_bytes
from pyspark_kafkalog.errors import InvalidSchemaError

Convert = Callable[[Any], Any]

_MOST_INDEXES = 32
_MOST_PATHS = 1_000
_TYPES: Mapping[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}


def open_protobuf(schema: str, message: str = "") -> Decoder:
    """The decoder of a message, the first where none is named, of a .proto file's text."""
    return ProtobufDecoder(compile_proto(schema), message)


def open_confluent_protobuf(
    schema: str | None, registry: Mapping[str, str], message: str = ""
) -> Decoder:
    """The same of values in Confluent's wire format."""
    config, reader = reader_schema("PROTOBUF", schema, registry)
    files = compile_proto(reader.text, reader.references)
    message = message or decoder_option(registry, MESSAGE) or ""
    return ConfluentProtobufDecoder(config, files, message, reader.id)


@dataclass(slots=True)
class ProtobufDecoder:
    """Values that are each one message; `files` is a serialized FileDescriptorSet."""

    files: bytes = field(repr=False)
    message: str
    _reader: "_Reader" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._reader = _Reader(message_type(self.files, self.message))

    def __reduce__(self) -> tuple[type["ProtobufDecoder"], tuple[Any, ...]]:
        return ProtobufDecoder, (self.files, self.message)

    @property
    def type(self) -> pa.DataType:
        return self._reader.type

    def decode(self, values: pa.Array) -> Decoded:
        return decode_column(values, self.type, self._reader.read)


@dataclass(slots=True)
class ConfluentProtobufDecoder:
    """Messages whose writers' schemas are in a registry; `reader_id` is the reader's own, or 0."""

    config: RegistryConfig
    files: bytes = field(repr=False)
    message: str
    reader_id: int
    _reader: "_Reader" = field(init=False, repr=False, compare=False)
    _writers: Writers = field(init=False, repr=False, compare=False)
    _problems: dict[tuple[int, tuple[int, ...]], str] = field(init=False, repr=False, compare=False)
    """Why messages of a schema and a path in it are not read; empty for those that are."""
    _files: dict[int, bytes | str] = field(init=False, repr=False, compare=False)
    """What writers' schemas compiled to, or why they did not."""

    def __post_init__(self) -> None:
        self._reader = _Reader(message_type(self.files, self.message))
        self._writers = Writers(self.config, "PROTOBUF")
        self._problems = {}
        self._files = {}

    def __reduce__(self) -> tuple[type["ConfluentProtobufDecoder"], tuple[Any, ...]]:
        fields = (self.config, self.files, self.message, self.reader_id)
        return ConfluentProtobufDecoder, fields

    @property
    def type(self) -> pa.DataType:
        return self._reader.type

    def decode(self, values: pa.Array) -> Decoded:
        return decode_column(values, self.type, self._one)

    def _one(self, value: bytes) -> Any:
        schema_id, rest = unframed(value)
        path, start = message_path(rest)
        key = (schema_id, path)
        problem = self._problems.get(key)
        if problem is None:
            problem = self._problem(*key)
            # Values may name any number of paths.
            if len(self._problems) >= _MOST_PATHS:
                self._problems.clear()
            self._problems[key] = problem
        if problem:
            raise BadValueError(problem)
        return self._reader.read(rest[start:])

    def _problem(self, schema_id: int, path: tuple[int, ...]) -> str:
        if self.reader_id and schema_id == self.reader_id:
            files: bytes | str = self.files
        else:
            files = self._writers_files(schema_id)
        if isinstance(files, str):
            return f"schema {schema_id}: {files}"
        name = message_at(files, path)
        if name is None:
            return f"schema {schema_id} has no message at the indexes {list(path)}"
        if name != self._reader.name:
            return f"the value is a message {name} where {self._reader.name} is read"
        return ""

    def _writers_files(self, schema_id: int) -> bytes | str:
        schema = self._writers.schema(schema_id)
        if schema_id not in self._files:
            try:
                self._files[schema_id] = compile_proto(schema.text, schema.references)
            except InvalidSchemaError as error:
                self._files[schema_id] = str(error)
        return self._files[schema_id]


def open_as_written(
    config: RegistryConfig, schema: RegisteredSchema, path: tuple[int, ...]
) -> ConfluentProtobufDecoder:
    """Of the message at `path` in the schema that values were written with.

    Raises InvalidSchemaError, BadValueError for a path to no message.
    """
    files = compile_proto(schema.text, schema.references)
    name = message_at(files, path)
    if name is None:
        raise BadValueError(f"schema {schema.id} has no message at the indexes {list(path)}")
    return ConfluentProtobufDecoder(config, files, name, schema.id)


def message_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """The path to the message that a value names after its schema's id, and where it ends in
    `data`; raises BadValueError."""
    return ((0,), 1) if data[:1] == b"\0" else _indexes(data)


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """The path to the message, and where it ends: its length and its numbers as zigzag varints."""
    count, position = _varint(data, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise BadValueError(f"a path of {count} message indexes")
    path = []
    for _ in range(count):
        index, position = _varint(data, position)
        path.append(index)
    return tuple(path) or (0,), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise BadValueError("the value is cut off in its message indexes")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7


class _Reader:
    """Bytes of one message type to what Arrow takes."""

    __slots__ = ("_convert", "_parse", "_small_bytes", "name", "type")

    def __init__(self, message: Descriptor) -> None:
        package = message.file.package
        self.name = message.full_name.removeprefix(f"{package}." if package else "")
        self.type, self._convert = _message(message, ())
        self._parse = GetMessageClass(message).FromString
        self._small_bytes = small_bytes(self.type)

    def read(self, value: bytes) -> Any:
        try:
            message = self._parse(value)
            if len(value) > self._small_bytes:
                check_room(message, self.type, len(value), getattr)
            return self._convert(message)
        except (DecodeError, UnicodeDecodeError) as error:
            if "UTF-8" in str(error) or isinstance(error, UnicodeDecodeError):
                raise BadValueError(
                    f"a string of the message {self.name} is not valid UTF-8"
                ) from None
            raise BadValueError(f"the value is not a message {self.name}") from None


def _message(message: Descriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    """The type of a message, and how one becomes a value of it."""
    if message.full_name in _WELL_KNOWN:
        return _WELL_KNOWN[message.full_name]
    if message.full_name in _WRAPPERS:
        return _scalar_type(message.fields_by_name["value"]), attrgetter("value")
    if message.full_name in inside:
        raise InvalidSchemaError(
            f"the Protobuf message {message.full_name} contains itself, which Arrow and Spark have "
            "no type for"
        )
    inside = (*inside, message.full_name)
    fields: list[pa.Field] = []
    plain: list[str] = []
    others: list[tuple[str, Convert]] = []
    for one in message.fields:
        data_type, convert = _field(one, inside)
        if _is_empty(data_type):
            continue
        fields.append(pa.field(one.name, data_type))
        if convert is None:
            plain.append(one.name)
        else:
            others.append((one.name, convert))
    return pa.struct(fields), _row(plain, others)


def _is_empty(data_type: pa.DataType) -> bool:
    """Whether values hold nothing but messages without fields."""
    if pa.types.is_map(data_type):
        return _is_empty(data_type.item_type)
    if pa.types.is_list(data_type):
        return _is_empty(data_type.value_type)
    return bool(pa.types.is_struct(data_type) and not data_type.num_fields)


def _row(plain: list[str], others: list[tuple[str, Convert]]) -> Convert:
    """A message as a dict: `plain` fields as they are, the others as they convert themselves."""
    if not plain:
        return lambda message: {name: convert(message) for name, convert in others}
    get = attrgetter(*plain)
    only = plain[0] if len(plain) == 1 else None

    def row(message: Message) -> dict[str, Any]:
        values = get(message)
        found = {only: values} if only else dict(zip(plain, values, strict=True))
        for name, convert in others:
            found[name] = convert(message)
        return found

    return row


def _field(one: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert | None]:
    """The type of a field, and how its value is had of a message; None where it is the attribute
    itself."""
    name = one.name
    if one.message_type is not None and one.message_type.GetOptions().map_entry:
        return _map_field(one, inside)
    data_type, convert = _single(one, inside)
    get = attrgetter(name)
    if one.is_repeated:
        if convert is None:
            return pa.list_(data_type), lambda message: list(get(message))
        return pa.list_(data_type), lambda message: [convert(item) for item in get(message)]
    if not one.has_presence or one.has_default_value:
        return data_type, None if convert is None else lambda message: convert(get(message))
    # Of the class, as there may be a field of that name.
    has = GetMessageClass(one.containing_type).HasField
    if convert is None:
        return data_type, lambda message: get(message) if has(message, name) else None
    return data_type, lambda message: convert(get(message)) if has(message, name) else None


def _map_field(one: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    get = attrgetter(one.name)
    entry = one.message_type.fields_by_name
    key_type = _scalar_type(entry["key"])
    data_type, convert = _single(entry["value"], inside)
    if convert is None:
        return pa.map_(key_type, data_type), lambda message: dict(get(message))
    return pa.map_(key_type, data_type), lambda message: {
        key: convert(value) for key, value in get(message).items()
    }


def _single(one: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert | None]:
    """The type of one value of a field, and what makes it one that Arrow takes."""
    if one.message_type is not None:
        return _message(one.message_type, inside)
    return _scalar_type(one), _enum_names(one.enum_type) if one.enum_type is not None else None


def _scalar_type(one: FieldDescriptor) -> pa.DataType:
    return pa.binary() if one.type == FieldDescriptor.TYPE_BYTES else _TYPES[one.cpp_type]


def _enum_names(enum: EnumDescriptor) -> Convert:
    # Of several names for a number the first, as Protobuf's libraries have it.
    names = {value.number: value.name for value in reversed(enum.values)}
    return lambda number: names.get(number) or str(number)


def _microseconds(moment: Any) -> int:
    """Of a Timestamp or a Duration; what is finer is cut off, as Spark does it."""
    return int(moment.seconds * 1_000_000 + moment.nanos // 1000)


def _json_text(message: Message) -> str:
    try:
        return str(json_format.MessageToJson(message, indent=None))
    except (json_format.Error, ValueError, RecursionError) as error:
        raise BadValueError(f"no JSON text: {error}") from None


_WELL_KNOWN: Mapping[str, tuple[pa.DataType, Convert]] = {
    "google.protobuf.Timestamp": (pa.timestamp("us", tz="UTC"), _microseconds),
    "google.protobuf.Duration": (pa.duration("us"), _microseconds),
    "google.protobuf.Struct": (pa.string(), _json_text),
    "google.protobuf.Value": (pa.string(), _json_text),
    "google.protobuf.ListValue": (pa.string(), _json_text),
}
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ["Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"]
)
