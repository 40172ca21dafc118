"""The record batch, magic 2: the unit that producers send, brokers store and consumers fetch.

This module owns the 61-byte header (Kafka's "Message Format" document, KIP-98):

    base offset           int64   stamped by the broker              not covered by the CRC
    batch length          int32   bytes that follow this field       not covered
    partition leader epoch int32  stamped by the broker              not covered
    magic                 int8    2                                  not covered
    crc                   uint32  CRC-32C of all that follows
    attributes            int16   bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control,
                                  6 delete horizon (then the base timestamp is it; KIP-534)
    last offset delta     int32
    base timestamp        int64   ms
    max timestamp         int64   ms
    producer id, epoch    int64, int16
    base sequence         int32
    record count          int32
    records                       compressed as one block when a codec is named

Everything here costs O(1) per batch and never looks at a record: `pyspark_kafkalog.arrow` decodes
and encodes those. Buffers are any contiguous bytes, often a socket's frame holding many batches;
positions are absolute in them. Pure functions: any thread.
"""

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kafka.errors import CorruptRecordError, UnsupportedForMessageFormatError

from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.crc import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC: Final = 2
HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
"""Base offset and batch length: what the batch length does not count."""
LEAST_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, no key, no value, no headers: a byte each."""
MAGIC_POSITION: Final = 16
"""Where the old message formats have their magic too."""
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35
PRODUCER_POSITION: Final = 43

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH: Final = struct.Struct(">i")
_STAMP: Final = struct.Struct(">qii")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_PRODUCER: Final = struct.Struct(">qhi")


class BatchHeader:
    """One batch's header as numbers, and where the batch lies in its buffer."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp_ms",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp_ms",
        "partition_leader_epoch",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    def __init__(self, buffer: "Buffer", position: int) -> None:
        self.position: int = position
        self.base_offset: int
        self.partition_leader_epoch: int
        self.magic: int
        self.crc: int
        self.attributes: int
        self.last_offset_delta: int
        self.base_timestamp_ms: int
        self.max_timestamp_ms: int
        self.producer_id: int
        self.producer_epoch: int
        self.base_sequence: int
        self.record_count: int
        (
            self.base_offset,
            length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(buffer, position)
        self.size_bytes: int = LOG_OVERHEAD_BYTES + length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes

    @property
    def codec(self) -> Codec:
        """Raises CorruptRecordError for a number that names no codec."""
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise CorruptRecordError(f"a batch names the unknown codec {number}")
        return Codec(number)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the tombstones or the marker in this batch may go; None until a cleaner sets it."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None

    def __repr__(self) -> str:
        return (
            f"BatchHeader(offsets {self.base_offset}..{self.last_offset}, "
            f"{self.record_count} records, {self.size_bytes} bytes at {self.position})"
        )


def batch_size(buffer: "Buffer", position: int = 0) -> int:
    """The whole size in bytes of the batch at `position`, of which 12 bytes suffice to be there.

    Raises CorruptRecordError when the length cannot be a batch's.
    """
    (length,) = _LENGTH.unpack_from(buffer, position + 8)
    if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise CorruptRecordError(f"a batch at {position} claims a length of {length} bytes")
    return LOG_OVERHEAD_BYTES + int(length)


def read_header(buffer: "Buffer", position: int = 0) -> BatchHeader:
    """The header of the whole batch at `position`.

    Raises CorruptRecordError when what lies there is not a whole, plausible batch, and
    UnsupportedForMessageFormatError when it is in the format before magic 2.
    """
    left_bytes = memoryview(buffer).nbytes - position
    if left_bytes < HEADER_BYTES:
        raise CorruptRecordError(f"{left_bytes} bytes at {position} cannot hold a batch")
    header = BatchHeader(buffer, position)
    _check_magic(header.magic, position)
    if header.size_bytes < HEADER_BYTES or header.size_bytes > left_bytes:
        raise CorruptRecordError(
            f"a batch at {position} claims {header.size_bytes} of {left_bytes} bytes"
        )
    if header.last_offset_delta < 0 or header.base_offset < 0 or header.record_count < 0:
        raise CorruptRecordError(f"a batch at {position} has negative offsets or record count")
    return header


def batches(buffer: "Buffer", position: int = 0) -> Iterator[BatchHeader]:
    """The headers of the whole batches from `position` on.

    A cut-off last batch is legal on the wire (a fetch may end anywhere) and ends the iteration.
    Raises as `read_header` for what is whole but no batch.
    """
    view = memoryview(buffer)
    end = view.nbytes
    while position + MAGIC_POSITION < end:
        # Before the length, which in the old formats may be shorter than a batch's header.
        _check_magic(view[position + MAGIC_POSITION], position)
        if position + batch_size(buffer, position) > end:
            return
        header = read_header(buffer, position)
        yield header
        position += header.size_bytes


def _check_magic(magic: int, position: int) -> None:
    if magic in (0, 1):
        raise UnsupportedForMessageFormatError(
            f"a batch has the old message format {magic}, supported is {MAGIC}"
        )
    if magic != MAGIC:
        raise CorruptRecordError(f"a batch at {position} has magic {magic}")


def check_crc(buffer: "Buffer", header: BatchHeader) -> None:
    """Raises CorruptRecordError unless the batch's bytes have the CRC that its header states."""
    start = header.position + ATTRIBUTES_POSITION
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    actual = crc32c(view[start : header.end_position])
    if actual != header.crc:
        raise CorruptRecordError(
            f"the batch at offset {header.base_offset} has CRC {actual:#010x}, "
            f"its header says {header.crc:#010x}"
        )


def stamp(
    buffer: "Buffer", header: BatchHeader, base_offset: int, partition_leader_epoch: int
) -> None:
    """Writes the two fields that a broker owns, in place; the CRC does not cover them."""
    length = header.size_bytes - LOG_OVERHEAD_BYTES
    _STAMP.pack_into(buffer, header.position, base_offset, length, partition_leader_epoch)
    header.base_offset = base_offset
    header.partition_leader_epoch = partition_leader_epoch


def stamp_append_time(buffer: "Buffer", header: BatchHeader, append_time_ms: int) -> None:
    """Turns the batch's timestamps into LogAppendTime, in place, and computes the CRC anew."""
    header.attributes |= LOG_APPEND_TIME_BIT
    header.max_timestamp_ms = append_time_ms
    _ATTRIBUTES.pack_into(buffer, header.position + ATTRIBUTES_POSITION, header.attributes)
    _MAX_TIMESTAMP.pack_into(buffer, header.position + MAX_TIMESTAMP_POSITION, append_time_ms)
    header.crc = _write_crc(buffer, header.position, header.end_position)


def seal(
    batch: "Buffer",
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> None:
    """Writes the producer's fields into one freshly encoded batch and closes it with its CRC."""
    _PRODUCER.pack_into(batch, PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _write_crc(batch, 0, memoryview(batch).nbytes)


def mark_transactional(batch: "Buffer") -> None:
    """Sets the attribute of a batch that belongs to a transaction; to be sealed afterwards."""
    position = ATTRIBUTES_POSITION
    (attributes,) = _ATTRIBUTES.unpack_from(batch, position)
    _ATTRIBUTES.pack_into(batch, position, attributes | TRANSACTIONAL_BIT)


def with_records(
    buffer: "Buffer", header: BatchHeader, codec: Codec, records: "Buffer"
) -> bytearray:
    """A new batch: the one that `header` describes in `buffer`, but its records are `records`,
    the same ones compressed by `codec`."""
    head = memoryview(buffer)[header.position : header.position + HEADER_BYTES]
    batch = bytearray(head) + records
    _LENGTH.pack_into(batch, 8, len(batch) - LOG_OVERHEAD_BYTES)
    attributes = header.attributes & ~CODEC_MASK | codec
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_POSITION, attributes)
    _write_crc(batch, 0, len(batch))
    return batch


def rebuild(
    header: BatchHeader,
    records: "Buffer",
    record_count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    attributes: int,
) -> bytearray:
    """A batch with the offsets, sequence numbers and epochs of `header` around other records,
    which are compressed already as `attributes` say. Broker side: the leader epoch stays."""
    data = bytearray(HEADER_BYTES)
    data += memoryview(records)
    HEADER.pack_into(
        data,
        0,
        header.base_offset,
        len(data) - LOG_OVERHEAD_BYTES,
        header.partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        record_count,
    )
    _write_crc(data, 0, len(data))
    return data


def _write_crc(buffer: "Buffer", position: int, end_position: int) -> int:
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end_position])
    _CRC.pack_into(buffer, position + CRC_POSITION, crc)
    return crc
