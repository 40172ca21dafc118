"""Produce of large batches: appended in threads, and nobody can tell but by the time it takes."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kafka.errors import UnknownTopicOrPartitionError
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tests.broker.api.test_produce import body_of
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import BUSY_S
from tests.support.present import present
from tests.support.records import batch_of, values_of

LARGE_BYTES = 700_000


def large(text: str) -> bytes:
    """A batch of two records, the first of which begins with the text."""
    return batch_of([(b"k", text.encode() + b" " + os.urandom(LARGE_BYTES)), (b"k", b"end")])


def texts_in(client: RawClient, topic: str, partition: int) -> list[tuple[int, str]]:
    """The texts of the partition's large batches, and their offsets."""
    found: list[tuple[int, str]] = []
    offset = 0
    while True:
        ask = FetchPartition(topic, partition, offset, 4 << 20)
        rows = values_of(client.fetch(FetchRequest(11, 0, 1, [ask])).partitions[0].records)
        if not rows:
            return found
        found += [
            (at, present(value)[:20].split(b" ")[0].decode()) for at, value in rows if at % 2 == 0
        ]
        offset = rows[-1][0] + 1


def test_connections_that_write_at_once_are_each_appended_in_order(
    create: Callable[..., str], client: RawClient, connect: Callable[[], RawClient]
) -> None:
    topic = create(3)
    written: list[list[tuple[int, str]]] = [[] for _ in range(3)]

    def write(number: int, own: RawClient) -> None:
        for count in range(12):
            partition = (number + count) % 3
            text = f"{number}-{count}"
            produced = own.produce(topic, partition, large(text))
            assert produced.error_code == 0
            written[partition].append((produced.base_offset, text))

    writers = [threading.Thread(target=write, args=(number, connect())) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for partition in range(3):
        assert texts_in(client, topic, partition) == sorted(written[partition])
    assert sum(map(len, written)) == 48


def test_what_one_connection_sends_ahead_is_appended_in_its_order(
    create: Callable[..., str], client: RawClient
) -> None:
    topic = create(2)
    for count in range(6):
        client.send_body(0, 9, body_of(topic, large(f"a{count}"), large(f"b{count}")))
    for count in range(6):
        results = decode_produce_response(client.receive_body(0, 9), 9).partitions
        assert [(r.partition, r.error_code, r.base_offset) for r in results] == [
            (0, 0, 2 * count),
            (1, 0, 2 * count),
        ]
    assert texts_in(client, topic, 0) == [(2 * count, f"a{count}") for count in range(6)]
    assert texts_in(client, topic, 1) == [(2 * count, f"b{count}") for count in range(6)]


def test_each_part_of_a_request_has_its_own_result(
    create: Callable[..., str], client: RawClient
) -> None:
    topic = create(3)
    damaged = bytearray(large("damaged"))
    damaged[-1] ^= 1
    client.send_body(
        0, 9, body_of(topic, large("one"), bytes(damaged), batch_of(3), large("nowhere"))
    )
    results = decode_produce_response(client.receive_body(0, 9), 9).partitions
    unknown = UnknownTopicOrPartitionError.errno
    assert [(r.partition, r.error_code, r.base_offset) for r in results] == [
        (0, 0, 0),
        (1, 2, -1),
        (2, 0, 0),
        (3, unknown, -1),
    ]
    assert texts_in(client, topic, 0) == [(0, "one")]
    assert texts_in(client, topic, 1) == []


def test_a_fetch_that_waits_is_woken(
    create: Callable[..., str], client: RawClient, connect: Callable[[], RawClient]
) -> None:
    topic = create(2)
    reader = connect()
    asks = [FetchPartition(topic, partition, 0, 1 << 20) for partition in range(2)]
    began = time.monotonic()
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(reader.fetch(FetchRequest(11, 30_000, 1_000_000, asks)))
    )
    waiting.start()
    client.send_body(0, 9, body_of(topic, large("one"), large("two")))
    client.receive_body(0, 9)
    waiting.join()
    assert time.monotonic() - began < 5 + BUSY_S
    assert all(len(part.records or b"") > LARGE_BYTES for part in found[0].partitions)


def test_what_a_client_sent_before_it_left_can_be_read(
    create: Callable[..., str], client: RawClient, connect: Callable[[], RawClient]
) -> None:
    """The answer has nobody to go to; the records are no less there."""
    topic = create(2)
    writer = connect()
    writer.send_body(0, 9, body_of(topic, large("one"), large("two")))
    writer.socket.close()
    asks = [FetchPartition(topic, 1, 0, 1 << 20)]
    fetched = client.fetch(FetchRequest(11, 8_000, LARGE_BYTES, asks)).partitions[0]
    assert len(fetched.records or b"") > LARGE_BYTES
    assert fetched.high_watermark == 2


def test_a_partition_that_comes_twice_is_appended_in_order(
    create: Callable[..., str], client: RawClient, connect: Callable[[], RawClient]
) -> None:
    """A producer never does; whoever does has numbered them."""
    topic = create(2)
    connect().produce(topic, 1, large("of another connection"))
    parts = [ProducePartition(topic, 0, batch) for batch in (batch_of(3), large("second"))]
    request = ProduceRequest(9, None, -1, 5000, parts)
    client.send_body(0, 9, b"".join(bytes(part) for part in encode_produce_request(request)))
    results = decode_produce_response(client.receive_body(0, 9), 9).partitions
    assert [result.base_offset for result in results] == [0, 3]


def test_a_large_batch_is_before_a_small_one_that_follows_it_in_a_request(
    create: Callable[..., str], client: RawClient, connect: Callable[[], RawClient]
) -> None:
    """Appended in a thread, it would have to be first by luck."""
    topic = create(2)
    other = connect()
    for first in range(0, 15, 3):
        other.produce(topic, 1, large("of another connection"))
        parts = [ProducePartition(topic, 0, batch) for batch in (large("first"), batch_of(1))]
        request = ProduceRequest(9, None, -1, 5000, parts)
        client.send_body(0, 9, b"".join(bytes(part) for part in encode_produce_request(request)))
        results = decode_produce_response(client.receive_body(0, 9), 9).partitions
        assert [result.base_offset for result in results] == [first, first + 2]


def test_a_broker_that_stops_finishes_and_answers_what_it_has_begun(tmp_path: Path) -> None:
    """The disk takes a while: a producer that hears nothing sends everything again."""
    with BrokerChild(tmp_path, module="tests.broker.api.slow_disk") as child:
        with RawClient(child.host, child.port) as one, RawClient(child.host, child.port) as two:
            create_partitions(one, "t", 3)
            one.produce("t", 2, large("of another connection"))
            two.send_body(0, 9, body_of("t", large("slow"), batch_of(3)))
            assert present(child.process.stdout).readline() == b"writing\n"
            child.process.send_signal(signal.SIGTERM)
            results = decode_produce_response(two.receive_body(0, 9), 9).partitions
            assert [(r.error_code, r.base_offset) for r in results] == [(0, 0), (0, 0)]
        assert child.wait() == 0
    with BrokerChild(tmp_path) as again, RawClient(again.host, again.port) as client:
        asks = [FetchPartition("t", partition, 0, 1) for partition in range(2)]
        fetched = client.fetch(FetchRequest(11, 0, 1, asks)).partitions
        assert [part.high_watermark for part in fetched] == [2, 3]


def create_partitions(client: RawClient, name: str, count: int) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
    assert client.call(request, CreateTopicsResponse, 7).topics[0].error_code == 0
