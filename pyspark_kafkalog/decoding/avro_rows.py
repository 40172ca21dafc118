"""Avro's binary encoding into Arrow columns: the decoders' inner loop.

Owns the encoding (Avro 1.12 specification, "Binary encoding") and the columns that it fills: int
and long as zigzag varints, bytes and string with their length before them, arrays and maps in
blocks that say how many items follow, unions with the branch before the value. No Python object is
made for a value; decimals are the exception.

A `Column` is one Arrow array that grows. A `Step` reads what was written as one type and appends
one value to its column, or skips it where it has none; several steps may fill the same column, one
for each schema that values were written with. `avro.py` builds both; `read_rows` runs them. When a
value turns out to be bad in its middle, all columns are cut back to where its row began.

Whatever the bytes are, the outcome of a row is a value or BadValueError: lengths and counts are
checked against the bytes that are left before anything is allocated, items that take no bytes are
limited to 100, what items take to what room.py says, and nesting to 100.

Compiled by Cython in pure-Python mode; the same file runs uncompiled, some hundred times slower.
One thread.
"""

import struct
from collections.abc import Callable
from typing import Any

import cython
import pyarrow as pa

from pyspark_kafkalog.decoding import room
from pyspark_kafkalog.decoding.decoder import FRAME_BYTES, BadValueError

# Constants of C, since to compare a number of C with one of Python's makes an object of it.
_MOST_EMPTY_ITEMS = cython.declare(cython.longlong, 100)
"""Most items of one array that take no bytes each, such as nulls: no length bounds them."""

_MOST_NESTED = cython.declare(cython.int, 100)
"""How deep a value that is skipped may be nested; others are as deep as their type."""

_MOST_BYTES = cython.declare(cython.longlong, (1 << 31) - 1)
"""Arrow's offsets are int32."""

_FIRST_ROOM = cython.declare(cython.Py_ssize_t, 64)
_FRAME_BYTES = cython.declare(cython.Py_ssize_t, FRAME_BYTES)
_LONGEST_VARINT = cython.declare(cython.int, 63)


@cython.cfunc
def _larger(buffer: Any, used_bytes: cython.Py_ssize_t, room_bytes: cython.Py_ssize_t) -> Any:
    """A buffer with room for so many bytes that begins as `buffer`, which may be None."""
    larger = pa.allocate_buffer(room_bytes)
    if used_bytes:
        memoryview(larger).cast("B")[:used_bytes] = memoryview(buffer).cast("B")[:used_bytes]
    return larger


@cython.cclass
class Input:
    """The bytes of one value: from `position` to `end`."""

    data: cython.const[cython.uchar][::1]
    position: cython.Py_ssize_t
    end: cython.Py_ssize_t
    nested: cython.int
    room: cython.longlong

    def __init__(self, data: Any) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)
        self.nested = 0
        self.room = room.value_room(len(data))

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1, check=True)
    def read_long(self) -> cython.longlong:
        number: cython.ulonglong = 0
        shift: cython.int = 0
        byte: cython.ulonglong
        half: cython.longlong
        while self.position < self.end:
            byte = self.data[self.position]
            self.position += 1
            if shift == _LONGEST_VARINT and byte > 1:
                raise BadValueError("a number has more than 64 bits")
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                half = number >> 1
                return -half - 1 if number & 1 else half
            shift += 7
        raise BadValueError("the value is cut off in a number")

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def take(self, length: cython.longlong) -> cython.Py_ssize_t:
        """Where the next `length` bytes begin; they are read."""
        start: cython.Py_ssize_t = self.position
        if length < 0 or length > self.end - self.position:
            raise BadValueError(
                f"a length of {length} where {self.end - self.position} bytes are left"
            )
        self.position += length
        return start


@cython.cclass
class Column:
    """One Arrow array that grows: its validity. Subclasses hold the rest."""

    count: cython.Py_ssize_t
    nulls: cython.Py_ssize_t
    room: cython.Py_ssize_t
    valid: cython.uchar[::1]
    valid_buffer: Any
    type: Any

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type
        self.valid_buffer = None
        self.start()

    def data_type(self) -> pa.DataType:
        return self.type

    @cython.ccall
    def start(self) -> None:
        """Empty, with buffers of its own: those of before belong to an array."""
        self.count = 0
        self.nulls = 0
        self.room = 0
        self._grow()

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _grow(self) -> cython.int:
        room: cython.Py_ssize_t = max(_FIRST_ROOM, 2 * self.room)
        self.valid_buffer = _larger(self.valid_buffer, self.count, room)
        self.valid = memoryview(self.valid_buffer).cast("B")
        self._grow_values(room)
        self.room = room
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _grow_values(self, room: cython.Py_ssize_t) -> cython.int:
        return 0

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1, check=False)
    def _add(self, valid: cython.bint) -> cython.int:
        """Counts one value more, which the caller has put in place; there is room for the next."""
        self.valid[self.count] = valid
        self.nulls += not valid
        self.count += 1
        if self.count == self.room:
            self._grow()
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def append_null(self) -> cython.int:
        return self._add(False)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def cut(self, count: cython.Py_ssize_t) -> cython.int:
        """Drops what comes after the first `count` values."""
        i: cython.Py_ssize_t
        for i in range(count, self.count):
            self.nulls -= not self.valid[i]
        self.count = min(count, self.count)
        return 0

    def bitmap(self) -> Any:
        """The validity buffer of the array; None when nothing is null."""
        if not self.nulls:
            return None
        flags = pa.Array.from_buffers(pa.uint8(), self.count, [None, self.valid_buffer])
        return flags.cast(pa.bool_()).buffers()[1]

    def array(self) -> pa.Array:
        raise NotImplementedError


@cython.cclass
class Numbers(Column):
    """Whatever fits in 64 bits: bool, ints, dates, timestamps, and floats as their bits."""

    values: cython.longlong[::1]
    values_buffer: Any

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _grow_values(self, room: cython.Py_ssize_t) -> cython.int:
        before = self.values_buffer if self.room else None
        self.values_buffer = _larger(before, 8 * self.count, 8 * room)
        self.values = memoryview(self.values_buffer).cast("B").cast("q")
        return 0

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1, check=False)
    def append(self, value: cython.longlong) -> cython.int:
        self.values[self.count] = value
        return self._add(True)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def append_null(self) -> cython.int:
        self.values[self.count] = 0
        return self._add(False)

    def array(self) -> pa.Array:
        buffers = [self.bitmap(), self.values_buffer]
        if self.type.bit_width == 64:
            return pa.Array.from_buffers(self.type, self.count, buffers, self.nulls)
        longs = pa.Array.from_buffers(pa.int64(), self.count, buffers, self.nulls)
        if pa.types.is_boolean(self.type):
            return longs.cast(pa.bool_())
        return longs.cast(pa.int32()).view(self.type)


@cython.cclass
class Bytes(Column):
    """Strings of bytes: text, binary, and decimals of 16 bytes each."""

    ends: cython.int[::1]
    data: cython.uchar[::1]
    size: cython.Py_ssize_t
    data_room: cython.Py_ssize_t
    width: cython.Py_ssize_t
    ends_buffer: Any
    data_buffer: Any

    def __init__(self, data_type: pa.DataType) -> None:
        self.width = 16 if pa.types.is_decimal(data_type) else 0
        Column.__init__(self, data_type)

    @cython.ccall
    def start(self) -> None:
        self.size = 0
        self.data_room = 0
        self._grow_data(_FIRST_ROOM)
        Column.start(self)
        self.ends[0] = 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _grow_values(self, room: cython.Py_ssize_t) -> cython.int:
        used: cython.Py_ssize_t = 4 * (self.count + 1) if self.room else 0
        before = self.ends_buffer if self.room else None
        self.ends_buffer = _larger(before, used, 4 * (room + 1))
        self.ends = memoryview(self.ends_buffer).cast("B").cast("i")
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _grow_data(self, least: cython.Py_ssize_t) -> cython.int:
        if least > _MOST_BYTES:
            raise OverflowError(
                "a batch decodes to more than 2 GiB in one column: use smaller ones"
            )
        self.data_room = max(least, 2 * self.data_room)
        before = self.data_buffer if self.size else None
        self.data_buffer = _larger(before, self.size, self.data_room)
        self.data = memoryview(self.data_buffer).cast("B")
        return 0

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1, check=False)
    def append(
        self,
        source: cython.const[cython.uchar][::1],
        start: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> cython.int:
        i: cython.Py_ssize_t
        to: cython.pointer[cython.uchar]
        origin: cython.pointer[cython.const[cython.uchar]]
        if self.size + length > self.data_room:
            self._grow_data(self.size + length)
        if cython.compiled:
            if length:
                # By pointers, so that the C compiler sees a plain copy and vectorizes it.
                to = cython.address(self.data[self.size])
                origin = cython.address(source[start])
                for i in range(length):
                    to[i] = origin[i]
        else:
            self.data[self.size : self.size + length] = source[start : start + length]
        self.size += length
        self.ends[self.count + 1] = self.size
        return self._add(True)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def append_null(self) -> cython.int:
        i: cython.Py_ssize_t
        if self.width:
            if self.size + self.width > self.data_room:
                self._grow_data(self.size + self.width)
            for i in range(self.width):
                self.data[self.size + i] = 0
            self.size += self.width
        self.ends[self.count + 1] = self.size
        return self._add(False)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def cut(self, count: cython.Py_ssize_t) -> cython.int:
        Column.cut(self, count)
        self.size = self.ends[self.count]
        return 0

    def array(self) -> pa.Array:
        data = self.data_buffer.slice(0, self.size)
        buffers = [self.bitmap(), data] if self.width else [self.bitmap(), self.ends_buffer, data]
        return pa.Array.from_buffers(self.type, self.count, buffers, self.nulls)


@cython.cclass
class Struct(Column):
    """Records, and unions of several types with a field for each."""

    fields: list[Any]

    def __init__(self, data_type: pa.DataType, fields: list[Any]) -> None:
        self.fields = fields
        Column.__init__(self, data_type)

    def field(self, index: int) -> Column:
        field: Column = self.fields[index]
        return field

    @cython.ccall
    def start(self) -> None:
        field: Column
        Column.start(self)
        for field in self.fields:
            field.start()

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def append_null(self) -> cython.int:
        field: Column
        for field in self.fields:
            field.append_null()
        return self._add(False)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def cut(self, count: cython.Py_ssize_t) -> cython.int:
        field: Column
        Column.cut(self, count)
        for field in self.fields:
            field.cut(count)
        return 0

    def array(self) -> pa.Array:
        arrays = [field.array() for field in self.fields]
        return pa.Array.from_buffers(
            self.type, self.count, [self.bitmap()], self.nulls, children=arrays
        )


@cython.cclass
class Items(Column):
    """Arrays, and maps when there are `keys`."""

    ends: cython.int[::1]
    ends_buffer: Any
    keys: Bytes
    items: Column

    def __init__(self, data_type: pa.DataType, items: Column, keys: Any = None) -> None:
        self.items = items
        self.keys = keys
        Column.__init__(self, data_type)

    def item(self) -> Column:
        return self.items

    @cython.ccall
    def start(self) -> None:
        Column.start(self)
        self.ends[0] = 0
        self.items.start()
        if self.keys is not None:
            self.keys.start()

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _grow_values(self, room: cython.Py_ssize_t) -> cython.int:
        used: cython.Py_ssize_t = 4 * (self.count + 1) if self.room else 0
        before = self.ends_buffer if self.room else None
        self.ends_buffer = _larger(before, used, 4 * (room + 1))
        self.ends = memoryview(self.ends_buffer).cast("B").cast("i")
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def close(self, valid: cython.bint) -> cython.int:
        """The items since the last call are one value."""
        self.ends[self.count + 1] = self.items.count
        return self._add(valid)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def append_null(self) -> cython.int:
        return self.close(False)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def cut(self, count: cython.Py_ssize_t) -> cython.int:
        Column.cut(self, count)
        self.items.cut(self.ends[self.count])
        if self.keys is not None:
            self.keys.cut(self.ends[self.count])
        return 0

    def array(self) -> pa.Array:
        child = self.items.array()
        if self.keys is not None:
            fields = [self.type.key_field, self.type.item_field]
            child = pa.StructArray.from_arrays([self.keys.array(), child], fields=fields)
        buffers = [self.bitmap(), self.ends_buffer]
        return pa.Array.from_buffers(self.type, self.count, buffers, self.nulls, children=[child])


@cython.cclass
class Step:
    """Reads one value; `least_bytes` is what it takes at least."""

    least_bytes: cython.Py_ssize_t

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        raise NotImplementedError


@cython.cclass
class ReadNull(Step):
    """Nothing is written for it; a null where there is a column."""

    column: Column

    def __init__(self, column: Any) -> None:
        self.column = column
        self.least_bytes = 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        if self.column is not None:
            self.column.append_null()
        return 0


@cython.cclass
class ReadBoolean(Step):
    """One byte, 0 or 1."""

    column: Numbers

    def __init__(self, column: Any) -> None:
        self.column = column
        self.least_bytes = 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        byte: cython.uchar = source.data[source.take(1)]
        if byte > 1:
            raise BadValueError(f"a boolean is {byte}")
        if self.column is not None:
            self.column.append(byte)
        return 0


@cython.cclass
class ReadLong(Step):
    """An int or a long of `bits`, times `scale`: 1,000 for what counts milliseconds."""

    column: Numbers
    scale: cython.longlong
    least: cython.longlong
    most: cython.longlong

    def __init__(self, column: Any, bits: int, scale: int = 1) -> None:
        self.column = column
        self.scale = scale
        self.most = min((1 << (bits - 1)) - 1, ((1 << 63) - 1) // scale)
        self.least = -self.most - (scale == 1)
        self.least_bytes = 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        number: cython.longlong = source.read_long()
        if number > self.most or number < self.least:
            raise BadValueError(f"the number {number} is too large for its type")
        if self.column is not None:
            self.column.append(number * self.scale)
        return 0


@cython.cclass
class ReadLongAsReal(Step):
    """An int or a long that is a float (`bits` 32) or a double (64) to the reader."""

    column: Numbers
    bits: cython.int

    def __init__(self, column: Any, bits: int) -> None:
        self.column = column
        self.bits = bits
        self.least_bytes = 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        number: cython.longlong = source.read_long()
        code, packed = ("<i", "<f") if self.bits == 32 else ("<q", "<d")
        self.column.append(struct.unpack(code, struct.pack(packed, number))[0])
        return 0


@cython.cclass
class ReadReal(Step):
    """A float (`width` 4) or a double (8), kept as its bits."""

    column: Numbers
    width: cython.int

    def __init__(self, column: Any, width: int) -> None:
        self.column = column
        self.width = width
        self.least_bytes = width

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        start: cython.Py_ssize_t = source.take(self.width)
        last: cython.int = self.width - 1
        i: cython.int
        bits: cython.longlong = source.data[start + last]
        if bits >= 128:
            bits -= 256
        for i in range(last - 1, -1, -1):
            bits = bits * 256 + source.data[start + i]
        if self.column is not None:
            self.column.append(bits)
        return 0


@cython.cclass
class ReadFloatAsDouble(Step):
    """Four bytes, into a column that promotion has made wider."""

    column: Numbers

    def __init__(self, column: Any) -> None:
        self.column = column
        self.least_bytes = 4

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        start: cython.Py_ssize_t = source.take(4)
        (number,) = struct.unpack_from("<f", source.data, start)
        self.column.append(struct.unpack("<q", struct.pack("<d", number))[0])
        return 0


@cython.cclass
class ReadBytes(Step):
    """Bytes or text: `size` of them, or as many as it says before them (-1), or all (-2)."""

    column: Bytes
    size: cython.Py_ssize_t
    is_text: cython.bint

    def __init__(self, column: Any, is_text: bool, size: int = -1) -> None:
        self.column = column
        self.is_text = is_text
        self.size = size
        self.least_bytes = max(0, size) if size != -1 else 1

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        length: cython.longlong = self.size
        i: cython.Py_ssize_t
        seen: cython.uchar = 0
        if length == -1:
            length = source.read_long()
        elif length == -2:
            length = source.end - source.position
        start: cython.Py_ssize_t = source.take(length)
        if self.column is None:
            return 0
        if self.is_text:
            for i in range(start, start + length):
                seen |= source.data[i]
            if seen >= 0x80:
                _check_utf8(bytes(source.data[start : start + length]))
        self.column.append(source.data, start, length)
        return 0


@cython.cfunc
def _check_utf8(text: bytes) -> object:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise BadValueError(
            f"a string is not valid UTF-8: {error.reason} at its byte {error.start}"
        ) from None
    return None


@cython.cclass
class ReadDecimal(Step):
    """An unscaled number, two's complement, big-endian, in `size` bytes, in as many as it says
    before them (-1), or in all (-2)."""

    column: Bytes
    size: cython.Py_ssize_t
    bound: Any

    def __init__(self, column: Any, precision: int, size: int = -1) -> None:
        self.column = column
        self.size = size
        self.bound = 10**precision
        self.least_bytes = max(0, size) if size != -1 else 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        length: cython.longlong = self.size
        if length == -1:
            length = source.read_long()
        elif length == -2:
            length = source.end - source.position
        start: cython.Py_ssize_t = source.take(length)
        unscaled = int.from_bytes(source.data[start : start + length], "big", signed=True)
        if not -self.bound < unscaled < self.bound:
            raise BadValueError(f"a decimal has more than {len(str(self.bound)) - 1} digits")
        little = memoryview(unscaled.to_bytes(16, "little", signed=True))
        self.column.append(little, 0, 16)
        return 0


@cython.cclass
class ReadEnum(Step):
    """The reader's symbols by the writer's number; None where the reader has no such symbol."""

    column: Bytes
    symbols: list[Any]

    def __init__(self, column: Any, symbols: list[Any]) -> None:
        self.column = column
        self.symbols = [symbol and memoryview(symbol.encode()) for symbol in symbols]
        self.least_bytes = 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        index: cython.longlong = source.read_long()
        if index < 0 or index >= len(self.symbols):
            raise BadValueError(f"symbol {index} of an enum that has {len(self.symbols)}")
        if self.column is None:
            return 0
        symbol = self.symbols[index]
        if symbol is None:
            raise BadValueError(f"symbol {index} of an enum is not in the reader's schema")
        self.column.append(symbol, 0, len(symbol))
        return 0


@cython.cclass
class ReadRecord(Step):
    """The writer's fields in order, then those that only the reader has, by their defaults."""

    column: Struct
    steps: list[Any]

    def __init__(self, column: Any, steps: list[Any]) -> None:
        self.column = column
        self.follow(steps)

    def follow(self, steps: list[Any]) -> None:
        """Sets the steps, where they could not be made before the record: it contains itself."""
        self.steps = steps
        self.least_bytes = sum(_least_bytes(step) for step in steps)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        step: Step
        if source.nested >= _MOST_NESTED:
            raise BadValueError(f"records are nested more than {_MOST_NESTED} deep")
        source.nested += 1
        for step in self.steps:
            step.read(source)
        source.nested -= 1
        if self.column is not None:
            self.column._add(True)
        return 0


def _least_bytes(step: Step) -> int:
    least: int = step.least_bytes
    return least


@cython.cclass
class ReadDefault(Step):
    """A value that is not in the input: `encoded` is read instead, by `step`."""

    step: Step
    source: Input

    def __init__(self, step: Step, encoded: bytes) -> None:
        self.step = step
        self.source = Input(encoded)
        self.least_bytes = 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        self.source.position = 0
        self.source.nested = 0
        self.source.room = room.value_room(self.source.end)
        return self.step.read(self.source)


@cython.cclass
class ReadItems(Step):
    """Blocks of items; of a map when `is_map`."""

    column: Items
    item: Step
    is_map: cython.bint
    item_bytes: cython.longlong

    def __init__(self, column: Any, item: Step, is_map: bool) -> None:
        self.column = column
        self.item = item
        self.is_map = is_map
        self.item_bytes = 0 if column is None else room.item_bytes(column.data_type())
        self.least_bytes = 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        total: cython.longlong = 0
        least: cython.longlong = self.item.least_bytes + self.is_map
        count: cython.longlong = source.read_long()
        seen: set[bytes] = set()
        while count:
            if count < 0:
                # A block that says its size, so that it could be skipped unread.
                source.read_long()
                count = -(count + 1) + 1 if count > -_MOST_BYTES else _MOST_BYTES
            total += count
            if count > _MOST_BYTES or (total > _MOST_EMPTY_ITEMS if not least else False):
                raise BadValueError(f"an array or a map claims {count} items")
            if least and count > (source.end - source.position) // least:
                raise BadValueError(
                    f"an array or a map claims {count} items where "
                    f"{source.end - source.position} bytes are left"
                )
            source.room -= count * self.item_bytes
            if source.room < 0:
                raise BadValueError("the items of the value would take too much memory")
            while count:
                if self.is_map:
                    self._read_key(source, seen)
                self.item.read(source)
                count -= 1
            count = source.read_long()
        if self.column is not None:
            self.column.close(True)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _read_key(self, source: Input, seen: set[bytes]) -> cython.int:
        """Of maps with a key twice some targets read the first value, others the last, or fail."""
        length: cython.longlong = source.read_long()
        start: cython.Py_ssize_t = source.take(length)
        if self.column is not None:
            key: bytes = bytes(source.data[start : start + length])
            _check_utf8(key)
            if key in seen:
                raise BadValueError("a map has a key twice")
            seen.add(key)
            self.column.keys.append(source.data, start, length)
        return 0


@cython.cclass
class ReadUnion(Step):
    """The branch's number, then its value."""

    branches: list[Any]

    def __init__(self, branches: list[Any]) -> None:
        self.branches = branches
        self.least_bytes = 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        step: Step
        index: cython.longlong = source.read_long()
        if index < 0 or index >= len(self.branches):
            raise BadValueError(f"branch {index} of a union that has {len(self.branches)}")
        step = self.branches[index]
        return step.read(source)


@cython.cclass
class ReadMember(Step):
    """One type of a union of several, which is one field of a struct to Arrow."""

    column: Struct
    step: Step
    index: cython.Py_ssize_t

    def __init__(self, column: Struct, index: int, step: Step) -> None:
        self.column = column
        self.index = index
        self.step = step
        self.least_bytes = _least_bytes(step)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        i: cython.Py_ssize_t
        field: Column
        for i in range(len(self.column.fields)):
            if i == self.index:
                self.step.read(source)
            else:
                field = self.column.fields[i]
                field.append_null()
        return self.column._add(True)


@cython.cclass
class Refuse(Step):
    """What was written so has no place in the reader's schema."""

    reason: str

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.least_bytes = 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def read(self, source: Input) -> cython.int:
        raise BadValueError(self.reason)


def read_rows(
    values: pa.Array, column: Column, step: Any, step_of: Callable[[int], Step] | None = None
) -> tuple[pa.Array, dict[int, str]]:
    """The rows that `values`, an array of type binary, decode to, and by row what is wrong.

    All values were written alike and are read by `step`, or, with `step_of`, begin with a zero
    byte and the four bytes of a schema's id (Confluent's wire format), for which it gives the step.
    """
    _, ends_buffer, data_buffer = values.buffers()
    data = memoryview(data_buffer if data_buffer is not None else b"").cast("B")
    source: Input = Input(data)
    current: Step = step
    current_id: cython.longlong = -1
    schema_id: cython.longlong
    ends = memoryview(ends_buffer).cast("B").cast("i") if len(values) else memoryview(b"")
    first: cython.Py_ssize_t = values.offset
    present = values.is_valid().to_pylist() if values.null_count else None
    errors: dict[int, str] = {}
    row: cython.Py_ssize_t
    # What room.value_room() says, without a call for each row.
    least_room: cython.longlong = room.MOST_BYTES
    bytes_for_a_byte: cython.longlong = room.BYTES_FOR_A_BYTE
    column.start()
    for row in range(len(values)):
        if present is not None and not present[row]:
            column.append_null()
            continue
        source.position = ends[first + row]
        source.end = ends[first + row + 1]
        source.nested = 0
        source.room = max(least_room, bytes_for_a_byte * (source.end - source.position))
        try:
            if step_of is not None:
                schema_id = _schema_id(source)
                if schema_id != current_id:
                    current = step_of(schema_id)
                    current_id = schema_id
            current.read(source)
            if source.position != source.end:
                raise BadValueError(f"{source.end - source.position} bytes are left over")
        except BadValueError as error:
            column.cut(row)
            column.append_null()
            errors[row] = str(error)
    return column.array(), errors


@cython.cfunc
@cython.exceptval(-1, check=False)
def _schema_id(source: Input) -> cython.longlong:
    start: cython.Py_ssize_t = source.position
    if source.end - start < _FRAME_BYTES:
        raise BadValueError(
            f"{source.end - start} bytes: too short for Confluent's magic byte and schema id"
        )
    if source.data[start]:
        raise BadValueError(f"the magic byte is {source.data[start]}, not 0 as Confluent's is")
    source.position += _FRAME_BYTES
    return (
        (cython.cast(cython.longlong, source.data[start + 1]) << 24)
        | (source.data[start + 2] << 16)
        | (source.data[start + 3] << 8)
        | source.data[start + 4]
    )
