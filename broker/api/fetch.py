"""Fetch (key 1), versions 0-18: record batches as they lie in the log, sent by sendfile.

A fetch that finds less than min_bytes waits for appends, at most max_wait_ms. The first batch found
is sent whole, whatever the limits say (from version 3 on), so that a consumer always gets on.
Fetch sessions are kept by `fetch_session`. From version 13 on topics have ids; one that is not
known here is UNKNOWN_TOPIC_ID, and INCONSISTENT_TOPIC_ID where the log is still another topic's.
Versions 0-3 cannot carry record batches: `down_conversion` answers them.
A broker that follows sees all there is in the log, and by what it asks for its leader knows what it
has. Consumers that say in which rack they are may be told to fetch from a follower (KIP-392), which
has for them what it knows to be committed.
"""

import asyncio
from collections.abc import Hashable, Iterable
from typing import TypeAlias

from kafka.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    InvalidFetchSessionEpochError,
    InvalidRequestError,
    NotLeaderForPartitionError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

from broker.api import down_conversion
from broker.api.contexts import RecordContext
from broker.api.errors import code_of
from broker.api.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    CachedPartition,
    FetchSession,
    name_topic,
)
from broker.api.leader_hints import current_leader, endpoints
from broker.api.request import Api, Request
from broker.api.response import Outcome, Response
from broker.replica.delayed import DelayedFetch
from broker.replica.later import when_done
from broker.replica.manager import NO_FOLLOWER, FetchLimits, FetchResult
from broker.replica.partition import Isolation, LogEnd, PartitionRead
from pyspark_kafkalog.protocol.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_request,
)
from pyspark_kafkalog.protocol.topic_runs import MAX_VERSION_WITH_NAMES

# The first version whose clients know zstd (KIP-110).
_ZSTD_VERSION = 10
# The first version whose clients fetch from followers (KIP-392).
_FOLLOWERS_VERSION = 11
# The first version that says who leads, where the client is wrong about it (KIP-951).
_CURRENT_LEADER_VERSION = 16
_WRONG_LEADER = (FencedLeaderEpochError, NotLeaderForPartitionError)
_MAX_REQUEST_BYTES = 2 * 1024 * 1024


_Told: TypeAlias = Iterable[tuple[FetchPartition, PartitionRead | BrokerResponseError]]


class _Fetch:
    """One fetch, from its request to its answer. The request's frame is let go meanwhile."""

    __slots__ = (
        "_cached",
        "_context",
        "_epoch",
        "_limits",
        "_session",
        "_wanted",
    )

    def __init__(
        self, wanted: FetchRequest, session: FetchSession | None, context: RecordContext
    ) -> None:
        self._context = context
        self._wanted = wanted
        self._session = session
        self._epoch = 0 if session is None else session.epoch
        self._cached: list[CachedPartition] = []
        self._limits = FetchLimits(
            max_bytes=min(wanted.max_bytes, context.config.fetch_max_bytes),
            isolation=_isolation(wanted),
            zstd=wanted.version >= _ZSTD_VERSION,
            # Below that are tools, which say that they are no consumer.
            follower_id=max(wanted.replica_id, NO_FOLLOWER),
            rack=wanted.rack_id if self._may_read_followers else None,
        )

    @property
    def _may_read_followers(self) -> bool:
        return self._wanted.replica_id < 0 and self._wanted.version >= _FOLLOWERS_VERSION

    @property
    def min_bytes(self) -> int:
        """Never more than an answer may have."""
        return min(self._wanted.min_bytes, self._limits.max_bytes)

    def read(self) -> FetchResult:
        """What is there now: of every partition, or of those in which something happened."""
        replicas, metadata = self._context.replicas, self._context.metadata
        session = self._session
        if session is None:
            for wanted in self._wanted.partitions:
                name_topic(wanted, metadata)
            return replicas.fetch(self._wanted.partitions, self._limits)
        self._cached = session.pending(metadata, self._limits.isolation)
        others = len(session.partitions) - len(self._cached)
        asked = [cached.wanted for cached in self._cached]
        return replicas.fetch(asked, self._limits, others)

    def wait(self, missing_bytes: int) -> "asyncio.Future[Response]":
        """Waits from this instant on: what is appended before the loop turns must not be missed."""
        context, session = self._context, self._session
        keys: list[Hashable] = [session]
        if session is None:
            node_id = self._wanted.replica_id
            keys = [
                LogEnd(each.topic, each.partition) if node_id >= 0 else (each.topic, each.partition)
                for each in self._wanted.partitions
                # What it may not have yet is no news to it.
                if node_id < 0
                or not context.replicas.holds_back(each.topic, each.partition, node_id)
            ]
        delayed = DelayedFetch(keys, missing_bytes, self._limits.isolation)
        max_wait_ms = context.longest_wait_ms(self._wanted.max_wait_ms)
        return when_done(context.replicas, delayed, max_wait_ms, self._read_and_answer)

    def _read_and_answer(self) -> Response:
        return self.answer(self.read())

    def answer(self, result: FetchResult) -> Response:
        told: _Told
        session = self._session
        if session is not None and session.epoch != self._epoch:
            return _refused(InvalidFetchSessionEpochError())
        self._context.replicas.answered(result)
        if session is None:
            told = zip(self._wanted.partitions, result.reads, strict=True)
            is_follower = self._wanted.replica_id >= 0  # whose every fetch is whole
            if is_follower:
                self._context.replicas.sent(self._wanted.partitions, result.reads)
            if self._wanted.session_epoch == INITIAL_EPOCH and not is_follower:
                session = self._context.fetch_sessions.open(
                    self._wanted.partitions, result.reads, self._limits.isolation
                )
        else:
            told = (
                (cached.wanted, read)
                for cached, read in zip(self._cached, result.reads, strict=True)
                if cached.told(read)
            )
        session_id = NO_SESSION if session is None else session.session_id
        return _response(self._wanted.version, told, session_id, self._context)


def handle(request: Request, context: RecordContext) -> Outcome:
    wanted = decode_fetch_request(request.body, request.version)
    try:
        if wanted.replica_id >= 0 and wanted.version <= MAX_VERSION_WITH_NAMES:
            raise InvalidRequestError("brokers fetch by topic ids")
        if wanted.version < down_conversion.RECORD_BATCH_VERSION:
            return down_conversion.answer(wanted, context)
        fetch = _Fetch(wanted, _session(wanted, context), context)
    except BrokerResponseError as refusal:
        return _refused(refusal)
    result = fetch.read()
    missing_bytes = fetch.min_bytes - result.size_bytes
    done = missing_bytes <= 0 or result.urgent or wanted.max_wait_ms <= 0
    if done or not context.replicas.may_wait:
        return fetch.answer(result)
    return fetch.wait(missing_bytes)


def _isolation(wanted: FetchRequest) -> Isolation:
    return Isolation.LOG_END if wanted.replica_id >= 0 else Isolation.of(wanted.isolation_level)


def _session(wanted: FetchRequest, context: RecordContext) -> FetchSession | None:
    """The session that an incremental fetch goes on with. Raises BrokerResponseError."""
    sessions = context.fetch_sessions
    if wanted.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if wanted.session_id != NO_SESSION:
            sessions.remove(wanted.session_id)
        return None
    has_topic_ids = wanted.version > MAX_VERSION_WITH_NAMES
    session = sessions.resume(wanted.session_id, wanted.session_epoch, has_topic_ids)
    is_open = sessions.update(session, wanted.partitions, wanted.forgotten, context.metadata)
    return session if is_open else None


def _refused(refusal: BrokerResponseError) -> FetchResponse:
    return FetchResponse([], error_code=code_of(refusal))


def _response(version: int, told: _Told, session_id: int, context: RecordContext) -> Response:
    response = FetchResponse([], session_id=session_id)
    partitions = response.partitions
    leaders = []
    for wanted, read in told:
        found = _fetched(wanted, read)
        if wanted.topic_id is not None:
            found.topic_id = wanted.topic_id
            if isinstance(read, _WRONG_LEADER) and version >= _CURRENT_LEADER_VERSION:
                found.current_leader = current_leader(found.topic, found.partition, context)
                leaders.append(found.current_leader)
        partitions.append(found)
    if leaders:
        response.node_endpoints = endpoints(leaders, context)
    return response


def _fetched(wanted: FetchPartition, read: PartitionRead | BrokerResponseError) -> FetchedPartition:
    topic, partition = wanted.topic, wanted.partition
    if not isinstance(read, PartitionRead):
        if not topic and isinstance(read, UnknownTopicOrPartitionError):
            read = UnknownTopicIdError()
        return FetchedPartition(topic, partition, code_of(read), high_watermark=-1)
    return FetchedPartition(
        topic,
        partition,
        0,
        read.high_watermark,
        records=read.records,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted=[(aborted.producer_id, aborted.first_offset) for aborted in read.aborted],
        diverging_epoch=read.diverging_epoch,
        preferred_read_replica=read.preferred_replica,
    )


API = Api(
    key=1,
    min_version=0,
    max_version=18,
    handle=handle,
    context=RecordContext,
    max_request_bytes=_MAX_REQUEST_BYTES,
)
