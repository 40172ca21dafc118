"""Whether a producer's records, or a group's offsets, may go into its transaction.

Asked by Produce and TxnOffsetCommit before they append (KIP-890). Clients of transaction version 2
add partitions by writing to them; those of older versions have added them before, which is verified
here, so that no late request leaves a transaction open that nobody ends. Called by: the event
loop's thread only.
"""

from collections.abc import Collection, Mapping
from enum import Enum

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


def join_transaction(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    places: Collection[TopicPartition],
    support: TransactionSupport,
    context: ApiContext,
) -> Mapping[TopicPartition, BrokerResponseError | None]:
    """By partition, None where the transaction has it, or why it does not."""
    transactions = context.transactions
    errors: Mapping[TopicPartition, BrokerResponseError | None]
    try:
        if support is TransactionSupport.ADDS_IMPLICITLY:
            transactions.add_partitions(
                transactional_id, producer, frozenset(places), EPOCH_BUMP_VERSION
            )
            errors = {}
        elif context.config.transaction_partition_verification_enable:
            errors = transactions.verify_partitions(transactional_id, producer, frozenset(places))
        else:
            errors = {}
    except BrokerResponseError as error:
        errors = dict.fromkeys(places, error)
    return {place: _as_known(errors.get(place), support) for place in places}


def _as_known(
    error: BrokerResponseError | None, support: TransactionSupport
) -> BrokerResponseError | None:
    if isinstance(error, ProducerFencedError):
        return InvalidProducerEpochError()
    if isinstance(error, TransactionAbortableError) and support is TransactionSupport.VERIFIED:
        return InvalidTxnStateError("the partition was not added to the transaction")
    return error
