"""TransactionCoordinator: which transactions are open, of whom, and how they end.

Owns: every transactional id whose partition of `__transaction_state` this broker leads, and the
timers of their transactions. A change is appended to that topic first and counts from then on, and
who hands on what is said of it sees to it that it is committed; a decision is, before its first
marker is written. After a restart all is read from there: what was decided is carried out again,
what was open has its time again. Called by: the event loop's thread only; nothing here blocks or
waits.

States, checks and errors are those of `transaction_metadata`. A request for an id of another broker
is refused with NotCoordinatorError, while ids are being loaded with CoordinatorLoadInProgressError,
and where another broker may coordinate it by now with CoordinatorNotAvailableError; every method
with a transactional id may raise them. Left out: prepared transactions of two-phase
commit (KIP-939).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from kafka.errors import (
    BrokerResponseError,
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
    UnknownError,
)
from kafka.structs import TopicPartition

from broker.cluster.metadata import TRANSACTION_STATE
from broker.config.broker import BrokerConfig
from broker.coordinator.marker_messages import EndOfTransaction
from broker.coordinator.state_records import ProducerIdAndEpoch, StateRecord, decode_records
from broker.coordinator.state_topic import StateTopic, StateTopicKind, read_batches, replicas_of
from broker.coordinator.timers import Timers
from broker.coordinator.transaction_markers import MarkerWriter
from broker.coordinator.transaction_metadata import (
    TakeId,
    TransactionMetadata,
)
from broker.coordinator.transaction_records import (
    decode_key,
    decode_transaction,
    transaction_record,
    transaction_tombstone,
)
from broker.log.clock import Clock
from broker.log.log import Log
from pyspark_kafkalog.record.control import TransactionMarker

_log = logging.getLogger(__name__)

# After which a step that the log refused is taken again.
_RETRY_MS = 500
_LONGEST_ID = 2**15 - 1

Transactions: TypeAlias = dict[str, TransactionMetadata]
TransactionsTopic: TypeAlias = StateTopic[Transactions]


class TransactionLog(Protocol):
    """Where the transactions' records go: `__transaction_state`."""

    def check_coordinates(self, transactional_id: str) -> None:
        """Raises NotCoordinatorError, CoordinatorLoadInProgressError or
        CoordinatorNotAvailableError."""
        ...

    def append(self, transactional_id: str, records: Sequence[StateRecord]) -> object:
        """All or none. Raises BrokerResponseError as the client is to see it."""
        ...

    def leader_epoch(self, transactional_id: str) -> int:
        """Since when this broker leads the id's partition."""
        ...

    def when_committed(self, transactional_id: str, run: Callable[[], None]) -> None:
        """Calls `run` when what was appended may be acted on; perhaps before this returns."""
        ...

    def partition_of(self, transactional_id: str) -> int:
        """Which of the topic's partitions has the id."""
        ...

    @property
    def is_loading_any(self) -> bool: ...


class TransactionCoordinator:
    """Begins, extends and ends the transactions of producers, and aborts those that take too long.

    The event loop's thread only; never waits.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: TransactionLog,
        markers: MarkerWriter,
        timers: Timers,
        clock: Clock,
        take_id: TakeId,
    ) -> None:
        self._config = config
        self._log = log
        self._markers = markers
        self._timers = timers
        self._clock = clock
        self._take_id = take_id
        self._transactions: Transactions = {}

    # Loading and leaving.

    def take_over(self, transactions: Mapping[str, TransactionMetadata]) -> None:
        """Transactions as they were written down: the decided ones are carried out."""
        self._transactions |= transactions
        for transactional_id, transaction in transactions.items():
            if transaction.is_prepared:
                state = transaction.state.text
                _log.info("transaction.resumed id=%.100r state=%s", transactional_id, state)
                self._carry_out(transactional_id, transaction)
            elif transaction.is_ongoing:
                self._schedule_timeout(transactional_id, transaction)

    def resign(self, partition: int) -> None:
        """Forgets the transactions of a partition of `__transaction_state`."""
        for transactional_id in list(self._transactions):
            if self._log.partition_of(transactional_id) == partition:
                del self._transactions[transactional_id]
                self._timers.cancel(("timeout", transactional_id))
                self._timers.cancel(("complete", transactional_id))

    def topic_deleted(self) -> None:
        """`__transaction_state` is gone, and with it every transaction: what is open is aborted,
        so that nobody waits for it for ever; what is decided has its markers on their way, or gets
        them now: its decision may still wait for a disk that takes it no more."""
        for transactional_id, transaction in self._transactions.items():
            if not transaction.is_ongoing and not transaction.is_prepared:
                continue
            producer = transaction.producer
            if transaction.is_ongoing:
                producer = ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)
            is_commit = transaction.is_commit
            end = self._end_of(transactional_id, producer, transaction, is_commit=is_commit)
            self._markers.write(transaction.partitions, end, lambda: None)
        self._transactions = {}
        self._timers.cancel_all()

    # Producers.

    def initialize(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        """A producer takes the id over: who had it is fenced, its transaction aborted first.

        `expected`: who the producer was, if it goes on after an error (KIP-360). Raises
        InvalidRequestError, InvalidTransactionTimeoutError, ProducerFencedError, and
        ConcurrentTransactionsError as long as a transaction has not ended.
        """
        if not transactional_id or len(transactional_id) > _LONGEST_ID:
            raise InvalidRequestError()
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"not within 1 to {self._config.transaction_max_timeout_ms} ms"
            )
        transaction = self._find(transactional_id)
        if transaction is None:
            transaction = TransactionMetadata(self._take_id(), timeout_ms, self._clock())
        transaction.check_expected(expected)
        if transaction.is_ongoing:
            self._abort(transactional_id, transaction, "its producer is replaced")
            raise ConcurrentTransactionsError()
        initialized = transaction.initialized(expected, timeout_ms, self._clock(), self._take_id)
        self._write(transactional_id, initialized)
        _log.info(
            "transaction.producer id=%.100r producer_id=%d epoch=%d",
            transactional_id,
            *initialized.producer,
        )
        return initialized.producer

    # Partitions.

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        client_version: int,
    ) -> None:
        """Partitions that the producer is about to write to; the first ones begin a transaction.

        Raises InvalidRequestError, InvalidProducerIdMappingError, ProducerFencedError and
        ConcurrentTransactionsError.
        """
        transaction = self._known(transactional_id)
        transaction.check_may_add(producer)
        added = transaction.added(partitions, client_version, self._clock())
        if added is transaction:
            return
        self._write(transactional_id, added)
        if not transaction.is_ongoing:
            self._schedule_timeout(transactional_id, added)

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
    ) -> dict[TopicPartition, BrokerResponseError | None]:
        """Whether each partition is part of the producer's transaction: TransactionAbortableError
        where not. Raises as `add_partitions`."""
        transaction = self._known(transactional_id)
        transaction.check_may_verify(producer)
        return {
            each: None if each in transaction.partitions else TransactionAbortableError()
            for each in partitions
        }

    # The end.

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        client_version: int,
        *,
        is_commit: bool,
    ) -> ProducerIdAndEpoch:
        """Commits or aborts; returns who the producer is from now on. It is decided then; markers
        may still be on their way.

        Raises InvalidRequestError, InvalidProducerIdMappingError, ProducerFencedError,
        ConcurrentTransactionsError and InvalidTxnStateError.
        """
        transaction = self._known(transactional_id)
        prepared = transaction.ended(
            producer, client_version, self._clock(), self._take_id, is_commit=is_commit
        )
        if prepared is None:
            return transaction.producer
        self._decide(transactional_id, prepared)
        return prepared.completed(prepared.last_update_ms).producer

    def _abort(self, transactional_id: str, transaction: TransactionMetadata, reason: str) -> None:
        self._decide(
            transactional_id, transaction.aborted_by_coordinator(self._clock(), self._take_id)
        )
        _log.info(
            "transaction.aborted id=%.100r producer_id=%d epoch=%d reason=%r",
            transactional_id,
            *transaction.producer,
            reason,
        )

    def _decide(self, transactional_id: str, prepared: TransactionMetadata) -> None:
        self._write(transactional_id, prepared)
        self._carry_out(transactional_id, prepared)

    def _carry_out(self, transactional_id: str, prepared: TransactionMetadata) -> None:
        """Writes the markers, once the decision is safe."""

        def is_ours() -> bool:
            return self._transactions.get(transactional_id) is prepared

        def write_markers() -> None:
            if is_ours():
                end = self._end_of(
                    transactional_id, prepared.producer, prepared, is_commit=prepared.is_commit
                )
                self._markers.write(prepared.partitions, end, complete, is_ours)

        def complete() -> None:
            self._complete(transactional_id, prepared)

        self._log.when_committed(transactional_id, write_markers)

    def _end_of(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        transaction: TransactionMetadata,
        *,
        is_commit: bool,
    ) -> EndOfTransaction:
        marker = TransactionMarker(is_commit, self._log.leader_epoch(transactional_id))
        return EndOfTransaction(producer, marker, transaction.client_version)

    def _complete(self, transactional_id: str, prepared: TransactionMetadata) -> None:
        if self._transactions.get(transactional_id) is not prepared:
            return  # this broker coordinates it no more
        try:
            self._write(transactional_id, prepared.completed(self._clock()))
        except BrokerResponseError as error:
            reason = str(error)
            _log.warning("transaction.not_completed id=%.100r reason=%r", transactional_id, reason)
            self._timers.schedule(
                ("complete", transactional_id),
                _RETRY_MS,
                lambda: self._complete(transactional_id, prepared),
            )

    # Time.

    def _schedule_timeout(self, transactional_id: str, transaction: TransactionMetadata) -> None:
        """Set anew by the next transaction; a timer that finds none open does nothing.

        The clock only says how much is left of a transaction that was begun before a restart, and
        never more than its whole time: it may have been set back since.
        """
        delay_ms = min(max(0, transaction.ends_ms - self._clock()), transaction.timeout_ms)
        self._timers.schedule(
            ("timeout", transactional_id), delay_ms, lambda: self._time_is_up(transactional_id)
        )

    def _time_is_up(self, transactional_id: str) -> None:
        transaction = self._transactions.get(transactional_id)
        if transaction is None or not transaction.is_ongoing:
            return
        try:
            self._abort(transactional_id, transaction, "timeout")
        except BrokerResponseError as error:
            reason = str(error)
            _log.warning("transaction.not_aborted id=%.100r reason=%r", transactional_id, reason)
            self._timers.schedule(
                ("timeout", transactional_id),
                _RETRY_MS,
                lambda: self._time_is_up(transactional_id),
            )

    def expire(self) -> Iterator[None]:
        """Forgets the ids that had no transaction for transactional.id.expiration.ms. Yields
        between them, for others to have their turn."""
        for transactional_id in list(self._transactions):
            yield
            transaction = self._transactions.get(transactional_id)
            if transaction is None or transaction.is_ongoing or transaction.is_prepared:
                continue
            idle_ms = self._clock() - transaction.last_update_ms
            if idle_ms < self._config.transactional_id_expiration_ms:
                continue
            try:
                self._log.append(transactional_id, [transaction_tombstone(transactional_id)])
            except BrokerResponseError as error:
                _log.warning(
                    "transaction.not_expired id=%.100r reason=%r", transactional_id, str(error)
                )
                continue
            del self._transactions[transactional_id]
            self._timers.cancel(("timeout", transactional_id))
            _log.info("transaction.expired id=%.100r", transactional_id)

    # Looking at transactions.

    @property
    def is_loading_any(self) -> bool:
        """Whether some transactions are not known yet."""
        return self._log.is_loading_any

    def transactions(self) -> Mapping[str, TransactionMetadata]:
        """By transactional id; to be read only."""
        return self._transactions

    def transaction(self, transactional_id: str) -> TransactionMetadata:
        """Raises InvalidRequestError and TransactionalIdNotFoundError."""
        if not transactional_id:
            raise InvalidRequestError()
        transaction = self._find(transactional_id)
        if transaction is None:
            raise TransactionalIdNotFoundError()
        return transaction

    def _find(self, transactional_id: str) -> TransactionMetadata | None:
        # Of what is known, too: where this process has slept, another broker may have gone on.
        self._log.check_coordinates(transactional_id)
        return self._transactions.get(transactional_id)

    def _known(self, transactional_id: str) -> TransactionMetadata:
        if not transactional_id:
            raise InvalidRequestError()
        transaction = self._find(transactional_id)
        if transaction is None:
            raise InvalidProducerIdMappingError()
        return transaction

    def _write(self, transactional_id: str, transaction: TransactionMetadata) -> None:
        self._log.append(transactional_id, [transaction_record(transactional_id, transaction)])
        self._transactions[transactional_id] = transaction


def transactions_topic_kind(config: BrokerConfig) -> StateTopicKind[Transactions]:
    """Transactions' last words are kept, and nothing else of them; never compressed."""
    replication_factor = replicas_of(config, config.transaction_state_log_replication_factor)
    min_insync_replicas = min(config.transaction_state_log_min_isr, replication_factor)
    return StateTopicKind(
        name=TRANSACTION_STATE,
        partition_count=config.transaction_state_log_num_partitions,
        replication_factor=replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min_insync_replicas),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
        read=read_transactions,
        too_large=UnknownError,
        commit_timeout_ms=config.request_timeout_ms,
    )


def read_transactions(log: Log) -> Transactions:
    """The transactions that a partition's log tells of. Blocks; raises as `read_batches`."""
    replay = TransactionReplay()
    for data, header in read_batches(log):
        if not header.is_control:
            replay.add(decode_records(data, header))
    return replay.transactions()


class TransactionReplay:
    """Records on their way to transactions: the last one of each id counts."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def add(self, records: Iterator[StateRecord] | Sequence[StateRecord]) -> None:
        for key, value in records:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def transactions(self) -> Transactions:
        """Raises CorruptRecordError."""
        transactions: Transactions = {}
        for key, value in self._values.items():
            transactional_id = decode_key(key)
            if transactional_id is not None:
                transactions[transactional_id] = decode_transaction(value)
        return transactions
