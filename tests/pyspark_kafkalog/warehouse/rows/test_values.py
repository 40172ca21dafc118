"""Values that become columns, and what becomes of those that cannot."""

import json
import math
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from pyspark_kafkalog.arrow.schema import DEFAULT_COLUMNS, HEADERS_TYPE, row_schema
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.decoding.decoder import Decoded
from pyspark_kafkalog.errors import BadRecordError, InvalidOptionError, InvalidRowError
from pyspark_kafkalog.source.options import SourceOptions, batch_options
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse import landing
from pyspark_kafkalog.warehouse.commit import (
    Stage,
)
from pyspark_kafkalog.warehouse.landing import Landing, Reading, Records, land
from pyspark_kafkalog.warehouse.rows.dead_letters import dead_letter_topic, with_origin
from pyspark_kafkalog.warehouse.rows.transformation import takes_batches, transformed_schema
from pyspark_kafkalog.warehouse.rows.values import Values, open_values
from tests.support.present import present

WITH_HEADERS = (*DEFAULT_COLUMNS, "headers")
OPTIONS = batch_options({"kafka.bootstrap.servers": "nowhere:1", "subscribe": "orders"})
PIECE = OffsetRange("orders", 3, 10, 20)
GOOD = [b'{"id": 1, "topic": "x", "n": 5}', None, b"{}"]
BAD = b"no json"


THREE_FIELDS = pa.struct([("id", pa.int64()), ("topic", pa.string()), ("n", pa.int16())])


@dataclass(frozen=True)
class Objects:
    """JSON objects with three fields, of which one is called like a column of topics."""

    type: pa.DataType = THREE_FIELDS

    def decode(self, values: pa.Array) -> Decoded:
        rows, errors = [], {}
        for row, value in enumerate(values.to_pylist()):
            try:
                rows.append(None if value is None else json.loads(value))
            except ValueError:
                rows.append(None)
                errors[row] = f"no JSON: {value!r}"
        return Decoded(pa.array(rows, self.type), errors)


def records(values: list[bytes | None], columns: Sequence[str] = WITH_HEADERS) -> pa.RecordBatch:
    count = len(values)
    everything = {
        "key": [b"k"] * count,
        "value": values,
        "topic": ["orders"] * count,
        "partition": [3] * count,
        "offset": list(range(10, 10 + count)),
        "timestamp": [1_700_000_000_123_000] * count,
        "timestampType": [0] * count,
        "headers": [[{"key": "trace", "value": b"\x01"}], *[None] * (count - 1)],
    }
    return pa.RecordBatch.from_pydict(
        {name: everything[name] for name in columns}, row_schema(columns)
    )


def read_as(
    monkeypatch: pytest.MonkeyPatch, values: list[bytes | None], reading: Reading
) -> Records:
    def read(
        _cluster: Cluster,
        _options: SourceOptions,
        columns: Sequence[str],
        _piece: OffsetRange,
        _topic_id: UUID | None,
        _on_gap: Callable[[OffsetRange], None] | None,
        _epoch: int | None,
    ) -> Iterator[pa.RecordBatch]:
        yield records(values[:2], columns)
        yield records([*values[:2], *values[2:]], columns).slice(2)

    monkeypatch.setattr(landing, "read_range", read)
    return Records(Cluster(reading.options.client), reading, PIECE, None)


def rows_of(found: Records) -> list[dict[str, Any]]:
    return [row for batch in found.rows() for row in batch.to_pylist()]


def test_the_fields_of_a_struct_become_columns_in_the_place_of_the_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Reading(OPTIONS, DEFAULT_COLUMNS, {}, Values(Objects()))
    found = read_as(monkeypatch, GOOD, reading)
    rows = rows_of(found)
    assert reading.schema().names == [
        *("key", "id", "value_topic", "n", "topic", "partition", "offset", "timestamp"),
        "timestampType",
    ]
    assert reading.schema().field("n").type == pa.int32()
    assert list(rows[0]) == reading.schema().names
    assert [(row["id"], row["value_topic"], row["n"]) for row in rows] == [
        (1, "x", 5),
        (None, None, None),
        (None, None, None),
    ]
    assert [row["offset"] for row in rows] == [10, 11, 12]
    assert found.landed().records == 3


def test_a_bad_value_fails_the_load_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(OPTIONS, DEFAULT_COLUMNS, {}, Values(Objects()))
    said = r"orders-3 at offset 12 cannot be decoded: no JSON: b'no json' \(1 more nearby\)"
    with pytest.raises(BadRecordError, match=said):
        rows_of(read_as(monkeypatch, [*GOOD[:2], BAD, BAD], reading))


def test_with_null_the_row_stays_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(OPTIONS, ("value", "offset"), {}, Values(Objects(), "null"))
    found = read_as(monkeypatch, [GOOD[0], None, BAD], reading)
    rows = rows_of(found)
    assert reading.schema().names == ["id", "value_topic", "n", "offset", "value_error"]
    assert [row["value_error"] for row in rows] == [None, None, "no JSON: b'no json'"]
    assert [row["id"] for row in rows] == [1, None, None]
    assert found.landed().bad_records == 1


class Letterbox:
    """In the place of DeadLetters: what would have been sent."""

    sent: list[tuple[str, dict[str, Any]]]

    def __init__(self, _client: object, letters_to: str) -> None:
        self._letters_to = letters_to

    def __enter__(self) -> "Letterbox":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, bad: pa.RecordBatch, reasons: list[str]) -> None:
        topic = dead_letter_topic("orders", self._letters_to)
        headers = with_origin(bad, reasons)
        assert headers.type == HEADERS_TYPE
        for row, found in zip(bad.to_pylist(), headers.to_pylist(), strict=True):
            self.sent.append((topic, {**row, "headers": found}))


def test_each_dead_letter_has_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "DeadLetters", Letterbox)
    monkeypatch.setattr(Letterbox, "sent", [], raising=False)
    reading = Reading(OPTIONS, ("value", "offset"), {}, Values(Objects(), "deadletter"))
    assert rows_of(read_as(monkeypatch, [b"no", b"nor this", b"{}"], reading))
    said = [(sent["value"], sent["headers"][-1]["value"]) for _, sent in Letterbox.sent]
    assert said == [(b"no", b"no JSON: b'no'"), (b"nor this", b"no JSON: b'nor this'")]


@pytest.mark.parametrize("name", ["topic", "Topic", "timestamptype"])
def test_a_field_that_is_called_as_a_column_of_topics_in_any_case_is_told_from_it(
    name: str,
) -> None:
    values = Values(Objects(pa.struct([(name, pa.string())])))
    schema = Reading(OPTIONS, DEFAULT_COLUMNS, {}, values).schema()
    assert f"value_{name}" in schema.names
    assert len({each.lower() for each in schema.names}) == len(schema.names)


def test_with_deadletter_the_record_goes_to_a_topic_as_it_came(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(landing, "DeadLetters", Letterbox)
    monkeypatch.setattr(Letterbox, "sent", [], raising=False)
    reading = Reading(OPTIONS, ("value", "offset"), {}, Values(Objects(), "deadletter"))
    found = read_as(monkeypatch, [BAD, GOOD[0], BAD], reading)
    assert rows_of(found) == [{"id": 1, "value_topic": "x", "n": 5, "offset": 11}]
    [(topic, first), (_, second)] = Letterbox.sent
    assert topic == "orders-dead-letters"
    assert (first["key"], first["value"]) == (b"k", BAD)
    assert first["headers"] == [
        {"key": "trace", "value": b"\x01"},
        {"key": "kafkalog.topic", "value": b"orders"},
        {"key": "kafkalog.partition", "value": b"3"},
        {"key": "kafkalog.offset", "value": b"10"},
        {"key": "kafkalog.timestamp", "value": b"1700000000123"},
        {"key": "kafkalog.reason", "value": b"no JSON: b'no json'"},
    ]
    assert [header["value"] for header in second["headers"]][2] == b"12"
    landed = found.landed()
    assert (landed.records, landed.bad_records) == (3, 2)
    assert reading.rows_of(landed) == 1
    assert dead_letter_topic("orders", "letters") == "letters"
    monkeypatch.setattr(Letterbox, "sent", [])
    stage = Stage("load-1", str(tmp_path), reading.schema())
    [result] = land(Landing(reading, stage), [PIECE])
    assert [file.records for file in result.files] == [1]


def test_fields_that_would_share_a_name_are_refused() -> None:
    fields = pa.struct([("topic", pa.string()), ("VALUE_topic", pa.string())])
    with pytest.raises(InvalidOptionError, match="two columns the name value_topic"):
        Values(Objects(fields)).schema(row_schema())
    error = pa.struct([("value_error", pa.string())])
    with pytest.raises(InvalidOptionError, match="two columns the name value_error"):
        Values(Objects(error), "null").schema(row_schema())


def test_text_becomes_a_column_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(
        OPTIONS, ("value", "offset"), {}, open_values("string", None, None, "null", None)
    )
    rows = rows_of(read_as(monkeypatch, ["ä".encode(), None, b"\xff"], reading))
    assert [row["value"] for row in rows] == ["ä", None, None]
    assert rows[2]["value_error"].startswith("not valid UTF-8")


NUL_SCHEMA = (
    "t STRING, l ARRAY<STRING>, s STRUCT<x: ARRAY<STRUCT<y: STRING>>>, m MAP<STRING, STRING>"
)
NAN_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "x", "type": "double"},
            {"name": "l", "type": {"type": "array", "items": "double"}},
        ],
    }
)
HOLDING_NUL = [
    {"t": "a\0b"},
    {"l": ["a", None, "\0"]},
    {"s": {"x": [{"y": "a"}, {"y": "\0"}]}},
    {"m": {"\0": "a"}},
    {"m": {"a": "\0"}},
]


def test_a_nul_in_a_text_is_bad_for_a_target_that_cannot_hold_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = [{"t": "ab", "l": ["x"], "s": {"x": [{"y": "z"}, None]}, "m": {"k": "v"}}, {"l": []}]
    values: list[bytes | None] = [json.dumps(one).encode() for one in (*good, *HOLDING_NUL, *good)]
    decoding = present(open_values("json", NUL_SCHEMA, None, "null", None))
    reading = Reading(OPTIONS, ("value", "offset"), {}, decoding)
    assert not any(row["value_error"] for row in rows_of(read_as(monkeypatch, values, reading)))
    refusing = replace(reading, values=replace(decoding, takes_nul=False))
    rows = rows_of(read_as(monkeypatch, [*values, None, BAD], refusing))
    bad = [row["offset"] for row in rows if "the character NUL" in str(row["value_error"])]
    assert bad == [12, 13, 14, 15, 16]
    assert rows[2]["t"] is None
    assert rows[0]["s"] == {"x": [{"y": "z"}, None]}
    assert (rows[-2]["value_error"], "NUL" in rows[-1]["value_error"]) == (None, False)
    failing = present(open_values("string", None, None, "fail", None))
    refusing = Reading(OPTIONS, ("value", "offset"), {}, replace(failing, takes_nul=False))
    with pytest.raises(BadRecordError, match=r"orders-3 at offset 11 .* holds the character NUL"):
        rows_of(read_as(monkeypatch, [b"a", b"\0"], refusing))


@pytest.mark.parametrize(("schema", "form"), [('"double"', "{}"), (NAN_SCHEMA, "struct")])
def test_numbers_are_bad_for_a_target_that_does_not_have_them(
    monkeypatch: pytest.MonkeyPatch, schema: str, form: str
) -> None:
    """But within a list, which is JSON there."""
    tail = b"" if form == "{}" else b"\x02" + struct.pack("<d", math.nan) + b"\0"
    values: list[bytes | None] = [
        struct.pack("<d", number) + tail for number in (1.5, math.nan, math.inf)
    ]
    decoding = present(open_values("avro", schema, None, "null", None))
    reading = Reading(OPTIONS, ("value", "offset"), {}, decoding)
    assert not any(row["value_error"] for row in rows_of(read_as(monkeypatch, values, reading)))
    refusing = replace(reading, values=replace(decoding, takes_nan=False))
    rows = rows_of(read_as(monkeypatch, values, refusing))
    assert [row["value_error"] is None for row in rows] == [True, False, True]
    assert "NaN" in rows[1]["value_error"]
    assert rows[1].get("value", rows[1].get("x")) is None
    refusing = replace(reading, values=replace(decoding, takes_nan=False, takes_infinity=False))
    rows = rows_of(read_as(monkeypatch, values, refusing))
    assert [row["value_error"] is None for row in rows] == [True, False, False]
    assert "infinite" in rows[2]["value_error"]


def test_a_nul_in_the_key_of_a_header_costs_its_record_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*_: Cluster) -> Iterator[pa.RecordBatch]:
        row = {"value": b"v", "topic": "orders", "partition": 3, "timestamp": 0}
        keys = ["a", "a\0b", "c"]
        rows = [
            {**row, "offset": n, "headers": [{"key": key, "value": b"x"}]}
            for n, key in enumerate(keys)
        ]
        names = ("value", "topic", "partition", "offset", "timestamp", "headers")
        yield pa.RecordBatch.from_pylist(rows, row_schema(names))

    values = present(open_values("binary", None, None, "null", None))
    reading = Reading(OPTIONS, ("offset", "value", "headers"), {}, replace(values, takes_nul=False))
    monkeypatch.setattr(landing, "read_range", read)
    rows = rows_of(Records(Cluster(reading.options.client), reading, PIECE, None))
    assert [row["headers"] is None for row in rows] == [False, True, False]
    assert "a header's key holds the character NUL" in rows[1]["value_error"]
    assert [row["value"] for row in rows] == [b"v"] * 3


@pytest.mark.parametrize("takes_nul", [True, False])
def test_a_header_without_a_key_is_told(monkeypatch: pytest.MonkeyPatch, takes_nul: bool) -> None:
    def read(*_: Cluster) -> Iterator[pa.RecordBatch]:
        row = {"value": b"v", "topic": "orders", "partition": 3, "timestamp": 0}
        headers = [
            None,
            [{"key": "a", "value": b"x"}, {"key": None, "value": b"y"}],
            [{"key": "c", "value": None}],
        ]
        rows = [{**row, "offset": n, "headers": one} for n, one in enumerate(headers)]
        names = ("value", "topic", "partition", "offset", "timestamp", "headers")
        yield pa.RecordBatch.from_pylist(rows, row_schema(names))

    values = present(open_values("binary", None, None, "null", None))
    values = replace(values, takes_nul=takes_nul)
    reading = Reading(OPTIONS, ("offset", "value", "headers"), {}, values)
    monkeypatch.setattr(landing, "read_range", read)
    records = Records(Cluster(reading.options.client), reading, PIECE, None)
    rows = rows_of(records)
    assert [row["value_error"] for row in rows] == [None, "a header has no key", None]
    assert [row["value"] for row in rows] == [b"v"] * 3
    assert records.landed().bad_records == 1
    # Letters take headers along, and the rows do not.
    monkeypatch.setattr(landing, "DeadLetters", Letterbox)
    values = present(open_values("binary", None, None, "deadletter", None))
    reading = Reading(OPTIONS, ("offset", "value"), {}, replace(values, takes_nul=takes_nul))
    records = Records(Cluster(reading.options.client), reading, PIECE, None)
    assert [row["offset"] for row in rows_of(records)] == [0, 1, 2]
    assert records.landed().bad_records == 0


def test_values_as_they_are_need_nothing() -> None:
    assert open_values("binary", None, None, "fail", None) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("string", None, None, "skip", None), "on_error is 'skip': write one of fail"),
        (("string", None, None, "null", "t"), "dead_letter_topic has no effect without"),
        (("string", None, None, "deadletter", " "), "dead_letter_topic is empty"),
        (("xml", None, None, "fail", None), "value_format is 'xml'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, None, None, str, str | None], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        open_values(*arguments)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column("offset")], names=["n"])


def first_of_each(table: pa.Table) -> "pa.Table":
    assert isinstance(table, pa.Table)
    return table[:1]


def nothing(batch: "pa.RecordBatch") -> Any | None:
    return None if batch.num_rows else batch


def unknown(df: Any) -> Any:
    return df


class Called:
    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


@pytest.mark.parametrize(
    ("function", "batches"),
    [
        (doubled, True),
        (first_of_each, True),
        (nothing, True),
        (Called(), True),
        (unknown, False),
        (lambda df: df, False),
        (dict, False),
    ],
)
def test_functions_of_batches_say_so_by_an_annotation(function: Any, batches: bool) -> None:
    assert takes_batches(function) is batches


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="transform is a str: give a function"):
        takes_batches("module:function")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "rows"), [(doubled, [10, 11, 12]), (first_of_each, [10, 12]), (nothing, [])]
)
def test_a_function_of_batches_changes_rows_on_the_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: Callable[[Any], Any], rows: list[int]
) -> None:
    reading = Reading(OPTIONS, ("value", "offset"), {}, None, function)
    schema = transformed_schema(function, reading.schema())
    read_as(monkeypatch, [b"a", b"b", b"c"], reading)
    [landed] = land(Landing(reading, Stage("load-1", str(tmp_path), schema)), [PIECE])
    assert (landed.records, landed.first_offset, landed.last_offset) == (3, 10, 12)
    assert reading.rows_of(landed) is None
    assert sum(file.records for file in landed.files) == len(rows)
    assert pickle.loads(pickle.dumps(reading)).transform is function


def test_a_function_has_to_tell_its_columns_and_to_keep_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def silent(batch: pa.RecordBatch) -> None:
        return None

    def moody(batch: pa.RecordBatch) -> Any:
        return batch if batch.num_rows else batch.select(["offset"]).rename_columns(["n"])

    def wrong(batch: pa.RecordBatch) -> list[Any] | Any:
        return [1] if batch.num_rows else batch

    with pytest.raises(InvalidOptionError, match="returned a NoneType for a batch without rows"):
        transformed_schema(silent, row_schema())
    for function, error, said in (
        (moody, InvalidRowError, "made other columns of records"),
        (wrong, InvalidOptionError, "transform returned a list"),
    ):
        reading = Reading(OPTIONS, ("value", "offset"), {}, None, function)
        stage = Stage("load-1", str(tmp_path), transformed_schema(function, reading.schema()))
        read_as(monkeypatch, [b"a"], reading)
        with pytest.raises(error, match=said):
            list(land(Landing(reading, stage), [PIECE]))
