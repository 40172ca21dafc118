"""A stream's checkpoint beside real brokers whose log is another one by the next run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.errors import DataLossError, TopicRecreatedError
from pyspark_kafkalog.source.offsets import from_json
from pyspark_kafkalog.source.options import stream_options
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from tests.pyspark_kafkalog.client.conftest import batches_of
from tests.support.leader_epochs import await_later_epochs

ORDERS_0 = TopicPartition("orders", 0)


def append(broker: EmbeddedBroker, count: int, is_created: bool = False) -> None:
    config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
    with Cluster(config) as cluster, Producer(cluster) as producer:
        if is_created:
            admin.create_topic(cluster, "orders", 1, 1)
        for batch in batches_of([b"record"] * count):
            producer.send(ORDERS_0, batch)


def next_end(broker: EmbeddedBroker, end: Any = None) -> Any:
    """Where a query that is started now ends its next micro-batch."""
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "fetchOffset.numRetries": "1",
    }
    stream = KafkalogStreamReader(stream_options(options), ["value"])
    try:
        start = stream.initialOffset() if end is None else end
        found = stream.latestOffset(start, ReadAllAvailable())
        list(stream.partitions(start, found))
        return found
    finally:
        stream.stop()


def test_a_topic_that_was_created_again_and_is_longer_by_now_is_another_one() -> None:
    with EmbeddedBroker() as broker:
        append(broker, 10, is_created=True)
        end = next_end(broker)
        config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
        with Cluster(config) as cluster:
            admin.delete_topics(cluster, ["orders"])
        append(broker, 15, is_created=True)
        with pytest.raises(TopicRecreatedError, match="orders: deleted and created again"):
            next_end(broker, end)


def test_a_broker_that_was_restored_and_has_written_on_has_other_records(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with EmbeddedBroker(data) as broker:
        append(broker, 50, is_created=True)
    shutil.copytree(data, copy)
    with EmbeddedBroker(data) as broker:
        append(broker, 50)
        end = next_end(broker)
    with EmbeddedBroker(data) as broker:
        # Started anew, it has a new epoch and has lost nothing.
        append(broker, 5)
        assert from_json(next_end(broker, end)) == {ORDERS_0: 105}
    await_later_epochs()
    with EmbeddedBroker(copy) as broker:
        append(broker, 70)
        with pytest.raises(DataLossError, match=r"orders-0 (lost records before|has a leader of)"):
            next_end(broker, end)
