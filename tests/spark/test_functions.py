"""The Column functions in batch and streaming queries of one session."""

import datetime as dt
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyspark.errors
import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import functions
from pyspark_kafkalog.decoding import room
from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.decoding.proto_files import compile_proto, message_class
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.functions import (
    from_avro,
    from_confluent_avro,
    from_confluent_json,
    from_confluent_protobuf,
    from_protobuf,
)
from tests.pyspark_kafkalog.decoding.registry_stub import Registry, serving
from tests.support.present import present

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "labels", "type": {"type": "map", "values": "double"}},
        {
            "name": "line",
            "type": {
                "type": "record",
                "name": "Line",
                "fields": [
                    {"name": "suit", "type": {"type": "enum", "name": "S", "symbols": ["A"]}},
                    {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2}},
                    {"name": "either", "type": ["string", "int"]},
                ],
            },
        },
    ],
}
ORDER: dict[str, Any] = {
    "id": 7,
    "note": None,
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6000, dt.timezone.utc),
    "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6),
    "day": dt.date(2026, 1, 2),
    "price": Decimal("12.34"),
    "tags": ["a", "b"],
    "labels": {"x": 1.5},
    "line": {"suit": "A", "raw": b"12", "either": 3},
}
DDL = (
    "struct<id:bigint,note:string,at:timestamp,local:timestamp_ntz,day:date,price:decimal(9,2),"
    "tags:array<string>,labels:map<string,double>,"
    "line:struct<suit:string,raw:binary,either:struct<member0:string,member1:int>>>"
)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def avro_bytes(
    value: dict[
        str, dict[str, object] | dict[str, float] | list[str] | Decimal | dt.date | int | None
    ],
) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(SCHEMA), value)
    return file.getvalue()


def framed(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value


def values(spark: SparkSession, *rows: bytes | None) -> DataFrame:
    return spark.createDataFrame([(row and bytearray(row),) for row in rows], "value binary")


def test_plain_avro_has_sparks_types_in_any_time_zone(spark: SparkSession) -> None:
    df = values(spark, avro_bytes(ORDER), None)
    decoded = df.select(from_avro("value", json.dumps(SCHEMA)).alias("o"))
    assert decoded.schema["o"].dataType.simpleString() == DDL
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
        order, nothing = decoded.selectExpr(
            "o.*", "unix_micros(o.at) as us", "cast(o.local as string) as text"
        ).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", present(zone))
    assert order.us == ORDER["at"].timestamp() * 1_000_000
    assert order.text == "2026-01-02 03:04:05.000006"
    assert order.day == ORDER["day"]
    assert order.price == ORDER["price"]
    assert order.tags == ["a", "b"]
    assert order.labels == {"x": 1.5}
    assert order.line.raw == b"12"
    assert (order.line.either.member0, order.line.either.member1) == (None, 3)
    assert nothing.id is None


def test_bad_values_fail_the_query_or_are_null(spark: SparkSession) -> None:
    df = values(spark, avro_bytes(ORDER), b"\x02")
    permissive = from_avro(df.value, json.dumps(SCHEMA), {"mode": "permissive"})
    assert [row.id for row in df.select(permissive.alias("o")).select("o.id").collect()] == [
        7,
        None,
    ]
    with pytest.raises(pyspark.errors.PythonException, match=r"1 of [12] values.*cut off"):
        df.select(from_avro(df.value, json.dumps(SCHEMA))).collect()
    with pytest.raises(InvalidOptionError, match="FAILFAST, PERMISSIVE"):
        from_avro(df.value, json.dumps(SCHEMA), {"mode": "drop"})


def test_values_that_could_become_much_are_decoded_a_few_at_a_time(spark: SparkSession) -> None:
    """A thousand values of a kilobyte can hold a million empty records, of 300 fields each."""
    fields = [{"name": f"f{number}", "type": ["null", "long"]} for number in range(300)]
    wide = {"type": "record", "name": "Wide", "fields": fields}
    items = {"type": "array", "items": ["null", wide]}
    texts = [{"name": name, "type": kind} for name, kind in (("text", "string"), ("items", items))]
    schema = json.dumps({"type": "record", "name": "R", "fields": texts})
    rows = [bytes([2, 33 + row]) + b"\xd0\x0f" + bytes(1001) for row in range(60)]
    decode = functions._batches_function(open_decoder("avro", schema), fails=True)
    found = list(decode(iter([pa.array(rows, pa.binary())])))
    assert sum(map(len, found)) == len(rows)
    assert max(column.nbytes for column in found) <= room.MOST_BYTES
    decoded = values(spark, *rows).select("value", from_avro("value", schema).alias("r"))
    shown = decoded.selectExpr("ascii(r.text)", "size(r.items)", "substr(value, 2, 1)").collect()
    assert [tuple(row) for row in shown] == [(33 + n, 1000, bytes([33 + n])) for n in range(60)]


def test_a_registrys_avro_in_a_stream_goes_on_with_newer_versions(
    spark: SparkSession, registry: Registry, tmp_path: Path
) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "n", "type": "int", "default": -1}]
    texts = [
        json.dumps({"type": "record", "name": "O", "fields": fields[:count]}) for count in (2, 1)
    ]
    for text in texts[::-1]:
        registry.register("orders-value", text)
    old, new = framed(1, b"\x02"), framed(2, b"\x04\x06")
    values(spark, old, new, None).coalesce(1).write.parquet(str(tmp_path / "in"))
    secret = {"schema.registry.url": registry.url, "basic.auth.user.info": "etl:s3cret-w0rd"}
    stream = spark.readStream.schema("value binary").parquet(str(tmp_path / "in"))
    decoded = stream.select(from_confluent_avro("value", secret, subject="orders-value").alias("o"))
    query = (
        decoded.select("o.*").writeStream.format("memory").queryName("decoded_orders")
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    found = [tuple(row) for row in spark.table("decoded_orders").collect()]
    assert sorted(found, key=str) == [(1, -1), (2, 3), (None, None)]
    assert "s3cret" not in decoded._jdf.queryExecution().toString()
    assert None not in registry.authorizations


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
message Order {
  uint64 id = 1;
  google.protobuf.Timestamp at = 2;
  google.protobuf.Duration took = 3;
  map<int32, Line> lines = 4;
  oneof how { string card = 5; bool cash = 6; }
}
message Line { repeated sint32 counts = 1; }
"""


@pytest.mark.long
def test_protobuf_with_and_without_a_registry(spark: SparkSession, registry: Registry) -> None:
    order = message_class(compile_proto(PROTO), "Order")(id=2**64 - 1, cash=False)
    order.at.FromJsonString("2026-01-02T03:04:05.000006Z")
    order.took.FromMilliseconds(1500)
    order.lines[5].counts.extend([1, -1])
    data = order.SerializeToString()
    number = registry.register("orders-value", PROTO, "PROTOBUF")
    df = values(spark, data).selectExpr(
        "value", f"concat(unhex('00{number:08x}00'), value) as wired"
    )
    row = df.select(
        from_protobuf("value", PROTO, message="Order").alias("plain"),
        from_confluent_protobuf("wired", registry.url, subject="orders-value").alias("wired"),
    ).first()
    assert present(row).plain == present(row).wired
    assert present(row).plain.id == 2**64 - 1
    assert present(row).plain.took == dt.timedelta(milliseconds=1500)
    assert present(row).plain.lines[5].counts == [1, -1]
    assert (present(row).plain.card, present(row).plain.cash) == (None, False)


@pytest.mark.long
def test_json_schema(spark: SparkSession, registry: Registry) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "any": {}}}
    number = registry.register("orders-value", json.dumps(schema), "JSON")
    df = values(spark, framed(number, b'{"id": 1, "any": {"x": [1]}}'), b"{}")
    decoded = df.select(
        from_confluent_json("value", registry.url, subject="orders-value", mode="PERMISSIVE")
        .alias("o")
    )  # fmt: skip
    assert [tuple(row) for row in decoded.select("o.*").collect()] == [
        (1, '{"x":[1]}'),
        (None, None),
    ]
