"""Transactions, as a client of their coordinators (KIP-98): begin, add partitions, end, look up.

Speaks the protocol's first version (AddPartitionsToTxn up to 3, EndTxn up to 4, Produce up to 11):
the epoch stays what it is when a transaction ends, so that any process that knows a
ProducerIdentity can end its transaction, and say so again after an answer was lost. EndTxn 5
(KIP-890), which takes the epoch from who had it, is kept for `abort_and_fence`. What passes
(a coordinator moves or loads, an earlier transaction is still being ended) is waited out within
`request.timeout.ms`; what does not is the broker's own error (`kafka.errors`).

The last word on a transaction is its marker in the partitions that it wrote to: `ended_by_commit`
reads it there, also when the coordinator has forgotten the transaction or has begun another one.

Blocking; one thread at a time. Never writes a record: `Producer` does.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafka.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    IncompatibleBrokerVersion,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    KafkaTimeoutError,
    NoError,
    NotCoordinatorError,
    OperationNotAttemptedError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    for_code,
)
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import LATEST, Cluster
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.fetcher import Fetcher
from pyspark_kafkalog.errors import DataLossError, UnknownTopicError
from pyspark_kafkalog.record.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, batches
from pyspark_kafkalog.record.control import decode_marker

EMPTY = "Empty"
"""The state of a ProducerIdentity that has begun no transaction, as coordinators name it."""
ONGOING = "Ongoing"
"""The state in which a transaction takes records, as coordinators name it."""

FENCED = (ProducerFencedError, InvalidProducerEpochError, InvalidProducerIdMappingError)
"""What coordinators say to a ProducerIdentity that is not the newest of its id."""
ENDED = (*FENCED, InvalidTxnStateError, TransactionalIdNotFoundError)
"""What they say where its transaction was ended before, one way or the other."""

_TRANSACTION_KEY = 1
_FIND_BATCH_VERSION = 4
_FIND_MAX_VERSION = 4
_FIND_MIN_VERSION = 1
_INIT_MAX_VERSION = 4
_INIT_MIN_VERSION_WITH_CURRENT = 3
_ADD_MAX_VERSION = 3
_END_MAX_VERSION = 4
_END_AND_FENCE_VERSION = 5
_LEVEL_WHERE_AN_END_FENCES = 2
"""Of the feature transaction.version (KIP-1022). Apache Kafka 4 offers EndTxn 5 below it, too, and
leaves the transaction in a state that neither ends nor takes a new epoch."""
_NOBODYS_ID = 2**63 - 1
"""A producer id that no transactional id has: coordinators compare it before they abort anything,
and where they do not know the transactional id they do not compare (KIP-360)."""
_LIST_MAX_VERSION = 2
_DESCRIBE_MAX_VERSION = 0
_MOST_AHEAD = 64
"""Requests sent to one coordinator before the first answer is read."""
_MOST_ASKED = 1_000
"""Ids in one request: brokers refuse those of very many, or very long, ones."""
_NOT_ATTEMPTED = OperationNotAttemptedError.errno
_COORDINATOR_MOVED = (NotCoordinatorError, CoordinatorNotAvailableError)
_LOST = (KafkaConnectionError, KafkaTimeoutError)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A transactional id, and who may write and end its transaction now; a newer epoch fences."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What a coordinator knows of a transactional id."""

    producer: ProducerIdentity
    state: str


class Transactions:
    """The transactions of a cluster, with the coordinators found so far."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators: dict[str, tuple[str, int]] = {}

    def begin(
        self, transactional_id: str, timeout_ms: int, current: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """A new epoch: older ones are fenced, and a transaction that they left open is aborted.

        With `current` only if that still is the newest (KIP-360), which coordinators look at once
        no transaction is open: one that is open they abort, whosever it is. The broker aborts a
        transaction that is open for longer than `timeout_ms`. Raises
        InvalidTransactionTimeoutError, ProducerFencedError,
        TransactionalIdAuthorizationFailedError.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=NO_PRODUCER_ID if current is None else current.producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if current is None else current.epoch,
        )
        least = 0 if current is None else _INIT_MIN_VERSION_WITH_CURRENT

        def ask(connection: Connection, deadline: Deadline) -> Any:
            connection.version(request.API_KEY, _INIT_MAX_VERSION, least)
            answer = connection.call(request, deadline, _INIT_MAX_VERSION)
            _check(answer.error_code, transactional_id)
            return answer

        answer = self._of_coordinator(transactional_id, ask)
        return ProducerIdentity(transactional_id, answer.producer_id, answer.producer_epoch)

    def begin_new(self, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
        """As `begin`, of an id that its coordinator does not know: raises one of FENCED, and
        nothing has changed, where it knows the id by now, maybe from a request like this one whose
        answer was lost."""
        nobody = ProducerIdentity(transactional_id, _NOBODYS_ID, 0)
        return self.begin(transactional_id, timeout_ms, nobody)

    def add_partitions(
        self, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> None:
        """Makes partitions part of the transaction, which begins by this: before records go there.

        Raises ProducerFencedError or InvalidProducerEpochError, InvalidProducerIdMappingError,
        InvalidTxnStateError.
        """
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic_partition in sorted(partitions):
            by_topic[topic_partition.topic].append(topic_partition.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in by_topic.items()
            ],
        )

        def ask(connection: Connection, deadline: Deadline) -> None:
            answer = connection.call(request, deadline, _ADD_MAX_VERSION)
            results = [
                (topic.name, result)
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ]
            # One partition that is refused has the others answered "not attempted".
            results.sort(key=lambda each: each[1].partition_error_code == _NOT_ATTEMPTED)
            for topic, result in results:
                which = f"{producer.transactional_id}, {topic}-{result.partition_index}"
                _check(result.partition_error_code, which)

        self._of_coordinator(producer.transactional_id, ask)

    def end(self, producer: ProducerIdentity, commit: bool) -> None:
        """Commits or aborts; again after it was ended so: nothing. Raises as `add_partitions`."""
        for error in self.end_all([producer], commit).values():
            raise error

    def end_all(
        self, producers: Iterable[ProducerIdentity], commit: bool
    ) -> dict[ProducerIdentity, KafkaError]:
        """Ends many transactions at once; those that were refused, with their errors."""
        left = list(dict.fromkeys(producers))
        refused: dict[ProducerIdentity, KafkaError] = {}

        def attempt(deadline: Deadline) -> None:
            self._find([producer.transactional_id for producer in left], deadline)
            passing: KafkaError | None = None
            for producer, error in self._end_some(left, commit, deadline):
                if error is not None and error.retriable:
                    passing = error
                    if not isinstance(error, ConcurrentTransactionsError):
                        self._coordinators.pop(producer.transactional_id, None)
                    continue
                left.remove(producer)
                if error is not None:
                    refused[producer] = error
            if passing is not None:
                raise passing

        if left:
            self._cluster.retrying(attempt, Deadline(self._cluster.config.request_timeout_ms))
        return refused

    def abort_and_fence(self, producer: ProducerIdentity, timeout_ms: int) -> ProducerIdentity:
        """Aborts what `producer` has open, and takes the right to write from it: returns the next
        epoch. Raises one of FENCED, and nothing has changed, where its epoch is not the newest.

        One step where the cluster has it (KIP-890: transaction.version 2, of Kafka 4.0). Elsewhere
        an end and a new epoch, with `timeout_ms` as in `begin`: what somebody else opens between
        the two is aborted.
        """
        name = producer.transactional_id
        request = _end_request(producer, commit=False)

        def ask(connection: Connection, deadline: Deadline) -> ProducerIdentity | None:
            if connection.features.get("transaction.version", 0) < _LEVEL_WHERE_AN_END_FENCES:
                return None
            attempt = self._cluster.attempt(deadline)
            answer = connection.call(request, attempt, _END_AND_FENCE_VERSION)
            if for_code(answer.error_code) is InvalidTxnStateError:
                # Said of the epoch before one that has committed: nothing is repeated here.
                raise ProducerFencedError(name)
            _check(answer.error_code, name)
            return ProducerIdentity(name, answer.producer_id, answer.producer_epoch)

        fenced: ProducerIdentity | None = self._of_coordinator(name, ask)
        if fenced is not None:
            return fenced
        with suppress(InvalidTxnStateError):
            self.end(producer, commit=False)
        return self.begin(name, timeout_ms, producer)

    def locate(self, transactional_ids: Iterable[str]) -> None:
        """Finds the coordinators of ids that are asked about soon: all at once where brokers take
        more than one (Kafka 3.0, KIP-699)."""
        ids = list(transactional_ids)
        self._cluster.retrying(
            lambda deadline: self._find(ids, deadline),
            Deadline(self._cluster.config.request_timeout_ms),
        )

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """The state of each id; one that its coordinator does not know is absent.

        Raises IncompatibleBrokerVersion for brokers before Kafka 3.0.
        """
        found: dict[str, TransactionDescription] = {}
        left = dict.fromkeys(transactional_ids)

        def attempt(deadline: Deadline) -> None:
            self._find(left, deadline)
            for server, ids in self._by_coordinator(left).items():
                for asked in _portions(ids):
                    request = DescribeTransactionsRequest(transactional_ids=asked)
                    for state in self._described(server, request, deadline).transaction_states:
                        take(state)

        def take(state: Any) -> None:
            name = state.transactional_id
            if state.error_code != TransactionalIdNotFoundError.errno:
                self._check_coordinator(state.error_code, name)
                identity = ProducerIdentity(name, state.producer_id, state.producer_epoch)
                found[name] = TransactionDescription(identity, state.transaction_state)
            del left[name]

        if left:
            self._cluster.retrying(attempt, Deadline(self._cluster.config.request_timeout_ms))
        return found

    def ongoing(self, pattern: str) -> list[str]:
        """The transactional ids that match a regular expression as a whole and take records now.

        Asks every broker; one that does not answer twice is left out with a warning, one that is
        older than Kafka 3.0 without.
        """
        wanted = re.compile(pattern)
        found: set[str] = set()
        deadline = Deadline(self._cluster.config.request_timeout_ms)
        request = ListTransactionsRequest(
            state_filters=[ONGOING],
            producer_id_filters=[],
            duration_filter=-1,
            transactional_id_pattern=pattern,
        )

        lost: set[tuple[str, int]] = set()

        def asks(server: tuple[str, int]) -> Callable[[Deadline], Any]:
            def attempt(deadline: Deadline) -> Any:
                try:
                    connection = self._cluster.connection_to(server, deadline)
                    answer = connection.call(
                        request, self._cluster.attempt(deadline), _LIST_MAX_VERSION
                    )
                except IncompatibleBrokerVersion:
                    return None
                except _LOST as error:
                    if server not in lost:
                        lost.add(server)  # maybe just a connection that was cut
                        raise
                    _log.warning(
                        "Transactions that %s:%d coordinates may stay open for their timeout: %s",
                        *server,
                        error,
                    )
                    return None
                # One that has just started does not know its transactions yet.
                _check(answer.error_code, f"{server[0]}:{server[1]}")
                return answer

            return attempt

        for server in self._cluster.brokers():
            answer = self._cluster.retrying(asks(server), deadline)
            if answer is not None:
                found.update(
                    state.transactional_id
                    for state in answer.transaction_states
                    if wanted.fullmatch(state.transactional_id)
                )
        return sorted(found)

    def _end_some(
        self, producers: Sequence[ProducerIdentity], commit: bool, deadline: Deadline
    ) -> list[tuple[ProducerIdentity, KafkaError | None]]:
        """One attempt for each, sent ahead of the answers; None is success."""
        by_server: dict[tuple[str, int], list[ProducerIdentity]] = defaultdict(list)
        for producer in producers:
            by_server[self._coordinators[producer.transactional_id]].append(producer)
        results: list[tuple[ProducerIdentity, KafkaError | None]] = []
        for server, together in by_server.items():
            answered = 0
            try:
                for first in range(0, len(together), _MOST_AHEAD):
                    some = together[first : first + _MOST_AHEAD]
                    connection = self._cluster.connection_to(server, deadline)
                    attempt = self._cluster.attempt(deadline)
                    for each in _end_ahead(connection, some, commit, attempt):
                        results.append(each)
                        answered += 1
            except _LOST as error:
                results += [(producer, error) for producer in together[answered:]]
        return results

    def _of_coordinator(
        self, transactional_id: str, ask: Callable[[Connection, Deadline], Any]
    ) -> Any:
        """What `ask` gets of the id's coordinator, which is found anew when it has moved."""

        def attempt(deadline: Deadline) -> Any:
            self._find([transactional_id], deadline)
            server = self._coordinators[transactional_id]
            try:
                connection = self._cluster.connection_to(server, deadline)
                return ask(connection, self._cluster.attempt(deadline))
            except (*_LOST, *_COORDINATOR_MOVED):
                self._coordinators.pop(transactional_id, None)
                raise

        return self._cluster.retrying(attempt, Deadline(self._cluster.config.request_timeout_ms))

    def _described(
        self, server: tuple[str, int], request: DescribeTransactionsRequest, deadline: Deadline
    ) -> Any:
        try:
            connection = self._cluster.connection_to(server, deadline)
            return connection.call(request, self._cluster.attempt(deadline), _DESCRIBE_MAX_VERSION)
        except _LOST:
            for transactional_id in request.transactional_ids:
                self._coordinators.pop(transactional_id, None)
            raise

    def _check_coordinator(self, error_code: int, transactional_id: str) -> None:
        if for_code(error_code) in _COORDINATOR_MOVED:
            self._coordinators.pop(transactional_id, None)
        _check(error_code, transactional_id)

    def _by_coordinator(self, transactional_ids: Iterable[str]) -> dict[tuple[str, int], list[str]]:
        found: dict[tuple[str, int], list[str]] = defaultdict(list)
        for transactional_id in transactional_ids:
            found[self._coordinators[transactional_id]].append(transactional_id)
        return found

    def _find(self, transactional_ids: Iterable[str], deadline: Deadline) -> None:
        """Looks up the coordinators that are not known yet; raises what any broker says."""
        unknown = [name for name in transactional_ids if name not in self._coordinators]
        if not unknown:
            return
        connection = self._cluster.any_broker(deadline)
        api_key = FindCoordinatorRequest.API_KEY
        version = connection.version(api_key, _FIND_MAX_VERSION, _FIND_MIN_VERSION)
        is_many = version >= _FIND_BATCH_VERSION
        for names in _portions(unknown) if is_many else ([name] for name in unknown):
            request = FindCoordinatorRequest(
                key=names[0], key_type=_TRANSACTION_KEY, coordinator_keys=names
            )
            answer = connection.call(request, self._cluster.attempt(deadline), _FIND_MAX_VERSION)
            found = answer.coordinators if is_many else [answer]
            if len(found) != len(names):
                raise KafkaProtocolError(f"{connection.address} left out coordinators.")
            for name, coordinator in zip(names, found, strict=True):
                key = coordinator.key if is_many else name
                _check(coordinator.error_code, key)
                self._coordinators[key] = (coordinator.host, coordinator.port)


def ended_by_commit(
    cluster: Cluster,
    producer: ProducerIdentity,
    topic_partition: TopicPartition,
    offset: int,
    deadline: Deadline,
) -> bool | None:
    """Whether the one transaction of `producer`, which has a batch at `offset`, was committed.

    Reads the partition from there up to the transaction's marker; one that is not written yet is
    waited for until `deadline`. None when it cannot be known: the batch and the marker are gone,
    deleted or compacted away, or no marker came in time. The cluster's `isolation.level` must be
    read_uncommitted.
    """
    search = _MarkerSearch(producer, offset)
    position = offset
    try:
        while True:
            until_offset = cluster.list_offsets([topic_partition], LATEST)[topic_partition].offset
            if until_offset < position:
                return None
            fetcher = Fetcher(
                cluster, topic_partition, position, until_offset, cluster.config.request_timeout_ms
            )
            for fetched in fetcher.records():
                if search.is_over(fetched.records):
                    return search.is_committed
            position = max(position, fetcher.position)
            # Nothing is compacted before its transaction has ended: no marker is to come.
            if deadline.expired or not search.has_batch:
                return None
            deadline.pause(cluster.config.retry_backoff_ms / 1000)
    except (DataLossError, UnknownTopicError):
        return None


class _MarkerSearch:
    """Looks for the marker of a producer's only transaction, from one of its batches on.

    The marker has the producer's epoch; the epoch after it where a coordinator aborted, for a
    timeout or a successor (KIP-98). Of a compacted topic both may be gone, the marker not before
    the batches, and the successor's abort looks the same then: that marker counts only where the
    batch is there still.
    """

    def __init__(self, producer: ProducerIdentity, offset: int) -> None:
        self._producer = producer
        self._offset = offset
        self.has_batch = False
        self.is_committed: bool | None = None

    def is_over(self, records: memoryview) -> bool:
        """Takes the batches that come next; True when `is_committed` is not going to change."""
        for header in batches(records):
            is_before = header.base_offset + header.last_offset_delta < self._offset
            if is_before or header.producer_id != self._producer.producer_id:
                continue
            later_epochs = header.producer_epoch - self._producer.epoch
            if not header.is_control:
                if later_epochs:
                    return True
                self.has_batch = True
                continue
            marker = decode_marker(bytes(records[header.position : header.end_position]))
            if marker is None:
                continue
            is_abort_by_coordinator = later_epochs == 1 and not marker.is_commit
            if later_epochs == 0 or (is_abort_by_coordinator and self.has_batch):
                self.is_committed = marker.is_commit
            return True
        return False


def _end_request(producer: ProducerIdentity, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )


def _end_ahead(
    connection: Connection, producers: Sequence[ProducerIdentity], commit: bool, deadline: Deadline
) -> Iterable[tuple[ProducerIdentity, KafkaError | None]]:
    api_key = EndTxnRequest.API_KEY
    version = connection.version(api_key, _END_MAX_VERSION)
    sent = []
    for producer in producers:
        request = _end_request(producer, commit)
        sent.append(connection.send(api_key, version, [request.encode(version=version)], deadline))
    for producer, correlation_id in zip(producers, sent, strict=True):
        answer = connection.decoded(api_key, version, connection.receive(correlation_id, deadline))
        error = for_code(answer.error_code)
        yield producer, None if error is NoError else error(producer.transactional_id)


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), _MOST_ASKED):
        yield names[first : first + _MOST_ASKED]


def _check(error_code: int, about: str) -> None:
    error = for_code(error_code)
    if error is not NoError:
        raise error(about)
