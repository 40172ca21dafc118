"""Rows a second that each decoder turns into Arrow: orders of ten fields, batches of 10,000.

`python -m benchmarks.decode_values`. In CPU time of one thread, so that other work on the machine
counts little; the best of five batches. fastavro with pyarrow's conversion is the peer.
"""

import io
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fastavro
import orjson
import pyarrow as pa

from pyspark_kafkalog.decoding.formats import open_decoder
from pyspark_kafkalog.decoding.proto_files import compile_proto, message_class

ROWS = 10_000
BATCHES = 5
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "items", "type": "int"},
        {"name": "placed_ms", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "SENT"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {
            "name": "address",
            "type": {
                "type": "record",
                "name": "Address",
                "fields": [{"name": "street", "type": "string"}, {"name": "zip", "type": "int"}],
            },
        },
    ],
}
PROTO = """syntax = "proto3";
message Order {
  int64 id = 1; string customer = 2; double amount = 3; bool paid = 4; int32 items = 5;
  int64 placed_ms = 6; optional string city = 7; Status status = 8; repeated string tags = 9;
  Address address = 10;
}
message Address { string street = 1; int32 zip = 2; }
enum Status { NEW = 0; SENT = 1; }
"""
DDL = """id BIGINT, customer STRING, amount DOUBLE, paid BOOLEAN, items INT, placed_ms BIGINT,
city STRING, status STRING, tags ARRAY<STRING>, address STRUCT<street: STRING, zip: INT>"""


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"customer-{number}",
        "amount": number * 1.5,
        "paid": number % 2 == 0,
        "items": number % 100,
        "placed_ms": 1_700_000_000_000 + number,
        "city": None if number % 3 else "Berlin",
        "status": ("NEW", "SENT")[number % 2],
        "tags": ["x", "y"],
        "address": {"street": "Main", "zip": number},
    }


def rate(work: Callable[[], object]) -> float:
    times = []
    for _ in range(BATCHES):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return ROWS / min(times)


def main() -> None:
    orders = [order(number) for number in range(ROWS)]
    parsed = fastavro.parse_schema(AVRO)
    message = message_class(compile_proto(PROTO), "Order")
    written = {
        "avro": [_avro(parsed, one) for one in orders],
        "protobuf": [message(**one).SerializeToString() for one in orders],
        "json": [orjson.dumps(one) for one in orders],
    }
    for name, schema in (("avro", json.dumps(AVRO)), ("protobuf", PROTO), ("json", DDL)):
        decoder = open_decoder(name, schema)
        values = pa.array(written[name], pa.binary())
        assert decoder.decode(values).column.to_pylist() == orders
        print(f"{name}: {rate(partial(decoder.decode, values)):,.0f} rows/s")
    data_type = open_decoder("avro", json.dumps(AVRO)).type
    peer = partial(_peer, written["avro"], parsed, data_type)
    print(f"fastavro and pyarrow: {rate(peer):,.0f} rows/s")


def _avro(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, schema, value)
    return file.getvalue()


def _peer(values: list[bytes], schema: Any, data_type: pa.DataType) -> pa.Array:
    rows = [fastavro.schemaless_reader(io.BytesIO(value), schema, None) for value in values]
    return pa.array(rows, data_type)


if __name__ == "__main__":
    main()
