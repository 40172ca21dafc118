"""One embedded broker for what is counted in the connector, and topics with known batches."""

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.embedded import EmbeddedBroker

LARGEST = str(8 << 20)
"""Batches may have so many bytes, to tell one that was copied from what is done with many."""
_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def config(servers: str) -> ClientConfig:
    return ClientConfig.from_options({"bootstrap.servers": servers, "max.request.size": LARGEST})


@pytest.fixture
def new_topic(config: ClientConfig) -> Callable[..., str]:
    """new_topic(partitions) -> the name of a new topic."""

    def create(partitions: int = 1) -> str:
        name = f"counted-{next(_NUMBERS)}"
        with Cluster(config) as cluster:
            admin.create_topic(cluster, name, partitions, configs={"max.message.bytes": LARGEST})
        return name

    return create


@pytest.fixture
def write(config: ClientConfig) -> Callable[..., None]:
    """write(topic, batches, values, partition=0) appends so many batches of these values each."""

    def produce(topic: str, batches: int, values: list[bytes], partition: int = 0) -> None:
        rows = pa.record_batch({"value": pa.array(values, pa.binary())})
        with Producer(config) as producer:
            for _ in range(batches):
                encoder = RecordEncoder(1, max_batch_bytes=8 << 20)
                for _, batch in (*encoder.encode(rows), *encoder.finish()):
                    producer.send(TopicPartition(topic, partition), batch)
                producer.flush()

    return produce
