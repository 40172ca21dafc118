"""A broker of a cluster that has just started, and that no controller has told of anything: what it
says to clients must not be taken for what there is."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kazoo.client import KazooClient

from tests.support.broker_child import RawClient
from tests.support.patience import EVENT_S, wait_until
from tests.support.ports import free_ports
from tests.support.zookeeper import ZooKeeperServer


@pytest.fixture
def controller() -> Iterator[KazooClient]:
    """One that says nothing, and is there until it is stopped."""
    with ZooKeeperServer() as zookeeper:
        client = KazooClient(zookeeper.address)
        client.start()
        for path in ("/controller_epoch", "/controller"):
            value = b"1" if path != "/controller" else json.dumps({"brokerid": 9}).encode()
            client.create(path, value, ephemeral=path == "/controller")
        yield client
        client.stop()
        client.close()


def metadata_of(client: RawClient, name: str) -> MetadataResponse:
    wanted = MetadataRequest.MetadataRequestTopic(name=name)
    return client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 12)


def end_of(client: RawClient, name: str) -> int:
    """The error code."""
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    place = topic_class.ListOffsetsPartition(partition_index=0, timestamp=-1)
    wanted = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topic_class(name=name, partitions=[place])]
    )
    (topic,) = client.call(wanted, ListOffsetsResponse, 7).topics
    return int(topic.partitions[0].error_code)


def test_who_was_told_nothing_says_nothing_of_topics(
    tmp_path: Path, controller: KazooClient
) -> None:
    (port,) = free_ports(1)
    servers = "{}:{}".format(*controller.hosts[0])
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "broker", f"--data-dir={tmp_path}"),
            *(f"--listen=127.0.0.1:{port}", "--override=broker.id=1"),
            *(f"--override=zookeeper.connect={servers}", "--exit-with-parent"),
            "--override=auto.create.topics.enable=false",
        ],
        stdin=subprocess.PIPE,
    ) as broker:
        try:
            wait_until(lambda: controller.exists("/brokers/ids/1"), "a registration")
            with RawClient("127.0.0.1", port) as client:
                answer = metadata_of(client, "t")
                assert (list(answer.brokers), list(answer.topics)) == ([], [])
                assert end_of(client, "t") == NotLeaderForPartitionError.errno
                controller.delete("/controller")
                wait_until(lambda: metadata_of(client, "t").brokers, "a controller", EVENT_S)
                (topic,) = metadata_of(client, "t").topics
                assert topic.error_code == UnknownTopicOrPartitionError.errno
                assert end_of(client, "t") == UnknownTopicOrPartitionError.errno
        finally:
            broker.kill()
