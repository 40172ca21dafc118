"""Opening a log's directory: after a clean stop at once, after any other by looking at the bytes.

`LogLoader.load` returns the parts of a Log. After an unclean stop every segment from the one that
holds the recovery point on is read whole: the longest valid prefix is kept, everything behind it
is cut off, segments behind a cut are dropped, and ONE line says what was cut. Below the recovery
point the log was synced: there only a missing or impossible index is built anew, and nothing is
ever cut. What a crash left in the middle is ended: `.deleted` and `.cleaned` files are removed,
`.swap` files put in the place of the segments that they replace.

A batch is valid when its header is plausible, its checksum right and its offsets go on from the
batch before it. The base offset is not under the checksum, so a gap in the offsets is believed only
if what follows goes on from there. Called once for a directory, by any one thread, before the log
is used. Never changes a record.
"""

import logging
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kafka.errors import CorruptRecordError, UnsupportedForMessageFormatError

from broker.config.log import LogConfig
from broker.log.checkpoint import LogCheckpoint
from broker.log.clock import Clock
from broker.log.files import File, Files
from broker.log.leader_epoch import LeaderEpochFileCache
from broker.log.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
)
from broker.log.producer_state import CompletedTransaction, ProducerStateManager
from broker.log.segment import MAX_RELATIVE_OFFSET, LogSegment
from broker.log.segments import LogSegments
from broker.log.transaction_index import AbortedTransaction
from pyspark_kafkalog.record.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    batch_size,
    check_crc,
    read_header,
)
from pyspark_kafkalog.record.control import decode_marker

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 4 << 20
_WINDOW_BYTES = 4096
_OLD_HEADER_BYTES = 26


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """The parts of a Log."""

    segments: LogSegments
    leader_epochs: LeaderEpochFileCache
    producers: ProducerStateManager
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def reason_of(error: CorruptRecordError | ValueError) -> str:
    """What is wrong, without the wire error's number."""
    return str(error.args[0])


def read_batches(file: File, end: int, *, with_crc: bool) -> Iterator[tuple[int, BatchHeader]]:
    """(position in the file, header) of the batches in the first `end` bytes of `file`.

    Raises CorruptRecordError where the bytes stop being whole batches. Without `with_crc` only
    headers are read and looked at.
    """
    if not with_crc:
        yield from _read_headers(file, end)
        return
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(end, HEADER_BYTES))))
    position = 0
    while position < end:
        filled = file.pread_into(buffer[: min(len(buffer), end - position)], position)
        chunk = buffer[:filled]
        done = 0
        while (size_bytes := _whole_batch_bytes(chunk, done)) is not None:
            header = _checked_header(chunk, done)
            yield position + done, header
            done += size_bytes
        position += done
        if not done and position < end:
            buffer = _larger(buffer, chunk, end - position)


def _read_headers(file: File, end: int) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    window, window_start = b"", 0
    while position < end:
        at = position - window_start
        if at + HEADER_BYTES > len(window):
            window, window_start, at = file.pread(_WINDOW_BYTES, position), position, 0
        if at + HEADER_BYTES > len(window) or position + batch_size(window, at) > end:
            raise CorruptRecordError(f"the file ends within a batch that begins at {position}")
        yield position, BatchHeader(window, at)
        position += batch_size(window, at)


def _whole_batch_bytes(chunk: memoryview, position: int) -> int | None:
    """The size of the batch at `position`; None when the chunk ends before it does."""
    if position + LOG_OVERHEAD_BYTES > len(chunk):
        return None
    size_bytes = batch_size(chunk, position)
    return size_bytes if position + size_bytes <= len(chunk) else None


def _checked_header(chunk: memoryview, position: int) -> BatchHeader:
    try:
        header = read_header(chunk, position)
    except UnsupportedForMessageFormatError as error:
        raise CorruptRecordError(str(error)) from None
    check_crc(chunk, header)
    return header


def refuse_old_format(file: File, end: int) -> None:
    """Raises UnsupportedForMessageFormatError when the file begins with a message of the format
    before magic 2: a real one, by its own checksum, and not garbage that looks like one."""
    head = file.pread(_OLD_HEADER_BYTES, 0)
    if len(head) < _OLD_HEADER_BYTES or head[16] not in (0, 1):
        return
    size_bytes = LOG_OVERHEAD_BYTES + int.from_bytes(head[8:12], "big", signed=True)
    if _OLD_HEADER_BYTES <= size_bytes <= end:
        message = file.pread(size_bytes, 0)
        if zlib.crc32(message[16:]) == int.from_bytes(message[12:16], "big"):
            raise UnsupportedForMessageFormatError(
                f"the log holds messages of format {head[16]}, supported is 2"
            )


def _larger(buffer: memoryview, chunk: memoryview, left_bytes: int) -> memoryview:
    """A buffer that holds the next batch whole; CorruptRecordError when the file does not."""
    wanted_bytes = batch_size(chunk) if len(chunk) >= LOG_OVERHEAD_BYTES else left_bytes + 1
    if wanted_bytes > left_bytes:
        raise CorruptRecordError(f"the last {left_bytes} bytes are no whole batch")
    return memoryview(bytearray(wanted_bytes))


class LogLoader:
    """Loads one log's directory."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        files: Files,
        known: LogCheckpoint,
    ) -> None:
        self._directory = directory
        self._config = config
        self._clock = clock
        self._files = files
        self._known = known
        self._segments = LogSegments()
        self._index_transactions_from: int | None = None
        self._was_cut = False
        self._leader_epochs = LeaderEpochFileCache(directory, files)
        self._producers = ProducerStateManager(directory, files)

    def load(self) -> LoadedLog:
        """Raises OSError, and UnsupportedForMessageFormatError for a log in an old format."""
        recovery_point, log_start_offset = self._known.recovery_point, self._known.log_start_offset
        self._finish_what_a_crash_left()
        has_epochs = self._leader_epochs.load()
        self._open_segments(recovery_point)
        end_offset = self._end_of_clean_log()
        if end_offset is None:
            end_offset = self._recover(recovery_point)
        if end_offset < log_start_offset:
            _log.warning(
                "log.restarted dir=%s log_end_offset=%d log_start_offset=%d",
                self._directory,
                end_offset,
                log_start_offset,
            )
            self._drop(self._segments.snapshot())
            end_offset = log_start_offset
        if not len(self._segments):
            self._segments.add(self._new_segment(max(end_offset, log_start_offset)))
            end_offset = self._segments.active.base_offset
        self._segments.active.unseal()
        start_offset = max(log_start_offset, self._segments.first.base_offset)
        self._load_epochs(start_offset, end_offset, has_file=has_epochs)
        rebuild_producers(
            self._producers,
            self._segments,
            end_offset,
            self._clock(),
            self._index_transactions_from,
        )
        bases = frozenset(segment.base_offset for segment in self._segments.snapshot())
        self._producers.remove_snapshots(keep=bases)
        self._sync_what_was_recovered()
        return LoadedLog(
            self._segments,
            self._leader_epochs,
            self._producers,
            start_offset,
            end_offset,
            end_offset if self._known.was_clean else min(recovery_point, end_offset),
        )

    def _sync_what_was_recovered(self) -> None:
        """Else a power loss could bring back what was cut, under what is appended now; or take a
        transaction index that was made anew: one that is missing is not noticed."""
        remade = self._segments.snapshot() if self._index_transactions_from is not None else ()
        remade = tuple(each for each in remade if each.transaction_index.entry_count)
        for segment in remade:
            segment.transaction_index.sync()
        if self._was_cut:
            self._segments.active.sync()
        if self._was_cut or remade:
            self._files.sync_directory(self._directory)

    def _new_segment(self, base_offset: int) -> LogSegment:
        return LogSegment.create(
            self._directory, base_offset, self._config, self._files, self._clock()
        )

    def _finish_what_a_crash_left(self) -> None:
        names = self._files.list(self._directory)
        # Apache Kafka splits a segment into several swap files: as long as one of them is still
        # named `.cleaned`, those from its offset on are not the whole (KAFKA-6264).
        whole_below = min(
            (
                int(name[:20])
                for name in names
                if name.endswith(CLEANED_SUFFIX) and name[:20].isdigit()
            ),
            default=None,
        )
        swaps = []
        for name in names:
            path = self._directory / name
            if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")):
                self._files.remove(path)
            elif name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and name[:20].isdigit():
                swaps.append(name)
        for name in swaps:
            if whole_below is None or int(name[:20]) < whole_below:
                self._put_in_place(name)
        for name in self._files.list(self._directory):
            if name.endswith(SWAP_SUFFIX):
                self._files.remove(self._directory / name)
        self._remove_orphans()

    def _put_in_place(self, swap_name: str) -> None:
        """Replaces the segments whose offsets the swap file covers. It is complete: the cleaner
        names a file `.swap` only once it is whole and synced. One that is damaged since is given up
        for the old segment, as long as that is there."""
        base_text = swap_name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX)
        swap = self._files.open(self._directory / swap_name)
        next_offset = int(base_text)
        try:
            for _, header in read_batches(swap, swap.size(), with_crc=False):
                next_offset = max(next_offset, header.next_offset)
        except CorruptRecordError as error:
            _log.warning("swap.damaged dir=%s reason=%r", self._directory, reason_of(error))
            if self._files.exists(self._directory / (base_text + LOG_SUFFIX)):
                return
        for name in self._files.list(self._directory):
            stem, dot, kind = name.partition(".")
            replaced = stem.isdigit() and int(base_text) <= int(stem) < next_offset
            if replaced and dot + kind in SEGMENT_SUFFIXES:
                self._files.remove(self._directory / name)
        for kind in reversed(SEGMENT_SUFFIXES):
            path = self._directory / (base_text + kind + SWAP_SUFFIX)
            if self._files.exists(path):
                self._files.rename(path, self._directory / (base_text + kind))
        self._files.sync_directory(self._directory)
        _log.info("log.swapped dir=%s base_offset=%d", self._directory, int(base_text))

    def _remove_orphans(self) -> None:
        """Indexes without a log."""
        names = self._files.list(self._directory)
        for name in names:
            stem, dot, kind = name.partition(".")
            is_index = dot + kind in SEGMENT_SUFFIXES and dot + kind != LOG_SUFFIX
            if is_index and stem.isdigit() and stem + LOG_SUFFIX not in names:
                self._files.remove(self._directory / name)

    def _open_segments(self, recovery_point: int) -> None:
        for name in self._files.list(self._directory):
            stem = name.removesuffix(LOG_SUFFIX)
            if stem == name or not stem.isdigit():
                continue
            segment = LogSegment.open(self._directory, int(stem), self._config, self._files)
            self._segments.add(segment)
        segments = self._segments.snapshot()
        suspects = () if self._known.was_clean else self._segments.from_floor(recovery_point)
        trusted = segments[: len(segments) - len(suspects)]
        for segment in trusted:
            segment.transaction_index.load()
            if not segment.transaction_index.sanity_check():
                self._restart_transaction_index(segment)
            if not segment.load_indexes():
                _log.warning(
                    "index.rebuilt dir=%s base_offset=%d", self._directory, segment.base_offset
                )
                self._rebuild_index(segment)
        if trusted and suspects and suspects[0].base_offset == recovery_point:
            trusted[-1].seal_again()  # it was synced up to its end, and sealed afterwards

    def _restart_transaction_index(self, segment: LogSegment) -> None:
        """Empties it; with it all that follow are gone through: markers are read in order."""
        if self._index_transactions_from is None:
            self._index_transactions_from = segment.base_offset
        segment.transaction_index.create()

    def _rebuild_index(self, segment: LogSegment) -> None:
        """By the headers alone; cuts nothing."""
        segment.restart_indexes()
        try:
            for position, header in read_batches(segment.file, segment.size_bytes, with_crc=False):
                segment.index_batch(header, position)
        except (CorruptRecordError, ValueError) as error:
            _log.warning("index.incomplete dir=%s reason=%r", self._directory, reason_of(error))
        segment.seal()
        segment.sync()  # no flush does: it lies below the recovery point

    def _end_of_clean_log(self) -> int | None:
        """The log end offset after a clean stop; None when the tail must be looked at."""
        if not len(self._segments):
            return 0
        if not self._known.was_clean:
            return None
        try:
            return self._segments.active.read_next_offset()
        except CorruptRecordError as error:
            _log.warning("log.unclean dir=%s reason=%r", self._directory, reason_of(error))
            return None

    def _recover(self, recovery_point: int) -> int:
        """Keeps the longest valid prefix from the recovery point on; returns its end offset."""
        started = time.monotonic()
        suspects = self._segments.from_floor(recovery_point)
        self._leader_epochs.truncate_from_end(suspects[0].base_offset)
        reason, cut_bytes, scanned_bytes = "", 0, 0
        end_offset = suspects[0].base_offset
        for number, segment in enumerate(suspects):
            scanned_bytes += segment.size_bytes
            following = suspects[number + 1] if number + 1 < len(suspects) else None
            end_offset, cut, reason = self._recover_segment(segment, following)
            cut_bytes += cut
            if reason:
                later = suspects[number + 1 :]
                cut_bytes += sum(each.size_bytes for each in later)
                self._drop(later)
                self._was_cut = True
                break
        # What was synced does not go in a crash: the disk has lost it.
        synced_records = max(0, recovery_point - end_offset) if reason else 0
        level = logging.WARNING if reason else logging.INFO
        _log.log(
            logging.ERROR if synced_records else level,
            "log.recovered dir=%s recovery_point=%d log_end_offset=%d scanned_bytes=%d "
            "cut_bytes=%d cut_synced_offsets=%d reason=%r duration_ms=%d",
            self._directory,
            recovery_point,
            end_offset,
            scanned_bytes,
            cut_bytes,
            synced_records,
            reason,
            (time.monotonic() - started) * 1000,
        )
        return end_offset

    def _recover_segment(
        self, segment: LogSegment, following: LogSegment | None
    ) -> tuple[int, int, str]:
        """(end offset, bytes cut, why)."""
        size_bytes = segment.size_bytes
        refuse_old_format(segment.file, size_bytes)
        segment.restart_indexes()
        self._restart_transaction_index(segment)
        limit = following.base_offset if following else None
        prefix = _ValidPrefix(segment.base_offset, limit, "compact" in self._config.cleanup_policy)
        reason = ""
        try:
            for position, header in read_batches(segment.file, size_bytes, with_crc=True):
                for good_position, good in prefix.take(position, header):
                    self._keep(segment, good_position, good)
            for good_position, good in prefix.finish():
                self._keep(segment, good_position, good)
        except CorruptRecordError as error:
            reason = reason_of(error)
            for good_position, good in prefix.salvage():
                self._keep(segment, good_position, good)
        if prefix.end_position < size_bytes:
            segment.truncate_bytes(prefix.end_position)
        segment.seal()
        return prefix.next_offset, size_bytes - prefix.end_position, reason

    def _keep(self, segment: LogSegment, position: int, header: BatchHeader) -> None:
        segment.index_batch(header, position)
        latest = self._leader_epochs.latest_epoch
        if latest is None or header.partition_leader_epoch > latest:
            self._leader_epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _drop(self, segments: tuple[LogSegment, ...]) -> None:
        self._segments.remove(segments)
        for segment in segments:
            segment.remove_files()

    def _load_epochs(self, start_offset: int, end_offset: int, *, has_file: bool) -> None:
        if not has_file:
            for segment in self._segments.snapshot():
                for _, header in read_batches(segment.file, segment.size_bytes, with_crc=False):
                    self._leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
        self._leader_epochs.truncate_from_end(end_offset)
        self._leader_epochs.truncate_from_start(start_offset)


class _ValidPrefix:
    """Decides, one batch behind, which batches of a segment continue each other.

    A gap before a batch is believed only when the batch after it, or the next segment, goes on
    from it; at the very end of the log only where compaction makes gaps.
    """

    def __init__(self, base_offset: int, limit: int | None, may_end_after_gap: bool) -> None:
        self.end_position = 0
        self.next_offset = base_offset
        self._base_offset = base_offset
        self._limit = limit
        self._may_end_after_gap = may_end_after_gap
        self._doubtful: tuple[int, BatchHeader] | None = None

    def take(self, position: int, header: BatchHeader) -> Iterator[tuple[int, BatchHeader]]:
        """Yields the batches that are certain now. CorruptRecordError ends the prefix."""
        if self._doubtful is not None:
            if header.base_offset < self._doubtful[1].next_offset:
                self._reject()
            yield self._accept()
        if header.base_offset < self.next_offset:
            raise CorruptRecordError(
                f"a batch at {position} begins at offset {header.base_offset}, "
                f"expected {self.next_offset}"
            )
        if header.last_offset - self._base_offset > MAX_RELATIVE_OFFSET:
            raise CorruptRecordError(f"a batch at {position} is beyond the segment's offsets")
        self._doubtful = position, header
        if header.base_offset == self.next_offset:
            yield self._accept()

    def finish(self) -> Iterator[tuple[int, BatchHeader]]:
        """The segment ends here."""
        if self._doubtful is not None:
            follows = self._limit is not None and self._limit >= self._doubtful[1].next_offset
            if not follows and not self._may_end_after_gap:
                self._reject()
            yield self._accept()
        if self._limit is None or self.next_offset == self._limit:
            return
        if self.next_offset > self._limit or not self._may_end_after_gap:
            raise CorruptRecordError(
                f"the next segment begins at offset {self._limit}, expected {self.next_offset}"
            )

    def salvage(self) -> Iterator[tuple[int, BatchHeader]]:
        """The bytes behind are damaged: a batch still in doubt counts only where gaps are usual."""
        if self._doubtful is not None and self._may_end_after_gap:
            yield self._accept()

    def _accept(self) -> tuple[int, BatchHeader]:
        if self._doubtful is None:
            raise CorruptRecordError("no batch is waiting")
        position, header = self._doubtful
        self._doubtful = None
        self.end_position = position + header.size_bytes
        self.next_offset = header.next_offset
        return position, header

    def _reject(self) -> None:
        if self._doubtful is None:
            return
        position, header = self._doubtful
        self._doubtful = None
        raise CorruptRecordError(
            f"a batch at {position} jumps to offset {header.base_offset} from {self.next_offset}"
        )


def rebuild_producers(
    producers: ProducerStateManager,
    segments: LogSegments,
    end_offset: int,
    now_ms: int,
    index_from: int | None = None,
) -> None:
    """The state of all batches below `end_offset`: the newest snapshot, and headers and markers
    since. From the segment with base offset `index_from` on, the transaction indexes are empty
    and are filled again."""
    newest = end_offset if index_from is None else min(index_from, end_offset)
    offset = producers.load_newest(segments.first.base_offset, newest, now_ms)
    for segment in segments.from_floor(offset) if offset < end_offset else ():
        found = segment.locate(offset)
        while found is not None and found.base_offset < end_offset:
            if found.base_offset >= offset:
                completed = _replay(producers, segment, found.position, now_ms)
                is_indexed = index_from is None or segment.base_offset < index_from
                if completed is not None and completed.is_aborted and not is_indexed:
                    index_aborted(segment, completed, producers)
            found = segment.batch_after(found)


def _replay(
    producers: ProducerStateManager, segment: LogSegment, position: int, now_ms: int
) -> CompletedTransaction | None:
    header = segment.header_at(position)
    marker = None
    if header.is_control:
        marker = decode_marker(segment.file.pread(header.size_bytes, position))
    return producers.update(header, now_ms, marker)


def index_aborted(
    segment: LogSegment, completed: CompletedTransaction, producers: ProducerStateManager
) -> None:
    """Notes the aborted transaction in the index of the segment that holds its marker."""
    segment.transaction_index.append(
        AbortedTransaction(
            completed.producer_id,
            completed.first_offset,
            completed.last_offset,
            producers.last_stable_offset_after(completed),
        )
    )
