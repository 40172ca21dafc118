"""Record batches, as they travel, into Arrow record batches: the reader's inner loop.

Owns the layout of a record, magic 2 (Kafka's "Message Format" document); all numbers but the
attributes are zigzag varints:

    length | attributes int8 | timestamp delta | offset delta | key length, key |
    value length, value | header count | (key length, key, value length, value)*

A length of -1 is null. Each byte of a key, value or header is copied once, from the (decompressed)
batch to the Arrow buffer where it stays; no Python object is made per record.

Compiled by Cython in pure-Python mode; the same file runs uncompiled, some hundred times slower.
Whatever the bytes are, the outcome is rows, CorruptRecordError, or BadRecordError for a record that
is well formed and has a field which no row can hold. A decoder belongs to one thread.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import cython
import pyarrow as pa
from kafka.errors import CorruptRecordError

from pyspark_kafkalog.arrow.schema import COLUMN_TYPES, HEADERS_TYPE, row_schema
from pyspark_kafkalog.errors import BadRecordError
from pyspark_kafkalog.record.batch import HEADER_BYTES, BatchHeader, batches
from pyspark_kafkalog.record.compression import decompress

ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 4 * 1024 * 1024
"""An Arrow batch is handed on when it has so many rows, or so many bytes of records."""

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""A batch that grows beyond this is refused: it is not worth a process's memory."""

# Of C: to compare with a number of Python's made half of a row's cost.
_MAX_TIMESTAMP_MS = cython.declare(cython.longlong, (1 << 63) // 1000 - 1)
_ABORT_MARKER = b"\x00\x00\x00\x00"
"""A control record's key: version int16, then type int16, where 0 is an abort (KIP-98)."""


@cython.cclass
class _Bytes:
    """A column of byte strings being filled: Arrow's int32 ends, data and validity bits."""

    ends: cython.int[::1]
    data: cython.uchar[::1]
    valid: cython.uchar[::1]
    count: cython.Py_ssize_t
    size: cython.Py_ssize_t
    nulls: cython.Py_ssize_t
    valid_buffer: Any
    ends_buffer: Any
    data_buffer: Any

    def __init__(self, entries: cython.Py_ssize_t, data_bytes: cython.Py_ssize_t) -> None:
        self.valid_buffer = pa.py_buffer(bytearray((entries + 7) // 8))
        self.ends_buffer = pa.allocate_buffer(4 * (entries + 1))
        self.data_buffer = pa.allocate_buffer(data_bytes)
        self.valid = memoryview(self.valid_buffer).cast("B")
        self.ends = memoryview(self.ends_buffer).cast("B").cast("i")
        self.data = memoryview(self.data_buffer).cast("B")
        self.ends[0] = 0
        self.count = 0
        self.size = 0
        self.nulls = 0

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def append(
        self,
        source: cython.const[cython.uchar][::1],
        start: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> cython.void:
        """The `length` bytes at `start`; a negative length is null. Room was checked before."""
        i: cython.Py_ssize_t
        to: cython.pointer[cython.uchar]
        origin: cython.pointer[cython.const[cython.uchar]]
        if length < 0:
            self.nulls += 1
        else:
            self.valid[self.count >> 3] |= 1 << (self.count & 7)
            if cython.compiled:
                # By pointers, so that the C compiler sees a plain copy and vectorizes it.
                to = cython.address(self.data[self.size])
                origin = cython.address(source[start])
                for i in range(length):
                    to[i] = origin[i]
            else:
                self.data[self.size : self.size + length] = source[start : start + length]
            self.size += length
        self.count += 1
        self.ends[self.count] = self.size

    def array(self, data_type: pa.DataType) -> pa.Array:
        valid = self.valid_buffer if self.nulls else None
        data = self.data_buffer.slice(0, self.size)
        return pa.Array.from_buffers(
            data_type, self.count, [valid, self.ends_buffer, data], self.nulls
        )


@cython.cclass
class _Rows:
    """The columns of one Arrow batch being filled, with room for so many rows and bytes."""

    row_capacity: cython.Py_ssize_t
    byte_capacity: cython.Py_ssize_t
    count: cython.Py_ssize_t
    size: cython.Py_ssize_t
    keys: _Bytes
    values: _Bytes
    header_keys: _Bytes
    header_values: _Bytes
    offsets: cython.longlong[::1]
    timestamps: cython.longlong[::1]
    timestamp_types: cython.int[::1]
    header_ends: cython.int[::1]
    header_valid: cython.uchar[::1]
    without_headers: cython.Py_ssize_t
    without_timestamp: list[int]
    topic_partition: str
    permissive: cython.bint
    want_key: cython.bint
    want_value: cython.bint
    want_headers: cython.bint
    want_offset: cython.bint
    want_timestamp: cython.bint
    want_timestamp_type: cython.bint
    offset_buffer: Any
    timestamp_buffer: Any
    timestamp_type_buffer: Any
    header_ends_buffer: Any
    header_valid_buffer: Any

    def __init__(
        self,
        columns: Sequence[str],
        row_capacity: cython.Py_ssize_t,
        byte_capacity: cython.Py_ssize_t,
        topic_partition: str,
        permissive: cython.bint,
    ) -> None:
        self.topic_partition = topic_partition
        self.permissive = permissive
        self.without_timestamp = []
        self.row_capacity = row_capacity
        self.byte_capacity = byte_capacity
        self.count = 0
        self.size = 0
        self.want_key = "key" in columns
        self.want_value = "value" in columns
        self.want_headers = "headers" in columns
        self.want_offset = "offset" in columns
        self.want_timestamp = "timestamp" in columns
        self.want_timestamp_type = "timestampType" in columns
        # What nobody wants has no buffers, and is never touched.
        if self.want_key:
            self.keys = _Bytes(row_capacity, byte_capacity)
        if self.want_value:
            self.values = _Bytes(row_capacity, byte_capacity)
        if self.want_headers:
            self._make_headers()
        if self.want_offset:
            self.offset_buffer = pa.allocate_buffer(8 * row_capacity)
            self.offsets = memoryview(self.offset_buffer).cast("B").cast("q")
        if self.want_timestamp:
            self.timestamp_buffer = pa.allocate_buffer(8 * row_capacity)
            self.timestamps = memoryview(self.timestamp_buffer).cast("B").cast("q")
        if self.want_timestamp_type:
            self.timestamp_type_buffer = pa.allocate_buffer(4 * row_capacity)
            self.timestamp_types = memoryview(self.timestamp_type_buffer).cast("B").cast("i")

    def _make_headers(self) -> None:
        # A header takes two bytes of its record at least.
        self.header_keys = _Bytes(self.byte_capacity // 2, self.byte_capacity)
        self.header_values = _Bytes(self.byte_capacity // 2, self.byte_capacity)
        self.header_ends_buffer = pa.allocate_buffer(4 * (self.row_capacity + 1))
        self.header_ends = memoryview(self.header_ends_buffer).cast("B").cast("i")
        self.header_ends[0] = 0
        self.header_valid_buffer = pa.py_buffer(bytearray((self.row_capacity + 7) // 8))
        self.header_valid = memoryview(self.header_valid_buffer).cast("B")
        self.without_headers = 0

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def put_numbers(
        self, offset: cython.longlong, timestamp: cython.longlong, timestamp_type: cython.int
    ) -> cython.void:
        """Those of the row that is being filled; `timestamp` is in microseconds."""
        if self.want_offset:
            self.offsets[self.count] = offset
        if self.want_timestamp:
            self.timestamps[self.count] = timestamp
        if self.want_timestamp_type:
            self.timestamp_types[self.count] = timestamp_type

    def rows(self) -> cython.Py_ssize_t:
        return self.count

    def arrays(self) -> dict[str, pa.Array]:
        """The filled columns by name; the others are the caller's constants."""
        found = {}
        if self.want_key:
            found["key"] = self.keys.array(pa.binary())
        if self.want_value:
            found["value"] = self.values.array(pa.binary())
        if self.want_headers:
            header_keys = _text(self.header_keys.array(pa.binary()))
            entries = pa.StructArray.from_arrays(
                [header_keys, self.header_values.array(pa.binary())],
                fields=list(HEADERS_TYPE.value_type),
            )
            found["headers"] = pa.Array.from_buffers(
                HEADERS_TYPE,
                self.count,
                [self.header_valid_buffer, self.header_ends_buffer],
                self.without_headers,
                children=[entries],
            )
        if self.want_offset:
            found["offset"] = self._numbers("offset", self.offset_buffer)
        if self.want_timestamp:
            found["timestamp"] = self._timestamps()
        if self.want_timestamp_type:
            found["timestampType"] = self._numbers("timestampType", self.timestamp_type_buffer)
        return found

    def _timestamps(self) -> pa.Array:
        bad = self.without_timestamp
        valid = None
        if bad:
            bits = bytearray(b"\xff" * ((self.count + 7) // 8))
            for row in bad:
                bits[row >> 3] &= ~(1 << (row & 7))
            valid = pa.py_buffer(bits)
        buffers = [valid, self.timestamp_buffer]
        return pa.Array.from_buffers(COLUMN_TYPES["timestamp"], self.count, buffers, len(bad))

    def _numbers(self, name: str, buffer: pa.Buffer) -> pa.Array:
        return pa.Array.from_buffers(COLUMN_TYPES[name], self.count, [None, buffer], 0)


@cython.cclass
class _Cursor:
    """A walk over the records of one decompressed batch, that can stop when the rows are full."""

    source: cython.const[cython.uchar][::1]
    position: cython.Py_ssize_t
    end: cython.Py_ssize_t
    left: cython.Py_ssize_t
    base_offset: cython.longlong
    base_timestamp: cython.longlong
    append_time: cython.longlong
    timestamp_type: cython.int
    start_offset: cython.longlong
    until_offset: cython.longlong

    def __init__(
        self, records: memoryview, header: BatchHeader, start_offset: int, until_offset: int
    ) -> None:
        self.source = records
        self.position = 0
        self.end = len(records)
        self.left = header.record_count
        self.base_offset = header.base_offset
        self.base_timestamp = header.base_timestamp_ms
        self.append_time = header.max_timestamp_ms
        self.timestamp_type = 1 if header.is_log_append_time else 0
        self.start_offset = start_offset
        self.until_offset = until_offset

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-4611686018427387904, check=True)
    def _varint(self) -> cython.longlong:
        shift: cython.int = 0
        value: cython.ulonglong = 0
        byte: cython.ulonglong
        while self.position < self.end:
            byte = self.source[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                break
        raise CorruptRecordError("a number inside a record is malformed")

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2, check=True)
    def _length(self, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """A byte string's length, -1 for null; its bytes lie before `end` for sure."""
        length: cython.longlong = self._varint()
        if length < -1 or length > end - self.position:
            raise CorruptRecordError("a byte string inside a record is longer than the record")
        return length

    @cython.ccall
    @cython.boundscheck(False)
    @cython.wraparound(False)
    def fill(self, rows: _Rows) -> cython.Py_ssize_t:
        """Appends records to `rows`.

        Returns 0 when the batch is exhausted, or else, when the next record has no room, how many
        bytes it needs.
        """
        mark: cython.Py_ssize_t
        length: cython.longlong
        record_end: cython.Py_ssize_t
        while self.left > 0:
            mark = self.position
            length = self._varint()
            if length < 1 or length > self.end - self.position:
                raise CorruptRecordError("a record is longer than its batch")
            if rows.count == rows.row_capacity or rows.size + length > rows.byte_capacity:
                self.position = mark
                return length
            record_end = self.position + length
            if self._record(rows, record_end):
                rows.count += 1
                rows.size += length
            self.position = record_end
            self.left -= 1
        if self.position != self.end:
            raise CorruptRecordError("a batch has bytes behind its last record")
        return 0

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1)
    def _record(self, rows: _Rows, record_end: cython.Py_ssize_t) -> cython.bint:
        """Writes the record that ends at `record_end` as one row; False if it is out of range."""
        length: cython.Py_ssize_t
        timestamp: cython.longlong
        offset: cython.longlong
        self.position += 1  # attributes: no bit of them is in use
        timestamp = self.base_timestamp + self._varint()
        offset = self.base_offset + self._varint()
        if offset < self.start_offset or offset >= self.until_offset:
            return False
        if self.timestamp_type == 1:
            timestamp = self.append_time
        if timestamp > _MAX_TIMESTAMP_MS or timestamp < -_MAX_TIMESTAMP_MS:
            if rows.want_timestamp:
                if not rows.permissive:
                    raise _bad_record(
                        rows.topic_partition,
                        offset,
                        f"has the timestamp {timestamp} ms, later or earlier than any time",
                    )
                rows.without_timestamp.append(rows.count)
            timestamp = 0
        length = self._length(record_end)
        if rows.want_key:
            rows.keys.append(self.source, self.position, length)
        self.position += length if length > 0 else 0
        length = self._length(record_end)
        if rows.want_value:
            rows.values.append(self.source, self.position, length)
        self.position += length if length > 0 else 0
        if rows.want_headers:
            self._headers(rows, record_end, offset)
            if self.position != record_end:
                raise CorruptRecordError(f"the record at offset {offset} has bytes left over")
        rows.put_numbers(offset, timestamp * 1000, self.timestamp_type)
        return True

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=True)
    def _headers(
        self, rows: _Rows, record_end: cython.Py_ssize_t, offset: cython.longlong
    ) -> cython.void:
        length: cython.Py_ssize_t
        count: cython.longlong = self._varint()
        if count < 0 or count > record_end - self.position:
            raise CorruptRecordError("a record announces more headers than it has bytes")
        # No headers are null, as in Spark's own connector.
        if count == 0:
            rows.without_headers += 1
        else:
            rows.header_valid[rows.count >> 3] |= 1 << (rows.count & 7)
        while count > 0:
            length = self._length(record_end)
            if length < 0 and not rows.permissive:
                raise _bad_record(rows.topic_partition, offset, "has a header without a key")
            rows.header_keys.append(self.source, self.position, length)
            self.position += length if length > 0 else 0
            length = self._length(record_end)
            rows.header_values.append(self.source, self.position, length)
            self.position += length if length > 0 else 0
            count -= 1
        rows.header_ends[rows.count + 1] = rows.header_keys.count


class RecordDecoder:
    """Turns one partition's fetched bytes into Arrow batches of some of the row's columns.

    `decode` may be called again and again with what follows; rows gather until a batch is full, and
    `finish` hands over the rest. Memory: one Arrow batch, and one decompressed record batch.

    A record whose timestamp is no time, or that has a header without a key, is a BadRecordError,
    or, with `permissive`, a row with null in the place of it. `bad_timestamps` counts the former.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str],
        rows_per_batch: int = ROWS_PER_BATCH,
        bytes_per_batch: int = BYTES_PER_BATCH,
        permissive: bool = False,
    ) -> None:
        self._topic_partition = f"{topic}-{partition}"
        self._permissive = permissive
        self.bad_timestamps = 0
        self.schema = row_schema(columns)
        self._columns = tuple(columns)
        self._rows_per_batch = rows_per_batch
        self._bytes_per_batch = bytes_per_batch
        self._constants = {
            name: pa.repeat(one[0], rows_per_batch)
            for name, one in (("topic", _one_text(topic)), ("partition", _one_int32(partition)))
            if name in columns
        }
        self._rows: _Rows | None = None

    def decode(
        self,
        records: memoryview,
        start_offset: int,
        until_offset: int,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> Iterator[pa.RecordBatch]:
        """The full Arrow batches that `records` completes.

        `records` are whole record batches (a cut-off last one is ignored), whose CRCs were checked
        when they were received; rows are those with start_offset <= offset < until_offset.
        `aborted` is the fetch's list of (producer id, first offset) of aborted transactions, whose
        records are left out. Raises BadRecordError, CorruptRecordError,
        UnsupportedForMessageFormatError, UnsupportedCompressionTypeError.
        """
        for header in _wanted(records, start_offset, until_offset, aborted):
            try:
                plain = decompress(header.codec, _body(records, header), MAX_DECOMPRESSED_BYTES)
                cursor = _Cursor(plain, header, start_offset, until_offset)
                if self._rows is None:
                    self._rows = self._room(0)
                needed_bytes = cursor.fill(self._rows)
                while needed_bytes:
                    yield from self.finish()
                    self._rows = self._room(needed_bytes)
                    needed_bytes = cursor.fill(self._rows)
            except CorruptRecordError as error:
                raise CorruptRecordError(
                    f"{self._topic_partition}, batch of the offsets {header.base_offset} to "
                    f"{header.last_offset}: {', '.join(map(str, error.args))}"
                ) from error

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rows gathered so far, if any, as a last Arrow batch."""
        rows, self._rows = self._rows, None
        if rows is None or not rows.rows():
            return
        arrays = rows.arrays()
        if "timestamp" in arrays:
            self.bad_timestamps += arrays["timestamp"].null_count
        for name, constant in self._constants.items():
            arrays[name] = constant.slice(0, rows.rows())
        yield pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._columns], schema=self.schema
        )

    def _room(self, needed_bytes: int) -> _Rows:
        most_bytes = max(self._bytes_per_batch, needed_bytes)
        return _Rows(
            self._columns, self._rows_per_batch, most_bytes, self._topic_partition, self._permissive
        )


def _bad_record(topic_partition: str, offset: int, what: str) -> BadRecordError:
    return BadRecordError(
        f"The record of {topic_partition} at offset {offset} {what}. Set the option mode to "
        "PERMISSIVE to read NULL in its place; in a load, set on_error to deadletter, or to null, "
        "which needs a column value_error (a text) in a table that is there."
    )


# From buffers, because pa.array and pa.scalar import pandas where it is installed: half a second
# and 40 MB of each worker's first task.
def _one_text(value: str) -> pa.Array:
    data = value.encode()
    ends = pa.py_buffer(struct.pack("=ii", 0, len(data)))
    return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(data)])


def _one_int32(value: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(struct.pack("=i", value))])


def _text(names: pa.Array) -> pa.Array:
    """Byte strings as text: a broker checks no header key, and readers of Parquet refuse a column
    of which one is not valid UTF-8: what is not, is replaced, as Kafka's Java client does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        found = names.to_pylist()
        texts = [None if name is None else name.decode(errors="replace") for name in found]
        return pa.array(texts, pa.string())


def _wanted(
    records: memoryview, start_offset: int, until_offset: int, aborted: Sequence[tuple[int, int]]
) -> Iterator[BatchHeader]:
    """The batches with rows to decode: data, inside the range, of no aborted transaction."""
    to_begin = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting = set()
    for header in batches(records):
        if header.base_offset >= until_offset:
            return
        while to_begin and to_begin[-1][1] <= header.last_offset:
            aborting.add(to_begin.pop()[0])
        if header.is_control:
            if header.producer_id in aborting and _is_abort_marker(records, header):
                aborting.remove(header.producer_id)
        elif header.last_offset >= start_offset and not (
            header.is_transactional and header.producer_id in aborting
        ):
            yield header


def _body(records: memoryview, header: BatchHeader) -> memoryview:
    return records[header.position + HEADER_BYTES : header.end_position]


def _is_abort_marker(records: memoryview, header: BatchHeader) -> bool:
    # length, attributes, timestamp delta, offset delta and key length take a byte each here.
    return bytes(_body(records, header)[5:9]) == _ABORT_MARKER
