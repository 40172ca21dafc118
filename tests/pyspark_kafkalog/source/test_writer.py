"""Which rows are records, and what is said about those that are not."""

import datetime
import os
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.structs import TopicPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.arrow.schema import COLUMN_TYPES
from pyspark_kafkalog.errors import InvalidRowError, TransactionError
from pyspark_kafkalog.record.batch import read_header
from pyspark_kafkalog.source import writer
from pyspark_kafkalog.source.decisions import decisions_topic
from pyspark_kafkalog.source.options import sink_options, warn_once
from pyspark_kafkalog.source.rows_to_records import RowsToRecords, record_columns, rows_by_topic
from pyspark_kafkalog.source.two_phase import BATCH_QUERY, TransactionalWrites
from pyspark_kafkalog.source.writer import KafkalogWriter, check_columns


@pytest.fixture(autouse=True)
def nothing_warned_yet() -> None:
    warn_once.cache_clear()


def schema(**columns: str | IntegerType | StringType) -> StructType:
    built = StructType()
    for name, data_type in columns.items():
        built.add(name, data_type)
    return built


INT, BIGINT = IntegerType(), LongType()
HEADERS = ArrayType(StructType().add("key", "string").add("value", "binary"))
KEYS_ONLY = ArrayType(StructType().add("key", "string"))
PAIRS = MapType(StringType(), BinaryType())


@pytest.mark.parametrize(
    ("columns", "topic"),
    [
        ({"value": "string"}, "orders"),
        ({"value": "binary", "topic": "string"}, None),
        ({"value": "string", "key": "binary", "partition": INT, "headers": HEADERS}, "orders"),
        ({"value": "string", "timestamp": TimestampType()}, "orders"),
        ({"value": "string", "topic": INT}, "the option counts"),
        ({"value": "string", "offset": BIGINT, "timestampType": INT}, "a copy of a topic"),
    ],
)
def test_columns_that_make_records(
    columns: dict[str, Any], topic: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    check_columns(schema(**columns), topic)
    assert not caplog.records


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"key": "string"}, "needs a column 'value', and has only key"),
        ({"value": INT}, "'value' must be string or binary, and is int"),
        ({"value": "string", "key": BIGINT}, "'key' must be string or binary"),
        ({"value": "string", "partition": BIGINT}, "'partition' must be int, and is bigint"),
        ({"value": "string", "headers": PAIRS}, "'headers' must be array<struct"),
        ({"value": "string", "headers": KEYS_ONLY}, "'headers' must be array"),
        ({"value": "string", "timestamp": TimestampNTZType()}, "'timestamp' must be timestamp"),
    ],
)
def test_columns_that_do_not_are_named(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRowError, match=problem):
        check_columns(schema(**columns), "orders")


def test_a_topic_must_come_from_somewhere() -> None:
    with pytest.raises(InvalidRowError, match="set the option topic, or add a column 'topic'"):
        check_columns(schema(value="string"), None)
    with pytest.raises(InvalidRowError, match="'topic' must be string, and is int"):
        check_columns(schema(value="string", topic=INT), None)


def test_a_column_must_come_once() -> None:
    with pytest.raises(InvalidRowError, match="'value' twice"):
        check_columns(StructType().add("value", "string").add("value", "string"), "orders")


def test_columns_that_are_not_written_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    check_columns(schema(value="string", timestmp="timestamp", amount=INT), "orders")
    assert "'timestmp' is no part of a record and is not written. Did you mean timestamp?" in (
        caplog.text
    )
    assert "'amount' is no part" in caplog.text


def test_rows_go_to_the_topic_of_the_option_or_of_their_column() -> None:
    rows = pa.record_batch({"value": ["1", "2", "3"], "topic": ["b", "a", "b"]})
    assert [(t, r.column("value").to_pylist()) for t, r in rows_by_topic(rows, "c")] == [
        ("c", ["1", "2", "3"])
    ]
    assert [(t, r.column("value").to_pylist()) for t, r in rows_by_topic(rows, None)] == [
        ("b", ["1", "3"]),
        ("a", ["2"]),
    ]
    assert list(rows_by_topic(rows.slice(0, 0), None)) == []


def test_a_null_topic_is_an_error() -> None:
    rows = pa.record_batch({"value": ["1", "2"], "topic": ["a", None]})
    with pytest.raises(InvalidRowError, match="'topic' is null in a row"):
        list(rows_by_topic(rows, None))


def test_only_what_a_record_is_made_of_is_kept_with_32_bit_offsets() -> None:
    entry = pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())])
    rows = pa.record_batch(
        {
            "amount": pa.array([1]),
            "topic": pa.array(["a"]),
            "value": pa.array(["v"], pa.large_string()),
            "key": pa.array([b"k"], pa.large_binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}]], pa.list_(entry)),
        }
    )
    records = record_columns(rows)
    assert records.schema.names == ["value", "key", "headers"]
    assert records.schema.types == [pa.binary(), pa.binary(), COLUMN_TYPES["headers"]]
    assert records.to_pylist() == [
        {"value": b"v", "key": b"k", "headers": [{"key": "h", "value": b"1"}]}
    ]


@pytest.mark.parametrize("headers", [[None], [{"key": None, "value": b"1"}]])
def test_a_header_needs_a_key(headers: list[dict[str, bytes | None] | None]) -> None:
    column = pa.array([None, [], headers], COLUMN_TYPES["headers"])
    rows = pa.record_batch({"value": ["1", "2", "3"], "headers": column})
    with pytest.raises(InvalidRowError, match="'headers' has a header without a key"):
        record_columns(rows)


def test_a_record_is_not_older_than_1970() -> None:
    when = datetime.datetime(1969, 12, 31, tzinfo=datetime.timezone.utc)
    column = pa.array([None, when], COLUMN_TYPES["timestamp"])
    with pytest.raises(InvalidRowError, match="'timestamp' is before 1970"):
        record_columns(pa.record_batch({"value": ["1", "2"], "timestamp": column}))


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


def create(servers: str, *topics: str, **config: str) -> None:
    given = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for done in admin.create_topics([NewTopic(t, 1, 1, config=given) for t in topics]).values():
        done.result(30)


def write(servers: str, rows: pa.RecordBatch, **options: str) -> int:
    columns = dict.fromkeys(rows.schema.names, StringType())
    given = {"kafka.bootstrap.servers": servers, **options}
    report = KafkalogWriter(sink_options(given), schema(**columns)).write(iter([rows]))
    return report.record_count


def test_batches_are_no_larger_than_their_topic_and_their_requests_may_be(servers: str) -> None:
    create(servers, "small-batches", max_message_bytes="20000")
    create(servers, "any")
    rows = pa.record_batch({"value": pa.array(["x" * 100] * 5000)})
    assert write(servers, rows, topic="small-batches") == 5000
    assert write(servers, rows, topic="any", **{"kafka.max.request.size": "50000"}) == 5000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_that_grow_when_they_are_compressed_are_no_larger_than_their_topic(
    servers: str, codec: str
) -> None:
    topic = f"incompressible-{codec}"
    create(servers, topic, max_message_bytes="100000")
    for value_bytes in range(49_900, 49_960, 4):
        values = [os.urandom(value_bytes) for _ in range(4)]
        rows = pa.record_batch({"value": pa.array(values, pa.binary())})
        assert write(servers, rows, topic=topic, **{"kafka.compression.type": codec}) == 4


def test_a_decisions_topic_that_would_forget_is_refused_before_anything_is_written(
    servers: str,
) -> None:
    create(servers, decisions_topic("nightly"), cleanup_policy="delete")
    given = {"kafka.bootstrap.servers": servers, "transactionalIdPrefix": "nightly"}
    writes = TransactionalWrites(sink_options(given).client, "nightly")
    for owner in (BATCH_QUERY, None):
        with pytest.raises(TransactionError, match=r"cleanup\.policy=delete, .* Set it to compact"):
            writes.take_lead(owner)


def test_rows_of_many_topics_take_no_more_memory_than_those_of_some(servers: str) -> None:
    topics = [f"one-of-many-{number}" for number in range(300)]
    create(servers, *topics)
    rows = pa.record_batch({"value": pa.array(["x"] * 300), "topic": pa.array(topics)})
    tracemalloc.start()
    try:
        assert write(servers, rows) == 300
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A megabyte for each would be more than twice as much.
    assert peak_bytes < 150 << 20


class Collected:
    """What a task hands to its producer, by topic."""

    def __init__(self) -> None:
        self.records: dict[str, int] = {}
        self.unflushed = 0

    def partitions_for(self, topic: str) -> list[int]:
        return [0]

    def largest_batch_bytes(self, topic: str) -> int:
        return 1 << 20

    def send(self, topic_partition: TopicPartition, batch: bytearray) -> None:
        count = read_header(batch).record_count
        self.records[topic_partition.topic] = self.records.get(topic_partition.topic, 0) + count
        self.unflushed += count

    def flush(self) -> None:
        self.unflushed = 0


def test_the_last_rows_of_every_topic_are_sent() -> None:
    producer: Any = Collected()
    writing = RowsToRecords(sink_options({"kafka.bootstrap.servers": "unused:1"}), producer)
    topics = [f"t{number % 5}" for number in range(12)]
    columns = {"topic": pa.array(topics), "value": pa.array([b"x"] * 12, pa.binary())}
    for _ in range(2):
        writing.write(pa.record_batch(columns))
    writing.finish()
    assert producer.records == {"t0": 6, "t1": 6, "t2": 4, "t3": 4, "t4": 4}


def test_a_task_counts_all_of_its_rows_and_waits_for_them() -> None:
    """Before it says in which transaction they are."""
    producer: Any = Collected()
    options = sink_options({"kafka.bootstrap.servers": "unused:1", "topic": "t"})
    batches = [pa.record_batch({"value": pa.array([b"x"] * n, pa.binary())}) for n in (3, 0, 4)]
    assert writer._write_rows(options, lambda: producer, iter(batches)) == 7
    assert (producer.records, producer.unflushed) == ({"t": 7}, 0)


@pytest.mark.parametrize(("micros", "is_record"), [(0, True), (-1, False), (None, True)])
def test_no_record_is_from_before_1970(micros: int | None, is_record: bool) -> None:
    times = pa.array([1_000_000, micros], COLUMN_TYPES["timestamp"])
    rows = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary()), "timestamp": times})
    if is_record:
        assert record_columns(rows).num_rows == 2
    else:
        with pytest.raises(InvalidRowError, match="before 1970"):
            record_columns(rows)
