"""A stream and a load of a topic whose leaders are killed meanwhile: each record once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import pyspark_kafkalog
from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S, wait_until

pytestmark = [pytest.mark.spark]

PARTITIONS = 3
RECORDS = 300


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as started:
        started.create_topic("events", PARTITIONS)
        yield started


def produce(cluster: Cluster, first: int) -> None:
    """RECORDS of them, all acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap),
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
    for number in range(first, first + RECORDS):
        producer.produce("events", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(EVENT_S) == 0


def numbers_in(spark: SparkSession, folder: Path) -> list[int]:
    rows = spark.read.parquet(str(folder)).selectExpr("cast(value as string) value").collect()
    return sorted(int(row.value) for row in rows)


@pytest.mark.slow
def test_a_stream_and_loads_have_each_record_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    servers = ",".join(cluster.bootstrap)
    landed, target = tmp_path / "landed", f"parquet:{tmp_path / 'loaded'}"
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": "events",
        "startingOffsets": "earliest",
    }
    produce(cluster, 0)
    query = (
        spark.readStream.format("kafkalog")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(landed))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        pyspark_kafkalog.load(spark, "night", target, options)
        for number, lost in enumerate((1, 2, 3), 1):
            cluster.kill(lost)
            produce(cluster, number * RECORDS)
            pyspark_kafkalog.load(spark, "night", target, options)
            cluster.start(lost)
            cluster.wait_in_sync("events")
        everything = list(range(4 * RECORDS))
        query.processAllAvailable()
        wait_until(
            lambda: numbers_in(spark, landed) == everything,
            lambda: json.dumps(query.lastProgress, default=str),
            pause_s=0.5,
        )
        assert query.exception() is None
        assert numbers_in(spark, tmp_path / "loaded") == everything
    finally:
        query.stop()
