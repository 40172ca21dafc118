"""Topics with records for tests that have many of them."""

from collections.abc import Sequence

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.record.compression import Codec


class TopicFiller:
    """Makes topics of the brokers at `servers`, and appends values to their partitions."""

    def __init__(self, servers: str) -> None:
        self._config = ClientConfig.from_options({"bootstrap.servers": servers})

    def make(self, *topics: str, partitions: int = 1) -> None:
        with Cluster(self._config) as cluster:
            for topic in topics:
                admin.create_topic(cluster, topic, partitions, 1)

    def append(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        encoder = RecordEncoder(1, Codec.NONE, max_batch_bytes=1000)
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        with Producer(self._config) as producer:
            for _, batch in [*encoder.encode(rows), *encoder.finish()]:
                producer.send(TopicPartition(topic, partition), batch)
