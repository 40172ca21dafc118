"""Offsets of a load, given to a read of a log that is another one by now."""

import os
from pathlib import Path

import pytest

from pyspark_kafkalog import load, loaded_offsets
from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError, TopicRecreatedError
from pyspark_kafkalog.source.options import batch_options, stream_options
from pyspark_kafkalog.source.partitions import OffsetRange, plan_batch
from pyspark_kafkalog.source.stream_reader import KafkalogStreamReader
from tests.pyspark_kafkalog.warehouse.topic_filler import TopicFiller


def options(broker: EmbeddedBroker, **others: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "orders", **others}


def loaded(broker: EmbeddedBroker, directory: Path) -> str:
    load(None, "nightly", f"parquet:{directory}/table", options(broker))
    return loaded_offsets(f"parquet:{directory}/table", "nightly")


def planned(broker: EmbeddedBroker, starting: str, fails: str = "true") -> list[OffsetRange]:
    """What a read from there on would read."""
    asked = batch_options(options(broker, startingOffsets=starting, failOnDataLoss=fails))
    with Cluster(asked.client) as cluster:
        ranges, *_ = plan_batch(
            cluster, asked.subscription, asked.starting, asked.ending, asked.fail_on_data_loss
        )
    return ranges


def test_offsets_of_a_topic_that_was_created_again_are_refused(tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        filler = TopicFiller(broker.bootstrap_servers)
        filler.make("orders")
        filler.append("orders", [b"1", b"2", b"3"])
        at = loaded(broker, tmp_path)
        filler.append("orders", [b"4"])
        assert planned(broker, at) == [OffsetRange("orders", 0, 3, 4)]
        config = ClientConfig.from_options({"bootstrap.servers": broker.bootstrap_servers})
        with Cluster(config) as cluster:
            admin.delete_topics(cluster, ["orders"])
        filler.make("orders")
        filler.append("orders", [b"other"] * 5)
        said = 'orders: not the topics .* say earliest: {"orders": "earliest"}'
        for fails in ("true", "false"):
            with pytest.raises(TopicRecreatedError, match=said):
                planned(broker, at, fails)
        stream = KafkalogStreamReader(
            stream_options(options(broker, startingOffsets=at)), ["value"]
        )
        with pytest.raises(TopicRecreatedError, match=said):
            stream.initialOffset()
        stream.stop()
        with pytest.raises(TopicRecreatedError, match=said):
            load(None, "other", f"parquet:{tmp_path}/other", options(broker), starting=at)
        assert planned(broker, '{"orders":{"0":3}}') == [OffsetRange("orders", 0, 3, 5)]
        with pytest.raises(InvalidOptionError, match="malformed note '__kafkalog-of-logs"):
            planned(broker, '{"orders":{"0":3},"__kafkalog-of-logs {\\"orders\\":1}":{}}')


def test_offsets_of_a_log_that_was_cut_off_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with EmbeddedBroker(data_dir=data) as broker:
        filler = TopicFiller(broker.bootstrap_servers)
        filler.make("orders")
        for number in range(4):
            filler.append("orders", [b"%d" % number])
        at = loaded(broker, tmp_path)
    [segment] = data.glob("orders-0/*.log")
    os.truncate(segment, segment.stat().st_size // 2)
    with EmbeddedBroker(data_dir=data) as broker:
        TopicFiller(broker.bootstrap_servers).append("orders", [b"other"] * 5)
        said = "lost records before offset 4 .* others are written from offset 2 on"
        with pytest.raises(DataLossError, match=said):
            planned(broker, at)
