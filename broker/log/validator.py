"""What may be appended to a log: checked and stamped once per batch, never per record.

A produce request's records for one partition are whole record batches (magic 2), nothing before,
between or behind them. `validate` looks at headers and checksums, `stamp_offsets` writes into the
same bytes what the broker owns: base offset, leader epoch, and LogAppendTime where a topic asks for
it. So the bytes that came from the socket are the bytes that go to disk. What a leader has taken is
not judged again by those who copy its log: `validate_copy` looks at checksums and offsets alone.

Pure functions over a buffer that the caller owns: any thread.
"""

from collections.abc import Sequence
from typing import Final

from kafka.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTxnStateError,
    MessageSizeTooLargeError,
    UnsupportedCompressionTypeError,
)

from broker.config.definition import LONG_MAX
from broker.config.log import LogConfig
from broker.log.segment import MAX_RELATIVE_OFFSET
from pyspark_kafkalog.record.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LEAST_RECORD_BYTES,
    LOG_APPEND_TIME_BIT,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    batches,
    check_crc,
    read_header,
    stamp,
    stamp_append_time,
)
from pyspark_kafkalog.record.compression import Codec


class AppendRules:
    """What a topic's configuration says of appends. A LogConfig is not compiled: to ask it costs
    each append more than to write the bytes."""

    __slots__ = (
        "after_max_ms",
        "before_max_ms",
        "codec",
        "flush_messages",
        "looks_at_each",
        "max_message_bytes",
        "min_insync_replicas",
        "roll_ms",
        "segment_bytes",
        "stamps_append_time",
    )

    def __init__(self, config: LogConfig) -> None:
        self.after_max_ms: int = config.message_timestamp_after_max_ms
        self.before_max_ms: int = config.message_timestamp_before_max_ms
        self.codec: Codec | None = stored_codec(config)
        self.flush_messages: int = config.flush_messages
        # Single records: whether they have keys, and are not too old.
        self.looks_at_each: bool = config.compacts or (
            config.message_timestamp_before_max_ms < LONG_MAX and not config.stamps_append_time
        )
        self.max_message_bytes: int = config.max_message_bytes
        self.min_insync_replicas: int = config.min_insync_replicas
        self.roll_ms: int = config.roll_ms
        self.segment_bytes: int = config.segment_bytes
        self.stamps_append_time: bool = config.stamps_append_time


def stored_codec(config: LogConfig) -> Codec | None:
    """What the topic's `compression.type` asks for; None keeps the producer's."""
    if config.compression_type == "producer":
        return None
    if config.compression_type == "uncompressed":
        return Codec.NONE
    return Codec.of(config.compression_type)


_LAST_CODEC: Final = int(Codec.ZSTD)


def validate(
    records: memoryview,
    max_message_bytes: int,
    *,
    transactional: bool = False,
    numbered: bool = True,
) -> list[BatchHeader]:
    """The headers of the batches in `records`, each of which a client may append; transactional
    ones, and a producer's without sequence numbers (not `numbered`), only where the caller says so.

    Raises CorruptRecordError (no whole batches, or a wrong checksum),
    UnsupportedForMessageFormatError (magic 0 or 1), MessageSizeTooLargeError,
    InvalidRecordError (contents a client may not send), UnsupportedCompressionTypeError and
    InvalidTxnStateError.
    """
    headers = []
    position = 0
    end = records.nbytes
    while position < end:
        header = read_header(records, position)
        _check_fields(header, transactional)
        _check_producer(header, numbered)
        if header.size_bytes > max_message_bytes:
            raise MessageSizeTooLargeError(
                f"a batch of {header.size_bytes} bytes exceeds max.message.bytes="
                f"{max_message_bytes}"
            )
        check_crc(records, header)
        headers.append(header)
        position += header.size_bytes
    if not headers:
        raise InvalidRecordError("a produce request holds no record batch")
    if len(headers) > 1 and any(header.producer_id != NO_PRODUCER_ID for header in headers):
        raise InvalidRecordError("an idempotent producer sends one batch per partition at a time")
    return headers


class OffsetsOutOfOrderError(Exception):
    """A batch of a leader's log that cannot follow what is here: it begins at `offset`, where the
    log goes on at `expected_offset`, or above it where compaction left a gap."""

    def __init__(self, offset: int, expected_offset: int) -> None:
        super().__init__(f"a batch begins at offset {offset}, the log goes on at {expected_offset}")
        self.offset = offset
        self.expected_offset = expected_offset


def validate_copy(records: memoryview) -> list[BatchHeader]:
    """The headers of the whole batches in `records`, part of a leader's log; a last one that is
    cut off, as in the answer to a fetch, is left out.

    Raises CorruptRecordError and UnsupportedForMessageFormatError.
    """
    headers: list[BatchHeader] = []
    for header in batches(records):
        check_crc(records, header)
        headers.append(header)
    return headers


def check_order(headers: Sequence[BatchHeader], next_offset: int) -> None:
    """Raises OffsetsOutOfOrderError unless the batches follow each other from `next_offset` on,
    with no gap that a segment's offsets cannot have."""
    for header in headers:
        if (
            not 0
            <= header.base_offset - next_offset
            <= MAX_RELATIVE_OFFSET - header.last_offset_delta
        ):
            raise OffsetsOutOfOrderError(header.base_offset, next_offset)
        next_offset = header.next_offset


def check_timestamps(
    headers: Sequence[BatchHeader], now_ms: int, before_max_ms: int, after_max_ms: int
) -> None:
    """Raises InvalidTimestampError when a batch's newest timestamp is too far from `now_ms`."""
    for header in headers:
        timestamp_ms = header.max_timestamp_ms
        if timestamp_ms < 0:
            continue
        if timestamp_ms - now_ms > after_max_ms or now_ms - timestamp_ms > before_max_ms:
            raise InvalidTimestampError(
                f"timestamp {timestamp_ms} is out of bounds at {now_ms}: "
                f"message.timestamp.before.max.ms={before_max_ms}, "
                f"message.timestamp.after.max.ms={after_max_ms}"
            )


def stamp_offsets(
    records: memoryview,
    headers: Sequence[BatchHeader],
    first_offset: int,
    leader_epoch: int,
    append_time_ms: int,
) -> int:
    """Numbers the batches from `first_offset` on, in place; returns the offset after the last.

    `append_time_ms` of -1 keeps the producer's timestamps.
    """
    offset = first_offset
    for header in headers:
        stamp(records, header, offset, leader_epoch)
        if append_time_ms >= 0:
            stamp_append_time(records, header, append_time_ms)
        offset += header.record_count
    return offset


def _check_fields(header: BatchHeader, transactional: bool) -> None:
    attributes = header.attributes
    if attributes & CODEC_MASK > _LAST_CODEC:
        raise UnsupportedCompressionTypeError(
            f"a batch names the unknown codec {attributes & CODEC_MASK}"
        )
    if attributes & CONTROL_BIT:
        raise InvalidRecordError("clients may not append control batches")
    if attributes & LOG_APPEND_TIME_BIT:
        raise InvalidTimestampError("only the broker sets the timestamp type LogAppendTime")
    if attributes & TRANSACTIONAL_BIT and not transactional:
        raise InvalidTxnStateError("the batch is transactional, but no transaction is open")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"a batch counts {header.record_count} records over offsets 0.."
            f"{header.last_offset_delta}"
        )
    records_bytes = header.size_bytes - HEADER_BYTES
    if not attributes & CODEC_MASK and header.record_count * LEAST_RECORD_BYTES > records_bytes:
        raise InvalidRecordError(
            f"a batch counts {header.record_count} records in {records_bytes} bytes"
        )


def _check_producer(header: BatchHeader, numbered: bool) -> None:
    if header.producer_id == NO_PRODUCER_ID:
        if header.is_transactional:
            raise InvalidRecordError("a transactional batch names no producer")
        return
    is_numbered = header.base_sequence >= 0 if numbered else header.base_sequence == NO_SEQUENCE
    if header.producer_id < NO_PRODUCER_ID or header.producer_epoch < 0 or not is_numbered:
        raise InvalidRecordError(
            f"producer {header.producer_id} has epoch {header.producer_epoch} and sequence "
            f"{header.base_sequence}"
        )
