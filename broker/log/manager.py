"""LogManager: all logs of a broker, in its data directories.

In a data directory lie, beside one directory for each log (`<topic>-<partition>`; one that ends in
`-delete` is on its way out, one that ends in `-stray` is no topic's any more, and stays):

    .lock                               held while a broker runs here
    .kafka_cleanshutdown                there after a clean stop: logs open without being read
    meta.properties                     whose directory this is
    recovery-point-offset-checkpoint    up to where each log is synced
    log-start-offset-checkpoint         from where each log may be read
    replication-offset-checkpoint       high watermarks, written for the ReplicaManager
    cleaner-offset-checkpoint           up to where each compacted log is compacted

`open` comes first and `close` last, both from the thread that owns the manager. In between
`get`, `create`, `delete` and the passes may be called from any thread; `create` and `delete` touch
the disk. `start` runs the passes in one thread of its own (`maintenance`), and the cleaner in its
own threads and processes. Never appends or reads a record.
"""

import contextlib
import errno
import logging
import re
import resource
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kafka.errors import (
    CorruptRecordError,
    InconsistentTopicIdError,
    KafkaStorageError,
    UnsupportedForMessageFormatError,
)
from kafka.structs import TopicPartition

from broker.config.broker import BrokerConfig
from broker.config.definition import INT_MAX
from broker.config.dynamic import usable_log_config
from broker.config.log import LogConfig
from broker.histogram import Histogram
from broker.log.checkpoint import (
    CLEAN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    LogCheckpoint,
    OffsetCheckpointFile,
)
from broker.log.cleaner import CleanerSettings
from broker.log.cleaner_manager import CleanerWorker, LogCleaner
from broker.log.cleaner_process import CleanerProcess
from broker.log.clock import Clock, system_clock_ms
from broker.log.data_directories import DataDirectories
from broker.log.delayed import Delayed
from broker.log.files import DiskFiles, Files
from broker.log.log import Log
from broker.log.maintenance import LogMaintenance, MaintenanceTask
from broker.log.meta_properties import claim, new_id, read_cluster_id
from broker.log.names import DELETED_LOG_SUFFIX, STRAY_LOG_SUFFIX
from broker.log.partition_metadata import read_topic_id, topic_id_written_ms, write_topic_id
from pyspark_kafkalog.protocol.uuid_text import encode_uuid

_log = logging.getLogger(__name__)

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
_CLEAN_SHUTDOWN_TEXT = b'{"version":0,"brokerEpoch":-1}'
_TICK_MS = 1000
# Of what the process may open: each log holds one file open, or more.
_DESCRIPTOR_SHARE = 0.9
# Each log that is made waits for the disk three times; who waits beside others shares their wait.
_THREADS_THAT_MAKE = 8
# The log of Kafka's own controllers, in a data directory that one of them wrote: no topic.
_CONTROLLER_LOG = "__cluster_metadata"
# What `directory_name` makes of a legal topic, and nothing else: `t-07` is no partition 7.
_LOG_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]*)")

HighWatermarkOf = Callable[[TopicPartition, Log], int]
TopicOverrides = Callable[[str], Mapping[str, str]]


def directory_name(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"


def parse_directory_name(name: str) -> TopicPartition | None:
    """None when it is no log's directory."""
    found = _LOG_DIRECTORY.fullmatch(name)
    if found is None or found[1] == _CONTROLLER_LOG or int(found[2]) > INT_MAX:
        return None
    return TopicPartition(found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class _OfflineLog:
    """A log that could not be opened, and so is as the last stop left it."""

    directory: Path
    reason: str
    was_clean: bool


class LogManager:
    """All logs of a broker: finds, makes, deletes and keeps up the directories of its partitions.

    `open` first and `close` last, both in the thread that owns it; all else in any thread.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topic_overrides: TopicOverrides = lambda topic: {},
        high_watermark_of: HighWatermarkOf = lambda topic_partition, log: log.log_end_offset,
        clock: Clock = system_clock_ms,
        files: Files | None = None,
        new_cleaner_worker: Callable[[CleanerSettings], CleanerWorker] = CleanerProcess,
        on_failed: Callable[[], None] | None = None,
    ) -> None:
        """`topic_overrides`: what is set on a topic, asked for at load and creation.
        `high_watermark_of`: up to where retention may delete; with one replica, the log's end.
        `on_failed`: logs are offline from here on, as their disk has refused a change, or cannot be
        read; called in any thread. None: they stay, and are changed again, as nobody else has
        them."""
        self._config = config
        self._topic_overrides = topic_overrides
        self._high_watermark_of = high_watermark_of
        self._clock = clock
        self._files: Files = DiskFiles() if files is None else files
        self._lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._logs: dict[TopicPartition, Log] = {}
        self._offline: dict[TopicPartition, _OfflineLog] = {}
        self._on_failed = on_failed
        self._failed: set[TopicPartition] = set()
        """Those too that were asked for, and may lie in a directory that is lost."""
        self._trash: Delayed[Path] = Delayed()
        # Logs that are gone, but perhaps not from the checkpoint files yet.
        self._departed: set[TopicPartition] = set()
        self._directories = DataDirectories(config.data_dirs, self._files, on_failed)
        self._maintenance: LogMaintenance | None = None
        self.cleaner = LogCleaner(
            config,
            self._logs_left,
            high_watermark_of,
            self.checkpoint_cleaner_offsets,
            new_cleaner_worker,
            clock,
            self._files,
        )
        self.cluster_id = config.cluster_id or ""
        self.flush_times = Histogram()
        """Of flushes that had something to sync."""
        self.load_time_ms = 0.0
        """What `open` took, recovery included."""

    def open(self) -> None:
        """Locks the data directories and loads every log in them, after an unclean stop with
        recovery. A log that cannot be opened is offline: logged, and refused when asked for.

        Raises KafkaStorageError (a directory is in use, or a log in two), ConfigError (it is
        another broker's), InconsistentClusterIdError, and OSError where no directory is left.
        """
        began_s = time.monotonic()
        try:
            self._open()
            self._directories.check_any_left()
            self.load_time_ms = (time.monotonic() - began_s) * 1000
        except BaseException:
            self._directories.release()
            raise

    def _open(self) -> None:
        self._directories.claim()
        self.cluster_id = self._agree_on_cluster_id()
        for directory in self._directories.live:
            with self._directories.using(directory):
                claim(
                    directory,
                    self._config.broker_id,
                    self.cluster_id,
                    self._files,
                    is_member=self._config.is_member,
                )
                self._load_directory(directory)

    def start(self) -> None:
        """Begins the upkeep in a thread of its own."""
        config = self._config
        tasks = [
            MaintenanceTask("flush", self._flush_interval_ms(), self.flush_pass),
            MaintenanceTask("delete", _TICK_MS, self.delete_pass),
            MaintenanceTask(
                "retention", config.log_retention_check_interval_ms, self.retention_pass
            ),
            MaintenanceTask(
                "recovery-points",
                max(1, config.log_flush_offset_checkpoint_interval_ms),
                self.checkpoint_recovery_points,
            ),
            MaintenanceTask(
                "log-start-offsets",
                max(1, config.log_flush_start_offset_checkpoint_interval_ms),
                self.checkpoint_log_start_offsets,
            ),
            MaintenanceTask(
                "producers",
                config.producer_id_expiration_check_interval_ms,
                self.expire_producers_pass,
            ),
        ]
        self._maintenance = LogMaintenance(tasks, lambda logs: self.checkpoint_recovery_points())
        self._maintenance.start()
        self.cleaner.start()

    def close(self) -> None:
        """Stops the upkeep, closes and syncs every log, and notes that the stop was clean."""
        self.cleaner.stop()
        if self._maintenance is not None:
            self._maintenance.stop()
            self._maintenance = None
        with ThreadPoolExecutor(self._config.num_recovery_threads_per_data_dir) as pool:
            closed = dict(zip(self._logs, pool.map(_close, self._logs.values()), strict=True))
        self.checkpoint_recovery_points()
        self.checkpoint_log_start_offsets()
        for directory in self._directories.live:
            # The mark counts for all logs here: also for one that awaits its recovery offline.
            unclean = [
                topic_partition
                for topic_partition in self._logs_in(directory)
                if not closed[topic_partition] or topic_partition in self._failed
            ]
            unclean += [
                topic_partition
                for topic_partition, log in self._offline_in(directory)
                if not log.was_clean
            ]
            if not unclean:
                with self._directories.using(directory):
                    self._files.replace(directory / CLEAN_SHUTDOWN_FILE, _CLEAN_SHUTDOWN_TEXT)
        self._logs = {}
        self._directories.release()

    # Logs.

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """None when there is no such log here. KafkaStorageError when it is offline."""
        log = self._logs.get(topic_partition)
        if log is None and topic_partition in self._offline:
            reason = self._offline[topic_partition].reason
            raise KafkaStorageError(f"{directory_name(topic_partition)} is offline: {reason}")
        if topic_partition in self._failed or (log is not None and self._is_lost(log)):
            raise KafkaStorageError(f"{directory_name(topic_partition)} is offline since it failed")
        return log

    def all_logs(self) -> dict[TopicPartition, Log]:
        """A copy: for one log ask `kept`."""
        return dict(self._logs)

    def kept(self, topic_partition: TopicPartition) -> Log | None:
        """The log, also one that failed since it was opened; None when there is no such here."""
        return self._logs.get(topic_partition)

    def _logs_left(self) -> dict[TopicPartition, Log]:
        """But for those in directories that are lost."""
        return {each: log for each, log in self._logs.items() if not self._is_lost(log)}

    def _is_lost(self, log: Log) -> bool:
        return self._directories.is_lost(log.directory.parent)

    def sizes(self) -> dict[Path, dict[TopicPartition, int] | None]:
        """Data directory to its logs and their sizes in bytes; None where it is lost."""
        found: dict[Path, dict[TopicPartition, int] | None]
        found = dict.fromkeys(self._directories.lost)
        for directory in self._directories.live:
            found[directory] = {
                each: self._logs[each].size_bytes for each in self._logs_in(directory)
            }
        return found

    @property
    def offline_count(self) -> int:
        """Logs that could not be opened, or that failed since. Any thread."""
        failed = {*self._failed}
        for topic_partition, log in self._logs.items():
            if log.has_failed or self._is_lost(log):
                failed.add(topic_partition)
        return len(self._offline) + len(failed)

    @property
    def offline_directory_count(self) -> int:
        """Data directories that are lost, or all of whose logs have failed."""
        health: dict[Path, bool] = dict.fromkeys(self._directories.lost, False)
        for topic_partition, log in self._logs_left().items():
            parent = log.directory.parent
            has_failed = log.has_failed or topic_partition in self._failed
            health[parent] = health.get(parent, False) or not has_failed
        return sum(not is_well for is_well in health.values())

    def topic_id(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        """The id of the topic that the log on disk was created for."""
        log = self._logs[topic_partition]
        return read_topic_id(log.directory, self._files)

    def made_ms(self, topic_partition: TopicPartition) -> int:
        """When the log that is here was made, by this machine's clock; never before that. Raises
        OSError."""
        return topic_id_written_ms(self._logs[topic_partition].directory, self._files)

    def check_topic_id(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> None:
        """Raises InconsistentTopicIdError where the log is another topic's, of the same name; and
        OSError. One that does not say whose it is, is that topic's from now on."""
        log = self._logs.get(topic_partition)
        if log is None:
            return
        found = read_topic_id(log.directory, self._files)
        if found is None:
            write_topic_id(log.directory, topic_id, self._files)
        elif found != topic_id:
            raise InconsistentTopicIdError(
                f"{log.directory} is of another topic of that name, {encode_uuid(found)}: it is "
                "kept until it is moved away, with the broker stopped"
            )

    def create(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID | None = None,
        *,
        is_new: bool = True,
    ) -> Log:
        """As `create_all`, of one. Raises KafkaStorageError where that says why not."""
        new = (topic_partition,) if is_new else ()
        for error in self.create_all({topic_partition: topic_id}, new).values():
            raise error
        return self._logs[topic_partition]

    def create_all(
        self,
        topic_ids: Mapping[TopicPartition, uuid.UUID | None],
        new: Collection[TopicPartition],
    ) -> dict[TopicPartition, KafkaStorageError]:
        """Makes the logs that do not exist, in the data directories with the fewest logs, several
        at a time. `new`: those that never were here; one that may have been is not made anew while
        a directory is lost.

        Returns those that are offline, or that the disk refuses.
        """
        with self._lock:
            failures: dict[TopicPartition, KafkaStorageError] = {}
            missing = []
            for topic_partition in topic_ids:
                try:
                    if self._is_missing(topic_partition, is_new=topic_partition in new):
                        missing.append(topic_partition)
                except KafkaStorageError as error:
                    failures[topic_partition] = error
            if not missing:
                return failures
            try:
                _check_descriptors(len(self._logs) + len(missing))
                self._forget_departed(missing)
            except OSError as error:
                return failures | {each: _not_created(each, error) for each in missing}
            made: dict[TopicPartition, Log] = {}
            for topic_partition, log in self._make(missing, topic_ids):
                if isinstance(log, Log):
                    made[topic_partition] = log
                else:
                    failures[topic_partition] = log
            self._logs = {**self._logs, **made}
            return failures

    def _is_missing(self, topic_partition: TopicPartition, *, is_new: bool) -> bool:
        """Whether it is to be made. Raises KafkaStorageError."""
        if self.get(topic_partition) is not None:
            return False
        if self._directories.lost and not is_new:
            self._failed.add(topic_partition)
            raise KafkaStorageError(_may_be_lost(topic_partition))
        return True

    def _make(
        self,
        missing: Sequence[TopicPartition],
        topic_ids: Mapping[TopicPartition, uuid.UUID | None],
    ) -> list[tuple[TopicPartition, Log | KafkaStorageError]]:
        """Each log, or why there is none."""
        counts = {directory: len(self._logs_in(directory)) for directory in self._directories.live}
        orders = []
        for _ in missing:
            order = sorted(counts, key=lambda each: counts[each])
            for first in order[:1]:
                counts[first] += 1
            orders.append(order)

        def make(
            topic_partition: TopicPartition, order: Sequence[Path]
        ) -> tuple[TopicPartition, Log | KafkaStorageError]:
            try:
                topic_id = topic_ids[topic_partition]
                return topic_partition, self._create(topic_partition, topic_id, order)
            except KafkaStorageError as error:
                return topic_partition, error
            except OSError as error:
                return topic_partition, _not_created(topic_partition, error)

        if len(missing) == 1:
            return [make(missing[0], orders[0])]
        with ThreadPoolExecutor(_THREADS_THAT_MAKE, thread_name_prefix="make-logs") as pool:
            return list(pool.map(make, missing, orders))

    def delete(self, topic_partition: TopicPartition) -> None:
        """Takes the log away at once, also one that is offline; its files go after
        file.delete.delay.ms. An unknown log is fine. Slices in flight stay readable.

        Raises OSError where the disk refuses: the log is offline then, and not deleted.
        """
        self._take_away(topic_partition, DELETED_LOG_SUFFIX)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """As `delete`, but its files stay, in a directory that no topic has. Raises OSError and
        KafkaStorageError."""
        log = self._logs.get(topic_partition)
        if log is not None:
            log.flush()
        self._take_away(topic_partition, STRAY_LOG_SUFFIX)

    def _take_away(self, topic_partition: TopicPartition, suffix: str) -> None:
        with self._lock:
            log = self._logs.get(topic_partition)
            owner = log or self._offline.get(topic_partition)
            if owner is None:
                if topic_partition in self._failed:
                    raise KafkaStorageError(_may_be_lost(topic_partition))
                return
            left = dict(self._logs)
            left.pop(topic_partition, None)
            self._logs = left
            self._departed.add(topic_partition)
            self.cleaner.abort(topic_partition)
            try:
                self._rename_away(topic_partition, owner, suffix)
            except OSError:
                # Else it would be as good as deleted when that is asked for again.
                if log is not None:
                    self._logs = {**self._logs, topic_partition: log}
                    self._failed.add(topic_partition)
                raise
            self._offline.pop(topic_partition, None)
            self._failed.discard(topic_partition)

    def update_topic_config(self, topic: str) -> None:
        """The topic's overrides changed: asks for them again and applies them to its logs."""
        config = self._log_config(topic)
        for topic_partition, log in self._logs.items():
            if topic_partition.topic == topic:
                log.config = config

    def update_config(self, config: BrokerConfig) -> None:
        """The broker's own properties changed: applies them to all logs whose topics do not set
        their own. The intervals of the upkeep stay as they were at `start`."""
        self._config = config
        topics: dict[str, LogConfig] = {}
        for topic_partition, log in self._logs.items():
            if topic_partition.topic not in topics:
                topics[topic_partition.topic] = self._log_config(topic_partition.topic)
            log.config = topics[topic_partition.topic]

    # Upkeep. `start` calls these by their intervals.

    def flush_pass(self) -> None:
        """Syncs the logs whose flush policy asks for it."""
        flushed = 0
        for log in self._logs_left().values():
            if log.is_flush_due:
                with _reported("flush", log):
                    log.flush()
                    flushed += 1
        if flushed:
            self.checkpoint_recovery_points()

    def retention_pass(self) -> None:
        """Drops the segments that are too old or too many."""
        deleted = 0
        for topic_partition, log in self._logs_left().items():
            with _reported("retention", log):
                deleted += log.delete_old_segments(self._high_watermark_of(topic_partition, log))
        if deleted:
            self.checkpoint_log_start_offsets()

    def delete_pass(self) -> None:
        """Removes the files of segments and logs whose delay is over."""
        for log in self._logs_left().values():
            if log.has_deleted_files:
                with _reported("delete", log):
                    log.remove_deleted_files()
        with self._lock:
            due = self._trash.take_due(self._clock())
        for path in due:
            with self._directories.using(path.parent):
                self._files.remove_tree(path)

    def expire_producers_pass(self) -> None:
        for log in self._logs.values():
            log.remove_expired_producers(self._config.producer_id_expiration_ms)

    def checkpoint_recovery_points(self) -> None:
        self._checkpoint(RECOVERY_POINTS, lambda log: log.recovery_point)

    def checkpoint_log_start_offsets(self) -> None:
        self._checkpoint(LOG_START_OFFSETS, lambda log: log.log_start_offset)

    def checkpoint_cleaner_offsets(self) -> None:
        with self._checkpoint_lock:
            for directory in self._directories.live:
                offsets = self._cleaner_offsets(directory)
                with self._directories.using(directory):
                    self._checkpoint_file(directory, CLEANER_OFFSETS).write(offsets)

    def _cleaner_offsets(self, directory: Path) -> dict[TopicPartition, int]:
        """Of the compacted logs in `directory`."""
        here = {
            topic_partition: self._logs[topic_partition]
            for topic_partition in self._logs_in(directory)
        }
        return {
            topic_partition: log.first_dirty_offset
            for topic_partition, log in here.items()
            if log.config.compacts
        }

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """As they were last written down."""
        offsets: dict[TopicPartition, int] = {}
        for directory in self._directories.live:
            with self._directories.using(directory):
                offsets |= self._checkpoint_file(directory, HIGH_WATERMARKS).read()
        return offsets

    def checkpoint_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Writes them down, each beside its log."""
        with self._checkpoint_lock:
            self._write_checkpoints(HIGH_WATERMARKS, offsets)

    # Inside.

    def _flush_interval_ms(self) -> int:
        """At least once a second, as a topic may set a flush.ms of its own at any time."""
        config = self._config
        asked = [config.log_flush_scheduler_interval_ms, config.log_flush_interval_ms or _TICK_MS]
        return max(1, min(_TICK_MS, *asked))

    def _agree_on_cluster_id(self) -> str:
        known = []
        for directory in self._directories.live:
            with self._directories.using(directory):
                known.append(read_cluster_id(directory, self._files))
        return self._config.cluster_id or next(filter(None, known), None) or new_id()

    def _load_directory(self, directory: Path) -> None:
        names = self._files.list(directory)
        was_clean = CLEAN_SHUTDOWN_FILE in names
        self._files.remove(directory / CLEAN_SHUTDOWN_FILE)
        self._files.sync_directory(directory)
        recovery_points = self._checkpoint_file(directory, RECOVERY_POINTS).read()
        start_offsets = self._checkpoint_file(directory, LOG_START_OFFSETS).read()
        dirty_offsets = self._checkpoint_file(directory, CLEANER_OFFSETS).read()
        self._departed |= recovery_points.keys() | start_offsets.keys() | dirty_offsets.keys()
        found = {}
        for name in names:
            if name.endswith(DELETED_LOG_SUFFIX):
                self._files.remove_tree(directory / name)
            elif name.endswith(STRAY_LOG_SUFFIX):
                _log.warning("log.stray dir=%s", directory / name)
            elif (topic_partition := parse_directory_name(name)) is not None:
                found[topic_partition] = directory / name
        self._departed -= found.keys()
        self._check_no_twins(found)

        def load(topic_partition: TopicPartition) -> None:
            known = LogCheckpoint(
                recovery_points.get(topic_partition, 0),
                start_offsets.get(topic_partition, 0),
                dirty_offsets.get(topic_partition, 0),
                was_clean,
            )
            self._load(topic_partition, found[topic_partition], known)

        with ThreadPoolExecutor(self._config.num_recovery_threads_per_data_dir) as pool:
            list(pool.map(load, found))
        loaded = {
            topic_partition: offset
            for topic_partition, offset in dirty_offsets.items()
            if topic_partition in self._logs
        }
        if any(
            self._logs[topic_partition].first_dirty_offset != offset
            for topic_partition, offset in loaded.items()
        ):
            # A log has lost its tail: what comes next must not be taken for compacted.
            self.checkpoint_cleaner_offsets()
        _log.info(
            "logs.loaded dir=%s logs=%d was_clean=%s", directory, len(found), was_clean or not found
        )

    def _check_no_twins(self, found: Mapping[TopicPartition, Path]) -> None:
        """Raises KafkaStorageError where another directory has one of these logs, too."""
        known = {each: log.directory for each, log in self._logs_left().items()}
        known |= {each: offline.directory for each, offline in self._offline.items()}
        for topic_partition in sorted(found.keys() & known.keys()):
            raise KafkaStorageError(
                f"{directory_name(topic_partition)} lies in {known[topic_partition].parent} and in "
                f"{found[topic_partition].parent}, and one of them may lack records: move the one "
                "away that is not to count"
            )

    def _load(
        self,
        topic_partition: TopicPartition,
        directory: Path,
        known: LogCheckpoint,
    ) -> None:
        try:
            log = self._open_log(topic_partition, directory, known)
        except (OSError, CorruptRecordError, UnsupportedForMessageFormatError) as error:
            _log.error("log.offline dir=%s reason=%r", directory, str(error))
            self._offline[topic_partition] = _OfflineLog(directory, str(error), known.was_clean)
            return
        with self._lock:
            self._logs[topic_partition] = log

    def _forget_departed(self, coming: Sequence[TopicPartition]) -> None:
        """Else a crash would open a new log with the old one's offsets, and drop its records."""
        if not self._departed.isdisjoint(coming):
            self._checkpoint_logs()
            self._departed.clear()

    def _create(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID | None,
        parents: Sequence[Path],
    ) -> Log:
        """In the first of `parents` that takes it. Raises OSError and KafkaStorageError."""
        trouble = OSError(errno.EIO, "no data directory is left")
        for parent in parents:
            try:
                return self._create_in(parent, topic_partition, topic_id)
            except OSError as error:
                trouble = error
        raise trouble

    def _create_in(
        self, parent: Path, topic_partition: TopicPartition, topic_id: uuid.UUID | None
    ) -> Log:
        directory = parent / directory_name(topic_partition)
        is_new = not self._files.exists(directory)
        try:
            self._files.make_directory(directory)
            if topic_id is not None:
                write_topic_id(directory, topic_id, self._files)
            return self._open_log(topic_partition, directory, CLEAN)
        except OSError as trouble:
            if is_new:
                self._remove_begun(directory, trouble)
            raise

    def _remove_begun(self, directory: Path, trouble: OSError) -> None:
        """Nobody knows of it: a later start would take it for a log that lost its topic. Raises
        KafkaStorageError where it stays: the log must not be made elsewhere, too, as that start
        would find two, and take one."""
        try:
            if self._files.exists(directory):
                self._files.remove_tree(directory)
        except OSError as error:
            raise KafkaStorageError(
                f"cannot create {directory}: {trouble}; nor remove what is there of it: {error}"
            ) from error

    def _open_log(
        self,
        topic_partition: TopicPartition,
        directory: Path,
        known: LogCheckpoint,
    ) -> Log:
        log = Log(
            directory,
            self._log_config(topic_partition.topic),
            self._clock,
            self._files,
            known,
            on_flush_due=self._on_flush_due,
            flush_times=self.flush_times,
            on_refused=None if self._on_failed is None else self._refused,
        )
        log.on_lowered = self._checkpoint_logs
        return log

    def _checkpoint_logs(self) -> None:
        """All that the next start must know of logs. Any thread."""
        self.checkpoint_recovery_points()
        self.checkpoint_log_start_offsets()
        self.checkpoint_cleaner_offsets()

    def _refused(self, log: Log) -> None:
        """Any thread, while the log is locked."""
        topic_partition = parse_directory_name(log.directory.name)
        if topic_partition is None or topic_partition in self._failed:
            return
        self._failed.add(topic_partition)
        _log.error("log.offline dir=%s reason='its disk has failed'", log.directory)
        if self._on_failed is not None:
            self._on_failed()

    def _rename_away(
        self, topic_partition: TopicPartition, owner: Log | _OfflineLog, suffix: str
    ) -> None:
        directory = owner.directory
        mark = f"-{topic_partition.partition}.{uuid.uuid4().hex}{suffix}"
        renamed = directory.with_name(topic_partition.topic[: 255 - len(mark)] + mark)
        if isinstance(owner, Log):
            owner.retire(renamed)
        else:
            self._files.rename(directory, renamed)
        self._files.sync_directory(directory.parent)
        if suffix == STRAY_LOG_SUFFIX:
            _log.warning("log.set_aside dir=%s renamed=%s", directory, renamed.name)
            return
        delay_ms = self._log_config(topic_partition.topic).file_delete_delay_ms
        self._trash.add(renamed, self._clock(), delay_ms)
        _log.info("log.deleted dir=%s renamed=%s", directory, renamed.name)

    def _log_config(self, topic: str) -> LogConfig:
        return usable_log_config(self._config, self._topic_overrides(topic))

    def _on_flush_due(self, log: Log) -> None:
        if self._maintenance is not None:
            self._maintenance.flush_soon(log)

    def _logs_in(self, directory: Path) -> list[TopicPartition]:
        return [
            topic_partition
            for topic_partition, log in self._logs.items()
            if log.directory.parent == directory
        ]

    def _offline_in(self, directory: Path) -> list[tuple[TopicPartition, _OfflineLog]]:
        return [each for each in self._offline.items() if each[1].directory.parent == directory]

    def _checkpoint(self, name: str, offset_of: Callable[[Log], int]) -> None:
        with self._checkpoint_lock:
            # Under the lock: of two writers the later one knows more.
            self._write_checkpoints(
                name,
                {topic_partition: offset_of(log) for topic_partition, log in self._logs.items()},
            )

    def _write_checkpoints(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        for directory in self._directories.live:
            here = self._logs_in(directory)
            rows = {
                topic_partition: offsets[topic_partition]
                for topic_partition in here
                if topic_partition in offsets
            }
            with self._directories.using(directory):
                self._checkpoint_file(directory, name).write(rows)

    def _checkpoint_file(self, directory: Path, name: str) -> OffsetCheckpointFile:
        return OffsetCheckpointFile(directory / name, self._files)


@contextlib.contextmanager
def _reported(task: str, log: Log) -> Iterator[None]:
    """One log that fails, or was deleted meanwhile, does not keep the others from their turn."""
    try:
        yield
    except KafkaStorageError as error:
        _log.error("upkeep.failed task=%s dir=%s reason=%r", task, log.directory, str(error))


def _check_descriptors(log_count: int) -> None:
    """Where none is left, no client can connect, nor can what is half made be removed. Raises
    OSError."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and log_count > most * _DESCRIPTOR_SHARE:
        raise OSError(errno.EMFILE, f"Too many open files for {log_count} logs")


def _not_created(topic_partition: TopicPartition, error: OSError) -> KafkaStorageError:
    """Says what to do where that is known."""
    hint = ""
    if error.errno == errno.EMFILE:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        hint = f"; this broker may open {most} (ulimit -n), and each log holds one to three of them"
    return KafkaStorageError(f"cannot create {directory_name(topic_partition)}: {error}{hint}")


def _may_be_lost(topic_partition: TopicPartition) -> str:
    return f"{directory_name(topic_partition)} may be in a data directory that is offline"


def _close(log: Log) -> bool:
    """Whether the log is closed and on disk."""
    try:
        log.close()
    except KafkaStorageError as error:
        _log.error("log.close_failed dir=%s reason=%r", log.directory, str(error))
        return False
    return True
