"""LogCleaner: which log is compacted when, by how many threads, and what became of it.

A log of a topic with `cleanup.policy=compact` has a clean part below its first dirty offset, which
the `cleaner-offset-checkpoint` file keeps over restarts, a dirty part, and an end that may not be
compacted yet: the active segment, what lies past the last stable offset, and what is younger than
`min.compaction.lag.ms`. The log with the largest share of dirty bytes comes first, if that share is
above `min.cleanable.dirty.ratio`, or if a dirty record is older than `max.compaction.lag.ms`.

Each of `log.cleaner.threads` threads waits for such a log, has its cleaner process do the work and
puts the new segments in place; it looks again at once, and after `log.cleaner.backoff.ms` when
there was nothing to do. A log that cannot be cleaned is left alone until the next start, with one
line in the broker's log; one that was truncated, cut by retention or deleted meanwhile is just
tried again.

`start`, `stop`: the thread that owns the LogManager. `abort`, `clean_next` and the figures: any.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafka.errors import CorruptRecordError, KafkaStorageError
from kafka.structs import TopicPartition

from broker.config.broker import BrokerConfig
from broker.log.cleaner import (
    CleanedSegment,
    CleanerSettings,
    CleanerStats,
    CleaningJob,
    CleaningResult,
    SegmentExtent,
)
from broker.log.cleaner_process import (
    CleaningAbortedError,
    CleaningDeferredError,
    CleaningFailedError,
)
from broker.log.clock import Clock, has_passed
from broker.log.files import Files
from broker.log.log import Log
from broker.log.names import CLEANED_SUFFIX
from broker.log.segment import LogSegment

_log = logging.getLogger(__name__)

# A log whose disk refused is left alone for so long.
_DEFERRED_MS = 60_000


class CleanerWorker(Protocol):
    """What does the work: CleanerProcess, and in tests something without a process."""

    def clean(self, job: CleaningJob) -> Iterator[CleanedSegment | CleaningResult]: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CleanableLog:
    """A compacted log and how much of it waits for compaction."""

    topic_partition: TopicPartition
    log: Log
    first_dirty_offset: int
    until_offset: int
    """Where the first segment begins that may not be compacted yet."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """A record in the dirty part is older than max.compaction.lag.ms."""
    truncations: int
    """Of the log, before it was looked at."""

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


@dataclass(frozen=True, slots=True)
class CleanerFigures:
    """What the cleaner has done since the start, for whoever shows it."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    cleanings: int = 0
    failures: int = 0
    last_duration_ms: int = 0
    max_dirty_ratio: float = 0.0
    """The largest one when last looked, whether due or not."""
    uncleanable_logs: int = 0


class LogCleaner:
    """Has the logs compacted that need it most, in threads and processes of its own."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: Callable[[], Mapping[TopicPartition, Log]],
        high_watermark_of: Callable[[TopicPartition, Log], int],
        checkpoint: Callable[[], None],
        new_worker: Callable[[CleanerSettings], CleanerWorker],
        clock: Clock,
        files: Files,
    ) -> None:
        """`checkpoint`: writes the first dirty offsets of all logs down."""
        self._config = config
        self._logs = logs
        self._high_watermark_of = high_watermark_of
        self._checkpoint = checkpoint
        self._new_worker = new_worker
        self._clock = clock
        self._files = files
        self._changed = threading.Condition()
        self._in_progress: dict[TopicPartition, CleanerWorker] = {}
        self._uncleanable: dict[TopicPartition, Log] = {}
        self._deferred_ms: dict[TopicPartition, int] = {}
        self._totals = CleanerStats()
        self._cleanings = self._failures = self._last_duration_ms = 0
        self._max_dirty_ratio = 0.0
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begins, unless log.cleaner.enable is false."""
        if not self._config.log_cleaner_enable:
            return
        for number in range(self._config.log_cleaner_threads):
            thread = threading.Thread(target=self._work, name=f"log-cleaner-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Gives up what is under way; returns when nothing is."""
        with self._changed:
            self._stopping = True
            for worker in self._in_progress.values():
                worker.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def abort(self, topic_partition: TopicPartition) -> None:
        """Gives up the cleaning of a log that the caller has taken out of `logs`; returns when
        nothing touches it any more. Blocks for milliseconds."""
        with self._changed:
            worker = self._in_progress.get(topic_partition)
            if worker is not None:
                worker.kill()
                self._changed.wait_for(lambda: topic_partition not in self._in_progress)
            self._uncleanable.pop(topic_partition, None)
            self._deferred_ms.pop(topic_partition, None)

    def figures(self) -> CleanerFigures:
        with self._changed:
            return CleanerFigures(
                self._totals.bytes_read,
                self._totals.bytes_written,
                self._totals.records_read,
                self._totals.records_kept,
                self._cleanings,
                self._failures,
                self._last_duration_ms,
                self._max_dirty_ratio,
                len(self._uncleanable),
            )

    def clean_next(self, worker: CleanerWorker) -> bool:
        """Cleans the filthiest log that is due; False when none is."""
        chosen = self._choose(worker)
        if chosen is None:
            return False
        started = time.monotonic()
        try:
            result = self._clean(chosen, worker)
            if result is not None:
                self._finished(chosen, result, int((time.monotonic() - started) * 1000))
        except (CleaningDeferredError, KafkaStorageError, OSError) as error:
            worker.close()  # it may be at work still: its answers are none for the next log
            self._defer(chosen, error)
        except (CleaningFailedError, CorruptRecordError) as error:
            worker.close()
            self._failed(chosen, error)
        finally:
            with self._changed:
                del self._in_progress[chosen.topic_partition]
                self._changed.notify_all()
        return True

    # Inside.

    def _work(self) -> None:
        worker = self._new_worker(_settings(self._config))
        while not self._stopping:
            if not self._cleaned_next(worker):
                worker.close()
                with self._changed:
                    if not self._stopping:
                        backoff_s = max(1, self._config.log_cleaner_backoff_ms) / 1000
                        self._changed.wait(min(backoff_s, threading.TIMEOUT_MAX))
        worker.close()

    def _cleaned_next(self, worker: CleanerWorker) -> bool:
        try:
            return self.clean_next(worker)
        except Exception:
            # A bug: without this thread no log would be compacted any more.
            _log.exception("cleaner.failed")
            return False

    def _choose(self, worker: CleanerWorker) -> CleanableLog | None:
        """The filthiest log that is due, noted as in progress."""
        with self._changed:
            if self._stopping:
                return None
            candidates = [
                candidate
                for topic_partition, log in self._logs().items()
                if log.config.compacts
                and not log.is_closed
                and topic_partition not in self._in_progress
                and self._uncleanable.get(topic_partition) is not log
                and self._may_be_tried(topic_partition)
                and (candidate := self._looked_at(topic_partition, log)) is not None
            ]
            self._max_dirty_ratio = max((each.dirty_ratio for each in candidates), default=0.0)
            due = [each for each in candidates if each.is_due]
            if not due:
                return None
            chosen = max(due, key=lambda each: each.dirty_ratio)
            self._in_progress[chosen.topic_partition] = worker
            return chosen

    def _may_be_tried(self, topic_partition: TopicPartition) -> bool:
        """Whether it was not put off, or that is long enough ago."""
        since_ms = self._deferred_ms.get(topic_partition)
        return since_ms is None or has_passed(_DEFERRED_MS, since_ms, self._clock())

    def _looked_at(self, topic_partition: TopicPartition, log: Log) -> CleanableLog | None:
        """None for a log that is being deleted, or whose disk refuses: the next look may do."""
        try:
            return self._cleanable(topic_partition, log)
        except OSError as error:
            if not log.is_closed:
                _log.warning("cleaner.skipped dir=%s reason=%r", log.directory, str(error))
            return None

    def _cleanable(self, topic_partition: TopicPartition, log: Log) -> CleanableLog:
        now_ms = self._clock()
        config = log.config
        truncations = log.truncations
        first_dirty = log.first_dirty_offset
        stable_until = log.last_stable_offset(self._high_watermark_of(topic_partition, log))
        segments = log.segments
        dirty = [
            segment
            for segment, following in itertools.pairwise(segments)
            if following.base_offset > first_dirty
        ]
        until = segments[-1].base_offset
        for segment, following in itertools.pairwise(segments):
            is_young = (
                config.min_compaction_lag_ms > 0
                and segment in dirty
                and segment.largest_timestamp_ms > now_ms - config.min_compaction_lag_ms
            )
            if following.base_offset > stable_until or is_young:
                until = segment.base_offset
                break
        until = max(until, segments[0].base_offset)
        cleanable = [segment for segment in dirty if segment.base_offset < until]
        first_ms = [segment.first_timestamp_ms for segment in cleanable]
        oldest_ms = min((each for each in first_ms if each > 0), default=now_ms)
        return CleanableLog(
            topic_partition,
            log,
            first_dirty,
            until,
            sum(each.size_bytes for each in segments[:-1] if each not in dirty),
            sum(segment.size_bytes for segment in cleanable),
            is_overdue=oldest_ms < now_ms - config.max_compaction_lag_ms,
            truncations=truncations,
        )

    def _clean(self, chosen: CleanableLog, worker: CleanerWorker) -> CleaningResult | None:
        """None when the log changed meanwhile or the cleaning was called off."""
        log = chosen.log
        old = {
            segment.base_offset: segment
            for segment in log.segments
            if segment.base_offset < chosen.until_offset
        }
        job = self._job(chosen, list(old.values()))
        try:
            for answer in worker.clean(job):
                if isinstance(answer, CleaningResult):
                    return answer
                replaced = [old[base_offset] for base_offset in answer.replaced]
                if not log.replace_segments(self._opened(log, answer), replaced):
                    break
        except CleaningAbortedError:
            pass
        except (CleaningFailedError, CorruptRecordError, FileNotFoundError):
            # A file that was deleted or cut while it was read is no reason to give the log up.
            if not _has_changed(log, old, chosen.until_offset):
                raise
        worker.close()
        self._remove_cleaned(log)
        return None

    def _job(self, chosen: CleanableLog, segments: list[LogSegment]) -> CleaningJob:
        log = chosen.log
        return CleaningJob(
            directory=log.directory.absolute(),
            config=log.config,
            segments=tuple(
                SegmentExtent(
                    segment.base_offset,
                    segment.size_bytes,
                    segment.offset_index.size_bytes,
                    segment.time_index.size_bytes,
                )
                for segment in segments
            ),
            first_dirty_offset=chosen.first_dirty_offset,
            until_offset=chosen.until_offset,
            now_ms=self._clock(),
            last_batches=log.last_batches(),
            aborted=tuple(
                aborted
                for segment in log.segments
                for aborted in segment.transaction_index.entries_from(0)
            ),
        )

    def _opened(self, log: Log, cleaned: CleanedSegment) -> LogSegment:
        segment = LogSegment.open(
            log.directory, cleaned.base_offset, log.config, self._files, CLEANED_SUFFIX
        )
        segment.transaction_index.load()
        if not segment.load_indexes():
            raise CleaningFailedError(f"{segment} has no usable index")
        return segment

    def _remove_cleaned(self, log: Log) -> None:
        """What a cleaning that was given up has left behind."""
        try:
            for name in self._files.list(log.directory):
                if name.endswith(CLEANED_SUFFIX):
                    self._files.remove(log.directory / name)
        except OSError as error:
            _log.warning("cleaner.leftovers dir=%s reason=%r", log.directory, str(error))

    def _finished(self, chosen: CleanableLog, result: CleaningResult, duration_ms: int) -> None:
        chosen.log.mark_clean(result.end_offset, chosen.truncations)
        self._checkpoint()
        stats = result.stats
        with self._changed:
            totals = self._totals
            totals.bytes_read += stats.bytes_read
            totals.bytes_written += stats.bytes_written
            totals.records_read += stats.records_read
            totals.records_kept += stats.records_kept
            self._cleanings += 1
            self._last_duration_ms = duration_ms
        _log.info(
            "log.cleaned dir=%s from_offset=%d to_offset=%d dirty_ratio=%.2f bytes_read=%d "
            "bytes_written=%d keys=%d records_without_key=%d duration_ms=%d",
            chosen.log.directory,
            chosen.first_dirty_offset,
            result.end_offset,
            chosen.dirty_ratio,
            stats.bytes_read,
            stats.bytes_written,
            stats.map_entries,
            stats.records_without_key,
            duration_ms,
        )

    def _defer(self, chosen: CleanableLog, error: Exception) -> None:
        """A full disk, say: there may be space again."""
        with self._changed:
            self._deferred_ms[chosen.topic_partition] = self._clock()
            self._failures += 1
        _log.error(
            "log.not_cleaned dir=%s reason=%r note=%r",
            chosen.log.directory,
            str(error.args[-1] if error.args else error),
            f"tried again in {_DEFERRED_MS // 1000} s",
        )
        self._remove_cleaned(chosen.log)

    def _failed(self, chosen: CleanableLog, error: Exception) -> None:
        with self._changed:
            self._uncleanable[chosen.topic_partition] = chosen.log
            self._failures += 1
        _log.error(
            "log.uncleanable dir=%s reason=%r note=%r",
            chosen.log.directory,
            str(error.args[0] if error.args else error),
            "not compacted until the next start",
        )
        self._remove_cleaned(chosen.log)


def _has_changed(log: Log, old: Mapping[int, LogSegment], until_offset: int) -> bool:
    """Whether someone else dropped segments of the log, or cut into them."""
    present = [each for each in log.segments if each.base_offset < until_offset]
    first_base = present[0].base_offset if present else until_offset
    return log.is_closed or log.log_end_offset < until_offset or first_base > min(old)


def _settings(config: BrokerConfig) -> CleanerSettings:
    """One thread's share."""
    threads = max(1, config.log_cleaner_threads)
    return CleanerSettings(
        config.log_cleaner_dedupe_buffer_size // threads,
        config.log_cleaner_io_buffer_load_factor,
        config.log_cleaner_io_buffer_size // threads,
        config.log_cleaner_io_max_bytes_per_second / threads,
    )
