"""Protobuf: types, evolution, Confluent's message indexes, and bytes that are no message."""

import datetime as dt
import json
import pickle
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.decoding import proto_files, protobuf
from pyspark_kafkalog.decoding.decoder import Decoder
from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.decoding.proto_files import compile_proto
from pyspark_kafkalog.errors import InvalidOptionError, InvalidSchemaError, MissingExtraError
from tests.pyspark_kafkalog.decoding.registry_stub import Registry

ORDERS = SerializationContext("orders", MessageField.VALUE)
EVERYTHING = """
syntax = "proto3";
package shop;
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/any.proto";
import "google/protobuf/empty.proto";
enum Suit { CLUBS = 0; HEARTS = 1; }
message Line { string sku = 1; repeated Suit suits = 2; }
message Everything {
  int32 int32 = 1; sint64 sint64 = 2; fixed32 fixed32 = 3; uint64 uint64 = 4;
  float float = 5; double double = 6; bool bool = 7; string string = 8; bytes bytes = 9;
  Suit suit = 10;
  optional int32 maybe = 11;
  Line line = 12;
  repeated Line lines = 13;
  repeated int64 longs = 14;
  map<string, Line> by_name = 15;
  map<int64, double> by_id = 16;
  oneof how { string card = 17; uint32 cents = 18; Line free = 19; }
  google.protobuf.Timestamp at = 20;
  google.protobuf.Duration took = 21;
  google.protobuf.StringValue wrapped = 22;
  google.protobuf.UInt64Value wide = 23;
  google.protobuf.Struct anything = 24;
  google.protobuf.Any any = 25;
  google.protobuf.Empty empty = 26;
  map<int32, Suit> suits = 27;
  repeated google.protobuf.Timestamp times = 28;
}
"""


def message_class(text: str, name: str) -> Any:
    return proto_files.message_class(compile_proto(text), name)


def rows(decoder: Decoder, *values: bytes | None) -> tuple[Any, dict[int, str]]:
    decoder = pickle.loads(pickle.dumps(decoder))
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert decoded.column.type == decoder.type
    return decoded.column.to_pylist(), dict(decoded.errors)


@pytest.fixture(scope="module")
def everything() -> Decoder:
    return open_decoder("protobuf", EVERYTHING, message="Everything")


LINE = pa.struct([("sku", pa.string()), ("suits", pa.list_(pa.string()))])


def test_types(everything: Decoder) -> None:
    utc = pa.timestamp("us", tz="UTC")
    assert everything.type == pa.struct(
        [
            ("int32", pa.int32()),
            ("sint64", pa.int64()),
            ("fixed32", pa.int64()),
            ("uint64", pa.decimal128(20, 0)),
            ("float", pa.float32()),
            ("double", pa.float64()),
            ("bool", pa.bool_()),
            ("string", pa.string()),
            ("bytes", pa.binary()),
            ("suit", pa.string()),
            ("maybe", pa.int32()),
            ("line", LINE),
            ("lines", pa.list_(LINE)),
            ("longs", pa.list_(pa.int64())),
            ("by_name", pa.map_(pa.string(), LINE)),
            ("by_id", pa.map_(pa.int64(), pa.float64())),
            ("card", pa.string()),
            ("cents", pa.int64()),
            ("free", LINE),
            ("at", utc),
            ("took", pa.duration("us")),
            ("wrapped", pa.string()),
            ("wide", pa.decimal128(20, 0)),
            ("anything", pa.string()),
            ("any", pa.struct([("type_url", pa.string()), ("value", pa.binary())])),
            ("suits", pa.map_(pa.int32(), pa.string())),
            ("times", pa.list_(utc)),
        ]
    )


def test_a_message_in_full(everything: Decoder) -> None:
    message = message_class(EVERYTHING, "Everything")()
    message.int32, message.sint64, message.fixed32 = -(2**31), -(2**63), 2**32 - 1
    message.uint64, message.float, message.double = 2**64 - 1, 0.5, 1e300
    message.bool, message.string, message.bytes, message.suit = True, "größe", b"\xff", 1
    message.maybe = 0
    message.line.sku = "a"
    message.lines.add().suits.extend([1, 0])
    message.longs.extend([1, -1])
    message.by_name["x"].sku = "b"
    message.by_id[-5] = 1.5
    message.cents = 2**32 - 1
    message.at.FromJsonString("1969-07-20T20:17:40.000001Z")
    message.took.FromMicroseconds(-1)
    message.wrapped.value = ""
    message.wide.value = 2**64 - 1
    message.anything.update({"a": [1, None]})
    message.any.Pack(message.line)
    message.empty.SetInParent()
    message.suits[3] = 1
    message.times.add().FromSeconds(1)
    ((found,), errors) = rows(everything, message.SerializeToString())
    assert errors == {}
    assert json.loads(found.pop("anything")) == {"a": [1, None]}
    assert found == {
        "int32": -(2**31),
        "sint64": -(2**63),
        "fixed32": 2**32 - 1,
        "uint64": Decimal(2**64 - 1),
        "float": 0.5,
        "double": 1e300,
        "bool": True,
        "string": "größe",
        "bytes": b"\xff",
        "suit": "HEARTS",
        "maybe": 0,
        "line": {"sku": "a", "suits": []},
        "lines": [{"sku": "", "suits": ["HEARTS", "CLUBS"]}],
        "longs": [1, -1],
        "by_name": [("x", {"sku": "b", "suits": []})],
        "by_id": [(-5, 1.5)],
        "card": None,
        "cents": 2**32 - 1,
        "free": None,
        "at": dt.datetime(1969, 7, 20, 20, 17, 40, 1, dt.timezone.utc),
        "took": dt.timedelta(microseconds=-1),
        "wrapped": "",
        "wide": Decimal(2**64 - 1),
        "any": {"type_url": "type.googleapis.com/shop.Line", "value": b"\n\x01a"},
        "suits": [(3, "HEARTS")],
        "times": [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.timezone.utc)],
    }


def test_what_was_not_sent_is_a_default_or_null(everything: Decoder) -> None:
    (found, nothing), errors = rows(everything, b"", None)
    assert nothing is None
    assert errors == {}
    defaults = {"int32": 0, "string": "", "suit": "CLUBS", "lines": [], "by_id": [], "bool": False}
    assert {name: found[name] for name in defaults} == defaults
    for name in ("maybe", "line", "card", "cents", "at", "wrapped", "anything", "any"):
        assert found[name] is None


def test_proto2_has_presence_and_defaults_that_are_declared() -> None:
    text = """syntax = "proto2";
    enum E { X = 1; Y = 2; }
    message M {
      required int32 a = 1; optional string b = 2; optional string c = 3 [default = "x"];
      optional E d = 4 [default = Y]; optional E e = 5;
      optional group G = 6 { optional int32 h = 7; }
    }"""
    decoder = open_decoder("protobuf", text)
    nothing = {"a": None, "b": None, "c": "x", "d": "Y", "e": None, "g": None}
    assert rows(decoder, b"", b"\x08\x01\x1a\x01y\x20\x01", b"\x20\x09\x33\x38\x05\x34") == (
        [nothing, {**nothing, "a": 1, "c": "y", "d": "X"}, {**nothing, "g": {"h": 5}}],
        {},
    )


def test_proto2_strings_that_are_no_utf8_are_the_rows_error() -> None:
    text = """syntax = "proto2";
    message M { optional string a = 1; repeated string b = 2; map<string, string> c = 3; }"""
    good = b"\x0a\x01a"
    bad = [b"\x0a\x01\xff", b"\x12\x01\xff", b"\x1a\x06\x0a\x01\xff\x12\x01a"]
    found, errors = rows(open_decoder("protobuf", text), good, *bad, good)
    assert [row and row["a"] for row in found] == ["a", None, None, None, "a"]
    assert sorted(errors) == [1, 2, 3]


def test_messages_without_fields_are_left_out_wherever_they_are() -> None:
    text = """syntax = "proto3";
    message M { int32 a = 1; E b = 2; repeated E c = 3; map<int32, N> d = 4; repeated N e = 5; }
    message N { E e = 1; }
    message E {}"""
    decoder = open_decoder("protobuf", text)
    assert rows(decoder, b"\x08\x01\x1a\x00\x2a\x00") == ([{"a": 1}], {})


def test_fields_may_be_called_like_methods() -> None:
    names = ["HasField", "ListFields", "Clear", "DESCRIPTOR", "class", "from", "FromString"]
    fields = "".join(f"optional int32 {name} = {at + 1};" for at, name in enumerate(names))
    decoder = open_decoder("protobuf", f'syntax = "proto3"; message M {{ {fields} }}')
    data = b"".join(bytes([8 * at + 8, at]) for at in range(len(names)))
    assert rows(decoder, data) == ([{name: at for at, name in enumerate(names)}], {})


def test_of_several_names_for_a_number_the_first_is_shown() -> None:
    text = """syntax = "proto3";
    enum E { option allow_alias = true; Z = 0; A = 1; B = 1; }
    message M { E e = 1; }"""
    assert rows(open_decoder("protobuf", text, message="M"), b"\x08\x01") == ([{"e": "A"}], {})


def test_another_version_is_read_by_field_numbers() -> None:
    old = message_class('syntax = "proto3"; message M { int32 a = 1; string gone = 2; }', "M")
    decoder = open_decoder("protobuf", 'syntax = "proto3"; message M { int64 b = 1; bool c = 3; }')
    data = old(a=-5, gone="x").SerializeToString()
    assert rows(decoder, data) == ([{"b": -5, "c": False}], {})


def test_an_enums_number_without_a_name_is_shown(everything: Decoder) -> None:
    ((found,), _) = rows(everything, b"\x50\x07")
    assert found["suit"] == "7"


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x42\x05abc",
        b"\x42\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x42\x01\xff",
        b"\x00",
        b"\xff" * 20,
        b"\x62\x02\x0a\x05",
        b"\xa2\x01\x0a\x08" + b"\xff" * 8 + b"\x7f",
        b"\xc3\x3e" * 1000,
    ],
)
def test_what_is_no_message_is_the_rows_error(everything: Decoder, data: bytes) -> None:
    good = b"\x08\x01"
    found, errors = rows(everything, good, data, good)
    assert found[1] is None
    assert list(errors) == [1]
    assert found[0]["int32"] == found[2]["int32"] == 1


def test_json_text_nested_without_end_is_bounded(everything: Decoder) -> None:
    value = b""
    for _ in range(60):
        # Struct: fields 1 (a map entry: key 1, value 2); Value: struct_value 5.
        inner = b"\x2a" + _length(value) + value
        entry = b"\x0a\x01x\x12" + _length(inner) + inner
        value = b"\x0a" + _length(entry) + entry
    found, errors = rows(everything, b"\xc2\x01" + _length(value) + value)
    assert list(errors) == [0] or found[0]["anything"].count("x") <= 60


def _length(data: bytes) -> bytes:
    size, encoded = len(data), b""
    while size > 0x7F:
        encoded += bytes([size & 0x7F | 0x80])
        size >>= 7
    return encoded + bytes([size])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message", "cannot be compiled"),
        ('syntax = "proto3"; import "nowhere.proto"; message M {}', r"nowhere\.proto"),
        ('syntax = "proto3";', "no message"),
        ('syntax = "proto3"; message M { M inner = 1; }', "M contains itself"),
        ('syntax = "proto3"; message M { repeated N n = 1; } message N { map<int32, M> m = 1; }',
         "M contains itself"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_used_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        open_decoder("protobuf", text)


def test_a_message_must_be_there() -> None:
    with pytest.raises(InvalidSchemaError, match="no message 'X', only Line, Everything"):
        open_decoder("protobuf", EVERYTHING, message="X")
    with pytest.raises(InvalidOptionError, match="no messages to choose from"):
        open_decoder("avro", '"int"', message="X")


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.delitem(sys.modules, "pyspark_kafkalog.decoding.protobuf", raising=False)
    monkeypatch.delitem(sys.modules, "pyspark_kafkalog.decoding.proto_files", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyspark-kafkalog\[protobuf\]'"):
        open_decoder("protobuf", EVERYTHING)


def test_the_compiler_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto_files, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs grpcio-tools"):
        open_decoder("protobuf", 'syntax = "proto3"; message NeverCompiled {}')


NESTED = """
syntax = "proto3";
package shop;
message Other { int32 x = 1; }
message Order { int64 id = 1; message Line { string sku = 1; } repeated Line lines = 2; }
"""


def written(registry: Registry, message: Any) -> Any:
    client = SchemaRegistryClient({"url": registry.url})
    serialize = ProtobufSerializer(
        type(message), client, {"auto.register.schemas": False, "use.latest.version": True}
    )
    return serialize(message, ORDERS)


def opened(registry: Registry, name: str | None, **options: str) -> Decoder:
    options = {"schema.registry.url": registry.url, "subject": "orders-value", **options}
    return open_decoder("protobuf", None, options, message=name)


def test_confluents_wire_format(registry: Registry) -> None:
    number = registry.register("orders-value", NESTED, "PROTOBUF")
    head = b"\0" + number.to_bytes(4, "big")
    decoder = opened(registry, "Order")
    order, line = b"\x08\x05", b"\x0a\x01a"
    found, errors = rows(
        decoder,
        head + b"\x02\x02" + order,  # A path of one index, 1.
        head + b"\x00" + order,  # The first message, which is Other.
        head + b"\x04\x02\x00" + line,
        head + b"\x02\x06" + order,
        head + b"\xfe\xff\xff\xff\xff\xff\x01" + order,
        head + b"\x01",
        head,
        b"\0\0\0\0\7\x00",
        b"\1" + head[1:] + b"\x00",
    )
    assert found == [{"id": 5, "lines": []}, *[None] * 8]
    for row, reason in {
        1: "message Other where Order",
        2: "message Order.Line where Order",
        3: "no message at the indexes [3]",
        4: "message indexes",
        5: "message indexes",
        6: "cut off",
        7: "no schema 7",
        8: "magic byte is 1",
    }.items():
        assert reason in errors[row]
    assert len(errors) == 8
    nested = opened(registry, None, message="Order.Line")
    assert rows(nested, head + b"\x04\x02\x00" + line) == ([{"sku": "a"}], {})


def test_a_writers_messages_may_stand_in_another_order(registry: Registry) -> None:
    registry.register("orders-value", 'syntax = "proto3"; message Order { int64 id = 1; }',
                      "PROTOBUF")  # fmt: skip
    decoder = opened(registry, "Order")
    newer = registry.register("orders-value", NESTED, "PROTOBUF")
    head = b"\0" + newer.to_bytes(4, "big")
    found, errors = rows(
        decoder, b"\0\0\0\0\1\0\x08\x01", head + b"\x02\x02\x08\x02", head + b"\0\x08\x03"
    )
    assert found == [{"id": 1}, {"id": 2}, None]
    assert "message Other" in errors[2]


def test_schemas_that_import_others(registry: Registry) -> None:
    registry.register("money", 'syntax = "proto3"; message Money { int64 cents = 1; }', "PROTOBUF")
    name = {"name": "common/money.proto", "subject": "money", "version": 1}
    text = 'syntax = "proto3"; import "common/money.proto"; message Order { Money price = 1; }'
    registry.register("orders-value", text, "PROTOBUF", [name])
    decoder = opened(registry, "")
    assert rows(decoder, b"\0\0\0\0\2\0\x0a\x02\x08\x07") == ([{"price": {"cents": 7}}], {})
    for number, path in enumerate(("../../money.proto", "/tmp/money.proto", "grpc_tools.py", "")):
        subject = f"escaping-{number}"
        registry.register(subject, f"{text}//{number}", "PROTOBUF", [{**name, "name": path}])
        with pytest.raises(InvalidSchemaError, match="imports"):
            opened(registry, "", subject=subject)


def test_a_message_of_its_own_package_comes_before_one_that_is_imported(registry: Registry) -> None:
    registry.register("old", 'syntax = "proto3"; message Order { string a = 1; }', "PROTOBUF")
    text = 'syntax = "proto3"; package shop; import "old.proto"; message Order { int64 id = 1; }'
    name = {"name": "old.proto", "subject": "old", "version": 1}
    registry.register("orders-value", text, "PROTOBUF", [name])
    for message in ("", "Order", "shop.Order"):
        assert opened(registry, message).type == pa.struct([("id", pa.int64())])


def test_a_schema_that_cannot_be_compiled_is_tried_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("orders-value", NESTED, "PROTOBUF")
    registry.register("others", 'syntax = "proto3"; import "nowhere.proto";', "PROTOBUF")
    decoder = opened(registry, "Order")
    tried = []
    compiled = compile_proto

    def compile_noted(*schema: Any) -> bytes:
        tried.append(schema)
        return compiled(*schema)

    monkeypatch.setattr(protobuf, "compile_proto", compile_noted)
    found = decoder.decode(
        pa.array([b"\0\0\0\0\2\x02" + bytes([path]) for path in range(0, 100, 2)], pa.binary())
    )
    assert (len(found.errors), len(tried)) == (50, 1)
    assert "schema 2" in found.errors[0]


def test_without_a_registered_reader_no_id_is_taken_for_its_own(registry: Registry) -> None:
    options = {"schema.registry.url": registry.url}
    decoder = open_decoder("protobuf", NESTED, options, message="Other")
    assert rows(decoder, b"\0\0\0\0\0\0")[1] == {0: "the registry has no schema 0"}


def test_paths_that_values_make_up_take_no_memory(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protobuf, "_MOST_PATHS", 10)
    registry.register("orders-value", NESTED, "PROTOBUF")
    decoder: Any = opened(registry, "Other")
    made_up = [b"\0\0\0\0\1\x04" + bytes([n % 64 * 2, n // 64 * 2]) for n in range(1, 200)]
    values = pa.array([*made_up, b"\0\0\0\0\1\x00\x08\x05"], pa.binary())
    found = decoder.decode(values)
    assert (len(found.errors), found.column[199].as_py()) == (199, {"x": 5})
    assert len(decoder._problems) <= 10


def test_what_registries_take_for_granted_can_be_imported() -> None:
    text = """syntax = "proto3";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    import "google/type/date.proto";
    message Order {
      confluent.type.Decimal price = 1 [(confluent.field_meta) = { doc: "in euro" }];
      google.type.Date day = 2;
    }"""
    decimal = pa.struct([("value", pa.binary()), ("precision", pa.int32()), ("scale", pa.int32())])
    day = pa.struct([("year", pa.int32()), ("month", pa.int32()), ("day", pa.int32())])
    assert open_decoder("protobuf", text).type == pa.struct([("price", decimal), ("day", day)])


@pytest.mark.parametrize("name", ["Other", "Order"])
def test_confluents_own_serializer(registry: Registry, name: str) -> None:
    registry.register("orders-value", NESTED, "PROTOBUF")
    messages: dict[str, dict[str, Any]] = {"Other": {"x": 5}, "Order": {"id": 5, "lines": []}}
    fields = messages[name]
    data = written(registry, message_class(NESTED, name)(**fields))
    assert rows(opened(registry, name), data) == ([fields], {})


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_noise_is_messages_or_errors(noise: list[bytes]) -> None:
    decoder = open_decoder("protobuf", EVERYTHING, message="Everything")
    decoded = decoder.decode(pa.array(noise, pa.binary()))
    decoded.column.validate(full=True)
    assert decoded.column.null_count == len(decoded.errors)
