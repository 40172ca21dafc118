"""Fetch: whole batches, limits, waiting, and the ways out of a wait."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from pyspark_kafkalog.protocol.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import BUSY_S
from tests.support.records import batch_of, values_of, whole

LONG_MS = 20_000


def fetch(
    client: RawClient,
    *asks: FetchPartition,
    version: int = 11,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    **fields: Any,
) -> list[FetchedPartition]:
    request = FetchRequest(version, max_wait_ms, min_bytes, list(asks), **fields)
    return client.fetch(request).partitions


def send_fetch(
    client: RawClient, *asks: FetchPartition, max_wait_ms: int = LONG_MS, min_bytes: int = 1
) -> None:
    request = FetchRequest(11, max_wait_ms, min_bytes, list(asks))
    client.send_fetch(request)


def receive_fetch(client: RawClient) -> list[FetchedPartition]:
    return client.receive_fetched(11).partitions


def ask(
    topic: str, offset: int = 0, partition: int = 0, max_bytes: int = 1 << 20, epoch: int = -1
) -> FetchPartition:
    return FetchPartition(topic, partition, offset, max_bytes, current_leader_epoch=epoch)


@pytest.mark.parametrize("version", range(4, 13))
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_every_version(client: RawClient, topic: str, version: int, isolation_level: int) -> None:
    for _ in range(3):
        client.produce(topic, 0, batch_of(2))
    (found,) = fetch(client, ask(topic), version=version, isolation_level=isolation_level)
    assert (found.topic, found.partition, found.error_code) == (topic, 0, 0)
    assert found.high_watermark == 6
    assert found.last_stable_offset == 6
    assert [offset for offset, _ in values_of(found.records)] == list(range(6))
    assert found.aborted == []
    if version >= 5:
        assert found.log_start_offset == 0


def test_an_offset_in_the_middle_of_a_batch_gets_all_of_it(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(5))
    client.produce(topic, 0, batch_of(5))
    (found,) = fetch(client, ask(topic, 3))
    assert [offset for offset, _ in values_of(found.records)] == list(range(10))
    (found,) = fetch(client, ask(topic, 7))
    assert [offset for offset, _ in values_of(found.records)] == list(range(5, 10))


def test_the_first_batch_is_whole_whatever_the_limits(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of([(None, b"x" * 5000)]))
    client.produce(topic, 0, batch_of([(None, b"y" * 5000)]))
    for limits in ({"max_bytes": 1}, {"max_bytes": 1 << 20}):
        (found,) = fetch(client, ask(topic, max_bytes=1), **limits)
        assert values_of(found.records) == [(0, b"x" * 5000)]


def test_limits_cut_between_partitions(client: RawClient, create: Callable[..., str]) -> None:
    name = create(2)
    for partition in range(2):
        client.produce(name, partition, batch_of([(None, b"x" * 5000)]))
    asks = [ask(name, partition=partition) for partition in range(2)]
    first, second = fetch(client, *asks, max_bytes=100)
    assert len(values_of(first.records)) == 1
    assert values_of(second.records) == []
    assert second.high_watermark == 1
    first, second = fetch(client, *asks, max_bytes=100_000)
    assert len(values_of(first.records)) == len(values_of(second.records)) == 1


def test_max_bytes_of_the_partition_cuts(client: RawClient, topic: str) -> None:
    batch = batch_of([(None, b"x" * 1000)])
    for _ in range(10):
        client.produce(topic, 0, batch)
    (found,) = fetch(client, ask(topic, max_bytes=len(batch) * 3 + 10))
    assert len(whole(found.records)) == len(batch) * 3 + 10
    assert len(values_of(found.records)) == 3


def test_at_the_end_there_is_nothing(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(2))
    (found,) = fetch(client, ask(topic, 2))
    assert (found.error_code, found.high_watermark, found.records) == (0, 2, None)


@pytest.mark.parametrize("offset", [-1, -5, 3, 2**62])
def test_an_offset_out_of_range(client: RawClient, topic: str, offset: int) -> None:
    client.produce(topic, 0, batch_of(2))
    (found,) = fetch(client, ask(topic, offset), max_wait_ms=LONG_MS)
    assert (found.error_code, found.high_watermark) == (1, -1)


def test_an_unknown_topic_or_partition(client: RawClient, topic: str) -> None:
    for unknown in (ask(topic + "-no"), ask(topic, partition=9), ask(topic, partition=-1)):
        (found,) = fetch(client, unknown, max_wait_ms=LONG_MS)
        assert (found.error_code, found.high_watermark) == (3, -1)


def test_a_failing_partition_ends_the_wait_of_all(
    client: RawClient, create: Callable[..., str]
) -> None:
    name = create(2)
    empty, beyond = fetch(client, ask(name), ask(name, 100, partition=1), max_wait_ms=LONG_MS)
    assert (empty.error_code, beyond.error_code) == (0, 1)


def test_a_missing_partition_does_not_end_the_wait_of_others(
    connect: Callable[[], RawClient], topic: str
) -> None:
    consumer, producer = connect(), connect()
    send_fetch(consumer, ask(topic + "-no"), ask(topic))
    # Two appends: an answer sent before the first would hold no record.
    for _ in range(2):
        producer.produce(topic, 0, batch_of(1))
    answers = {answer.topic: answer for answer in receive_fetch(consumer)}
    assert answers[topic + "-no"].error_code == 3
    assert values_of(answers[topic].records)


def test_leader_epochs_are_fenced(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch_of(1))
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    metadata = client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
    epoch = metadata.topics[0].partitions[0].leader_epoch
    assert fetch(client, ask(topic, epoch=epoch))[0].error_code == 0
    assert fetch(client, ask(topic, epoch=epoch + 1))[0].error_code == 75
    if epoch > 0:
        assert fetch(client, ask(topic, epoch=epoch - 1))[0].error_code == 74


def test_a_fetch_waits_for_the_next_append(connect: Callable[[], RawClient], topic: str) -> None:
    consumer, producer = connect(), connect()
    send_fetch(consumer, ask(topic))
    producer.produce(topic, 0, batch_of(2))
    (found,) = receive_fetch(consumer)
    assert len(values_of(found.records)) == 2


def test_a_fetch_waits_for_min_bytes(connect: Callable[[], RawClient], topic: str) -> None:
    consumer, producer = connect(), connect()
    batch = batch_of([(None, b"x" * 1000)])
    send_fetch(consumer, ask(topic), min_bytes=len(batch) * 3)
    for expected in range(3):
        assert producer.produce(topic, 0, batch).base_offset == expected
    (found,) = receive_fetch(consumer)
    assert len(values_of(found.records)) == 3


def test_a_fetch_gives_up_after_max_wait(client: RawClient, topic: str) -> None:
    began = time.monotonic()
    (found,) = fetch(client, ask(topic), max_wait_ms=300)
    assert 0.25 < time.monotonic() - began < 5 + BUSY_S
    assert (found.error_code, found.records) == (0, None)


def test_a_full_answer_waits_for_no_more(client: RawClient, topic: str) -> None:
    """As min_bytes cannot be reached: max_bytes is less."""
    for _ in range(5):
        client.produce(topic, 0, batch_of([(None, b"." * 1000)]))
    began = time.monotonic()
    fetch(client, ask(topic), max_wait_ms=LONG_MS, min_bytes=4000, max_bytes=2500)
    assert time.monotonic() - began < LONG_MS / 2000


def test_a_fetch_of_many_partitions_is_woken_by_any(
    connect: Callable[[], RawClient], create: Callable[..., str]
) -> None:
    name = create(5)
    consumer, producer = connect(), connect()
    send_fetch(consumer, *(ask(name, partition=partition) for partition in range(5)))
    producer.produce(name, 3, batch_of(1))
    found = receive_fetch(consumer)
    assert [len(values_of(each.records)) for each in found] == [0, 0, 0, 1, 0]


def test_many_waiting_fetches_are_all_woken(connect: Callable[[], RawClient], topic: str) -> None:
    consumers = [connect() for _ in range(20)]
    for consumer in consumers:
        send_fetch(consumer, ask(topic))
    connect().produce(topic, 0, batch_of(1))
    for consumer in consumers:
        assert len(values_of(receive_fetch(consumer)[0].records)) == 1


def test_requests_behind_a_waiting_fetch_are_answered_after_it(
    connect: Callable[[], RawClient], topic: str
) -> None:
    client, producer = connect(), connect()
    send_fetch(client, ask(topic))
    client.send_body(3, 1, bytes(MetadataRequest(topics=[]).encode(version=1)))
    producer.produce(topic, 0, batch_of(1))
    assert len(values_of(receive_fetch(client)[0].records)) == 1
    assert MetadataResponse.decode(client.receive_body(3, 1), version=1).brokers


def test_deletion_ends_a_wait(
    connect: Callable[[], RawClient], topic: str, only_ours: None
) -> None:
    consumer, admin = connect(), connect()
    send_fetch(consumer, ask(topic))
    request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=60_000)
    assert admin.call(request, DeleteTopicsResponse, 5).responses[0].error_code == 0
    assert receive_fetch(consumer)[0].error_code == 3


def test_a_consumer_that_leaves_while_waiting_harms_nobody(
    connect: Callable[[], RawClient], topic: str
) -> None:
    for _ in range(10):
        consumer = connect()
        send_fetch(consumer, ask(topic))
        consumer.socket.close()
    assert connect().produce(topic, 0, batch_of(1)).error_code == 0


def test_nothing_asked(client: RawClient) -> None:
    assert fetch(client, max_wait_ms=LONG_MS) == []


def test_a_large_log_comes_through_unharmed(tmp_path: Path) -> None:
    """Several segments, answers larger than any socket buffer, offsets without gaps."""
    properties = {
        "log.segment.bytes": str(1 << 20),
        "log.index.interval.bytes": "10000",
    }
    row = (None, bytes(range(256)) * 400)
    with (
        BrokerChild(tmp_path, properties) as child,
        RawClient(child.host, child.port) as client,
    ):
        wanted = MetadataRequest.MetadataRequestTopic(name="large")
        client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
        for _ in range(40):
            assert client.produce("large", 0, batch_of([row, row])).error_code == 0
        offset = 0
        while offset < 80:
            (found,) = fetch(client, ask("large", offset, max_bytes=3 << 20))
            for record_offset, value in values_of(found.records):
                assert (record_offset, value) == (offset, row[1])
                offset += 1
        assert child.stop() == 0
        assert len(list((tmp_path / "large-0").glob("*.log"))) > 5


def test_an_answer_is_no_larger_than_the_broker_allows(tmp_path: Path) -> None:
    with (
        BrokerChild(tmp_path, {"fetch.max.bytes": "2000", "num.partitions": "3"}) as child,
        RawClient(child.host, child.port) as client,
    ):
        wanted = MetadataRequest.MetadataRequestTopic(name="t")
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
        assert client.call(request, MetadataResponse, 9).topics[0].error_code == 0
        batch = batch_of([(None, b"." * 700)])
        for partition in range(3):
            for _ in range(3):
                client.produce("t", partition, batch)
        asks = [FetchPartition("t", partition, 0, 1 << 20) for partition in range(3)]
        found = client.fetch(FetchRequest(11, 0, 1, asks, 1 << 30)).partitions
        assert sum(len(part.records or b"") for part in found) == 2000
