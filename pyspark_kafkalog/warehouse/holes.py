"""Offsets without a record in what a task reads, and the time before them.

Markers, aborted records and compaction leave such; what they mean, lost_tombstones.py judges. In
tasks, one thread.
"""

import pyarrow as pa
import pyarrow.compute as pc

LONG_AGO_US = -(2**63)
"""The time before the first record of a range, which is not known."""


class Holes:
    """Offsets without a record between those of a range, as its records pass."""

    def __init__(self, start_offset: int) -> None:
        self._next = start_offset
        self._last_us = LONG_AGO_US
        self.after_us: int | None = None
        """The earliest time of a record that comes before a hole; None without holes."""

    def pass_records(self, batch: pa.RecordBatch) -> None:
        """Records in the order of their offsets, at least one."""
        offsets = batch.column("offset")
        times = pc.fill_null(batch.column("timestamp").cast(pa.int64()), LONG_AGO_US)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if first > self._next:
            self._note(self._last_us)
        if last - first + 1 > len(offsets):
            is_before_hole = pc.greater(pc.subtract(offsets[1:], offsets[:-1]), 1)
            self._note(pc.min(times[:-1].filter(is_before_hole)).as_py())
        self._next, self._last_us = last + 1, times[-1].as_py()

    def end(self, until_offset: int) -> None:
        if until_offset > self._next:
            self._note(self._last_us)

    def _note(self, before_us: int) -> None:
        self.after_us = before_us if self.after_us is None else min(self.after_us, before_us)
