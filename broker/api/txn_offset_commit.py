"""TxnOffsetCommit (key 28), versions 0-5: up to where a group has read, if a transaction commits.

The offsets are kept as pending until the transaction ends: its coordinator says so. Partitions that
do not exist are refused one by one, everything else as a whole. Version 3 (KIP-447) names the
member that has read; older ones name nobody, and fence no zombies. Clients before version 2 crash
when they hear that the group is being loaded: they hear that it has no coordinator yet, as from
Apache Kafka. The group must be part of the transaction: before version 5 it is added by
AddOffsetsToTxn, since then by this request (KIP-890).
"""

from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    InvalidRequestError,
    NetworkExceptionError,
)
from kafka.protocol.producer import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kafka.structs import TopicPartition

from broker.api.contexts import TransactionalOffsetsContext
from broker.api.offset_commits import Errors, Offsets, commit_existing, told_topics
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.metadata import CONSUMER_OFFSETS, TopicMetadata
from broker.coordinator.group import CommitAsk, new_commit
from broker.coordinator.offset_records import CommittedOffset
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_partitions import JoinAsk, TransactionSupport
from broker.log.clock import system_clock_ms

_TOPIC = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_LOADING_VERSION = 2
# The first version whose clients know TRANSACTION_ABORTABLE, and the first that adds the group to
# the transaction.
_ABORTABLE_VERSION = 4
_IMPLICIT_ADD_VERSION = 5
_BROKERS_RETENTION = -1


async def handle(request: Request, context: TransactionalOffsetsContext) -> Response:
    wanted = request.decode(TxnOffsetCommitRequest)
    errors = await commit_existing(
        wanted,
        context.metadata,
        _commit,
        lambda offsets: _commit_all(request, context, wanted, offsets),
    )
    topics = told_topics(errors, _TOPIC, _TOPIC.TxnOffsetCommitResponsePartition)
    return TxnOffsetCommitResponse(topics=topics)


async def _commit_all(
    request: Request,
    context: TransactionalOffsetsContext,
    wanted: TxnOffsetCommitRequest,
    offsets: Offsets,
) -> Errors:
    ask = CommitAsk(
        group_id=wanted.group_id,
        member_id=wanted.member_id,
        instance_id=wanted.group_instance_id,
        generation=wanted.generation_id,
        offsets=offsets,
    )
    producer = ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch)
    try:
        await _join(wanted, producer, request.version, context)
        errors = context.groups.commit_transactional(ask, producer)
        await context.offsets_topic.wait_committed(ask.group_id)
    except CoordinatorLoadInProgressError as error:
        is_known = request.version >= _LOADING_VERSION
        return [error if is_known else CoordinatorNotAvailableError()] * len(offsets)
    except BrokerResponseError as error:
        return [error] * len(offsets)
    return errors


async def _join(
    wanted: TxnOffsetCommitRequest,
    producer: ProducerIdAndEpoch,
    version: int,
    context: TransactionalOffsetsContext,
) -> None:
    """The group's partition is part of the transaction when this returns. Raises why it is not."""
    group_id = wanted.group_id
    if not group_id:
        raise InvalidGroupIdError()
    if not wanted.transactional_id:
        raise InvalidRequestError("the transactional id is empty")
    context.offsets_topic.check_coordinates(group_id)
    partition = context.offsets_topic.partition_of(group_id)
    topic_partition = TopicPartition(CONSUMER_OFFSETS, partition)
    producers = context.replicas.partition(topic_partition).log.producers
    if producers.is_in_transaction(*producer):
        return
    support = TransactionSupport.of(version, _ABORTABLE_VERSION, _IMPLICIT_ADD_VERSION)
    ask = JoinAsk(wanted.transactional_id, producer, [topic_partition], support)
    errors = context.transaction_partitions.join_at_once(ask)
    if errors is None:
        watch = producers.watch(producer.producer_id)
        try:
            errors = await context.transaction_partitions.join(ask)
        finally:
            producers.unwatch(producer.producer_id, watch)
        if watch.has_ended and not ask.adds:
            # Offsets that come after the end would open a transaction that nobody ends.
            raise CoordinatorNotAvailableError("the transaction ended while it was verified")
    error = errors[topic_partition]
    if isinstance(error, NetworkExceptionError):
        # Older clients would not try again, newer ones look for the group's coordinator first.
        raise CoordinatorLoadInProgressError(str(error))
    if error is not None:
        raise error


def _commit(part: TxnOffsetCommitRequest, topic: TopicMetadata) -> CommittedOffset:
    return new_commit(
        part.committed_offset,
        part.committed_leader_epoch,
        part.committed_metadata,
        system_clock_ms(),
        _BROKERS_RETENTION,
        topic.topic_id,
    )


API = Api(key=28, min_version=0, max_version=5, handle=handle, context=TransactionalOffsetsContext)
