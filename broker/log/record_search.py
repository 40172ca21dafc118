"""Finds one record in a batch by its timestamp: the only place where the broker opens a batch.

Needed for ListOffsets by timestamp, which names a record and not a batch. Of each record only the
head is read (all numbers but the attributes are zigzag varints):

    length | attributes int8 | timestamp delta | offset delta | ...

Pure functions: any thread. O(records of the one batch), which for a batch made to hurt may be some
ten million: not for the event loop's thread.
"""

from kafka.errors import CorruptRecordError

from pyspark_kafkalog.record.batch import HEADER_BYTES, LEAST_RECORD_BYTES, BatchHeader
from pyspark_kafkalog.record.compression import decompress

_MAX_DECOMPRESSED_BYTES = 256 << 20


def first_record_at_or_after(
    batch: bytes, timestamp_ms: int, least_offset: int
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record of one whole batch that has at least this timestamp
    and at least this offset. Raises CorruptRecordError for records that make no sense."""
    header = BatchHeader(batch, 0)
    if header.is_log_append_time and header.record_count == header.last_offset_delta + 1:
        if header.max_timestamp_ms < timestamp_ms or header.last_offset < least_offset:
            return None
        return max(header.base_offset, least_offset), header.max_timestamp_ms
    records = decompress(
        int(header.codec), memoryview(batch)[HEADER_BYTES:], _MAX_DECOMPRESSED_BYTES
    )
    position = 0
    try:
        for _ in range(header.record_count):
            length, start = _varint(records, position)
            if length < LEAST_RECORD_BYTES - 1:  # also one that would lead backwards, without end
                raise CorruptRecordError(f"the batch at {header.base_offset} has a cut-off record")
            timestamp_delta, after = _varint(records, start + 1)
            offset_delta, _ = _varint(records, after)
            record_ms = header.base_timestamp_ms + timestamp_delta
            if header.is_log_append_time:
                record_ms = header.max_timestamp_ms
            offset = header.base_offset + offset_delta
            if record_ms >= timestamp_ms and offset >= least_offset:
                return offset, record_ms
            position = start + length
    except IndexError:
        raise CorruptRecordError(f"the batch at {header.base_offset} ends too early") from None
    return None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """(number, position after it)."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise CorruptRecordError("a number in a record is longer than 64 bits")
