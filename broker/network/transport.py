"""A connection's bytes on their way: the calls that touch its socket.

Never blocks: what cannot be done now is a BlockingIOError. Every other failure is an OSError.
Called by: the event loop's thread only.
"""

import os
import socket
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class PlainTransport:
    """Bytes as they are; slices of files go from the page cache to the socket."""

    __slots__ = ("_socket",)

    def __init__(self, sock: socket.socket) -> None:
        """`sock` is connected and does not block; it is this transport's from now on."""
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """How many bytes were received; 0 where the peer has closed."""
        return self._socket.recv_into(buffer)

    def send(self, buffers: list[Buffer], more_follows: bool) -> int:
        """How many bytes were sent. With `more_follows`, they may share a packet with the next."""
        return self._socket.sendmsg(buffers, (), socket.MSG_MORE if more_follows else 0)

    def send_file(self, file: int, position: int, size_bytes: int) -> int:
        """As `send`, from a file's descriptor; 0 where the file ends before `position`."""
        return os.sendfile(self._socket.fileno(), file, position, size_bytes)

    def close(self) -> None:
        self._socket.close()
