"""The memory that connections receive into.

Owns: one staging buffer that all connections use in turn, and a few frame buffers that are used
again: fresh memory of a megabyte costs the kernel more than filling it. Called by: the event loop's
thread only. Never: gives a frame away again while anybody still looks into it.
"""

STAGING_BYTES = 64 * 1024
# A large frame's buffer has this much once its first STAGING_BYTES are there: batches of 1 MB, the
# usual limit, fit.
FRAME_BYTES = 2 * 1024 * 1024
_MAX_POOLED = 8


class ReceiveBuffers:
    """`staging` for what has just arrived; `take` and `give_back` for frames larger than that."""

    __slots__ = ("_pool", "staging")

    def __init__(self) -> None:
        self.staging = memoryview(bytearray(STAGING_BYTES))
        self._pool: list[bytearray] = []

    def take(self) -> bytearray:
        """A buffer of FRAME_BYTES, whose content means nothing."""
        return self._pool.pop() if self._pool else bytearray(FRAME_BYTES)

    def give_back(self, frame: bytearray) -> None:
        """Keeps `frame` for another time, unless somebody holds a view of it."""
        if len(frame) != FRAME_BYTES or len(self._pool) >= _MAX_POOLED:
            return
        try:
            frame.pop()  # refused while there are views
        except BufferError:
            return
        frame.append(0)
        self._pool.append(frame)
