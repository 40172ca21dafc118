"""One partition on this broker: its log, who leads it since when, and how far it is committed.

Owns: leader epoch, in-sync replicas and high watermark of one partition, which this broker leads or
follows. Called by: the event loop's thread only, but for `led_since` and `append`. Records below
the high watermark are in every in-sync replica; only those are handed to consumers. Where no other
replica is in sync it moves to the log's end after each append; else when the followers fetch.
Whoever moves it is told what became visible by that, and tells those who wait.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kafka.errors import (
    BrokerResponseError,
    CorruptRecordError,
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownLeaderEpochError,
)
from kafka.structs import TopicPartition

from broker.cluster.control import NO_LEADER, IsrChange
from broker.cluster.metadata import PartitionMetadata
from broker.log.files import FileSlice
from broker.log.leader_epoch import UNDEFINED_EPOCH, UNDEFINED_OFFSET
from broker.log.log import Log, LogAppendInfo
from broker.log.transaction_index import AbortedTransaction
from broker.log.validator import validate
from broker.replica.isr import InSyncReplicas, ReplicaHost
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

NO_REPLICA: Final = -1
MANY_BYTES: Final = sys.maxsize
"""More than anybody waits for."""

Visible: TypeAlias = tuple[int, int]
"""Bytes that may be read from now on: by everybody, and by who reads committed records only."""


class Isolation(Enum):
    """Up to where who fetches may see."""

    HIGH_WATERMARK = "read_uncommitted"
    TXN_COMMITTED = "read_committed"
    LOG_END = "replica"

    @classmethod
    def of(cls, level: int) -> "Isolation":
        """By the number on the wire."""
        return cls.TXN_COMMITTED if level == READ_COMMITTED else cls.HIGH_WATERMARK


class LogEnd(NamedTuple):
    """What followers wait for: an append to a partition, which nobody else may see yet."""

    topic: str
    partition: int
    kind: str = "log end"
    """Not to be equal to the TopicPartition, for which consumers wait."""


class PartitionRead(NamedTuple):
    """What a fetch finds: a slice of a segment file, and the offsets that frame it."""

    records: FileSlice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[AbortedTransaction] = ()
    """What a read_committed consumer has to skip."""
    diverging_epoch: EpochEndOffset | None = None
    preferred_replica: int = NO_REPLICA
    """From which the consumer is to fetch instead."""

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
    """A partition that this broker leads, or follows."""

    __slots__ = (
        "_changing",
        "_host",
        "_isr",
        "_log",
        "_seen_stable_offset",
        "epoch_start_offset",
        "high_watermark",
        "is_led",
        "leader_epoch",
        "leader_id",
        "leadership",
        "log_end",
        "partition_epoch",
        "replica_count",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        log: Log,
        host: ReplicaHost,
        high_watermark: int = 0,
    ) -> None:
        """Neither led nor followed yet. `high_watermark`: as it was last written down; what the log
        has lost since is not in it, and what only this replica has is."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log_end = LogEnd(topic_partition.topic, topic_partition.partition)
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.epoch_start_offset = 0
        """Where the log ended when this broker began to lead it in this epoch."""
        self.replica_count = 1
        self.is_led = False
        """Until the partition is led no more: who waits for it then waits in vain."""
        self.leadership = 0
        """How often this broker has become its leader, having not been that before."""
        self._changing = Lock()
        """Held while it begins to lead, follow or neither, and while a thread appends."""
        self._host = host
        self._isr = InSyncReplicas(host)
        self._log = log
        end_offset = log.log_end_offset
        self.high_watermark = min(max(high_watermark, log.log_start_offset), end_offset)
        self._seen_stable_offset = self.last_stable_offset

    def lead(self, state: PartitionMetadata) -> Visible:
        """Leads it, as the controller says: from its log's end on, where the leader epoch is a new
        one. What became visible by that."""
        is_new_epoch = not self.is_led or state.leader_epoch > self.leader_epoch
        is_known = not is_new_epoch and state.partition_epoch == self.partition_epoch
        with self._changing:
            if not self.is_led:
                self.leadership += 1
            self.is_led = True
            self._take(state)
            if is_new_epoch:
                self.epoch_start_offset = self._log.log_end_offset
        self._isr.begin(state.replicas, state.isr, is_new_epoch, is_known)
        return self._advance()

    def follow(self, state: PartitionMetadata) -> None:
        """Follows its leader, as the controller says; what is committed comes from there now."""
        with self._changing:
            self.is_led = False
            self._take(state)
        self._isr.clear()

    def follow_leader(self, high_watermark: int, log_start_offset: int) -> None:
        """The leader has committed so far, and begins there. Raises KafkaStorageError. What that
        made visible: see `visible_since`."""
        log = self._log
        if log.log_start_offset < log_start_offset <= log.log_end_offset:
            log.advance_log_start_offset(log_start_offset)
        self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        self._seen_stable_offset = self.last_stable_offset

    @property
    def visible_end(self) -> tuple[int, int]:
        """Up to where everybody may read, and who reads committed records only."""
        return self.high_watermark, self._seen_stable_offset

    def visible_since(self, end: tuple[int, int]) -> Visible:
        """What has become visible since `visible_end` was that."""
        offset, stable_offset = end
        return (
            self._bytes_between(offset, self.high_watermark),
            self._bytes_between(stable_offset, self._seen_stable_offset),
        )

    def retire(self) -> None:
        """Neither leads nor follows it any more."""
        with self._changing:
            self.is_led = False
            self.leader_id = NO_LEADER
        self._isr.clear()

    @contextmanager
    def led_since(self, leadership: int) -> Iterator[None]:
        """For a thread that appends what came in that leadership: until it is done, this broker
        neither follows nor leads in another epoch. Raises NotLeaderForPartitionError where it does
        already: what is appended then would lie in its log as if another leader had written it."""
        with self._changing:
            if not self.is_led or self.leadership != leadership:
                raise NotLeaderForPartitionError(f"{self.topic_partition} is not led here any more")
            yield

    def _take(self, state: PartitionMetadata) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replica_count = len(state.replicas)

    # In-sync replicas.

    @property
    def isr(self) -> tuple[int, ...]:
        """Those in sync, as the controller has them."""
        return self._isr.committed

    @property
    def has_followers(self) -> bool:
        return bool(self._isr.followers)

    def check_follower(self, node_id: int) -> None:
        """Raises NotLeaderForPartitionError for a broker that does not keep the partition, as far
        as this one has heard."""
        if node_id not in self._isr.followers:
            raise NotLeaderForPartitionError(f"broker {node_id} is no replica")

    def fetched_by(self, node_id: int, offset: int, log_start_offset: int) -> Visible:
        """A follower has all below `offset`, and asks for more; what became visible by that."""
        follower = self._isr.followers[node_id]
        end_offset = self._log.log_end_offset
        follower.fetched(offset, log_start_offset, end_offset, self._host.now_ms())
        return self._advance()

    def tells_other_start(self, node_id: int, log_start_offset: int) -> bool:
        """Whether a follower has another log start than it told before."""
        return self._isr.followers[node_id].log_start_offset != log_start_offset

    def join_isr(self, node_id: int) -> IsrChange | None:
        """What to ask of the controller, as a follower has caught up; None where it is in sync, or
        may not be yet."""
        return self._change(
            self._isr.with_follower(node_id, self.high_watermark, self.epoch_start_offset)
        )

    def leave_isr(self) -> IsrChange | None:
        """What to ask of the controller, as followers have not caught up for too long; None where
        all have."""
        return self._change(self._isr.without_laggards(self._log.log_end_offset))

    def _change(self, isr: tuple[int, ...] | None) -> IsrChange | None:
        """Until it is answered, who may be in sync has to have what counts as committed."""
        if isr is None or not self.is_led:
            return None
        self._isr.propose(isr)
        return IsrChange(
            self.topic_id,
            self.topic_partition.partition,
            self.leader_epoch,
            isr,
            self.partition_epoch,
        )

    def awaits(self, change: IsrChange) -> bool:
        """Whether nothing has been heard of the partition since this change was asked for."""
        asked = (self.leader_epoch, self.partition_epoch)
        return self._isr.is_changing and asked == (change.leader_epoch, change.partition_epoch)

    def isr_changed(self, isr: tuple[int, ...], partition_epoch: int) -> Visible:
        """The controller has it so now; what became visible by that."""
        self.partition_epoch = partition_epoch
        self._isr.settle(isr)
        return self._advance()

    def isr_not_changed(self) -> None:
        """The controller refused the change; it may be asked for again."""
        self._isr.give_up()

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync, of a partition that is led here."""
        return self.is_led and len(self.isr) < self.replica_count

    @property
    def spare_in_sync(self) -> int:
        """How many of those in sync may be lost until acks=all is refused; below 0 it is."""
        return len(self.isr) - self._least_in_sync

    @property
    def low_watermark(self) -> int:
        """The least log start of all replicas that are there: below it nobody has anything."""
        starts = [
            follower.log_start_offset
            for node_id, follower in self._isr.followers.items()
            if self._host.is_live(node_id)
        ]
        return min(self._log.log_start_offset, *starts) if starts else self._log.log_start_offset

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
        words mean, see `Log.append`. On the event loop, or in `led_since`; `commit` is to follow.

        Raises what Log.append raises, and NotEnoughReplicasError for acks=all below
        min.insync.replicas, or below all replicas where there are less than that.
        """
        if acks == ACKS_ALL and len(self.isr) < self._least_in_sync:
            return self._find_or_refuse(records, transactional, numbered)
        return self._log.append(
            records, self.leader_epoch, transactional=transactional, numbered=numbered
        )

    def _find_or_refuse(
        self, records: memoryview, transactional: bool, numbered: bool
    ) -> LogAppendInfo:
        """With too few in sync. What a client sends again may be there already, and is not refused
        as if it were not: who does so is told when it is committed."""
        most_bytes = self._log.rules.max_message_bytes
        headers = validate(records, most_bytes, transactional=transactional, numbered=numbered)
        duplicate = self._log.find_duplicate(headers[0])
        if duplicate is not None:
            return duplicate
        raise NotEnoughReplicasError(self._too_few)

    def append_end_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        transaction_version: int,
    ) -> LogAppendInfo:
        """Ends a transaction; `commit` is to follow. Raises as Log.append_end_marker, and
        NotEnoughReplicasError as for acks=all."""
        self._check_in_sync()
        return self._log.append_end_marker(
            producer_id, producer_epoch, marker, self.leader_epoch, transaction_version
        )

    def _check_in_sync(self) -> None:
        if len(self.isr) < self._least_in_sync:
            raise NotEnoughReplicasError(self._too_few)

    @property
    def _too_few(self) -> str:
        return f"{len(self.isr)} in sync, min.insync.replicas={self._least_in_sync}"

    @property
    def _least_in_sync(self) -> int:
        return min(self._log.rules.min_insync_replicas, self.replica_count)

    def commit(self, appended: LogAppendInfo) -> Visible:
        """What became visible by an append: nothing while other replicas in sync lack it."""
        # Appends of several threads may come in another order here than into the log.
        is_next = appended.first_offset == self.high_watermark
        return self._advance(appended.last_offset + 1, appended.size_bytes if is_next else 0)

    def advance(self) -> Visible:
        """What became visible as another min.insync.replicas counts now."""
        return self._advance()

    def _advance(self, end_offset: int = 0, size_bytes: int = 0) -> Visible:
        """Moves the high watermark up to where all in sync have the log. Below min.insync.replicas
        it stands, as in Apache Kafka; and where this broker does not lead it any more."""
        if not self.is_led or len(self.isr) < self._least_in_sync:
            return 0, 0
        if not self._isr.followers:
            return self.advance_high_watermark(end_offset or self._log.log_end_offset, size_bytes)
        return self.advance_high_watermark(self._isr.committed_end(self._log.log_end_offset))

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

    def has_committed(self, offset: int, leadership: int) -> bool:
        """Whether every in-sync replica has all below `offset`, as acks=all asks. `leadership`: as
        it was when the records were appended.

        Raises NotLeaderForPartitionError when this broker cannot know any more, and
        NotEnoughReplicasAfterAppendError when they have it, but have become too few.
        """
        if not self.is_led or self.leadership != leadership:
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
        return self._log.log_end_offset if isolation is Isolation.LOG_END else self.high_watermark

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
        if isolation is Isolation.TXN_COMMITTED:
            if offset < stable_offset:
                records, aborted = log.read_committed(
                    offset, max_bytes, stable_offset, min_one_batch
                )
        elif offset < (end_offset := self.end_for(isolation)):
            records = log.read(offset, max_bytes, end_offset, min_one_batch)
        return PartitionRead(records, high_watermark, stable_offset, start_offset, aborted)

    def nearest_replica(self, rack: str, offset: int) -> int | None:
        """The follower that a consumer in that rack should ask; None where that is this broker."""
        return self._isr.nearest(rack, offset)

    def read_elsewhere(self, node_id: int) -> PartitionRead:
        """What a consumer is told that is to fetch from another replica."""
        return PartitionRead(
            None,
            self.high_watermark,
            self.last_stable_offset,
            self._log.log_start_offset,
            preferred_replica=node_id,
        )

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
        """The offset for a timestamp, or one of the special ones; None when there is none that who
        reads so may see.

        Raises OffsetNotAvailableError to clients for what the leader before may have told to be
        committed, and this one does not know to be (KIP-207).
        """
        log = self._log
        may_be_more = isolation is not Isolation.LOG_END and (
            self.epoch_start_offset > self.high_watermark
        )
        if timestamp_ms == LATEST:
            if may_be_more:
                raise OffsetNotAvailableError(f"committed up to {self.high_watermark} by now")
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
        if found is None or found[0] >= self.end_for(isolation):
            if may_be_more:
                raise OffsetNotAvailableError(f"committed up to {self.high_watermark} by now")
            return None
        return OffsetFound(found[0], found[1], self._epoch_of(found[0]))

    def _epoch_of(self, offset: int) -> int:
        epoch = self._log.leader_epochs.epoch_for_offset(offset)
        return NO_EPOCH if epoch is None else epoch
