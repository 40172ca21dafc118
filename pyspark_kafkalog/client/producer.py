"""Writes encoded record batches to partition leaders, each once and in order.

Takes batches that `record.batch.seal` can close: whole, unsealed, one partition's. With idempotence
(the default) each gets the producer's id and its place in the partition's sequence, so that a batch
may be sent again without being stored twice (KIP-98). Up to five requests are under way on each
connection; after an error that passes, all unacknowledged batches of the partition are sent again
in sequence and one at a time, once the answers to those under way are in.

There is no thread: `send` drives the sockets when requests are full or memory is used up, `flush`
until all is acknowledged. Memory: `buffer.memory` bytes of unacknowledged batches. After an error
that does not pass the producer refuses everything, since a gap in a sequence cannot be filled.

In a transaction (KIP-98) batches carry its mark, and a partition is added to it before its first
batch is sent; whoever made the producer begins and ends it (`client.transaction`).

Blocking; one thread at a time. Never encodes, never chooses a partition.
"""

import select
import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NamedTuple

from kafka.errors import (
    CorruptRecordError,
    DuplicateSequenceNumberError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
    for_code,
)
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.transaction import ProducerIdentity, Transactions
from pyspark_kafkalog.errors import (
    BrokersUnreachableError,
    DeliveryError,
    DeliveryTimeoutError,
    KafkalogError,
    MessageTooLargeError,
)
from pyspark_kafkalog.protocol import produce
from pyspark_kafkalog.protocol.topic_runs import MAX_VERSION_WITH_NAMES
from pyspark_kafkalog.record.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    mark_transactional,
    read_header,
    seal,
)

_MIN_VERSION = 3
_TRANSACTION_MAX_VERSION = 11
"""The newest whose batches open no transaction by themselves (KIP-890): one that comes after its
transaction was aborted is refused, where the rest would be taken for the whole."""
_INIT_PRODUCER_ID_MAX_VERSION = 4
_SEQUENCES = 1 << 31
_LARGEST_BATCH_BYTES = (1 << 31) - 1
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class _Batch:
    """One sealed batch on its way; `number` is its place among its partition's batches."""

    __slots__ = ("attempts", "data", "deadline", "error", "number")

    def __init__(self, data: bytearray, number: int) -> None:
        self.data = data
        self.number = number
        self.attempts = 0
        self.error: Exception | None = None
        self.deadline: Deadline | None = None


class _Partition:
    """One partition's batches: `waiting` to be sent, then `in_flight`, both in sequence.

    A new batch follows others that are in flight only where each of these is sent for the first
    time. In flight together are then at most five that follow each other in sequence, and no batch
    is sent while one that is five before it may have to be sent again: a leader knows the last five
    (one, if it was restarted since), and refuses what was before them. The partition's first batch
    is in flight alone, as a leader that does not know the producer may take any for its first.
    """

    __slots__ = (
        "added",
        "connection",
        "in_flight",
        "next_number",
        "not_before_s",
        "topic_partition",
        "waiting",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.waiting: deque[_Batch] = deque()
        self.in_flight: deque[_Batch] = deque()
        self.connection: Connection | None = None
        self.next_number = 0
        self.not_before_s = 0.0
        self.added = False

    def may_send(self) -> bool:
        """Whether the first waiting batch may go now, without overtaking one before it."""
        if not self.waiting or time.monotonic() < self.not_before_s:
            return False
        if not self.in_flight:
            return True
        ahead, batch = self.in_flight[0], self.waiting[0]
        return ahead.number > 0 and ahead.attempts == 1 and batch.attempts == 0

    @property
    def oldest(self) -> _Batch | None:
        """The first unacknowledged batch, whose deadline is the next."""
        if self.in_flight:
            return self.in_flight[0]
        return self.waiting[0] if self.waiting else None

    def put_back(self, batch: _Batch) -> None:
        """Returns an unacknowledged batch to its place among the waiting."""
        self.in_flight.remove(batch)
        later = 0
        while later < len(self.waiting) and self.waiting[later].number < batch.number:
            later += 1
        self.waiting.insert(later, batch)


class ProducerNumbers:
    """A producer id, once it is given, and the sequence number that comes next in each partition.

    What a Producer leaves with all of its batches acknowledged, another one on the same cluster may
    go on with: brokers remember each id for a day, in each partition that it wrote to. Not after an
    error, nor where a connection was lost: where a cluster was set up anew in the meantime, its
    brokers give the id to somebody else.
    """

    __slots__ = ("identity", "next_sequences")

    def __init__(self) -> None:
        self.identity: tuple[int, int] | None = None
        self.next_sequences: dict[TopicPartition, int] = {}


class _Sent(NamedTuple):
    """A request under way; `due` is when its answer has to be there."""

    correlation_id: int
    version: int
    due: Deadline
    batches: list[tuple[_Partition, _Batch]]


class Producer:
    """A producer on its own or on a given cluster; a context manager that flushes and closes.

    Leaving the context by an exception closes without flushing. Raises DeliveryError and its kinds
    from `send` and `flush` alike: an error concerns whatever was sent before.
    """

    def __init__(
        self,
        cluster: Cluster | ClientConfig,
        transaction: tuple[Transactions, ProducerIdentity] | None = None,
        is_idempotent: bool = True,
        numbers: ProducerNumbers | None = None,
    ) -> None:
        """Not `is_idempotent`: a batch may be there twice, and no producer id is taken for it.
        `numbers` are those to go on with, outside of transactions."""
        self.last_written: tuple[TopicPartition, int] | None = None
        """Where a batch that was acknowledged lies, if the broker said so."""
        self._transaction = transaction
        self._owns_cluster = isinstance(cluster, ClientConfig)
        self._cluster = Cluster(cluster) if isinstance(cluster, ClientConfig) else cluster
        self._config = self._cluster.config
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._under_way: dict[Connection, deque[_Sent]] = {}
        self._waiting_bytes = 0
        self._unacknowledged_bytes = 0
        self._numbers = ProducerNumbers() if numbers is None else numbers
        if transaction is not None:
            self._numbers.identity = transaction[1].producer_id, transaction[1].epoch
        self._is_numbered = transaction is not None or (
            is_idempotent and self._config.enable_idempotence
        )
        self._failure: Exception | None = None
        self._dispatched_s = 0.0

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close_cluster()

    def partitions_for(self, topic: str) -> list[int]:
        """The topic's partitions; asks the brokers to create it where they do that by themselves.

        Raises UnknownTopicError.
        """
        return self._cluster.topics([topic], create=True)[topic]

    def largest_batch_bytes(self, topic: str) -> int:
        """What neither `max.request.size` nor the topic's max.message.bytes refuses.

        The former alone where the brokers do not tell the latter, for want of a right.
        """
        largest = admin.topic_property(self._cluster, topic, "max.message.bytes")
        return min(int(largest or _LARGEST_BATCH_BYTES), self._config.max_request_size)

    def send(self, topic_partition: TopicPartition, batch: bytearray) -> None:
        """Hands over one unsealed batch, which belongs to the producer from now on.

        Returns when it is queued, maybe not sent; waits for acknowledgements while
        `buffer.memory` or the window of requests is used up.
        """
        self._check_usable()
        header = read_header(batch)
        if header.size_bytes != len(batch):
            raise ValueError(f"{len(batch)} bytes are not one record batch of {header.size_bytes}")
        if len(batch) > self._config.max_request_size:
            raise MessageTooLargeError(
                f"A batch of {len(batch)} bytes for {_name(topic_partition)} exceeds "
                f"kafka.max.request.size={self._config.max_request_size}. Raise that (and the "
                "topic's max.message.bytes), or write smaller records."
            )
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = self._partitions[topic_partition] = _Partition(topic_partition)
        if self._transaction is not None:
            mark_transactional(batch)
        if self._is_numbered:
            sequence = self._numbers.next_sequences.get(topic_partition, 0)
            seal(batch, *self._identity(), sequence)
            records = header.last_offset_delta + 1
            self._numbers.next_sequences[topic_partition] = (sequence + records) % _SEQUENCES
        else:
            seal(batch, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        partition.waiting.append(_Batch(batch, partition.next_number))
        partition.next_number += 1
        self._waiting_bytes += len(batch)
        self._unacknowledged_bytes += len(batch)
        # One request holds one batch of a partition: where a second waits, waiting gains nothing.
        if self._waiting_bytes >= self._config.max_request_size or len(partition.waiting) > 1:
            self._drive(self._config.buffer_memory, everything=False)

    def flush(self) -> None:
        """Returns when every batch is acknowledged; raises DeliveryError when one cannot be."""
        self._check_usable()
        self._drive(0, everything=True)

    def close(self) -> None:
        """Flushes, and closes the cluster's connections unless the cluster was given."""
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._close_cluster()

    def _close_cluster(self) -> None:
        self._under_way.clear()
        if self._owns_cluster:
            self._cluster.close()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _identity(self) -> tuple[int, int]:
        """This producer's id and epoch, given by a broker when first needed."""
        if self._numbers.identity is None:
            request = InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=self._config.request_timeout_ms,
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_PRODUCER_EPOCH,
            )
            answer = self._cluster.call(request, max_version=_INIT_PRODUCER_ID_MAX_VERSION)
            self._numbers.identity = (answer.producer_id, answer.producer_epoch)
        return self._numbers.identity

    def _drive(self, most_bytes: int, everything: bool) -> None:
        """Sends and collects until at most `most_bytes` are unacknowledged, and few are waiting.

        `everything` also sends requests that are not full. Never waits longer than what must be
        delivered may take.
        """
        try:
            self._collect(0)
            while True:
                jammed = self._waiting_bytes >= 2 * self._config.max_request_size
                over = self._unacknowledged_bytes > most_bytes
                sent = self._dispatch(everything or jammed or over)
                if not (jammed or over):
                    return
                if not sent:
                    self._check_deadlines()
                    self._collect(self._wait_s())
        except (KafkalogError, KafkaError) as error:
            self._failure = error
            raise

    def _dispatch(self, everything: bool) -> bool:
        """Sends what may go now, as full requests; True if anything went."""
        self._dispatched_s = time.monotonic()
        self._add_to_transaction()
        ready: dict[Connection, list[_Partition]] = {}
        # One for all, so that the wait for leaders that are sought in turn is not one for each.
        deadline = Deadline(self._config.delivery_timeout_ms)
        for partition in self._partitions.values():
            if partition.may_send():
                connection = self._leader(partition, deadline)
                if connection is not None and self._has_room(connection):
                    ready.setdefault(connection, []).append(partition)
        sent = False
        for connection, partitions in ready.items():
            full = sum(len(b.data) for p in partitions for b in p.waiting)
            if (
                everything
                or full >= self._config.max_request_size
                or any(len(p.waiting) > 1 for p in partitions)
            ):
                self._send_requests(connection, partitions)
                sent = True
        return sent

    def _add_to_transaction(self) -> None:
        """Partitions that have batches now for the first time, all by one request."""
        if self._transaction is None:
            return
        new = [partition for partition in self._partitions.values() if not partition.added]
        if new:
            transactions, producer = self._transaction
            transactions.add_partitions(producer, [partition.topic_partition for partition in new])
            for partition in new:
                partition.added = True

    def _leader(self, partition: _Partition, deadline: Deadline) -> Connection | None:
        """The leader's connection; None when it cannot be used yet.

        `deadline` is that of a batch which is looked at for the first time.
        """
        batch = partition.waiting[0]
        if batch.deadline is None:
            batch.deadline = deadline
        try:
            connection = self._cluster.leader(
                partition.topic_partition, batch.deadline.part(self._config.request_timeout_ms)
            )
        except (KafkaError, BrokersUnreachableError) as error:
            if isinstance(error, KafkaError) and not error.retriable:
                raise self._refused(partition, error) from error
            self._delay(partition, batch, error)
            return None
        if partition.in_flight and partition.connection is not connection:
            return None
        partition.connection = connection
        return connection

    def _has_room(self, connection: Connection) -> bool:
        under_way = len(self._under_way.get(connection, ()))
        return under_way < self._config.max_in_flight_requests_per_connection

    def _send_requests(self, connection: Connection, partitions: list[_Partition]) -> None:
        """As many requests as the window takes, each with the next batch of several partitions."""
        while self._has_room(connection):
            chosen: list[tuple[_Partition, _Batch]] = []
            size_bytes = 0
            for partition in partitions:
                if not partition.may_send():
                    continue
                size_bytes += len(partition.waiting[0].data)
                if chosen and size_bytes > self._config.max_request_size:
                    break
                batch = partition.waiting.popleft()
                self._waiting_bytes -= len(batch.data)
                partition.in_flight.append(batch)
                chosen.append((partition, batch))
            if not chosen or not self._send_request(connection, chosen):
                return

    def _send_request(
        self, connection: Connection, chosen: list[tuple[_Partition, _Batch]]
    ) -> bool:
        for _, batch in chosen:
            batch.attempts += 1
            batch.deadline = batch.deadline or Deadline(self._config.delivery_timeout_ms)
        due = Deadline(self._config.request_timeout_ms)
        chosen.sort(key=lambda each: each[0].topic_partition)
        is_plain = self._transaction is None
        newest = MAX_VERSION_WITH_NAMES if is_plain else _TRANSACTION_MAX_VERSION
        request = produce.ProduceRequest(
            connection.version(produce.API_KEY, newest, _MIN_VERSION),
            None if self._transaction is None else self._transaction[1].transactional_id,
            self._config.acks,
            self._config.request_timeout_ms,
            [
                produce.ProducePartition(
                    p.topic_partition.topic, p.topic_partition.partition, batch.data
                )
                for p, batch in chosen
            ],
        )
        body = produce.encode_produce_request(request)
        sent = self._under_way.setdefault(connection, deque())
        try:
            if self._config.acks == 0:
                connection.send_only(produce.API_KEY, request.version, body, due)
                for partition, batch in chosen:
                    self._acknowledge(partition, batch)
                return True
            correlation_id = connection.send(produce.API_KEY, request.version, body, due)
        except (KafkaConnectionError, KafkaTimeoutError) as error:
            sent.append(_Sent(-1, request.version, due, chosen))
            self._lose(connection, error)
            return False
        sent.append(_Sent(correlation_id, request.version, due, chosen))
        return True

    def _collect(self, wait_s: float) -> None:
        """Handles the answers that are there, waiting for the first one at most `wait_s`."""
        waiting = [connection for connection, sent in self._under_way.items() if sent]
        if not any(map(self._has_answer, waiting)):
            _wait(waiting, wait_s)
        for connection in waiting:
            while self._has_answer(connection):
                self._handle_next(connection)
            sent = self._under_way.get(connection)
            if sent and sent[0].due.expired:
                self._lose(connection, KafkaTimeoutError(f"{connection.address} does not answer"))

    def _has_answer(self, connection: Connection) -> bool:
        """Whether the connection's oldest request is answered, or never will be."""
        sent = self._under_way.get(connection)
        if not sent:
            return False
        return connection.closed or connection.has_answer_to(sent[0].correlation_id)

    def _handle_next(self, connection: Connection) -> None:
        sent = self._under_way[connection][0]
        try:
            body = connection.receive(sent.correlation_id, sent.due)
            results = produce.decode_produce_response(body, sent.version).partitions
        except (KafkaConnectionError, KafkaTimeoutError, KafkaProtocolError) as error:
            self._lose(connection, error)
            return
        self._under_way[connection].popleft()
        by_partition = {TopicPartition(r.topic, r.partition): r for r in results}
        for partition, batch in sent.batches:
            result = by_partition.get(partition.topic_partition)
            if result is None:
                self._retry(partition, batch, KafkaProtocolError("the answer leaves it out"))
            else:
                self._handle_result(partition, batch, result)

    def _handle_result(
        self, partition: _Partition, batch: _Batch, result: produce.ProducedPartition
    ) -> None:
        error = for_code(result.error_code)
        if error is NoError or error is DuplicateSequenceNumberError:
            self._acknowledge(partition, batch)
            if result.base_offset >= 0:
                self.last_written = partition.topic_partition, result.base_offset
        elif error is OutOfOrderSequenceNumberError and _comes_after_retry(partition, batch):
            self._retry(partition, batch, error("a batch before it is sent again"))
        elif error.retriable or error is CorruptRecordError:
            self._cluster.forget(partition.topic_partition)
            self._retry(partition, batch, error(result.error_message or ""))
        elif error in _TOO_LARGE:
            raise MessageTooLargeError(
                f"The broker refused a batch of {len(batch.data)} bytes for "
                f"{_name(partition.topic_partition)}: raise the topic's "
                "max.message.bytes, or lower kafka.batch.size."
            )
        else:
            cause = error(result.error_message or "")
            raise self._refused(partition, cause) from cause

    def _acknowledge(self, partition: _Partition, batch: _Batch) -> None:
        partition.in_flight.remove(batch)
        self._unacknowledged_bytes -= len(batch.data)

    def _lose(self, connection: Connection, error: KafkaError) -> None:
        """The connection broke: nobody knows which of its batches arrived, so all go again."""
        connection.close()
        for sent in self._under_way.pop(connection, ()):
            for partition, batch in sent.batches:
                self._cluster.forget(partition.topic_partition)
                self._retry(partition, batch, error)

    def _retry(self, partition: _Partition, batch: _Batch, error: Exception) -> None:
        partition.put_back(batch)
        self._waiting_bytes += len(batch.data)
        if batch.attempts > self._config.retries:
            raise DeliveryError(
                f"A batch for {_name(partition.topic_partition)} failed {batch.attempts} times; "
                f"kafka.retries={self._config.retries}. Last error: {error}"
            ) from error
        self._delay(partition, batch, error)

    def _delay(self, partition: _Partition, batch: _Batch, error: Exception) -> None:
        # One that the deadline cut short says less than the one before.
        if batch.error is None or batch.deadline is None or not batch.deadline.expired:
            batch.error = error
        pause_ms = self._config.retry_backoff_ms * 2 ** min(max(batch.attempts - 1, 0), 10)
        pause_s = min(pause_ms, self._config.retry_backoff_max_ms) / 1000
        partition.not_before_s = time.monotonic() + pause_s
        self._check_deadline(partition, batch)

    def _check_deadlines(self) -> None:
        for partition in self._partitions.values():
            if partition.oldest is not None:
                self._check_deadline(partition, partition.oldest)

    def _check_deadline(self, partition: _Partition, batch: _Batch) -> None:
        if batch.deadline is not None and batch.deadline.expired:
            raise DeliveryTimeoutError(
                f"A batch for {_name(partition.topic_partition)} was not acknowledged within "
                f"kafka.delivery.timeout.ms={self._config.delivery_timeout_ms} in {batch.attempts} "
                f"attempts. Last error: {batch.error or 'no answer'}"
            ) from batch.error

    def _refused(self, partition: _Partition, error: KafkaError) -> DeliveryError:
        return DeliveryError(
            f"The broker refused records for {_name(partition.topic_partition)}: {error}"
        )

    def _wait_s(self) -> float:
        """How long to wait for answers: until one is overdue, or a batch may be sent again."""
        return max(0.0, min(self._wake_ups(), default=0.0))

    def _wake_ups(self) -> Iterator[float]:
        now_s = time.monotonic()
        for sent in self._under_way.values():
            if sent:
                yield sent[0].due.remaining_s
        for partition in self._partitions.values():
            # A pause that has ended since the last dispatch was not acted on yet.
            if partition.waiting and partition.not_before_s > self._dispatched_s:
                yield partition.not_before_s - now_s
            oldest = partition.oldest
            if oldest is not None and oldest.deadline is not None:
                yield oldest.deadline.remaining_s


def _comes_after_retry(partition: _Partition, batch: _Batch) -> bool:
    """Whether a batch before this one waits to be sent again, which explains the gap."""
    return bool(partition.waiting) and partition.waiting[0].number < batch.number


def _wait(connections: Iterable[Connection], wait_s: float) -> None:
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    poll.poll(wait_s * 1000)


def _name(topic_partition: TopicPartition) -> str:
    return f"partition {topic_partition.partition} of topic {topic_partition.topic}"
