"""Arrow rows into record batches, as they travel: the writer's inner loop.

Writes the layout that `pyspark_kafkalog.arrow.decode` describes, one open record batch per
partition, handed on when the next record would make it larger than asked. Keys choose partitions as
Kafka's Java client does (murmur2, positive, modulo); rows without a key stay together and move on
with each Arrow batch, as its sticky partitioner does (KIP-480).

The batches that come out have no producer fields and no CRC yet: `record.batch.seal` writes both
when the producer knows its sequence numbers. Compiled by Cython in pure-Python mode; the same file
runs uncompiled, much slower. An encoder belongs to one thread.
"""

import random
import time
from collections.abc import Iterator
from typing import Any

import cython
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.arrow.schema import HEADERS_TYPE
from pyspark_kafkalog.record.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from pyspark_kafkalog.record.compression import Codec, compress

MAX_BATCH_BYTES = 1_000_000
"""Default size of a batch before compression: below `max.message.bytes` of a default topic."""

MAX_OPEN_BYTES = 64 * 1024 * 1024
"""Batches of a topic with many partitions are smaller, so that all of them take no more together.

Down to LEAST_BATCH_BYTES, the default of Kafka's own producer: smaller ones would be mostly header.
"""

LEAST_BATCH_BYTES = 16 * 1024

_NO_LEADER_EPOCH = -1
_BY_KEY = -1
"""A row's partition where none is named."""


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_size(value: cython.longlong) -> cython.Py_ssize_t:
    zigzag: cython.ulonglong = (value << 1) ^ (value >> 63)
    size: cython.Py_ssize_t = 1
    while zigzag > 0x7F:
        zigzag >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size_bound(body_bytes: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """An upper bound of the size of a record whose key, value and headers take `body_bytes`."""
    # Eight varints of five bytes. As a constant of the module it would be one of Python's objects.
    return body_bytes + 40


@cython.final
@cython.cclass
class _Bytes:
    """Reads a binary or string array: its Arrow buffers, from its own offset on."""

    ends: cython.const[cython.int][::1]
    data: cython.const[cython.uchar][::1]
    valid: cython.const[cython.uchar][::1]
    has_nulls: cython.bint
    first: cython.Py_ssize_t

    def __init__(self, array: pa.Array) -> None:
        valid, ends, data = array.buffers()
        self.first = array.offset
        self.has_nulls = valid is not None and array.null_count > 0
        self.valid = memoryview(valid if self.has_nulls else b"\xff").cast("B")
        # An empty array may come without its buffers.
        ends_view = memoryview(ends if ends is not None else b"\0\0\0\0").cast("B")
        self.ends = ends_view[: len(ends_view) // 4 * 4].cast("i")
        self.data = memoryview(data if data is not None else b"").cast("B")

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def length(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The row's length in bytes, -1 for null."""
        index: cython.Py_ssize_t = self.first + row
        if self.has_nulls and not (self.valid[index >> 3] >> (index & 7)) & 1:
            return -1
        return self.ends[index + 1] - self.ends[index]

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def start(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.ends[self.first + row]

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def murmur2(self, row: cython.Py_ssize_t) -> cython.uint:
        """The row's hash as `org.apache.kafka.common.utils.Utils.murmur2` computes it.

        All numbers are typed: a literal beyond 32 bits would make Python's integers of the rest.
        """
        mask: cython.ulonglong = 0xFFFFFFFF
        multiplier: cython.ulonglong = 0x5BD1E995
        hashed: cython.ulonglong = 0x9747B28C
        length: cython.Py_ssize_t = self.length(row)
        position: cython.Py_ssize_t = self.start(row)
        end: cython.Py_ssize_t = position + (length & ~3)
        left: cython.Py_ssize_t = length & 3
        word: cython.ulonglong
        highest: cython.ulonglong
        hashed ^= length
        while position < end:
            highest = self.data[position + 3]
            word = self.data[position]
            word |= self.data[position + 1] << 8
            word |= self.data[position + 2] << 16
            word |= highest << 24
            word = (word * multiplier) & mask
            word ^= word >> 24
            word = (word * multiplier) & mask
            hashed = ((hashed * multiplier) & mask) ^ word
            position += 4
        if left == 3:
            hashed ^= self.data[position + 2] << 16
        if left >= 2:
            hashed ^= self.data[position + 1] << 8
        if left >= 1:
            hashed ^= self.data[position]
            hashed = (hashed * multiplier) & mask
        hashed ^= hashed >> 13
        hashed = (hashed * multiplier) & mask
        hashed ^= hashed >> 15
        return hashed


@cython.final
@cython.cclass
class _OpenBatch:
    """One partition's batch being filled, behind room for its header."""

    data: cython.uchar[::1]
    position: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    count: cython.Py_ssize_t
    base_timestamp: cython.longlong
    max_timestamp: cython.longlong
    buffer: bytearray

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        self.buffer = bytearray(capacity)
        self.data = self.buffer
        self.position = HEADER_BYTES
        self.capacity = capacity
        self.count = 0
        self.base_timestamp = 0
        self.max_timestamp = 0

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def varint(self, value: cython.longlong, position: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Writes a number at `position`; returns where it ends.

        Positions are handed on instead of kept in `position`: any byte that is written could be
        part of that for all that C knows, and it would go through memory for each number.
        """
        zigzag: cython.ulonglong = (value << 1) ^ (value >> 63)
        while zigzag > 0x7F:
            self.data[position] = (zigzag & 0x7F) | 0x80
            position += 1
            zigzag >>= 7
        self.data[position] = zigzag
        return position + 1

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def byte_string(
        self, column: _Bytes, row: cython.Py_ssize_t, position: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Writes a length, -1 for null, and that many bytes; returns where they end."""
        i: cython.Py_ssize_t
        to: cython.pointer[cython.uchar]
        origin: cython.pointer[cython.const[cython.uchar]]
        start: cython.Py_ssize_t = column.start(row)
        length: cython.Py_ssize_t = column.length(row)
        position = self.varint(length, position)
        if length <= 0:
            return position
        if cython.compiled:
            # By pointers, so that the C compiler sees a plain copy and vectorizes it.
            to = cython.address(self.data[position])
            origin = cython.address(column.data[start])
            for i in range(length):
                to[i] = origin[i]
        else:
            self.data[position : position + length] = column.data[start : start + length]
        return position + length

    def records(self) -> cython.Py_ssize_t:
        return self.count

    def allocated_bytes(self) -> cython.Py_ssize_t:
        return self.capacity

    def close(self, codec: Codec) -> bytearray:
        """The batch's bytes, compressed; it cannot be filled any more."""
        self.data = None
        del self.buffer[self.position :]
        batch = self.buffer
        if codec != Codec.NONE:
            batch = batch[:HEADER_BYTES]
            batch += compress(codec, memoryview(self.buffer)[HEADER_BYTES:])
        HEADER.pack_into(
            batch,
            0,
            0,
            len(batch) - LOG_OVERHEAD_BYTES,
            _NO_LEADER_EPOCH,
            MAGIC,
            0,
            int(codec),
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            self.count,
        )
        return batch


@cython.final
@cython.cclass
class _Source:
    """The columns of one Arrow batch to be encoded, and each row's partition."""

    keys: _Bytes
    values: _Bytes
    header_keys: _Bytes
    header_values: _Bytes
    header_ends: cython.const[cython.int][::1]
    header_first: cython.Py_ssize_t
    timestamps: cython.const[cython.longlong][::1]
    partitions: cython.int[::1]
    has_keys: cython.bint
    has_headers: cython.bint
    has_timestamps: cython.bint
    now_ms: cython.longlong
    rows: cython.Py_ssize_t
    partition_buffer: bytearray

    def __init__(self, batch: pa.RecordBatch, now_ms: int) -> None:
        self.rows = batch.num_rows
        self.now_ms = now_ms
        nulls = pa.nulls(0, pa.binary())
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.values = _Bytes(columns["value"])
        self.has_keys = "key" in columns
        self.keys = _Bytes(columns.get("key", nulls))
        self._read_headers(columns.get("headers"))
        self.has_timestamps = "timestamp" in columns
        self.timestamps = _timestamps_ms(columns.get("timestamp"), now_ms)
        self.partition_buffer = bytearray(4 * max(1, self.rows))
        self.partitions = memoryview(self.partition_buffer).cast("i")

    def _read_headers(self, headers: Any) -> None:
        self.has_headers = headers is not None
        if headers is None:
            headers = pa.nulls(0, HEADERS_TYPE)
        if headers.null_count:
            headers = pc.fill_null(headers, pa.scalar([], headers.type))
        ends = headers.buffers()[1]
        ends_view = memoryview(ends if ends is not None else b"\0\0\0\0").cast("B")
        self.header_ends = ends_view[: len(ends_view) // 4 * 4].cast("i")
        self.header_first = headers.offset
        entries = headers.values
        self.header_keys = _Bytes(entries.field(0))
        self.header_values = _Bytes(entries.field(1))

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def choose(self, chosen: Any, partition_count: cython.int, sticky: cython.int) -> None:
        """Sets each row's partition: as `chosen` says (null: by key), or `sticky` without a key."""
        row: cython.Py_ssize_t
        hashed: cython.longlong
        has_chosen: cython.bint = chosen is not None and self.rows > 0
        named: cython.const[cython.int][::1]
        if has_chosen:
            named = _int32s(pc.fill_null(chosen, _BY_KEY))
        for row in range(self.rows):
            if has_chosen and named[row] >= 0:
                self.partitions[row] = named[row]
            elif self.has_keys and self.keys.length(row) >= 0:
                hashed = self.keys.murmur2(row)
                self.partitions[row] = (hashed & 0x7FFFFFFF) % partition_count
            else:
                self.partitions[row] = sticky

    def partition_of(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.partitions[row]

    @cython.ccall
    @cython.boundscheck(False)
    @cython.wraparound(False)
    def fill(self, row: cython.Py_ssize_t, open_batches: list[Any]) -> cython.Py_ssize_t:
        """Appends the rows from `row` on to their partitions' open batches.

        Stops before a row whose batch is missing (None) or has no room, and returns that row;
        returns the number of rows when all are appended.
        """
        batch: _OpenBatch
        timestamp: cython.longlong
        body_bytes: cython.Py_ssize_t
        while row < self.rows:
            found = open_batches[self.partitions[row]]
            if found is None:
                return row
            batch = found
            body_bytes = self._body_size(row)
            if batch.position + _size_bound(body_bytes) > batch.capacity:
                return row
            timestamp = self.timestamps[row] if self.has_timestamps else self.now_ms
            self._append(row, timestamp, body_bytes, batch)
            row += 1
        return row

    def size_bound(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """An upper bound of the record's size in bytes."""
        return _size_bound(self._body_size(row))

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _body_size(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """How many bytes key, value and headers take, without the lengths of key and value."""
        key: cython.Py_ssize_t = self.keys.length(row) if self.has_keys else -1
        value: cython.Py_ssize_t = self.values.length(row)
        headers: cython.Py_ssize_t = self._headers_size(row) if self.has_headers else 1
        return (key if key > 0 else 0) + (value if value > 0 else 0) + headers

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def _headers_size(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The exact size in bytes of the header count and the headers."""
        entry: cython.Py_ssize_t
        length: cython.Py_ssize_t
        first: cython.Py_ssize_t = self.header_ends[self.header_first + row]
        last: cython.Py_ssize_t = self.header_ends[self.header_first + row + 1]
        size: cython.Py_ssize_t = _varint_size(last - first)
        for entry in range(first, last):
            length = self.header_keys.length(entry)
            size += _varint_size(length) + length
            length = self.header_values.length(entry)
            size += _varint_size(length) + (length if length > 0 else 0)
        return size

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def _append(
        self,
        row: cython.Py_ssize_t,
        timestamp: cython.longlong,
        body_bytes: cython.Py_ssize_t,
        batch: _OpenBatch,
    ) -> cython.void:
        entry: cython.Py_ssize_t
        first: cython.Py_ssize_t = 0
        last: cython.Py_ssize_t = 0
        position: cython.Py_ssize_t = batch.position
        if batch.count == 0:
            batch.base_timestamp = timestamp
            batch.max_timestamp = timestamp
        if timestamp > batch.max_timestamp:
            batch.max_timestamp = timestamp
        timestamp -= batch.base_timestamp
        position = batch.varint(
            1
            + _varint_size(timestamp)
            + _varint_size(batch.count)
            + _varint_size(self.keys.length(row) if self.has_keys else -1)
            + _varint_size(self.values.length(row))
            + body_bytes,
            position,
        )
        batch.data[position] = 0
        position = batch.varint(timestamp, position + 1)
        position = batch.varint(batch.count, position)
        if self.has_keys:
            position = batch.byte_string(self.keys, row, position)
        else:
            position = batch.varint(-1, position)
        position = batch.byte_string(self.values, row, position)
        if self.has_headers:
            first = self.header_ends[self.header_first + row]
            last = self.header_ends[self.header_first + row + 1]
        position = batch.varint(last - first, position)
        for entry in range(first, last):
            position = batch.byte_string(self.header_keys, entry, position)
            position = batch.byte_string(self.header_values, entry, position)
        batch.position = position
        batch.count += 1


class RecordEncoder:
    """Turns Arrow rows for one topic into record batches per partition.

    Rows have a `value` column and may have `key`, `headers`, `timestamp` and `partition`, typed as
    `arrow.schema.COLUMN_TYPES`; a null timestamp is the time of encoding, a null partition is
    chosen by key. Rows gather until a batch is full; `finish` hands over the rest.
    Memory: one batch of `max_batch_bytes` per partition, MAX_OPEN_BYTES in all.
    """

    def __init__(
        self,
        partition_count: int,
        codec: Codec = Codec.NONE,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._codec = codec
        share_bytes = max(LEAST_BATCH_BYTES, MAX_OPEN_BYTES // partition_count)
        self._max_batch_bytes = min(max_batch_bytes, share_bytes)
        self._open: list[_OpenBatch | None] = [None] * partition_count
        self.open_bytes = 0
        """What the open batches have allocated."""
        self._sticky = random.randrange(partition_count)

    def encode(self, rows: pa.RecordBatch) -> Iterator[tuple[int, bytearray]]:
        """(partition, unsealed record batch) for each batch that `rows` fill, in order.

        Raises ValueError for a partition that does not exist.
        """
        partitions = rows.column("partition") if "partition" in rows.schema.names else None
        self._check_partitions(partitions)
        self._sticky = (self._sticky + 1) % len(self._open)
        source = _Source(rows, time.time_ns() // 1_000_000)
        source.choose(partitions, len(self._open), self._sticky)
        row = source.fill(0, self._open)
        while row < rows.num_rows:
            partition = source.partition_of(row)
            yield from self._close(partition)
            needed_bytes = HEADER_BYTES + source.size_bound(row)
            opened = _OpenBatch(max(self._max_batch_bytes, needed_bytes))
            self.open_bytes += opened.allocated_bytes()
            self._open[partition] = opened
            row = source.fill(row, self._open)

    def finish(self) -> Iterator[tuple[int, bytearray]]:
        """The open batches, if any."""
        for partition in range(len(self._open)):
            yield from self._close(partition)

    def _close(self, partition: int) -> Iterator[tuple[int, bytearray]]:
        batch = self._open[partition]
        self._open[partition] = None
        if batch is not None:
            self.open_bytes -= batch.allocated_bytes()
            if batch.records():
                yield partition, batch.close(self._codec)

    def _check_partitions(self, partitions: Any) -> None:
        if partitions is None or partitions.null_count == len(partitions):
            return
        lowest, highest = pc.min_max(partitions).as_py().values()
        if lowest < 0 or highest >= len(self._open):
            wrong = lowest if lowest < 0 else highest
            raise ValueError(
                f"a row names partition {wrong}, the topic has 0 to {len(self._open) - 1}"
            )


def _int32s(numbers: Any) -> memoryview:
    """The values of an int32 array that has some, none of them null."""
    view = memoryview(numbers.buffers()[1]).cast("B").cast("i")
    return view[numbers.offset : numbers.offset + len(numbers)]


def _timestamps_ms(timestamps: Any, now_ms: int) -> memoryview:
    """A timestamp column (microseconds) as milliseconds, `now_ms` where it is null."""
    if timestamps is None:
        return memoryview(b"\0" * 8).cast("q")
    micros = timestamps.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    filled = pc.fill_null(micros, now_ms * 1000)
    # Arrow divides towards zero; a time before 1970 is rounded towards the past all the same.
    before_epoch = pc.less(filled, 0)
    millis = pc.divide(pc.if_else(before_epoch, pc.subtract(filled, 999), filled), 1000)
    view = memoryview(millis.buffers()[1]).cast("B").cast("q")
    return view[millis.offset : millis.offset + len(millis)]
