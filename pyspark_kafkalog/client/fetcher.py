"""Reads a range of offsets of one partition, as the record batches that lie on the broker's disk.

A fetch is sent before the answer to the one before is handed out, so the kernel receives while the
caller decodes; there is no thread. Where the answer has not even begun to arrive when the caller is
done, nor soon after, the network's round trip takes longer than reading, and the next fetch asks
for twice as much, up to LARGEST_FETCH_BYTES: what is under way has to last for a round trip. What
is handed out is a view of the one buffer that the answer was received into. Memory: the answer that
the caller holds and the one being received, each of FETCH_BYTES where answers come in time, of what
`max.partition.fetch.bytes` says where it is set, or one larger batch; and what the kernel buffers.

Follows the leader when it moves, and where it sends its readers to a replica (KIP-392). Waits out
errors that pass, for at most `poll_timeout_ms` without progress. What came damaged, by its CRC or
by offsets that cannot be, is asked for again on another connection; what to ask for, and what to
believe, is decided in `fetch_state`.

Versions 4 to 13 of Fetch, without fetch sessions; from 13 on the topic is asked for by its id, so
that one which was created again under its name is not mistaken for it (KIP-516). Looks at batch
headers only, never at records: what lies below the range's start or beyond its end is the caller's
to skip.

Blocking; one thread at a time.
"""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from uuid import UUID

from kafka.errors import (
    CorruptRecordError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    NoError,
    OffsetOutOfRangeError,
)
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    BrokerFailedError,
    Cluster,
    read_error,
)
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.epoch_ends import epoch_ends
from pyspark_kafkalog.client.fetch_state import FetchState
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DataLossError,
    FetchTimeoutError,
    LogTruncatedError,
    TopicRecreatedError,
    UnknownTopicError,
)
from pyspark_kafkalog.protocol import fetch
from pyspark_kafkalog.protocol.topic_runs import MAX_VERSION_WITH_NAMES

POLL_TIMEOUT_MS = 120_000
"""Spark's `kafkaConsumer.pollTimeoutMs`: how long a partition may show no progress."""

FETCH_BYTES = 4 << 20
"""Most bytes of an answer, unless `max.partition.fetch.bytes` says it.

Measured against Apache Kafka with 100 B and 1 kB records: throughput rises up to 2 to 4 MiB, is
flat to 8 and falls from 16 MiB on, where buffers no longer fit the caches."""
LARGEST_FETCH_BYTES = 2 * FETCH_BYTES
"""Most bytes of an answer where answers come late. 8 MiB in each 50 ms are 160 MB/s, about what a
Spark task takes."""

_LATE_S = 0.01
"""How long an answer may let its reader wait: more than a broker near by takes, a busy one too."""
_MIN_VERSION = 4
_MAX_VERSION = 13
_EMPTY_ANSWERS_THAT_MEAN_A_GAP = 2
_ATTEMPTS_AT_DAMAGED = 3


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """Whole record batches of one partition, in offset order.

    `records` may begin before `start_offset` and reach beyond the range that was asked for: a
    broker sends batches whole. The next FetchedRecords begins at `next_offset`. `aborted` lists
    (producer id, first offset) of transactions whose records are to be skipped; it is empty unless
    `isolation.level` is read_committed. `leader_epoch` is that of the last batch, -1 before
    magic 2.
    """

    records: memoryview
    start_offset: int
    next_offset: int
    aborted: list[tuple[int, int]]
    leader_epoch: int = -1


class Fetcher:
    """The records of `topic_partition` from `start_offset` up to, not including, `until_offset`.

    `position` is the next offset that was not handed out yet; it moves past `until_offset` where
    the last batch does. `topic_id` is the topic's when the range was planned; without it the one
    that it has when it is first asked for. `leader_epoch` is that of the partition's leader then:
    batches of a later one mean that the log was cut off since. One Fetcher is iterated once.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic_partition: TopicPartition,
        start_offset: int,
        until_offset: int,
        poll_timeout_ms: int = POLL_TIMEOUT_MS,
        topic_id: UUID | None = None,
        leader_epoch: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._topic_partition = topic_partition
        self._poll_timeout_ms = poll_timeout_ms
        self._patience = Deadline(poll_timeout_ms)
        given_bytes = self._config.max_partition_fetch_bytes
        largest_bytes = max(FETCH_BYTES, min(LARGEST_FETCH_BYTES, self._config.fetch_max_bytes))
        self._state = FetchState(
            start_offset, until_offset, given_bytes or FETCH_BYTES, given_bytes or largest_bytes
        )
        self._pause_ms = self._config.retry_backoff_ms
        self._empty_answers = 0
        self._connection: Connection | None = None
        self._sent: tuple[Connection, int, int] | None = None
        self._is_ahead = False
        self._replica: int | None = None
        """The broker that the leader sent this reader to."""
        self._trouble = ""
        self._too_short: tuple[int, int] | None = None
        self._topic_id = topic_id
        self._leader_epoch = leader_epoch
        self._damaged = 0
        self._is_renewed = False

    @property
    def position(self) -> int:
        return self._state.position

    def records(self) -> Generator[FetchedRecords, None, None]:
        """Yields until the range's end is reached.

        Raises DataLossError where offsets of the range are gone, also when the log ends below them
        for `poll_timeout_ms`; TopicRecreatedError; LogTruncatedError; FetchTimeoutError without an
        answer for so long; BrokersUnreachableError when no broker was reached for as long;
        CorruptRecordError where records come damaged again and again; and the broker's own error
        (`kafka.errors`) where it refuses, such as TopicAuthorizationFailedError.
        """
        try:
            while not self._state.is_done:
                fetched = self._next()
                if fetched is not None:
                    # The caller may take long: its time is not the broker's.
                    yield fetched
                    self._patience = Deadline(self._poll_timeout_ms)
        finally:
            self._abandon()

    def _next(self) -> FetchedRecords | None:
        """One answer; None where there was nothing in it, or an error that passes."""
        try:
            if self._sent is None:
                self._send(self._broker())
            connection, found = self._receive()
            error_type = read_error(found.error_code)
            if error_type is NoError:
                return self._accept(found, connection)
            self._check(error_type)
        except (CorruptRecordError, KafkaProtocolError) as error:
            self._ask_anew_for_damaged(error)
        except BrokersUnreachableError as error:
            if self._patience.expired and not self._trouble:
                raise
            self._wait_after(str(error))
        except UnknownTopicError:
            raise self._gone("it does not exist any more") from None
        except KafkaError as error:
            if not (error.retriable or isinstance(error, OffsetOutOfRangeError)):
                raise
            self._abandon()
            self._cluster.forget(self._topic_partition)
            self._wait_after(_words(error))
        return None

    def _broker(self) -> Connection:
        """The leader, or the replica that it sent this reader to."""
        deadline = self._patience.part(self._config.request_timeout_ms)
        connection = self._cluster.leader(self._topic_partition, deadline)
        self._check_topic_id()
        if self._replica is None:
            return connection
        return self._cluster.replica(self._replica, deadline)

    def _check_topic_id(self) -> None:
        """Raises TopicRecreatedError if the topic is another one than at first."""
        now = self._cluster.topic_id(self._topic_partition.topic)
        if self._topic_id is None:
            self._topic_id = now
        elif now not in (None, self._topic_id):
            raise TopicRecreatedError(
                f"Topic {self._topic_partition.topic} was deleted and created again while its "
                f"offsets {self.position} up to {self._state.until_offset} of partition "
                f"{self._topic_partition.partition} were to be read: they are gone, and mean other "
                "records now."
            )

    def _ask_anew_for_damaged(self, error: KafkaError) -> None:
        """Also a healthy disk and wire fail once; what is damaged on disk stays so."""
        self._damaged += 1
        if self._damaged >= _ATTEMPTS_AT_DAMAGED:
            raise type(error)(f"{self} at offset {self.position}: {_words(error)}") from error
        self._abandon()
        if self._connection is not None:
            # What else arrives on it is as doubtful.
            self._connection.close()
        self._cluster.forget(self._topic_partition)
        self._wait_after(_words(error))

    def _send(self, connection: Connection) -> None:
        deadline = self._patience.part(self._config.request_timeout_ms)
        self._connection = connection
        newest = MAX_VERSION_WITH_NAMES if self._topic_id is None else _MAX_VERSION
        version = connection.version(fetch.API_KEY, newest, _MIN_VERSION)
        ask = fetch.FetchPartition(
            self._topic_partition.topic,
            self._topic_partition.partition,
            self.position,
            self._state.ask_bytes(),
            topic_id=self._topic_id,
        )
        request = fetch.FetchRequest(
            version,
            min(self._config.fetch_max_wait_ms, deadline.remaining_ms),
            self._config.fetch_min_bytes,
            [ask],
            max(self._config.fetch_max_bytes, ask.max_bytes),
            int(self._config.isolation_level),
        )
        body = fetch.encode_fetch_request(request)
        sent = connection.send(fetch.API_KEY, version, [body], deadline)
        self._sent = (connection, sent, version)

    def _receive(self) -> tuple[Connection, fetch.FetchedPartition]:
        assert self._sent is not None
        connection, sent, version = self._sent
        self._sent = None
        if self._is_ahead and not connection.has_answer_to(sent, _LATE_S):
            self._state.came_late()
        self._is_ahead = False
        deadline = self._patience.part(self._config.request_timeout_ms)
        response = fetch.decode_fetch_response(connection.receive(sent, deadline), version)
        if response.error_code:
            # Of the whole request, which asked for this partition alone.
            whole = fetch.FetchedPartition(
                self._topic_partition.topic,
                self._topic_partition.partition,
                response.error_code,
                high_watermark=-1,
            )
            return connection, whole
        by_name = version <= MAX_VERSION_WITH_NAMES
        for found in response.partitions:
            is_topic = (
                found.topic == self._topic_partition.topic
                if by_name
                else found.topic_id == self._topic_id
            )
            if is_topic and found.partition == self._topic_partition.partition:
                return connection, found
        raise KafkaConnectionError(f"{connection.address} left the partition out of its answer")

    def _accept(
        self, found: fetch.FetchedPartition, connection: Connection
    ) -> FetchedRecords | None:
        """Moves on by what was found, and asks for what comes next before it is handed out."""
        records = memoryview(b"") if found.records is None else found.records
        assert isinstance(records, memoryview)
        if not records:
            # The next answer is the leader's, which may know a better replica by now.
            was_replica, self._replica = self._replica, None
            if found.preferred_read_replica < 0:
                self._accept_nothing(found)
            elif was_replica is None:
                self._replica = found.preferred_read_replica
            else:
                self._wait_after(f"broker {was_replica} sends its readers on to another one")
            return None
        start_offset = self.position
        whole = self._state.look(records)
        if whole is None:
            return None
        if whole.base_offsets[0] > start_offset and found.log_start_offset > start_offset:
            # Retention was faster than this read, and the broker answered with what came next.
            bounds = found.log_start_offset, found.high_watermark
            raise self._gone(f"it begins at offset {found.log_start_offset} now", *bounds)
        if self._leader_epoch is not None and self._state.newest_epoch(whole) > self._leader_epoch:
            self._check_kept(self._leader_epoch)
        self._empty_answers = self._damaged = 0
        self._is_renewed = False
        self._trouble = ""
        self._pause_ms = self._config.retry_backoff_ms
        self._state.move_past(whole)
        if not self._state.is_done:
            self._patience = Deadline(self._poll_timeout_ms)
            # What was received is handed out first: the next turn meets the error anew.
            with contextlib.suppress(KafkaError):
                self._send(connection)
                self._is_ahead = True
        batches = records[: whole.size_bytes]
        return FetchedRecords(
            batches, start_offset, whole.next_offset, found.aborted, whole.epochs[-1]
        )

    def _check_kept(self, leader_epoch: int) -> None:
        """Raises LogTruncatedError if others have offsets of the range since `leader_epoch`: it
        holds batches of a leader that was elected later, which one in sync does not change."""
        partition = self._topic_partition
        end = epoch_ends(self._cluster, {partition: leader_epoch}).get(partition)
        if end is not None and end < self._state.until_offset:
            error = LogTruncatedError(
                f"Partition {partition.partition} of topic {partition.topic} was cut off at offset "
                f"{end} while its offsets up to {self._state.until_offset} were to be read, and "
                "holds other records there now (an election of a replica that was not in sync, or "
                "a power loss). Read again."
            )
            error.log_end_offset = end
            raise error
        self._leader_epoch = None

    def _accept_nothing(self, found: fetch.FetchedPartition) -> None:
        """No batch: none yet, or none any more."""
        reaches = found.high_watermark
        if self._config.isolation_level and found.last_stable_offset >= 0:
            reaches = min(reaches, found.last_stable_offset)
        if reaches < self._state.until_offset:
            if self._too_short is not None:
                self._cluster.ask_all()
            bounds = found.log_start_offset, reaches
            self._wait_after(f"it ends at offset {reaches} now", bounds)
            return
        # Compaction took all that was left, or the broker could not read it in time.
        self._empty_answers += 1
        if self._empty_answers < _EMPTY_ANSWERS_THAT_MEAN_A_GAP:
            self._wait_after("an answer came without records")
        elif self._is_remote():
            self._wait_after("the brokers' remote storage gave none")
        else:
            self._state.skip_rest()

    def _is_remote(self) -> bool:
        """Whether the position lies in remote storage (KIP-405). A broker answers empty, without an
        error, where that takes longer than `remote.fetch.max.wait.ms` or is over its quota."""
        try:
            local = self._cluster.list_offsets([self._topic_partition], EARLIEST_LOCAL).get(
                self._topic_partition
            )
        except KafkaError as error:
            if error.retriable:
                raise
            return False  # brokers that know no such thing
        return local is not None and self.position < local.offset

    def _check(self, error: type[KafkaError]) -> None:
        """Raises a partition's error, or what it turns out to be."""
        if error is CorruptRecordError:
            raise error("the broker found its records damaged")
        if error is OffsetOutOfRangeError:
            self._check_in_range()
        if error is BrokerFailedError:
            raise error(f"UNKNOWN_SERVER_ERROR{error.hint}")
        if error.retriable or error is OffsetOutOfRangeError:
            raise error(error.__name__)
        raise error(f"{self} at offset {self.position}")

    def _wait_after(self, trouble: str, too_short: tuple[int, int] | None = None) -> None:
        """Waits before the next attempt; `too_short` are the bounds of a log that lacks the rest.

        The end of patience cuts the last attempt short: the one before it says more.
        """
        if self._patience.was_slept_through and not self._is_renewed:
            # This process was suspended: the brokers were not asked for all that time.
            self._patience, self._is_renewed = Deadline(self._poll_timeout_ms), True
        if not (self._patience.expired and self._trouble):
            self._trouble, self._too_short = trouble, too_short
        if self._patience.expired:
            if self._too_short is None:
                raise self._timed_out(self._trouble)
            # The range was planned from what the log held then, and a leader that was just elected
            # catches up sooner: what is missing does not come back.
            raise self._gone(self._trouble, *self._too_short)
        self._patience.pause(self._pause_ms / 1000)
        self._pause_ms = min(2 * self._pause_ms, self._config.retry_backoff_max_ms)

    def _abandon(self) -> None:
        self._replica = None
        if self._sent is not None:
            connection, sent, _ = self._sent
            self._sent = None
            connection.abandon(sent)

    def __str__(self) -> str:
        return f"Fetch of {self._topic_partition.topic}-{self._topic_partition.partition}"

    def _timed_out(self, why: str) -> FetchTimeoutError:
        return FetchTimeoutError(
            f"Partition {self._topic_partition.partition} of topic {self._topic_partition.topic} "
            f"gave no records from offset {self.position} on for {self._poll_timeout_ms} ms, "
            f"though the range reaches up to {self._state.until_offset}: {why}."
        )

    def _check_in_range(self) -> None:
        """Raises DataLossError unless the log does hold the position.

        It does where the broker that refused it is no leader any more, or was not one yet, and
        where a topic was recreated and grew in between.
        """
        self._cluster.forget(self._topic_partition)
        start, end = self._bounds()
        if not start <= self.position <= end:
            self._cluster.ask_all()
            start, end = self._bounds()
        if not start <= self.position <= end:
            what_is = f"it now holds offsets {start} up to, not including, {end}"
            raise self._gone(what_is, start, end)

    def _bounds(self) -> tuple[int, int]:
        first = self._cluster.list_offsets([self._topic_partition], EARLIEST)
        self._check_topic_id()
        last = self._cluster.list_offsets([self._topic_partition], LATEST)
        return first[self._topic_partition].offset, last[self._topic_partition].offset

    def _gone(
        self, what_is: str, log_start_offset: int = -1, log_end_offset: int = -1
    ) -> DataLossError:
        error = DataLossError(
            f"Offsets {self.position} up to {self._state.until_offset} of partition "
            f"{self._topic_partition.partition} of topic {self._topic_partition.topic} are gone: "
            f"{what_is}. Retention may have deleted them, or the topic was recreated."
        )
        error.log_start_offset, error.log_end_offset = log_start_offset, log_end_offset
        return error


def _words(error: KafkaError) -> str:
    return (", ".join(map(str, error.args)) or type(error).__name__).rstrip(".")
