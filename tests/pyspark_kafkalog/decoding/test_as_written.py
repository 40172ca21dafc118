"""Single values by the schemas that wrote them, of whichever kind."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from pyspark_kafkalog.decoding.as_written import AsWritten
from pyspark_kafkalog.decoding.decoder import BadValueError
from pyspark_kafkalog.decoding.registry import RegistryConfig
from pyspark_kafkalog.errors import SchemaRegistryError
from tests.pyspark_kafkalog.decoding.registry_stub import Registry, serving


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


@pytest.fixture
def values(registry: Registry) -> AsWritten:
    return AsWritten(RegistryConfig.from_options({"schema.registry.url": registry.url}))


def framed(schema_id: int, rest: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + rest


def test_each_value_is_read_by_its_own_schema(registry: Registry, values: AsWritten) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    where = SerializationContext("orders", MessageField.VALUE)
    for fields in (["a"], ["a", "b"], ["c"]):
        named = [{"name": name, "type": "long"} for name in fields]
        schema = json.dumps({"type": "record", "name": "Order", "fields": named})
        written = AvroSerializer(client, schema)(dict.fromkeys(fields, 7), where)
        assert values.read(written) == ("AVRO", dict.fromkeys(fields, 7))


def test_messages_of_one_file_are_told_apart(registry: Registry, values: AsWritten) -> None:
    text = """
        syntax = "proto3";
        package shop;
        message Order { int32 id = 1; message Line { string sku = 1; } }
        message Payment { string by = 1; }
    """
    schema_id = registry.register("orders-value", text, "PROTOBUF")
    order, line, payment = b"\x00\x08\x07", b"\x04\x00\x00\x0a\x01x", b"\x02\x02\x0a\x01y"
    assert values.read(framed(schema_id, order)) == ("PROTOBUF", {"id": 7})
    assert values.read(framed(schema_id, line)) == ("PROTOBUF", {"sku": "x"})
    assert values.read(framed(schema_id, payment)) == ("PROTOBUF", {"by": "y"})
    with pytest.raises(BadValueError, match="no message at the indexes"):
        values.read(framed(schema_id, b"\x02\x12"))


def test_json_is_the_text_after_the_frame(registry: Registry, values: AsWritten) -> None:
    schema_id = registry.register("orders-value", '{"type": "object"}', "JSON")
    assert values.read(framed(schema_id, b'{"a": 1.10}')) == ("JSON", b'{"a": 1.10}')


def test_a_time_beyond_the_calendar_says_so(registry: Registry, values: AsWritten) -> None:
    of_time = json.dumps({"type": "long", "logicalType": "timestamp-millis"})
    schema_id = registry.register("times-value", of_time)
    assert values.read(framed(schema_id, b"\x02"))[1].microsecond == 1_000
    far = b"\x80\x80\xf6\x96\xa6\xb6\x88\x01"  # 3e14 ms
    with pytest.raises(BadValueError, match="Python has no such value"):
        values.read(framed(schema_id, far))


@pytest.mark.parametrize(
    ("value", "says"),
    [(b"\0\0", "too short"), (b"{...}", "magic byte"), (framed(77, b"x"), "no schema 77")],
)
def test_what_cannot_be_read_says_why(values: AsWritten, value: Any, says: str) -> None:
    with pytest.raises(BadValueError, match=says):
        values.read(value)


def test_a_registry_without_an_answer_is_not_the_value_s_fault(
    registry: Registry, values: AsWritten
) -> None:
    registry.failures += [(500, "")] * 3
    with pytest.raises(SchemaRegistryError):
        values.read(framed(1, b"x"))
