"""Clients before 0.11 through the socket: what they produce becomes batches, batches become what
they read. Apache Kafka 3.9 gives the same answers (4.x has dropped those versions)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.record.memory_records import MemoryRecords

from pyspark_kafkalog.protocol.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from pyspark_kafkalog.record.batch import BatchHeader, batches, read_header, seal, stamp
from pyspark_kafkalog.record.compression import Codec
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import BUSY_S
from tests.support.present import present
from tests.support.records import CODECS, NOW_MS, batch_of, values_of, whole

# kafka-python reads and writes lz4 in magic 0 only with a package that is not here.
OLD = [
    (magic, codec)
    for magic in (0, 1)
    for codec in ("none", "gzip", "snappy", "lz4")
    if (magic, codec) != (0, "lz4")
]
TEXT = [(b"key", b"value-%d " % number * 20) for number in range(5)]
LONG_MS = 20_000


def magic_of(version: int) -> int:
    """What a Fetch of this version brings."""
    return 0 if version < 2 else 1 if version < 4 else 2


def fetch(
    client: RawClient,
    topic: str,
    offset: int = 0,
    *,
    version: int,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
) -> FetchedPartition:
    ask = FetchPartition(topic, 0, offset, max_bytes)
    (found,) = client.fetch(FetchRequest(version, max_wait_ms, min_bytes, [ask])).partitions
    return found


def formats_of(records: object) -> list[Any]:
    """(magic, codec) of everything in it."""
    return [(each.magic, each.compression_type) for each in MemoryRecords(whole(records))]


def timestamps_of(records: object) -> list[Any]:
    return [record.timestamp for each in MemoryRecords(whole(records)) for record in each]


# Produce.


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("magic", "codec"), OLD)
def test_message_sets_are_kept_as_batches(
    client: RawClient, topic: str, version: int, magic: int, codec: str
) -> None:
    for expected_offset in (0, 5):
        message_set = batch_of(TEXT, magic=magic, codec=codec)
        produced = client.produce(topic, 0, message_set, version=version)
        assert (produced.error_code, produced.base_offset) == (0, expected_offset)
        assert produced.log_append_time_ms == -1
    found = fetch(client, topic, version=11)
    assert formats_of(found.records) == [(2, CODECS[codec])] * 2
    expected = [value for _, value in TEXT] * 2
    assert values_of(found.records) == list(enumerate(expected))
    times = [NOW_MS + number if magic else -1 for number in range(5)]
    assert timestamps_of(found.records) == times * 2
    assert fetch(client, topic, 0, version=11).high_watermark == 10


def test_old_versions_take_batches_too(client: RawClient, topic: str) -> None:
    for version in range(3):
        assert client.produce(topic, 0, batch_of(2), version=version).error_code == 0


@pytest.mark.parametrize("version", [3, 7, 9])
def test_new_versions_take_no_message_sets(client: RawClient, topic: str, version: int) -> None:
    for magic in (0, 1):
        assert client.produce(topic, 0, batch_of(1, magic=magic), version=version).error_code == 87


def test_zstd_is_for_those_who_know_it(client: RawClient, topic: str) -> None:
    batch = batch_of(TEXT, codec="zstd")
    codes = [client.produce(topic, 0, batch, version=version).error_code for version in (3, 6, 7)]
    assert codes == [76, 76, 0]


def test_an_empty_set_appends_nothing(client: RawClient, topic: str) -> None:
    for version in range(3):
        produced = client.produce(topic, 0, b"", version=version)
        assert (produced.error_code, produced.base_offset) == (0, -1)
    assert client.produce(topic + "-missing", 0, b"", version=0).error_code == 3
    assert fetch(client, topic, version=11).high_watermark == 0


def test_refusals(client: RawClient, topic: str) -> None:
    damaged = bytearray(batch_of(3, magic=1))
    damaged[-2] ^= 1
    assert client.produce(topic, 0, bytes(damaged), version=2).error_code == 2
    two = batch_of(TEXT, magic=1, codec="gzip") * 2
    assert client.produce(topic, 0, two, version=2).error_code == 87
    assert client.produce(topic + "-missing", 0, batch_of(1, magic=0), version=0).error_code == 3
    assert fetch(client, topic, version=11).high_watermark == 0


def test_half_a_message_is_not_acknowledged(client: RawClient, topic: str, only_ours: None) -> None:
    """Apache Kafka appends nothing, and says no error."""
    assert client.produce(topic, 0, batch_of(1, magic=0)[:-1], version=0).error_code == 87


def test_one_partition_fails_and_the_others_do_not(
    client: RawClient, create: Callable[..., str]
) -> None:
    name = create(3)
    bad = bytearray(batch_of(1, magic=1))
    bad[-1] ^= 1
    sets = [batch_of(2, magic=1), bytes(bad), batch_of(2, magic=0)]
    parts = [ProducePartition(name, index, each) for index, each in enumerate(sets)]
    body = encode_produce_request(ProduceRequest(2, None, -1, 5000, parts))
    client.send_body(0, 2, b"".join(map(bytes, body)))
    results = decode_produce_response(client.receive_body(0, 2), 2).partitions
    assert [(result.error_code, result.base_offset) for result in results] == [
        (0, 0),
        (2, -1),
        (0, 0),
    ]


def test_order_is_kept_between_converted_and_plain(client: RawClient, topic: str) -> None:
    """Requests in flight on one connection: some are converted in a thread, some are not."""
    large = [(None, b"%06d" % number) for number in range(3000)]
    for number in range(20):
        rows = [(None, b"%d" % number)]
        if number % 2:
            body = produce_body(topic, batch_of(rows), 9)
            client.send_body(0, 9, body)
        else:
            body = produce_body(topic, batch_of([*large, *rows], magic=1), 2)
            client.send_body(0, 2, body)
    offsets = []
    for number in range(20):
        version = 9 if number % 2 else 2
        produced = client.receive_produced(version)
        assert produced.error_code == 0
        offsets.append(produced.base_offset)
    assert offsets == sorted(offsets)
    last = fetch(client, topic, offsets[-1], version=11)
    assert values_of(last.records) == [(offsets[-1], b"19")]


def produce_body(topic: str, records: bytes, version: int, acks: int = -1) -> bytes:
    parts = [ProducePartition(topic, 0, records)]
    request = ProduceRequest(version, None, acks, 5000, parts)
    return b"".join(map(bytes, encode_produce_request(request)))


def test_without_acknowledgement(client: RawClient, topic: str) -> None:
    client.send_body(0, 0, produce_body(topic, batch_of(3, magic=0), 0, acks=0))
    assert client.produce(topic, 0, batch_of(1, magic=0), version=0).base_offset == 3


def test_a_failure_without_acknowledgement_closes_the_connection(
    client: RawClient, topic: str
) -> None:
    damaged = bytearray(batch_of(1, magic=0))
    damaged[-1] ^= 1
    client.send_body(0, 0, produce_body(topic, bytes(damaged), 0, acks=0))
    assert client.is_closed_by_broker()


def test_log_append_time(client: RawClient, create: Callable[..., str]) -> None:
    name = create(**{"message.timestamp.type": "LogAppendTime"})
    for magic, codec in OLD:
        produced = client.produce(name, 0, batch_of(TEXT, magic=magic, codec=codec), version=2)
        assert produced.log_append_time_ms > NOW_MS
        offset, append_time_ms = produced.base_offset, produced.log_append_time_ms
        found = fetch(client, name, offset, version=3)
        for each in MemoryRecords(whole(found.records)):
            records = list(each)
            assert {record.timestamp for record in records} == {append_time_ms}
            assert {record.timestamp_type for record in records} == {1}


def test_max_message_bytes_counts_what_is_stored(
    client: RawClient, create: Callable[..., str]
) -> None:
    """A set of small messages becomes one batch, which may be too large."""
    name = create(**{"max.message.bytes": "1000"})
    rows = [(None, b"x" * 90)] * 20
    assert client.produce(name, 0, batch_of(rows, magic=1), version=2).error_code == 10
    assert client.produce(name, 0, batch_of(rows[:5], magic=1), version=2).error_code == 0
    compressed = batch_of(rows, magic=1, codec="gzip")
    assert client.produce(name, 0, compressed, version=2).error_code == 0


def test_a_bomb_is_refused(client: RawClient, create: Callable[..., str]) -> None:
    """Its megabytes are more than the topic takes, and as a batch they would be stored."""
    name = create(**{"compression.type": "uncompressed", "max.message.bytes": "100000"})
    for magic, version in ((1, 2), (2, 9)):
        bomb = batch_of([(None, bytes(5_000_000))], magic=magic, codec="gzip")
        assert client.produce(name, 0, bomb, version=version).error_code in (2, 10)
    assert fetch(client, name, version=11).high_watermark == 0


# compression.type.


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_chooses_the_codec(
    client: RawClient, create: Callable[..., str], target: str
) -> None:
    name = create(**{"compression.type": target})
    for codec in CODECS:
        assert client.produce(name, 0, batch_of(TEXT, codec=codec)).error_code == 0
    for magic, codec in OLD:
        sent = batch_of(TEXT, magic=magic, codec=codec)
        assert client.produce(name, 0, sent, version=2).error_code == 0
    found = fetch(client, name, version=12)
    expected = 0 if target == "uncompressed" else CODECS[target]
    assert set(formats_of(found.records)) == {(2, expected)}
    values = [value for _, value in TEXT] * (len(CODECS) + len(OLD))
    assert values_of(found.records) == list(enumerate(values))


def test_the_same_codec_is_kept_byte_for_byte(
    client: RawClient, create: Callable[..., str]
) -> None:
    name = create(**{"compression.type": "gzip", "compression.gzip.level": "9"})
    sent = batch_of(TEXT, codec="gzip")
    client.produce(name, 0, sent)
    stored = whole(fetch(client, name, version=11).records)
    assert (stored[:12], stored[16:]) == (sent[:12], sent[16:])  # but for the leader epoch


def test_idempotence_survives_recompression(client: RawClient, create: Callable[..., str]) -> None:
    name = create(**{"compression.type": "zstd"})
    sent = [batch_of(TEXT, codec="gzip", producer=(9_000_077, 0, first)) for first in (0, 5)]
    assert [client.produce(name, 0, each).base_offset for each in sent] == [0, 5]
    again = client.produce(name, 0, sent[0])
    assert (again.error_code, again.base_offset) == (0, 0)
    gap = batch_of(TEXT, codec="gzip", producer=(9_000_077, 0, 20))
    assert client.produce(name, 0, gap).error_code == 45
    found = fetch(client, name, version=11)
    assert [header.base_sequence for header in batches(whole(found.records))] == [0, 5]


@pytest.mark.parametrize(
    ("name", "legal", "illegal"),
    [
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10", "-2"]),
        ("compression.lz4.level", ["1", "17"], ["0", "18"]),
        ("compression.zstd.level", ["-131072", "22"], ["23"]),
    ],
)
def test_levels_have_kafkas_ranges(
    client: RawClient, topic_name: str, name: str, legal: list[str], illegal: list[str]
) -> None:
    from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

    def code_of(value: str) -> Any:
        config = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=name, value=value)
        topic = CreateTopicsRequest.CreatableTopic(
            name=topic_name,
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[config],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=True)
        return client.call(request, CreateTopicsResponse, 7).topics[0].error_code

    assert {code_of(value) for value in legal} == {0}
    assert {code_of(value) for value in illegal} == {40}


# Fetch.


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", range(4))
def test_batches_are_sent_as_message_sets(
    client: RawClient, topic: str, version: int, codec: str
) -> None:
    for _ in range(2):
        client.produce(topic, 0, batch_of(TEXT, codec=codec))
    expected = [value for _, value in TEXT]
    # Apache Kafka sends no more bytes than the batches had.
    for offset in (0, 5):
        found = fetch(client, topic, offset, version=version)
        assert (found.error_code, found.high_watermark) == (0, 10)
        assert set(formats_of(found.records)) == {(magic_of(version), CODECS[codec])}
        if (magic_of(version), codec) == (0, "lz4"):
            continue
        assert values_of(found.records)[:5] == list(enumerate(expected, offset))
        if magic_of(version) == 1:
            times = [NOW_MS + number for number in range(5)]
            assert timestamps_of(found.records)[:5] == times


@pytest.mark.parametrize("version", range(4))
def test_an_offset_in_the_middle_of_a_batch(client: RawClient, topic: str, version: int) -> None:
    """Single messages begin there, a compressed set with its first message."""
    client.produce(topic, 0, batch_of(TEXT))
    client.produce(topic, 0, batch_of(TEXT, codec="gzip"))
    found = values_of(fetch(client, topic, 3, version=version).records)
    assert [offset for offset, _ in found] == list(range(3, 10))
    found = values_of(fetch(client, topic, 8, version=version).records)
    assert [offset for offset, _ in found] == list(range(5, 10))


@pytest.mark.parametrize("version", range(4))
def test_old_errors_and_ends(client: RawClient, topic: str, version: int) -> None:
    client.produce(topic, 0, batch_of(2))
    found = fetch(client, topic, 2, version=version)
    assert (found.error_code, found.high_watermark, found.records) == (0, 2, None)
    found = fetch(client, topic, 3, version=version, max_wait_ms=LONG_MS)
    assert (found.error_code, found.high_watermark) == (1, -1)
    found = fetch(client, topic + "-no", version=version, max_wait_ms=LONG_MS)
    assert (found.error_code, found.high_watermark) == (3, -1)


@pytest.mark.parametrize("version", range(3))
def test_a_message_above_the_limit_is_cut_off_before_version_3(
    client: RawClient, topic: str, version: int, only_ours: None
) -> None:
    """Such clients see half a message, and ask for more. (Kafka 3.9 sends something else that is
    cut off.)"""
    client.produce(topic, 0, batch_of([(None, b"x" * 5000)]))
    found = fetch(client, topic, version=version, max_bytes=1000)
    assert len(whole(found.records)) == 1000
    assert values_of(found.records) == []
    found = fetch(client, topic, version=version, max_bytes=6000)
    assert values_of(found.records) == [(0, b"x" * 5000)]


@pytest.mark.parametrize("version", range(3))
def test_a_batch_above_the_limit_is_read_in_parts(
    client: RawClient, topic: str, version: int, only_ours: None
) -> None:
    rows = [(None, b"%04d" % number * 25) for number in range(100)]
    client.produce(topic, 0, batch_of(rows))
    offset, found = 0, []
    while offset < 100:
        some = values_of(fetch(client, topic, offset, version=version, max_bytes=1000).records)
        assert some
        assert some[0][0] == offset
        found += [value for _, value in some]
        offset = some[-1][0] + 1
    assert found == [value for _, value in rows]


def test_the_first_message_is_whole_from_version_3_on(
    client: RawClient, create: Callable[..., str]
) -> None:
    name = create(2)
    for partition in range(2):
        for codec in ("none", "gzip"):
            client.produce(name, partition, batch_of([(None, b"x" * 5000)], codec=codec))
    for offset in (0, 1):
        asks = [FetchPartition(name, partition, offset, 1) for partition in range(2)]
        first, second = client.fetch(FetchRequest(3, 0, 1, asks, max_bytes=10)).partitions
        assert values_of(first.records) == [(offset, b"x" * 5000)]
        assert second.records is None


def test_every_partition_of_an_old_fetch_gets_on(
    client: RawClient, create: Callable[..., str], only_ours: None
) -> None:
    """Before version 3 each partition has its own limit; a batch may be larger than that."""
    name = create(3)
    rows = [(None, b"%04d" % number * 25) for number in range(100)]
    for partition in range(3):
        client.produce(name, partition, batch_of(rows))
    asks = [FetchPartition(name, partition, 50, 1000) for partition in range(3)]
    for found in client.fetch(FetchRequest(2, 0, 1, asks)).partitions:
        assert values_of(found.records)[0] == (50, rows[50][1])
        assert len(present(found.records)) <= 1000


@pytest.mark.parametrize("version", range(4))
def test_zstd_is_refused_to_old_clients(client: RawClient, topic: str, version: int) -> None:
    client.produce(topic, 0, batch_of(TEXT))
    client.produce(topic, 0, batch_of(TEXT, codec="zstd"))
    found = fetch(client, topic, version=version)
    assert [offset for offset, _ in values_of(found.records)] == list(range(5))
    assert fetch(client, topic, 5, version=version).error_code == 76


def test_a_topic_of_zstd_is_refused_before_version_10(
    client: RawClient, create: Callable[..., str]
) -> None:
    name = create(**{"compression.type": "zstd"})
    client.produce(name, 0, batch_of(TEXT))
    codes = [fetch(client, name, version=version).error_code for version in range(13)]
    assert codes == [76] * 10 + [0] * 3


@pytest.mark.parametrize("version", range(4))
def test_an_old_fetch_waits_for_the_next_append(
    connect: Callable[[], RawClient], topic: str, version: int
) -> None:
    consumer, producer = connect(), connect()
    request = FetchRequest(version, LONG_MS, 1, [FetchPartition(topic, 0, 0, 1 << 20)])
    consumer.send_fetch(request)
    producer.produce(topic, 0, batch_of(2, magic=0), version=0)
    (found,) = consumer.receive_fetched(version).partitions
    assert len(values_of(found.records)) == 2


def test_an_old_fetch_gives_up_after_max_wait(client: RawClient, topic: str) -> None:
    began = time.monotonic()
    found = fetch(client, topic, version=0, max_wait_ms=300)
    assert 0.25 < time.monotonic() - began < 5 + BUSY_S
    assert (found.error_code, found.records) == (0, None)


def test_an_old_consumer_that_leaves_while_waiting_harms_nobody(
    connect: Callable[[], RawClient], topic: str
) -> None:
    for _ in range(5):
        consumer = connect()
        request = FetchRequest(0, LONG_MS, 1, [FetchPartition(topic, 0, 0, 1 << 20)])
        consumer.send_fetch(request)
        consumer.socket.close()
    assert connect().produce(topic, 0, batch_of(1)).error_code == 0


# Control batches, which no client can append without transactions: a log with some is adopted.


def marker(offset: int) -> bytes:
    """A batch as the end of a transaction leaves it."""
    batch = bytearray(batch_of([(b"\x00\x00\x00\x01", b"\x00" * 6)]))
    batch[22] |= 0x30
    seal(batch, producer_id=7, producer_epoch=0)
    return placed(batch, offset)


def placed(batch: bytearray | bytes, offset: int) -> bytes:
    batch = bytearray(batch)
    stamp(batch, BatchHeader(batch, 0), offset, 0)
    return bytes(batch)


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Callable[..., RawClient]]:
    """marked(batches) -> a client of a broker whose topic `marked` holds these batches."""
    opened: list[BrokerChild | RawClient] = []

    def open_broker(*log: bytes) -> RawClient:
        directory = tmp_path / "marked-0"
        directory.mkdir()
        (directory / f"{0:020d}.log").write_bytes(b"".join(log))
        child = BrokerChild(tmp_path)
        client = RawClient(child.host, child.port)
        opened.extend([child, client])
        return client

    yield open_broker
    for each in reversed(opened):
        each.__exit__()


@pytest.mark.parametrize("version", range(4))
def test_a_reader_gets_over_control_batches(marked: Callable[..., RawClient], version: int) -> None:
    least_bytes = 250  # the first record fits, some markers do too
    log = [*(marker(offset) for offset in range(20)), placed(batch_of(TEXT), 20)]
    client = marked(*log)
    for max_bytes in (least_bytes, 3 * least_bytes, 1 << 20):
        found = fetch(client, "marked", version=version, max_bytes=max_bytes)
        assert values_of(found.records)[0] == (20, TEXT[0][1])


def test_control_batches_alone_are_waited_behind(marked: Callable[..., RawClient]) -> None:
    client = marked(*(marker(offset) for offset in range(3)))
    began = time.monotonic()
    found = fetch(client, "marked", version=2, max_wait_ms=300)
    assert 0.25 < time.monotonic() - began < 5 + BUSY_S
    assert (found.error_code, found.records, found.high_watermark) == (0, None, 3)


def test_headers_are_left_out(client: RawClient, topic: str) -> None:
    from kafka.record.memory_records import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(2, Codec.GZIP, 1 << 20)
    builder.append(NOW_MS, b"k", b"v" * 300, [("name", b"x")])
    builder.close()
    sent = bytes(builder.buffer())
    assert read_header(sent).codec == Codec.GZIP
    client.produce(topic, 0, sent)
    assert values_of(fetch(client, topic, version=3).records) == [(0, b"v" * 300)]
