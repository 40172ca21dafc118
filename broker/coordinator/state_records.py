"""Records of the internal topics: a batch of them, and the fields that their keys and values hold.

Keys and values begin with an int16: the kind of key, the version of the value. In keys, and in
values of versions that are not flexible, strings have an int16 length, bytes and arrays an int32
one (-1 = null); in flexible ones lengths are unsigned varints plus one, and tagged fields follow
each structure. No value: a tombstone. (Kafka's protocol guide; KIP-482.) Pure functions: any
thread.
"""

import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kafka.errors import CorruptRecordError, UnknownError

from pyspark_kafkalog.record.batch import (
    ATTRIBUTES_POSITION,
    TRANSACTIONAL_BIT,
    BatchHeader,
    seal,
)
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.record.records import Record, build_batch, read_records

NO_TIMESTAMP = -1

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
NO_TAGS = b"\x00"
_LONGEST_STRING_BYTES = 2**15 - 1
# Batches that others have written here may be compressed.
_MOST_PLAIN_BYTES = 256 << 20


class ProducerIdAndEpoch(NamedTuple):
    """Who a producer is: a greater epoch fences the smaller ones."""

    producer_id: int
    epoch: int


class StateRecord(NamedTuple):
    """What is to be appended; no value deletes what the key had."""

    key: bytes
    value: bytes | None


def encode_batch(
    records: Sequence[StateRecord], timestamp_ms: int, producer: ProducerIdAndEpoch | None = None
) -> bytearray:
    """One uncompressed batch at offset 0, to be stamped and appended; a part of the producer's
    transaction where one is given, without sequence numbers."""
    batch = build_batch(
        (Record(0, timestamp_ms, record.key, record.value) for record in records), Codec.NONE
    )
    if producer is not None:
        batch[ATTRIBUTES_POSITION + 1] |= TRANSACTIONAL_BIT
        seal(batch, *producer)
    return batch


def decode_records(batch: memoryview, header: BatchHeader) -> Iterator[StateRecord]:
    """The records of one whole batch; what has no key is none of ours."""
    for record in read_records(batch, header, _MOST_PLAIN_BYTES):
        if record.key is not None:
            yield StateRecord(
                bytes(record.key), None if record.value is None else bytes(record.value)
            )


# Fields. Raise UnknownError for a text that is too long for its field.


def string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _LONGEST_STRING_BYTES:
        raise UnknownError(f"a text of {len(data)} bytes is too long to be written down")
    return INT16.pack(len(data)) + data


def nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else string(text)


def sized_bytes(data: bytes) -> bytes:
    return INT32.pack(len(data)) + data


def unsigned_varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


class FieldReader:
    """Reads fields one after the other; what would lie behind the end is a CorruptRecordError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.version = 0
        self.flexible = False

    def int8(self) -> int:
        return int(INT8.unpack(self._take(1))[0])

    def int16(self) -> int:
        return int(INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(INT64.unpack(self._take(8))[0])

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._take(16))

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        length = self._varint() - 1 if self.flexible else self.int16()
        if length < 0:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptRecordError(f"a text is not valid UTF-8: {error}") from None

    def data(self) -> bytes:
        length = self._varint() - 1 if self.flexible else self.int32()
        return self._take(length) if length > 0 else b""

    def array_length(self) -> int:
        return self._varint() - 1 if self.flexible else self.int32()

    def tags(self) -> Iterable[tuple[int, bytes]]:
        """Tagged fields, which only flexible versions have."""
        if not self.flexible:
            return ()
        return [(self._varint(), self._take(self._varint())) for _ in range(self._varint())]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise CorruptRecordError("a length of more than 32 bits")

    def _take(self, size_bytes: int) -> bytes:
        start, end = self._position, self._position + size_bytes
        if end > len(self._data):
            raise CorruptRecordError(f"{len(self._data)} bytes end before {end}")
        self._position = end
        return self._data[start:end]
