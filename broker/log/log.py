"""Log: one partition's ordered, immutable, appended sequence of record batches.

It owns a directory `<topic>-<partition>` of segments, and with them their indexes, the producer
state and the leader epochs. Records go in and out as the bytes that travel: batches are checked and
stamped, never opened (but for ListOffsets by timestamp, which looks into one).

Promises: an append that returned survives the death of the process (it is in the page cache); it
survives the machine's from the next `flush` on. An append that raised left nothing behind; one of a
follower perhaps whole batches, behind which it goes on.

Threads. The broker's loop truncates and appends, and so do threads with large batches: one append
at a time, each in the order in which it got the lock. `flush`, `delete_old_segments`,
`advance_log_start_offset`, `remove_deleted_files`, `replace_segments` and the lookups may be
called from any thread at the same time. `_lock` guards every change of state and is, but for
truncation, never held across an fsync or a scan, so the loop waits microseconds for it, or the time
of a file creation, or of the writes of large batches that are before it: to append to the log
itself, or to ask for the last stable offset while transactions are open, not to read. `_flush_lock`
only keeps two flushes apart. Reads take no lock: `_next_offset` is published after
the bytes, and the list of segments is copied on write. A flush works on what was there when it
began; it moves the recovery point only if no truncation came between.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kafka.errors import (
    BrokerResponseError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
)

from broker.config.log import LogConfig
from broker.histogram import Histogram
from broker.log.checkpoint import UNKNOWN, LogCheckpoint
from broker.log.cleaner import NO_DATA_OFFSET, LastBatch
from broker.log.clock import Clock, has_passed, system_clock_ms
from broker.log.files import CutFileError, DiskFiles, Files, FileSlice, pread_all
from broker.log.leader_epoch import LeaderEpochFileCache
from broker.log.producer_state import BatchMetadata, CompletedTransaction, ProducerStateManager
from broker.log.record_search import first_record_at_or_after
from broker.log.recovery import LogLoader, index_aborted, rebuild_producers
from broker.log.retention import RetentionBounds, deletable_segments
from broker.log.segment import BatchPosition, LogSegment
from broker.log.segment_swap import SegmentSwap
from broker.log.time_index import NO_TIMESTAMP, TimestampOffset
from broker.log.transaction_index import AbortedTransaction
from broker.log.validator import (
    AppendRules,
    check_order,
    check_timestamps,
    stamp_offsets,
    validate,
    validate_copy,
)
from pyspark_kafkalog.record.batch import BatchHeader, read_header
from pyspark_kafkalog.record.control import TransactionMarker, decode_marker, encode_marker

_log = logging.getLogger(__name__)


class LogAppendInfo:
    """What an append did. `log_append_time_ms` is -1 unless the topic stamps it."""

    # No dataclass: one's __init__ is not compiled.
    __slots__ = (
        "first_offset",
        "is_duplicate",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
        "max_timestamp_ms",
        "size_bytes",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        log_append_time_ms: int,
        log_start_offset: int,
        max_timestamp_ms: int,
        size_bytes: int,
        is_duplicate: bool = False,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.max_timestamp_ms = max_timestamp_ms
        self.size_bytes = size_bytes
        self.is_duplicate = is_duplicate
        """A retry of what is in the log already, under these offsets; nothing was appended."""


# The next opening does as well.
_AS_GOOD_WITHOUT: Final = "close"


class Log:
    """One partition's records: appended at the end, read from any offset, dropped at the start.

    An append that returned survives the death of the process, and that of the machine from the
    next `flush` on; one that raised left nothing behind. Reads: any thread, without a lock;
    changes: any thread, one after the other.
    """

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        clock: Clock = system_clock_ms,
        files: Files | None = None,
        known: LogCheckpoint = UNKNOWN,
        *,
        on_flush_due: Callable[["Log"], None] | None = None,
        flush_times: Histogram | None = None,
        on_refused: Callable[["Log"], None] | None = None,
    ) -> None:
        """Opens the log in `directory`, which exists; recovers it unless it `was_clean`.

        `on_flush_due` is called in the appending thread when the log rolled or `flush_messages` is
        reached; `on_refused` in any, each time that the disk refuses. Raises OSError, and
        UnsupportedForMessageFormatError for a log in an old format.
        """
        self.directory = directory
        self.config = config  # and with it the rules
        self._clock = clock
        self._files: Files = DiskFiles() if files is None else files
        self._on_flush_due = on_flush_due
        self._on_refused = on_refused
        self.on_lowered: Callable[[], None] | None = None
        """Called where a truncation has cut off what a LogCheckpoint may tell of, before anything
        else is appended."""
        self._flush_times = flush_times
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._closed = False
        self._is_retired = False
        self._failure: OSError | None = None
        self._lacks_aborted = False
        """Whether a transaction could not be noted as aborted that is."""
        self._reported: tuple[str, str] | None = None
        self._truncations = 0
        loaded = LogLoader(directory, config, clock, self._files, known).load()
        self._segments = loaded.segments
        self._swap = SegmentSwap(loaded.segments)
        self._leader_epochs = loaded.leader_epochs
        self._producers = loaded.producers
        self._log_start_offset = loaded.log_start_offset
        self._next_offset = loaded.log_end_offset
        self._recovery_point = loaded.recovery_point
        self._first_dirty_offset = known.first_dirty_offset
        if not self._log_start_offset <= known.first_dirty_offset <= self._next_offset:
            self._first_dirty_offset = self._log_start_offset
        self._last_flush_ms = clock()
        self._roll_jitter_ms = self._new_jitter_ms()

    # State: any thread.

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._rules = AppendRules(config)

    @property
    def rules(self) -> AppendRules:
        """What `config` says of appends."""
        return self._rules

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._next_offset

    @property
    def recovery_point(self) -> int:
        """Everything below it is on disk for certain."""
        return self._recovery_point

    @property
    def first_dirty_offset(self) -> int:
        """Below it the log was compacted."""
        return max(self._first_dirty_offset, self._log_start_offset)

    @property
    def truncations(self) -> int:
        """How often the log was truncated since it was opened."""
        return self._truncations

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """All segments now, oldest first; the last is the active one."""
        return self._segments.snapshot()

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def leader_epochs(self) -> LeaderEpochFileCache:
        return self._leader_epochs

    @property
    def producers(self) -> ProducerStateManager:
        return self._producers

    @property
    def has_failed(self) -> bool:
        """Whether the disk refused, so that the log takes no more appends."""
        return self._failure is not None

    @property
    def is_flush_due(self) -> bool:
        """Whether the flush policy asks for a flush now."""
        if self._next_offset <= self._recovery_point or self._failure is not None:
            return False
        return self.awaits_flush or has_passed(
            self.config.flush_ms, self._last_flush_ms, self._clock()
        )

    @property
    def awaits_flush(self) -> bool:
        """Whether `flush.messages` records are unsynced: as many as power loss may take. What was
        appended is acknowledged after a flush then, not before."""
        return self._next_offset - self._recovery_point >= self._rules.flush_messages

    # Appending: any thread.

    def append(
        self,
        records: memoryview,
        leader_epoch: int,
        *,
        transactional: bool = False,
        numbered: bool = True,
    ) -> LogAppendInfo:
        """Appends whole batches from a client; their offsets and epoch are stamped into `records`.

        `transactional`: the caller knows that the producer's transaction is open, so its batches
        may be part of one. Not `numbered`: a coordinator writes them in the producer's name, who
        has not numbered them. Raises as `validator.validate` and `check_timestamps`;
        RecordListTooLargeError when the batches together exceed a segment;
        InvalidProducerEpochError, OutOfOrderSequenceNumberError, UnknownProducerIdError and
        InvalidTxnStateError for a producer's numbers; KafkaStorageError when the disk refuses, or
        did before, or the log is closed. Nothing is appended then.
        """
        rules = self._rules
        headers = validate(
            records, rules.max_message_bytes, transactional=transactional, numbered=numbered
        )
        if records.nbytes > rules.segment_bytes:
            raise RecordListTooLargeError(
                f"{records.nbytes} bytes of batches exceed segment.bytes={rules.segment_bytes}"
            )
        with self._lock:
            self._check_usable()
            # Not before: of two threads the later append has the later time.
            now_ms = self._clock()
            append_time_ms = now_ms if rules.stamps_append_time else NO_TIMESTAMP
            if not rules.stamps_append_time:
                check_timestamps(headers, now_ms, rules.before_max_ms, rules.after_max_ms)
            if headers[0].producer_id >= 0:
                duplicate = self._producers.check(headers[0])
                if duplicate is not None:
                    return self._duplicate(duplicate, append_time_ms)
            return self._append(records, headers, leader_epoch, now_ms, append_time_ms)

    def find_duplicate(self, header: BatchHeader) -> LogAppendInfo | None:
        """What `append` would return for a client's batch that is in the log already; None for
        any other."""
        if header.producer_id < 0:
            return None
        with self._lock:
            try:
                duplicate = self._producers.check(header)
            except BrokerResponseError:
                return None
            append_time_ms = self._clock() if self._rules.stamps_append_time else NO_TIMESTAMP
            return None if duplicate is None else self._duplicate(duplicate, append_time_ms)

    def append_end_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        leader_epoch: int,
        transaction_version: int = 0,
    ) -> LogAppendInfo:
        """Ends the producer's transaction in this log, by the word of its coordinator.

        `transaction_version`: 2 where each end has an epoch of its own. Raises
        InvalidProducerEpochError and TransactionCoordinatorFencedError for a marker that comes too
        late, and KafkaStorageError.
        """
        now_ms = self._clock()
        records = memoryview(encode_marker(marker, producer_id, producer_epoch, now_ms))
        with self._lock:
            self._check_usable()
            self._producers.check_marker(producer_id, producer_epoch, marker, transaction_version)
            headers = [read_header(records)]
            return self._append(records, headers, leader_epoch, now_ms, NO_TIMESTAMP, marker)

    def append_as_follower(self, records: memoryview) -> LogAppendInfo | None:
        """Appends batches of the leader's log as they are: their offsets and epochs stay. One that
        is cut off at the end is left out; None where none is whole.

        No rule of the topic is asked, and no producer's sequence: the leader did. Offsets may have
        gaps, as compaction leaves them. Raises CorruptRecordError, UnsupportedForMessageFormatError
        and OffsetsOutOfOrderError, and nothing is appended; KafkaStorageError, and the batches
        before the one that the disk refused are there.
        """
        headers = validate_copy(records)
        if not headers:
            return None
        whole = [records[each.position : each.end_position] for each in headers]
        markers = [
            decode_marker(bytes(batch)) if header.is_control else None
            for header, batch in zip(headers, whole, strict=True)
        ]
        with self._lock:
            self._check_usable()
            check_order(headers, self._next_offset)
            now_ms = self._clock()
            # One after the other, as the leader appended them: so the segments become the same.
            for header, batch, marker in zip(headers, whole, markers, strict=True):
                epoch, newest_ms = header.partition_leader_epoch, header.max_timestamp_ms
                self._take_in(batch, [header], epoch, newest_ms, now_ms, marker)
            return LogAppendInfo(
                headers[0].base_offset,
                headers[-1].last_offset,
                NO_TIMESTAMP,
                self._log_start_offset,
                max(header.max_timestamp_ms for header in headers),
                headers[-1].end_position,
            )

    def _append(
        self,
        records: memoryview,
        headers: list[BatchHeader],
        leader_epoch: int,
        now_ms: int,
        append_time_ms: int,
        marker: TransactionMarker | None = None,
    ) -> LogAppendInfo:
        first_offset = self._next_offset
        next_offset = stamp_offsets(records, headers, first_offset, leader_epoch, append_time_ms)
        newest_ms = headers[0].max_timestamp_ms
        for header in headers:
            newest_ms = max(newest_ms, header.max_timestamp_ms)
        self._take_in(records, headers, leader_epoch, newest_ms, now_ms, marker)
        return LogAppendInfo(
            first_offset,
            next_offset - 1,
            append_time_ms,
            self._log_start_offset,
            newest_ms,
            records.nbytes,
        )

    def _take_in(
        self,
        records: memoryview,
        headers: list[BatchHeader],
        leader_epoch: int,
        newest_ms: int,
        now_ms: int,
        marker: TransactionMarker | None,
    ) -> None:
        """Batches of one epoch, numbered, that belong behind the log's end."""
        first_offset, next_offset = headers[0].base_offset, headers[-1].next_offset
        try:
            segment = self._segment_for(records.nbytes, next_offset, newest_ms, now_ms)
            self._leader_epochs.assign(leader_epoch, first_offset)
            self._write(segment, records, headers, marker)
        except OSError as error:
            raise self._storage_error("append", error) from error
        for header in headers:
            completed = self._producers.update(header, now_ms, marker)
            if completed is not None and completed.is_aborted:
                self._index_aborted(segment, completed)
        self._next_offset = next_offset
        if self._reported is not None:
            self._reported = None
            _log.info("log.goes_on dir=%s offset=%d", self.directory, first_offset)
        if self._on_flush_due is not None and self.awaits_flush:
            self._on_flush_due(self)

    def _write(
        self,
        segment: LogSegment,
        records: memoryview,
        headers: list[BatchHeader],
        marker: TransactionMarker | None,
    ) -> None:
        size_bytes, max_timestamp = segment.size_bytes, segment.max_timestamp
        try:
            if marker is not None and self._producers.aborts(headers[0].producer_id, marker):
                segment.transaction_index.reserve()
            segment.append(records, headers)
        except OSError:
            segment.undo_append(size_bytes, max_timestamp, headers[0].base_offset)
            raise

    def _index_aborted(self, segment: LogSegment, completed: CompletedTransaction) -> None:
        """The marker is in the log already: a disk that refuses the index entry now must not keep
        it from being rebuilt from there. Until then nobody can be told what is committed."""
        try:
            index_aborted(segment, completed, self._producers)
        except OSError as error:
            self._failure, self._lacks_aborted = error, True
            self._storage_error("index", error)

    def _duplicate(self, batch: BatchMetadata, append_time_ms: int) -> LogAppendInfo:
        return LogAppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp_ms if append_time_ms >= 0 else NO_TIMESTAMP,
            self._log_start_offset,
            batch.timestamp_ms,
            0,
            is_duplicate=True,
        )

    def _segment_for(
        self, size_bytes: int, next_offset: int, newest_ms: int, now_ms: int
    ) -> LogSegment:
        """The active segment, after rolling if it is full or old."""
        segment = self._segments.active
        if not segment.size_bytes:
            return segment
        rules = self._rules
        longest_ms = rules.roll_ms - self._roll_jitter_ms
        if (
            segment.size_bytes + size_bytes > rules.segment_bytes
            or segment.is_full(next_offset)
            or segment.age_ms(newest_ms, now_ms) > longest_ms
        ):
            return self._roll(now_ms)
        return segment

    def roll(self) -> None:
        """Goes on in a new segment; nothing happens while the active one is empty."""
        with self._lock:
            self._check_usable()
            if self._segments.active.size_bytes:
                try:
                    self._roll(self._clock())
                except OSError as error:
                    raise self._storage_error("roll", error) from error

    def _roll(self, now_ms: int) -> LogSegment:
        base_offset = self._next_offset
        self._producers.take_snapshot(base_offset)
        segment = LogSegment.create(self.directory, base_offset, self.config, self._files, now_ms)
        try:
            # Last of what can fail: until then the log may still go on in the old segment.
            self._segments.active.seal()
        except OSError:
            segment.remove_files()
            raise
        self._segments.add(segment)
        self._roll_jitter_ms = self._new_jitter_ms()
        _log.debug("log.rolled dir=%s base_offset=%d", self.directory, base_offset)
        if self._on_flush_due is not None:
            self._on_flush_due(self)
        return segment

    def _new_jitter_ms(self) -> int:
        most_ms = min(self.config.segment_jitter_ms, self.config.roll_ms)
        return random.randrange(most_ms + 1) if most_ms else 0

    def truncate_to(self, offset: int) -> None:
        """Drops everything from `offset` on: the log ends there, or at the start of the batch that
        holds it. An offset at or past the end changes nothing; one below the first segment empties
        the log, which goes on at `offset`. On disk when it returns: what was cut stays away."""
        with self._lock:
            self._check_usable()
            if offset >= self._next_offset:
                return
            old_end_offset, known = self._next_offset, self._checkpointed
            try:
                self._truncate_to(offset)
            except OSError as error:
                raise self._half_done("truncate", error) from error
            _log.info(
                "log.truncated dir=%s from_offset=%d to_offset=%d",
                self.directory,
                old_end_offset,
                self._next_offset,
            )
        self._tell_lowered(known)

    def _truncate_to(self, offset: int) -> None:
        self._truncations += 1
        self._swap.give_up()
        if offset <= self._segments.first.base_offset:
            self._begin_anew(offset)
        else:
            self._drop_now(self._segments.from_base(offset))
            active = self._segments.active
            active.unseal()
            cut = active.locate(offset)
            if cut is not None:
                active.truncate_to(offset)
                offset = min(offset, cut.base_offset)
        self._next_offset = offset
        self._recovery_point = min(self._recovery_point, offset)
        self._first_dirty_offset = min(self._first_dirty_offset, offset)
        self._log_start_offset = min(self._log_start_offset, offset)
        self._segments.active.sync()
        self._files.sync_directory(self.directory)
        self._leader_epochs.truncate_from_end(offset)
        rebuild_producers(self._producers, self._segments, offset, self._clock())

    def restart_at(self, offset: int) -> None:
        """Drops everything: the log is empty and goes on at `offset`, as that of a follower does
        whose leader has nothing that belongs behind it. On disk when it returns."""
        with self._lock:
            self._check_usable()
            old_end_offset, known = self._next_offset, self._checkpointed
            try:
                self._truncations += 1
                self._swap.give_up()
                self._begin_anew(offset)
                self._next_offset = self._recovery_point = offset
                self._log_start_offset = self._first_dirty_offset = offset
                self._segments.active.sync()
                self._files.sync_directory(self.directory)
                self._leader_epochs.clear()
                rebuild_producers(self._producers, self._segments, offset, self._clock())
            except OSError as error:
                raise self._half_done("restart", error) from error
            _log.info(
                "log.restarted dir=%s from_offset=%d at_offset=%d",
                self.directory,
                old_end_offset,
                offset,
            )
        self._tell_lowered(known)

    @property
    def _checkpointed(self) -> tuple[int, int, int]:
        return self._recovery_point, self._log_start_offset, self._first_dirty_offset

    def _tell_lowered(self, known: tuple[int, int, int]) -> None:
        """Else a power loss would have what is appended now taken for what is on disk."""
        if self.on_lowered is None:
            return
        for before, now in zip(known, self._checkpointed, strict=True):
            if now < before:
                self.on_lowered()
                return

    def _drop_now(self, segments: tuple[LogSegment, ...]) -> None:
        self._segments.remove(segments)
        for segment in segments:
            segment.remove_files()

    def _begin_anew(self, offset: int) -> None:
        """One empty segment, in the place of all."""
        segments = self._segments.snapshot()
        for segment in segments:
            segment.remove_files()
        empty = LogSegment.create(self.directory, offset, self.config, self._files, self._clock())
        self._segments.replace(segments, empty)

    def _half_done(self, action: str, error: OSError) -> KafkaStorageError:
        """Neither what it was nor what it is to be: nothing is appended to it, or taken for
        synced."""
        self._failure = self._failure or error
        return self._storage_error(action, error)

    # Reading: any thread, no lock.

    def read(
        self, offset: int, max_bytes: int, upper_bound_offset: int, min_one_batch: bool = True
    ) -> FileSlice | None:
        """Up to `max_bytes` of batches, still in their file, from the one that holds `offset` on
        (it may begin below it); none that reaches `upper_bound_offset`, the last perhaps cut off.
        With `min_one_batch` the first batch comes whole even if it is larger.

        Raises OffsetOutOfRangeError outside log start..log end offset, CorruptRecordError when the
        headers on disk make no sense, and KafkaStorageError when the disk refuses.
        """
        bound = min(upper_bound_offset, self._next_offset)
        try:
            for segment in self._segments_from(offset, bound):
                found = segment.locate(offset)
                if found is not None:
                    return self._slice(segment, found, bound, max_bytes, min_one_batch)
        except OSError as error:
            raise self._storage_error("read", error) from error
        return None

    def read_committed(
        self, offset: int, max_bytes: int, upper_bound_offset: int, min_one_batch: bool = True
    ) -> tuple[FileSlice | None, tuple[AbortedTransaction, ...]]:
        """As `read`, with the aborted transactions that are to be skipped in these bytes."""
        if self._lacks_aborted:
            raise KafkaStorageError(f"{self.directory} lacks an aborted transaction in its index")
        bound = min(upper_bound_offset, self._next_offset)
        # The same segments for both: the cleaner may put others in their place, without the records
        # of a transaction that are still in the old ones.
        segments = self._segments_from(offset, bound)
        try:
            for segment in segments:
                found = segment.locate(offset)
                if found is not None:
                    records = self._slice(segment, found, bound, max_bytes, min_one_batch)
                    if records is None:
                        break
                    end = segment.offset_index.upper_bound(found.position + records.size_bytes)
                    bound = bound if end is None else end
                    return records, _aborted_between(segments, offset, bound)
        except OSError as error:
            raise self._storage_error("read", error) from error
        return None, ()

    def _segments_from(self, offset: int, bound: int) -> tuple[LogSegment, ...]:
        """Where what lies from `offset` to before `bound` may be found."""
        end_offset = self._next_offset
        segments = self._segments.from_floor(offset)
        # Retention may have dropped the segment already and not yet moved the start.
        is_dropped = offset < segments[0].base_offset
        if is_dropped or not self._log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside {self._log_start_offset}..{end_offset}"
            )
        return segments if offset < bound else ()

    def _slice(
        self,
        segment: LogSegment,
        first: BatchPosition,
        bound: int,
        max_bytes: int,
        min_one_batch: bool,
    ) -> FileSlice | None:
        """From `first` on; None where nothing is allowed."""
        size_bytes = self._readable_bytes(segment, first, bound)
        least_bytes = first.size_bytes if min_one_batch else 0
        size_bytes = min(size_bytes, max(max_bytes, least_bytes))
        if size_bytes <= 0:
            return None
        return FileSlice(segment.file, first.position, size_bytes, self._not_read)

    def _not_read(self, error: OSError) -> None:
        """By who was told where the records lie. Any thread."""
        self._storage_error("read", error)

    def _readable_bytes(self, segment: LogSegment, first: BatchPosition, bound: int) -> int:
        """From `first` to the segment's end, or to the batch that reaches `bound`."""
        if bound < self._next_offset:
            last = segment.locate(bound)
            if last is not None:
                return last.position - first.position
        return segment.size_bytes - first.position

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that has `timestamp_ms` or a later one. Raises
        KafkaStorageError."""
        for segment in self._segments.snapshot():
            if segment.max_timestamp.timestamp_ms < timestamp_ms:
                continue
            found = self._search(segment, self._log_start_offset, timestamp_ms)
            if found is not None:
                return found
        return None

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp of the log. Raises
        KafkaStorageError."""
        newest = TimestampOffset(NO_TIMESTAMP, 0)
        for segment in self._segments.snapshot():
            if segment.max_timestamp.timestamp_ms > newest.timestamp_ms:
                newest = segment.max_timestamp
        if newest.timestamp_ms < 0:
            return None
        holder = self._segments.floor(newest.offset)
        if holder is None:
            return None
        return self._search(holder, newest.offset, newest.timestamp_ms)

    def _search(
        self, segment: LogSegment, offset: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        try:
            return self._search_in(segment, offset, timestamp_ms)
        except OSError as error:
            raise self._storage_error("read", error) from error

    def _search_in(
        self, segment: LogSegment, offset: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        before = segment.time_index.lookup(timestamp_ms).offset
        batch = segment.locate(max(offset, before))
        while batch is not None:
            if self._closed:  # the broker stops, or the topic is gone: nobody waits for the answer
                raise KafkaStorageError(f"{self.directory} is closed")
            header = segment.header_at(batch.position)
            if header.max_timestamp_ms >= timestamp_ms:
                data = pread_all(segment.file, batch.size_bytes, batch.position)
                found = first_record_at_or_after(data, timestamp_ms, self._log_start_offset)
                if found is not None:
                    return found
            batch = segment.batch_after(batch)
        return None

    # Upkeep: any thread.

    def flush(self) -> None:
        """Forces everything appended until now to disk and moves the recovery point there.

        KafkaStorageError when the disk refuses: the log then takes no more appends, as nobody
        knows which of its unsynced bytes are still in memory.
        """
        with self._flush_lock:
            with self._lock:
                # A second fsync succeeds though the first one's bytes are lost.
                self._check_not_failed()
                end_offset, truncations = self._next_offset, self._truncations
                start_offset = self._recovery_point
                # One that ends there was sealed since it was synced.
                segments = self._segments.from_floor(start_offset - 1)
            if end_offset > start_offset:
                began_s = time.perf_counter()
                try:
                    self._sync(segments, start_offset, end_offset)
                    if self._flush_times is not None:
                        self._flush_times.observe((time.perf_counter() - began_s) * 1000)
                except OSError as error:
                    if self._is_retired:
                        return
                    with self._lock:
                        self._failure = self._failure or error
                    raise self._storage_error("flush", error) from error
            with self._lock:
                if truncations == self._truncations:
                    self._recovery_point = max(self._recovery_point, end_offset)
                self._last_flush_ms = self._clock()

    def _sync(self, segments: tuple[LogSegment, ...], start_offset: int, end_offset: int) -> None:
        for segment in segments:
            segment.sync()
        for offset in self._producers.snapshot_offsets():
            if start_offset <= offset <= end_offset:
                with contextlib.suppress(FileNotFoundError):  # retention was faster
                    self._files.open(self._producers.snapshot_path(offset)).sync()
        self._leader_epochs.sync()
        self._files.sync_directory(self.directory)

    def delete_old_segments(self, high_watermark: int) -> int:
        """Drops the segments that retention lets go; returns how many. Their files are renamed
        now and removed after file.delete.delay.ms by `remove_deleted_files`."""
        with self._lock:
            self._check_usable()
            bounds = RetentionBounds(
                self._clock(), self._log_start_offset, self._next_offset, high_watermark
            )
            try:
                doomed = deletable_segments(self._segments.snapshot(), self.config, bounds)
                self._delete([segment for segment, _ in doomed])
            except OSError as error:
                raise self._storage_error("delete", error) from error
        for segment, reason in doomed:
            _log.info(
                "segment.deleted dir=%s base_offset=%d size_bytes=%d reason=%s",
                self.directory,
                segment.base_offset,
                segment.size_bytes,
                reason,
            )
        return len(doomed)

    def _delete(self, segments: list[LogSegment]) -> None:
        if not segments:
            return
        self._swap.give_up()
        if len(segments) == len(self._segments):
            self._roll(self._clock())
        self._segments.remove(segments)
        self._log_start_offset = max(self._log_start_offset, self._segments.first.base_offset)
        # Before what takes room: there may be none.
        self._swap.take_out(segments, self._clock(), self.config.file_delete_delay_ms)
        self._start_at(self._log_start_offset)

    def _start_at(self, offset: int) -> None:
        self._log_start_offset = offset
        self._leader_epochs.truncate_from_start(offset)
        self._producers.remove_snapshots(below=self._segments.first.base_offset)

    def advance_log_start_offset(self, offset: int) -> None:
        """DeleteRecords: nothing below `offset` may be read any more. The caller has compared it
        with the high watermark. Raises OffsetOutOfRangeError above the log end offset."""
        with self._lock:
            self._check_usable()
            if offset > self._next_offset:
                raise OffsetOutOfRangeError(f"offset {offset} is above {self._next_offset}")
            if offset > self._log_start_offset:
                try:
                    self._start_at(offset)
                except OSError as error:
                    raise self._storage_error("delete", error) from error

    def last_stable_offset(self, high_watermark: int) -> int:
        """What lies below is committed, and its transactions are decided. Where records of an open
        transaction were deleted that is the log's start, which can be read from."""
        if not self._producers.has_unstable:
            return high_watermark
        with self._lock:
            unstable = self._producers.first_unstable_offset(high_watermark)
            start_offset = self._log_start_offset
        if unstable is None:
            return high_watermark
        return min(max(unstable, start_offset), high_watermark)

    def last_batches(self) -> dict[int, LastBatch]:
        """Of each producer, what compaction must leave: where its last data lies, its epoch."""
        with self._lock:
            return {
                producer_id: LastBatch(
                    entry.batches[-1].last_offset if entry.batches else NO_DATA_OFFSET,
                    entry.producer_epoch,
                )
                for producer_id, entry in self._producers.entries.items()
            }

    def mark_clean(self, offset: int, truncations: int) -> None:
        """Compaction that began after so many `truncations` has done its work below `offset`. What
        was appended after another one it has not seen: then nothing is marked."""
        with self._lock:
            if truncations == self._truncations:
                self._first_dirty_offset = offset

    def replace_segments(self, cleaned: LogSegment, replaced: Sequence[LogSegment]) -> bool:
        """Puts `cleaned`, whose files are named `.cleaned`, whole and synced, in the place of
        `replaced`. One thread at a time.

        False, and `cleaned` removed, when the log has changed under the cleaner: a segment was
        dropped, or the log truncated or closed. Each step is on disk before the next: the new files
        are named `.swap`, the old ones `.deleted`, then `.swap` comes off. A crash before the first
        leaves the old segments, one after it the new segment. Raises KafkaStorageError.
        """
        try:
            if not self._begin_swap(cleaned, replaced):
                return False
            self._files.sync_directory(self.directory)
            if not self._finish_swap(cleaned, replaced):
                return False
            self._files.sync_directory(self.directory)
            with self._lock:
                if cleaned in self._segments.snapshot():
                    cleaned.change_suffix("")
            self._files.sync_directory(self.directory)
        except OSError as error:
            if self._is_retired:
                return False
            raise self._storage_error("compact", error) from error
        return True

    def _begin_swap(self, cleaned: LogSegment, replaced: Sequence[LogSegment]) -> bool:
        with self._lock:
            if not self._closed and self._swap.begin(cleaned, replaced):
                return True
            cleaned.remove_files()
            return False

    def _finish_swap(self, cleaned: LogSegment, replaced: Sequence[LogSegment]) -> bool:
        with self._lock:
            if self._closed:
                self._swap.give_up()
                return False
            delay_ms = self.config.file_delete_delay_ms
            if not self._swap.finish(cleaned, replaced, self._clock(), delay_ms):
                return False
            for segment in replaced[1:]:
                self._files.remove(self._producers.snapshot_path(segment.base_offset))
            return True

    def remove_deleted_files(self) -> None:
        """Removes the files of segments whose delay is over. A slice in flight still reads them.
        Raises KafkaStorageError; what is left then goes at the next start."""
        with self._lock:
            due = self._swap.take_due(self._clock())
        try:
            for segment in due:
                segment.remove_files()
        except OSError as error:
            raise self._storage_error("delete", error) from error

    @property
    def has_deleted_files(self) -> bool:
        return bool(self._swap.outgoing)

    def remove_expired_producers(self, expiration_ms: int) -> None:
        with self._lock:
            self._producers.remove_expired(self._clock(), expiration_ms)

    def retire(self, directory: Path) -> None:
        """Ends the log and renames its directory, which is to be removed. Slices in flight stay
        readable, appends raise KafkaStorageError."""
        with self._lock:
            self._closed = self._is_retired = True
            self._swap.give_up()
            self._files.rename(self.directory, directory)
            self.directory = directory
            self._producers.directory = directory
            self._leader_epochs.move_to(directory)
            for segment in (*self._segments.snapshot(), *self._swap.outgoing):
                segment.move_to(directory)

    def close(self) -> None:
        """Seals and flushes: afterwards the log may be opened with `was_clean`."""
        with self._lock:
            if self._closed:
                return
            self._check_usable()
            self._closed = True
            try:
                self._segments.active.seal()
                self._producers.take_snapshot(self._next_offset)
            except OSError as error:
                raise self._storage_error("close", error) from error
        # What was sealed last is synced again, and what was sealed before, if nothing came since.
        sealed_offset = max(0, self._segments.active.base_offset - 1)
        self._recovery_point = min(self._recovery_point, sealed_offset)
        self.flush()
        for segment in self._swap.outgoing:
            segment.remove_files()

    def _check_usable(self) -> None:
        self._check_not_failed()
        if self._closed:
            raise KafkaStorageError(f"{self.directory} is closed")

    def _check_not_failed(self) -> None:
        if self._failure is not None:
            raise KafkaStorageError(f"{self.directory} takes no more writes since: {self._failure}")

    def _storage_error(self, action: str, error: OSError) -> KafkaStorageError:
        """Logs it once, until an append succeeds again: a full disk refuses every request. What a
        truncation has cut off while it was read is no failure."""
        if isinstance(error, CutFileError) and not self._is_cut:
            return KafkaStorageError(f"{action} in {self.directory}: {error}")
        if self._reported != (action, str(error)):
            self._reported = action, str(error)
            _log.error("log.failed dir=%s action=%s reason=%r", self.directory, action, str(error))
        if self._on_refused is not None and action != _AS_GOOD_WITHOUT and not self._closed:
            self._on_refused(self)
        return KafkaStorageError(f"{action} failed in {self.directory}: {error}")

    @property
    def _is_cut(self) -> bool:
        """Whether a file is shorter than this log has made it."""
        try:
            return any(segment.is_cut for segment in self._segments.snapshot())
        except OSError:
            return True


def _aborted_between(
    segments: Sequence[LogSegment], offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions with records from `offset` to before `end_offset`. Their markers
    may lie far behind, in the last of `segments`; the first one after which all before `end_offset`
    was decided ends the search."""
    found = []
    for segment in segments:
        for aborted in segment.transaction_index.entries_from(offset):
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return tuple(found)
    return tuple(found)
