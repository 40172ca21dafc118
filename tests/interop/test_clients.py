"""Foreign clients and Spark against the broker: each reads what every other wrote.

With KAFKALOG_TEST_BOOTSTRAP the broker is Apache Kafka, and the same must hold. Consumers assign
partitions themselves: groups are another test's.
"""

import asyncio
import itertools
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pyspark_kafkalog.arrow.schema import HEADERS_TYPE
from tests.support.broker_child import broker_under_test
from tests.support.patience import attempts, for_seconds
from tests.support.present import present

pytestmark = pytest.mark.interop

RECORDS = 100_000
BASE_MS = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
# Spark's side of a codec is one code for all clients; `make interop` takes them all.
SPARK_CODECS = CODECS if os.environ.get("KAFKALOG_ALL_CODECS") else ["none", "lz4"]
# A batch is opaque to the broker: `make test` takes one codec, `make test-all` the rest.
LONG_CODECS = [codec for codec in CODECS if codec != "lz4"]
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Row:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def row(number: int) -> Row:
    """Record `number`: some without key, some without value, some with headers.

    None lacks both, which two of the clients refuse to send.
    """
    return Row(
        None if number % 7 == 0 else b"key-%d" % (number % 1000),
        None if number % 11 == 0 and number % 7 else b"value-%d-" % number + b"x" * (number % 50),
        (("h", b"%d" % number), ("empty", b""), ("h", b"again")) if number % 100 == 0 else (),
        BASE_MS + number * 3,
    )


@cache
def all_rows() -> list[Row]:
    return [row(number) for number in range(RECORDS)]


class ConfluentKafka:
    def write(self, bootstrap: str, topic: str, codec: str) -> None:
        from confluent_kafka import Producer

        failures: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "linger.ms": 5,
                "queue.buffering.max.messages": RECORDS + 1,
            }
        )
        for each in all_rows():
            producer.produce(
                topic,
                each.value,
                each.key,
                partition=0,
                timestamp=each.timestamp_ms,
                headers=list(each.headers) or None,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0
        assert failures == []

    def read(self, bootstrap: str, topic: str) -> Iterator[Row]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            for _ in for_seconds(TIMEOUT_S):
                for message in consumer.consume(10_000, timeout=1):
                    assert message.error() is None, message.error()
                    headers: Any = message.headers() or []
                    timestamp_ms = message.timestamp()[1]
                    yield Row(message.key(), message.value(), tuple(headers), timestamp_ms)
        finally:
            consumer.close()


class KafkaPython:
    def write(self, bootstrap: str, topic: str, codec: str) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
            batch_size=100_000,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    partition=0,
                    timestamp_ms=each.timestamp_ms,
                    headers=list(each.headers),
                )
                for each in all_rows()
            ]
            producer.flush(TIMEOUT_S)
            for future in futures:
                assert future.succeeded()
        finally:
            producer.close()

    def read(self, bootstrap: str, topic: str) -> Iterator[Row]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
        )
        try:
            consumer.assign([TopicPartition(topic, 0)])
            for _ in for_seconds(TIMEOUT_S):
                for records in consumer.poll(timeout_ms=1000, max_records=10_000).values():
                    for record in records:
                        yield Row(record.key, record.value, tuple(record.headers), record.timestamp)
        finally:
            consumer.close()


class Aiokafka:
    def write(self, bootstrap: str, topic: str, codec: str) -> None:
        asyncio.run(self._write(bootstrap, topic, codec))

    async def _write(self, bootstrap: str, topic: str, codec: str) -> None:
        from aiokafka import AIOKafkaProducer

        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
            max_batch_size=100_000,
        ) as producer:
            futures = [
                await producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    partition=0,
                    timestamp_ms=each.timestamp_ms,
                    headers=list(each.headers),
                )
                for each in all_rows()
            ]
            await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S)

    def read(self, bootstrap: str, topic: str) -> Iterator[Row]:
        return iter(asyncio.run(self._read(bootstrap, topic)))

    async def _read(self, bootstrap: str, topic: str) -> list[Row]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        found: list[Row] = []
        async with AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
        ) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            for _ in attempts(lambda: len(found), TIMEOUT_S):
                if len(found) >= RECORDS:
                    break
                batches = await consumer.getmany(timeout_ms=1000, max_records=10_000)
                for records in batches.values():
                    found.extend(
                        Row(record.key, record.value, tuple(record.headers), record.timestamp)
                        for record in records
                    )
        return found


CLIENTS: dict[str, ConfluentKafka | KafkaPython | Aiokafka] = {
    "confluent-kafka": ConfluentKafka(),
    "kafka-python": KafkaPython(),
    "aiokafka": Aiokafka(),
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Records of years ago: retention would take them where the tests take more than 5 minutes.
    properties = {"log.retention.ms": "-1"}
    with broker_under_test(tmp_path_factory.mktemp("broker"), properties) as address:
        yield address


@pytest.fixture(scope="module")
def written(bootstrap: str) -> Callable[[str, str], str]:
    """written(client, codec) -> the topic that this client wrote, once for all readers."""
    topics: dict[tuple[str, str], str] = {}

    def write(name: str, codec: str) -> str:
        if (name, codec) not in topics:
            topic = f"{name}-{codec}-{uuid.uuid4().hex[:8]}"
            CLIENTS[name].write(bootstrap, topic, codec)
            topics[name, codec] = topic
        return topics[name, codec]

    return write


# Every reader meets every codec, and every writer, without each of the 45 combinations.
COMBINATIONS = [
    (writer, codec, reader)
    for codec_number, codec in enumerate(CODECS)
    for writer_number, writer in enumerate(CLIENTS)
    for reader_number, reader in enumerate(CLIENTS)
    if writer == reader or (codec_number + writer_number + reader_number) % 2 == 0
]


def with_long_codecs(codecs: list[str]) -> list[Any]:
    return [
        pytest.param(codec, marks=[pytest.mark.long] if codec in LONG_CODECS else [])
        for codec in codecs
    ]


@pytest.mark.parametrize(
    ("writer", "codec", "reader"),
    [
        pytest.param(*each, marks=[pytest.mark.long] if each[1] in LONG_CODECS else [])
        for each in COMBINATIONS
    ],
)
def test_what_one_client_writes_another_reads(
    bootstrap: str, written: Callable[[str, str], str], writer: str, codec: str, reader: str
) -> None:
    topic = written(writer, codec)
    found = list(itertools.islice(CLIENTS[reader].read(bootstrap, topic), RECORDS))
    assert len(found) == RECORDS
    for number, (expected, actual) in enumerate(zip(all_rows(), found, strict=True)):
        assert actual == expected, f"record {number}"


def test_the_combinations_cover_all_pairs() -> None:
    assert {(w, c) for w, c, _ in COMBINATIONS} == set(itertools.product(CLIENTS, CODECS))
    assert {(c, r) for _, c, r in COMBINATIONS} == set(itertools.product(CODECS, CLIENTS))
    assert {(w, r) for w, _, r in COMBINATIONS} == set(itertools.product(CLIENTS, CLIENTS))


def read_with_spark(spark: SparkSession, bootstrap: str, topic: str) -> list[Row]:
    reader = spark.read.format("kafkalog").option("kafka.bootstrap.servers", bootstrap)
    found = reader.option("subscribe", topic).option("includeHeaders", "true").load()
    columns = found.coalesce(1).toArrow().to_pydict()
    assert columns["offset"] == list(range(RECORDS))
    return [
        Row(
            key,
            value,
            tuple((header["key"], header["value"]) for header in headers or ()),
            round(timestamp.timestamp() * 1000),
        )
        for key, value, headers, timestamp in zip(
            columns["key"],
            columns["value"],
            columns["headers"],
            columns["timestamp"],
            strict=True,
        )
    ]


def write_with_spark(
    spark: SparkSession, bootstrap: str, topic: str, codec: str, folder: Path
) -> None:
    table = pa.table(
        {
            "key": pa.array([each.key for each in all_rows()], pa.binary()),
            "value": pa.array([each.value for each in all_rows()], pa.binary()),
            "headers": pa.array([list(each.headers) or None for each in all_rows()], HEADERS_TYPE),
            "timestamp": pa.array(
                [1000 * each.timestamp_ms for each in all_rows()], pa.timestamp("us", tz="UTC")
            ),
        }
    )
    pq.write_table(table, folder / "rows.parquet")
    rows = spark.read.parquet(str(folder / "rows.parquet")).selectExpr("*", "0 as partition")
    writer = rows.coalesce(1).write.format("kafkalog").mode("append").option("topic", topic)
    writer.option("kafka.bootstrap.servers", bootstrap).option(
        "kafka.compression.type", codec
    ).save()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("codec", with_long_codecs(SPARK_CODECS))
@pytest.mark.parametrize("writer", CLIENTS)
def test_spark_reads_what_every_client_writes(
    spark: SparkSession, bootstrap: str, written: Callable[[str, str], str], writer: str, codec: str
) -> None:
    found = read_with_spark(spark, bootstrap, written(writer, codec))
    for number, (expected, actual) in enumerate(zip(all_rows(), found, strict=True)):
        assert actual == expected, f"record {number}"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("codec", with_long_codecs(SPARK_CODECS))
def test_every_client_reads_what_spark_writes(
    spark: SparkSession, bootstrap: str, tmp_path: Path, codec: str
) -> None:
    topic = f"spark-{codec}-{uuid.uuid4().hex[:8]}"
    kcat("-b", bootstrap, "-P", "-t", topic, "-p", "0", stdin="")
    write_with_spark(spark, bootstrap, topic, codec, tmp_path)
    for name, client in CLIENTS.items():
        found = list(itertools.islice(client.read(bootstrap, topic), RECORDS))
        for number, (expected, actual) in enumerate(zip(all_rows(), found, strict=True)):
            assert actual == expected, f"{name}, record {number}"
    end = kcat("-b", bootstrap, "-C", "-t", topic, "-o", "-1", "-e", "-q", "-f", "%o %k %s")
    key, value = present(all_rows()[-1].key), present(all_rows()[-1].value)
    assert end == f"{RECORDS - 1} {key.decode()} {value.decode()}"


def kcat(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", *arguments], input=stdin, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_lists_produces_and_consumes(bootstrap: str, codec: str) -> None:
    topic = f"kcat-{uuid.uuid4().hex[:8]}"
    lines = [f"k{number}:v{number}" for number in range(1000)]
    produce = ["-b", bootstrap, "-P", "-t", topic, "-K:", "-p", "0", "-z", codec]
    kcat(*produce, stdin="\n".join(lines))
    assert f'topic "{topic}" with 1 partitions' in kcat("-b", bootstrap, "-L", "-t", topic)
    consumed = kcat("-b", bootstrap, "-C", "-t", topic, "-K:", "-o", "beginning", "-e", "-q")
    assert consumed.splitlines() == lines
    last = kcat("-b", bootstrap, "-C", "-t", topic, "-o", "-5", "-e", "-q")
    assert last.split() == ["v995", "v996", "v997", "v998", "v999"]
