"""Topics full of equal records, for benchmarks that read them."""

import os

import pyarrow as pa
from kafka.structs import TopicPartition
from rich.progress import track

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.producer import Producer

ROWS_PER_SLICE = 10_000


def rows_of(value_bytes: int) -> pa.RecordBatch:
    """Random bytes, which do not compress."""
    values = os.urandom(value_bytes * ROWS_PER_SLICE)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"%08d" % number for number in range(ROWS_PER_SLICE)], pa.binary()),
            "value": pa.array(
                [
                    values[number * value_bytes : (number + 1) * value_bytes]
                    for number in range(ROWS_PER_SLICE)
                ],
                pa.binary(),
            ),
        }
    )


def fill(client: Cluster, topic: str, partitions: int, count: int, value_bytes: int) -> None:
    """Produces `count` records, whole slices of them, from two slices in turn."""
    slices = [rows_of(value_bytes) for _ in range(2)]
    encoder = RecordEncoder(partitions)
    with Producer(client) as producer:
        turns = range(count // ROWS_PER_SLICE)
        for turn in track(turns, f"produce {topic}", transient=True):
            for partition, batch in encoder.encode(slices[turn % 2]):
                producer.send(TopicPartition(topic, partition), batch)
        for partition, batch in encoder.finish():
            producer.send(TopicPartition(topic, partition), batch)
