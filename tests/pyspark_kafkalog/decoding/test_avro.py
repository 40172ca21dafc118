"""Plain Avro beside fastavro: types, schema resolution, and bytes that lie."""

import io
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from types import ModuleType
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.errors import InvalidSchemaError
from tests.pyspark_kafkalog.decoding.conftest import FORMS

UTC = timezone.utc
Schema = str | Sequence[Any] | Mapping[str, Any]
"""As its JSON."""


def encoded(schema: Any, *values: object) -> list[bytes]:
    """The values as fastavro writes them."""
    parsed = fastavro.parse_schema(schema)
    written = []
    for value in values:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, value)
        written.append(file.getvalue())
    return written


def decoded(
    avro: ModuleType,
    data: Sequence[bytes | None],
    writer: Schema,
    reader: Schema | None = None,
) -> Any:
    decoder = avro.AvroDecoder(json.dumps(reader or writer), json.dumps(writer))
    found = decoder.decode(pa.array(data, pa.binary()))
    found.column.validate(full=True)
    assert found.column.type == decoder.type
    return found


def record(*fields: dict[str, Any], name: str = "R", **more: str | list[Any]) -> dict[Any, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def column(name: str, avro_type: Schema, **more: object) -> dict[Any, Any]:
    return {"name": name, "type": avro_type, **more}


ENUM = {"type": "enum", "name": "Suit", "symbols": ["CLUBS", "HEARTS"]}
FIXED = {"type": "fixed", "name": "Four", "size": 4}
TYPES = [
    ("null", pa.string(), None, None),
    ("boolean", pa.bool_(), True, True),
    ("int", pa.int32(), -(2**31), -(2**31)),
    ("long", pa.int64(), -(2**63), -(2**63)),
    ("long", pa.int64(), 2**63 - 1, 2**63 - 1),
    ("float", pa.float32(), -0.5, -0.5),
    ("double", pa.float64(), -1e300, -1e300),
    ("bytes", pa.binary(), b"\x00\xff", b"\x00\xff"),
    ("string", pa.string(), "größe", "größe"),
    (ENUM, pa.string(), "HEARTS", "HEARTS"),
    (FIXED, pa.binary(), b"1234", b"1234"),
    ({"type": "array", "items": "int"}, pa.list_(pa.int32()), [1, 2], [1, 2]),
    ({"type": "array", "items": "int"}, pa.list_(pa.int32()), [], []),
    (
        {"type": "map", "values": ["null", "long"]},
        pa.map_(pa.string(), pa.int64()),
        {"a": 1, "b": None},
        [("a", 1), ("b", None)],
    ),
    (["null", "string"], pa.string(), None, None),
    (["string", "null"], pa.string(), "x", "x"),
    (["int", "long"], pa.int64(), 5, 5),
    (["float", "double", "null"], pa.float64(), None, None),
    (
        ["null", "string", "int"],
        pa.struct([("member0", pa.string()), ("member1", pa.int32())]),
        7,
        {"member0": None, "member1": 7},
    ),
    ({"type": "int", "logicalType": "date"}, pa.date32(), date(1969, 7, 20), date(1969, 7, 20)),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        pa.timestamp("us", tz="UTC"),
        datetime(1960, 1, 1, 0, 0, 0, 1000, UTC),
        datetime(1960, 1, 1, 0, 0, 0, 1000, UTC),
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        pa.timestamp("us", tz="UTC"),
        datetime(2026, 1, 1, 0, 0, 0, 1, UTC),
        datetime(2026, 1, 1, 0, 0, 0, 1, UTC),
    ),
    (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        pa.timestamp("us"),
        datetime(2026, 1, 1),
        datetime(2026, 1, 1),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
        pa.decimal128(38, 2),
        Decimal("-123456789012345678901234567890123456.78"),
        Decimal("-123456789012345678901234567890123456.78"),
    ),
    (
        {**FIXED, "logicalType": "decimal", "precision": 9},
        pa.decimal128(9, 0),
        Decimal(-5),
        Decimal(-5),
    ),
    (
        {"type": "string", "logicalType": "uuid"},
        pa.string(),
        UUID(int=5),
        "00000000-0000-0000-0000-000000000005",
    ),
    # As in Spark, what has no type there stays a number.
    ({"type": "int", "logicalType": "time-millis"}, pa.int32(), 5, 5),
    ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64(), 5, 5),
]


@pytest.mark.parametrize(("schema", "arrow_type", "value", "expected"), TYPES)
def test_types_are_those_of_sparks_from_avro(
    avro: ModuleType,
    schema: str | list[str] | dict[str, object],
    arrow_type: Any,
    value: object,
    expected: object,
) -> None:
    schema = record(column("f", schema))
    raw = fastavro.parse_schema(schema) if value == 5 else schema
    data = encoded(raw, {"f": value}, {"f": value})
    found = decoded(avro, [data[0], None, data[1]], schema)
    assert found.column.type == pa.struct([("f", arrow_type)])
    assert found.column.to_pylist() == [{"f": expected}, None, {"f": expected}]
    assert found.errors == {}


def test_a_schema_need_not_be_a_record(avro: ModuleType) -> None:
    found = decoded(avro, [b"\x02a", None, b"\x00"], "string")
    assert found.column.to_pylist() == ["a", None, ""]


def test_names_are_found_in_their_namespaces(avro: ModuleType) -> None:
    inner = record(column("x", "int"), name="Inner")
    schema = record(
        column("a", inner),
        column("b", {"type": "array", "items": "com.shop.Inner"}),
        column("c", ["null", "Inner"]),
        name="Outer",
        namespace="com.shop",
    )
    data = encoded(schema, {"a": {"x": 1}, "b": [{"x": 2}], "c": {"x": 3}})
    assert decoded(avro, data, schema).column.to_pylist() == [
        {"a": {"x": 1}, "b": [{"x": 2}], "c": {"x": 3}}
    ]


EVOLUTIONS = {
    "a field dropped": (record(column("a", "int"), column("b", "string")), {"a": 1, "b": "x"},
        record(column("b", "string"))),
    "fields in another order": (record(column("a", "int"), column("b", "string")),
        {"a": 1, "b": "x"}, record(column("b", "string"), column("a", "int"))),
    "defaults": (record(column("a", "int")), {"a": 1}, record(
        column("n", ["null", "string"], default=None), column("a", "int"),
        column("s", "string", default="größe"),
        column("l", {"type": "array", "items": "long"}, default=[1, -70000]),
        column("m", {"type": "map", "values": "double"}, default={"k": 1.5}),
        column("e", ENUM, default="HEARTS"), column("o", "boolean", default=True),
        column("r", record(column("x", "float", default=2.5), name="In"), default={"x": 2.5}))),
    "int to long": (record(column("a", "int")), {"a": -5}, record(column("a", "long"))),
    "int to float": (record(column("a", "int")), {"a": -5}, record(column("a", "float"))),
    "long to double": (record(column("a", "long")), {"a": 5}, record(column("a", "double"))),
    "float to double": (record(column("a", "float")), {"a": 1.5}, record(column("a", "double"))),
    "string to bytes": (record(column("a", "string")), {"a": "x"}, record(column("a", "bytes"))),
    "bytes to string": (record(column("a", "bytes")), {"a": b"x"}, record(column("a", "string"))),
    "a field renamed": (record(column("a", "int")), {"a": 1},
        record(column("b", "int", aliases=["a"]))),
    "a record renamed": (record(column("a", "int"), name="Old"), {"a": 1},
        record(column("a", "int"), name="New", aliases=["Old"])),
    "large numbers dropped": (record(column("a", "long"), column("b", "string")),
        {"a": -(2**62), "b": "x"}, record(column("b", "string"))),
    "made nullable": (record(column("a", "string")), {"a": "x"},
        record(column("a", ["null", "string"]))),
    "no longer nullable": (record(column("a", ["null", "string"])), {"a": "x"},
        record(column("a", "string"))),
    "union to union": (record(column("a", ["string", "int"])), {"a": 3},
        record(column("a", ["null", "long"]))),
    "an enum's default": (record(column("a", {**ENUM, "symbols": ["SPADES", "CLUBS"]})),
        {"a": "SPADES"}, record(column("a", {**ENUM, "default": "CLUBS"}))),
    "nested": (record(column("a", {"type": "array", "items": record(
        column("x", "int"), column("gone", {"type": "map", "values": FIXED}), name="I")})),
        {"a": [{"x": 1, "gone": {"k": b"1234"}}, {"x": 2, "gone": {}}]},
        record(column("a", {"type": "array", "items": record(column("x", "long"), name="I")}))),
}  # fmt: skip


@pytest.mark.parametrize("name", EVOLUTIONS)
def test_schemas_resolve_as_in_fastavro(avro: ModuleType, name: str) -> None:
    writer, value, reader = EVOLUTIONS[name]
    data = encoded(writer, value)
    expected = fastavro.schemaless_reader(
        io.BytesIO(data[0]), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )
    found = decoded(avro, [data[0], data[0]], writer, reader)
    assert found.errors == {}
    assert plain(found.column.to_pylist()) == [expected, expected]


def test_a_field_that_is_there_under_its_name_and_an_alias_is_what_it_is_called(
    avro: ModuleType,
) -> None:
    """Avro does not say; Java refuses, fastavro takes the alias."""
    writer = record(column("a", "int"), column("b", "int"))
    reader = record(column("b", "int", aliases=["a"]))
    found = decoded(avro, encoded(writer, {"a": 1, "b": 2}), writer, reader)
    assert found.column.to_pylist() == [{"b": 2}]


def plain(value: Any) -> Any:
    """Maps as dicts, as fastavro has them."""
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        return {name: plain(item) for name, item in value}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


IMPOSSIBLE = {
    "another type": (record(column("a", "string")), record(column("a", "int"))),
    "a number made smaller": (record(column("a", "long")), record(column("a", "int"))),
    "no default": (record(column("a", "int")), record(column("b", "int"))),
    "another name": (record(column("a", "int"), name="A"), record(column("a", "int"), name="B")),
    "another size": (record(column("a", FIXED)), record(column("a", {**FIXED, "size": 5}))),
    "another scale": tuple(
        record(column("a", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": n}))
        for n in (1, 2)
    ),
    "not in the union": (record(column("a", "string")), record(column("a", ["null", "int"]))),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_can_never_be_read_is_refused_at_once(avro: ModuleType, name: str) -> None:
    writer, reader = IMPOSSIBLE[name]
    with pytest.raises(InvalidSchemaError):
        avro.AvroDecoder(json.dumps(reader), json.dumps(writer))


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (lambda name: record(column("x", "int"), name=name), [b"\x00\x0a", b"\x02\x0a"]),
        (lambda name: {**FIXED, "name": name, "size": 1}, [b"\x00a", b"\x02a"]),
        (lambda name: {**ENUM, "name": name}, [b"\x00\x00", b"\x02\x00"]),
    ],
)
def test_branches_that_are_called_alike_are_told_apart_by_their_namespaces(
    avro: ModuleType, declared: Callable[[Any], Any], values: list[bytes]
) -> None:
    union = [declared("a.X"), declared("b.X")]
    for reader in (union, union[::-1]):
        rows = decoded(avro, values, union, reader).column.to_pylist()
        order = ("member0", "member1") if reader is union else ("member1", "member0")
        assert [row[name] is None for row in rows for name in order] == [False, True, True, False]


@pytest.mark.parametrize(
    ("written", "union", "value"),
    [
        ("bytes", ["string", "bytes"], b"x"),
        ("string", ["bytes", "string"], "x"),
        ("int", ["double", "int"], 5),
        ("long", ["float", "double", "string", "long"], 2**60 + 1),
        ("float", ["double", "string", "float"], 1.5),
    ],
)
def test_a_value_goes_to_the_branch_of_its_own_type(
    avro: ModuleType, written: str, union: list[str], value: bytes | str | float
) -> None:
    """Not to an earlier one that it could be made to fit."""
    for writer in (written, [written, "null"]):
        data = encoded(writer, value)
        (row,) = decoded(avro, data, writer, union).column.to_pylist()
        own = f"member{union.index(written)}"
        assert row == {f"member{at}": None for at in range(len(union))} | {own: value}
        assert type(row[own]) is type(value)


def logical(kind: str, name: str) -> dict[Any, Any]:
    return {"type": kind, "logicalType": name}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
LOCAL_MILLIS = logical("long", "local-timestamp-millis")


@pytest.mark.parametrize(
    ("writer", "reader", "number", "expected_us"),
    [
        (MICROS, MILLIS, 1_700_000_000_000_123, 1_700_000_000_000_123),
        (MILLIS, MICROS, 1_700_000_000_123, 1_700_000_000_123_000),
        (MICROS, LOCAL_MILLIS, 1_700_000_000_000_123, 1_700_000_000_000_123),
        ("long", MILLIS, 1_700_000_000_123, 1_700_000_000_123_000),
        ("int", MILLIS, 2**31 - 1, (2**31 - 1) * 1000),
        ("int", MICROS, -(2**31), -(2**31)),
        (MICROS, "long", 5, 5),
        (MILLIS, "long", 5, 5),
        (logical("int", "date"), "long", 5, 5),
    ],
)
def test_a_time_stays_the_same_in_another_unit(
    avro: ModuleType, writer: Any, reader: Any, number: int, expected_us: int
) -> None:
    found = decoded(avro, encoded(writer, number), writer, reader)
    assert found.column.cast(pa.int64()).to_pylist() == [expected_us]


def test_days_are_no_milliseconds(avro: ModuleType) -> None:
    with pytest.raises(InvalidSchemaError, match=r"date was written where .* timestamp-millis"):
        avro.AvroDecoder(json.dumps(MILLIS), json.dumps(logical("int", "date")))


def test_a_branch_and_a_symbol_that_the_reader_lacks_are_errors_of_their_rows(
    avro: ModuleType,
) -> None:
    spades = {**ENUM, "symbols": ["SPADES", "CLUBS"]}
    writer = record(column("a", ["string", "int"]), column("e", spades))
    reader = record(column("a", "int"), column("e", ENUM))
    data = encoded(
        writer, {"a": "x", "e": "CLUBS"}, {"a": 1, "e": "CLUBS"}, {"a": 2, "e": "SPADES"}
    )
    found = decoded(avro, data, writer, reader)
    assert found.column.to_pylist() == [None, {"a": 1, "e": "CLUBS"}, None]
    assert "string" in found.errors[0]
    assert "symbol 0" in found.errors[2]


RECURSIVE = record(column("x", "int"), column("next", ["null", "R"]))


def test_a_type_that_contains_itself_is_refused(avro: ModuleType) -> None:
    with pytest.raises(InvalidSchemaError, match="R contains itself"):
        avro.AvroDecoder(json.dumps(RECURSIVE), json.dumps(RECURSIVE))


def test_a_short_schema_of_very_many_columns_is_refused(avro: ModuleType) -> None:
    def twice(depth: int) -> Any:
        last = record(column("x", "int"), name="R0")
        for level in range(1, depth):
            last = record(column("l", last), column("r", last["name"]), name=f"R{level}")
        return last

    small, large = json.dumps(twice(4)), json.dumps(twice(40))
    assert avro.AvroDecoder(small, small).type.num_fields == 2
    with pytest.raises(InvalidSchemaError, match="more than 20000 columns"):
        avro.AvroDecoder(large, large)
    only = json.dumps(record(column("r", twice(3)), name="R39"))
    assert avro.AvroDecoder(only, only).type.num_fields == 1


def test_a_type_that_contains_itself_is_skipped_but_not_without_end(avro: ModuleType) -> None:
    writer = record(column("list", RECURSIVE), column("y", "int"), name="W")
    reader = record(column("y", "int"), name="W")
    end = b"\x02\x00"
    data = [b"\x02\x02" * depth + end + b"\x0e" for depth in (3, 90, 100, 100_000)]
    found = decoded(avro, data, writer, reader)
    assert found.column.to_pylist() == [{"y": 7}, {"y": 7}, None, None]
    assert "100 deep" in found.errors[3]


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "{",
        "[1]",
        "{}",
        '{"type": "record", "name": "R"}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Nowhere"}]}',
        '{"type": "record", "name": "R", "fields": [1]}',
        '{"type": "record", "name": "1", "fields": []}',
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "array"}',
        '["int", "int"]',
        '["int", ["null"]]',
        '{"type": "bytes", "logicalType": "decimal", "precision": 39}',
        '{"type": "enum", "name": "E", "symbols": ["A", ""]}',
        '{"type": "enum", "name": "E", "symbols": ["A", 5]}',
        '{"type": "enum", "name": "E", "symbols": ["A", "A"]}',
        '{"type": "enum", "name": "E", "symbols": ["A"], "default": 5}',
        '{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}',
        '{"type": "array", "items": ' * 3000 + '"int"' + "}" * 3000,
    ],
)
def test_a_malformed_schema_is_refused(schema: str) -> None:
    with pytest.raises(InvalidSchemaError):
        open_decoder("avro", schema)


def bad(avro: ModuleType, data: list[Any], schema: Schema) -> list[Any]:
    """Why each value cannot be read as a record with one field of the schema."""
    found = decoded(avro, data, record(column("f", schema)))
    assert found.column.to_pylist() == [None] * len(data)
    return [found.errors[row] for row in range(len(data))]


def test_lengths_that_the_bytes_do_not_cover(avro: ModuleType) -> None:
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    for schema in ("string", "bytes"):
        reasons = bad(avro, [b"\x10abc", huge, huge + b"x" * 100, b"\x01", b""], schema)
        assert "a length of 8 where 3 bytes are left" in reasons[0]
        assert f"a length of {2**63 - 1}" in reasons[1]
        assert "a length of -1" in reasons[3]
        assert "cut off" in reasons[4]
    repeated: list[Schema] = [{"type": "array", "items": "long"}, {"type": "map", "values": "null"}]
    for each in repeated:
        reasons = bad(avro, [huge, b"\x08\x00\x00", b"\x80\x80\x80\x80\x10\x00"], each)
        assert all("claims" in reason for reason in reasons)


def test_items_that_take_no_bytes_are_bounded(avro: ModuleType) -> None:
    empty = record(name="Empty")
    for item in ("null", {"type": "fixed", "name": "None", "size": 0}, empty):
        schema = record(column("f", {"type": "array", "items": item}))
        writer = record(column("f", {"type": "array", "items": item}), column("g", "int"))
        few = b"\x08\x00\x02"
        many = b"\xfe\xff\xff\xff\x0f\x00\x02"
        blocks = b"\x80\x9c\x01" * 20 + b"\x00\x02"
        assert list(decoded(avro, [few, many, blocks], writer, schema).errors) == [1, 2]


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("boolean", b"\x02", "boolean is 2"),
        ("int", b"\xfe\xff\xff\xff\xff\x01", "too large"),
        ("long", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "64 bits"),
        ("long", b"\x80" * 30, "64 bits"),
        ("string", b"\x02\xff", "not valid UTF-8"),
        (ENUM, b"\x04", "symbol 2"),
        (ENUM, b"\x01", "symbol -1"),
        (["null", "int"], b"\x04\x00", "branch 2"),
        (["null", "int"], b"\x01", "branch -1"),
        ("double", b"1234567", "7 bytes are left"),
        (FIXED, b"123", "3 bytes are left"),
        ("int", b"\x02\x02", "1 bytes are left over"),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00", "not valid UTF-8"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            b"\x02\x64",
            "more than 2 digits",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38},
            b"\xc8\x01" + b"\x7f" * 100,
            "more than 38 digits",
        ),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "too large",
        ),
        (
            {"type": "map", "values": "int"},
            b"\x02\x02a\x02\x02\x02a\x04\x00",
            "a map has a key twice",
        ),
    ],
)
def test_what_no_value_of_the_type_looks_like(
    avro: ModuleType, schema: str | list[str] | dict[str, object], data: bytes, reason: str
) -> None:
    assert reason in bad(avro, [data], schema)[0]


WIDE = record(
    column("id", "long"),
    column("name", ["null", "string"]),
    column("tags", {"type": "array", "items": {"type": "map", "values": ["int", "string"]}}),
    column("inner", record(column("x", "double"), column("e", ENUM), name="Inner")),
    column("d", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]),
)
VALUE = {
    "id": 300,
    "name": "größe",
    "tags": [{"a": 1, "b": "x"}, {}],
    "inner": {"x": 1.5, "e": "HEARTS"},
    "d": Decimal("12.34"),
}


def test_every_cut_and_every_changed_byte_is_a_value_or_an_error_and_harms_no_other_row(
    avro: ModuleType,
) -> None:
    (good,) = encoded(WIDE, VALUE)
    expected = decoded(avro, [good], WIDE).column.to_pylist()[0]
    damaged = [good[:length] for length in range(len(good))]
    damaged += [
        good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
        for at in range(len(good))
        for flip in (1, 0x80, 0xFF)
    ]
    data = [value for one in damaged for value in (good, one)]
    found = decoded(avro, data, WIDE)
    rows = found.column.to_pylist()
    assert rows[::2] == [expected] * len(damaged)
    assert not [row for row in found.errors if row % 2 == 0]
    assert set(range(1, 2 * len(good), 2)) <= set(found.errors)
    for row in range(1, len(rows), 2):
        assert (rows[row] is None) == (row in found.errors)


def test_slices_and_batches_one_after_the_other(avro: ModuleType) -> None:
    schema = record(column("f", "string"))
    data: list[bytes | None] = [*encoded(schema, *({"f": "x" * n} for n in range(300)))]
    data[5] = None
    values = pa.array(data, pa.binary())
    decoder = avro.AvroDecoder(json.dumps(schema), json.dumps(schema))
    first = decoder.decode(values.slice(3, 4)).column
    second = decoder.decode(values).column
    assert first.to_pylist() == second.to_pylist()[3:7]
    assert first.to_pylist() == [{"f": "xxx"}, {"f": "xxxx"}, None, {"f": "x" * 6}]
    assert len(decoder.decode(values.slice(0, 0)).column) == 0
    assert decoder.decode(pa.nulls(3, pa.binary())).column.to_pylist() == [None] * 3


def test_a_decoder_travels() -> None:
    schema = json.dumps(record(column("f", "string")))
    decoder = pickle.loads(pickle.dumps(open_decoder("avro", schema)))
    assert decoder.decode(pa.array([b"\x02a"], pa.binary())).column.to_pylist() == [{"f": "a"}]


_LEAVES = st.sampled_from(["boolean", "int", "long", "float", "double", "bytes", "string"])
_VALUES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(max_size=20),
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    if depth == 0:
        return draw(_LEAVES)
    kind = draw(st.sampled_from(["leaf", "array", "map", "nullable", "record"]))
    if kind == "leaf":
        return draw(_LEAVES)
    inner = draw(schemas(depth=depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}
    if kind == "map":
        return {"type": "map", "values": inner}
    if kind == "nullable":
        return inner if isinstance(inner, list) else ["null", inner]
    fields = [inner, *draw(st.lists(schemas(depth=depth - 1), max_size=2))]
    name = draw(st.uuids(version=4))
    return record(*(column(f"f{n}", one) for n, one in enumerate(fields)), name=f"R{name.hex}")


def values_of(schema: Any) -> Any:
    if isinstance(schema, str):
        return _VALUES[schema]
    if isinstance(schema, list):
        return st.none() | values_of(schema[1])
    if schema["type"] == "array":
        return st.lists(values_of(schema["items"]), max_size=4)
    if schema["type"] == "map":
        # A single entry: plain() tells an empty map from an empty list by nothing.
        return st.dictionaries(st.text(max_size=5), values_of(schema["values"]), max_size=3)
    return st.fixed_dictionaries(
        {field["name"]: values_of(field["type"]) for field in schema["fields"]}
    )


def as_arrow_shows(schema: Any, value: Any) -> Any:
    """Maps as lists of pairs."""
    if value is None or isinstance(schema, str):
        return value
    if isinstance(schema, list):
        return as_arrow_shows(schema[1], value)
    if schema["type"] == "array":
        return [as_arrow_shows(schema["items"], item) for item in value]
    if schema["type"] == "map":
        return [(name, as_arrow_shows(schema["values"], item)) for name, item in value.items()]
    return {
        field["name"]: as_arrow_shows(field["type"], value[field["name"]])
        for field in schema["fields"]
    }


@given(data=st.data(), form=st.sampled_from(sorted(FORMS)))
def test_what_fastavro_writes_comes_back(data: st.DataObject, form: Any) -> None:
    schema = data.draw(schemas())
    values = data.draw(st.lists(values_of(schema), max_size=5))
    found = decoded(FORMS[form], encoded(schema, *values), schema)
    assert found.errors == {}
    assert found.column.to_pylist() == [as_arrow_shows(schema, value) for value in values]


@given(noise=st.lists(st.binary(max_size=60), max_size=20), form=st.sampled_from(sorted(FORMS)))
def test_noise_is_values_or_errors(noise: list[bytes], form: Any) -> None:
    found = decoded(FORMS[form], noise, WIDE)
    assert len(found.column) == len(noise)
    assert found.column.null_count == len(found.errors)


_WIDER: dict[str, list[tuple[str, Callable[[Any], object]]]] = {
    "int": [("long", int), ("float", float), ("double", float)],
    "long": [("double", float)],
    "float": [("double", float)],
    "string": [("bytes", str.encode)],
}
_SMALL = {**_VALUES, "int": st.integers(-(2**24), 2**24), "long": st.integers(-(2**53), 2**53)}


@st.composite
def evolutions(draw: st.DrawFn, depth: int = 3) -> Any:
    """(the writer's schema, the reader's, a strategy of pairs: what is written, what is read)."""
    kinds = ["plain", "array", "map", "record", "union", "nullable", "required"]
    kind = draw(st.sampled_from(kinds)) if depth else "plain"
    name = f"N{draw(st.uuids(version=4)).hex}"
    if kind == "plain":
        return draw(_evolved_plain(name))
    if kind == "record":
        return draw(_evolved_records(name, depth - 1))
    writer, reader, both = draw(evolutions(depth=depth - 1))
    if kind == "array":
        lists = st.lists(both, max_size=3).map(
            lambda pairs: tuple(map(list, zip(*pairs, strict=True))) or ([], [])
        )
        return {"type": "array", "items": writer}, {"type": "array", "items": reader}, lists
    if kind == "map":
        maps = st.dictionaries(st.text(max_size=3), both, max_size=3).map(
            lambda found: (
                {key: pair[0] for key, pair in found.items()},
                [(key, pair[1]) for key, pair in found.items()],
            )
        )
        return {"type": "map", "values": writer}, {"type": "map", "values": reader}, maps
    if isinstance(writer, list) or isinstance(reader, list) or kind == "union":
        return draw(_evolved_unions(name))
    if kind == "required":
        return [writer, "null"], reader, both
    nulls = st.just((None, None))
    if draw(st.booleans()):
        return [writer, "null"], ["null", reader], nulls | both
    return writer, ["null", reader], both


@st.composite
def _evolved_plain(
    draw: st.DrawFn, name: str
) -> tuple[
    str | dict[str, Sequence[str]],
    Any,
    st.SearchStrategy[tuple[str | bytes | float | int | None, Any]],
]:
    kind = draw(st.sampled_from(["same", "wider", "enum"]))
    if kind == "same":
        leaf = draw(_LEAVES)
        return leaf, leaf, _VALUES[leaf].map(lambda value: (value, value))
    if kind == "wider":
        leaf = draw(st.sampled_from(sorted(_WIDER)))
        wider, convert = draw(st.sampled_from(_WIDER[leaf]))
        return leaf, wider, _SMALL[leaf].map(lambda value: (value, convert(value)))
    written = draw(st.permutations("ABCD"))[:3]
    wanted = [*draw(st.permutations("ABCD"))[:3], "Z"]
    writer = {"type": "enum", "name": f"w.{name}", "symbols": written}
    reader = {"type": "enum", "name": name, "symbols": wanted, "default": "Z"}
    both = st.sampled_from(written).map(lambda one: (one, one if one in wanted else "Z"))
    return writer, reader, both


@st.composite
def _evolved_records(
    draw: st.DrawFn, name: str, depth: int
) -> tuple[Any, Any, st.SearchStrategy[Any]]:
    written, wanted, parts = [], [], []
    for number in range(draw(st.integers(0, 4))):
        writer, reader, both = draw(evolutions(depth=depth))
        fate = draw(st.sampled_from(["kept", "dropped", "renamed"]))
        written.append(column(f"f{number}", writer))
        to = None if fate == "dropped" else f"f{number}" if fate == "kept" else f"g{number}"
        if to:
            wanted.append(column(to, reader, aliases=[f"f{number}"]))
        parts.append((f"f{number}", to, both))
    added = draw(st.booleans())
    wanted = draw(st.permutations(wanted))
    if added:
        wanted.insert(0, column("added", ["null", "string"], default=None))

    def together(pairs: tuple[Any, ...]) -> tuple[dict[str, Any], dict[Any, Any]]:
        read = {to: pair[1] for (_, to, _), pair in zip(parts, pairs, strict=True) if to}
        if added:
            read["added"] = None
        return (
            {of: pair[0] for (of, _, _), pair in zip(parts, pairs, strict=True)},
            {field["name"]: read[field["name"]] for field in wanted},
        )

    values = st.tuples(*(both for _, _, both in parts)).map(together)
    reader = record(*wanted, name=f"r.{name}", aliases=["elsewhere.Old"])
    return record(*written, name=f"w.{name}"), reader, values


@st.composite
def _evolved_unions(
    draw: st.DrawFn, name: str
) -> tuple[list[Any], list[Any], st.SearchStrategy[Any]]:
    """Members in another order, one only the writer has, records that are called alike."""
    first, second = (record(column("x", "int"), name=f"{space}.{name}") for space in "ab")
    members = {
        "string": ("string", _VALUES["string"].map(lambda value: (value, value))),
        "long": ("long", _VALUES["long"].map(lambda value: (value, value))),
        "null": ("null", st.just((None, None))),
        "a": (first, st.integers(0, 9).map(lambda n: ((f"a.{name}", {"x": n}), {"x": n}))),
        "b": (second, st.integers(0, 9).map(lambda n: ((f"b.{name}", {"x": n}), {"x": n}))),
    }
    written = draw(st.permutations(sorted(members)))
    wanted = draw(st.permutations(sorted(members)))
    shown = [key for key in wanted if key != "null"]

    def placed(
        key: str,
        both: st.SearchStrategy[
            tuple[
                tuple[str, dict[str, int]] | str | bytes | float | int | None,
                dict[str, int] | str | bytes | float | int | None,
            ]
        ],
    ) -> st.SearchStrategy[Any]:
        if key == "null":
            return both
        return both.map(
            lambda pair: (
                pair[0],
                {f"member{at}": pair[1] if one == key else None for at, one in enumerate(shown)},
            )
        )

    values = st.one_of(*(placed(key, members[key][1]) for key in written))
    return [members[key][0] for key in written], [members[key][0] for key in wanted], values


@given(data=st.data(), form=st.sampled_from(sorted(FORMS)))
def test_any_evolution_is_read_by_the_rules(data: st.DataObject, form: Any) -> None:
    writer, reader, both = data.draw(evolutions())
    pairs = data.draw(st.lists(both, max_size=4))
    written = encoded(writer, *(value for value, _ in pairs))
    found = decoded(FORMS[form], written, writer, reader)
    assert found.errors == {}
    assert found.column.to_pylist() == [value for _, value in pairs]
    # A row that is cut off takes nothing of its neighbours with it.
    cut = [half for whole in written for half in (whole[:-1], whole)]
    again = decoded(FORMS[form], cut, writer, reader).column.to_pylist()
    assert again[1::2] == [value for _, value in pairs]
