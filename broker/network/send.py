"""What waits to leave one connection, in order: bytes, and slices of log files.

Owns: the queue of parts of one connection and how far the first of them has been sent. Writes no
format of its own: parts go out as they are. Called by: the event loop's thread only, on a
transport that never blocks. Never: copies a part, but for small ones, which are joined; reads a log
file into memory; waits.
"""

import errno
from collections import deque
from typing import Final, Protocol, TypeAlias

from broker.network.transport import Buffer, PlainTransport

# Buffers handed to one send; far below the kernel's limit (IOV_MAX 1024).
_MAX_BUFFERS: Final = 64
# A part up to this size costs less to copy than to hand over by itself.
_SMALL_BYTES: Final = 256
_MOST_JOINED_BYTES: Final = 64 * 1024
# What file systems say of what they cannot read, and sockets never do.
_OF_DISKS: Final = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
# One connection may send this much before the event loop looks at the others.
_MAX_BYTES_PER_FLUSH: Final = 8 * 1024 * 1024


class OpenFile(Protocol):
    """Anything with a file descriptor."""

    def fileno(self) -> int: ...


class FileRegion(Protocol):
    """`size_bytes` bytes of an open file from `position` on (broker.log's FileSlice)."""

    @property
    def file(self) -> OpenFile: ...
    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def not_read(self, error: OSError) -> None: ...


Part: TypeAlias = Buffer | FileRegion
_IN_MEMORY: Final = (bytes, bytearray, memoryview)


def size_of(parts: list[Part]) -> int:
    """In bytes."""
    size_bytes = 0
    for part in parts:
        size_bytes += len(part)
    return size_bytes


class SendQueue:
    """The parts of one connection that are not sent yet; `pending_bytes` counts all of them."""

    __slots__ = ("_joined", "_parts", "_sent_of_first", "pending_bytes")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        # Small parts in one; the last of all parts while it is there.
        self._joined: bytearray | None = None
        self._sent_of_first = 0
        self.pending_bytes = 0

    def push(self, parts: list[Part]) -> None:
        """Appends parts; empty ones are dropped (nobody could tell them from a full pipe)."""
        for part in parts:
            size_bytes = len(part)
            if not size_bytes:
                continue
            self.pending_bytes += size_bytes
            if size_bytes <= _SMALL_BYTES and isinstance(part, _IN_MEMORY):
                self._join(part)
            else:
                self._parts.append(part)
                self._joined = None

    def flush(self, transport: PlainTransport) -> bool:
        """Sends what the transport takes now. True when the queue is empty; errors are OSError."""
        budget_bytes = _MAX_BYTES_PER_FLUSH
        while self._parts:
            if budget_bytes <= 0:
                return False
            first = self._parts[0]
            try:
                if isinstance(first, _IN_MEMORY):
                    sent_bytes, drained = self._send_buffers(transport)
                else:
                    sent_bytes, drained = self._send_file(transport, first)
            except (BlockingIOError, InterruptedError):
                return False
            if not drained:
                return False
            budget_bytes -= sent_bytes
        return True

    def _join(self, part: Buffer) -> None:
        if self._joined is None or len(self._joined) > _MOST_JOINED_BYTES:
            self._joined = bytearray()
            self._parts.append(self._joined)
        self._joined += part

    def clear(self) -> None:
        """Forgets everything (and so lets go of the log files)."""
        self._parts.clear()
        self._joined = None
        self._sent_of_first = 0
        self.pending_bytes = 0

    def _send_buffers(self, transport: PlainTransport) -> tuple[int, bool]:
        """Sends the run of buffers at the head. Returns (bytes sent, whether all of the run)."""
        buffers: list[Buffer] = []
        file_follows = False
        for part in self._parts:
            if not isinstance(part, _IN_MEMORY):
                file_follows = True
                break
            if len(buffers) == _MAX_BUFFERS:
                break
            buffers.append(part)
        if self._sent_of_first:
            buffers[0] = memoryview(buffers[0])[self._sent_of_first :]
        wanted_bytes = sum(map(len, buffers))
        # The header of a fetch answer shares its packet with the records behind it.
        sent_bytes = transport.send(buffers, file_follows)
        self._advance(sent_bytes)
        return sent_bytes, sent_bytes == wanted_bytes

    def _send_file(self, transport: PlainTransport, region: FileRegion) -> tuple[int, bool]:
        position = region.position + self._sent_of_first
        wanted_bytes = region.size_bytes - self._sent_of_first
        try:
            sent_bytes = transport.send_file(region.file.fileno(), position, wanted_bytes)
            if sent_bytes == 0:
                # The peer was promised them: only closing is left.
                missing = f"log file ends at {position}, {wanted_bytes} bytes missing"
                raise OSError(errno.EIO, missing)
        except OSError as error:
            if error.errno in _OF_DISKS:
                region.not_read(error)
            raise
        self._advance(sent_bytes)
        return sent_bytes, sent_bytes == wanted_bytes

    def _advance(self, sent_bytes: int) -> None:
        self.pending_bytes -= sent_bytes
        position = self._sent_of_first + sent_bytes
        while self._parts and position >= len(self._parts[0]):
            position -= len(self._parts.popleft())
        self._sent_of_first = position
        if not self._parts:
            self._joined = None
