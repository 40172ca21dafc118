"""JSON values by Spark's DDL and by JSON Schema."""

import datetime as dt
import gc
import json
import pickle
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.decoding import columns
from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.errors import InvalidOptionError, InvalidSchemaError
from tests.counted_work.function_calls import function_calls

UTC = pa.timestamp("us", tz="UTC")


def rows(schema: str, *values: bytes | None) -> tuple[Any, dict[Any, Any]]:
    decoder = pickle.loads(pickle.dumps(open_decoder("json", schema)))
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert decoded.column.type == decoder.type
    return decoded.column.to_pylist(), dict(decoded.errors)


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("a int", pa.struct([("a", pa.int32())])),
        ("a: int, b STRING", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("struct<a:int,b:array<string>>",
         pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        ("ARRAY<DOUBLE>", pa.list_(pa.float64())),
        ("map<string, struct<x: date>>", pa.map_(pa.string(), pa.struct([("x", pa.date32())]))),
        ("string", pa.string()),
        ("`a b``c` DECIMAL(9, 2) NOT NULL COMMENT 'it''s', d dec", pa.struct(
            [("a b`c", pa.decimal128(9, 2)), ("d", pa.decimal128(10, 0))])),
        ("a TIMESTAMP, b timestamp_ntz, c tinyint, d smallint, e bigint, f float, g boolean, "
         "h binary, i varchar(10)", pa.struct([
             ("a", UTC), ("b", pa.timestamp("us")), ("c", pa.int8()), ("d", pa.int16()),
             ("e", pa.int64()), ("f", pa.float32()), ("g", pa.bool_()), ("h", pa.binary()),
             ("i", pa.string())])),
    ],
)  # fmt: skip
def test_ddl(ddl: str, expected: Any) -> None:
    assert open_decoder("json", ddl).type == expected


@pytest.mark.parametrize(
    "ddl",
    [
        "",
        "  ",
        "a",
        "a interval",
        "a int b int",
        "a int,",
        "a array<int",
        "a array<int>>",
        "a map<int, int>",
        "a decimal(39)",
        "a decimal(2,3)",
        "a decimal(x)",
        "a int, a string",
        "a int not",
        "a; int",
        "a struct<>",
        "array<" * 100 + "int" + ">" * 100,
    ],
)
def test_ddl_that_is_none(ddl: str) -> None:
    with pytest.raises(InvalidSchemaError):
        open_decoder("json", ddl)


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("int", 5, 5),
        ("bigint", -(2**63), -(2**63)),
        ("bigint", 5.0, 5),
        ("float", -3.4028234663852886e38, -3.4028234663852886e38),
        ("float", 3.4028235e38, 3.4028234663852886e38),
        ("string", 10**30, str(10**30)),
        ("string", {"a": [10**30, "1e+30"]}, '{"a":[1' + 30 * "0" + ',"1e+30"]}'),
        ("struct<s: string, d: decimal(3,1)>", {"s": [10**30]},
         {"s": "[1" + 30 * "0" + "]", "d": None}),
        ("double", 5, 5.0),
        ("boolean", False, False),
        ("string", "größe\u0000", "größe\u0000"),
        ("string", {"a": [1, 2.5, None]}, '{"a":[1,2.5,null]}'),
        ("string", 5, "5"),
        ("decimal(5,2)", 1.25, Decimal("1.25")),
        ("decimal(38,0)", 10**37, Decimal(10**37)),
        ("decimal(38,38)", "-0." + 38 * "9", Decimal("-0." + 38 * "9")),
        ("decimal(5,2)", "1.5" + 100 * "0", Decimal("1.50")),
        ("decimal(5,2)", "0e-999999999", Decimal("0.00")),
        ("decimal(5,2)", "0e999999999", Decimal("0.00")),
        ("decimal(5,2)", "-1.5", Decimal("-1.50")),
        ("binary", "aGk=", b"hi"),
        ("date", "2028-02-29", dt.date(2028, 2, 29)),
        ("timestamp", "2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5, 0, dt.timezone.utc)),
        ("timestamp", "2026-01-02 03:04:05.1234567+02:00",
         dt.datetime(2026, 1, 2, 1, 4, 5, 123456, dt.timezone.utc)),
        ("timestamp", "2026-01-02t03:04:05,25+0230",
         dt.datetime(2026, 1, 2, 0, 34, 5, 250000, dt.timezone.utc)),
        ("timestamp", "2026-01-02T03-11", dt.datetime(2026, 1, 2, 14, 0, 0, 0, dt.timezone.utc)),
        ("timestamp", -1, dt.datetime(1969, 12, 31, 23, 59, 59, 0, dt.timezone.utc)),
        ("timestamp_ntz", "2026-01-02T03:04:05.5", dt.datetime(2026, 1, 2, 3, 4, 5, 500000)),
        ("array<int>", [1, None], [1, None]),
        ("map<string,date>", {"a": "2026-01-01", "b": None},
         [("a", dt.date(2026, 1, 1)), ("b", None)]),
        ("struct<x:struct<y:array<date>>>", {"x": {"y": ["2026-01-01"]}, "z": 1},
         {"x": {"y": [dt.date(2026, 1, 1)]}}),
    ],
)  # fmt: skip
def test_values(ddl: str, value: object, expected: object) -> None:
    found, errors = rows(f"f {ddl}", json.dumps({"f": value, "more": 1}).encode(), b"{}", b"null")
    assert found == [{"f": expected}, {"f": None}, None]
    assert errors == {}


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("int", b"2147483648"),
        ("int", b"1.5"),
        ("int", b'"1"'),
        ("int", b"true"),
        ("bigint", b"9223372036854775808"),
        ("bigint", b"1e400"),
        ("double", b"true"),
        ("double", b'"1"'),
        ("double", b"NaN"),
        ("boolean", b"0"),
        ("decimal(3,1)", b"1.25"),
        ("decimal(3,1)", b"1000"),
        ("decimal(3,1)", b"1e-77"),
        ("decimal(3,1)", b"1e-999999999"),
        ("decimal(3,1)", b"1e999999999"),
        ("decimal(3,1)", b'"-1e-999999999"'),
        ("decimal(38,38)", b"1e-39"),
        ("decimal(38,38)", b"1"),
        ("float", b"3.4028236e38"),
        ("decimal(3,1)", b'"x"'),
        ("decimal(3,1)", b"true"),
        ("decimal(3,1)", b"Infinity"),
        ("binary", b'"a"'),
        ("date", b'"2026-02-30"'),
        ("date", b"5"),
        ("timestamp", b'"soon"'),
        ("timestamp", b'"2026-01-01+05:00"'),
        ("timestamp", b'"2026-01-01-05:00"'),
        ("timestamp", b'"2026-01-01T12.5"'),
        ("timestamp", b'"2026-01-01T12:30,5"'),
        ("timestamp", b'"2026-01-01x12:00"'),
        ("timestamp", b'"2026-01-01T00:00:00Z.5"'),
        ("timestamp", b'"2026-01-01T24:00:00"'),
        ("timestamp", b"1.5"),
        ("timestamp", b"9223372036854775807"),
        ("array<string>", b'"abc"'),
        ("array<string>", b"{}"),
        ("map<string,int>", b"[]"),
        ("struct<x:int>", b"[]"),
        ("string", b'"\xff"'),
        ("string", b'"\\ud800"'),
        ("string", b"[" * 100_000),
        ("decimal(3,1)", b"[" * 100_000),
        ("decimal(3,1)", b"1" * 5000),
        ("string", b"[" * 1000 + b"]" * 1000),
        ("struct<i: int, d: decimal(3,1)>", b'{"i": 1e999999999}'),
        ("struct<i: double, d: decimal(3,1)>", b'{"d": 1e999999999}'),
        ("struct<t: timestamp, d: decimal(3,1)>", b'{"t": 1e9}'),
        ("bigint", b"1e19"),
        ("tinyint", b"128"),
        ("float", b"1e39"),
        ("double", b"1e400"),
        ("decimal(3,1)", b"1e99999999999999999999"),
        ("struct<x:int, d: decimal(3,1)>", b'{"y": 1e99999999999999999999}'),
        ("decimal(3,1)", b'"NaN"'),
        ("decimal(3,1)", b'"1_0"'),
        ("decimal(3,1)", b'" 1"'),
        ("decimal(3,1)", b'"\xef\xbc\x91"'),
        ("struct<s: double, d: decimal(3,1)>", b'{"s": 1e400}'),
        ("struct<s: double, d: decimal(3,1)>", b'{"s": 1' + b"0" * 400 + b"}"),
        ("struct<s: string, d: decimal(3,1)>", b'{"s": "\\ud800"}'),
        ("date", b'"20260101"'),
        ("timestamp", b'"20260101T00"'),
        ("string", b'"a'),
        ("string", b'"a"} {'),
        ("string", b""),
    ],
)
def test_what_is_not_of_the_type_is_the_rows_error(ddl: str, value: bytes) -> None:
    good = b"{}"
    found, errors = rows(f"f {ddl}", good, b'{"f": ' + value + b"}", good)
    assert found == [{"f": None}, None, {"f": None}]
    assert list(errors) == [1]
    assert len(errors[1]) <= 200


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("bigint", b"9007199254740993.0", 2**53 + 1),
        ("double", b"1" + b"0" * 308, 1e308),
        ("string", b"1" * 5000, "1" * 5000),
        ("string", b"1e400", "1E+400"),
        ("struct<s: string, d: decimal(3,1)>", b'{"s": 1.23456789012345678901, "d": 1.0}',
         {"s": "1.23456789012345678901", "d": Decimal("1.0")}),
    ],
)  # fmt: skip
def test_no_digit_of_a_number_is_lost(
    ddl: str, value: bytes, expected: float | str | dict[str, object]
) -> None:
    for more in (b"", b', "more": 1e400'):
        document = b'{"f": ' + value + more + b"}"
        assert rows(f"f {ddl}", document) == ([{"f": expected}], {})


@pytest.mark.parametrize("ddl", ["i bigint, s string", "i bigint, s string, d decimal(3,1)"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"s": "a\xff"}', "not valid UTF-8: invalid start byte at byte 8"),
        (b"\xef\xbb\xbf{}", "not a JSON document: it begins with a byte order mark"),
        (b" ", "not a JSON document: it is empty"),
        (b'{"i": 1} {', "not a JSON document: not understood at character 9"),
        (b'{"i": NaN}', "not a JSON document: NaN is not a JSON number"),
        (b'{"i": 9223372036854775808}', "i: 9223372036854775808 does not fit int64"),
        (b'{"i": 1e30}', "i: 1E+30 is too large for a whole number"),
        (b'{"i": "x"}', 'i: "x" where a whole number belongs'),
        (b'{"s": "\\udc00"}', "s: '\\udc00' does not fit string"),
        (b"[" * 5000, "not a JSON document: it is nested too deep"),
    ],
)
def test_reasons_are_sentences_of_our_own_whatever_reads_the_document(
    ddl: str, value: bytes, reason: str
) -> None:
    assert rows(ddl, value) == ([None], {0: reason})


def test_reasons_name_the_place() -> None:
    found = rows(
        "a array<struct<m: map<string, tinyint>>>, d struct<x: decimal(3,1)>",
        b'{"a": [{"m": null}, {"m": {"k": 1, "l": 128}}]}',
        b'{"d": {"x": 1.25}}',
    )
    assert found == (
        [None, None],
        {0: "a.[1].m.l: 128 does not fit int8", 1: "d: x: 1.25 does not fit decimal128(3, 1)"},
    )


def test_a_document_need_not_be_an_object() -> None:
    assert rows("array<int>", b"[1]", b"{}")[0] == [[1], None]
    assert rows("string", b'{"a": 1}', b'"x"')[0] == ['{"a":1}', "x"]


def test_many_bad_rows_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CHUNK_BYTES", 1000)
    values = [b'{"a": "x"}' if n % 7 == 0 else b'{"a": %d}' % n for n in range(2000)]
    found, errors = rows("a int", *values)
    assert sorted(errors) == list(range(0, 2000, 7))
    assert found == [None if n % 7 == 0 else {"a": n} for n in range(2000)]


def test_no_rows() -> None:
    assert rows("a int") == ([], {})
    assert rows("a int", None) == ([None], {})


def schema(**properties: bool | Mapping[str, object]) -> dict[Any, Any]:
    return {"type": "object", "properties": properties}


TEXT = pa.string()
POINT = pa.struct([("x", pa.int64())])
SCHEMAS = [
    ({"type": "integer"}, pa.int64()),
    ({"type": ["null", "number"]}, pa.float64()),
    ({"type": ["integer", "number"]}, pa.float64()),
    ({"type": ["integer", "string"]}, TEXT),
    ({"enum": ["a", "b", None]}, TEXT),
    ({"const": 5}, pa.int64()),
    ({"type": "boolean"}, pa.bool_()),
    ({"type": "array", "items": {"type": "boolean"}}, pa.list_(pa.bool_())),
    ({"type": "array"}, TEXT),
    ({"type": "array", "items": [{"type": "integer"}]}, TEXT),
    ({"type": "object"}, TEXT),
    ({"type": "object", "additionalProperties": False}, TEXT),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.map_(TEXT, pa.int64())),
    ({"anyOf": [{"type": "null"}, schema(x={"type": "integer"})]}, POINT),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, TEXT),
    ({"$ref": "#/definitions/point"}, POINT),
    ({"$ref": "#/$defs/a~1b"}, pa.float64()),
    ({"$ref": "#anchored"}, pa.bool_()),
    ({"$ref": "https://shop.example/root.json#/definitions/point"}, POINT),
    ({"allOf": [{"$ref": "#/definitions/point"}, schema(y={"type": "string"})]},
     pa.struct([("x", pa.int64()), ("y", TEXT)])),
    ({"$ref": "#/definitions/tree"}, pa.struct([("left", TEXT), ("value", pa.int64())])),
    (True, TEXT),
    ({}, TEXT),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "expected"), SCHEMAS)
def test_json_schema(declared: bool | dict[str, object], expected: Any) -> None:
    root = {
        **schema(f=declared),
        "$id": "https://shop.example/root.json",
        "definitions": {
            "point": schema(x={"type": "integer"}),
            "tree": schema(left={"$ref": "#/definitions/tree"}, value={"type": "integer"}),
        },
        "$defs": {"a/b": {"type": "number"}, "c": {"$anchor": "anchored", "type": "boolean"}},
    }
    assert open_decoder("json", json.dumps(root)).type == pa.struct([("f", expected)])


def test_a_reference_that_leads_to_itself_is_json_text() -> None:
    found, errors = rows('{"$ref": "#"}', b'{"a": [1]}')
    assert found == ['{"a":[1]}']
    assert errors == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"$ref": "#/nowhere"}',
        '{"$ref": "other.json"}',
        '{"a":' * 10_000,
        '{"enum": 5}',
        '{"allOf": [{"properties": [1]}]}',
        '{"$ref": "#a", "$defs": []}',
    ],
)
def test_json_schemas_that_are_none(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        open_decoder("json", text)


def test_json_needs_a_schema() -> None:
    with pytest.raises(InvalidOptionError, match="json needs a schema"):
        open_decoder("json")


_VALUES = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(st.characters(codec="utf-8"), max_size=10),
    "boolean": st.booleans(),
}
_DOCUMENTS = st.fixed_dictionaries(
    {
        **{name: st.none() | values for name, values in _VALUES.items()},
        "list": st.lists(st.none() | _VALUES["bigint"], max_size=4),
        "inner": st.none() | st.fixed_dictionaries({"string": _VALUES["string"]}),
    }
)


@given(st.lists(_DOCUMENTS, max_size=8))
def test_what_json_writes_comes_back(documents: list[dict[str, object]]) -> None:
    ddl = ", ".join(f"{name} {name}" for name in _VALUES)
    found, errors = rows(
        f"{ddl}, list array<bigint>, inner struct<string: string>",
        *(json.dumps(document).encode() for document in documents),
    )
    assert (found, errors) == (documents, {})


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys("bdis", _ANY)), max_size=8))
def test_a_decimal_beside_them_changes_no_other_field(documents: list[dict[Any, Any]]) -> None:
    ddl = "b boolean, d double, i bigint, s string"
    values = [json.dumps(document).encode() for document in documents]
    fast, fast_errors = rows(ddl, *values)
    exact, exact_errors = rows(f"{ddl}, x decimal(3,1)", *values)
    assert fast_errors.keys() == exact_errors.keys()
    for document, one, other in zip(documents, fast, exact, strict=True):
        if one is None:
            assert other is None
            continue
        assert {name: one[name] for name in "bdi"} == {name: other[name] for name in "bdi"}
        if isinstance(document.get("s"), str):
            assert one["s"] == other["s"] == document["s"]
        elif document.get("s") is not None:
            assert json.loads(one["s"]) == json.loads(other["s"]) == document["s"]


@pytest.mark.parametrize("digits", [19, 20, 21, 40])
def test_a_whole_number_beyond_64_bits_is_a_bad_value_and_no_other_one(digits: int) -> None:
    for number in (b"9" * digits, b"-" + b"9" * digits):
        for more in (b"", b', "more": 1e400'):
            found, errors = rows("f bigint", b'{"f": ' + number + more + b"}", b'{"f": 1}')
            assert (found, list(errors)) == ([None, {"f": 1}], [0])


_WRITTEN = {
    "string": ['"a"', '""', '"\\ud83d\\ude00"', '"2026-01-01"', '"1.5"'],
    "bigint": ["1", "-9223372036854775808", "9223372036854775807", "9223372036854775808", "1.0"],
    "int": ["1", "2147483647", "2147483648", "-0", "-0.0"],
    "double": ["1.5", "1", "-0", "-0.0", "9007199254740993", "1e308", "1e400", "1e-400"],
    "float": ["1.5", "16777217", "0.1", "3.4028235e38", "3.4028236e38", "1e-50"],
    "boolean": ["true", "false", "0"],
    "date": ['"2026-11-27"', '"0000-01-01"', '"0001-01-01"', '"2026-02-30"', '"20261127"',
             '"9999-12-31"'],
    "timestamp": ['"2026-11-27T08:09:10Z"', '"2026-11-27 08:09:10.123456"', '"2026-11-27"', "5",
                  '"2026-11-27t08:09:10.1+05:30"', '"2026-11-27T24:00:00Z"',
                  '"2026-02-30T00:00:00"', '"2026-11-27T08:09:10-23:59"',
                  '"2026-11-27T08:09:10.1234567Z"', '"0000-01-01T00:00:00Z"',
                  '"2026-11-27T08:09:60Z"', '"2026-11-27T08:09:10+24:00"', '"2026-11-27T08Z"'],
    "timestamp_ntz": ['"2026-11-27T08:09:10"', '"2026-11-27T08:09:10Z"', '"0001-01-01T00:00:00"'],
    "decimal(5,2)": ["1", "1.25", "1.250", "1.255", "999.99", "1000", "1e2", "1e-2", "-0.0",
                     '"1.5"', '"+1"', '".5"', '"1."', '" 1"', '"1_0"', '"1e1"', '"\uff11"', "0.35",
                     "0.57", '"1\\u00650000000001"'],
    "decimal(38,18)": ["0.1", "1.000000000000000001", "12345678901234567890", "1e19", "1e-18",
                       "0.100000000000000005551", '"0.100000000000000005"', "1e99", "4.35e2"],
    "array<string>": ['["a", null]', "[]", "[1]", '"a"', "{}"],
    "array<int>": ["[1, 2]", "[2147483648]", "[1.0]", "[true]", "[[1]]", "[null]"],
    "struct<x: bigint, y: array<string>>": ["{}", '{"x": 1}', '{"x": "1"}', '{"y": ["a"]}', "[]"],
    "struct<x: timestamp>": ['{"x": "2026-11-27T08:09:10Z"}', '{"x": null}', "{}", '{"z": 1}'],
}  # fmt: skip
_DOCUMENTS_OF = {
    ddl: [
        *[f'{{"f": {text}, "g": 1}}'.encode() for text in [*texts, "null"]],
        b"{}",
        b'{"f": ' + texts[0].encode() + b', "f": null}',
        b"null",
        b"[]",
        b"",
        b'{"g": "\xff"}',
        b'{"g": "\\ud800"}',
        b'{"g": NaN}',
        b'{"f": ' + texts[0].encode() + b"} {}",
        None,
    ]
    for ddl, texts in _WRITTEN.items()
}


def assert_same_beside_a_bad_value(ddl: str, *values: bytes | None) -> None:
    found, errors = rows(f"f {ddl}, g bigint", *values)
    beside, more_errors = rows(f"f {ddl}, g bigint", *values, b"{")
    assert repr(found) == repr(beside[:-1])
    assert errors == {row: error for row, error in more_errors.items() if row < len(values)}


@pytest.mark.parametrize("ddl", _WRITTEN)
def test_what_a_value_becomes_does_not_depend_on_bad_ones_beside_it(ddl: str) -> None:
    for value in _DOCUMENTS_OF[ddl]:
        assert_same_beside_a_bad_value(ddl, value)


@pytest.mark.parametrize("ddl", _WRITTEN)
@given(data=st.data())
def test_what_values_become_does_not_depend_on_bad_ones_beside_them(ddl: str, data: Any) -> None:
    values = data.draw(st.lists(st.sampled_from(_DOCUMENTS_OF[ddl]), min_size=2, max_size=4))
    assert_same_beside_a_bad_value(ddl, *values)


@pytest.mark.parametrize("digits", range(1, 40))
def test_decimals_keep_every_digit(digits: int) -> None:
    numbers = ["9" * digits, f"0.{'3' * min(digits, 18)}", f"{'1' * max(1, digits - 2)}.35"]
    for number in numbers:
        expected = Decimal(number)
        fits = expected < Decimal(10) ** 20
        (found,), errors = rows("f decimal(38,18)", f'{{"f": {number}}}'.encode())
        assert (found, not errors) == ({"f": expected} if fits else None, fits)


@pytest.mark.parametrize(
    ("ddl", "document"),
    [
        ("f bigint, g string, h double", {"f": 1, "g": "a", "h": 0.5}),
        (
            "f decimal(9,2), g timestamp, h struct<x: array<string>>",
            {"f": 1.25, "g": "2026-11-27T08:09:10Z", "h": {"x": ["a"]}},
        ),
    ],
)
def test_usual_values_cost_no_call_of_their_own(ddl: str, document: dict[str, Any]) -> None:
    count = 3_000
    decoder = open_decoder("json", ddl)
    values = pa.array([json.dumps(document).encode()] * count)
    with function_calls() as calls:
        assert not decoder.decode(values).errors
    ours = {name: n for name, n in calls.by_name.items() if name.startswith("pyspark_kafkalog.")}
    assert sum(ours.values()) < count / 10, ours


@pytest.mark.parametrize("ddl", ["f bigint", "f map<string, bigint>"])
def test_what_is_decoded_is_no_matter_of_the_garbage_collector(ddl: str) -> None:
    decoder = open_decoder("json", ddl)
    values = pa.array([b'{"f": {}}' if "map" in ddl else b'{"f": 1}'] * 5_000)
    collections: list[str] = []

    def started(phase: str, _: object) -> None:
        collections.append(phase)

    gc.collect()
    gc.callbacks.append(started)
    try:
        decoder.decode(values)
        assert collections == []
        assert gc.isenabled()
        gc.disable()
        decoder.decode(values)
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.callbacks.remove(started)
