"""One embedded broker for all tests of this directory.

Topics are created and filled by librdkafka, which shares no code with what is tested.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql import DataFrameReader, SparkSession

from pyspark_kafkalog import EmbeddedBroker

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


class Topics:
    """Creates and fills topics, each with a name of its own."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        # Silent: the broker is stopped before librdkafka's threads are.
        client: dict[str, str | int | float | bool] = {"bootstrap.servers": servers, "log_level": 0}
        self._admin = AdminClient(client)
        self._producer = Producer({**client, "linger.ms": 5})

    def create(self, partitions: int = 1, prefix: str = "topic", **configs: str) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.create_again(name, partitions, **configs)
        return name

    def create_again(self, name: str, partitions: int = 1, **configs: str) -> None:
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        wanted = NewTopic(name, partitions, 1, config=configs)
        for created in self._admin.create_topics([wanted]).values():
            created.result(30)

    def add_partitions(self, name: str, total: int) -> None:
        for added in self._admin.create_partitions([NewPartitions(name, total)]).values():
            added.result(30)

    def delete(self, name: str) -> None:
        for deleted in self._admin.delete_topics([name]).values():
            deleted.result(30)

    def trim(self, name: str, offset: int) -> None:
        """As retention does: partition 0 begins at `offset` from here on."""
        for trimmed in self._admin.delete_records([TopicPartition(name, 0, offset)]).values():
            trimmed.result(30)

    def append(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        partition: int = 0,
        **record: Any,
    ) -> None:
        """Writes `values` to one partition, in order, and waits until they are acknowledged."""
        failed: list[KafkaError] = []

        def noted(error: KafkaError | None, _: object) -> None:
            if error:
                failed.append(error)

        for value in values:
            self._producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=noted,
                **record,
            )
        assert self._producer.flush(30) == 0
        assert not failed

    def fill(self, topic: str, *counts: int) -> None:
        """Appends `counts[n]` records to partition n; values name their partition and number."""
        for partition, count in enumerate(counts):
            self.append(topic, [f"{partition}-{n}".encode() for n in range(count)], partition)


@contextmanager
def configured(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


@pytest.fixture(scope="session")
def topics(servers: str) -> Topics:
    return Topics(servers)


@pytest.fixture
def read(spark: SparkSession, servers: str) -> Callable[..., DataFrameReader]:
    """`read(subscribe=..., ...)`: a reader that only lacks `.load()`."""

    def reader(**options: Any) -> DataFrameReader:
        source = spark.read.format("kafkalog").option("kafka.bootstrap.servers", servers)
        return source.options(**options)

    return reader
