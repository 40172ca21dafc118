"""Conversion on its own: what becomes of each format, and what a producer is refused."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import (
    BrokerResponseError,
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    UnsupportedCompressionTypeError,
)
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from broker.config.log import LogConfig
from broker.log.conversion import MessageSet, convert_for_log, message_set_of, needs_conversion
from broker.log.files import FileSlice
from broker.log.validator import AppendRules
from pyspark_kafkalog.record.batch import (
    HEADER_BYTES,
    BatchHeader,
    read_header,
    seal,
    stamp,
    stamp_append_time,
)
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.message_set import append_message, append_wrapper
from pyspark_kafkalog.record.records import Record
from tests.broker.log.batches import NOW_MS, batch

LIMIT = 4 << 20
# Long enough to be compressed: who makes the batches does so only where it pays.
A, B, C, D = (letter * 100 for letter in (b"a", b"b", b"c", b"d"))
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
RECORDS = [
    Record(0, NOW_MS, b"key", b"value"),
    Record(1, NOW_MS + 7, None, b"x" * 5000),
    Record(2, NOW_MS + 3, b"key", None),
    Record(3, NOW_MS + 1, b"", b""),
]

rows = st.lists(
    st.tuples(
        st.integers(0, 2**42), st.none() | st.binary(max_size=50), st.none() | st.binary(max_size=9)
    ),
    min_size=1,
    max_size=20,
)


class InMemory:
    """The part of File that conversion uses."""

    def __init__(self, data: bytes) -> None:
        self.data = bytes(data)

    def pread(self, size_bytes: int, position: int) -> bytes:
        return self.data[position : position + size_bytes]


def slice_of(*batches: memoryview, cut_bytes: int = 0) -> FileSlice:
    data = b"".join(map(bytes, batches))
    return FileSlice(InMemory(data), 0, len(data) - cut_bytes)  # type: ignore[arg-type]


def message_set(records: Sequence[Record], magic: int = 1, codec: Codec = Codec.NONE) -> memoryview:
    out = bytearray()
    if codec == Codec.NONE:
        for record in records:
            append_message(out, magic, record)
    else:
        append_wrapper(out, magic, codec, iter(records), append_time=False)
    return memoryview(out)


def convert(records: memoryview, limit: int = LIMIT, **config: Any) -> memoryview:
    return convert_for_log(records, LogConfig(**config), limit, "t-0", NOW_MS)


def contents(data: memoryview | bytes) -> list[tuple[Any, Any, Any, Any]]:
    """(offset, timestamp, key, value) of every record, as kafka-python reads them."""
    found = []
    for each in MemoryRecords(bytes(data)):
        assert each.validate_crc()
        for record in each:
            found.append((record.offset, record.timestamp, record.key, record.value))
    return found


def at_offset(data: memoryview, base_offset: int) -> memoryview:
    """The batch as a log that put it there keeps it."""
    header = read_header(data)
    stamp(data, header, base_offset, 3)
    return data


def old_set(
    *batches: memoryview,
    magic: int = 1,
    fetch_offset: int = 0,
    max_bytes: int = 1 << 20,
    cut: bool = False,
    **more: int,
) -> MessageSet:
    found = slice_of(*batches, **more)
    return message_set_of(found, magic, fetch_offset, max_bytes, LIMIT, cut=cut)


# Produce.


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_become_one_batch(magic: int, codec: Codec) -> None:
    converted = convert(message_set(RECORDS, magic, codec))
    assert not converted.readonly
    header = read_header(converted)
    assert header.codec == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.max_timestamp_ms == (NOW_MS + 7 if magic else -1)
    expected = [(r.offset, r.timestamp_ms if magic else -1, r.key, r.value) for r in RECORDS]
    assert contents(converted) == expected


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_the_topics_codec_counts(codec: Codec, target: str) -> None:
    converted = convert(message_set(RECORDS, 1, codec), compression_type=target)
    expected = Codec.NONE if target == "uncompressed" else Codec.of(target)
    assert read_header(converted).codec == expected
    assert len(contents(converted)) == len(RECORDS)


@given(rows, st.sampled_from([0, 1]), st.sampled_from(OLD_CODECS), st.booleans())
def test_there_and_back(
    found: list[tuple[int, bytes | None, bytes | None]], magic: int, codec: Codec, cut: bool
) -> None:
    records = [Record(index, *row) for index, row in enumerate(found)]
    sent = message_set(records, magic, codec)
    stored = convert(sent)
    assert bytes(old_set(stored, magic=magic, cut=cut).data) == bytes(sent)


def test_offsets_of_a_producer_do_not_matter() -> None:
    records = [
        record._replace(offset=offset)
        for record, offset in zip(RECORDS, (7, 7, -1, 0), strict=True)
    ]
    assert [row[0] for row in contents(convert(message_set(records)))] == [0, 1, 2, 3]


def test_a_cut_off_last_message_is_left_out() -> None:
    sent = message_set(RECORDS)
    assert len(contents(convert(sent[:-1]))) == len(RECORDS) - 1


def refused(
    error: type[Exception],
    records: memoryview,
    limit: int = LIMIT,
    **config: tuple[str] | int | str,
) -> None:
    with pytest.raises(error) as raised:
        convert(records, limit, **config)
    assert type(raised.value) is error


def test_a_flipped_bit() -> None:
    sent = message_set(RECORDS)
    sent[30] ^= 4
    refused(CorruptRecordError, sent)


def test_a_set_without_a_whole_message() -> None:
    refused(InvalidRecordError, message_set(RECORDS[:1])[:-1])


def test_two_formats_in_one_set() -> None:
    both = bytes(message_set(RECORDS, 0)) + bytes(message_set(RECORDS, 1))
    refused(InvalidRecordError, memoryview(bytearray(both)))


def test_a_wrapper_is_alone_in_its_set() -> None:
    plain, wrapper = bytes(message_set(RECORDS)), bytes(message_set(RECORDS, 1, Codec.GZIP))
    for both in (plain + wrapper, wrapper + plain, wrapper + wrapper):
        refused(InvalidRecordError, memoryview(bytearray(both)))


def test_log_append_time_is_the_brokers_alone() -> None:
    out = bytearray()
    append_message(out, 1, RECORDS[0], attributes=0x08)
    refused(InvalidTimestampError, memoryview(out))


def test_a_negative_timestamp() -> None:
    refused(InvalidTimestampError, message_set([Record(0, -5, None, b"")]))


def test_keyless_records_for_a_compacted_topic() -> None:
    for codec in OLD_CODECS:
        refused(InvalidRecordError, message_set(RECORDS, 1, codec), cleanup_policy=("compact",))
        convert(message_set(RECORDS[:1], 1, codec), cleanup_policy=("compact",))


def test_messages_that_are_too_large() -> None:
    """One message is as sent; all together, as they are stored."""
    big = [Record(0, 0, None, b"x" * 3000)]
    refused(MessageSizeTooLargeError, message_set(big), max_message_bytes=1000)
    many = [Record(index, 0, None, b"x" * 90) for index in range(100)]
    refused(MessageSizeTooLargeError, message_set(many), max_message_bytes=1000)
    convert(message_set(many), max_message_bytes=1000, compression_type="gzip")


@pytest.mark.parametrize("codec", OLD_CODECS[1:])
def test_a_bomb(codec: Codec) -> None:
    bomb = [Record(0, 0, None, bytes(LIMIT))]
    for magic in (0, 1):
        refused(CorruptRecordError, message_set(bomb, magic, codec))
    for target in ("uncompressed", "zstd"):
        data = batch([bytes(LIMIT)], codec=int(codec))
        refused(CorruptRecordError, data, compression_type=target)


# Compression.


# All of a header but attributes, CRC and size.
_KEPT = (
    *("position", "base_offset", "partition_leader_epoch", "magic", "last_offset_delta"),
    *("base_timestamp_ms", "max_timestamp_ms", "record_count"),
    *("producer_id", "producer_epoch", "base_sequence"),
)


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", Codec)
def test_a_batch_in_another_codec_is_made_anew(codec: Codec, target: str) -> None:
    sent = batch([b"one", b"two", b"x" * 9000], codec=int(codec), step_ms=4, producer=(77, 3, 500))
    config = LogConfig(compression_type=target)
    expected = Codec.NONE if target == "uncompressed" else Codec.of(target)
    assert needs_conversion(sent, AppendRules(config), NOW_MS) == (codec != expected)
    if codec == expected:
        return
    converted = convert(sent, compression_type=target)
    before, after = BatchHeader(sent, 0), read_header(converted)
    assert after.codec == expected
    for name in _KEPT:
        assert getattr(after, name) == getattr(before, name), name
    assert contents(converted) == contents(sent)


def test_producer_keeps_every_codec() -> None:
    for codec in Codec:
        assert not needs_conversion(batch(codec=int(codec)), AppendRules(LogConfig()), NOW_MS)


def test_transactional_and_headers_stay() -> None:
    builder = MemoryRecordsBuilder(
        2, 1, 1 << 20, transactional=True, producer_id=5, producer_epoch=1, base_sequence=9
    )
    builder.append(NOW_MS, b"k", b"v" * 500, [("name", b"content"), ("null", None)])
    builder.close()
    converted = convert(memoryview(builder.buffer()), compression_type="zstd")
    assert read_header(converted).is_transactional
    (found,) = MemoryRecords(bytes(converted))
    assert [record.headers for record in found] == [[("name", b"content"), ("null", None)]]


def test_levels_are_the_topics() -> None:
    text = " ".join(str(number * number) for number in range(20_000)).encode()
    sent = batch([text])
    for codec, low, high in (("gzip", 1, 9), ("lz4", 1, 12), ("zstd", -50, 19)):
        sizes = [
            len(convert(sent, compression_type=codec, **{f"compression_{codec}_level": level}))
            for level in (low, high)
        ]
        assert sizes[1] < sizes[0]


def test_a_damaged_batch_is_not_made_anew() -> None:
    for position in range(HEADER_BYTES - 40, HEADER_BYTES + 5):
        sent = batch([b"x" * 100])
        sent[position] ^= 1
        with pytest.raises(BrokerResponseError):
            convert(sent, compression_type="gzip")
    refused(CorruptRecordError, batch()[:-1], compression_type="gzip")


def test_a_batch_that_is_too_large_is_not_opened() -> None:
    sent = batch([b"x" * 5000])
    refused(
        MessageSizeTooLargeError, sent, max_message_bytes=1000, compression_type="gzip", limit=0
    )


def test_nonsense_needs_no_conversion() -> None:
    rules = AppendRules(LogConfig(compression_type="gzip"))
    for data in (b"", b"x" * 16, bytes(16) + b"\x02", bytes(16) + b"\x07" + bytes(100)):
        assert not needs_conversion(memoryview(data), rules, NOW_MS)


# Fetch.


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_batches_become_message_sets(magic: int, codec: Codec) -> None:
    stored = [
        at_offset(batch([A, B, C], codec=int(codec), step_ms=2), 10),
        at_offset(batch([D], codec=int(codec)), 20),
    ]
    found = old_set(*stored, magic=magic, fetch_offset=10)
    assert found.next_offset == 21
    if codec == Codec.LZ4 and magic == 0:
        return  # kafka-python needs another package to read it; `there_and_back` does
    assert [(offset, value) for offset, _, _, value in contents(found.data)] == [
        (10, A),
        (11, B),
        (12, C),
        (20, D),
    ]
    times = [timestamp_ms for _, timestamp_ms, _, _ in contents(found.data)]
    assert times == ([NOW_MS, NOW_MS + 2, NOW_MS + 4, NOW_MS] if magic else [None] * 4)


def test_plain_messages_begin_at_the_offset_wrapped_ones_with_their_batch() -> None:
    for codec, expected in ((0, [12, 13]), (1, [10, 11, 12, 13])):
        stored = at_offset(batch([A, B, C, D], codec=codec), 10)
        found = old_set(stored, fetch_offset=12)
        assert [row[0] for row in contents(found.data)] == expected


@pytest.mark.parametrize("codec", [0, 1])
def test_log_append_time_is_passed_on(codec: int) -> None:
    stored = batch([A, B], codec=codec, step_ms=5)
    stamp_append_time(stored, read_header(stored), NOW_MS + 1000)
    found = old_set(stored)
    for each in MemoryRecords(found.data):
        assert [record.timestamp_type for record in each] == [1] * len(list(each))
    assert [row[1] for row in contents(found.data)] == [NOW_MS + 1000] * 2
    assert [row[3] for row in contents(old_set(stored, magic=0).data)] == [A, B]


def control(base_offset: int) -> memoryview:
    marker = batch([b""])
    marker[22] |= 0x20
    seal(marker)
    return at_offset(marker, base_offset)


def test_control_batches_are_left_out() -> None:
    found = old_set(control(0), at_offset(batch([b"a"]), 1), control(2), fetch_offset=0)
    assert [(row[0], row[3]) for row in contents(found.data)] == [(1, b"a")]
    found = old_set(control(5), control(6), fetch_offset=5)
    assert (found.data, found.next_offset) == (b"", 7)


def test_zstd_ends_a_set_and_is_refused_at_its_beginning() -> None:
    zstd = at_offset(batch([D], codec=4), 1)
    found = old_set(batch([b"a"]), zstd)
    assert [row[3] for row in contents(found.data)] == [b"a"]
    with pytest.raises(UnsupportedCompressionTypeError):
        old_set(zstd, fetch_offset=1)


def test_a_damaged_batch_ends_a_set_and_is_refused_at_its_beginning() -> None:
    damaged = at_offset(batch([b"z" * 50]), 1)
    damaged[-3] ^= 1
    found = old_set(batch([b"a"]), damaged)
    assert [row[3] for row in contents(found.data)] == [b"a"]
    with pytest.raises(CorruptRecordError):
        old_set(damaged, fetch_offset=1)


def test_a_cut_off_batch_is_left_out() -> None:
    found = old_set(batch([b"a"]), at_offset(batch([b"b" * 100]), 1), cut_bytes=1)
    assert [row[3] for row in contents(found.data)] == [b"a"]


@pytest.mark.parametrize("codec", [0, 1])
def test_limits(codec: int) -> None:
    values = [bytes([letter]) * 1000 for letter in b"abcdef"]
    stored = [at_offset(batch([value], codec=codec), offset) for offset, value in enumerate(values)]
    whole = old_set(*stored).data
    for max_bytes in (1, 100, 2500, len(whole) - 1, len(whole), len(whole) + 1):
        cut = old_set(*stored, max_bytes=max_bytes, cut=True).data
        assert cut == whole[:max_bytes]
        uncut = old_set(*stored, max_bytes=max_bytes).data
        assert whole.startswith(uncut)
        assert contents(uncut)
        assert len(uncut) <= max_bytes or len(contents(uncut)) == 1


def test_a_large_batch_of_small_records_is_read_bit_by_bit() -> None:
    """A client with a small limit gets on in the middle of an uncompressed batch."""
    stored = batch([b"%04d" % number for number in range(2000)])
    offset, found = 0, []
    while offset < 2000:
        rows = contents(old_set(stored, fetch_offset=offset, max_bytes=4000, cut=True).data)
        assert rows
        assert rows[0][0] == offset
        found += [row[3] for row in rows]
        offset = rows[-1][0] + 1
    assert found == [b"%04d" % number for number in range(2000)]


def test_a_bomb_in_the_log_is_not_opened() -> None:
    with pytest.raises(CorruptRecordError):
        old_set(batch([bytes(LIMIT + 1)], codec=1))


def test_tiny_records_do_not_grow_without_bound() -> None:
    """A record may take 7 bytes, as a message it takes 34."""
    found = slice_of(batch([b""] * 5000, codec=1))
    for limit in (40_000, 169_999):
        with pytest.raises(CorruptRecordError):
            message_set_of(found, 1, 0, 1 << 20, limit, cut=False)
    assert len(contents(message_set_of(found, 1, 0, 1 << 20, 170_000, cut=False).data)) == 5000


class TestKeysForCompaction:
    CONFIG = LogConfig(cleanup_policy=("compact",))

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
    def test_a_record_without_a_key_is_refused(self, codec: Codec) -> None:
        records = batch([b"1", b"2"], keys=[b"a", None], codec=codec)
        assert needs_conversion(records, AppendRules(self.CONFIG), NOW_MS)
        with pytest.raises(InvalidRecordError, match="without key"):
            convert_for_log(records, self.CONFIG, 10**6, "t-0", NOW_MS)

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
    def test_a_batch_with_keys_stays_what_it_is(self, codec: Codec) -> None:
        records = batch([b"1", None], keys=[b"", b"a"], codec=codec)
        assert convert_for_log(records, self.CONFIG, 10**6, "t-0", NOW_MS) is records

    def test_records_that_make_no_sense_are_refused(self) -> None:
        records = batch([b"1", b"2"], keys=[b"a", b"b"])
        records[HEADER_BYTES] ^= 0x40
        seal(records)
        with pytest.raises(CorruptRecordError):
            convert_for_log(records, self.CONFIG, 10**6, "t-0", NOW_MS)
