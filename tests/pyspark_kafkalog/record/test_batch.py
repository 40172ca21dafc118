"""Batch headers against kafka-python's builder, stamping in place, and every kind of damage."""

import pytest
from kafka.errors import CorruptRecordError, UnsupportedForMessageFormatError
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from pyspark_kafkalog.record import batch as record_batch
from pyspark_kafkalog.record.compression import Codec, compress, decompress


def batch_of(count: int = 3, magic: int = 2, codec: Codec = Codec.NONE) -> bytearray:
    builder = MemoryRecordsBuilder(magic=magic, compression_type=int(codec), batch_size=1 << 20)
    for i in range(count):
        builder.append(timestamp=1000 + i, key=b"key-%d" % i, value=b"value", headers=[])
    builder.close()
    return bytearray(builder.buffer())


@pytest.mark.parametrize("codec", list(Codec))
def test_the_header_says_what_was_built(codec: Codec) -> None:
    data = batch_of(5, codec=codec)
    header = record_batch.read_header(data)
    assert header.size_bytes == len(data)
    assert (header.base_offset, header.last_offset, header.next_offset) == (0, 4, 5)
    assert (header.record_count, header.codec) == (5, codec)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1000, 1004)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert not any((header.is_control, header.is_transactional, header.is_log_append_time))
    record_batch.check_crc(data, header)


def test_stamping_leaves_the_crc_valid() -> None:
    data = batch_of()
    header = record_batch.read_header(data)
    record_batch.stamp(data, header, 1 << 40, 9)
    again = record_batch.read_header(data)
    assert (again.base_offset, again.partition_leader_epoch) == (1 << 40, 9)
    assert (header.base_offset, header.partition_leader_epoch) == (1 << 40, 9)
    record_batch.check_crc(data, again)


def test_append_time_is_read_by_the_oracle() -> None:
    data = batch_of()
    header = record_batch.read_header(data)
    record_batch.stamp_append_time(data, header, 1_700_000_000_000)
    record_batch.check_crc(data, record_batch.read_header(data))
    (stamped,) = iter(MemoryRecords(bytes(data)).next_batch, None)
    assert stamped.validate_crc()
    assert {(record.timestamp, record.timestamp_type) for record in stamped} == {
        (1_700_000_000_000, 1)
    }


def test_sealing_writes_the_producer_and_a_valid_crc() -> None:
    data = batch_of()
    record_batch.seal(data, producer_id=77, producer_epoch=3, base_sequence=42)
    header = record_batch.read_header(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 42)
    record_batch.check_crc(data, header)


def test_batches_stop_before_a_cut_off_tail() -> None:
    first, second = batch_of(2), batch_of(4)
    data = first + second
    for size in range(len(first), len(data)):
        assert [h.record_count for h in record_batch.batches(data[:size])] == [2]
    assert [h.record_count for h in record_batch.batches(data)] == [2, 4]
    assert [h.record_count for h in record_batch.batches(data, len(first))] == [4]
    assert list(record_batch.batches(b"")) == []


def test_a_flipped_bit_under_the_crc_is_noticed() -> None:
    data = batch_of()
    for index in range(record_batch.ATTRIBUTES_POSITION, len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1
        with pytest.raises(CorruptRecordError):
            record_batch.check_crc(damaged, record_batch.read_header(damaged))


@pytest.mark.parametrize("length", [-1, 0, 48, -(1 << 31)])
def test_a_length_that_no_batch_has_is_refused(length: int) -> None:
    data = batch_of()
    data[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecordError):
        list(record_batch.batches(data))
    with pytest.raises(CorruptRecordError):
        record_batch.read_header(data)


def test_an_old_message_format_is_named() -> None:
    with pytest.raises(UnsupportedForMessageFormatError, match="message format 1"):
        list(record_batch.batches(batch_of(magic=1)))


def test_an_unknown_magic_is_corrupt() -> None:
    data = batch_of()
    data[16] = 9
    with pytest.raises(CorruptRecordError, match="magic 9"):
        record_batch.read_header(data)


def test_a_batch_that_compaction_has_thinned_keeps_its_place() -> None:
    data = batch_of(5)
    header = record_batch.read_header(data)
    for records, count in ((data[record_batch.HEADER_BYTES :], 1), (b"", 0)):
        thinned = record_batch.rebuild(header, records, count, 1000, 1004, 0)
        (found,) = record_batch.batches(thinned)
        assert (found.record_count, found.last_offset, found.next_offset) == (count, 4, 5)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_in_another_codec_says_so(codec: Codec) -> None:
    data = batch_of(5, codec=Codec.GZIP)
    header = record_batch.read_header(data)
    plain = bytes(decompress(Codec.GZIP, data[record_batch.HEADER_BYTES :], 1 << 20))
    again = record_batch.with_records(data, header, codec, compress(codec, plain))
    found = record_batch.read_header(again)
    assert found.codec == codec
    record_batch.check_crc(again, found)
    (read,) = iter(MemoryRecords(bytes(again)).next_batch, None)
    assert [record.key for record in read] == [b"key-%d" % number for number in range(5)]


def test_a_length_that_no_batch_has() -> None:
    data = batch_of()
    for length in (-1, 0, 48):
        data[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptRecordError, match=f"claims a length of {length} bytes"):
            record_batch.batch_size(data)
    data[8:12] = (49).to_bytes(4, "big")
    assert record_batch.batch_size(data) == 61
