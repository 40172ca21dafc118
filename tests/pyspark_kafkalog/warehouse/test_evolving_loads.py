"""Loads whose values get another schema from one load to the next; into each kind of target."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.warehouse.load import LoadResult
from tests.pyspark_kafkalog.decoding.registry_stub import serving
from tests.pyspark_kafkalog.warehouse.tables import KINDS, IcebergTable, SqliteTable, Table

# Of each format; a bucket in a store is a directory to columns. Loads, which take long, are tried
# of one that has a log of columns and one that has none.
QUICK = ("delta", "sqlite")
TARGETS = [
    pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.long)
    for kind in KINDS
    if kind != "s3"
]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(params=TARGETS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    directory = tmp_path / "the place"
    directory.mkdir()
    return KINDS[request.param](directory)


class Topic:
    """A topic of JSON values, and loads of it."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.name = f"t{uuid.uuid4().hex[:12]}"
        self._config = ClientConfig.from_options({"bootstrap.servers": servers})
        with Cluster(self._config) as cluster:
            admin.create_topic(cluster, self.name, 1, 1)

    def send(self, *values: Any) -> None:
        self.send_bytes(*(json.dumps(value).encode() for value in values))

    def send_bytes(self, *values: bytes) -> None:
        encoder = RecordEncoder(1, Codec.NONE, max_batch_bytes=100_000)
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        with Producer(self._config) as producer:
            for _, batch in [*encoder.encode(rows), *encoder.finish()]:
                producer.send(TopicPartition(self.name, 0), batch)

    def load(
        self, table: Table, schema: str | None, name: str = "nightly", **how: Any
    ) -> LoadResult:
        options = {"kafka.bootstrap.servers": self.servers, "subscribe": self.name}
        values: Any = {"value_format": "json", "value_schema": schema, **how}
        landed: LoadResult = pyspark_kafkalog.load(None, name, table.name, options, **values)
        return landed

    def letters(self) -> int:
        """How many dead letters there are."""
        letters = TopicPartition(f"{self.name}-dead-letters", 0)
        with Cluster(self._config) as cluster:
            return int(cluster.list_offsets([letters], -1)[letters].offset)


@pytest.fixture
def topic(servers: str) -> Topic:
    return Topic(servers)


def found(table: Table, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of all rows, in the order of offsets."""
    rows = table.all_rows()
    if isinstance(table, IcebergTable):
        metadata = table.iceberg()
        rows = metadata.scan().to_arrow().to_pylist() if metadata else []
    rows.sort(key=lambda row: row["offset"])
    return [tuple(row[name] for name in names) for row in rows]


def test_a_new_field_becomes_a_column_by_itself(table: Table, topic: Topic) -> None:
    topic.send({"id": 1})
    topic.load(table, "id INT")
    topic.send({"id": 2, "note": "new"}, {"id": 3})
    topic.load(table, "id INT, note STRING")
    assert found(table, "id", "note") == [(1, None), (2, "new"), (3, None)]
    topic.send({"id": 4, "note": "unseen"})
    topic.load(table, "id INT")
    assert found(table, "id", "note")[3] == (4, None)


def test_a_first_load_changes_no_table_that_is_there(table: Table, topic: Topic) -> None:
    other = Topic(topic.servers)
    other.send({"id": 1})
    other.load(table, "id INT", name="other")
    topic.send({"id": 2, "note": "new"})
    if not table.name.startswith("parquet:"):
        with pytest.raises(TargetError, match="no column note"):
            topic.load(table, "id INT, note STRING")
    with pytest.raises(TargetError, match="no column note"):
        topic.load(table, "id INT, note STRING", on_schema_change="fail")
    topic.load(table, "id INT, note STRING", on_schema_change="add")
    assert sorted(found(table, "id", "note")) == [(1, None), (2, "new")]


def test_a_changed_type_fails_or_makes_dead_letters_of_what_does_not_fit(
    table: Table, topic: Topic
) -> None:
    topic.send({"id": 1, "n": 5})
    topic.load(table, "id INT, n INT")
    topic.send({"id": 2, "n": "six"}, {"id": 3})
    with pytest.raises(TargetError, match="n "):
        topic.load(table, "id INT, n STRING")
    assert found(table, "id", "n") == [(1, 5)]
    result = topic.load(table, "id INT, n STRING", on_error="deadletter")
    assert (result.records, result.bad_records, topic.letters()) == (1, 1, 1)
    assert found(table, "id", "n") == [(1, 5), (3, None)]


def test_numbers_that_fit_a_narrower_column_are_loaded(table: Table, topic: Topic) -> None:
    topic.send({"id": 1, "n": 5})
    topic.load(table, "id INT, n INT")
    topic.send({"id": 2, "n": 6}, {"id": 3, "n": 1 << 40})
    topic.load(table, "id INT, n BIGINT", on_error="null")
    rows = found(table, "id", "n", "value_error")
    if isinstance(table, SqliteTable):
        # Its integers are all of one size.
        assert rows == [(1, 5, None), (2, 6, None), (3, 1 << 40, None)]
        return
    assert rows[:2] == [(1, 5, None), (2, 6, None)]
    assert rows[2][:2] == (None, None)
    assert "n does not fit the table's column, which is int32" in rows[2][2]


@pytest.mark.parametrize("table", ["delta", "iceberg", "duckdb"], indirect=True)
def test_a_struct_without_a_field_that_vanished_is_no_bad_value(table: Table, topic: Topic) -> None:
    topic.send({"s": {"a": 1, "b": "x"}})
    topic.load(table, "s STRUCT<a: INT, b: STRING>")
    topic.send({"s": {"a": 2, "b": "unseen"}})
    result = topic.load(table, "s STRUCT<a: INT>", on_error="deadletter")
    assert (result.records, result.bad_records) == (1, 0)
    assert found(table, "s") == [({"a": 1, "b": "x"},), ({"a": 2, "b": None},)]


AVRO = """{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}%s]}"""
NOTE = """, {"name": "note", "type": ["null", "string"], "default": null}"""
PROTOBUF = """syntax = "proto3"; message R { int32 id = 1; %s }"""


@pytest.mark.parametrize(
    ("value_format", "kind", "schemas", "values"),
    [
        ("avro", "AVRO", (AVRO % "", AVRO % NOTE), (b"\x02", b"\x04\x02\x06new")),
        (
            "protobuf",
            "PROTOBUF",
            (PROTOBUF % "", PROTOBUF % "string note = 2;"),
            (b"\0\x08\x01", b"\0\x08\x02\x12\x03new"),
        ),
    ],
)
@pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)
def test_the_newest_schema_of_a_registry_makes_the_columns(
    table: Table,
    topic: Topic,
    value_format: str,
    kind: str,
    schemas: tuple[str, str],
    values: tuple[bytes, bytes],
) -> None:
    with serving() as registry:
        for schema, value in zip(schemas, values, strict=True):
            number = registry.register(f"{topic.name}-value", schema, kind)
            topic.send_bytes(b"\0" + number.to_bytes(4, "big") + value)
            address = {"schema.registry.url": registry.url}
            topic.load(table, None, value_format=value_format, registry=address)
    assert [row[0] for row in found(table, "id")] == [1, 2]
    assert [row[0] for row in found(table, "note")] == [None, "new"]


def wider(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["offset", "id"])


def narrower(batch: pa.RecordBatch) -> pa.RecordBatch:
    return wider(batch).cast(pa.schema([("offset", pa.int64()), ("id", pa.int32())]))


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_rows_of_a_transform_take_the_wider_column(servers: str, tmp_path: Path, kind: str) -> None:
    table, topic = KINDS[kind](tmp_path), Topic(servers)
    topic.send({"id": 1 << 40})
    topic.load(table, "id BIGINT", transform=wider)
    topic.send({"id": 2})
    topic.load(table, "id BIGINT", transform=narrower, on_schema_change="widen")
    assert found(table, "id") == [(1 << 40,), (2,)]


def test_what_is_no_change_is_refused(topic: Topic, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="on_schema_change is 'all': write one of fail"):
        topic.load(KINDS["parquet"](tmp_path), "id INT", on_schema_change="all")
