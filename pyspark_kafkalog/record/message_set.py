"""Message sets: the formats before the record batch, magic 0 (Kafka 0.8) and 1 (0.10, KIP-32).

A set is messages one behind the other, nothing before or between them; all numbers big-endian:

    offset          int64
    size            int32   bytes that follow this field
    crc             uint32  CRC-32 (zlib's) of all that follows
    magic           int8    0 or 1
    attributes      int8    bits 0-2 codec (no zstd), bit 3 timestamp type (magic 1)
    timestamp       int64   ms, -1 is none                              magic 1 only
    key length      int32   -1 is null
    key
    value length    int32   -1 is null
    value

A message whose attributes name a codec is a wrapper: its value is a whole set, compressed, of plain
messages of the same magic. The wrapper has the offset of its last inner message. Inner messages of
magic 0 have their own offsets. Those of magic 1 count from 0 (KIP-31), or skip numbers that
compaction took, so that inner offset - last inner offset + wrapper's offset is the offset. A
wrapper with LogAppendTime has the timestamp of all that is in it.

What is special: LZ4 in magic 0 (`lz4_frame`); some producers give inner messages any offsets, and
wrappers of magic 1 the offset 0 (they then count from 0); a fetch ends anywhere, so the last
message of a set may be cut off.

Pure functions, any thread; some microseconds a message, so not the event loop's.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafka.errors import CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError

from pyspark_kafkalog.record.batch import CODEC_MASK, LOG_APPEND_TIME_BIT, NO_TIMESTAMP
from pyspark_kafkalog.record.compression import Codec, compress, decompress
from pyspark_kafkalog.record.lz4_frame import with_old_checksum, with_right_checksum
from pyspark_kafkalog.record.records import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

OVERHEAD_BYTES = 12
"""Offset and size: what the size does not count."""

_HEAD = struct.Struct(">qiIBB")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_CRC_END = 16
# CRC, magic, attributes and the two lengths.
_LEAST_SIZE = (14, 22)
_HEAD_V0 = struct.Struct(">bbi")
_HEAD_V1 = struct.Struct(">bbqi")
_ENTRY = struct.Struct(">qiI")
_OFFSET_AND_SIZE = struct.Struct(">qi")


class Message(NamedTuple):
    """One message of a set, plain or a wrapper; `size_bytes` with offset and size field."""

    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: memoryview | None
    value: memoryview | None
    size_bytes: int

    @property
    def codec(self) -> Codec:
        """Raises UnsupportedCompressionTypeError for a number that names no codec of its time."""
        number = self.attributes & CODEC_MASK
        if number > Codec.LZ4:
            raise UnsupportedCompressionTypeError(f"a message of magic {self.magic}: {number}")
        return Codec(number)

    @property
    def is_log_append_time(self) -> bool:
        return self.magic > 0 and bool(self.attributes & LOG_APPEND_TIME_BIT)


def messages(buffer: "Buffer") -> Iterator[Message]:
    """The messages of a set, wrappers unopened; a cut-off last one is left out.

    Raises CorruptRecordError for a wrong CRC, sizes that lie, and a magic other than 0 and 1.
    """
    data = memoryview(buffer)
    end = len(data)
    position = 0
    while position + OVERHEAD_BYTES <= end:
        (size,) = _INT32.unpack_from(data, position + 8)
        if size < _LEAST_SIZE[0]:
            raise CorruptRecordError(f"a message claims a size of {size} bytes")
        after = position + OVERHEAD_BYTES + size
        if after > end:
            return
        yield _message_at(data, position, after)
        position = after


def _message_at(data: memoryview, position: int, end: int) -> Message:
    """The message that lies at `position` and ends at `end`, inside `data`."""
    offset, size, crc, magic, attributes = _HEAD.unpack_from(data, position)
    if magic > 1 or size < _LEAST_SIZE[magic]:
        raise CorruptRecordError(f"a message of {size} bytes has magic {magic}")
    if zlib.crc32(data[position + _CRC_END : end]) != crc:
        raise CorruptRecordError(
            f"the message at offset {offset} does not match its CRC {crc:#010x}"
        )
    at = position + _HEAD.size
    timestamp_ms = NO_TIMESTAMP
    if magic:
        (timestamp_ms,) = _INT64.unpack_from(data, at)
        at += _INT64.size
    key, at = _bytes_at(data, at, end)
    value, _ = _bytes_at(data, at, end)
    return Message(offset, magic, attributes, timestamp_ms, key, value, OVERHEAD_BYTES + size)


def _bytes_at(data: memoryview, position: int, end: int) -> tuple[memoryview | None, int]:
    """A byte string with its length before it, and the position after it."""
    start = position + _INT32.size
    if start > end:
        raise CorruptRecordError("a message ends before its value")
    (length,) = _INT32.unpack_from(data, position)
    if length < 0:
        return None, start
    after = start + length
    if after > end:
        raise CorruptRecordError(f"a message claims {length} of {end - start} bytes")
    return data[start:after], after


def records_of(message: Message, max_plain_bytes: int) -> Iterator[Record]:
    """The records that `message` is: itself, or what it wraps, with their offsets in the log.

    Raises CorruptRecordError for what is damaged, or grows beyond `max_plain_bytes`;
    InvalidRecordError for a wrapper that holds nothing, other formats or wrappers.
    """
    codec = message.codec
    if codec == Codec.NONE:
        yield Record(message.offset, message.timestamp_ms, message.key, message.value)
        return
    inner_set = _open(message, codec, max_plain_bytes)
    shift = 0 if message.magic == 0 else _shift(message, inner_set)
    is_append_time = message.is_log_append_time
    found = False
    for inner in messages(inner_set):
        found = True
        if inner.magic != message.magic:
            raise InvalidRecordError(
                f"a message of magic {inner.magic} is wrapped in one of magic {message.magic}"
            )
        if inner.attributes & CODEC_MASK:
            raise InvalidRecordError("a compressed message is wrapped in another")
        timestamp_ms = message.timestamp_ms if is_append_time else inner.timestamp_ms
        yield Record(inner.offset + shift, timestamp_ms, inner.key, inner.value)
    if not found:
        raise InvalidRecordError("a compressed message holds no message")


def _open(message: Message, codec: Codec, max_plain_bytes: int) -> memoryview:
    value: Buffer | None = message.value
    if value is None:
        raise InvalidRecordError("a compressed message has no value")
    if codec == Codec.LZ4 and message.magic == 0:
        value = with_right_checksum(value)
    return decompress(codec, value, max_plain_bytes)


def _shift(message: Message, inner_set: memoryview) -> int:
    """What turns relative offsets of magic 1 into those of the log."""
    if not message.offset:
        return 0  # a producer that does not count; in a log, a set of one message at 0
    last_inner_offset = position = 0
    while position + OVERHEAD_BYTES <= len(inner_set):
        inner_offset, size = _OFFSET_AND_SIZE.unpack_from(inner_set, position)
        if size < 0 or position + OVERHEAD_BYTES + size > len(inner_set):
            break
        last_inner_offset = inner_offset
        position += OVERHEAD_BYTES + size
    if last_inner_offset > message.offset:
        raise InvalidRecordError(
            f"offset {message.offset} of a compressed message is below {last_inner_offset} in it"
        )
    return message.offset - int(last_inner_offset)


def append_message(out: bytearray, magic: int, record: Record, attributes: int = 0) -> None:
    """Writes `record` as one message behind `out`; magic 0 keeps no timestamp."""
    key, value = record.key, record.value
    key_bytes = -1 if key is None else len(key)  # type: ignore[arg-type]
    value_bytes = -1 if value is None else len(value)  # type: ignore[arg-type]
    if magic:
        message = _HEAD_V1.pack(magic, attributes, record.timestamp_ms, key_bytes)
    else:
        message = _HEAD_V0.pack(magic, attributes, key_bytes)
    if key is not None:
        message += key
    message += _INT32.pack(value_bytes)
    crc = zlib.crc32(message)
    size = 4 + len(message)
    if value is not None:
        crc = zlib.crc32(value, crc)
        size += value_bytes
    out += _ENTRY.pack(record.offset, size, crc)
    out += message
    if value is not None:
        out += value


def append_wrapper(
    out: bytearray,
    magic: int,
    codec: Codec,
    records: Iterator[Record],
    *,
    append_time: bool,
    max_plain_bytes: int = 2**31 - 1,
) -> None:
    """Writes `records`, if there are any, as one wrapper behind `out`. With `append_time` they all
    have the timestamp that the broker gave them.

    Raises CorruptRecordError when they exceed `max_plain_bytes` as messages, which can take five
    times as many bytes as records, and whatever iterating `records` raises.
    """
    attributes = LOG_APPEND_TIME_BIT if append_time and magic else 0
    inner_set = bytearray()
    base_offset: int | None = None
    last_offset = 0
    newest_ms = NO_TIMESTAMP
    for record in records:
        last_offset = record.offset
        newest_ms = max(newest_ms, record.timestamp_ms)
        if base_offset is None:
            base_offset = last_offset if magic else 0
        if base_offset:
            record = record._replace(offset=last_offset - base_offset)
        append_message(inner_set, magic, record, attributes)
        if len(inner_set) > max_plain_bytes:
            raise CorruptRecordError(f"compressed messages exceed {max_plain_bytes} bytes")
    if base_offset is None:
        return
    value = compress(codec, inner_set)
    if codec == Codec.LZ4 and magic == 0:
        value = with_old_checksum(bytes(value))
    wrapper = Record(last_offset, newest_ms, None, value)
    append_message(out, magic, wrapper, attributes | codec)
