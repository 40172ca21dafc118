"""What nobody should send: no request crashes the broker, stops it, or makes it grow."""

import contextlib
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol import admin
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
)
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafka.protocol.producer import InitProducerIdRequest

from broker.api.apis import APIS
from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest, encode_fetch_request
from pyspark_kafkalog.protocol.frames import is_flexible
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.records import batch_of

BY_KEY = {api.key: api for api in APIS}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerChild]:
    with BrokerChild(tmp_path_factory.mktemp("victim")) as child:
        yield child
        assert "event=request.failed" not in child.stderr()
        assert child.stop() == 0


def assert_alive(child: BrokerChild, within_s: float = 5.0) -> None:
    with RawClient(child.host, child.port, timeout_s=within_s) as client:
        assert client.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


def send_and_forget(child: BrokerChild, frame: bytes) -> None:
    """Sends a frame, and waits until it is answered or the connection closed."""
    # Reset or broken pipe: closed with some of our bytes unread.
    with RawClient(child.host, child.port) as client, contextlib.suppress(ConnectionError):
        client.socket.sendall(struct.pack(">i", len(frame)) + frame)
        # A second request tells when the first is done with, if nothing else does.
        client.socket.sendall(struct.pack(">i", 10) + struct.pack(">hhih", 18, 0, 1, -1))
        client.socket.recv(1 << 16)


def header(key: int, version: int, correlation_id: int = 1) -> bytes:
    tags = b"\x00" if is_flexible(key, version) else b""
    return struct.pack(">hhih", key, version, correlation_id, -1) + tags


def partition_requests() -> dict[Any, Any]:
    """By api key, about partitions."""
    created = admin.CreatePartitionsRequest
    deleted = admin.DeleteRecordsRequest
    epochs = OffsetForLeaderEpochRequest
    moved = admin.AlterPartitionReassignmentsRequest
    return {
        21: deleted(
            topics=[
                deleted.DeleteRecordsTopic(
                    name="fuzz",
                    partitions=[
                        deleted.DeleteRecordsTopic.DeleteRecordsPartition(
                            partition_index=0, offset=0
                        )
                    ],
                )
            ],
            timeout_ms=100,
        ),
        23: epochs(
            topics=[
                epochs.OffsetForLeaderTopic(
                    topic="fuzz",
                    partitions=[
                        epochs.OffsetForLeaderTopic.OffsetForLeaderPartition(
                            partition=0, leader_epoch=0
                        )
                    ],
                )
            ]
        ),
        35: admin.DescribeLogDirsRequest(
            topics=[
                admin.DescribeLogDirsRequest.DescribableLogDirTopic(topic="fuzz", partitions=[0])
            ]
        ),
        37: created(
            topics=[
                created.CreatePartitionsTopic(
                    name="fuzz",
                    count=1,
                    assignments=[
                        created.CreatePartitionsTopic.CreatePartitionsAssignment(broker_ids=[1])
                    ],
                )
            ],
            timeout_ms=100,
        ),
        43: admin.ElectLeadersRequest(
            topic_partitions=[
                admin.ElectLeadersRequest.TopicPartitions(topic="fuzz", partitions=[0])
            ]
        ),
        45: moved(
            topics=[
                moved.ReassignableTopic(
                    name="fuzz",
                    partitions=[
                        moved.ReassignableTopic.ReassignablePartition(
                            partition_index=0, replicas=[1]
                        )
                    ],
                )
            ]
        ),
        46: admin.ListPartitionReassignmentsRequest(topics=None),
        61: admin.DescribeProducersRequest(
            topics=[admin.DescribeProducersRequest.TopicRequest(name="fuzz", partition_indexes=[0])]
        ),
        75: admin.DescribeTopicPartitionsRequest(
            topics=[admin.DescribeTopicPartitionsRequest.TopicRequest(name="fuzz")],
            cursor=admin.DescribeTopicPartitionsRequest.Cursor(
                topic_name="fuzz", partition_index=0
            ),
        ),
    }


def config_requests() -> dict[Any, Any]:
    """By api key, changes of configs; only checked, but for what random bytes make of them."""
    replaced = admin.AlterConfigsRequest.AlterConfigsResource
    edited = admin.IncrementalAlterConfigsRequest.AlterConfigsResource
    return {
        33: admin.AlterConfigsRequest(
            resources=[
                replaced(
                    resource_type=2,
                    resource_name="fuzz",
                    configs=[replaced.AlterableConfig(name="retention.ms", value="1")],
                )
            ],
            validate_only=True,
        ),
        44: admin.IncrementalAlterConfigsRequest(
            resources=[
                edited(
                    resource_type=2,
                    resource_name="fuzz",
                    configs=[
                        edited.AlterableConfig(
                            name="cleanup.policy", config_operation=2, value="compact"
                        )
                    ],
                )
            ],
            validate_only=True,
        ),
    }


def valid_bodies() -> Iterator[tuple[int, int, bytes]]:
    """(api key, version, body) of a real request of every API, oldest and newest version."""
    topic = CreateTopicsRequest.CreatableTopic(
        name="fuzz", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    messages = {
        2: ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name="fuzz",
                    partitions=[
                        ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                            partition_index=0, timestamp=-1
                        )
                    ],
                )
            ],
        ),
        3: MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="fuzz")]),
        10: FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"]),
        18: ApiVersionsRequest(client_software_name="a", client_software_version="1"),
        19: CreateTopicsRequest(topics=[topic], timeout_ms=100),
        20: DeleteTopicsRequest(topics=[], topic_names=["no-such"], timeout_ms=100),
        22: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
        32: DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=4, resource_name="1", configuration_keys=["log.dirs"]
                )
            ]
        ),
        60: DescribeClusterRequest(),
    }
    messages |= partition_requests() | config_requests()
    for key, message in messages.items():
        for version in {BY_KEY[key].min_version, BY_KEY[key].max_version}:
            yield key, version, bytes(message.encode(version=version))
    parts = [ProducePartition("fuzz", 0, batch_of(3))]
    for version in (3, 11):
        produce = encode_produce_request(ProduceRequest(version, None, -1, 100, parts))
        yield 0, version, b"".join(bytes(part) for part in produce)
    for version in (4, 12, 18):
        fetch = FetchRequest(version, 0, 1, [FetchPartition("fuzz", 0, 0, 1000)])
        yield 1, version, bytes(encode_fetch_request(fetch))


BODIES = list(valid_bodies())


def test_every_prefix_of_every_request(victim: BrokerChild) -> None:
    for key, version, body in BODIES:
        for size_bytes in range(0, len(body), max(1, len(body) // 25)):
            send_and_forget(victim, header(key, version) + body[:size_bytes])
    assert_alive(victim)


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes(victim: BrokerChild, seed: int) -> None:
    randomness = random.Random(seed)
    for key, version, body in BODIES:
        for _ in range(15):
            broken = bytearray(header(key, version) + body)
            for _ in range(randomness.randrange(1, 4)):
                # Behind the header: the request stays one of this API.
                broken[randomness.randrange(8, len(broken))] = randomness.randrange(256)
            send_and_forget(victim, bytes(broken))
    assert_alive(victim)


@given(frame=st.binary(min_size=1, max_size=200))
def test_any_bytes(victim: BrokerChild, frame: bytes) -> None:
    send_and_forget(victim, frame)


@given(
    key_and_version=st.sampled_from(
        [(api.key, version) for api in APIS for version in range(api.max_version + 1)]
    ),
    body=st.binary(max_size=300),
)
def test_any_body(victim: BrokerChild, key_and_version: Any, body: bytes) -> None:
    send_and_forget(victim, header(*key_and_version) + body)


def test_what_is_not_spoken_closes_the_connection(tmp_path: Path) -> None:
    """With a line in the log for each, but only for the first ten a minute."""
    with BrokerChild(tmp_path) as child:
        for key, version in [(0, 99), (0, -1), (1, 99), (3, 99), (999, 0), (-1, 0)] * 4:
            with RawClient(child.host, child.port) as client:
                frame = struct.pack(">hhih", key, version, 1, -1)
                client.socket.sendall(struct.pack(">i", len(frame)) + frame)
                assert client.is_closed_by_broker()
        log = child.stderr()
    assert "api key 999 is not spoken here" in log
    assert log.count("event=connection.refused") == 10


@pytest.mark.parametrize("filler", [b"\x80", b"\xff", b"\x00", b"\x01", b"\x7f"])
@pytest.mark.parametrize(("key", "version"), [(3, 12), (19, 7), (20, 6), (32, 4), (0, 11), (1, 12)])
def test_megabytes_of_one_byte_cost_neither_time_nor_memory(
    victim: BrokerChild, key: int, version: int, filler: bytes
) -> None:
    before, before_s = victim.resident_bytes(), victim.cpu_s()
    for size_bytes in (1_000_000, 20_000_000):
        send_and_forget(victim, header(key, version) + filler * size_bytes)
    assert victim.cpu_s() - before_s < 5
    assert_alive(victim)
    assert victim.resident_bytes() - before < 100 << 20


def test_a_long_list_of_nothing(victim: BrokerChild) -> None:
    """Counts that promise more elements than the request has bytes."""
    for key, version in ((3, 1), (19, 2), (20, 1), (32, 1), (2, 1)):
        prefix = struct.pack(">ib", -1, 0)[: 5 if key == 2 else 0]
        for count in (2**31 - 1, 10**6, -2):
            send_and_forget(victim, header(key, version) + prefix + struct.pack(">i", count))
    assert_alive(victim)
