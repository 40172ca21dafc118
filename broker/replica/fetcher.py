"""ReplicaFetcher: keeps the partitions that this broker follows equal to one leader's.

Owns: the loop of fetches to one broker, and what became of each partition: fetched from, held back
for a while after an error, or stopped until the controller says more. Batches are appended as they
came, with the leader's offsets and epochs; where the logs have diverged, ours is cut first
(`truncation`). A partition whose leader epoch or log end has changed since it was asked for is left
alone. Called by: the event loop's thread; appends of many bytes, and cuts, run in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from kafka.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    KafkaConnectionError,
    KafkaProtocolError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    for_code,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.structs import TopicPartition

from broker.cluster.to_brokers import Connection
from broker.log.log import Log
from broker.log.validator import OffsetsOutOfOrderError
from broker.replica.partition import EARLIEST, LATEST, NO_EPOCH, Partition
from broker.replica.truncation import truncation_offset
from pyspark_kafkalog.protocol.fetch import (
    API_KEY,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from pyspark_kafkalog.record.batch import batches

_log = logging.getLogger(__name__)

# Those of inter.broker.protocol.version 3.9.
_FETCH_VERSION: Final = 17
_LIST_OFFSETS_VERSION: Final = 9
_LEAST_BACKOFF_MS: Final = 20
_HELD_OFF_S: Final = 0.1
"""After so long it is seen whether a throttled partition may be asked for again."""
_ASIDE_BYTES: Final = 512 << 10
"""From so many bytes on an append is worth a thread."""

T = TypeVar("T")


class LeaderConnection(Connection, Protocol):
    """`exchange` raises KafkaConnectionError, too."""

    async def exchange(self, api_key: int, version: int, body: Any) -> memoryview: ...


class Replicas(Protocol):
    """What a fetcher needs of the ReplicaManager."""

    def follow_leader(
        self, partition: Partition, high_watermark: int, log_start_offset: int
    ) -> None: ...

    def holds_off(self, partition: Partition) -> bool: ...

    def received(self, partition: Partition, size_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class FetcherOptions:
    """The replica.fetch.* properties."""

    max_bytes: int
    response_max_bytes: int
    min_bytes: int
    wait_max_ms: int
    backoff_ms: int


@dataclass(slots=True)
class _Followed:
    """A partition in one leader epoch, and how it stands with its fetches."""

    partition: Partition
    not_before_s: float = 0.0
    backoff_ms: int = 0
    is_stopped: bool = False
    has_joined: bool = False
    """Whether what its log ends with came from this leader."""
    lag: int | None = None
    """How many offsets of what was committed its log lacked when it was last fetched."""

    def hold_back(self, now_s: float, max_ms: int) -> None:
        """Not asked for a while, each time for longer: a leader may not know yet that it is one."""
        self.backoff_ms = min(max_ms, max(_LEAST_BACKOFF_MS, 2 * self.backoff_ms))
        self.not_before_s = now_s + self.backoff_ms / 1000


class ReplicaFetcher:
    """Fetches from one leader, as long as there is something to follow."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        connection: LeaderConnection,
        options: FetcherOptions,
        replicas: Replicas,
    ) -> None:
        """`node_id` and `broker_epoch` are this broker's, and so are `replicas`."""
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._connection = connection
        self._options = options
        self._replicas = replicas
        self._followed: dict[TopicPartition, _Followed] = {}
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_reached = True
        self._is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_idle(self) -> bool:
        return not self._followed

    @property
    def max_lag(self) -> int:
        """The most offsets that a partition lacks of what was committed when it was last fetched.
        Any thread."""
        return max((each.lag or 0 for each in [*self._followed.values()]), default=0)

    def add(self, partition: Partition) -> None:
        """Follows it from now on, or goes on in a new leader epoch."""
        self._followed[partition.topic_partition] = _Followed(partition)
        self._changed.set()

    async def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Returns when nothing is written any more to these."""
        for topic_partition in topic_partitions:
            self._followed.pop(topic_partition, None)
        async with self._writing:
            pass

    async def close(self) -> None:
        """Returns when nothing is written any more."""
        self._is_closed = True
        self._followed.clear()
        async with self._writing:
            self._task.cancel()
        self._connection.close()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._is_closed:
            due = self._due()
            if not due:
                await self._wait()
                continue
            try:
                await self._fetch(due)
            except (KafkaConnectionError, KafkaProtocolError, BrokerResponseError) as error:
                if self._is_reached:
                    _log.warning("fetcher.not_reached reason=%r", str(error))
                self._is_reached = False
                await asyncio.sleep(self._options.backoff_ms / 1000)
            except Exception:
                # A bug at one answer: without this task nothing would be followed.
                _log.exception("fetcher.failed")
                await asyncio.sleep(self._options.backoff_ms / 1000)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _due(self) -> list[_Followed]:
        now_s = self._now_s()
        due = []
        for each in self._followed.values():
            if each.is_stopped or each.not_before_s > now_s:
                continue
            if each.lag != 0 and self._replicas.holds_off(each.partition):
                each.not_before_s = now_s + _HELD_OFF_S
            else:
                due.append(each)
        return due

    async def _wait(self) -> None:
        """Until a partition comes, or its time."""
        times = [each.not_before_s for each in self._followed.values() if not each.is_stopped]
        wait_s = max(0, min(times) - self._now_s()) if times else None
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), wait_s)
        except asyncio.TimeoutError:
            return

    async def _fetch(self, due: list[_Followed]) -> None:
        options = self._options
        for each in due:
            if each.partition.log.leader_epochs.latest_epoch is None and not each.has_joined:
                await self._cut_to_committed(each)
        asked = [self._ask(each.partition) for each in due]
        request = FetchRequest(
            _FETCH_VERSION,
            options.wait_max_ms,
            options.min_bytes,
            asked,
            max_bytes=options.response_max_bytes,
            replica_id=self._node_id,
            replica_epoch=self._broker_epoch(),
        )
        body = encode_fetch_request(request)
        answer = await self._connection.exchange(API_KEY, _FETCH_VERSION, body)
        response = decode_fetch_response(answer, _FETCH_VERSION)
        if response.error_code:
            raise for_code(response.error_code)()
        if not self._is_reached:
            _log.info("fetcher.goes_on")
        self._is_reached = True
        asked_of = {
            (ask.topic_id, ask.partition): (each, ask) for each, ask in zip(due, asked, strict=True)
        }
        for found in response.partitions:
            if (known := asked_of.get((found.topic_id, found.partition))) is not None:
                await self._take(*known, found)

    async def _cut_to_committed(self, followed: _Followed) -> None:
        """Of a log without epochs, which nothing tells from the leader's."""
        async with self._writing:
            partition = followed.partition
            is_followed = self._followed.get(partition.topic_partition) is followed
            if is_followed and partition.high_watermark < partition.log.log_end_offset:
                try:
                    await _in_thread(lambda: partition.log.truncate_to(partition.high_watermark))
                except (KafkaStorageError, OSError) as error:
                    self._say(partition, "stopped", error)
                    followed.is_stopped = True

    def _ask(self, partition: Partition) -> FetchPartition:
        log = partition.log
        last_epoch = log.leader_epochs.latest_epoch
        topic, index = partition.topic_partition
        return FetchPartition(
            topic,
            index,
            log.log_end_offset,
            self._options.max_bytes,
            partition.leader_epoch,
            NO_EPOCH if last_epoch is None else last_epoch,
            log.log_start_offset,
            partition.topic_id,
        )

    async def _take(
        self, followed: _Followed, ask: FetchPartition, found: FetchedPartition
    ) -> None:
        """One partition's part of an answer. What is wrong with it is no other's trouble."""
        if not self._is_as_asked(followed, ask):
            return
        try:
            if found.error_code == OffsetOutOfRangeError.errno:
                await self._start_again(followed, ask)
                return
            if found.error_code:
                raise for_code(found.error_code)()
            async with self._writing:
                if self._is_as_asked(followed, ask):
                    await self._follow(followed, found)
        except (FencedLeaderEpochError, KafkaStorageError, OSError) as error:
            # The one: the controller will say who leads. Else the disk takes no more.
            self._say(followed.partition, "stopped", error)
            followed.is_stopped = True
        except (
            BrokerResponseError,
            KafkaConnectionError,
            KafkaProtocolError,
            OffsetsOutOfOrderError,
        ) as error:
            self._say(followed.partition, "held_back", error)
            followed.hold_back(self._now_s(), self._options.backoff_ms)
        except Exception:
            _log.exception(
                "fetcher.failed topic=%r partition=%d", *followed.partition.topic_partition
            )
            followed.hold_back(self._now_s(), self._options.backoff_ms)

    def _is_as_asked(self, followed: _Followed, ask: FetchPartition) -> bool:
        """Whether an answer is still about this leader epoch, and the log as it is."""
        partition = followed.partition
        is_followed = self._followed.get(partition.topic_partition) is followed
        return is_followed and partition.log.log_end_offset == ask.fetch_offset

    def _say(self, partition: Partition, event: str, error: Exception) -> None:
        _log.warning(
            "fetcher.%s topic=%r partition=%d reason=%r", event, *partition.topic_partition, error
        )

    async def _follow(self, followed: _Followed, found: FetchedPartition) -> None:
        partition = followed.partition
        log = partition.log
        if found.diverging_epoch is not None:
            offset = truncation_offset(log, partition.high_watermark, found.diverging_epoch)
            await _in_thread(lambda: log.truncate_to(offset))
            followed.has_joined = False
            self._replicas.follow_leader(partition, partition.high_watermark, log.log_start_offset)
            return
        records = found.records
        if records is not None and len(records):
            assert isinstance(records, memoryview)
            await self._append(followed, _of_leader(records, partition.leader_epoch))
        self._replicas.follow_leader(partition, found.high_watermark, found.log_start_offset)
        followed.backoff_ms = 0
        followed.lag = max(0, found.high_watermark - log.log_end_offset)

    async def _append(self, followed: _Followed, records: memoryview) -> None:
        partition = followed.partition
        if not len(records):
            raise KafkaProtocolError("its leader has sent what only a later leader can have")
        if records.nbytes < _ASIDE_BYTES:
            _append_copy(partition.log, records)
        else:
            await _in_thread(lambda: _append_copy(partition.log, records))
        if partition.log.awaits_flush:
            # What the next fetch says is here the leader acknowledges, as its policy asks for.
            await _in_thread(partition.log.flush)
        followed.has_joined = True
        # The others first, next time: an answer holds so much, and this one may lack more than
        # all of them together. It may have been removed meanwhile.
        place = partition.topic_partition
        if place in self._followed:
            self._followed[place] = self._followed.pop(place)
        self._replicas.received(partition, records.nbytes)

    async def _start_again(self, followed: _Followed, ask: FetchPartition) -> None:
        """Our log ends above the leader's end, or below its start; or it is neither, and the leader
        knows nothing of our last epoch. Nobody waits while the leader is asked."""
        partition = followed.partition
        log, own_end_offset = partition.log, ask.fetch_offset
        end_offset = await self._leader_offset(partition, LATEST)
        start_offset = 0
        if end_offset >= own_end_offset:
            start_offset = await self._leader_offset(partition, EARLIEST)
        async with self._writing:
            if not self._is_as_asked(followed, ask):
                return
            if end_offset < own_end_offset:
                await _in_thread(lambda: log.truncate_to(end_offset))
            elif start_offset > own_end_offset:
                await _in_thread(lambda: log.restart_at(start_offset))
            if log.log_end_offset == own_end_offset:
                followed.hold_back(self._now_s(), self._options.backoff_ms)
            followed.has_joined = False
            self._replicas.follow_leader(partition, partition.high_watermark, log.log_start_offset)

    async def _leader_offset(self, partition: Partition, which: int) -> int:
        topic, index = partition.topic_partition
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        message = ListOffsetsRequest(
            replica_id=self._node_id,
            isolation_level=0,
            topics=[
                topic_class(
                    name=topic,
                    partitions=[
                        topic_class.ListOffsetsPartition(
                            partition_index=index,
                            current_leader_epoch=partition.leader_epoch,
                            timestamp=which,
                        )
                    ],
                )
            ],
        )
        response = await self._connection.request(
            message, _LIST_OFFSETS_VERSION, ListOffsetsResponse
        )
        (answer,) = response.topics[0].partitions
        if answer.error_code:
            raise for_code(answer.error_code)()
        return int(answer.offset)


def _of_leader(records: memoryview, leader_epoch: int) -> memoryview:
    """The batches that the leader of that epoch can have. It sends what its file holds: where it
    follows another one by now, that may be the next leader's, behind what it has cut off meanwhile
    and we have not."""
    for header in batches(records):
        if header.partition_leader_epoch > leader_epoch:
            return records[: header.position]
    return records


def _append_copy(log: Log, records: memoryview) -> None:
    """A leader's log may begin in the middle of a batch (DeleteRecords), which comes whole: ours,
    still empty, begins with it then."""
    try:
        log.append_as_follower(records)
    except OffsetsOutOfOrderError as error:
        is_empty = log.log_start_offset == log.log_end_offset
        if not is_empty or not 0 <= error.offset < log.log_end_offset:
            raise
        log.restart_at(error.offset)
        log.append_as_follower(records)


async def _in_thread(function: Callable[[], T]) -> T:
    """Waits for it also when who waits is cancelled: nobody else may write meanwhile."""
    working = asyncio.get_running_loop().run_in_executor(None, function)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
