"""ListOffsets: the special timestamps, and real ones."""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from pyspark_kafkalog.record.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, seal
from pyspark_kafkalog.record.compression import Codec, compress
from tests.broker.api.transaction_client import TransactionClient
from tests.support.broker_child import RawClient
from tests.support.records import NOW_MS, batch_of

TOPIC = ListOffsetsRequest.ListOffsetsTopic


def ask(
    client: RawClient,
    topic: str,
    timestamp: int,
    *,
    version: int = 11,
    partition: int = 0,
    isolation: int = 0,
    epoch: int = -1,
    times: int = 1,
    most: int = 10,
) -> Any:
    partitions = [
        TOPIC.ListOffsetsPartition(
            partition_index=partition,
            timestamp=timestamp,
            current_leader_epoch=epoch,
            max_num_offsets=most,
        )
    ] * times
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[TOPIC(name=topic, partitions=partitions)],
    )
    response = client.call(request, ListOffsetsResponse, version)
    return response.topics[0].partitions[0]


def bomb(record_count: int) -> bytes:
    """A batch of a few kilobytes that is many records, none as new as its header says."""
    records = bytes(compress(Codec.ZSTD, bytes([12, 0, 0, 0, 1, 1, 0]) * record_count))
    size_bytes = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(records)
    times = (NOW_MS - 1000, NOW_MS)
    nobody = (-1, -1, -1)
    batch = bytearray(
        HEADER.pack(
            0, size_bytes, -1, 2, 0, Codec.ZSTD, record_count - 1, *times, *nobody, record_count
        )
        + records
    )
    seal(batch)
    return bytes(batch)


def test_a_long_search_holds_up_nobody_else(
    connect: Callable[[], RawClient], topic: str, only_ours: None
) -> None:
    busy, other = connect(), connect()
    assert busy.produce(topic, 0, bomb(3_000_000)).error_code == 0
    partition = TOPIC.ListOffsetsPartition(partition_index=0, timestamp=NOW_MS)
    request = ListOffsetsRequest(topics=[TOPIC(name=topic, partitions=[partition])])
    busy.send_body(2, 7, bytes(request.encode(version=7)))
    busy.socket.setblocking(False)
    for _ in range(3):
        assert ask(other, topic, -1).offset == 3_000_000
        with pytest.raises(BlockingIOError):  # its answer is not there yet
            busy.socket.recv(1)


@pytest.fixture
def filled(client: RawClient, topic: str) -> str:
    """Offsets 0-2 at NOW, 3-5 at NOW + 1000, 6-8 at NOW + 500."""
    for later_ms in (0, 1000, 500):
        client.produce(topic, 0, batch_of(3, timestamp_ms=NOW_MS + later_ms))
    return topic


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize(("timestamp", "offset"), [(-1, 9), (-2, 0)])
def test_latest_and_earliest(
    client: RawClient, filled: str, version: int, timestamp: int, offset: int
) -> None:
    found = ask(client, filled, timestamp, version=version)
    assert (found.error_code, found.offset, found.timestamp) == (0, offset, -1)
    if version >= 4:
        assert found.leader_epoch >= 0


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(-1, 0), (-2, 0), (-4, 0), (-3, -1), (-5, -1), (-6, -1)]
)
def test_an_empty_partition(client: RawClient, topic: str, timestamp: int, offset: int) -> None:
    found = ask(client, topic, timestamp)
    assert (found.error_code, found.offset, found.timestamp) == (0, offset, -1)


@pytest.mark.parametrize(("timestamp", "version"), [(-5, 9), (-5, 11), (-6, 11)])
def test_there_is_no_remote_tier(
    client: RawClient, filled: str, timestamp: int, version: int
) -> None:
    found = ask(client, filled, timestamp, version=version)
    assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)
    assert found.leader_epoch == -1


def test_read_committed(client: RawClient, filled: str) -> None:
    assert ask(client, filled, -1, isolation=1).offset == 9


def test_read_committed_ends_where_a_transaction_is_open(
    client: RawClient, connect: Callable[[], RawClient], filled: str
) -> None:
    producer = TransactionClient(connect(), f"id-of-{filled}")
    producer.init()
    assert producer.produce(filled, b"open", version=12).error_code == 0
    assert ask(client, filled, -1, isolation=0).offset == 10
    assert ask(client, filled, -1, isolation=1).offset == 9
    newest = -3
    for timestamp in (NOW_MS + 1003, newest):
        assert ask(client, filled, timestamp, isolation=0).offset == 9
        found = ask(client, filled, timestamp, isolation=1)
        assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)
    assert producer.end(True, version=5).error_code == 0
    assert producer.state() == "CompleteCommit"
    assert ask(client, filled, -1, isolation=1).offset == 11
    assert ask(client, filled, NOW_MS + 1003, isolation=1).offset == 9


def test_the_record_with_the_largest_timestamp(client: RawClient, filled: str) -> None:
    found = ask(client, filled, -3)
    assert (found.error_code, found.timestamp) == (0, NOW_MS + 1002)
    assert found.offset == 5


@pytest.mark.parametrize(
    ("after_ms", "offset", "found_ms"),
    [(-5000, 0, 0), (0, 0, 0), (1, 1, 1), (3, 3, 1000), (1001, 4, 1001), (1003, -1, None)],
)
def test_by_time(
    client: RawClient, filled: str, after_ms: int, offset: int, found_ms: int | None
) -> None:
    found = ask(client, filled, NOW_MS + after_ms)
    timestamp = -1 if found_ms is None else NOW_MS + found_ms
    assert (found.error_code, found.offset, found.timestamp) == (0, offset, timestamp)


def test_errors(client: RawClient, topic: str) -> None:
    assert ask(client, topic + "-no", -1).error_code == 3
    assert ask(client, topic, -1, partition=5).error_code == 3
    assert ask(client, topic, -1, epoch=1000).error_code == 75
    assert ask(client, topic, -1, times=2).error_code == 42
    assert ask(client, topic, -1, partition=5).offset == -1


@pytest.mark.parametrize(
    ("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11), (-77, 8)]
)
def test_special_timestamps_of_later_versions(
    client: RawClient, filled: str, timestamp: int, version: int
) -> None:
    found = ask(client, filled, timestamp, version=version)
    assert (found.error_code, found.offset) == (35, -1)


def test_version_0(client: RawClient, filled: str, only_ours: None) -> None:
    assert list(ask(client, filled, -1, version=0).old_style_offsets) == [9, 0]
    for most, offsets in [(2, [9, 0]), (1, [9]), (0, []), (-1, [])]:
        assert list(ask(client, filled, -1, version=0, most=most).old_style_offsets) == offsets
    assert list(ask(client, filled, -2, version=0).old_style_offsets) == [0]
    assert list(ask(client, filled, NOW_MS + 1, version=0).old_style_offsets) == [1]
