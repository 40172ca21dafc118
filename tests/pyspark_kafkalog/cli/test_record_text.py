"""Records as text: whole Arrow batches beside lines that Python makes of each record."""

import base64
import json
import math
import struct
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.arrow.schema import COLUMN_TYPES, row_schema
from pyspark_kafkalog.cli.record_text import RecordText
from pyspark_kafkalog.decoding.formats import open_decoder

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TEXTS = st.text(st.sampled_from('ab"\\\n\x00\x1f\x7f /é日😀\u2028'), max_size=5)
DATA = st.one_of(st.none(), TEXTS.map(str.encode), st.sampled_from([b"\xff", b"a\xc3", b""]))
HEADER = st.fixed_dictionaries({"key": TEXTS, "value": DATA})
HEADERS = st.one_of(st.none(), st.lists(HEADER, max_size=2))
MICROS = st.one_of(
    st.none(),
    st.integers(0, 2_000_000_000_000).map(lambda ms: ms * 1000),
    st.sampled_from([-1000, 253_402_300_800_000_000, -62_135_596_800_001_000]),
)
RECORDS = st.lists(st.tuples(DATA, DATA, MICROS, HEADERS), min_size=1, max_size=6)


def readable(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def time_of(micros: int | None) -> Any:
    if micros is None:
        return None
    try:
        return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="milliseconds")
    except OverflowError:
        return micros // 1000


@given(RECORDS, st.integers(0, 5), TEXTS)
def test_json_is_that_of_each_record(
    records: list[tuple[bytes | None, bytes | None, int | None, list[dict[str, Any]] | None]],
    skipped: int,
    topic: str,
) -> None:
    text = RecordText("json", None)
    keys, values, micros, headers = zip(*records, strict=True)
    columns = {
        "key": keys,
        "value": values,
        "topic": [topic] * len(records),
        "partition": [7] * len(records),
        "offset": range(len(records)),
        "timestamp": micros,
        "headers": headers,
    }
    rows = pa.RecordBatch.from_pydict(
        {name: list(columns[name]) for name in text.columns}, row_schema(text.columns)
    ).slice(min(skipped, len(records) - 1))
    first = len(records) - rows.num_rows
    lines = bytes(text.of(rows)).splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    assert [json.loads(line) for line in lines] == [
        {
            "topic": topic,
            "partition": 7,
            "offset": first + number,
            "timestamp": time_of(time),
            "key": readable(key),
            "value": readable(value),
            **({"headers": [[h["key"], readable(h["value"])] for h in said]} if said else {}),
        }
        for number, (key, value, time, said) in enumerate(records[first:])
    ]


def test_a_header_without_a_key_is_shown() -> None:
    headers = [[{"key": None, "value": b"x"}, {"key": "k", "value": None}]]
    records = pa.record_batch([pa.array(headers, COLUMN_TYPES["headers"])], ["headers"])
    assert bytes(RecordText("%h\\n", None).of(records)) == b"=x,k=NULL\n"


def test_a_value_that_python_has_not_is_shown_as_it_came() -> None:
    """One day in the year 5881580, between two of ours."""
    decoder = open_decoder("avro", '{"type": "int", "logicalType": "date"}', None)
    values = pa.array([b"\x02", b"\xfe\xff\xff\xff\x0f", b"\x04"], pa.binary())
    records = pa.record_batch({"value": values, "offset": pa.array([0, 1, 2])})
    lines = bytes(RecordText("%v\\n", decoder).of(records)).splitlines()
    assert lines == [b'"1970-01-02"', b'{"base64":"/v///w8="}', b'"1970-01-03"']
    found, errors = RecordText("json", decoder)._values(values)
    assert found[1] == {"base64": "/v///w8="}
    assert list(errors) == [1]


def test_numbers_that_json_has_not_are_words() -> None:
    """They were null, as what is not there."""
    fields = ",".join(
        f'{{"name": "{name}", "type": {kind}}}'
        for name, kind in (
            ("one", '["null", "double"]'),
            ("many", '{"type": "array", "items": "double"}'),
        )
    )
    schema = f'{{"type": "record", "name": "r", "fields": [{fields}]}}'
    numbers = struct.pack("<4d", math.nan, math.inf, -math.inf, 0.5)
    value = b"\x02" + numbers[:8] + b"\x06" + numbers[8:] + b"\x00"
    records = pa.record_batch(
        {
            "value": pa.array([value, b"\x00\x00"], pa.binary()),
            "offset": pa.array([0, 1]),
        }
    )
    text = RecordText("%v\\n", open_decoder("avro", schema, None)).of(records)
    first, second = map(json.loads, bytes(text).splitlines())
    assert first == {"one": "NaN", "many": ["Infinity", "-Infinity", 0.5]}
    assert second == {"one": None, "many": []}
