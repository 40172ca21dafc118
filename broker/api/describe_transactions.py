"""DescribeTransactions (key 65), versions 0-0: what the coordinator knows of transactional ids.

An id that is named twice is told of once: an answer grows with what is stored, not with a request's
repetitions. Answered when what is told is committed.
"""

from collections.abc import Collection

from kafka.errors import BrokerResponseError
from kafka.protocol.admin import DescribeTransactionsRequest, DescribeTransactionsResponse

from broker.api.contexts import TransactionContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Outcome, Response
from broker.coordinator.transaction_metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
)

_STATE = DescribeTransactionsResponse.TransactionState


def handle(request: Request, context: TransactionContext) -> Outcome:
    wanted = request.decode(DescribeTransactionsRequest)
    states = {}
    uncommitted = []
    for transactional_id in dict.fromkeys(wanted.transactional_ids):
        try:
            transaction = context.transactions.transaction(transactional_id)
            if context.transactions_topic.awaits_commit(transactional_id):
                uncommitted.append(transactional_id)
        except BrokerResponseError as error:
            states[transactional_id] = _failed(transactional_id, error)
        else:
            states[transactional_id] = _described(transactional_id, transaction)
    if uncommitted:
        return _answer_when_committed(states, uncommitted, context)
    return _answer(states)


async def _answer_when_committed(
    states: dict[str, object], uncommitted: Collection[str], context: TransactionContext
) -> Response:
    failures = await context.transactions_topic.failures(uncommitted)
    for transactional_id, error in failures.items():
        states[transactional_id] = _failed(transactional_id, error)
    return _answer(states)


def _answer(states: dict[str, object]) -> Response:
    return DescribeTransactionsResponse(transaction_states=list(states.values()))


def _described(transactional_id: str, transaction: TransactionMetadata) -> object:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    return _STATE(
        error_code=0,
        transactional_id=transactional_id,
        transaction_state=transaction.state.text,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            _STATE.TopicData(topic=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def _failed(transactional_id: str, error: BrokerResponseError) -> object:
    return _STATE(
        error_code=code_of(error),
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        topics=[],
    )


API = Api(key=65, min_version=0, max_version=0, handle=handle, context=TransactionContext)
