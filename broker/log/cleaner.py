"""Cleaner: compacts one log, so that of each key the latest record is left (Kafka's LogCleaner).

A log's segments but the active one are a clean part and a dirty part. The cleaner reads the dirty
part and notes the latest offset of each key (`offset_map`), as far as the map's memory goes. Then
it copies all segments up to there, several small ones into one, as `.cleaned` files. Of a batch

- records stay whose offset is the latest of their key, or lies beyond what the map covers; records
  without a key go, and so do those of aborted transactions,
- a tombstone (no value) stays for `delete.retention.ms` after the first pass that meets it as the
  latest: the pass writes that horizon into the batch (KIP-534). Markers of transactions of which
  nothing is left likewise,
- offsets and order never change. A batch of which all is kept is copied byte for byte, one of which
  a part is kept is written anew with the same codec, offsets, producer and sequence number,
- the last batch of each producer that the log still knows, and the last one of each new segment,
  stay as empty batches: sequence numbers and the end of the segment must not be lost.

`clean` yields each new segment as soon as it is whole and synced. Putting it in the place of the
old ones is the Log's work (`Log.replace_segments`). Nothing here changes an old file, so that a
cleaning may be given up at any point; a `.cleaned` file left behind is removed when the log opens.

Reads and writes files only: runs in the process of its own that `cleaner_process` starts, or in any
one thread. O(records), and the reason why it has to stay away from the broker's loop.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafka.errors import CorruptRecordError

from broker.config.log import LogConfig
from broker.log.cleaned_transactions import CleanedTransactions
from broker.log.files import File, Files
from broker.log.names import CLEANED_SUFFIX, LOG_SUFFIX, file_name
from broker.log.offset_map import OffsetMap
from broker.log.segment import MAX_RELATIVE_OFFSET, LogSegment
from broker.log.transaction_index import AbortedTransaction
from pyspark_kafkalog.record.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    batch_size,
    check_crc,
    read_header,
    rebuild,
)
from pyspark_kafkalog.record.compression import compress, decompress
from pyspark_kafkalog.record.control import decode_marker
from pyspark_kafkalog.record.record_spans import record_spans
from pyspark_kafkalog.record.records import varint

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_DATA_OFFSET = -1
_MAX_DECOMPRESSED_BYTES = 256 << 20
_MAX_SEGMENT_BYTES = 2**31 - 1
_LEAST_READ_BYTES = 64 << 10
_LONGEST_SLEEP_S = 3600.0
_THROTTLED_FROM_S = 0.01
_INT64_SIGN = 1 << 63
_INT64_MASK = (1 << 64) - 1


class SegmentExtent(NamedTuple):
    """What a cleaning has to know of a segment before it opens it."""

    base_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int


class LastBatch(NamedTuple):
    """Where a producer stands: its last batch of data (-1 = none left) and its epoch."""

    last_offset: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One log to be cleaned."""

    directory: Path
    config: LogConfig
    segments: tuple[SegmentExtent, ...]
    """All that may be rewritten, oldest first: those below `until_offset`."""
    first_dirty_offset: int
    until_offset: int
    """The first offset that must not be touched: where a segment begins."""
    now_ms: int
    last_batches: Mapping[int, LastBatch]
    """By producer id."""
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """One cleaner's share of the `log.cleaner.*` properties."""

    dedupe_buffer_bytes: int
    load_factor: float
    io_buffer_bytes: int
    max_bytes_per_second: float


@dataclass(slots=True)
class CleanerStats:
    """What one cleaning did. Bytes of both passes."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    map_entries: int = 0


class CleanedSegment(NamedTuple):
    """New `.cleaned` files, whole and synced, and the base offsets of what they replace."""

    base_offset: int
    replaced: tuple[int, ...]


class CleaningResult(NamedTuple):
    """The log is clean below `end_offset`, once all new segments are in place."""

    end_offset: int
    stats: CleanerStats


class Throttler:
    """Keeps reading and writing below a rate by sleeping."""

    def __init__(
        self,
        max_bytes_per_second: float,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = max_bytes_per_second
        self._clock_s = clock_s
        self._sleep = sleep
        self._free_s = clock_s()

    def spend(self, size_bytes: int) -> None:
        now_s = self._clock_s()
        self._free_s = max(self._free_s, now_s) + size_bytes / self._rate
        if self._free_s - now_s > _THROTTLED_FROM_S:
            self._sleep(min(self._free_s - now_s, _LONGEST_SLEEP_S))


class _Batch(NamedTuple):
    """A batch as it was read."""

    data: memoryview
    header: BatchHeader


class Cleaner:
    """Compacts logs: writes new segments in which of each key the latest record is left.

    Files only, in any one thread; putting the segments in place is the Log's work.
    """

    def __init__(
        self,
        settings: CleanerSettings,
        files: Files,
        throttler: Throttler | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` is called between reads; what it raises ends the cleaning."""
        self._settings = settings
        self._files = files
        self._throttler = throttler or Throttler(settings.max_bytes_per_second)
        self._check = check
        self._stats = CleanerStats()

    def clean(self, job: CleaningJob) -> Iterator[CleanedSegment | CleaningResult]:
        """Yields the new segments, and at last how far the log is clean.

        Raises CorruptRecordError for a log that holds what it cannot, and OSError.
        """
        self._stats = CleanerStats()
        ends = [extent.base_offset for extent in job.segments[1:]] + [job.until_offset]
        sources = [
            self._open(job, extent, end_offset)
            for extent, end_offset in zip(job.segments, ends, strict=True)
        ]
        offset_map, end_offset = self._build_map(job, sources)
        self._stats.map_entries = len(offset_map)
        first_offset = job.segments[0].base_offset if job.segments else 0
        transactions = CleanedTransactions(
            each for each in job.aborted if each.last_offset >= first_offset
        )
        selection = _Selection(job, offset_map, end_offset, transactions, self._stats)
        doomed = [extent for extent in job.segments if extent.base_offset < end_offset]
        remaining = iter(sources)
        for group in group_segments(doomed, job.config, job.until_offset):
            yield self._rewrite(job, group, itertools.islice(remaining, len(group)), selection)
        yield CleaningResult(end_offset, self._stats)

    def _open(self, job: CleaningJob, extent: SegmentExtent, end_offset: int) -> "_Source":
        path = job.directory / file_name(extent.base_offset, LOG_SUFFIX)
        return _Source(extent, end_offset, self._files.open(path))

    def _build_map(self, job: CleaningJob, sources: Sequence["_Source"]) -> tuple[OffsetMap, int]:
        """The latest offsets from the first dirty offset on, and the offset before which the map
        knows them all."""
        start, until = job.first_dirty_offset, job.until_offset
        settings = self._settings
        offset_map = OffsetMap(settings.dedupe_buffer_bytes, settings.load_factor, until - start)
        transactions = CleanedTransactions(
            each for each in job.aborted if each.last_offset >= start
        )
        for source in sources:
            if source.end_offset <= start:
                continue
            for batch in self._batches(source):
                if batch.header.last_offset < start:
                    continue
                first_missing = self._map_batch(batch, start, offset_map, transactions)
                if first_missing is not None:
                    return offset_map, first_missing
        return offset_map, until

    def _map_batch(
        self, batch: _Batch, start: int, offset_map: OffsetMap, transactions: CleanedTransactions
    ) -> int | None:
        """Takes the keys of a batch into the map; the offset of the first that did not fit."""
        header = batch.header
        self._stats.records_read += header.record_count
        if header.is_control:
            transactions.is_obsolete(header, decode_marker(bytes(batch.data)))
            return None
        if transactions.is_aborted(header):
            return None
        records = _records_of(batch)
        for span in record_spans(records, header.record_count):
            offset = _offset_of(header, span.offset_delta)
            if span.key_end < 0 or offset < start:
                continue
            if not offset_map.put(records[span.key_start : span.key_end], offset):
                return offset
        return None

    def _rewrite(
        self,
        job: CleaningJob,
        group: Sequence[SegmentExtent],
        sources: Iterable["_Source"],
        selection: "_Selection",
    ) -> CleanedSegment:
        base_offset = group[0].base_offset
        segment = LogSegment.create(
            job.directory, base_offset, job.config, self._files, job.now_ms, CLEANED_SUFFIX
        )
        output = _Output(segment, self._settings.io_buffer_bytes // 2, self._wrote)
        last: _Batch | None = None
        for batch in itertools.chain.from_iterable(map(self._batches, sources)):
            if last is not None:
                output.add(selection.kept(last, is_last=False))
            last = batch
        if last is not None:
            output.add(selection.kept(last, is_last=True))
        output.flush()
        for aborted in selection.transactions.take_kept():
            segment.transaction_index.append(aborted)
        segment.seal()
        segment.sync()
        return CleanedSegment(base_offset, tuple(extent.base_offset for extent in group))

    def _wrote(self, size_bytes: int) -> None:
        self._stats.bytes_written += size_bytes
        self._throttler.spend(size_bytes)

    def _batches(self, source: "_Source") -> Iterator[_Batch]:
        """The batches of a segment, checksums checked, and offsets, which no checksum covers."""
        next_offset = source.extent.base_offset
        read_bytes = max(self._settings.io_buffer_bytes // 2, _LEAST_READ_BYTES)
        position, end = 0, source.extent.size_bytes
        while position < end:
            self._check()
            chunk = memoryview(source.file.pread(min(read_bytes, end - position), position))
            self._stats.bytes_read += len(chunk)
            self._throttler.spend(len(chunk))
            done = 0
            for batch in _whole_batches(chunk):
                header = batch.header
                if header.base_offset < next_offset or header.next_offset > source.end_offset:
                    raise CorruptRecordError(
                        f"a batch at {position + done} of segment {source.extent.base_offset} "
                        f"holds offsets {header.base_offset}..{header.last_offset}, "
                        f"expected are {next_offset}..{source.end_offset - 1}"
                    )
                next_offset = header.next_offset
                yield batch
                done += len(batch.data)
            position += done
            if not done:
                read_bytes = self._larger_read(chunk, end - position)

    def _larger_read(self, chunk: memoryview, left_bytes: int) -> int:
        """How much to read for a batch that did not fit. CorruptRecordError when there is none."""
        if len(chunk) >= LOG_OVERHEAD_BYTES:
            size_bytes = batch_size(chunk)
            if len(chunk) < size_bytes <= left_bytes:
                return size_bytes
        raise CorruptRecordError(f"a segment ends within a batch, {left_bytes} bytes from its end")


class _Source(NamedTuple):
    """A segment that is read."""

    extent: SegmentExtent
    end_offset: int
    """Where the next segment begins."""
    file: File


class _Selection:
    """Decides what of each batch stays, and makes the batch that holds it."""

    def __init__(
        self,
        job: CleaningJob,
        offset_map: OffsetMap,
        end_offset: int,
        transactions: CleanedTransactions,
        stats: CleanerStats,
    ) -> None:
        self.transactions = transactions
        self._now_ms = job.now_ms
        self._horizon_ms = job.now_ms + job.config.delete_retention_ms
        self._last_batches = job.last_batches
        self._map = offset_map
        self._end_offset = end_offset
        self._stats = stats

    def kept(self, batch: _Batch, *, is_last: bool) -> "Buffer | None":
        """What is to be written for `batch`, which may be its own bytes; None for nothing."""
        header = batch.header
        self._stats.records_read += header.record_count
        horizon_ms = header.delete_horizon_ms
        if header.is_control:
            marker = decode_marker(bytes(batch.data))
            is_obsolete = self.transactions.is_obsolete(header, marker)
            goes = is_obsolete and horizon_ms is not None and horizon_ms <= self._now_ms
        else:
            is_obsolete = False
            goes = self.transactions.is_aborted(header)
        flags, has_tombstones = (b"", False) if goes else self._flags(batch)
        count = sum(flags)
        self._stats.records_kept += count
        if not count:
            if not is_last and not self._is_last_of_its_producer(header):
                return None
            return batch.data if not header.record_count else _emptied(header)
        needs_horizon = horizon_ms is None and (has_tombstones or is_obsolete)
        if count == header.record_count and not needs_horizon:
            return batch.data
        return _reduced(batch, flags, self._horizon_ms if needs_horizon else None)

    def _flags(self, batch: _Batch) -> tuple[bytes, bool]:
        """For each record 1 if it stays, else 0; and whether a tombstone is among those."""
        header = batch.header
        if header.is_control:
            return b"\x01" * min(1, header.record_count), False
        horizon_ms = header.delete_horizon_ms
        tombstones_go = horizon_ms is not None and horizon_ms <= self._now_ms
        records = _records_of(batch)
        flags = bytearray()
        has_tombstones = False
        for span in record_spans(records, header.record_count):
            offset = _offset_of(header, span.offset_delta)
            if offset >= self._end_offset:
                stays = True
            elif span.key_end < 0:
                stays = False
                self._stats.records_without_key += 1
            elif not span.has_value and tombstones_go:
                stays = False
            else:
                stays = self._map.get(records[span.key_start : span.key_end]) <= offset
            flags.append(stays)
            if stays and not span.has_value:
                has_tombstones = True
        return bytes(flags), has_tombstones

    def _is_last_of_its_producer(self, header: BatchHeader) -> bool:
        """Of what the log knows of the producer: its last data, or where none is left, the marker
        that has its epoch."""
        last = self._last_batches.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset == NO_DATA_OFFSET:
            return header.is_control and header.producer_epoch == last.producer_epoch
        return header.last_offset == last.last_offset


class _Output:
    """Gathers batches and appends them to a segment."""

    def __init__(
        self, segment: LogSegment, buffer_bytes: int, wrote: Callable[[int], None]
    ) -> None:
        self._segment = segment
        self._buffer_bytes = buffer_bytes
        self._wrote = wrote
        self._data = bytearray()
        self._headers: list[BatchHeader] = []

    def add(self, batch: "Buffer | None") -> None:
        if batch is None:
            return
        self._headers.append(BatchHeader(batch, 0))
        self._headers[-1].position = len(self._data)
        self._data += memoryview(batch)
        if len(self._data) >= self._buffer_bytes:
            self.flush()

    def flush(self) -> None:
        if not self._headers:
            return
        if self._segment.size_bytes + len(self._data) > _MAX_SEGMENT_BYTES:
            raise CorruptRecordError("the cleaned segment would be larger than 2 GiB")
        self._segment.append(self._data, self._headers)
        self._wrote(len(self._data))
        self._data = bytearray()
        self._headers = []


def group_segments(
    segments: Sequence[SegmentExtent], config: LogConfig, until_offset: int
) -> Iterator[list[SegmentExtent]]:
    """Neighbours that fit into one segment: by size, by their indexes, by the span of offsets that
    an index can express."""
    group: list[SegmentExtent] = []
    ends = [segment.base_offset for segment in segments[1:]] + [until_offset]
    for segment, end_offset in zip(segments, ends, strict=True):
        joined = [*group, segment]
        fits = (
            sum(each.size_bytes for each in joined) <= config.segment_bytes
            and sum(each.offset_index_bytes for each in joined) <= config.segment_index_bytes
            and sum(each.time_index_bytes for each in joined) <= config.segment_index_bytes
            and end_offset - 1 - joined[0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if group and not fits:
            yield group
            joined = [segment]
        group = joined
    if group:
        yield group


def _whole_batches(chunk: memoryview) -> Iterator[_Batch]:
    position = 0
    while position + HEADER_BYTES <= len(chunk):
        size_bytes = batch_size(chunk, position)
        if position + size_bytes > len(chunk):
            return
        data = chunk[position : position + size_bytes]
        header = read_header(data)
        check_crc(data, header)
        yield _Batch(data, header)
        position += size_bytes


def _records_of(batch: _Batch) -> memoryview:
    return decompress(int(batch.header.codec), batch.data[HEADER_BYTES:], _MAX_DECOMPRESSED_BYTES)


def _offset_of(header: BatchHeader, offset_delta: int) -> int:
    if offset_delta > header.last_offset_delta:
        raise CorruptRecordError(
            f"the batch at offset {header.base_offset} holds a record {offset_delta} beyond its "
            f"last one, {header.last_offset_delta}"
        )
    return header.base_offset + offset_delta


def _emptied(header: BatchHeader) -> bytearray:
    """The batch without its records, and so without codec and horizon."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    return rebuild(header, b"", 0, NO_TIMESTAMP, header.max_timestamp_ms, attributes)


def _reduced(batch: _Batch, flags: bytes, new_horizon_ms: int | None) -> bytearray:
    """The batch with the flagged records, and with a delete horizon if one is given.

    The horizon takes the place of the base timestamp, so that all timestamp deltas change with it;
    without one the records' bytes stay as they are.
    """
    header = batch.header
    records = _records_of(batch)
    attributes, base_ms = header.attributes, header.base_timestamp_ms
    if new_horizon_ms is not None:
        attributes, base_ms = attributes | DELETE_HORIZON_BIT, new_horizon_ms
    shift_ms = header.base_timestamp_ms - base_ms
    out = bytearray()
    max_delta_ms = -_INT64_SIGN
    for number, span in enumerate(record_spans(records, header.record_count)):
        if not flags[number]:
            continue
        max_delta_ms = max(max_delta_ms, span.timestamp_delta)
        if shift_ms:
            timestamp = varint(_int64(span.timestamp_delta + shift_ms))
            length = 1 + len(timestamp) + span.end - span.offset_position
            out += varint(length)
            out.append(0)  # a record's attributes: no bit of them has a meaning
            out += timestamp
            out += records[span.offset_position : span.end]
        else:
            out += records[span.start : span.end]
    if header.is_log_append_time:
        max_timestamp_ms = header.max_timestamp_ms
    else:
        max_timestamp_ms = _int64(header.base_timestamp_ms + max_delta_ms)
    packed = compress(int(header.codec), out)
    return rebuild(header, packed, sum(flags), base_ms, max_timestamp_ms, attributes)


def _int64(number: int) -> int:
    """As 64 bits hold it: a timestamp nobody checked may overflow, and does in every client."""
    return ((number + _INT64_SIGN) & _INT64_MASK) - _INT64_SIGN
