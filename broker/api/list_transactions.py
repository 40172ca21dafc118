"""ListTransactions (key 66), versions 0-2: the transactional ids that this broker coordinates.

Filters by state and producer id; since version 1 by how long ago the transaction began, since
version 2 by an expression that the whole id has to match (KIP-1152): RE2's, in a thread. While ids
are being loaded there is no list.
"""

import asyncio
from collections.abc import Collection

from kafka.errors import BrokerResponseError, CoordinatorLoadInProgressError
from kafka.protocol.admin import ListTransactionsRequest, ListTransactionsResponse

from broker.api.contexts import TransactionContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.topic_regex import check_regex, resolve
from broker.coordinator.transaction_metadata import TransactionMetadata, TransactionState
from broker.log.clock import system_clock_ms

_DURATION_VERSION = 1
_PATTERN_VERSION = 2
_STATES = {state.text for state in TransactionState}


async def handle(request: Request, context: TransactionContext) -> Response:
    wanted = request.decode(ListTransactionsRequest)
    unknown = [state for state in wanted.state_filters if state not in _STATES]
    if context.transactions.is_loading_any:
        return _failed(CoordinatorLoadInProgressError())
    states = set(wanted.state_filters)
    producer_ids = set(wanted.producer_id_filters)
    duration_ms = wanted.duration_filter if request.version >= _DURATION_VERSION else -1
    begun_before_ms = system_clock_ms() - duration_ms

    def is_wanted(transaction: TransactionMetadata) -> bool:
        return (
            (not states or transaction.state.text in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (duration_ms < 0 or transaction.start_ms < begun_before_ms)
        )

    found = {
        transactional_id: transaction
        for transactional_id, transaction in context.transactions.transactions().items()
        if is_wanted(transaction)
    }
    names: Collection[str] = found
    if request.version >= _PATTERN_VERSION and wanted.transactional_id_pattern:
        pattern = wanted.transactional_id_pattern
        try:
            names = await asyncio.to_thread(_matching, pattern, list(found))
        except BrokerResponseError as error:
            return _failed(error)
    listed = [
        ListTransactionsResponse.TransactionState(
            transactional_id=name,
            producer_id=found[name].producer_id,
            transaction_state=found[name].state.text,
        )
        for name in names
    ]
    return _response(0, unknown, listed)


def _matching(pattern: str, names: Collection[str]) -> Collection[str]:
    """Blocks, for some seconds at most. Raises InvalidRegularExpressionError."""
    check_regex(pattern)
    matching = resolve([pattern], names)[pattern]
    return [name for name in names if name in matching]


def _failed(error: BrokerResponseError) -> ListTransactionsResponse:
    return _response(code_of(error), [], [])


def _response(code: int, unknown: list[str], found: list[object]) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        error_code=code,
        unknown_state_filters=unknown,
        transaction_states=found,
    )


API = Api(key=66, min_version=0, max_version=2, handle=handle, context=TransactionContext)
