"""Single records of magic 2: one batch taken apart and put together in plain Python.

For what must look at every record (conversion from and to the old formats); bulk work has
`pyspark_kafkalog.arrow`. Behind the batch's header lie, compressed as one block, its records; all
numbers but the attributes are zigzag varints:

    length | attributes int8 | timestamp delta | offset delta | key length, key |
    value length, value | header count | (key length, key, value length, value)*

A length of -1 is null. Reading passes over headers, writing writes none: the old formats have none.
One record is in memory at a time. Pure functions: any thread; some microseconds a record, so not
the event loop's.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafka.errors import CorruptRecordError, InvalidTimestampError, MessageSizeTooLargeError

from pyspark_kafkalog.record.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    seal,
)
from pyspark_kafkalog.record.compression import Codec, compress, decompress

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NO_EPOCH = -1
_NULL = b"\x01"
_ATTRIBUTES = b"\x00"
_NO_HEADERS = b"\x00"


class Record(NamedTuple):
    """One record. `timestamp_ms` of -1 is none; key and value are views of the buffer read."""

    offset: int
    timestamp_ms: int
    key: "Buffer | None"
    value: "Buffer | None"


def read_records(batch: "Buffer", header: BatchHeader, max_plain_bytes: int) -> Iterator[Record]:
    """The records of the whole batch that `header` describes, in the order they lie in.

    Raises CorruptRecordError for what makes no sense, or grows beyond `max_plain_bytes`.
    """
    body = memoryview(batch)[header.position + HEADER_BYTES : header.end_position]
    data = memoryview(decompress(header.codec, body, max_plain_bytes))
    position = 0
    end = len(data)
    append_time_ms = header.max_timestamp_ms if header.is_log_append_time else None
    try:
        for _ in range(header.record_count):
            length, position = _read_varint(data, position)
            record_end = position + length
            if length < 1 or record_end > end:
                raise CorruptRecordError("a record is longer than its batch")
            timestamp_delta, position = _read_varint(data, position + 1)
            offset_delta, position = _read_varint(data, position)
            if not 0 <= offset_delta <= header.last_offset_delta:
                raise CorruptRecordError(f"a record has the offset delta {offset_delta}")
            key, position = _read_bytes(data, position, record_end)
            value, position = _read_bytes(data, position, record_end)
            timestamp_ms = header.base_timestamp_ms + timestamp_delta
            yield Record(
                header.base_offset + offset_delta,
                timestamp_ms if append_time_ms is None else append_time_ms,
                key,
                value,
            )
            position = record_end
    except IndexError:
        raise CorruptRecordError(f"the batch at {header.base_offset} ends too early") from None
    if position != end:
        raise CorruptRecordError(f"the batch at {header.base_offset} has bytes behind its records")


def build_batch(
    records: Iterable[Record],
    codec: Codec,
    level: int | None = None,
    max_plain_bytes: int = 2**31 - 1,
) -> bytearray:
    """One batch of `records`, whose offsets it counts anew from 0, of no idempotent producer.

    Raises MessageSizeTooLargeError when the records, before compression, exceed `max_plain_bytes`,
    InvalidTimestampError for a negative timestamp, and whatever iterating `records` raises.
    """
    body = bytearray()
    count = 0
    base_timestamp_ms = max_timestamp_ms = NO_TIMESTAMP
    for record in records:
        timestamp_ms = record.timestamp_ms
        if timestamp_ms < NO_TIMESTAMP:
            raise InvalidTimestampError(f"a record has the timestamp {timestamp_ms}")
        if not count:
            base_timestamp_ms = timestamp_ms
        if timestamp_ms > max_timestamp_ms:
            max_timestamp_ms = timestamp_ms
        _write_record(body, record, timestamp_ms - base_timestamp_ms, count)
        count += 1
        if len(body) > max_plain_bytes:
            raise MessageSizeTooLargeError(f"the records exceed {max_plain_bytes} bytes")
    stored = compress(codec, body, level)
    batch = bytearray(HEADER_BYTES)
    batch += stored
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - LOG_OVERHEAD_BYTES,
        _NO_EPOCH,
        MAGIC,
        0,
        codec,
        count - 1,
        base_timestamp_ms,
        max_timestamp_ms,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        count,
    )
    seal(batch)
    return batch


def _write_record(body: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    head = _ATTRIBUTES + varint(timestamp_delta) + varint(offset_delta)
    key, value = record.key, record.value
    if key is None:
        head += _NULL
        key = b""
    else:
        head += varint(len(key))  # type: ignore[arg-type]
    value_head = _NULL if value is None else varint(len(value))  # type: ignore[arg-type]
    value = b"" if value is None else value
    length = len(head) + len(key) + len(value_head) + len(value) + 1  # type: ignore[arg-type]
    body += varint(length)
    body += head
    body += key
    body += value_head
    body += value
    body += _NO_HEADERS


def varint(number: int) -> bytes:
    """`number` as a zigzag varint."""
    if 0 <= number < len(_SMALL_VARINTS):
        return _SMALL_VARINTS[number]
    return _encode_varint(number)


def _encode_varint(number: int) -> bytes:
    left = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


_SMALL_VARINTS = [_encode_varint(number) for number in range(8192)]
"""All of one and two bytes: lengths and deltas are rarely larger."""


def _read_bytes(data: memoryview, position: int, end: int) -> tuple[memoryview | None, int]:
    """A byte string that ends at `end` or before, and the position after it."""
    length, position = _read_varint(data, position)
    if length < 0:
        if length < -1:
            raise CorruptRecordError(f"a byte string inside a record has the length {length}")
        return None, position
    after = position + length
    if after > end:
        raise CorruptRecordError("a byte string inside a record is longer than the record")
    return data[position:after], after


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """(number, position after it). Raises IndexError at the end of `data`."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > 63:
            raise CorruptRecordError("a number in a record is longer than 64 bits")
