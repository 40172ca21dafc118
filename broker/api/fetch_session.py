"""Fetch sessions (KIP-227): what a client fetches is remembered, so that it need not say it again.

A full fetch (epoch 0) may open a session; the incremental ones that follow (epochs 1, 2, ...) name
only the partitions that are new, changed or forgotten, and are answered with those where something
happened. The session is told of every change of its partitions, so that an incremental fetch costs
what changed, not what is remembered.

Owns: the sessions, at most `max.incremental.fetch.session.cache.slots` with MAX_PARTITIONS
partitions in all; a client that gets none goes on with full fetches. Called by: the event loop's
thread only. Never: reads a record.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias
from uuid import UUID

from kafka.errors import (
    BrokerResponseError,
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
)
from kafka.structs import TopicPartition

from broker.cluster.cache import MetadataCache
from broker.replica.manager import ReplicaManager
from broker.replica.partition import NO_REPLICA, Isolation, PartitionRead
from pyspark_kafkalog.protocol.fetch import FetchPartition, ForgottenPartition

NO_SESSION = 0
# Epochs with which a client asks for a new session, or for none.
INITIAL_EPOCH, FINAL_EPOCH = 0, -1

# Some 50 MB.
MAX_PARTITIONS = 100_000
# A session this old gives way to a larger one; one unused for so long, to any (as in Kafka).
MIN_EVICTION_MS = 120_000
# Retention moves log start offsets without telling; sessions look for it so often.
_SWEEP_MS = 1000
_LARGEST_ID = 2**31 - 1
# The topic by name or (since Fetch 13) the number of its id, and the partition.
_Key: TypeAlias = tuple[str | int, int]


def name_topic(wanted: FetchPartition, metadata: MetadataCache) -> None:
    """Gives a topic that has an id its name of now; an empty one where the id is not known."""
    if wanted.topic_id is not None:
        wanted.topic = _name_of(wanted.topic_id, metadata)


def _name_of(topic_id: UUID, metadata: MetadataCache) -> str:
    topic = metadata.topic_by_id(topic_id)
    return "" if topic is None else topic.name


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == _LARGEST_ID else epoch + 1


class CachedPartition:
    """A session's partition: what its client wants of it, and what it was told last."""

    __slots__ = ("high_watermark", "log_start_offset", "session", "topic_partition", "wanted")

    def __init__(self, session: "FetchSession", wanted: FetchPartition) -> None:
        self.session = session
        self.wanted = wanted
        self.topic_partition = TopicPartition(wanted.topic, wanted.partition)
        self.high_watermark = -1
        self.log_start_offset = -1

    def partition_changed(self, size_bytes: int, stable_bytes: int) -> None:
        """The Watcher of the purgatory."""
        self.session.partition_changed(self, size_bytes, stable_bytes)

    def told(self, read: PartitionRead | BrokerResponseError) -> bool:
        """Whether the client must hear of `read`; it has then. Nothing more is said of the
        partition until it changes, unless there is more to read or something is wrong."""
        if not isinstance(read, PartitionRead):
            self.high_watermark = -1  # when the error goes, the client hears of it
            return True
        is_news = bool(
            read.size_bytes
            or read.diverging_epoch is not None
            or read.preferred_replica != NO_REPLICA
            or read.high_watermark != self.high_watermark
            or read.log_start_offset != self.log_start_offset
        )
        self.high_watermark = read.high_watermark
        self.log_start_offset = read.log_start_offset
        is_patient = self.session.isolation is Isolation.TXN_COMMITTED
        bound = read.last_stable_offset if is_patient else read.high_watermark
        if read.size_bytes:
            self.session.served(self)
        elif self.wanted.fetch_offset >= bound and read.diverging_epoch is None:
            self.session.quiet(self)
        return is_news


class FetchSession:
    """One client's partitions, for which its fetch waits in the purgatory. `pending` are those to
    look at for the next answer, in the order in which they get their share of it."""

    __slots__ = (
        "_pending",
        "_replicas",
        "_swept_ms",
        "created_ms",
        "epoch",
        "has_topic_ids",
        "isolation",
        "partitions",
        "session_id",
    )

    def __init__(
        self,
        session_id: int,
        replicas: ReplicaManager,
        has_topic_ids: bool,
        isolation: Isolation,
        now_ms: float,
    ) -> None:
        self.session_id = session_id
        self.has_topic_ids = has_topic_ids
        self.isolation = isolation
        self.created_ms = now_ms
        self.epoch = 1
        self.partitions: dict[_Key, CachedPartition] = {}
        self._pending: dict[CachedPartition, None] = {}
        self._replicas = replicas
        self._swept_ms = now_ms

    def put(self, wanted: FetchPartition) -> CachedPartition:
        """Adds a partition, or changes what is wanted of it."""
        topic_id = wanted.topic_id
        key = (wanted.topic if topic_id is None else topic_id.int, wanted.partition)
        cached = self.partitions.get(key)
        if cached is None:
            cached = self.partitions[key] = CachedPartition(self, wanted)
            self._replicas.watch(cached.topic_partition, cached)
        else:
            self._turn_to(cached, wanted)
        self._pending.setdefault(cached)
        return cached

    def forget(self, forgotten: Iterable[ForgottenPartition]) -> None:
        for each in forgotten:
            topic = each.topic if each.topic_id is None else each.topic_id.int
            cached = self.partitions.pop((topic, each.partition), None)
            if cached is not None:
                self._pending.pop(cached, None)
                self._replicas.unwatch(cached.topic_partition, cached)

    def pending(self, metadata: MetadataCache, isolation: Isolation) -> list[CachedPartition]:
        """The partitions to look at, their topics looked up anew where ids are used."""
        if isolation is not self.isolation:
            self.isolation = isolation
            self._pending |= dict.fromkeys(self.partitions.values())
        if self.has_topic_ids:
            for cached in self._pending:
                name_topic(cached.wanted, metadata)
                if cached.wanted.topic != cached.topic_partition.topic:
                    self._turn_to(cached, cached.wanted)
        return list(self._pending)

    def sweep(self, now_ms: float) -> None:
        """Looks, now and then, for partitions whose log start offset has moved."""
        if now_ms - self._swept_ms < _SWEEP_MS:
            return
        self._swept_ms = now_ms
        log_start_offset = self._replicas.log_start_offset
        for cached in self.partitions.values():
            if log_start_offset(cached.topic_partition) != cached.log_start_offset:
                self._pending.setdefault(cached)

    def partition_changed(
        self, cached: CachedPartition, size_bytes: int, stable_bytes: int
    ) -> None:
        self._pending.setdefault(cached)
        self._replicas.became_visible(self, size_bytes, stable_bytes)

    def served(self, cached: CachedPartition) -> None:
        """The partition had its share: the others come first in the next answer."""
        self._pending.pop(cached, None)
        self._pending[cached] = None

    def quiet(self, cached: CachedPartition) -> None:
        self._pending.pop(cached, None)

    def close(self) -> None:
        """Hears of nothing any more; who waits is answered."""
        for cached in self.partitions.values():
            self._replicas.unwatch(cached.topic_partition, cached)
        self.end_wait()

    def end_wait(self) -> None:
        self._replicas.wake(self)

    def _turn_to(self, cached: CachedPartition, wanted: FetchPartition) -> None:
        topic_partition = TopicPartition(wanted.topic, wanted.partition)
        if topic_partition != cached.topic_partition:
            self._replicas.unwatch(cached.topic_partition, cached)
            self._replicas.watch(topic_partition, cached)
        cached.topic_partition = topic_partition
        cached.wanted = wanted


class FetchSessionCache:
    """The sessions, least recently used first."""

    def __init__(
        self, replicas: ReplicaManager, max_sessions: int, clock_ms: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._max_sessions = max_sessions
        self._clock_ms = clock_ms
        # The session and when it was last used.
        self._sessions: dict[int, tuple[FetchSession, float]] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return (session for session, _ in self._sessions.values())

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def open(
        self,
        wanted: Sequence[FetchPartition],
        reads: Sequence[PartitionRead | BrokerResponseError],
        isolation: Isolation,
    ) -> FetchSession | None:
        """A session of what a full fetch wants and is told; None when it may not have a place."""
        now_ms = self._clock_ms()
        if not wanted or not self._has_room(len(wanted), now_ms):
            return None
        has_topic_ids = wanted[0].topic_id is not None
        session = FetchSession(self._new_id(), self._replicas, has_topic_ids, isolation, now_ms)
        for partition, read in zip(wanted, reads, strict=True):
            session.put(partition).told(read)
        self._sessions[session.session_id] = (session, now_ms)
        self._partition_count += len(session.partitions)
        return session

    def resume(self, session_id: int, epoch: int, has_topic_ids: bool) -> FetchSession:
        """The session of an incremental fetch, which comes in its order.

        Raises FetchSessionIdNotFoundError, InvalidFetchSessionEpochError and
        FetchSessionTopicIdError.
        """
        entry = self._sessions.get(session_id)
        if entry is None:
            raise FetchSessionIdNotFoundError()
        session = entry[0]
        if session.epoch != epoch:
            raise InvalidFetchSessionEpochError()
        if session.has_topic_ids != has_topic_ids:
            raise FetchSessionTopicIdError()
        session.epoch = _next_epoch(epoch)
        session.end_wait()  # an earlier fetch of the session: its answer is out of date
        return session

    def update(
        self,
        session: FetchSession,
        wanted: Iterable[FetchPartition],
        forgotten: Iterable[ForgottenPartition],
        metadata: MetadataCache,
    ) -> bool:
        """Adds, changes and drops partitions. False when none is left: the session is gone.

        Raises FetchSessionIdNotFoundError when the session outgrew the cache, and is gone.
        """
        before = len(session.partitions)
        for partition in wanted:
            name_topic(partition, metadata)
            session.put(partition)
        session.forget(forgotten)
        self._partition_count += len(session.partitions) - before
        if self._partition_count > MAX_PARTITIONS and len(session.partitions) > before:
            self.remove(session.session_id)
            raise FetchSessionIdNotFoundError()
        if not session.partitions:
            self.remove(session.session_id)
            return False
        now_ms = self._clock_ms()
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = (session, now_ms)
        session.sweep(now_ms)
        return True

    def remove(self, session_id: int) -> None:
        """Ends a session; an unknown one is fine."""
        entry = self._sessions.pop(session_id, None)
        if entry is not None:
            self._partition_count -= len(entry[0].partitions)
            entry[0].close()

    def _has_room(self, partition_count: int, now_ms: float) -> bool:
        """Makes room as Kafka does: a session that is stale goes first, else a smaller old one."""
        while (
            len(self._sessions) >= self._max_sessions
            or self._partition_count + partition_count > MAX_PARTITIONS
        ):
            if not self._sessions or partition_count > MAX_PARTITIONS:
                return False
            victim, used_ms = next(iter(self._sessions.values()))
            if now_ms - used_ms <= MIN_EVICTION_MS:
                old = [each for each in self if now_ms - each.created_ms > MIN_EVICTION_MS]
                if not old:
                    return False
                victim = min(old, key=lambda each: (len(each.partitions), each.session_id))
                if len(victim.partitions) >= partition_count:
                    return False
            self.remove(victim.session_id)
        return True

    def _new_id(self) -> int:
        while True:
            session_id = random.randint(1, _LARGEST_ID)
            if session_id not in self._sessions:
                return session_id
