"""The state machine of one transactional id: pure, without a wire, a clock, or a log.

A value for each state; a change makes a new one, which counts from the moment it is written down.
Rules, their order and error codes are those of Apache Kafka 4.3 (KIP-98; KIP-360: a producer names
the id and epoch it had; KIP-890: the epoch grows with each end of a transaction).

    Empty ------> Ongoing ------> PrepareCommit ------> CompleteCommit
      |             ^  |                                     |
      |             |  +--------> PrepareAbort -------> CompleteAbort
      +-------------|----------------^                       |
                    +---- partitions are added --------------+

InitProducerId leads from Empty and the two complete states to Empty. Prepare is the decision: from
there on the markers are written, whatever happens. A client of transaction version 2 may abort what
it has not begun. Who is fenced, or too late, has its transaction aborted in an epoch of its own.
Dead and PrepareEpochFence are Kafka's names for instants that do not last here. Any thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from kafka.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from kafka.structs import TopicPartition

from broker.coordinator.state_records import ProducerIdAndEpoch

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_START_MS = -1

# The transaction version whose clients have their epoch bumped at each end (KIP-890).
EPOCH_BUMP_VERSION = 2
# The last epoch that a client may have: the coordinator needs one more to fence it.
_LAST_CLIENT_EPOCH = 2**15 - 2


class TransactionState(Enum):
    """As it is written down, and as Kafka's tools call it."""

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text


_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

TakeId = Callable[[], int]
"""A producer id that nobody has had; raises BrokerResponseError when there is none at hand."""


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """A transactional id's producer and its transaction.

    `previous_producer_id`: the producer id before the last change; `next_producer_id`: the one that
    comes with the end of the transaction, where the epochs of this one are exhausted.
    `client_version`: the transaction version (0, 2) of the client that made the last change.
    """

    producer_id: int
    timeout_ms: int
    last_update_ms: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_START_MS
    client_version: int = 0

    @property
    def is_ongoing(self) -> bool:
        return self.state is TransactionState.ONGOING

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided, and not all markers are written."""
        return self.state in _PREPARED

    @property
    def is_commit(self) -> bool:
        """What was decided, of one that is prepared."""
        return self.state is TransactionState.PREPARE_COMMIT

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= _LAST_CLIENT_EPOCH

    @property
    def ends_ms(self) -> int:
        """When an ongoing transaction has lasted too long."""
        return self.start_ms + self.timeout_ms

    # InitProducerId.

    def check_expected(self, expected: ProducerIdAndEpoch | None) -> None:
        """Raises ConcurrentTransactionsError while a transaction ends, ProducerFencedError for a
        producer whose place another one has taken."""
        if self.is_prepared:
            raise ConcurrentTransactionsError()
        if expected is None or self.producer_epoch == NO_PRODUCER_EPOCH:
            return
        is_retry_of_new_id = (
            expected.producer_id == self.previous_producer_id
            and expected.epoch >= _LAST_CLIENT_EPOCH
        )
        if expected.producer_id != self.producer_id and not is_retry_of_new_id:
            raise ProducerFencedError()

    def initialized(
        self,
        expected: ProducerIdAndEpoch | None,
        timeout_ms: int,
        now_ms: int,
        take_id: TakeId,
    ) -> "TransactionMetadata":
        """A producer begins, without a transaction. Raises ProducerFencedError."""
        epoch = self.producer_epoch
        id_and_epoch = ProducerIdAndEpoch(self.producer_id, epoch + 1)
        last_epoch = NO_PRODUCER_EPOCH
        if expected is not None:
            last_epoch = epoch
        if expected is not None and NO_PRODUCER_EPOCH != epoch != expected.epoch:
            if expected.epoch != self.last_producer_epoch:
                raise ProducerFencedError()
            # The retry of a request whose answer was lost: nobody has come between.
            id_and_epoch = ProducerIdAndEpoch(self.producer_id, epoch)
            last_epoch = self.last_producer_epoch
        elif self.is_epoch_exhausted:
            id_and_epoch = ProducerIdAndEpoch(take_id(), 0)
        return self._changed(
            TransactionState.EMPTY,
            now_ms,
            producer_id=id_and_epoch.producer_id,
            producer_epoch=id_and_epoch.epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_START_MS,
        )

    # Partitions.

    def check_may_add(self, producer: ProducerIdAndEpoch) -> None:
        """Raises ConcurrentTransactionsError, InvalidProducerIdMappingError and
        ProducerFencedError."""
        if self.is_prepared:
            # First of all: the producer may be told of its next id already.
            raise ConcurrentTransactionsError()
        self._check_producer(producer)

    def added(
        self, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
    ) -> "TransactionMetadata":
        """With more partitions; the first ones begin the transaction. Itself where none is new."""
        if self.is_ongoing and partitions <= self.partitions:
            return self
        return self._changed(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions | partitions,
            start_ms=self.start_ms if self.is_ongoing else now_ms,
            client_version=client_version,
        )

    def check_may_verify(self, producer: ProducerIdAndEpoch) -> None:
        """Whether the producer's partitions can be verified. Raises as `check_may_add`."""
        self._check_producer(producer)
        if self.is_prepared:
            raise ConcurrentTransactionsError()

    def _check_producer(self, producer: ProducerIdAndEpoch) -> None:
        if producer.producer_id != self.producer_id:
            raise InvalidProducerIdMappingError()
        if producer.epoch != self.producer_epoch:
            raise ProducerFencedError()

    # The end.

    def ended(
        self,
        producer: ProducerIdAndEpoch,
        client_version: int,
        now_ms: int,
        take_id: TakeId,
        *,
        is_commit: bool,
    ) -> "TransactionMetadata | None":
        """Prepared to commit or abort; None where the request is a retry and all is done.

        Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError and
        InvalidTxnStateError.
        """
        if client_version < EPOCH_BUMP_VERSION:
            is_done = self._check_end_by_epoch(producer, is_commit=is_commit)
        else:
            is_done = self._check_end_by_bump(producer, is_commit=is_commit)
        return None if is_done else self._prepared(client_version, now_ms, take_id, is_commit)

    def _check_end_by_epoch(self, producer: ProducerIdAndEpoch, *, is_commit: bool) -> bool:
        """Whether it has ended so; the epoch stays over many transactions."""
        self._check_producer(producer)
        if self.is_prepared:
            raise ConcurrentTransactionsError()
        if self.is_ongoing:
            return False
        if self._is_complete(is_commit):
            return True
        raise self._wrong_state(is_commit)

    def _check_end_by_bump(self, producer: ProducerIdAndEpoch, *, is_commit: bool) -> bool:
        """Whether it has ended so; the epoch tells a retry from the next end."""
        if self.is_prepared:
            raise ConcurrentTransactionsError()
        is_retry_of_new_id = (
            producer.producer_id == self.previous_producer_id
            and producer.epoch == _LAST_CLIENT_EPOCH
            and self.producer_epoch == 0
        )
        if producer.producer_id != self.producer_id and not is_retry_of_new_id:
            raise InvalidProducerIdMappingError()
        is_complete = self._is_complete(True) or self._is_complete(False)
        is_retry = is_complete and (is_retry_of_new_id or producer.epoch + 1 == self.producer_epoch)
        if not is_retry and producer.epoch != self.producer_epoch:
            raise ProducerFencedError()
        if is_retry:
            if self._is_complete(is_commit):
                return True
        elif self.is_ongoing or not is_commit:
            return False
        raise self._wrong_state(is_commit)

    def _is_complete(self, is_commit: bool) -> bool:
        if is_commit:
            return self.state is TransactionState.COMPLETE_COMMIT
        return self.state is TransactionState.COMPLETE_ABORT

    def _wrong_state(self, is_commit: bool) -> InvalidTxnStateError:
        what = "commit" if is_commit else "abort"
        return InvalidTxnStateError(f"there is nothing to {what} in state {self.state.text}")

    def aborted_by_coordinator(self, now_ms: int, take_id: TakeId) -> "TransactionMetadata":
        """An ongoing one, prepared to abort in an epoch that fences its producer."""
        return self._prepared(EPOCH_BUMP_VERSION, now_ms, take_id, is_commit=False)

    def _prepared(
        self, client_version: int, now_ms: int, take_id: TakeId, is_commit: bool
    ) -> "TransactionMetadata":
        bumps = client_version >= EPOCH_BUMP_VERSION
        return self._changed(
            TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + bumps,
            last_producer_epoch=self.producer_epoch if bumps else self.last_producer_epoch,
            next_producer_id=(take_id() if bumps and self.is_epoch_exhausted else NO_PRODUCER_ID),
            start_ms=self.start_ms if self.is_ongoing else now_ms,
            client_version=client_version,
        )

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """When all markers of a prepared one are written: what its producer goes on with."""
        has_new_id = self.next_producer_id != NO_PRODUCER_ID
        return self._changed(
            TransactionState.COMPLETE_COMMIT if self.is_commit else TransactionState.COMPLETE_ABORT,
            now_ms,
            producer_id=self.next_producer_id if has_new_id else self.producer_id,
            producer_epoch=0 if has_new_id else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
        )

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    def _changed(
        self, state: TransactionState, now_ms: int, **fields: Any
    ) -> "TransactionMetadata":
        return replace(
            self,
            state=state,
            last_update_ms=now_ms,
            previous_producer_id=self.producer_id,
            **fields,
        )
