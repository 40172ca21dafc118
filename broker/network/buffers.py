"""The memory that connections receive into.

Owns: one staging buffer that all connections use in turn, a few frame buffers that are used again
(fresh memory of a megabyte costs the kernel more than filling it), and the sum of what frames that
are being received or handled hold. Called by: the event loop's thread only. Never: gives a frame
away again while anybody still looks into it.

A peer may send the first byte of a frame and no more. As long as all frames together hold little, a
large frame of which much has arrived gets a large buffer at once; else a buffer is no larger than
twice what has arrived, so that peers pin no more memory than they paid for in bytes.
`queued.max.request.bytes` (KIP-72) limits even that: at the limit a frame must wait for room, its
connection is not read.
"""

from collections.abc import Callable
from typing import Final

from pyspark_kafkalog.protocol.frame_memory import is_viewed

STAGING_BYTES: Final = 64 * 1024
# A large frame's buffer has this much once its first STAGING_BYTES are there: batches of 1 MB, the
# usual limit, fit.
FRAME_BYTES: Final = 2 * 1024 * 1024
_LEAST_BYTES: Final = 4 * 1024
_MUCH_BYTES: Final = 16 * 1024
_MAX_POOLED: Final = 8
# While all frames together hold less than this, nobody counts what has arrived.
_PLENTY_BYTES: Final = 64 * 1024 * 1024
NO_LIMIT: Final = -1


class ReceiveBuffers:
    """`staging` for what has just arrived; `take`, `grow` and `release` for whole frames."""

    __slots__ = (
        "_max_held_bytes",
        "_on_room",
        "_on_wait",
        "_pool",
        "_waiting",
        "handled_bytes",
        "held_bytes",
        "staging",
    )

    def __init__(
        self,
        max_held_bytes: int = NO_LIMIT,
        on_wait: Callable[[], None] = lambda: None,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_wait` is called when a frame must wait for room, `on_room` when there may be some."""
        self._on_wait = on_wait
        self._on_room = on_room
        self._waiting: list[Callable[[], None]] = []
        self.staging = memoryview(bytearray(STAGING_BYTES))
        self.held_bytes = 0
        """Memory of the frames that are being received or handled."""
        self.handled_bytes = 0
        """Of these, the memory of frames that are received: whoever handles them needs no more."""
        self._max_held_bytes = max_held_bytes
        self._pool: list[bytearray] = []

    def take(self, frame_bytes: int, head: bytes | bytearray) -> bytearray:
        """A buffer for a frame of `frame_bytes`, beginning with `head`, what has arrived of it.

        What lies behind that means nothing. The buffer may be larger or smaller than the frame.
        """
        is_paid = frame_bytes > STAGING_BYTES and len(head) >= _MUCH_BYTES
        if is_paid and self.held_bytes + FRAME_BYTES <= self._plenty_bytes():
            frame = self._pool.pop() if self._pool else bytearray(FRAME_BYTES)
        else:
            frame = bytearray(min(frame_bytes, max(_LEAST_BYTES, 2 * len(head))))
        frame[: len(head)] = head
        self.held_bytes += len(frame)
        return frame

    def grow(self, frame: bytearray, frame_bytes: int, go_on: Callable[[], None]) -> bool:
        """Doubles a full buffer, at most to the frame's size. False when there is no room now:
        `go_on` is then one of those that wait."""
        more_bytes = min(len(frame), frame_bytes - len(frame))
        others_bytes = self.held_bytes - len(frame)
        if 0 <= self._max_held_bytes < self.held_bytes + more_bytes and others_bytes:
            self._waiting.append(go_on)
            self._on_wait()
            return False
        frame.extend(bytes(more_bytes))
        self.held_bytes += more_bytes
        return True

    def release(self, frame: bytearray) -> None:
        """`frame` was handled, or is given up: it is kept for another time, unless somebody still
        holds a view of it."""
        self.held_bytes -= len(frame)
        if len(frame) == FRAME_BYTES and len(self._pool) < _MAX_POOLED and not is_viewed(frame):
            self._pool.append(frame)
        if self._waiting:
            self._on_room()

    def begin_handling(self, frame: bytearray) -> None:
        """`frame` is received, and is looked into until `end_handling`."""
        self.handled_bytes += len(frame)

    def end_handling(self, frame: bytearray) -> None:
        self.handled_bytes -= len(frame)
        self.release(frame)

    def take_waiting(self) -> list[Callable[[], None]]:
        """Those that wait for room, who are to try again."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def _plenty_bytes(self) -> int:
        if self._max_held_bytes < 0:
            return _PLENTY_BYTES
        return min(_PLENTY_BYTES, self._max_held_bytes)
