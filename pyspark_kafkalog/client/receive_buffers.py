"""Memory that answers are received into, used again once nobody views what it held.

A new buffer costs as much as filling it: its memory is cleared first, page by page where the kernel
just gave it. One per Cluster; any number of connections, one thread at a time.
"""

from collections import deque

from pyspark_kafkalog.protocol.frame_memory import is_viewed

_LEAST_BYTES = 64 << 10
_MOST_BYTES = 16 << 20
"""What is kept: below, memory is no matter; above are answers of one large batch."""
_MOST_KEPT = 2
"""A reader views one answer while the next one arrives."""


class ReceiveBuffers:
    """At most 2 x 16 MiB are kept beside what is viewed."""

    def __init__(self) -> None:
        self._kept: deque[bytearray] = deque(maxlen=_MOST_KEPT)

    def take(self, size_bytes: int) -> memoryview:
        """A writable view of `size_bytes`. Its memory is free again when the view and all that was
        sliced from it are gone."""
        if not _LEAST_BYTES <= size_bytes <= _MOST_BYTES:
            return memoryview(bytearray(size_bytes))
        for buffer in self._kept:
            # No small answer that somebody keeps shall keep a large buffer.
            if size_bytes <= len(buffer) <= 4 * size_bytes and not is_viewed(buffer):
                return memoryview(buffer)[:size_bytes]
        # Answers of a reader differ by a part of a batch.
        buffer = bytearray(-(-size_bytes // _LEAST_BYTES) * _LEAST_BYTES)
        self._kept.append(buffer)
        return memoryview(buffer)[:size_bytes]

    def clear(self) -> None:
        """Keeps nothing, until more is taken."""
        self._kept.clear()
