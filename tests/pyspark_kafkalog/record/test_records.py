"""Records of magic 2 one by one: Kafka's own bytes, kafka-python's reader, and nonsense."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import (
    CorruptRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
)
from kafka.record.memory_records import MemoryRecords

from pyspark_kafkalog.record.batch import HEADER_BYTES, BatchHeader, read_header
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.records import Record, build_batch, read_records, varint
from tests.pyspark_kafkalog.record.kafka_golden import BASE_MS, GOLDEN, Golden, row_of

LIMIT = 1 << 20
BATCHES = [golden for golden in GOLDEN if golden.magic == 2]

times = st.one_of(st.just(-1), st.integers(0, 2**42))
rows = st.lists(
    st.tuples(times, st.none() | st.binary(max_size=300), st.none() | st.binary(max_size=9000)),
    min_size=1,
    max_size=30,
)


def read(batch: bytes | bytearray) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [row_of(record) for record in read_records(batch, read_header(batch), LIMIT)]


@pytest.mark.parametrize("golden", BATCHES, ids=str)
def test_kafkas_batches_are_read(golden: Golden) -> None:
    assert read(golden.data) == golden.rows


@given(rows, st.sampled_from(Codec))
def test_kafka_python_reads_what_is_built(
    contents: list[tuple[int, bytes | None, bytes | None]], codec: Codec
) -> None:
    expected = [(number, *row) for number, row in enumerate(contents)]
    batch = build_batch((Record(7, *row) for row in contents), codec)
    (found,) = MemoryRecords(bytes(batch))
    assert found.validate_crc()
    assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == expected
    assert read(batch) == expected
    header = read_header(batch)
    assert header.codec == codec
    assert header.max_timestamp_ms == max(timestamp_ms for timestamp_ms, _, _ in contents)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(number: int) -> None:
    encoded = varint(number)
    assert len(encoded) <= 10
    value = sum((byte & 0x7F) << (7 * index) for index, byte in enumerate(encoded))
    assert (value >> 1) ^ -(value & 1) == number


def test_headers_are_passed_over() -> None:
    from kafka.record.memory_records import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(2, 0, 1 << 20)
    for number in range(3):
        builder.append(BASE_MS, b"k", b"%d" % number, [("header", b"x" * 200), ("null", None)])
    builder.close()
    expected = [(number, BASE_MS, b"k", b"%d" % number) for number in range(3)]
    assert read(bytes(builder.buffer())) == expected


def test_records_that_exceed_the_limit() -> None:
    many = (Record(0, 0, None, b"x" * 100) for _ in range(100))
    with pytest.raises(MessageSizeTooLargeError):
        build_batch(many, Codec.GZIP, max_plain_bytes=5000)


def test_a_timestamp_before_time() -> None:
    with pytest.raises(InvalidTimestampError):
        build_batch([Record(0, -2, None, b"")], Codec.NONE)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = build_batch([Record(0, 0, None, bytes(10 * LIMIT))], Codec.GZIP)
    assert len(bomb) < LIMIT // 10
    with pytest.raises(CorruptRecordError):
        read(bomb)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_flipped_bits_and_cuts_give_records_or_corruption(codec: str) -> None:
    """Whatever the bytes are: behind a right CRC a producer may put anything."""
    (golden,) = (each for each in BATCHES if each.codec == codec and not each.append_time)
    for position in range(HEADER_BYTES - 8, len(golden.data)):
        for bit in range(8):
            damaged = bytearray(golden.data)
            damaged[position] ^= 1 << bit
            harmless_or_corrupt(damaged, BatchHeader(damaged, 0))
        cut = golden.data[:position]
        if len(cut) >= HEADER_BYTES:
            header = BatchHeader(cut, 0)
            header.size_bytes = len(cut)
            harmless_or_corrupt(cut, header)


def harmless_or_corrupt(batch: bytearray | bytes, header: BatchHeader) -> None:
    with contextlib.suppress(CorruptRecordError):
        found = list(read_records(batch, header, LIMIT))
        assert all(0 <= record.offset - header.base_offset <= 6 for record in found)
