"""FindCoordinator (key 10), versions 0-6: this broker coordinates every group and transaction.

The first question makes `__consumer_offsets` or `__transaction_state`; the answer comes when it is
there. Several keys since version 4. Left out: the share groups of version 6.
"""

from kafka.errors import BrokerResponseError, InvalidRequestError
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Request
from broker.api.response import Response
from broker.cluster.metadata import BrokerNode

_GROUP, _TRANSACTION = 0, 1
_BATCH_VERSION = 4
_NOBODY = BrokerNode(-1, "", -1)


async def handle(request: Request, context: ApiContext) -> Response:
    wanted = request.decode(FindCoordinatorRequest)
    error: BrokerResponseError | None = None
    try:
        if wanted.key_type == _GROUP:
            await context.offsets_topic.ensure()
        elif wanted.key_type == _TRANSACTION:
            await context.transactions_topic.ensure()
        else:
            raise InvalidRequestError(f"unknown coordinator type {wanted.key_type}")
    except BrokerResponseError as raised:
        error = raised
    code, message = wire_error(error)
    node = context.metadata.broker if error is None else _NOBODY
    answer = {
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        "error_code": code,
        "error_message": message,
    }
    if request.version < _BATCH_VERSION:
        return FindCoordinatorResponse(**answer)
    coordinators = [
        FindCoordinatorResponse.Coordinator(key=key, **answer) for key in wanted.coordinator_keys
    ]
    return FindCoordinatorResponse(coordinators=coordinators)


API = Api(key=10, min_version=0, max_version=6, handle=handle)
