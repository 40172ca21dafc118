"""One segment of a log: a .log file of record batches and its indexes.

The files are named by the segment's base offset in 20 digits, as Apache Kafka names them:
`00000000000000000042.log`, `.index`, `.timeindex`, and `.txnindex` where a transaction was aborted.
The .log file is batches, one after the other, as they travelled. The base offset is at or below the
offset of the first batch; relative offsets in the indexes are 32 bits, so a segment spans at most
2^31 offsets.

Only the last segment of a log is written to. Appending, sealing and truncating happen under the
log's lock. Reading needs none: `size_bytes` grows only after the bytes are in the file, so what a
reader sees below it is whole. Reading looks at batch headers, never at records: O(1) in the
segment's size by the sparse index. Nothing here validates batches or decides when to roll.
"""

import contextlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafka.errors import CorruptRecordError

from broker.config.log import LogConfig
from broker.log.files import File, Files, pread_all
from broker.log.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from broker.log.offset_index import OffsetIndex
from broker.log.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from broker.log.transaction_index import TransactionIndex
from pyspark_kafkalog.record.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_RELATIVE_OFFSET: Final = 2**31 - 1

_WINDOW_BYTES: Final = 4096
"""One read of headers: what lies between two index entries when batches are small."""
_SPAN: Final = struct.Struct(">qi11xi")
"""Of a header: base offset, batch length, last offset delta."""


class BatchPosition(NamedTuple):
    """Where a batch lies in a segment."""

    base_offset: int
    last_offset: int
    position: int
    size_bytes: int


class LogSegment:
    """One segment. Made by `create` (new, empty) or `open` (from its files)."""

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        files: Files,
        now_ms: int,
        suffix: str = "",
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size_bytes = 0
        self.created_ms = now_ms
        self.max_timestamp = TimestampOffset(NO_TIMESTAMP, base_offset)
        """The largest timestamp in the segment, and the last offset of the batch that has it."""
        self.file: File
        self._suffix = suffix
        self._files = files
        self._interval_bytes = config.index_interval_bytes
        self._bytes_since_index = 0
        self._first_timestamp_ms: int | None = None
        index_bytes = config.segment_index_bytes
        self.offset_index = OffsetIndex(self.path(INDEX_SUFFIX), base_offset, index_bytes, files)
        self.time_index = TimeIndex(self.path(TIME_INDEX_SUFFIX), base_offset, index_bytes, files)
        self.transaction_index = TransactionIndex(
            self.path(TRANSACTION_INDEX_SUFFIX), base_offset, files
        )

    @classmethod
    def create(
        cls,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        files: Files,
        now_ms: int,
        suffix: str = "",
    ) -> "LogSegment":
        """An empty segment, over whatever files of its name were left behind.

        An OSError leaves none: a restart would take the file for where the log goes on, and give
        the offsets behind it, which may be in use in the segment before, a second time.
        """
        segment = cls(directory, base_offset, config, files, now_ms, suffix)
        try:
            segment.file = files.open(segment.path(LOG_SUFFIX), create=True)
            segment.file.truncate(0)
            if config.preallocate and not suffix:
                segment.file.reserve(config.segment_bytes)
            segment.offset_index.create()
            segment.time_index.create()
            segment.transaction_index.create()
        except OSError:
            segment.remove_files()
            raise
        return segment

    @classmethod
    def open(
        cls,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        files: Files,
        suffix: str = "",
    ) -> "LogSegment":
        """The sealed segment in these files. FileNotFoundError when the .log file is missing; the
        indexes are not touched: `load_indexes`."""
        segment = cls(directory, base_offset, config, files, 0, suffix)
        path = segment.path(LOG_SUFFIX)
        segment.file = files.open(path)
        segment.size_bytes = segment.file.size()
        segment.created_ms = files.modified_ms(path)
        return segment

    def load_indexes(self) -> bool:
        """Opens the indexes of offsets and times; False when one is missing or cannot be this
        segment's."""
        try:
            self.offset_index.load()
            self.time_index.load()
        except FileNotFoundError:
            return False
        self.max_timestamp = self.time_index.last
        return self.offset_index.sanity_check(self.size_bytes) and self.time_index.sanity_check()

    def path(self, suffix: str) -> Path:
        return self.directory / (file_name(self.base_offset, suffix) + self._suffix)

    # Writing: under the log's lock.

    def append(self, records: "Buffer", headers: Sequence[BatchHeader]) -> None:
        """Appends `records`, the whole batches that `headers` describe.

        OSError when the disk refuses; the file may then be longer than `size_bytes`, and the next
        append overwrites what is too much.
        """
        start = self.size_bytes
        self.file.pwrite(records, start)
        first = headers[0].position
        for header in headers:
            self.index_batch(header, start + header.position - first)
        if self._first_timestamp_ms is None and not start:
            self._first_timestamp_ms = headers[0].max_timestamp_ms
        self.size_bytes = start + memoryview(records).nbytes

    def undo_append(
        self, size_bytes: int, max_timestamp: TimestampOffset, next_offset: int
    ) -> None:
        """After an append that raised: what it may have left in file and indexes is cut off as far
        as the disk allows; the state in memory is as before in any case."""
        self.size_bytes = size_bytes
        self.max_timestamp = max_timestamp
        with contextlib.suppress(OSError):
            self.offset_index.truncate_to(next_offset)
            self.time_index.truncate_to(next_offset)
            self.transaction_index.trim()
            self.file.truncate(size_bytes)

    def index_batch(self, header: BatchHeader, position: int) -> None:
        """Takes the batch at `position` into the indexes, if it is time for an entry."""
        last_offset = header.base_offset + header.last_offset_delta
        # A batch that compaction emptied has a timestamp, but no record that a lookup could name.
        if header.record_count and header.max_timestamp_ms > self.max_timestamp.timestamp_ms:
            self.max_timestamp = TimestampOffset(header.max_timestamp_ms, last_offset)
        if self._bytes_since_index > self._interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(*self.max_timestamp)
            self._bytes_since_index = 0
        self._bytes_since_index += header.size_bytes

    def restart_indexes(self) -> None:
        """Empties the indexes of offsets and times: `index_batch` for each batch builds them
        anew."""
        self.offset_index.create()
        self.time_index.create()
        self.max_timestamp = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._bytes_since_index = 0

    def seal(self) -> None:
        """Ends writing: the time index closes with the segment's largest timestamp."""
        if self.max_timestamp.timestamp_ms > self.time_index.last.timestamp_ms:
            self.time_index.maybe_append(*self.max_timestamp, sealing=True)
        if self.file.size() > self.size_bytes:
            self.file.truncate(self.size_bytes)
        self.offset_index.seal()
        self.time_index.seal()

    def seal_again(self) -> None:
        """Of an opened segment: a power loss may have taken how its time index was closed."""
        self.unseal()
        self._restore_max_timestamp()
        self.seal()

    def unseal(self) -> None:
        """Makes an opened segment the one that is appended to."""
        self.offset_index.unseal()
        self.time_index.unseal()

    def truncate_to(self, offset: int) -> int:
        """Cuts every batch that reaches `offset` or more; returns the number of bytes cut."""
        found = self.locate(offset)
        if found is None:
            return 0
        self.offset_index.truncate_to(found.base_offset)
        self.time_index.truncate_to(found.base_offset)
        self.transaction_index.truncate_to(found.base_offset)
        cut_bytes = self.size_bytes - found.position
        self.truncate_bytes(found.position)
        self._restore_max_timestamp()
        self._bytes_since_index = 0
        if not self.size_bytes:
            self._first_timestamp_ms = None
        return cut_bytes

    def _restore_max_timestamp(self) -> None:
        """The time index knows the largest one up to the last entry of the offset index."""
        self.max_timestamp = self.time_index.last
        last = self.offset_index.lookup(self.base_offset + MAX_RELATIVE_OFFSET)
        batch = self._walk(last.position, self.base_offset)
        while batch is not None:
            header = self.header_at(batch.position)
            if header.record_count and header.max_timestamp_ms > self.max_timestamp.timestamp_ms:
                self.max_timestamp = TimestampOffset(header.max_timestamp_ms, batch.last_offset)
            batch = self.batch_after(batch)

    def is_full(self, next_offset: int) -> bool:
        """Whether its indexes take no batch that ends below `next_offset`."""
        return (
            self.offset_index.is_full
            or self.time_index.is_full
            or next_offset - self.base_offset > MAX_RELATIVE_OFFSET
        )

    def age_ms(self, newest_ms: int, now_ms: int) -> int:
        """How far the log's time has moved since the segment began: by the records' timestamps, of
        which `newest_ms` is to come, or by the clock where there are none."""
        first_ms = self.first_timestamp_ms
        if first_ms < 0 or newest_ms < 0:
            return now_ms - self.created_ms
        return newest_ms - first_ms

    def truncate_bytes(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.file.truncate(size_bytes)

    def change_suffix(self, suffix: str) -> None:
        """Renames the files: `.deleted` behind their names, say. A missing index is fine.

        The .log file comes last: where it has the new name, the others have it too."""
        old_paths = [self.path(kind) for kind in SEGMENT_SUFFIXES]
        self._suffix = suffix
        for kind, old_path in reversed([*zip(SEGMENT_SUFFIXES, old_paths, strict=True)]):
            if self._files.exists(old_path):
                self._files.rename(old_path, self.path(kind))
        self.move_to(self.directory)

    def move_to(self, directory: Path) -> None:
        """The log's directory has this name now."""
        self.directory = directory
        self.offset_index.path = self.path(INDEX_SUFFIX)
        self.time_index.path = self.path(TIME_INDEX_SUFFIX)
        self.transaction_index.path = self.path(TRANSACTION_INDEX_SUFFIX)

    def remove_files(self) -> None:
        for kind in SEGMENT_SUFFIXES:
            self._files.remove(self.path(kind))

    # Syncing and reading: any thread.

    def sync(self) -> None:
        """Forces log and indexes to disk."""
        self.file.sync()
        self.offset_index.sync()
        self.time_index.sync()
        self.transaction_index.sync()

    @property
    def is_cut(self) -> bool:
        """Whether a file lacks what was written to it. Raises OSError."""
        return (
            self.file.size() < self.size_bytes
            or self.offset_index.is_cut
            or self.time_index.is_cut
            or self.transaction_index.is_cut
        )

    def locate(self, offset: int) -> BatchPosition | None:
        """The first batch whose last offset is at or above `offset`; None past the end.

        Raises CorruptRecordError when the headers on the way make no sense.
        """
        return self._walk(self.offset_index.lookup(offset).position, offset)

    def batch_after(self, batch: BatchPosition) -> BatchPosition | None:
        """The batch that follows `batch`; None at the end."""
        return self._walk(batch.position + batch.size_bytes, batch.last_offset + 1)

    def read_next_offset(self) -> int:
        """The offset after the last batch, by the index and the headers behind its last entry.

        Raises CorruptRecordError when the file does not end where a batch ends.
        """
        position = self.offset_index.lookup(self.base_offset + MAX_RELATIVE_OFFSET).position
        next_offset = self.base_offset
        while (batch := self._walk(position, self.base_offset)) is not None:
            next_offset = batch.last_offset + 1
            position = batch.position + batch.size_bytes
        if position != self.size_bytes:
            raise CorruptRecordError(
                f"{self.path(LOG_SUFFIX).name} ends within a batch, at byte {self.size_bytes}"
            )
        return next_offset

    def header_at(self, position: int) -> BatchHeader:
        """The whole header of the batch at `position`; its own `position` is 0."""
        return BatchHeader(pread_all(self.file, HEADER_BYTES, position), 0)

    @property
    def first_timestamp_ms(self) -> int:
        """Of the first batch (its largest), as segment.ms counts from; -1 when there is none."""
        if self._first_timestamp_ms is None:
            if self.size_bytes < HEADER_BYTES:
                return NO_TIMESTAMP
            self._first_timestamp_ms = self.header_at(0).max_timestamp_ms
        return self._first_timestamp_ms

    @property
    def largest_timestamp_ms(self) -> int:
        """The largest timestamp, or the file's own age where batches have none.

        Where compaction left no record, that of the first emptied batch: the file is as young as
        the last cleaning, and would keep all that follows from retention.
        """
        for timestamp_ms in (self.max_timestamp.timestamp_ms, self.first_timestamp_ms):
            if timestamp_ms >= 0:
                return timestamp_ms
        return self._files.modified_ms(self.path(LOG_SUFFIX))

    def __repr__(self) -> str:
        return f"LogSegment(base offset {self.base_offset}, {self.size_bytes} bytes)"

    def _walk(self, position: int, offset: int) -> BatchPosition | None:
        """From the batch at `position` on, the first one that reaches `offset`."""
        end = self.size_bytes
        window, window_start = b"", position
        while position + HEADER_BYTES <= end:
            at = position - window_start
            if at + _SPAN.size > len(window):
                window_bytes = min(_WINDOW_BYTES, end - position)
                window = pread_all(self.file, window_bytes, position)
                window_start, at = position, 0
            base_offset, length, last_offset_delta = _SPAN.unpack_from(window, at)
            size_bytes = LOG_OVERHEAD_BYTES + length
            if size_bytes < HEADER_BYTES or position + size_bytes > end:
                raise CorruptRecordError(
                    f"{self.path(LOG_SUFFIX).name}: a batch at {position} claims {size_bytes} bytes"
                )
            if base_offset + last_offset_delta >= offset:
                return BatchPosition(
                    base_offset, base_offset + last_offset_delta, position, size_bytes
                )
            position += size_bytes
        return None
