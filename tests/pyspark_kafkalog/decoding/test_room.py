"""Values of few bytes and many items: what they may take, in every format."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafkalog.decoding import room
from pyspark_kafkalog.decoding.decoder import Decoder
from pyspark_kafkalog.decoding.formats import open_decoder
from tests.pyspark_kafkalog.decoding.conftest import FORMS

NAMES = [f"f{number}" for number in range(300)]
RECORD = {
    "type": "record",
    "name": "I",
    "fields": [{"name": name, "type": ["null", "long"]} for name in NAMES],
}
AVRO = json.dumps({"type": "array", "items": {"type": "map", "values": ["null", RECORD]}})
DDL = f"array<map<string, struct<{', '.join(f'{name}: bigint' for name in NAMES)}>>>"
PROTO = f"""syntax = "proto3";
message M {{ repeated L l = 1; }}
message L {{ map<string, I> i = 1; repeated I j = 2; }}
message I {{ {"".join(f"int64 {name} = {at + 1};" for at, name in enumerate(NAMES))} }}
"""


def many(decoder: Decoder, *counts: int) -> bytes:
    """Two lists with so many empty items each."""
    kind = type(decoder).__name__
    if kind == "AvroDecoder":
        # Two maps of one block each, whose values are null.
        keys = [b"%d" % number for number in range(max(counts))]
        entries = [long(len(key)) + key + b"\0" for key in keys]
        maps = [long(count) + b"".join(entries[:count]) + b"\0" for count in counts]
        return b"\x04" + b"".join(maps) + b"\0"
    if kind == "JsonDecoder":
        texts = ("{" + ",".join(f'"{n}":{{}}' for n in range(count)) + "}" for count in counts)
        return f"[{','.join(texts)}]".encode()
    return b"".join(b"\x0a" + varint(2 * count) + b"\x12\0" * count for count in counts)


def long(number: int) -> bytes:
    return varint(number << 1)


def varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def decoders() -> Iterator[Any]:
    yield from (form.AvroDecoder(AVRO, AVRO) for form in FORMS.values())
    yield open_decoder("json", DDL)
    yield open_decoder("protobuf", PROTO)


@pytest.mark.parametrize("decoder", [*decoders()], ids=["avro", "plain avro", "json", "protobuf"])
def test_items_of_one_value_are_bounded_together(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list would do alone."""
    monkeypatch.setattr(room, "MOST_BYTES", 3 << 20)
    few, twice = many(decoder, 500, 500), many(decoder, 1000, 1000)
    decoder = type(decoder)(*decoder.__reduce__()[1])
    found = decoder.decode(pa.array([few, twice, few], pa.binary()))
    assert found.column.is_null().to_pylist() == [False, True, False]
    assert "would take" in found.errors[1]


def test_slices_take_no_more_than_they_may() -> None:
    kind = open_decoder("json", DDL).type
    values = pa.array([b"", b"x" * 10, None, *[b"x" * 10_000] * 20, b"x" * 100_000, b"y"])
    found = list(room.slices(values, kind))
    assert [start for start, _ in found] == [0, *(s + n for s, n in found[:-1])]
    assert sum(found[-1]) == len(values)
    largest = room.largest_item_bytes(kind)
    for start, count in found:
        taken = values.slice(start, count)
        assert (
            count == 1 or sum(len(v or b"") for v in taken.to_pylist()) * largest <= room.MOST_BYTES
        )
    assert list(room.slices(values, pa.list_(pa.int64()))) == [(0, len(values))]
    assert list(room.slices(values.slice(0, 0), kind)) == [(0, 0)]
