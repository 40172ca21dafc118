"""The consumer group that lag tools see a load as."""

import logging
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.group import commit_offsets, committed_places
from pyspark_kafkalog.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import BrokersUnreachableError, InvalidOptionError
from pyspark_kafkalog.warehouse import load_group
from pyspark_kafkalog.warehouse.load import load
from tests.pyspark_kafkalog.warehouse.topic_filler import TopicFiller


def test_a_groups_offsets_follow_the_loads_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    orders = TopicPartition("orders", 0)

    def unreachable(*_: object) -> None:
        raise BrokersUnreachableError("nobody is there")

    with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        filler = TopicFiller(servers)
        filler.make("orders")
        options = {"kafka.bootstrap.servers": servers, "subscribe": "orders"}

        def told() -> int:
            load(None, "nightly", f"parquet:{tmp_path}/table", options, group="nightly-load")
            with Cluster(ClientConfig.from_options({"bootstrap.servers": servers})) as cluster:
                cluster.topics(["orders"])
                at = committed_places(cluster, "nightly-load")[orders]
                # Else nobody could tell which log that is.
                assert at.topic_id == cluster.topic_id("orders") is not None
                assert at.leader_epoch == 0
                return at.offset

        filler.append("orders", [b"1", b"2", b"3"])
        assert told() == 3
        filler.append("orders", [b"4"])
        monkeypatch.setattr(load_group, "commit_offsets", unreachable)
        with caplog.at_level(logging.WARNING):
            assert told() == 3
        assert "nobody is there" in caplog.text
        monkeypatch.setattr(load_group, "commit_offsets", commit_offsets)
        assert told() == 4
        with pytest.raises(InvalidOptionError, match="group is empty"):
            load(None, "nightly", f"parquet:{tmp_path}/table", options, group=" ")
