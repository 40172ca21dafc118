"""Loads with mode upsert, from a topic into a database."""

import json
import uuid
from base64 import b64encode
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

import pyspark_kafkalog
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.cli.entry import main
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import (
    BadRecordError,
    DataLossError,
    InvalidOptionError,
    InvalidRowError,
    LoadConflictError,
    OtherModeError,
    TopicRecreatedError,
)
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.warehouse.load import LoadResult
from pyspark_kafkalog.warehouse.options import load_options
from tests.pyspark_kafkalog.warehouse.tables import SqliteTable, Table, table_of


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


class Topic:
    """A topic of two partitions, and upserts of it."""

    def __init__(self, servers: str) -> None:
        self.name = f"t{uuid.uuid4().hex[:12]}"
        self.options = {"kafka.bootstrap.servers": servers, "subscribe": self.name}
        self._config = ClientConfig.from_options({"bootstrap.servers": servers})
        self.create()

    def create(self) -> None:
        with Cluster(self._config) as cluster:
            admin.create_topic(cluster, self.name, 2, 1)

    def create_again(self) -> None:
        with Cluster(self._config) as cluster:
            admin.delete_topics(cluster, [self.name])
        self.create()

    def delete_records(self, before: int) -> None:
        with Cluster(self._config) as cluster:
            offsets = {TopicPartition(self.name, 0): before}
            assert not admin.delete_records(cluster, offsets, lambda partition, offset: None)

    def send(self, *records: tuple[bytes | None, Any], partition: int = 0) -> None:
        """Values that are neither bytes nor None are JSON."""
        values = [
            value if isinstance(value, bytes | None) else json.dumps(value).encode()
            for _, value in records
        ]
        columns = {
            "key": pa.array([key for key, _ in records], pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
        encoder = RecordEncoder(1, Codec.NONE, max_batch_bytes=100_000)
        rows = pa.RecordBatch.from_pydict(columns)
        with Producer(self._config) as producer:
            for _, batch in [*encoder.encode(rows), *encoder.finish()]:
                producer.send(TopicPartition(self.name, partition), batch)

    def load(self, table: Table, spark: SparkSession | None = None, **how: Any) -> LoadResult:
        how = {"mode": "upsert", **how}
        done: LoadResult = pyspark_kafkalog.load(spark, "n", table.name, self.options, **how)
        return done


@pytest.fixture
def topic(servers: str) -> Topic:
    return Topic(servers)


@pytest.fixture
def table(tmp_path: Path) -> SqliteTable:
    return SqliteTable(tmp_path)


VALUES: dict[str, Any] = {"value_format": "json", "value_schema": "id INT, note STRING"}


def test_a_record_key_makes_a_row(topic: Topic, table: SqliteTable) -> None:
    topic.send((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    topic.send((b"c", b"1"), partition=1)
    assert topic.load(table).records == 4
    topic.send((b"b", None))
    assert topic.load(table).records == 1
    assert table.query("SELECT key, value FROM orders ORDER BY 1") == [(b"a", b"2"), (b"c", b"1")]


def test_a_recreated_topic_is_refused_and_another_name_is_no_way_on(
    topic: Topic, table: SqliteTable
) -> None:
    topic.send((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    topic.load(table)
    topic.create_again()
    topic.send((b"a", b"2"))
    with pytest.raises(TopicRecreatedError, match=r"to false, or load it into another table\.$"):
        topic.load(table)
    # What another name would come to.
    with pytest.raises(LoadConflictError, match="has a place"):
        pyspark_kafkalog.load(None, "other", table.name, topic.options, mode="upsert")
    topic.options["failOnDataLoss"] = "false"
    topic.load(table)
    rows = table.query("SELECT key, value FROM orders ORDER BY 1")
    assert rows == [(b"a", b"2"), (b"b", b"1"), (b"c", b"1")]


def test_no_error_of_an_upserted_table_advises_another_name(
    topic: Topic, table: SqliteTable
) -> None:
    topic.send((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    topic.load(table)
    topic.send((b"d", b"1"), (b"e", b"1"))
    with pytest.raises(InvalidOptionError, match=r"the start out, or load it into another table\."):
        topic.load(table, starting={topic.name: {"0": 4, "1": 0}})
    topic.delete_records(before=4)
    with pytest.raises(DataLossError, match="recreated, load it into another table: that begins"):
        topic.load(table)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_upserts_the_same(topic: Topic, table: SqliteTable, spark: SparkSession) -> None:
    topic.send((b"a", {"id": 1}), (b"b", {"id": 1}), (b"a", {"id": 2}))
    topic.load(table, spark, **VALUES)
    topic.send((b"b", None), (b"c", {"id": 3}))
    topic.load(table, spark, **VALUES)
    assert table.query("SELECT key, id FROM orders ORDER BY 1") == [(b"a", 2), (b"c", 3)]


@pytest.mark.slow
def test_one_load_takes_no_key_of_two_topics(
    topic: Topic, servers: str, table: SqliteTable
) -> None:
    other = Topic(servers)
    for each in (topic, other):
        each.send((b"a", b"1"))
    both = {**topic.options, "subscribe": f"{topic.name},{other.name}"}
    with pytest.raises(InvalidRowError, match=f"{topic.name}-0"):
        pyspark_kafkalog.load(None, "n", table.name, both, mode="upsert")


@pytest.mark.slow
def test_a_value_that_is_null_is_no_tombstone(topic: Topic, table: SqliteTable) -> None:
    topic.send((b"a", {"id": 1}), (b"b", {"id": 1}), (b"c", {"id": 1}))
    topic.load(table, **VALUES, on_error="null")
    topic.send((b"a", b"null"), (b"b", b"bad"), (b"c", None))
    topic.load(table, **VALUES, on_error="null")
    assert table.query("SELECT key, id FROM orders ORDER BY 1") == [(b"a", None), (b"b", None)]


@pytest.mark.slow
def test_columns_make_a_key(topic: Topic, table: SqliteTable) -> None:
    topic.send((None, {"id": 1, "note": "x"}), (None, {"id": 2, "note": "y"}))
    topic.send((None, {"id": 1, "note": "z"}))
    topic.load(table, **VALUES, key="id")
    assert table.query("SELECT id, note FROM orders ORDER BY 1") == [(1, "z"), (2, "y")]
    topic.send((b"1", None))
    with pytest.raises(BadRecordError, match="at offset 3: id is null"):
        topic.load(table, **VALUES, key="id")


@pytest.mark.slow
def test_records_without_a_key_are_dead_letters(topic: Topic, table: SqliteTable) -> None:
    topic.send((b"a", b"1"), (None, b"2"), (b"b", b"3"))
    with pytest.raises(BadRecordError, match="the record has no key"):
        topic.load(table)
    assert topic.load(table, on_error="deadletter").bad_records == 1
    assert table.query("SELECT key FROM orders ORDER BY 1") == [(b"a",), (b"b",)]


@pytest.mark.slow
def test_a_new_field_becomes_a_column(topic: Topic, table: SqliteTable) -> None:
    topic.send((b"a", {"id": 1}), (b"b", {"id": 1}))
    topic.load(table, value_format="json", value_schema="id INT")
    topic.send((b"a", {"id": 2, "note": "new"}))
    topic.load(table, **VALUES)
    assert table.query("SELECT id, note FROM orders ORDER BY key") == [(2, "new"), (1, None)]


EVENTS: dict[str, Any] = {
    "value_format": "json",
    "value_schema": "op STRING, after STRUCT<id INT, key STRING>",
    "envelope": "debezium",
}


def event(op: str, number: int | None) -> dict[str, Any]:
    after = None if number is None else {"id": number, "key": "k"}
    return {"before": {"id": 0}, "after": after, "op": op, "ts_ms": 1}


def test_change_events_of_debezium_are_rows(topic: Topic, table: SqliteTable) -> None:
    topic.send((b"a", event("r", 1)), (b"b", event("c", 2)), (b"c", event("c", 3)))
    topic.send((b"a", event("u", 4)), (b"b", event("d", None)), (b"b", None))
    assert topic.load(table, **EVENTS).records == 6
    assert table.query("SELECT id, value_key FROM orders ORDER BY 1") == [(3, "k"), (4, "k")]
    # Compaction may leave a tombstone without its deletion.
    topic.send((b"c", None), (b"b", event("c", 5)), (b"t", event("t", None)), (b"n", b"null"))
    assert topic.load(table, **EVENTS, on_error="deadletter").bad_records == 2
    assert table.query("SELECT id FROM orders ORDER BY 1") == [(4,), (5,)]
    assert [row[1] for row in table.query("PRAGMA table_info(orders)")][:4] == [
        "key",
        "id",
        "value_key",
        "topic",
    ]


@pytest.mark.slow
def test_rewritten_change_events_are_rows(topic: Topic, table: SqliteTable) -> None:
    schema = "payload STRUCT<id INT, note STRING, __deleted STRING>"
    rewritten = {**EVENTS, "value_schema": schema, "key": "id"}
    for number, note, deleted in ((1, "x", "false"), (2, "y", "false"), (1, None, "true")):
        payload = {"id": number, "note": note, "__deleted": deleted}
        topic.send((b"%d" % number, {"schema": {}, "payload": payload}))
    topic.load(table, **rewritten)
    assert table.query("SELECT id, note FROM orders") == [(2, "y")]
    topic.send((b"2", {"id": 2, "note": "bare", "__deleted": "true"}))
    topic.send((b"3", {"payload": {"id": 3, "__deleted": "?"}}))
    unknown = {"id": 2, "note": "__debezium_unavailable_value", "__deleted": "false"}
    topic.send((b"2", {"payload": unknown}))
    with pytest.raises(BadRecordError, match="at offset 3 cannot be decoded: it holds no change"):
        topic.load(table, **rewritten)
    assert topic.load(table, **rewritten, on_error="deadletter").bad_records == 3
    assert table.query("SELECT id, note FROM orders") == [(2, "y")]
    topic.send((b"2", {"payload": {**unknown, "__deleted": "true"}}))
    topic.load(table, **rewritten)
    assert table.query("SELECT id, note FROM orders") == []


UNAVAILABLE = "__debezium_unavailable_value"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("STRING", UNAVAILABLE),
        ("STRING", json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":"))),
        ("STRING", b64encode(UNAVAILABLE.encode()).decode()),
        ("BINARY", b64encode(UNAVAILABLE.encode()).decode()),
        ("MAP<STRING, STRING>", {UNAVAILABLE: UNAVAILABLE}),
        ("ARRAY<STRING>", [UNAVAILABLE]),
        ("ARRAY<STRING>", [str(uuid.UUID(bytes=md5(UNAVAILABLE.encode()).digest(), version=3))]),
        ("ARRAY<INT>", list(UNAVAILABLE.encode())),
        ("ARRAY<BIGINT>", list(UNAVAILABLE.encode())),
        ("ARRAY<DOUBLE>", list(UNAVAILABLE.encode())),
        ("ARRAY<DECIMAL(9,2)>", [number / 100 for number in UNAVAILABLE.encode()]),
        ("STRUCT<wkb: BINARY>", {"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ=="}),
        ("STRUCT<wkb: BINARY>", {"wkb": "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA=="}),
    ],
)
def test_a_value_that_debezium_does_not_know_overwrites_none(
    topic: Topic, table: SqliteTable, kind: str, value: Any
) -> None:
    """What it puts in its place is of the column's type."""
    events = {**EVENTS, "value_schema": f"op STRING, after STRUCT<v: {kind}>"}
    topic.send((b"a", {"op": "c", "after": {"v": None}}))
    topic.send((b"a", {"op": "u", "after": {"v": value}}))
    with pytest.raises(BadRecordError, match=f"offset 1 cannot be decoded: v is {UNAVAILABLE}"):
        topic.load(table, **events)


@pytest.mark.slow
def test_a_deletion_deletes_whatever_the_row_had(topic: Topic, table: SqliteTable) -> None:
    """Such as a number that the column cannot have."""
    rewritten = {**EVENTS, "key": "id", "on_error": "deadletter"}
    del rewritten["value_schema"]

    def load(kind: str, *rows: tuple[int, float, str]) -> int:
        for number, amount, deleted in rows:
            event = {"id": number, "amount": amount, "tags": ["x"], "__deleted": deleted}
            topic.send((b"", event))
        schema = f"id INT, amount {kind}, tags ARRAY<STRING>, __deleted STRING"
        return topic.load(table, **rewritten, value_schema=schema).bad_records

    assert load("INT", (1, 1, "false"), (2, 2, "false")) == 0
    assert load("DOUBLE", (1, 1.5, "false"), (1, 1.5, "true"), (2, 3, "false")) == 1
    assert table.query("SELECT id, amount FROM orders") == [(2, 3)]


@pytest.mark.slow
def test_keys_and_orders_stay_of_one_kind(topic: Topic, table: SqliteTable) -> None:
    """In SQLite 1.00 and 1.000 are two texts, and a day and a time are two numbers."""

    def load(amount: str, day: str) -> None:
        schema = f"a {amount}, day {day}, __deleted STRING"
        how = {**EVENTS, "value_schema": schema, "key": "a", "order_by": "day"}
        topic.load(table, **how, on_schema_change="widen")

    topic.send((b"", {"a": 1, "day": "2026-01-01", "__deleted": "false"}))
    load("DECIMAL(10,2)", "DATE")
    topic.send((b"", {"a": 1, "day": "2026-02-01", "__deleted": "true"}))
    load("DECIMAL(12,2)", "DATE")
    topic.send((b"", {"a": 1, "day": "2026-01-15", "__deleted": "false"}))
    for amount, day, said in (
        ("DECIMAL(12,3)", "DATE", "by a with decimals with 2 digits .* have decimals with 3"),
        ("STRING", "DATE", "by a with decimals with 2 digits .* have texts"),
        ("DECIMAL(10,2)", "TIMESTAMP", "by day with days, and the rows have times"),
    ):
        with pytest.raises(OtherModeError, match=said):
            load(amount, day)
    load("DECIMAL(10,2)", "DATE")
    assert table.query("SELECT a FROM orders") == []


@pytest.mark.slow
def test_an_append_has_fields_of_any_name(topic: Topic, table: SqliteTable) -> None:
    topic.send((b"a", {"kafkalog_deleted": False, "id": 1}), (b"b", None))
    schema = "kafkalog_deleted BOOLEAN, id INT"
    topic.load(table, mode="append", value_format="json", value_schema=schema)
    query = "SELECT kafkalog_deleted, id FROM orders ORDER BY key"
    assert table.query(query) == [(False, 1), (None, None)]


@pytest.mark.slow
def test_the_command_line_upserts(
    topic: Topic, table: SqliteTable, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.send((b"a", b"1"), (b"a", b"2"))
    topic.send((b"a", b"3"), partition=1)
    servers = topic.options["kafka.bootstrap.servers"]
    words = ["load", topic.name, "--bootstrap-servers", servers, "--to", table.name]
    assert main([*words, "--name", "n", "--mode", "upsert", "--order-by", "timestamp"]) == 0
    assert "3 records" in capsys.readouterr().out
    assert table.query("SELECT value FROM orders") == [(b"3",)]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"mode": "merge"}, "mode is 'merge': write append or upsert"),
        ({"key": "id"}, "no effect without mode=upsert"),
        ({"mode": "upsert", "key": "id"}, "key names id, and the rows have key, value"),
        ({"mode": "upsert", "order_by": "value"}, "order_by names value, which is binary"),
        ({"mode": "upsert", "key": ["key", "key"]}, "a column twice"),
        (
            {"mode": "upsert", "key": "f", "value_format": "json", "value_schema": "f DOUBLE"},
            "key names f, which is double",
        ),
        ({"envelope": "debezium"}, "envelope has no effect without mode=upsert"),
        ({"mode": "upsert", "envelope": "maxwell"}, "envelope is 'maxwell': write debezium"),
        ({"mode": "upsert", **VALUES, "envelope": "debezium"}, "it has id, note"),
        ({"mode": "upsert", **EVENTS, "key": "id"}, "deletions have no row after them"),
        ({"mode": "upsert", "transform": lambda rows: rows}, "do not go together"),
        (
            {"mode": "upsert", "value_format": "json", "value_schema": "Kafkalog_Key STRING"},
            "field Kafkalog_Key",
        ),
    ],
)
def test_what_cannot_be_is_refused(how: Any, said: str) -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
    with pytest.raises(InvalidOptionError, match=said):
        load_options("n", "sql:sqlite:///x#t", options, **how)


def test_directories_of_files_are_refused() -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
    with pytest.raises(InvalidOptionError, match="mode upsert is for delta:, iceberg: and sql:"):
        load_options("n", "parquet:/x", options, mode="upsert")
    with pytest.raises(InvalidOptionError, match="neither partition_by nor sort_by"):
        load_options("n", "delta:/x", options, mode="upsert", partition_by="topic")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_of_files_take_upserts(topic: Topic, kind: str, tmp_path: Path) -> None:
    table = table_of(kind, tmp_path)
    topic.send((b"1", {"id": 1, "note": "a"}), (b"2", {"id": 2}), (b"1", {"id": 1, "note": "b"}))
    assert topic.load(table, **VALUES).records == 3
    topic.send((b"2", None), (b"3", {"id": 3}))
    assert topic.load(table, **VALUES).records == 2
    assert topic.load(table, **VALUES).records == 0
    rows = table.arrow().select(["id", "note"]).sort_by("id").to_pylist()
    assert rows == [{"id": 1, "note": "b"}, {"id": 3, "note": None}]


@pytest.mark.slow
def test_a_key_is_told_from_a_field_of_a_struct_of_such_a_name(
    topic: Topic, tmp_path: Path
) -> None:
    """Of which a file has other bounds."""
    table = table_of("delta", tmp_path)
    schema = "`a.b` INT, a STRUCT<b: INT>, note STRING"
    for note in ("old", "new"):
        topic.send((b"x", {"a.b": 1, "a": {"b": 1000}, "note": note}))
        topic.load(table, value_format="json", value_schema=schema, key="a.b")
    assert table.arrow().column("note").to_pylist() == ["new"]
