"""Finds one record in a batch by its timestamp: the only place where the broker opens a batch.

Needed for ListOffsets by timestamp, which names a record and not a batch. Pure functions: any
thread. O(records of the one batch), which for a batch made to hurt may be some ten million: not for
the event loop's thread.
"""

from pyspark_kafkalog.record.batch import HEADER_BYTES, BatchHeader
from pyspark_kafkalog.record.compression import decompress
from pyspark_kafkalog.record.record_spans import record_spans

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
    for span in record_spans(records, header.record_count):
        record_ms = header.base_timestamp_ms + span.timestamp_delta
        if header.is_log_append_time:
            record_ms = header.max_timestamp_ms
        offset = header.base_offset + span.offset_delta
        if record_ms >= timestamp_ms and offset >= least_offset:
            return offset, record_ms
    return None
