"""One Apache Kafka broker that goes on from a cold backup, in the leader epoch in which it had
written what it lost."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

import pyspark_kafkalog
from pyspark_kafkalog.arrow.encode import RecordEncoder
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.warehouse.load import LoadResult
from tests.support.kafka_server import KafkaServer, require_kafka

pytestmark = [pytest.mark.interop, pytest.mark.long]


@pytest.mark.parametrize("chunk_bytes", [None, 100])
def test_a_broker_alone_that_was_restored_has_lost_records(
    tmp_path: Path, chunk_bytes: int | None
) -> None:
    require_kafka()
    data, backup = tmp_path / "kafka", tmp_path / "backup"
    data.mkdir()
    server = KafkaServer(data)

    def load(fails: bool = True) -> LoadResult:
        options = {
            "kafka.bootstrap.servers": server.bootstrap_servers,
            "subscribe": "orders",
            "failOnDataLoss": str(fails),
        }
        return pyspark_kafkalog.load(
            None, "nightly", f"parquet:{tmp_path}/table", options, chunk_bytes=chunk_bytes
        )

    with server:
        with Cluster(_config(server)) as cluster:
            admin.create_topic(cluster, "orders", 1, 1)
        _write(server, [b"kept"] * 5)
    shutil.copytree(data, backup)
    with server:
        _write(server, [b"lost"] * 5)
        assert load().records == 10
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    with server:
        _write(server, [b"else"] * 8)
        with pytest.raises(DataLossError, match=r"orders-0 has another record at offset 9 "):
            load()
        assert load(fails=False).records == 3
        _write(server, [b"last"])
        assert load().records == 1


def _config(server: KafkaServer) -> ClientConfig:
    return ClientConfig.from_options({"bootstrap.servers": server.bootstrap_servers})


def _write(server: KafkaServer, values: list[bytes]) -> None:
    encoder = RecordEncoder(1, Codec.NONE, max_batch_bytes=1)
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    with Producer(_config(server)) as producer:
        for _, batch in [*encoder.encode(rows), *encoder.finish()]:
            producer.send(TopicPartition("orders", 0), batch)
