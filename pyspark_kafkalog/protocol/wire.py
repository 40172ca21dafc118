"""The primitive types of Kafka's protocol: how numbers, strings and arrays lie in a message.

From Kafka's "Protocol Primitive Types". A flexible message (KIP-482) writes lengths as unsigned
varints, one too high so that 0 means null, and ends each structure with tagged fields; an older one
writes fixed lengths, -1 for null. `Reader` and `Writer` know both; the message decides which.

Only the bulk messages (`produce`, `fetch`) and the frame headers are written by hand on these;
every other message is `kafka.protocol`'s. Bytes only, no sockets. Not thread-safe.
"""

import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kafka.errors import KafkaProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")

MAX_REQUEST_ELEMENTS: Final = 20_000
"""Array elements and tagged fields of one request: more keeps whoever answers it from others."""


class Reader:
    """Walks over one message. What is malformed raises KafkaProtocolError, whatever the bytes; so
    do more than `max_elements` array elements and tagged fields."""

    __slots__ = ("_elements_left", "buffer", "end", "flexible", "position")

    def __init__(
        self,
        buffer: memoryview,
        flexible: bool,
        position: int = 0,
        max_elements: int = sys.maxsize,
    ) -> None:
        self._elements_left = max_elements
        self.buffer = buffer
        self.end = len(buffer)
        self.flexible = flexible
        self.position = position

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """The fixed-size fields that `layout` describes."""
        position = self.position
        self.position = position + layout.size
        try:
            return layout.unpack_from(self.buffer, position)
        except struct.error:
            raise self._cut_off() from None

    def varint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        position = self.position
        if position < self.end and self.buffer[position] < 0x80:  # one byte, as most are
            self.position = position + 1
            return self.buffer[position]
        value = 0
        for shift in range(0, 35, 7):
            if self.position >= self.end:
                raise self._cut_off()
            byte = self.buffer[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise KafkaProtocolError("a variable-length number takes more than five bytes")

    def length(self, fixed: struct.Struct) -> int:
        """A length or count as the message writes it; -1 is null. Never beyond what is left."""
        length = self.varint() - 1 if self.flexible else self.fields(fixed)[0]
        if length < -1 or length > self.end - self.position:
            raise KafkaProtocolError(
                f"a length of {length} is announced where {self.end - self.position} bytes are left"
            )
        return length

    def count(self) -> int:
        """The element count of an array; null counts as empty."""
        count = max(0, self.length(INT32))
        self._elements_left -= count
        if self._elements_left < 0:
            raise _too_many_elements()
        return count

    def view(self, length: int) -> memoryview:
        """The next `length` bytes, not copied."""
        start = self.position
        self.position = start + length
        return self.buffer[start : self.position]

    def exactly(self, length: int) -> memoryview:
        """The next `length` bytes, not copied, if there are as many."""
        if length > self.end - self.position:
            raise self._cut_off()
        return self.view(length)

    def nullable_string(self) -> str | None:
        length = self.length(INT16)
        if length < 0:
            return None
        try:
            return str(self.view(length), "utf-8")
        except UnicodeDecodeError:
            raise KafkaProtocolError("a string is not UTF-8") from None

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise KafkaProtocolError("a string that must be there is null")
        return text

    def nullable_bytes(self) -> memoryview | None:
        length = self.length(INT32)
        return None if length < 0 else self.view(length)

    def skip_tags(self) -> None:
        """Passes over a structure's tagged fields, all of which are optional (KIP-482)."""
        if not self.flexible:
            return
        count = self.varint()
        if not count:
            return
        self._elements_left -= count
        if self._elements_left < 0:
            raise _too_many_elements()
        for _ in range(count):
            self.varint()
            length = self.varint()
            if length > self.end - self.position:
                raise self._cut_off()
            self.position += length

    def tags(self) -> "Sequence[tuple[int, Reader]]":
        """A structure's tagged fields: the number of each, and a reader of its value alone."""
        count = self.varint() if self.flexible else 0
        if not count:
            return ()
        self._elements_left -= count
        if self._elements_left < 0:
            raise _too_many_elements()
        found = []
        for _ in range(count):
            tag = self.varint()
            found.append((tag, Reader(self.exactly(self.varint()), flexible=True)))
        return found

    def _cut_off(self) -> KafkaProtocolError:
        return KafkaProtocolError(f"a message of {self.end} bytes ends inside a field")


def _too_many_elements() -> KafkaProtocolError:
    return KafkaProtocolError("a request of too many elements")


class Writer:
    """Builds one message as a list of parts, so that bulk bytes are passed on, never copied."""

    __slots__ = ("_buffer", "_parts", "flexible")

    def __init__(self, flexible: bool) -> None:
        self.flexible = flexible
        self._buffer = bytearray()
        self._parts: list[Buffer] = []

    def fields(self, layout: struct.Struct, *values: int) -> None:
        self._buffer += layout.pack(*values)

    def varint(self, value: int) -> None:
        while value > 0x7F:
            self._buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self._buffer.append(value)

    def length(self, fixed: struct.Struct, length: int) -> None:
        if not self.flexible:
            self._buffer += fixed.pack(length)
        elif length < 0x7F:
            self._buffer.append(length + 1)
        else:
            self.varint(length + 1)

    def count(self, count: int) -> None:
        self.length(INT32, count)

    def string(self, text: str | None) -> None:
        if text is None:
            self.length(INT16, -1)
        else:
            encoded = text.encode()
            self.length(INT16, len(encoded))
            self._buffer += encoded

    def bulk(self, part: "Buffer | None", size_bytes: int) -> None:
        """A byte array's length here, its bytes as a part of their own; None is null."""
        if part is None:
            self.length(INT32, -1)
            return
        self.length(INT32, size_bytes)
        if size_bytes:
            self._parts += (self._buffer, part)
            self._buffer = bytearray()

    def raw(self, value: bytes) -> None:
        """Bytes of a fixed length, or encoded already."""
        self._buffer += value

    def tags(self, fields: Sequence[tuple[int, bytes]]) -> None:
        """A structure's tagged fields, by their numbers in ascending order."""
        if self.flexible:
            self.varint(len(fields))
            for tag, value in fields:
                self.varint(tag)
                self.varint(len(value))
                self._buffer += value

    def no_tags(self) -> None:
        if self.flexible:
            self._buffer.append(0)

    def parts(self) -> list["Buffer"]:
        """The message's parts in order; the writer is used up."""
        if self._buffer:
            self._parts.append(self._buffer)
        return self._parts
