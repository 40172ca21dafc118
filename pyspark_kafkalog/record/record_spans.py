"""Where each record of a batch lies, and the few fields that say whether it may go.

A record (magic 2, KIP-98), all numbers but the attributes zigzag varints:

    length | attributes int8 | timestamp delta | offset delta
    key length (-1 = none) | key | value length (-1 = none) | value | headers

Reads what is before the value and nothing behind it: no record becomes an object, its bytes may be
copied as they are. One plain file, compiled by Cython where a compiler is there. Pure functions
over decompressed records: any thread; O(records).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import cython
from kafka.errors import CorruptRecordError

from pyspark_kafkalog.record.batch import LEAST_RECORD_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RecordSpan(NamedTuple):
    """One record; positions count from the first byte of the batch's decompressed records."""

    start: int
    """Of the length field."""
    end: int
    timestamp_delta: int
    offset_position: int
    """Of the offset delta: what follows the timestamp does not depend on it."""
    offset_delta: int
    key_start: int
    key_end: int
    """-1 when the record has no key."""
    has_value: bool


@cython.cclass
class _Cursor:
    """A position in the bytes of the records."""

    data: cython.const[cython.uchar][::1]
    position: cython.Py_ssize_t
    size: cython.Py_ssize_t

    def __init__(self, data: "Buffer") -> None:
        self.data = memoryview(data)
        self.position = 0
        self.size = len(self.data)

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-4611686018427387904, check=True)
    def varint(self) -> cython.longlong:
        shift: cython.int = 0
        value: cython.ulonglong = 0
        byte: cython.ulonglong
        half: cython.longlong
        while self.position < self.size and shift < 64:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                half = value >> 1
                return -half - 1 if value & 1 else half
            shift += 7
        raise CorruptRecordError("a number in a record is cut off or longer than 64 bits")


def record_spans(records: "Buffer", record_count: int) -> Iterator[RecordSpan]:
    """The `record_count` records that make up `records`, in order.

    Raises CorruptRecordError where a length does not fit, where offset deltas do not grow, and
    when bytes are left over.
    """
    cursor: _Cursor = _Cursor(records)
    number: cython.Py_ssize_t
    count: cython.Py_ssize_t = record_count
    start: cython.Py_ssize_t
    end: cython.Py_ssize_t
    offset_position: cython.Py_ssize_t
    key_start: cython.Py_ssize_t
    key_end: cython.Py_ssize_t
    length: cython.longlong
    timestamp_delta: cython.longlong
    offset_delta: cython.longlong
    last_delta: cython.longlong = -1
    if count > cursor.size // LEAST_RECORD_BYTES:
        raise CorruptRecordError(f"{cursor.size} bytes cannot hold {count} records")
    for number in range(count):
        start = cursor.position
        length = cursor.varint()
        if length < 1 or length > cursor.size - cursor.position:
            raise CorruptRecordError(f"record {number} of a batch claims {length} bytes")
        end = cursor.position + length
        cursor.position += 1
        timestamp_delta = cursor.varint()
        offset_position = cursor.position
        offset_delta = cursor.varint()
        if offset_delta <= last_delta or offset_delta > 0x7FFFFFFF:
            raise CorruptRecordError(f"record {number} of a batch has offset delta {offset_delta}")
        last_delta = offset_delta
        key_end = -1
        length = cursor.varint()
        key_start = cursor.position
        if length >= 0:
            if length > end - key_start:
                raise CorruptRecordError(f"record {number} of a batch has a key beyond its end")
            key_end = key_start + length
            cursor.position = key_end
        length = cursor.varint()
        if cursor.position > end or length > end - cursor.position:
            raise CorruptRecordError(f"record {number} of a batch has a value beyond its end")
        cursor.position = end
        yield RecordSpan(
            start,
            end,
            timestamp_delta,
            offset_position,
            offset_delta,
            key_start,
            key_end,
            length >= 0,
        )
    if cursor.position != cursor.size:
        raise CorruptRecordError(f"{cursor.size - cursor.position} bytes follow the last record")
