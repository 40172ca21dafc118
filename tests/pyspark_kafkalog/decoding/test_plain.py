"""Values without a schema: bytes and text."""

import pickle

import pyarrow as pa
import pytest

from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.errors import InvalidOptionError

VALUES = pa.array([b"text", None, b"", "größe".encode(), b"\xff\x00"], pa.binary())


def test_binary_leaves_values_as_they_are() -> None:
    decoder = pickle.loads(pickle.dumps(open_decoder("binary")))
    decoded = decoder.decode(VALUES)
    assert decoder.type == pa.binary()
    assert decoded.column.equals(VALUES)
    assert decoded.errors == {}


def test_string_is_utf_8_and_says_what_is_not() -> None:
    decoder = pickle.loads(pickle.dumps(open_decoder("string")))
    decoded = decoder.decode(VALUES)
    assert decoded.column.type == decoder.type == pa.string()
    assert decoded.column.to_pylist() == ["text", None, "", "größe", None]
    assert decoded.errors == {4: "not valid UTF-8: invalid start byte at byte 0"}


def test_string_of_a_slice() -> None:
    decoded = open_decoder("string").decode(VALUES.slice(3))
    assert decoded.column.to_pylist() == ["größe", None]
    assert list(decoded.errors) == [1]


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        InvalidOptionError, match=r"value_format is 'xml'.*binary, string, json, avro, protobuf"
    ):
        open_decoder("xml")


@pytest.mark.parametrize("value_format", ["binary", "string"])
def test_formats_without_a_schema_take_none(value_format: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{value_format} has no schema"):
        open_decoder(value_format, schema="a int")
