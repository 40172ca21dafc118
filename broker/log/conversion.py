"""What a log keeps, made of what a client sent, and what an old client understands, made of that.

A log keeps record batches of magic 2 alone. So producers' message sets (magic 0 and 1) become one
batch before the append, and batches become message sets for consumers of that time (Fetch versions
0 to 3). A batch is also made anew where the topic's `compression.type` is not the codec that it
came with; that costs O(1) beside the codec, the records are not looked at, unless the topic is
compacted, where each needs a key, or their timestamps may be out of the topic's bounds.

Conversion costs some microseconds a record and holds one batch decompressed, which may be as large
as a whole request (`max_plain_bytes`): it belongs in a thread, `needs_conversion` alone does not.
Pure functions but for the reading of segment files. Nothing here appends or knows the wire.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kafka.errors import (
    BrokerResponseError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    UnsupportedCompressionTypeError,
)

from broker.config.definition import LONG_MAX
from broker.config.log import LogConfig
from broker.log.files import FileSlice
from broker.log.record_errors import (
    MAX_RECORD_ERRORS,
    InvalidRecordsError,
    InvalidTimestampsError,
    RecordError,
)
from broker.log.validator import AppendRules, stored_codec
from pyspark_kafkalog.record.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    NO_TIMESTAMP,
    BatchHeader,
    batch_size,
    check_crc,
    read_header,
    with_records,
)
from pyspark_kafkalog.record.compression import Codec, compress, decompress
from pyspark_kafkalog.record.message_set import (
    Message,
    append_message,
    append_wrapper,
    messages,
    records_of,
)
from pyspark_kafkalog.record.record_spans import record_spans
from pyspark_kafkalog.record.records import Record, build_batch, read_records

_LAST_CODEC: Final = int(Codec.ZSTD)
_MAX_TIMESTAMP: Final = struct.Struct(">q")


def needs_conversion(records: memoryview, rules: AppendRules, now_ms: int) -> bool:
    """Whether a producer's `records` are not yet what the log keeps, or must be looked at one by
    one to know. A look at a few bytes: what they are otherwise is not checked."""
    if len(records) < HEADER_BYTES:
        return len(records) > MAGIC_POSITION and records[MAGIC_POSITION] < MAGIC
    if records[MAGIC_POSITION] != MAGIC:
        return records[MAGIC_POSITION] < MAGIC
    codec = records[ATTRIBUTES_POSITION + 1] & CODEC_MASK
    if codec > _LAST_CODEC:
        return False
    if rules.looks_at_each or (rules.codec is not None and codec != rules.codec):
        return True
    newest_ms: int = _MAX_TIMESTAMP.unpack_from(records, MAX_TIMESTAMP_POSITION)[0]
    return newest_ms - now_ms > rules.after_max_ms and not rules.stamps_append_time


def convert_for_log(
    records: memoryview, config: LogConfig, max_plain_bytes: int, name: str, now_ms: int
) -> memoryview:
    """One writable batch of magic 2, in the topic's codec, of a producer's `records`.

    Those are a message set or one batch, for the partition `name`. Producer id, epoch, sequence,
    timestamps and headers of a batch stay as they are; a batch that needs no other codec is
    returned itself. Raises CorruptRecordError, InvalidRecordError, InvalidTimestampError (both
    with the records that are at fault, where a batch has them), MessageSizeTooLargeError,
    UnsupportedCompressionTypeError.
    """
    if records[MAGIC_POSITION] < MAGIC:
        return _batch_of_messages(records, config, max_plain_bytes)
    header = read_header(records)
    _check_size(header.size_bytes, config)
    check_crc(records, header)
    body = records[HEADER_BYTES : header.end_position]
    plain = decompress(header.codec, body, max_plain_bytes)
    _check_each(plain, header, config, name, now_ms)
    codec = _codec_after(header.codec, config)
    if codec == header.codec:
        return records
    stored = compress(codec, plain, _level(codec, config))
    return memoryview(with_records(records, header, codec, stored))


def _check_each(
    plain: memoryview, header: BatchHeader, config: LogConfig, name: str, now_ms: int
) -> None:
    """Keys and timestamps as the topic wants them. And offsets, where it is compacted: one beyond
    its batch would keep the log from being compacted."""
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    compacts = config.compacts
    is_timed = not config.stamps_append_time and (
        config.message_timestamp_before_max_ms < LONG_MAX or header.max_timestamp_ms > newest_ms
    )
    if not compacts and not is_timed:
        return
    errors: list[RecordError] = []
    total = 0
    has_bad_timestamp = False
    for index, span in enumerate(record_spans(plain, header.record_count)):
        if compacts and span.offset_delta > header.last_offset_delta:
            raise InvalidRecordError(f"a record has offset delta {span.offset_delta}")
        timestamp_ms = header.base_timestamp_ms + span.timestamp_delta
        if compacts and span.key_end < 0:
            reason = f"Compacted topic cannot accept message without key in topic partition {name}"
        elif is_timed and not (
            timestamp_ms == NO_TIMESTAMP or oldest_ms <= timestamp_ms <= newest_ms
        ):
            has_bad_timestamp = True
            reason = (
                f"Timestamp {timestamp_ms} of message with offset "
                f"{header.base_offset + span.offset_delta} is out of range. The timestamp should "
                f"be within [{oldest_ms}, {newest_ms}]"
            )
        else:
            continue
        total += 1
        if total <= MAX_RECORD_ERRORS:
            errors.append((index, reason))
    if has_bad_timestamp:
        raise InvalidTimestampsError(errors)
    if errors:
        raise InvalidRecordsError(errors, total)


def _batch_of_messages(records: memoryview, config: LogConfig, max_plain_bytes: int) -> memoryview:
    first = next(messages(records), None)
    if first is None:
        raise InvalidRecordError("a produce request holds no whole message")
    codec = _codec_after(first.codec, config)
    if codec == Codec.NONE:
        max_plain_bytes = min(max_plain_bytes, config.max_message_bytes)
    found = _checked(messages(records), first, config)
    batch = build_batch(
        _records(found, config, max_plain_bytes), codec, _level(codec, config), max_plain_bytes
    )
    return memoryview(batch)


def _checked(found: Iterable[Message], first: Message, config: LogConfig) -> Iterator[Message]:
    """A producer's messages, as long as a client may append each. As in Apache Kafka a set is
    either plain messages or one wrapper."""
    is_wrapper = first.codec != Codec.NONE
    for number, message in enumerate(found):
        _check_size(message.size_bytes, config)
        if message.is_log_append_time:
            raise InvalidTimestampError("only the broker sets the timestamp type LogAppendTime")
        if message.magic != first.magic:
            raise InvalidRecordError("messages of magic 0 and 1 in one set")
        if number and (is_wrapper or message.attributes & CODEC_MASK):
            raise InvalidRecordError("a compressed message is not alone in its set")
        yield message


def _records(found: Iterable[Message], config: LogConfig, max_plain_bytes: int) -> Iterator[Record]:
    needs_key = config.compacts
    for message in found:
        for record in records_of(message, max_plain_bytes):
            if needs_key and record.key is None:
                raise InvalidRecordError("a compacted topic takes no record without a key")
            yield record


def _check_size(size_bytes: int, config: LogConfig) -> None:
    if size_bytes > config.max_message_bytes:
        raise MessageSizeTooLargeError(
            f"a batch of {size_bytes} bytes exceeds max.message.bytes={config.max_message_bytes}"
        )


def _codec_after(producers_codec: Codec, config: LogConfig) -> Codec:
    codec = stored_codec(config)
    return producers_codec if codec is None else codec


def _level(codec: Codec, config: LogConfig) -> int | None:
    """The topic's level counts where the topic chooses the codec, as in Apache Kafka."""
    if stored_codec(config) is None:
        return None
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return levels.get(codec)


@dataclass(frozen=True, slots=True)
class MessageSet:
    """What an old client gets. `next_offset`: where reading goes on if `data` is empty."""

    data: bytes
    next_offset: int


def message_set_of(
    records: FileSlice,
    magic: int,
    fetch_offset: int,
    max_bytes: int,
    max_plain_bytes: int,
    *,
    cut: bool,
) -> MessageSet:
    """The batches `records` of a segment's file as messages of `magic`, about `max_bytes` of them.

    Headers and control batches have no place there and are left out. Messages are single where
    batches are not compressed, and then none is below `fetch_offset`; else one wrapper each, from
    the batch's beginning. With `cut` the set ends after `max_bytes`, in the midst of a message if
    need be: who sees a first message cut off fetches again, and more (clients before KIP-74).
    Without, the first message is whole and the last one too.

    Where a batch cannot be converted the set ends before it; if it is the first: raises
    UnsupportedCompressionTypeError (zstd), CorruptRecordError. Raises OSError.
    """
    out = bytearray()
    next_offset = fetch_offset
    try:
        for message, after in _messages_of(records, magic, fetch_offset, max_plain_bytes):
            if out and not cut and len(out) + len(message) > max_bytes:
                break
            out += message
            next_offset = after
            if len(out) >= max_bytes:
                break
    except BrokerResponseError:
        if not out:
            raise
    if cut:
        del out[max_bytes:]
    return MessageSet(bytes(out), next_offset)


def _messages_of(
    batches: FileSlice, magic: int, fetch_offset: int, max_plain_bytes: int
) -> Iterator[tuple[bytearray, int]]:
    """Message by message, each with the offset after it; nothing where nothing is to be sent."""
    for batch, header in _batches(batches):
        message = bytearray()
        if header.is_control:
            yield message, header.next_offset
            continue
        codec = header.codec
        if codec == Codec.ZSTD:
            raise UnsupportedCompressionTypeError("zstd, for a client that cannot know it")
        check_crc(batch, header)
        records = read_records(batch, header, max_plain_bytes)
        append_time = header.is_log_append_time
        if codec != Codec.NONE:
            append_wrapper(
                message,
                magic,
                codec,
                records,
                append_time=append_time,
                max_plain_bytes=max_plain_bytes,
            )
            yield message, header.next_offset
            continue
        attributes = LOG_APPEND_TIME_BIT if append_time and magic else 0
        for record in records:
            if record.offset >= fetch_offset:
                append_message(message, magic, record, attributes)
                yield message, record.offset + 1
                message = bytearray()
        yield message, header.next_offset


def _batches(batches: FileSlice) -> Iterator[tuple[bytes, BatchHeader]]:
    """The whole ones, one in memory at a time; a cut-off last one is left out."""
    position, end = batches.position, batches.position + batches.size_bytes
    while position + HEADER_BYTES <= end:
        size_bytes = batch_size(batches.part(LOG_OVERHEAD_BYTES, position).read())
        if position + size_bytes > end:
            return
        batch = batches.part(size_bytes, position).read()
        yield batch, read_header(batch)
        position += size_bytes
