"""Every partition on this broker: appends, fetches, look-ups of offsets.

Owns: the Partitions, the Purgatory, and threads that append large batches, one for each
processor. Called by: the event loop's thread only, except for `high_watermark` and for what blocks:
`make_logs`, `delete_log`, `find_offset` and `finish_appends`. Never: knows the wire.
"""

import asyncio
import functools
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from kafka.errors import (
    BrokerResponseError,
    CorruptRecordError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    KafkaStorageError,
    NewLeaderElectedError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OperationNotAttemptedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from kafka.structs import TopicPartition
from mypy_extensions import mypyc_attr

from broker.cluster.control import IsrChange
from broker.cluster.metadata import PartitionMetadata
from broker.config.broker import BrokerConfig
from broker.log.log import LogAppendInfo
from broker.log.manager import LogManager
from broker.replica.delayed import DelayedFetch
from broker.replica.isr import ReplicaHost
from broker.replica.partition import (
    ACKS_ALL,
    NO_EPOCH,
    NO_REPLICA,
    Isolation,
    OffsetFound,
    Partition,
    PartitionRead,
    Visible,
)
from broker.replica.purgatory import DelayedOperation, Purgatory, Watcher
from broker.replica.refused import RefusedBatches
from broker.replica.throttle import Throttles, is_listed
from pyspark_kafkalog.protocol.fetch import EpochEndOffset, FetchPartition
from pyspark_kafkalog.record.batch import read_header
from pyspark_kafkalog.record.control import TransactionMarker

_log = logging.getLogger(__name__)

NO_FOLLOWER: Final = -1
_NOT_DONE = (IneligibleReplicaError, OperationNotAttemptedError)
"""Nothing was written; it may be asked for later."""
_CONTROLLER_KNOWS_MORE = (
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
"""It has changed the partition since, and will say how."""
_ASK_AGAIN_S: Final = 0.1
"""After any other error: the controller's store may have done it, or not."""

LARGE_BYTES: Final = 512 << 10
"""Batches from which on `append_aside` may be a gain."""


class FetchLimits(NamedTuple):
    """What a fetch wants of all its partitions together."""

    max_bytes: int
    isolation: Isolation
    # Whether the client takes topics whose compression.type is zstd.
    zstd: bool = True
    follower_id: int = NO_FOLLOWER
    """The broker that follows, where it is no consumer that fetches."""
    rack: str | None = None
    """Where a consumer is that takes records from followers, too, "" where it does not say; None
    for one that knows leaders alone."""


class FetchResult(NamedTuple):
    """By partition, in their order: what was found, or why not. `urgent`: not to wait for more."""

    reads: Sequence[PartitionRead | BrokerResponseError]
    size_bytes: int
    urgent: bool


@dataclass(slots=True)
class BrokerTopicStats:
    """What all topics have taken and given since the start."""

    bytes_in: int = 0
    messages_in: int = 0
    bytes_out: int = 0
    failed_produce: int = 0
    failed_fetch: int = 0


class ReplicationFigures(NamedTuple):
    """Of the partitions that this broker leads."""

    led: int
    under_replicated: int
    under_min_isr: int
    at_min_isr: int


@dataclass(slots=True)
class IsrStats:
    """Of the partitions that this broker has led since its start."""

    shrinks: int = 0
    expands: int = 0
    failed_updates: int = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplicaManager:
    """The partitions of this broker."""

    def __init__(
        self,
        logs: LogManager,
        purgatory: Purgatory,
        host: ReplicaHost,
        alter_isr: Callable[[IsrChange], Awaitable[PartitionMetadata]],
        throttles: Throttles,
    ) -> None:
        """`alter_isr` has the controller change an ISR; it raises BrokerResponseError."""
        self._logs = logs
        self._purgatory = purgatory
        self._host = host
        self._alter_isr = alter_isr
        self._throttles = throttles
        self._isr_changes: set[asyncio.Task[None]] = set()
        self.takes_appends = True
        """Not while others may lead what this broker leads, as far as it knows."""
        self._partitions: dict[tuple[str, int], Partition] = {}
        """By TopicPartition, which a plain tuple equals."""
        self._checkpointed = logs.high_watermarks()
        """Of partitions that were not served yet, as the last stop left them."""
        self._append_threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="append")
        self._appending: dict[TopicPartition, int] = {}
        self._last_large: tuple[str, TopicPartition | None] = ("", None)
        self._refused = RefusedBatches()
        self.stats = BrokerTopicStats()
        self.isr_stats = IsrStats()

    @property
    def partition_count(self) -> int:
        return len(self._partitions)

    def replication_figures(self) -> ReplicationFigures:
        """Any thread."""
        led = [partition for partition in [*self._partitions.values()] if partition.is_led]
        return ReplicationFigures(
            len(led),
            sum(partition.is_under_replicated for partition in led),
            sum(partition.spare_in_sync < 0 for partition in led),
            sum(partition.spare_in_sync == 0 for partition in led),
        )

    @property
    def waiting_fetches(self) -> int:
        return self._purgatory.count(DelayedFetch)

    def has_log(self, topic_partition: TopicPartition) -> bool:
        return self._logs.kept(topic_partition) is not None

    def make_logs(
        self,
        topic_ids: Mapping[TopicPartition, uuid.UUID],
        new: Collection[TopicPartition],
    ) -> dict[TopicPartition, BrokerResponseError]:
        """Makes the logs that are missing. `new`: those that never were here. Returns where it
        failed: with InconsistentTopicIdError where the log of another topic of that name is here,
        which only StopReplica gives up. Blocks: for a thread."""
        failures: dict[TopicPartition, BrokerResponseError] = {}
        for topic_partition, topic_id in topic_ids.items():
            try:
                self._logs.check_topic_id(topic_partition, topic_id)
            except InconsistentTopicIdError as error:
                failures[topic_partition] = error
            except OSError as error:
                failures[topic_partition] = KafkaStorageError(str(error))
        left = {each: topic_id for each, topic_id in topic_ids.items() if each not in failures}
        failures.update(self._logs.create_all(left, new))
        return failures

    def delete_log(self, topic_partition: TopicPartition) -> None:
        """Gives the log up for deletion. Blocks: for a thread, after `stop`. Raises OSError."""
        self._logs.delete(topic_partition)

    def lead(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, state: PartitionMetadata
    ) -> None:
        """Serves the partition, whose log is there, as its leader; who waits for it in another
        epoch asks again, and hears of this one."""
        partition = self._kept(topic_partition, topic_id)
        led_epoch = partition.leader_epoch if partition.is_led else NO_EPOCH
        visible = partition.lead(state)
        if state.leader_epoch > led_epoch:
            self._wake(partition)
        else:
            self._tell(partition, visible)

    def follow(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, state: PartitionMetadata
    ) -> Partition:
        """Keeps the partition, whose log is there, as its leader has it; who waits for it is told
        that it is led elsewhere."""
        partition = self._kept(topic_partition, topic_id)
        partition.follow(state)
        self._wake(partition)
        return partition

    def _kept(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> Partition:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            log = self._logs.kept(topic_partition)
            assert log is not None, "made before it is served"
            partition = self._partitions[topic_partition] = Partition(
                topic_partition,
                topic_id,
                log,
                self._host,
                self._checkpointed.pop(topic_partition, 0),
            )
        return partition

    def stop(self, topic_partition: TopicPartition) -> None:
        """Keeps the partition no more; who waits for its records is told so."""
        partition = self._partitions.pop(topic_partition, None)
        self._checkpointed.pop(topic_partition, None)
        if partition is None:
            self._purgatory.wake(topic_partition)
        else:
            partition.retire()
            self._wake(partition)

    def _wake(self, partition: Partition) -> None:
        self._purgatory.wake(partition.topic_partition)
        self._purgatory.wake(partition.log_end)

    def kept(self, topic_partition: TopicPartition) -> Partition | None:
        """The partition, led or followed; None where this broker does not keep it."""
        return self._partitions.get(topic_partition)

    def led(self) -> list[Partition]:
        """Every partition that this broker leads."""
        return [partition for partition in self._partitions.values() if partition.is_led]

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The partition, which this broker leads. Raises UnknownTopicOrPartitionError,
        NotLeaderForPartitionError, and KafkaStorageError where its log is offline."""
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.is_led:
            return partition
        self._logs.get(topic_partition)
        if partition is None and not self._host.is_known(topic_partition):
            raise UnknownTopicOrPartitionError()
        raise NotLeaderForPartitionError(f"{topic_partition} is led by another broker")

    def partition_of(self, topic: str, index: int) -> Partition:
        """As `partition`, without a TopicPartition, which takes longer to make than to look up."""
        partition = self._partitions.get((topic, index))
        if partition is None or not partition.is_led:
            return self.partition(TopicPartition(topic, index))
        return partition

    def append(
        self,
        partition: Partition,
        records: memoryview,
        acks: int,
        *,
        transactional: bool = False,
        numbered: bool = True,
    ) -> LogAppendInfo:
        """Appends whole batches; tells who waits what became visible. Raises kafka.errors;
        with acks=all NotEnoughReplicasError for what is behind a batch that was refused."""
        if self._is_barred(partition, records, acks):
            raise NotEnoughReplicasError("a batch before it was refused, and is to come again")
        appended = _append(partition, records, acks, transactional, numbered)
        self._appended(partition, appended)
        return appended

    def append_aside(
        self, partition: Partition, records: memoryview, acks: int, peer: str
    ) -> "asyncio.Future[LogAppendInfo] | None":
        """As `append`, in a thread, while the event loop goes on; or None, where that is no gain.

        Handing an append over costs as much as writing 100 kB. A connection waits for its answer,
        and a log takes one append after the other: unless large ones come from several connections,
        for several logs, nothing would be written or received beside them.
        """
        if len(records) < LARGE_BYTES:
            return None
        topic_partition = partition.topic_partition
        last_peer, last_topic_partition = self._last_large
        self._last_large = peer, topic_partition
        # On the loop it would wait for the thread that has the log.
        is_held_up = topic_partition in self._appending
        if not is_held_up and (last_peer in ("", peer) or last_topic_partition == topic_partition):
            return None
        if self._is_barred(partition, records, acks):
            return None
        self._appending[topic_partition] = self._appending.get(topic_partition, 0) + 1
        # The thread lets go of the view before the answer does: its memory is used again then.
        leadership = partition.leadership
        append = functools.partial(_append_aside, partition, [records], acks, leadership)
        appending = asyncio.get_running_loop().run_in_executor(self._append_threads, append)
        # Not by who waits for it, and may be cancelled: the records are there in any case.
        appending.add_done_callback(functools.partial(self._appended_aside, partition))
        return appending

    def _appended_aside(
        self, partition: Partition, appending: "asyncio.Future[LogAppendInfo]"
    ) -> None:
        topic_partition = partition.topic_partition
        self._appending[topic_partition] -= 1
        if not self._appending[topic_partition]:
            del self._appending[topic_partition]
        if not appending.cancelled() and appending.exception() is None:
            self._appended(partition, appending.result())

    def note_refused(self, topic_partition: TopicPartition, records: memoryview) -> None:
        """A batch was refused, here or before it came here, for what passes: it comes again. What
        is no batch is nothing that others could overtake."""
        with suppress(CorruptRecordError, UnsupportedForMessageFormatError):
            self._refused.note(topic_partition, read_header(records))

    def _is_barred(self, partition: Partition, records: memoryview, acks: int) -> bool:
        if acks != ACKS_ALL or not self._refused:
            return False
        header, producers = read_header(records), partition.log.producers
        return self._refused.bars(partition.topic_partition, header, producers)

    def finish_appends(self) -> None:
        """Returns when no append is under way in a thread. Blocks; afterwards none may begin."""
        self._append_threads.shutdown()

    def _appended(self, partition: Partition, appended: LogAppendInfo) -> None:
        self._committed(partition, appended)
        if not appended.is_duplicate:
            self.stats.bytes_in += appended.size_bytes
            self.stats.messages_in += appended.last_offset - appended.first_offset + 1

    def _committed(self, partition: Partition, appended: LogAppendInfo) -> None:
        self._tell(partition, partition.commit(appended))
        if partition.has_followers and not appended.is_duplicate:
            size_bytes = appended.size_bytes
            self._purgatory.became_visible(partition.log_end, size_bytes, size_bytes)

    def _tell(self, partition: Partition, visible: Visible) -> None:
        """Who waits hears what became visible, and of nothing else."""
        size_bytes, stable_bytes = visible
        if size_bytes:
            self._purgatory.became_visible(partition.topic_partition, size_bytes, stable_bytes)

    def append_end_marker(
        self,
        topic_partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        transaction_version: int,
    ) -> None:
        """Ends a transaction in one partition; tells who waited for its end.

        Raises UnknownTopicOrPartitionError, InvalidProducerEpochError, NotEnoughReplicasError,
        TransactionCoordinatorFencedError and KafkaStorageError.
        """
        partition = self.partition(topic_partition)
        appended = partition.append_end_marker(
            producer_id, producer_epoch, marker, transaction_version
        )
        self._refused.forget(topic_partition, producer_id)
        self._committed(partition, appended)

    def answered(self, result: FetchResult) -> None:
        """What `fetch` found is on its way to a client (and not read again after a wait)."""
        self.stats.bytes_out += result.size_bytes
        for read in result.reads:
            if not isinstance(read, PartitionRead):
                self.stats.failed_fetch += 1

    def fetch(
        self, asked: Sequence[FetchPartition], limits: FetchLimits, others: int = 0
    ) -> FetchResult:
        """Reads what is there now. The first batch found is whole, whatever the limits say.

        `asked`: partitions by the names of their topics, an empty one where it is not known.
        `others`: how many more partitions the fetch is about, where nothing is to be read.
        """
        reads: list[PartitionRead | BrokerResponseError] = []
        size_bytes = 0
        for wanted in asked:
            read = self._read(wanted, limits, size_bytes)
            reads.append(read)
            if isinstance(read, PartitionRead):
                size_bytes += read.size_bytes
        urgent = (
            is_urgent(reads, others)
            or (limits.follower_id != NO_FOLLOWER and _begins_below(asked, reads))
            or (bool(limits.rack) and _leads_elsewhere(reads))
        )
        return FetchResult(reads, size_bytes, urgent)

    def _read(
        self, wanted: FetchPartition, limits: FetchLimits, size_bytes: int
    ) -> PartitionRead | BrokerResponseError:
        """One partition's part of a fetch that has found `size_bytes` before it."""
        try:
            partition = self._readable(wanted.topic, wanted.partition, limits)
            # Compared as numbers: a UUID's own way is a call.
            if wanted.topic_id is not None and wanted.topic_id.int != partition.topic_id.int:
                raise InconsistentTopicIdError()
            partition.check_epoch(wanted.current_leader_epoch)
            if not limits.zstd and partition.log.config.compression_type == "zstd":
                raise UnsupportedCompressionTypeError("this version of Fetch knows no zstd")
            if limits.follower_id != NO_FOLLOWER:
                partition.check_follower(limits.follower_id)
            elif limits.rack:
                node_id = partition.nearest_replica(limits.rack, wanted.fetch_offset)
                if node_id is not None:
                    return partition.read_elsewhere(node_id)
            max_bytes = min(wanted.max_bytes, limits.max_bytes - size_bytes)
            is_held_back = False
            if limits.follower_id != NO_FOLLOWER:
                # Apache Kafka's take no more at once, and stop; segments may have been larger.
                max_bytes = min(max_bytes, partition.log.config.segment_bytes)
                is_held_back = self._holds_back(partition, limits.follower_id)
            read = partition.read(
                wanted,
                0 if is_held_back else max(0, max_bytes),
                limits.isolation,
                min_one_batch=size_bytes == 0 and not is_held_back,
            )
            if limits.follower_id != NO_FOLLOWER and read.diverging_epoch is None:
                self._fetched(partition, limits.follower_id, wanted)
            return read
        except BrokerResponseError as error:
            return error
        except OSError as error:
            topic_partition = TopicPartition(wanted.topic, wanted.partition)
            return storage_error("fetch", topic_partition, error)

    def _readable(self, topic: str, index: int, limits: FetchLimits) -> Partition:
        """The partition, which this broker leads, or keeps where that will do."""
        if limits.rack is not None:
            kept = self._partitions.get((topic, index))
            if kept is not None:
                return kept
        return self.partition_of(topic, index)

    def follow_leader(
        self, partition: Partition, high_watermark: int, log_start_offset: int
    ) -> None:
        """A partition's leader has committed so far, and begins there: tells the consumers that
        wait here. Raises KafkaStorageError."""
        end = partition.visible_end
        partition.follow_leader(high_watermark, log_start_offset)
        if self._purgatory.is_awaited(partition.topic_partition):
            self._tell(partition, partition.visible_since(end))

    # Throttled replicas.

    def _holds_back(self, partition: Partition, node_id: int) -> bool:
        """Whether a follower gets no records for now. Those in sync always do."""
        return (
            node_id not in partition.isr
            and self._throttles.leader.is_exceeded
            and self._is_throttled_leader(partition)
        )

    def holds_back(self, topic: str, index: int, node_id: int) -> bool:
        """As far as this broker leads the partition."""
        partition = self._partitions.get((topic, index))
        return partition is not None and self._holds_back(partition, node_id)

    def _is_throttled_leader(self, partition: Partition) -> bool:
        listed = partition.log.config.leader_replication_throttled_replicas
        return is_listed(listed, partition.topic_partition.partition, self._host.node_id)

    def sent(
        self, asked: Sequence[FetchPartition], reads: Sequence[PartitionRead | BrokerResponseError]
    ) -> None:
        """This is on its way to a follower."""
        for wanted, read in zip(asked, reads, strict=True):
            if isinstance(read, PartitionRead) and read.size_bytes:
                partition = self._partitions.get((wanted.topic, wanted.partition))
                if partition is not None and self._is_throttled_leader(partition):
                    self._throttles.leader.record(read.size_bytes)

    def holds_off(self, partition: Partition) -> bool:
        """Whether a leader is not to be asked for it now, unless it is in sync."""
        return self._throttles.follower.is_exceeded and self._is_throttled_follower(partition)

    def received(self, partition: Partition, size_bytes: int) -> None:
        """A leader has sent so much of a partition that is followed."""
        if self._is_throttled_follower(partition):
            self._throttles.follower.record(size_bytes)

    def _is_throttled_follower(self, partition: Partition) -> bool:
        listed = partition.log.config.follower_replication_throttled_replicas
        return is_listed(listed, partition.topic_partition.partition, self._host.node_id)

    # In-sync replicas.

    def _fetched(self, partition: Partition, node_id: int, wanted: FetchPartition) -> None:
        """A follower has all of the partition up to where it fetches from."""
        has_moved = partition.tells_other_start(node_id, wanted.log_start_offset)
        self._tell(
            partition,
            partition.fetched_by(node_id, wanted.fetch_offset, wanted.log_start_offset),
        )
        if has_moved:
            self._purgatory.wake(partition.topic_partition)
        self._ask_for(partition, partition.join_isr(node_id))

    def look_for_laggards(self) -> None:
        """Those that have not caught up for too long are to leave the ISR."""
        for partition in self.led():
            self._ask_for(partition, partition.leave_isr())

    def _ask_for(self, partition: Partition, change: IsrChange | None) -> None:
        if change is not None:
            task = asyncio.get_running_loop().create_task(self._change_isr(partition, change))
            self._isr_changes.add(task)
            task.add_done_callback(self._isr_changes.discard)

    async def _change_isr(self, partition: Partition, change: IsrChange) -> None:
        topic_partition = partition.topic_partition
        _log.info("isr.asked_for topic=%r partition=%d isr=%s", *topic_partition, list(change.isr))
        try:
            state = await self._alter_isr(change)
        except BrokerResponseError as error:
            _log.warning("isr.not_changed topic=%r partition=%d reason=%r", *topic_partition, error)
            self.isr_stats.failed_updates += 1
            if isinstance(error, _CONTROLLER_KNOWS_MORE):
                return
            if not isinstance(error, _NOT_DONE):
                # Who may be in sync by it has to have what counts as committed, until it is known.
                await asyncio.sleep(_ASK_AGAIN_S)
                self._ask_for(partition, change if partition.awaits(change) else None)
            elif partition.awaits(change):
                partition.isr_not_changed()
            return
        if partition.awaits(change):
            _log.info("isr.changed topic=%r partition=%d isr=%s", *topic_partition, list(state.isr))
            if len(state.isr) < len(partition.isr):
                self.isr_stats.shrinks += 1
            else:
                self.isr_stats.expands += 1
            self._tell(partition, partition.isr_changed(state.isr, state.partition_epoch))

    @property
    def may_wait(self) -> bool:
        """Whether there is room for another fetch to `wait`."""
        return not self._purgatory.is_full

    def wait(self, operation: DelayedOperation, max_wait_ms: int, done: Callable[[], None]) -> None:
        """Calls `done` once: when the operation is done, which may be now, or after
        `max_wait_ms`."""
        self._purgatory.wait(operation, max_wait_ms, done)

    def became_visible(self, session: Hashable, size_bytes: int, stable_bytes: int) -> None:
        """So much more can be fetched of what a fetch session watches."""
        self._purgatory.became_visible(session, size_bytes, stable_bytes)

    def wake(self, session: Hashable) -> None:
        """Who waits for the session does so no longer."""
        self._purgatory.wake(session)

    def watch(self, topic_partition: TopicPartition, watcher: Watcher) -> None:
        """`watcher` hears of every change of a partition, which need not exist."""
        self._purgatory.watch(topic_partition, watcher)

    def unwatch(self, topic_partition: TopicPartition, watcher: Watcher) -> None:
        self._purgatory.unwatch(topic_partition, watcher)

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """Up to where retention and the cleaner may work; 0 for a partition that is not served.
        Any thread."""
        partition = self._partitions.get(topic_partition)
        return 0 if partition is None else partition.high_watermark

    def log_start_offset(self, topic_partition: TopicPartition) -> int:
        """-1 for a partition that is not here."""
        partition = self._partitions.get(topic_partition)
        return -1 if partition is None else partition.log.log_start_offset

    def find_offset(
        self,
        topic_partition: TopicPartition,
        timestamp_ms: int,
        isolation: Isolation,
        current_leader_epoch: int,
    ) -> OffsetFound | None:
        """ListOffsets of one partition. Blocks where it searches by timestamp: for any thread.
        Raises kafka.errors."""
        partition = self.partition(topic_partition)
        partition.check_epoch(current_leader_epoch)
        try:
            return partition.find_offset(timestamp_ms, isolation)
        except OSError as error:
            raise storage_error("list_offsets", topic_partition, error) from error

    def end_offset_for_epoch(
        self, topic_partition: TopicPartition, epoch: int, current_leader_epoch: int
    ) -> EpochEndOffset:
        """OffsetForLeaderEpoch of one partition. Raises kafka.errors."""
        partition = self.partition(topic_partition)
        partition.check_epoch(current_leader_epoch)
        return partition.end_offset_for_epoch(epoch)

    def log_starts_for(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | BrokerResponseError]:
        """DeleteRecords: where each log would begin, -1 being its high watermark; or why not."""
        starts: dict[TopicPartition, int | BrokerResponseError] = {}
        for topic_partition, offset in offsets.items():
            try:
                starts[topic_partition] = self.partition(topic_partition).log_start_for(offset)
            except BrokerResponseError as error:
                starts[topic_partition] = error
        return starts

    def move_log_starts(
        self, starts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | BrokerResponseError]:
        """Moves logs' starts forward, and writes them all down. Blocks: for a thread.

        Returns where each log begins, or why it was not moved; `log_start_moved` comes after it.
        """
        moved: dict[TopicPartition, int | BrokerResponseError] = {}
        logs = self._logs.all_logs()
        for topic_partition, start in starts.items():
            log = logs.get(topic_partition)
            try:
                if log is None:
                    raise UnknownTopicOrPartitionError()
                log.advance_log_start_offset(start)
                moved[topic_partition] = log.log_start_offset
            except BrokerResponseError as error:
                moved[topic_partition] = error
            except OSError as error:
                moved[topic_partition] = storage_error("delete_records", topic_partition, error)
        if moved:
            self._write_log_starts(moved)
        return moved

    def _write_log_starts(self, moved: dict[TopicPartition, int | BrokerResponseError]) -> None:
        try:
            self._logs.checkpoint_log_start_offsets()
        except OSError as error:
            for topic_partition in moved:
                moved[topic_partition] = storage_error("delete_records", topic_partition, error)

    def log_start_moved(self, topic_partition: TopicPartition) -> None:
        """Who waits at the old start hears of it, and followers at once."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            self._purgatory.wake(topic_partition)
        else:
            self._wake(partition)

    def log_sizes(self) -> dict[Path, dict[TopicPartition, int] | None]:
        """Data directory to its logs and their sizes in bytes; None where it is lost."""
        return self._logs.sizes()

    def set_broker_config(self, config: BrokerConfig) -> None:
        """Applies the broker's properties to the logs. Blocks: for a thread."""
        self._logs.update_config(config)

    def rules_changed(self, topic: str | None = None) -> None:
        """Of a topic, or of all: records may be in enough replicas by now."""
        for partition in self.led():
            if topic in (None, partition.topic_partition.topic):
                self._tell(partition, partition.advance())

    def topic_configured(self, name: str) -> None:
        """Applies what is set on the topic now to its logs. Blocks: for a thread."""
        self._logs.update_topic_config(name)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Of all partitions that this broker keeps; a copy, to be written down by a thread."""
        partitions = [*self._partitions.values()]
        return {each.topic_partition: each.high_watermark for each in partitions}


def is_urgent(reads: Sequence[PartitionRead | BrokerResponseError], others: int = 0) -> bool:
    """Whether the answer to a fetch should not wait for more.

    A partition that is not here does not make it so, unless no other is asked for (`others`: how
    many more the fetch is about): clients that fetch a deleted topic would spin.
    """
    missing = [isinstance(read, UnknownTopicOrPartitionError) for read in reads]
    failed = [isinstance(read, BrokerResponseError) for read in reads]
    return (all(missing) and not others) or failed != missing


def _begins_below(
    asked: Sequence[FetchPartition], reads: Sequence[PartitionRead | BrokerResponseError]
) -> bool:
    """Whether a follower still has what the leader has deleted; it hears of that at once."""
    return any(
        isinstance(read, PartitionRead) and wanted.log_start_offset < read.log_start_offset
        for wanted, read in zip(asked, reads, strict=True)
    )


def _leads_elsewhere(reads: Sequence[PartitionRead | BrokerResponseError]) -> bool:
    """Whether a consumer is sent to another replica; it hears of that at once."""
    return any(
        isinstance(read, PartitionRead) and read.preferred_replica != NO_REPLICA for read in reads
    )


def _append_aside(
    partition: Partition, records: list[memoryview], acks: int, leadership: int
) -> LogAppendInfo:
    """In a thread. Empties `records`."""
    view = records.pop()
    with partition.led_since(leadership):
        return _append(partition, view, acks, transactional=False, numbered=True)


def _append(
    partition: Partition, records: memoryview, acks: int, transactional: bool, numbered: bool
) -> LogAppendInfo:
    """Without what follows on the event loop; raises kafka.errors."""
    try:
        return partition.append(records, acks, transactional=transactional, numbered=numbered)
    except OSError as error:
        raise storage_error("append", partition.topic_partition, error) from error


def storage_error(what: str, topic_partition: TopicPartition, error: OSError) -> KafkaStorageError:
    """The disk failed: the reason goes to our log, the client hears the kind of error."""
    _log.error(
        "%s.failed topic=%r partition=%d reason=%r",
        what,
        topic_partition.topic,
        topic_partition.partition,
        str(error),
    )
    return KafkaStorageError(f"{what} failed: {error.strerror}")
