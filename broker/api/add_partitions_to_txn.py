"""AddPartitionsToTxn (key 24), versions 0-5: partitions that a producer is about to write to.

Before version 4 one transaction of a client; where one of its partitions cannot be added, none is.
Since then several (as brokers ask one another), each of which may be asked to be verified alone;
one that is named twice counts once, as answers name it alone.
Clients of transaction version 2 send none: their Produce adds the partitions (KIP-890).
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from kafka.errors import (
    BrokerResponseError,
    InvalidProducerEpochError,
    OperationNotAttemptedError,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.producer import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kafka.structs import TopicPartition

from broker.api.contexts import TransactionContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.metadata import INTERNAL_TOPICS
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_metadata import EPOCH_BUMP_VERSION

_FENCED_VERSION = 2
_BATCH_VERSION = 4
_TOPIC = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PARTITION = _TOPIC.AddPartitionsToTxnPartitionResult

_Errors = Mapping[TopicPartition, BrokerResponseError | None]


async def handle(request: Request, context: TransactionContext) -> Response:
    wanted = request.decode(AddPartitionsToTxnRequest)
    if request.version >= _BATCH_VERSION:
        return await _answer_brokers(wanted, request.version, context)
    topic_partitions = _named(wanted.v3_and_below_topics)
    producer = ProducerIdAndEpoch(
        wanted.v3_and_below_producer_id, wanted.v3_and_below_producer_epoch
    )
    transactional_id = wanted.v3_and_below_transactional_id
    try:
        errors = _add(transactional_id, producer, topic_partitions, request.version, context)
        if not any(errors.values()):
            await context.transactions_topic.wait_committed(transactional_id)
    except BrokerResponseError as error:
        is_unknown = request.version < _FENCED_VERSION and isinstance(error, ProducerFencedError)
        errors = dict.fromkeys(
            topic_partitions, InvalidProducerEpochError() if is_unknown else error
        )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topics(errors))


async def _answer_brokers(
    wanted: AddPartitionsToTxnRequest, version: int, context: TransactionContext
) -> Response:
    """All are done before any is waited for, which are so together."""
    topic = context.transactions_topic
    results: dict[str, _Errors] = {}
    uncommitted = []
    for transaction in wanted.transactions:
        await asyncio.sleep(0)  # each one of many may cost milliseconds
        transactional_id = transaction.transactional_id
        producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        topic_partitions = _named(transaction.topics)
        answer = _verify if transaction.verify_only else _add
        try:
            results[transactional_id] = answer(
                transactional_id, producer, topic_partitions, version, context
            )
            if not all(results[transactional_id].values()) and topic.awaits_commit(
                transactional_id
            ):
                uncommitted.append(transactional_id)
        except BrokerResponseError as error:
            results[transactional_id] = dict.fromkeys(topic_partitions, error)
    if uncommitted:
        for transactional_id, failure in (await topic.failures(uncommitted)).items():
            results[transactional_id] = dict.fromkeys(results[transactional_id], failure)
    return AddPartitionsToTxnResponse(
        error_code=0,
        results_by_transaction=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=transactional_id, topic_results=_topics(errors)
            )
            for transactional_id, errors in results.items()
        ],
    )


def _named(topics: Any) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, partition)
        for topic in topics or ()
        for partition in topic.partitions or ()
    ]


def _add(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topic_partitions: list[TopicPartition],
    version: int,
    context: TransactionContext,
) -> _Errors:
    """Raises why none is added."""
    refused = _refused(topic_partitions, version, context)
    if refused:
        return {each: refused.get(each, OperationNotAttemptedError()) for each in topic_partitions}
    client_version = EPOCH_BUMP_VERSION if version >= _BATCH_VERSION else 0
    context.transactions.add_partitions(
        transactional_id, producer, frozenset(topic_partitions), client_version
    )
    return dict.fromkeys(topic_partitions)


def _verify(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topic_partitions: list[TopicPartition],
    version: int,
    context: TransactionContext,
) -> _Errors:
    """Raises why none is verified."""
    refused = _refused(topic_partitions, version, context)
    if refused:
        return {each: refused.get(each, OperationNotAttemptedError()) for each in topic_partitions}
    return context.transactions.verify_partitions(
        transactional_id, producer, frozenset(topic_partitions)
    )


def _refused(
    topic_partitions: list[TopicPartition], version: int, context: TransactionContext
) -> dict[TopicPartition, BrokerResponseError]:
    """The partitions that nobody could write to."""
    refused: dict[TopicPartition, BrokerResponseError] = {}
    for topic_partition in topic_partitions:
        topic = context.metadata.topic(topic_partition.topic)
        if version < _BATCH_VERSION and topic_partition.topic in INTERNAL_TOPICS:
            refused[topic_partition] = TopicAuthorizationFailedError()
        elif topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            refused[topic_partition] = UnknownTopicOrPartitionError()
    return refused


def _topics(errors: _Errors) -> list[object]:
    topics: dict[str, list[object]] = {}
    for topic_partition, error in errors.items():
        topics.setdefault(topic_partition.topic, []).append(
            _PARTITION(
                partition_index=topic_partition.partition, partition_error_code=code_of(error)
            )
        )
    return [_TOPIC(name=name, results_by_partition=parts) for name, parts in topics.items()]


API = Api(key=24, min_version=0, max_version=5, handle=handle, context=TransactionContext)
