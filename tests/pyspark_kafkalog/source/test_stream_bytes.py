"""maxBytesPerTrigger against a broker: how large micro-batches really are."""

from itertools import pairwise

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.source.offsets import from_json, to_json
from pyspark_kafkalog.source.options import stream_options
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from tests.pyspark_kafkalog.client.conftest import batches_of

# Of each partition's records, which grow on the way in the second.
SIZES = [[100] * 10_000, [100] * 2000 + [3000] * 500]
OVERHEAD_BYTES = 9


@pytest.mark.parametrize("limit_bytes", [100_000, 600_000])
def test_micro_batches_are_about_as_large_as_they_may_be(limit_bytes: int) -> None:
    with EmbeddedBroker() as broker:
        config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
        with Cluster(config) as cluster, Producer(cluster) as producer:
            admin.create_topic(cluster, "orders", len(SIZES), 1)
            for partition, sizes in enumerate(SIZES):
                for batch in batches_of([b"x" * size for size in sizes], batch_bytes=16_000):
                    producer.send(TopicPartition("orders", partition), batch)
        options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": str(limit_bytes),
        }
        stream = KafkalogStreamReader(stream_options(options), ["value"])
        offsets = [stream.initialOffset()]
        while (end := stream.latestOffset(offsets[-1], stream.getDefaultReadLimit())) != offsets[
            -1
        ]:
            offsets.append(end)
        stream.stop()
    assert to_json(from_json(offsets[-1])) == {"orders": {"0": 10_000, "1": 2500}}
    taken = [bytes_between(start["orders"], end["orders"]) for start, end in pairwise(offsets)]
    # But for the batch in which records suddenly are thirty times as large.
    assert sum(size > 1.3 * limit_bytes for size in taken) <= 1
    assert len(taken) <= 1.5 * sum(taken) / limit_bytes + 2


def bytes_between(start: dict[str, int], end: dict[str, int]) -> int:
    return sum(
        size + OVERHEAD_BYTES
        for partition, sizes in enumerate(SIZES)
        for size in sizes[start[str(partition)] : end[str(partition)]]
    )
