"""What a client may append."""

import struct

import pytest
from kafka.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTxnStateError,
    MessageSizeTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)

from broker.log import validator
from pyspark_kafkalog.record.batch import batches, check_crc, seal
from tests.broker.log.batches import batch, together


def changed(position: int, form: str, *values: int) -> memoryview:
    """A batch of three records with a field overwritten and the checksum set right again."""
    records = batch([b"a", b"b", b"c"], producer=(4, 0, 0))
    producer = struct.unpack_from(">qhi", records, 43)
    struct.pack_into(form, records, position, *values)
    if position == 43:
        producer = values
    seal(records, *producer)
    return records


def claiming(record_count: int) -> memoryview:
    """A batch of one record that counts more, with the checksum set right again."""
    records = batch([b"a"])
    struct.pack_into(">i", records, 23, record_count - 1)
    struct.pack_into(">i", records, 57, record_count)
    seal(records)
    return records


def test_gives_the_headers_of_good_batches() -> None:
    records = together(batch([b"a", b"b"]), batch([b"c"], codec=1))
    headers = validator.validate(records, 1000)
    assert [header.record_count for header in headers] == [2, 1]
    assert headers[1].position == headers[0].size_bytes


@pytest.mark.parametrize(
    ("records", "error"),
    [
        pytest.param(memoryview(b""), InvalidRecordError, id="nothing"),
        pytest.param(memoryview(bytes(5)), CorruptRecordError, id="a few bytes"),
        pytest.param(memoryview(bytes(100)), UnsupportedForMessageFormatError, id="magic 0"),
        pytest.param(changed(16, ">b", 3), CorruptRecordError, id="magic 3"),
        pytest.param(changed(21, ">h", 5), UnsupportedCompressionTypeError, id="codec 5"),
        pytest.param(changed(21, ">h", 0x20), InvalidRecordError, id="control"),
        pytest.param(changed(21, ">h", 0x10), InvalidTxnStateError, id="transactional"),
        pytest.param(changed(21, ">h", 0x08), InvalidTimestampError, id="append time"),
        pytest.param(changed(57, ">i", 0), InvalidRecordError, id="no records"),
        pytest.param(changed(57, ">i", 2), InvalidRecordError, id="fewer records than offsets"),
        pytest.param(changed(23, ">i", 7), InvalidRecordError, id="more offsets than records"),
        pytest.param(changed(23, ">i", -1), CorruptRecordError, id="negative delta"),
        pytest.param(
            claiming(2**31 - 1), InvalidRecordError, id="more records than its bytes can hold"
        ),
        pytest.param(changed(43, ">qhi", 4, -1, 0), InvalidRecordError, id="no epoch"),
        pytest.param(changed(43, ">qhi", 4, 0, -1), InvalidRecordError, id="no sequence"),
        pytest.param(changed(43, ">qhi", -2, 0, 0), InvalidRecordError, id="producer -2"),
        pytest.param(
            together(batch(producer=(4, 0, 0)), batch(producer=(4, 0, 1))),
            InvalidRecordError,
            id="two batches of an idempotent producer",
        ),
    ],
)
def test_refuses(records: memoryview, error: type[Exception]) -> None:
    with pytest.raises(error):
        validator.validate(records, 1000)


def test_refuses_every_cut() -> None:
    records = together(batch([b"a", b"b"]), batch([b"c"]))
    boundary = len(batch([b"a", b"b"]))
    for size in range(1, len(records)):
        if size != boundary:
            with pytest.raises(CorruptRecordError):
                validator.validate(records[:size], 1000)


def test_refuses_every_flipped_byte_under_the_checksum() -> None:
    whole = bytes(batch([b"value"]))
    for position in range(21, len(whole)):
        records = bytearray(whole)
        records[position] ^= 0xFF
        refusals = (
            CorruptRecordError,
            InvalidRecordError,
            InvalidTimestampError,
            InvalidTxnStateError,
            UnsupportedCompressionTypeError,
        )
        with pytest.raises(refusals):
            validator.validate(memoryview(records), 1000)


def test_the_limit_is_of_a_batch_and_inclusive() -> None:
    records = batch([b"." * 100])
    size_bytes = len(records)
    assert validator.validate(together(records, records), size_bytes)
    with pytest.raises(MessageSizeTooLargeError, match=f"{size_bytes} bytes exceeds"):
        validator.validate(records, size_bytes - 1)


def test_stamps_keep_the_checksum_right() -> None:
    records = together(batch([b"a", b"b"]), batch([b"c"]))
    headers = validator.validate(records, 1000)
    assert validator.stamp_offsets(records, headers, 40, 7, 123456) == 43
    found = list(batches(records))
    assert [header.base_offset for header in found] == [40, 42]
    assert {header.partition_leader_epoch for header in found} == {7}
    assert {header.max_timestamp_ms for header in found} == {123456}
    for header in found:
        check_crc(records, header)
