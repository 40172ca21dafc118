"""Message sets: Kafka's own bytes, kafka-python's reader and writer, and what hostile ones do."""

import contextlib
import gzip
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import (
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedCompressionTypeError,
)
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.message_set import (
    append_message,
    append_wrapper,
    messages,
    records_of,
)
from pyspark_kafkalog.record.records import Record
from tests.pyspark_kafkalog.record.kafka_golden import BASE_MS, GOLDEN, Golden, row_of

LIMIT = 1 << 20
SETS = [golden for golden in GOLDEN if golden.magic < 2]
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]

contents = st.lists(
    st.tuples(
        st.integers(0, 2**42),
        st.none() | st.binary(max_size=300),
        st.none() | st.binary(max_size=40_000),
    ),
    min_size=1,
    max_size=20,
)
magics = st.sampled_from([0, 1])
codecs = st.sampled_from(OLD_CODECS)


def read(
    data: bytes | bytearray, limit: int = LIMIT
) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [row_of(record) for message in messages(data) for record in records_of(message, limit)]


def write(
    records: list[Record] | tuple[Record, ...],
    magic: int,
    codec: Codec,
    *,
    append_time: bool = False,
) -> bytes:
    out = bytearray()
    if codec == Codec.NONE:
        for record in records:
            append_message(out, magic, record, 0x08 if append_time else 0)
    else:
        append_wrapper(out, magic, codec, iter(records), append_time=append_time)
    return bytes(out)


def plain(*records: Record, magic: int = 1) -> bytes:
    return write(records, magic, Codec.NONE)


def wrapped(inner: bytes | None, magic: int = 1, codec: int = Codec.GZIP, offset: int = 0) -> bytes:
    """A wrapper of any bytes."""
    value = inner if inner is None else gzip.compress(inner)
    out = bytearray()
    append_message(out, magic, Record(offset, BASE_MS, None, value), codec)
    return bytes(out)


@pytest.mark.parametrize("golden", SETS, ids=str)
def test_kafkas_sets_are_read(golden: Golden) -> None:
    assert read(golden.data) == golden.rows


@pytest.mark.parametrize("golden", SETS, ids=str)
def test_what_is_written_is_kafkas(golden: Golden) -> None:
    """Plain sets byte by byte; compressed ones but for how well they are compressed."""
    codec = Codec.of(golden.codec)
    records = [Record(*row) for row in golden.rows]
    written = write(records, golden.magic, codec, append_time=golden.append_time)
    if codec == Codec.NONE:
        assert written == golden.data
        return
    (ours,), (kafkas,) = messages(written), messages(golden.data)
    fields = ("offset", "magic", "attributes", "timestamp_ms", "key")
    assert [getattr(ours, name) for name in fields] == [getattr(kafkas, name) for name in fields]
    assert read(written) == golden.rows
    if codec == Codec.LZ4:
        assert ours.value is not None
        assert kafkas.value is not None
        assert bytes(ours.value[:7]) == bytes(kafkas.value[:7])


@given(contents, magics, codecs, st.integers(0, 2**40), st.integers(1, 3))
def test_what_is_written_is_read(
    rows: list[tuple[int, bytes | None, bytes | None]],
    magic: int,
    codec: Codec,
    base_offset: int,
    step: int,
) -> None:
    records = [Record(base_offset + step * index, *row) for index, row in enumerate(rows)]
    found = read(write(records, magic, codec))
    assert [row[0] for row in found] == [record.offset for record in records]
    assert [row[2:] for row in found] == [(record.key, record.value) for record in records]
    if magic:
        assert [row[1] for row in found] == [record.timestamp_ms for record in records]


@given(contents, magics, st.sampled_from(OLD_CODECS[:3]))
def test_kafka_python_reads_what_is_written(
    rows: list[tuple[int, bytes | None, bytes | None]], magic: int, codec: Codec
) -> None:
    records = [Record(40 + index, *row) for index, row in enumerate(rows)]
    found = []
    for batch in MemoryRecords(write(records, magic, codec)):
        assert batch.validate_crc()
        for each in batch:
            assert each.validate_crc()
            found.append(
                (each.offset, each.timestamp if magic else each.offset, each.key, each.value)
            )
    assert found == [
        (record.offset, record.timestamp_ms if magic else record.offset, record.key, record.value)
        for record in records
    ]


@given(contents, magics, st.sampled_from(OLD_CODECS[:3]))
def test_what_kafka_python_writes_is_read(
    rows: list[tuple[int, bytes | None, bytes | None]], magic: int, codec: Codec
) -> None:
    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 30)
    for index, (timestamp_ms, key, value) in enumerate(rows):
        builder.append(index, timestamp_ms, key, value)
    found = read(bytes(builder.build()))
    times = [timestamp_ms if magic else -1 for timestamp_ms, _, _ in rows]
    assert found == [
        (index, times[index], key, value) for index, (_, key, value) in enumerate(rows)
    ]


def test_a_cut_off_last_message_is_left_out() -> None:
    whole = plain(Record(0, BASE_MS, None, b"one"), Record(1, BASE_MS, None, b"two"))
    first_bytes = len(whole) // 2
    for size_bytes in range(first_bytes, len(whole)):
        assert [row[0] for row in read(whole[:size_bytes])] == [0]


def test_a_wrapper_at_offset_0_counts_from_0() -> None:
    """Some producers do not number the wrappers that they send."""
    inner = plain(*(Record(index, BASE_MS, None, b"x") for index in range(3)))
    assert [row[0] for row in read(wrapped(inner))] == [0, 1, 2]


def test_a_wrapper_below_its_own_messages() -> None:
    inner = plain(Record(0, BASE_MS, None, b"x"), Record(9, BASE_MS, None, b"x"))
    with pytest.raises(InvalidRecordError):
        read(wrapped(inner, offset=5))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "inner",
    [
        None,
        b"",
        plain(Record(0, 0, None, b"x"), magic=0) + plain(Record(1, 0, None, b"x"), magic=1),
        wrapped(plain(Record(0, 0, None, b"x"), magic=0), magic=0),
        wrapped(plain(Record(0, 0, None, b"x"), magic=1), magic=1),
    ],
    ids=["null", "empty", "two formats", "nested, magic 0", "nested, magic 1"],
)
def test_wrappers_that_are_none(inner: bytes | None, magic: int) -> None:
    with pytest.raises(InvalidRecordError):
        read(wrapped(inner, magic=magic))


def test_zstd_and_unknown_codecs() -> None:
    for codec in (4, 5, 7):
        with pytest.raises(UnsupportedCompressionTypeError):
            read(wrapped(b"", codec=codec))


@pytest.mark.parametrize("codec", OLD_CODECS[1:])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_bomb_is_not_unpacked(magic: int, codec: Codec) -> None:
    bomb = write([Record(0, 0, None, bytes(8 * LIMIT))], magic, codec)
    assert len(bomb) < LIMIT // 2
    with pytest.raises(CorruptRecordError):
        read(bomb)
    ((_, _, _, value),) = read(bomb, limit=9 * LIMIT)
    assert value == bytes(8 * LIMIT)


@pytest.mark.parametrize("golden", SETS, ids=str)
def test_any_flipped_bit_is_found_but_in_offset_and_size(golden: Golden) -> None:
    whole = golden.data[: next(messages(golden.data)).size_bytes]
    for position in range(16, len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                read(damaged)


@pytest.mark.parametrize("magic", [0, 1])
def test_sizes_that_lie_behind_a_right_crc(magic: int) -> None:
    whole = plain(Record(5, BASE_MS, b"key", b"value"), magic=magic)
    lengths = (-(2**31), -7, -1, 0, 3, 100, 2**31 - 1)
    for position in range(8, len(whole) - 3):
        for length in lengths:
            damaged = bytearray(whole)
            struct.pack_into(">i", damaged, position, length)
            if position >= 16:
                struct.pack_into(">I", damaged, 12, zlib.crc32(damaged[16:]))
            _harmless(damaged)
            _harmless(wrapped(bytes(damaged), magic=magic))


def _harmless(data: bytearray | bytes) -> None:
    """Records or a refusal that clients know, nothing else."""
    refusals = CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError
    with contextlib.suppress(*refusals):
        read(data)


@given(st.binary(max_size=400))
def test_garbage(data: bytes) -> None:
    _harmless(data)
    _harmless(wrapped(data))
