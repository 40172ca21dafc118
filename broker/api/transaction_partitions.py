"""Whether a producer's records, or a group's offsets, may go into its transaction.

Asked by Produce and TxnOffsetCommit before they append (KIP-890). Clients of transaction version 2
add partitions by writing to them; those of older versions have added them before, which is verified
here, so that no late request leaves a transaction open that nobody ends. Called by: the event
loop's thread only.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import TypeAlias

from kafka.errors import (
    BrokerResponseError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
)
from kafka.structs import TopicPartition

from broker.api.request import ApiContext
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_metadata import EPOCH_BUMP_VERSION

JoinErrors: TypeAlias = Mapping[TopicPartition, BrokerResponseError | None]


class TransactionSupport(Enum):
    """What the version of a request says of its client."""

    VERIFIED = "it has added its partitions"
    KNOWS_ABORTABLE = "it has, and knows TRANSACTION_ABORTABLE"
    ADDS_IMPLICITLY = "it adds them by writing"

    @classmethod
    def of(cls, version: int, abortable: int, implicit_add: int) -> "TransactionSupport":
        """Of a request's version, by the first versions of its API that say the latter two."""
        if version >= implicit_add:
            return cls.ADDS_IMPLICITLY
        return cls.KNOWS_ABORTABLE if version >= abortable else cls.VERIFIED


def join_at_once(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    places: Collection[TopicPartition],
    support: TransactionSupport,
    context: ApiContext,
) -> JoinErrors | None:
    """By partition, None where the transaction has it, or why it does not. None for all where that
    is to be waited for: `join` is to be asked again, and waits."""
    adds = support is TransactionSupport.ADDS_IMPLICITLY
    if not adds and not context.config.transaction_partition_verification_enable:
        return dict.fromkeys(places)
    try:
        errors = _join(transactional_id, producer, places, support, context)
        if context.transactions_topic.awaits_commit(transactional_id):
            return None
    except BrokerResponseError as error:
        errors = dict.fromkeys(places, error)
    return _as_known(errors, places, support)


async def join(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    places: Collection[TopicPartition],
    support: TransactionSupport,
    context: ApiContext,
) -> JoinErrors:
    """As `join_at_once`, however long it takes. What a coordinator says counts when it is
    committed: one that takes over would not know of the partitions."""
    try:
        errors = _join(transactional_id, producer, places, support, context)
        await context.transactions_topic.wait_committed(transactional_id)
    except BrokerResponseError as error:
        errors = dict.fromkeys(places, error)
    return _as_known(errors, places, support)


def _join(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    places: Collection[TopicPartition],
    support: TransactionSupport,
    context: ApiContext,
) -> JoinErrors:
    """Raises why all are refused."""
    transactions = context.transactions
    if support is TransactionSupport.ADDS_IMPLICITLY:
        transactions.add_partitions(
            transactional_id, producer, frozenset(places), EPOCH_BUMP_VERSION
        )
        return {}
    return transactions.verify_partitions(transactional_id, producer, frozenset(places))


def _as_known(
    errors: JoinErrors, places: Collection[TopicPartition], support: TransactionSupport
) -> JoinErrors:
    return {place: _as_client_knows(errors.get(place), support) for place in places}


def _as_client_knows(
    error: BrokerResponseError | None, support: TransactionSupport
) -> BrokerResponseError | None:
    if isinstance(error, ProducerFencedError):
        return InvalidProducerEpochError()
    if isinstance(error, TransactionAbortableError) and support is TransactionSupport.VERIFIED:
        return InvalidTxnStateError("the partition was not added to the transaction")
    return error
