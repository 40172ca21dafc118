"""ListTransactions (key 66), versions 0-1: the transactional ids that this broker coordinates.

Filters by state and producer id; since version 1 by how long ago the transaction began. While ids
are being loaded there is no list. Left out: version 2, which filters by a regular expression of
anybody's (KIP-1152): Python's may take for ever.
"""

from kafka.errors import CoordinatorLoadInProgressError
from kafka.protocol.admin import ListTransactionsRequest, ListTransactionsResponse

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Request, encoded
from broker.coordinator.transaction_metadata import TransactionMetadata, TransactionState
from broker.log.clock import system_clock_ms

_DURATION_VERSION = 1
_STATES = {state.text for state in TransactionState}


def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(ListTransactionsRequest)
    unknown = [state for state in wanted.state_filters if state not in _STATES]
    if context.transactions.is_loading:
        code = wire_error(CoordinatorLoadInProgressError())[0]
        return encoded(_response(code, [], []), request)
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

    found = [
        ListTransactionsResponse.TransactionState(
            transactional_id=transactional_id,
            producer_id=transaction.producer_id,
            transaction_state=transaction.state.text,
        )
        for transactional_id, transaction in context.transactions.transactions().items()
        if is_wanted(transaction)
    ]
    return encoded(_response(0, unknown, found), request)


def _response(code: int, unknown: list[str], found: list[object]) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=code,
        unknown_state_filters=unknown,
        transaction_states=found,
    )


API = Api(key=66, min_version=0, max_version=1, handle=handle)
