"""Which parts of a Produce are to be in its producer's transaction, and which may not be.

A transactional batch opens a transaction in its partition's log, or belongs to the one that is open
there. Who opens one must be known to the transaction's coordinator, or nobody would end it.
Called by: Produce, on the event loop's thread.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from kafka.errors import (
    BrokerResponseError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    NetworkExceptionError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    TransactionalIdAuthorizationFailedError,
)
from kafka.structs import TopicPartition

from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_partitions import JoinAsk, TransactionSupport
from broker.log.producer_state import TransactionWatch
from broker.replica.partition import Partition
from pyspark_kafkalog.protocol.produce import ProduceRequest
from pyspark_kafkalog.record.batch import BatchHeader, read_header

# The first version whose clients know TRANSACTION_ABORTABLE, and the first that adds partitions to
# a transaction.
_ABORTABLE_VERSION: Final = 11
_IMPLICIT_ADD_VERSION: Final = 12
_COORDINATOR_IS_BUSY: Final = (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NetworkExceptionError,
    NotCoordinatorError,
)


class JoiningPart(NamedTuple):
    """A part of the request, by its number."""

    number: int
    partition: Partition
    header: BatchHeader


class Joining(NamedTuple):
    """Parts that are to be in a transaction, and what its coordinator is to be asked: of partitions
    that have none open, as it may not know of these."""

    parts: list[JoiningPart]
    ask: JoinAsk


def to_join(
    wanted: ProduceRequest, places: Sequence[Partition | BrokerResponseError], numbers: list[int]
) -> Joining:
    """`numbers`: of the parts, which have places and whole headers. Raises why none may be."""
    transactional_id = wanted.transactional_id
    if transactional_id is None:
        raise TransactionalIdAuthorizationFailedError("a transactional batch names no transaction")
    parts = []
    for number in numbers:
        partition, records = places[number], wanted.partitions[number].records
        assert isinstance(partition, Partition)
        assert records is not None
        parts.append(JoiningPart(number, partition, read_header(memoryview(records))))
    header = parts[0].header
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    if any((each.header.producer_id, each.header.producer_epoch) != producer for each in parts):
        raise InvalidProducerIdMappingError("transactional batches of more than one producer")
    # What is open in the log has been added.
    new = {
        each.partition.topic_partition
        for each in parts
        if not each.partition.log.producers.is_in_transaction(*producer)
    }
    support = TransactionSupport.of(wanted.version, _ABORTABLE_VERSION, _IMPLICIT_ADD_VERSION)
    return Joining(parts, JoinAsk(transactional_id, producer, new, support))


def refuse(
    places: "list[Partition | BrokerResponseError]",
    joining: Joining,
    errors: Mapping[TopicPartition, BrokerResponseError | None],
) -> None:
    """Puts the errors where parts may not be in the transaction."""
    adds = joining.ask.adds
    for number, partition, header in joining.parts:
        error = errors.get(partition.topic_partition)
        if error is not None:
            places[number] = _retriable(error, adds=adds)
        elif (
            adds and header.base_sequence and not partition.log.producers.knows(header.producer_id)
        ):
            # The batches before it were refused, and will be sent again.
            places[number] = OutOfOrderSequenceNumberError(
                f"producer {header.producer_id} begins with sequence {header.base_sequence}"
            )


def _retriable(error: BrokerResponseError, *, adds: bool) -> BrokerResponseError:
    """A coordinator's errors as a producer expects them in answer to Produce."""
    if isinstance(error, _COORDINATOR_IS_BUSY) or (
        isinstance(error, ConcurrentTransactionsError) and not adds
    ):
        return NotEnoughReplicasError(f"the transaction cannot be verified now: {error}")
    return error


@contextmanager
def watched(joining: Joining) -> Iterator[Sequence[TransactionWatch]]:
    """For each part, whether its partition saw the end of the producer's transaction while it was
    asked for."""
    producer_id = joining.ask.producer.producer_id
    logs = [each.partition.log for each in joining.parts]
    watches = [log.producers.watch(producer_id) for log in logs]
    try:
        yield watches
    finally:
        for log, watch in zip(logs, watches, strict=True):
            log.producers.unwatch(producer_id, watch)


def refuse_ended(
    places: "list[Partition | BrokerResponseError]",
    joining: Joining,
    watches: Sequence[TransactionWatch],
) -> None:
    """A batch that comes after its transaction's end would open one that nobody ends, where the
    epoch stays the same over many transactions (KIP-890)."""
    if joining.ask.adds:
        return
    for (number, _, _), watch in zip(joining.parts, watches, strict=True):
        if watch.has_ended:
            places[number] = NotEnoughReplicasError("the transaction ended while it was verified")
