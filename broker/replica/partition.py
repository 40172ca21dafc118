"""One partition on this broker: its log, who leads it since when, and how far it is committed.

Owns: leader epoch, in-sync replicas and high watermark of one partition. Called by: the event
loop's thread only, but for `append`. Records below the high watermark are in every in-sync
replica; only those are handed to consumers. Where no other replica is in sync it moves to the
log's end after each append. Whoever moves it is told what became visible by that, and tells those
who wait.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from kafka.errors import (
    BrokerResponseError,
    CorruptRecordError,
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownLeaderEpochError,
)
from kafka.structs import TopicPartition

from broker.log.files import FileSlice
from broker.log.leader_epoch import UNDEFINED_EPOCH, UNDEFINED_OFFSET
from broker.log.log import Log, LogAppendInfo
from broker.log.transaction_index import AbortedTransaction
from pyspark_kafkalog.protocol.fetch import READ_COMMITTED, EpochEndOffset, FetchPartition
from pyspark_kafkalog.record.control import TransactionMarker

NO_EPOCH: Final = -1
ACKS_ALL: Final = -1

# ListOffsets' special timestamps.
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

# DeleteRecords' offset for everything that is committed.
HIGH_WATERMARK: Final = -1

MANY_BYTES: Final = sys.maxsize
"""More than anybody waits for."""

Visible: TypeAlias = tuple[int, int]
"""Bytes that may be read from now on: by everybody, and by who reads committed records only."""


class Isolation(Enum):
    """Up to where who fetches may see."""

    HIGH_WATERMARK = "read_uncommitted"
    TXN_COMMITTED = "read_committed"

    @classmethod
    def of(cls, level: int) -> "Isolation":
        """By the number on the wire."""
        return cls.TXN_COMMITTED if level == READ_COMMITTED else cls.HIGH_WATERMARK


class PartitionRead(NamedTuple):
    """What a fetch finds: a slice of a segment file, and the offsets that frame it."""

    records: FileSlice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[AbortedTransaction] = ()
    """What a read_committed consumer has to skip."""
    diverging_epoch: EpochEndOffset | None = None

    @property
    def size_bytes(self) -> int:
        return 0 if self.records is None else self.records.size_bytes


@dataclass(frozen=True, slots=True)
class OffsetFound:
    """An answer of ListOffsets; -1 for what is not known."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Partition:
    """A partition that this broker leads."""

    __slots__ = (
        "_log",
        "_seen_stable_offset",
        "high_watermark",
        "is_led",
        "isr",
        "leader_epoch",
        "replica_count",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: Log,
        leader_epoch: int,
        isr: tuple[int, ...],
        replica_count: int = 1,
        high_watermark: int = 0,
    ) -> None:
        """`high_watermark`: as it was last written down; what the log has lost since is not in
        it, and what only this replica has is."""
        self.topic_partition = topic_partition
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.replica_count = replica_count
        self.is_led = True
        """Until the partition is served no more: who waits for it then waits in vain."""
        self._log = log
        end_offset = log.log_end_offset
        self.high_watermark = min(max(high_watermark, log.log_start_offset), end_offset)
        if self._commits_alone:
            self.high_watermark = end_offset
        self._seen_stable_offset = self.last_stable_offset

    @property
    def log(self) -> Log:
        return self._log

    @property
    def last_stable_offset(self) -> int:
        """The first offset that a read_committed consumer must wait for."""
        return self._log.last_stable_offset(self.high_watermark)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuses a client (or follower) that knows an older or newer leader than we are."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(f"leader epoch is {self.leader_epoch}")
        raise UnknownLeaderEpochError(f"leader epoch is {self.leader_epoch}")

    def append(
        self,
        records: memoryview,
        acks: int,
        *,
        transactional: bool = False,
        numbered: bool = True,
    ) -> LogAppendInfo:
        """Appends whole batches, whose offsets and epoch are stamped in place; for what the two
        words mean, see `Log.append`. Any thread; `commit` is to follow, on the event loop.

        Raises what Log.append raises, and NotEnoughReplicasError for acks=all below
        min.insync.replicas, or below all replicas where there are less than that.
        """
        least = self._least_in_sync
        if acks == ACKS_ALL and len(self.isr) < least:
            raise NotEnoughReplicasError(f"{len(self.isr)} in sync, min.insync.replicas={least}")
        return self._log.append(
            records, self.leader_epoch, transactional=transactional, numbered=numbered
        )

    def append_end_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        transaction_version: int,
    ) -> LogAppendInfo:
        """Ends a transaction; `commit` is to follow. Raises as Log.append_end_marker."""
        return self._log.append_end_marker(
            producer_id, producer_epoch, marker, self.leader_epoch, transaction_version
        )

    @property
    def _least_in_sync(self) -> int:
        return min(self._log.rules.min_insync_replicas, self.replica_count)

    @property
    def _commits_alone(self) -> bool:
        """Whether what is in this log is in every in-sync replica, and these are enough: below
        min.insync.replicas the high watermark stands, as in Apache Kafka."""
        return self._least_in_sync <= len(self.isr) <= 1

    def commit(self, appended: LogAppendInfo) -> Visible:
        """What became visible by an append: nothing while other replicas in sync lack it."""
        if not self._commits_alone:
            return 0, 0
        # Appends of several threads may come in another order here than into the log.
        is_next = appended.first_offset == self.high_watermark
        return self.advance_high_watermark(
            appended.last_offset + 1, appended.size_bytes if is_next else 0
        )

    def advance_high_watermark(self, offset: int, size_bytes: int = 0) -> Visible:
        """All below `offset` is in every in-sync replica: returns what became visible. Never goes
        back. `size_bytes`: of the records up to there, where the caller knows."""
        start_offset, stable_start_offset = self.high_watermark, self._seen_stable_offset
        if offset <= start_offset:
            return 0, 0
        self.high_watermark = offset
        stable_offset = self._seen_stable_offset = self._log.last_stable_offset(offset)
        if not size_bytes:  # never none: those who wait must hear of it
            size_bytes = max(1, self._bytes_between(start_offset, offset))
        if stable_start_offset == start_offset and stable_offset == offset:
            return size_bytes, size_bytes
        return size_bytes, self._bytes_between(stable_start_offset, stable_offset)

    def has_committed(self, offset: int) -> bool:
        """Whether every in-sync replica has all below `offset`, as acks=all asks.

        Raises NotLeaderForPartitionError when this broker cannot know any more, and
        NotEnoughReplicasAfterAppendError when they have it, but have become too few.
        """
        if not self.is_led:
            raise NotLeaderForPartitionError(f"{self.topic_partition} is not led here any more")
        if self.high_watermark < offset:
            return False
        if len(self.isr) < self._least_in_sync:
            raise NotEnoughReplicasAfterAppendError(f"{len(self.isr)} in sync after the append")
        return True

    def _bytes_between(self, start_offset: int, end_offset: int) -> int:
        """Of the records from one offset to before another; many where it cannot be told at once:
        who waits for them will see."""
        log = self._log
        start_offset = max(start_offset, log.log_start_offset)
        if start_offset >= end_offset:
            return 0
        if start_offset < log.segments[-1].base_offset:
            return MANY_BYTES
        try:
            found = log.read(start_offset, MANY_BYTES, end_offset)
            return 0 if found is None else found.size_bytes
        except (BrokerResponseError, CorruptRecordError, OSError):
            return MANY_BYTES  # retention was here, say

    def end_for(self, isolation: Isolation) -> int:
        """Where the partition ends for who reads so."""
        if isolation is Isolation.TXN_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def read(
        self, wanted: FetchPartition, max_bytes: int, isolation: Isolation, min_one_batch: bool
    ) -> PartitionRead:
        """Batches from where `wanted` begins up to the end for such a reader, `max_bytes` of them.

        Raises OffsetOutOfRangeError below the log's start and above its end.
        """
        offset = wanted.fetch_offset
        if wanted.last_fetched_epoch != NO_EPOCH:
            diverged = self.read_divergence(offset, wanted.last_fetched_epoch)
            if diverged is not None:
                return diverged
        log = self._log
        start_offset, high_watermark = log.log_start_offset, self.high_watermark
        if not start_offset <= offset <= log.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset}, the log has {start_offset} to {log.log_end_offset}"
            )
        stable_offset = self.last_stable_offset
        records: FileSlice | None = None
        aborted: Sequence[AbortedTransaction] = ()
        if isolation is Isolation.HIGH_WATERMARK:
            if offset < high_watermark:
                records = log.read(offset, max_bytes, high_watermark, min_one_batch)
        elif offset < stable_offset:
            records, aborted = log.read_committed(offset, max_bytes, stable_offset, min_one_batch)
        return PartitionRead(records, high_watermark, stable_offset, start_offset, aborted)

    def read_divergence(self, fetch_offset: int, last_fetched_epoch: int) -> PartitionRead | None:
        """What a replica is told whose log, ending at `fetch_offset` in `last_fetched_epoch`, is
        no beginning of ours (KIP-595); None when it is.

        Raises OffsetOutOfRangeError when nothing is known of that epoch.
        """
        end = self.end_offset_for_epoch(last_fetched_epoch)
        if end.end_offset == UNDEFINED_OFFSET or end.epoch == UNDEFINED_EPOCH:
            raise OffsetOutOfRangeError(f"nothing is known of epoch {last_fetched_epoch}")
        if end.epoch == last_fetched_epoch and end.end_offset >= fetch_offset:
            return None
        return PartitionRead(
            None,
            self.high_watermark,
            self.last_stable_offset,
            self._log.log_start_offset,
            diverging_epoch=end,
        )

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """The largest epoch up to `epoch`, and where it ends (KIP-101).

        The epoch that we lead in counts from its beginning, though the log writes an epoch down
        only with its first record.
        """
        log = self._log
        end_offset = log.log_end_offset
        if epoch == self.leader_epoch:
            return EpochEndOffset(epoch, end_offset)
        latest = log.leader_epochs.latest_epoch
        if latest is None or latest < epoch < self.leader_epoch:
            if not 0 <= epoch < self.leader_epoch:
                return EpochEndOffset(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
            return EpochEndOffset(epoch if latest is None else latest, end_offset)
        return EpochEndOffset(*log.leader_epochs.end_offset_for(epoch, end_offset))

    def log_start_for(self, before_offset: int) -> int:
        """Where the log begins once nothing below `before_offset` (-1: the high watermark) is left.

        Raises PolicyViolationError for a log that is only compacted, and OffsetOutOfRangeError for
        offsets that are not committed.
        """
        if not self._log.config.deletes:
            raise PolicyViolationError("records of a compacted topic are not deleted")
        offset = self.high_watermark if before_offset == HIGH_WATERMARK else before_offset
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"offset {before_offset}, the high watermark is {self.high_watermark}"
            )
        return offset

    def find_offset(self, timestamp_ms: int, isolation: Isolation) -> OffsetFound | None:
        """The offset for a timestamp, or one of the special ones; None when there is none."""
        log = self._log
        if timestamp_ms == LATEST:
            return OffsetFound(self.end_for(isolation), -1, self.leader_epoch)
        if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
            offset = log.log_start_offset
            return OffsetFound(offset, -1, self._epoch_of(offset))
        if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return None  # no remote storage
        if timestamp_ms == MAX_TIMESTAMP:
            found = log.offset_of_max_timestamp()
        else:
            found = log.offset_for_timestamp(timestamp_ms)
        if found is None or found[0] >= self.high_watermark:
            return None
        return OffsetFound(found[0], found[1], self._epoch_of(found[0]))

    def _epoch_of(self, offset: int) -> int:
        epoch = self._log.leader_epochs.epoch_for_offset(offset)
        return NO_EPOCH if epoch is None else epoch
