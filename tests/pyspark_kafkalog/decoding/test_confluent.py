"""Confluent's wire format: bytes of their own serializers, and those that no serializer writes."""

import json
import pickle
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from pyspark_kafkalog.decoding import confluent
from pyspark_kafkalog.decoding.avro_schema import AvroType, parse_avro_schema
from pyspark_kafkalog.decoding.decoder import Decoder
from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.errors import InvalidOptionError, SchemaRegistryError
from tests.pyspark_kafkalog.decoding.registry_stub import Registry

ORDERS = SerializationContext("orders", MessageField.VALUE)


def record(*fields: Mapping[str, str | list[str] | None], name: str = "Order") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}


def avro_written(registry: Registry, schema: str, *values: Mapping[str, object]) -> list[Any]:
    serialize = AvroSerializer(SchemaRegistryClient({"url": registry.url}), schema)
    return [serialize(value, ORDERS) for value in values]


def json_written(
    registry: Registry,
    schema: str,
    *values: Mapping[str, object],
) -> list[Any]:
    serialize = JSONSerializer(schema, SchemaRegistryClient({"url": registry.url}))
    return [serialize(value, ORDERS) for value in values]


def opened(
    registry: Registry, value_format: str = "avro", schema: str | None = None, **options: Any
) -> Any:
    options = {"schema.registry.url": registry.url, "subject": "orders-value", **options}
    return pickle.loads(pickle.dumps(open_decoder(value_format, schema, options)))


def rows(decoder: Decoder, *values: bytes | None) -> tuple[Any, dict[Any, Any]]:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    return decoded.column.to_pylist(), dict(decoded.errors)


def test_avro_of_several_versions_is_read_by_the_subjects_newest(registry: Registry) -> None:
    old = avro_written(registry, record(ID), {"id": 1}, {"id": 2})
    new = avro_written(registry, record(ID, NOTE), {"id": 3, "note": "x"})
    decoder = opened(registry)
    assert decoder.type == pa.struct([("id", pa.int64()), ("note", pa.string())])
    assert rows(decoder, old[0], new[0], None, old[1]) == (
        [{"id": 1, "note": None}, {"id": 3, "note": "x"}, None, {"id": 2, "note": None}],
        {},
    )


def test_a_column_keeps_its_type_when_a_newer_version_is_registered(registry: Registry) -> None:
    old = avro_written(registry, record(ID), {"id": 1})
    decoder = opened(registry)
    new = avro_written(registry, record(ID, NOTE), {"id": 3, "note": "x"})
    assert rows(decoder, *old, *new) == ([{"id": 1}, {"id": 3}], {})


def test_the_readers_schema_may_be_given(registry: Registry) -> None:
    data = avro_written(registry, record(ID, NOTE), {"id": 3, "note": "x"})
    decoder = opened(registry, schema=record(NOTE))
    assert rows(decoder, *data) == ([{"note": "x"}], {})
    assert registry.asked[-1] == "/schemas/ids/1"


def test_avro_schemas_that_refer_to_others(registry: Registry) -> None:
    registry.register("money", record({"name": "cents", "type": "long"}, name="Money"))
    name = {"name": "Money", "subject": "money", "version": 1}
    schema = record(ID, {"name": "price", "type": "Money"})
    number = registry.register("orders-value", schema, references=[name])
    data = b"\0" + number.to_bytes(4, "big") + b"\x02\x04"
    assert rows(opened(registry), data) == ([{"id": 1, "price": {"cents": 2}}], {})


def test_each_schema_is_asked_for_once(registry: Registry) -> None:
    data = avro_written(registry, record(ID), *({"id": n} for n in range(10)))
    decoder = opened(registry)
    before = len(registry.asked)
    rows(decoder, *data)
    rows(decoder, *data)
    rows(opened(registry), *data)
    assert registry.asked[before:].count("/schemas/ids/1") == 1


def test_avro_that_is_nothing_but_bytes_has_no_length(registry: Registry) -> None:
    registry.register("orders-value", '"bytes"')
    assert rows(opened(registry), b"\0\0\0\0\1raw", b"\0\0\0\0\1") == ([b"raw", b""], {})


def test_avro_that_is_nothing_but_a_decimal_has_no_length(registry: Registry) -> None:
    registry.register(
        "orders-value",
        '{"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}',
    )
    values = [b"\x05", b"\xff\x80", b"", b"\x7f\xff"]
    found, errors = rows(opened(registry), *(b"\0\0\0\0\1" + value for value in values))
    assert found == [Decimal("0.05"), Decimal("-1.28"), Decimal("0.00"), None]
    assert list(errors) == [3]


def test_a_schema_that_cannot_be_read_is_looked_at_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("orders-value", record(ID))
    registry.register("others", '"string"')
    decoder = opened(registry)
    asked = []

    def parse(*schema: Any) -> AvroType:
        asked.append(schema)
        return parse_avro_schema(*schema)

    monkeypatch.setattr(confluent, "parse_avro_schema", parse)
    found = rows(decoder, *[b"\0\0\0\0\2\x02a"] * 50)
    assert (found[0], len(found[1]), len(asked)) == ([None] * 50, 50, 1)


def test_what_is_not_in_the_wire_format_is_the_rows_error(registry: Registry) -> None:
    (good,) = avro_written(registry, record(ID), {"id": 1})
    registry.register("others", '{"type": "object"}', "JSON")
    registry.register("texts", '"string"')
    found, errors = rows(
        opened(registry),
        good,
        b"",
        b"\0\0\0",
        b"\1" + good[1:],
        b'{"id": 1}',
        good[:5],
        good + b"x",
        b"\0\0\0\0\2\x02",
        b"\0\0\0\0\3\x02a",
        b"\0\xff\xff\xff\xff\x02",
        good,
    )
    assert found == [{"id": 1}, *[None] * 9, {"id": 1}]
    for row, reason in {
        1: "too short",
        2: "too short",
        3: "magic byte is 1",
        4: "magic byte is 123",
        5: "cut off",
        6: "left over",
        7: "schema 2 is JSON",
        8: "schema 3: Avro string",
        9: "no schema 4294967295",
    }.items():
        assert reason in errors[row]


def test_unknown_ids_are_asked_for_once_and_cost_their_rows_alone(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: a producer of other values, whose first byte is 0, stops no load."""
    monkeypatch.setattr(confluent, "MOST_UNKNOWN_IDS", 3)
    [good] = avro_written(registry, record(ID), {"id": 1})
    decoder = opened(registry)
    unknown = [b"\0" + number.to_bytes(4, "big") + b"\x02" for number in range(10, 14)]
    before = len(registry.asked)
    assert len(rows(decoder, *unknown[:3], *unknown[:3])[1]) == 6
    assert len(registry.asked) == before + 3
    beyond = b"\0\xff\xff\xff\xff\x02"
    found, errors = rows(decoder, *unknown, good, beyond)
    assert found == [None] * 4 + [{"id": 1}, None]
    assert errors[3] == "the registry has no schema 13"
    assert errors[5] == "the registry has no schema 4294967295"
    assert not [path for path in registry.asked if "4294967295" in str(path)]


def test_a_registry_that_is_gone_fails_the_task_and_no_row(registry: Registry) -> None:
    data = avro_written(registry, record(ID), {"id": 1})
    decoder = opened(registry)
    registry.failures += [(503, "")] * 100
    with pytest.raises(SchemaRegistryError, match="503"):
        rows(decoder, *data)
    registry.failures.clear()
    assert rows(decoder, *data) == ([{"id": 1}], {})


def test_a_subject_must_be_there_and_of_the_format(registry: Registry) -> None:
    with pytest.raises(SchemaRegistryError, match="no subject 'orders-value'"):
        opened(registry)
    registry.register("orders-value", record(ID))
    with pytest.raises(InvalidOptionError, match="is AVRO, but JSON"):
        opened(registry, "json")
    with pytest.raises(InvalidOptionError, match="option subject"):
        open_decoder("avro", None, {"schema.registry.url": registry.url})


ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/Line"}},
        "labels": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "definitions": {
        "Line": {"type": "object", "properties": {"sku": {"type": ["string", "null"]}}}
    },
}


def test_json_schema(registry: Registry) -> None:
    order = {"id": 1, "note": None, "lines": [{"sku": "a"}, {}], "labels": {"x": 1.5}}
    data = json_written(registry, json.dumps(ORDER), order, {"id": 2})
    decoder = opened(registry, "json")
    assert decoder.type == pa.struct(
        [
            ("id", pa.int64()),
            ("note", pa.string()),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
            ("labels", pa.map_(pa.string(), pa.float64())),
        ]
    )
    found, errors = rows(decoder, *data, None, data[0][:-1], data[0][1:], b"\0\0")
    assert found == [
        {"id": 1, "note": None, "lines": [{"sku": "a"}, {"sku": None}], "labels": [("x", 1.5)]},
        {"id": 2, "note": None, "lines": None, "labels": None},
        *[None] * 4,
    ]
    assert list(errors) == [3, 4, 5]


def test_json_schemas_that_refer_to_others(registry: Registry) -> None:
    registry.register("money", '{"type": "object", "properties": {"cents": {"type": "integer"}}}',
                      "JSON")  # fmt: skip
    name = {"name": "money.json", "subject": "money", "version": 1}
    schema = {"type": "object", "properties": {"price": {"$ref": "money.json"}}}
    registry.register("orders-value", json.dumps(schema), "JSON", [name])
    assert opened(registry, "json").type == pa.struct(
        [("price", pa.struct([("cents", pa.int64())]))]
    )
