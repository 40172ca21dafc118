"""Requests that are well-formed and mean harm: many elements, bombs, names of other files."""

import contextlib
import gzip
import select
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import WriteTxnMarkersRequest

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafkalog.record.batch import HEADER_BYTES, seal
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import BUSY_S
from tests.support.records import NOW_MS, batch_of

TOPIC = "hostile"
NAMES_OF_OTHER_FILES = ["../up", "..", ".", "a/b", "/tmp/x", "a\\b", "a\0b", "", "é", "x" * 250]


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerChild]:
    directory = tmp_path_factory.mktemp("parent") / "data"
    with BrokerChild(directory, {"num.partitions": "50"}) as child:
        with RawClient(child.host, child.port) as client:
            create(client, TOPIC, partitions=50)
        yield child
        assert "event=request.failed" not in child.stderr()
        assert child.stop() == 0
        assert [path.name for path in directory.parent.iterdir()] == ["data"]


@pytest.fixture
def client(victim: BrokerChild) -> Iterator[RawClient]:
    with RawClient(victim.host, victim.port, timeout_s=30) as client:
        yield client


def create(client: RawClient, *names: str, partitions: int = 1, factor: int = 1) -> Any:
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=factor,
            assignments=[],
            configs=[],
        )
        for name in names
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
    return client.call(request, CreateTopicsResponse, 7).topics


def string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def many(count: int) -> Iterator[tuple[int, int, bytes]]:
    """(api key, version, body) of requests of `count` elements, the smallest there are."""
    names = b"".join(string(b"%06d" % number) for number in range(count))
    array = struct.pack(">i", count)
    yield 3, 1, array + string(b"hostile") * count
    yield 3, 4, array + names + b"\0"
    yield 32, 1, array + (b"\x04" + string(b"1") + struct.pack(">i", -1)) * count + b"\0"
    yield 32, 1, struct.pack(">i", 1) + b"\x04" + string(b"1") + array + names + b"\0"
    ask = struct.pack(">iq", 0, -1)
    yield 2, 1, struct.pack(">ii", -1, 1) + string(b"hostile") + array + ask * count
    topics = b"".join(
        string(b"%06d" % number) + struct.pack(">ihii", 1, 9, 0, 0) for number in range(count)
    )
    yield 19, 0, array + topics + struct.pack(">i", 10)
    yield 20, 0, array + names + struct.pack(">i", 10)
    wait = struct.pack(">iiiib", -1, 100, 0, 1 << 30, 0) + struct.pack(">i", 1)
    yield 1, 4, wait + string(b"hostile") + array + struct.pack(">iqi", 0, 0, 100) * count
    acks = struct.pack(">hhi", -1, 1, 10) + struct.pack(">i", 1)
    yield 0, 3, acks + string(b"hostile") + array + struct.pack(">ii", 0, -1) * count


@pytest.mark.parametrize("number", range(9))
def test_no_request_keeps_the_broker_from_others_for_long(victim: BrokerChild, number: int) -> None:
    for count, answers in ((10_000, True), (100_000, False)):
        key, version, body = list(many(count))[number]
        before_s = victim.cpu_s()
        with (
            RawClient(victim.host, victim.port, timeout_s=30) as client,
            contextlib.suppress(ConnectionError, EOFError),
        ):
            client.send_body(key, version, body)
            client.receive_body(key, version)
            assert answers, "so large a request should close its connection"
        assert victim.cpu_s() - before_s < 3
    assert victim.resident_bytes() < 200 << 20


def test_others_are_served_while_many_markers_are_written(
    victim: BrokerChild, client: RawClient, topic: str
) -> None:
    marker_class = WriteTxnMarkersRequest.WritableTxnMarker
    place = marker_class.WritableTxnMarkerTopic(name=topic, partition_indexes=[0] * 19_000)
    marker = marker_class(
        producer_id=1,
        producer_epoch=0,
        transaction_result=True,
        topics=[place],
        coordinator_epoch=0,
        transaction_version=0,
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    with RawClient(victim.host, victim.port, timeout_s=30) as other:
        client.send_body(27, 1, bytes(request.encode(version=1)))
        other.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        assert not select.select([client.socket], [], [], 0)[0]
        client.receive_body(27, 1)


def test_tagged_fields_without_end(victim: BrokerChild) -> None:
    for key, version in ((0, 9), (1, 12), (3, 12)):
        with RawClient(victim.host, victim.port) as client:
            before_s = victim.cpu_s()
            head = struct.pack(">hhih", key, version, 1, -1)
            frame = head + b"\xff\xff\x7f" + b"\0\0" * 2_000_000
            client.socket.sendall(struct.pack(">i", len(frame)) + frame)
            assert client.is_closed_by_broker()
            assert victim.cpu_s() - before_s < 1


def test_what_is_named_often_is_answered_once(client: RawClient) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=TOPIC, configuration_keys=["retention.ms"]
    )
    described = client.call(
        DescribeConfigsRequest(resources=[resource] * 100), DescribeConfigsResponse, 4
    )
    assert len(described.results) == 1
    topic = MetadataRequest.MetadataRequestTopic(name=TOPIC)
    found = client.call(MetadataRequest(topics=[topic] * 100), MetadataResponse, 9).topics
    assert [each.name for each in found] == [TOPIC]


def test_a_null_where_none_may_be_closes_the_connection(victim: BrokerChild) -> None:
    null = struct.pack(">h", -1)
    config = struct.pack(">i", 1) + null + string(b"1")
    for key, version, body in (
        (19, 0, struct.pack(">i", 1) + string(b"x") + struct.pack(">ihi", 1, 1, 0) + config),
        (19, 0, struct.pack(">i", 1) + null + struct.pack(">ihii", 1, 1, 0, 0)),
        (20, 0, struct.pack(">i", 1) + null + struct.pack(">i", 10)),
        (3, 0, struct.pack(">i", 1) + null),
        # A cursor, which need not be, of a topic that must.
        (75, 0, b"\x01" + struct.pack(">i", 1) + b"\x01\0" + struct.pack(">i", 0) + b"\0\0"),
    ):
        with RawClient(victim.host, victim.port) as client:
            client.send_body(key, version, body + struct.pack(">i", 10) * (key == 19))
            assert client.is_closed_by_broker(), (key, version)


@pytest.mark.parametrize("name", NAMES_OF_OTHER_FILES)
def test_names_of_other_files(client: RawClient, name: str) -> None:
    (created,) = create(client, name)
    assert created.error_code == 17
    topic = MetadataRequest.MetadataRequestTopic(name=name)
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
    assert [t.error_code for t in client.call(request, MetadataResponse, 9).topics] == [17]
    assert client.produce(name, 0, batch_of(1)).error_code == 3
    asks = [FetchPartition(name, 0, 0, 100), FetchPartition(TOPIC, -1, 0, 100)]
    fetched = client.fetch(FetchRequest(11, 0, 0, asks)).partitions
    assert all(part.error_code in (3, 100) for part in fetched)  # unknown, by name or id


def test_extremes_of_every_number_in_a_fetch(client: RawClient) -> None:
    for offset in (-(2**63), -1, 2**63 - 1):
        for size in (-(2**31), -1, 0, 2**31 - 1):
            for partition in (-(2**31), 0, 2**31 - 1):
                ask = FetchPartition(TOPIC, partition, offset, size)
                request = FetchRequest(11, -(2**31), size, [ask], max_bytes=size)
                (part,) = client.fetch(request).partitions
                assert part.error_code in (1, 3)


def listed(client: RawClient, timestamp_ms: int, version: int = 7) -> tuple[Any, Any]:
    """(error code, offset) of partition 0."""
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    ask = topic_class.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp_ms, current_leader_epoch=-1
    )
    topic = topic_class(name=TOPIC, partitions=[ask])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
    (found,) = client.call(request, ListOffsetsResponse, version).topics[0].partitions
    return found.error_code, found.offset


def test_extremes_of_a_timestamp(client: RawClient) -> None:
    for timestamp_ms in (-(2**63), -5, 0, 2**63 - 1):
        assert listed(client, timestamp_ms) in [(35, -1), (0, -1), (0, 0)]


def lying_batch(records: bytes, count: int, codec: int = 0) -> bytes:
    """A batch that says it has `count` records; its checksum is right."""
    batch = bytearray(batch_of(1))[:HEADER_BYTES]
    struct.pack_into(">i", batch, 8, HEADER_BYTES - 12 + len(records))
    struct.pack_into(">hi", batch, 21, codec, count - 1)
    struct.pack_into(">qq", batch, 27, NOW_MS, NOW_MS + 10_000)
    struct.pack_into(">i", batch, 57, count)
    batch += records
    seal(batch)
    return bytes(batch)


@pytest.mark.parametrize(
    "records",
    [b"\x01" * 100, b"\x00" * 100, b"\x0b" * 100, b"\xff" * 100, b"\x02" * 100],
    ids=["length -1", "length 0", "length -6", "endless number", "length 1"],
)
def test_records_that_lead_nowhere_end_a_search(client: RawClient, records: bytes) -> None:
    produced = client.produce(TOPIC, 0, lying_batch(gzip.compress(records), 2**31 - 1, codec=1))
    assert produced.error_code == 0
    began = time.monotonic()
    assert listed(client, NOW_MS + 5_000)[0] == 2  # CORRUPT_MESSAGE
    assert time.monotonic() - began < 2 + BUSY_S


def test_a_bomb_is_searched_while_others_are_served(tmp_path: Path) -> None:
    record = b"\x0c\x00\x00\x00\x01\x01\x00"  # length 6: nulls
    plain = record * (3 << 20)
    deflate = zlib.compressobj(9, wbits=31)
    bomb = lying_batch(deflate.compress(plain) + deflate.flush(), len(plain) // 7, codec=1)
    assert len(bomb) < 1 << 20
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        create(client, TOPIC)
        assert client.produce(TOPIC, 0, bomb).error_code == 0
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        ask = topic_class.ListOffsetsPartition(partition_index=0, timestamp=NOW_MS + 5_000)
        topic = topic_class(name=TOPIC, partitions=[ask])
        client.send_body(
            2, 7, bytes(ListOffsetsRequest(replica_id=-1, topics=[topic]).encode(version=7))
        )
        slowest_s = 0.0
        with RawClient(child.host, child.port) as other:
            for _ in range(50):
                began = time.monotonic()
                other.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
                slowest_s = max(slowest_s, time.monotonic() - began)
        assert slowest_s < 1
        assert child.resident_bytes() < 400 << 20
        client.socket.close()
        began = time.monotonic()
        assert child.stop() == 0
        assert time.monotonic() - began < 15


def test_a_fetch_waits_no_longer_than_a_connection_may(tmp_path: Path) -> None:
    with (
        BrokerChild(tmp_path, {"connections.max.idle.ms": "1000"}) as child,
        RawClient(child.host, child.port) as client,
    ):
        create(client, TOPIC)
        ask = FetchPartition(TOPIC, 0, 0, 100)
        began = time.monotonic()
        assert client.fetch(FetchRequest(11, 2**31 - 1, 1, [ask])).partitions[0].error_code == 0
        assert 0.4 < time.monotonic() - began < 3 + BUSY_S
        client.socket.sendall(struct.pack(">i", 100) + b"half")
        assert client.is_closed_by_broker()


def test_directories_that_are_no_logs_become_no_topics(tmp_path: Path) -> None:
    for name in ("..-0", "sp ace-0", "t-07", "t-99999999999", "t-٣", "good-0", ".-0", "-0"):
        (tmp_path / name).mkdir(parents=True)
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        topics = client.call(MetadataRequest(topics=None), MetadataResponse, 9).topics
        assert [(topic.name, len(topic.partitions)) for topic in topics] == [("good", 1)]
        assert child.stop() == 0
