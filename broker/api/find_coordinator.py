"""FindCoordinator (key 10), versions 0-6: this broker coordinates every group.

The first question makes `__consumer_offsets`; the answer comes when it is there. Several keys since
version 4. Left out until this broker has transactions: coordinators of transactional ids, refused
with INVALID_REQUEST and a sentence that says so; and the share groups of version 6.
"""

from kafka.errors import BrokerResponseError, InvalidRequestError
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Request, encoded
from broker.cluster.metadata import BrokerNode

_GROUP, _TRANSACTION = 0, 1
_BATCH_VERSION = 4
_NOBODY = BrokerNode(-1, "", -1)


async def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(FindCoordinatorRequest)
    error: BrokerResponseError | None = None
    try:
        if wanted.key_type == _TRANSACTION:
            raise InvalidRequestError("transactions are not supported by this broker")
        if wanted.key_type != _GROUP:
            raise InvalidRequestError(f"unknown coordinator type {wanted.key_type}")
        await context.offsets_topic.ensure()
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
        return encoded(FindCoordinatorResponse(throttle_time_ms=0, **answer), request)
    coordinators = [
        FindCoordinatorResponse.Coordinator(key=key, **answer) for key in wanted.coordinator_keys
    ]
    response = FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)
    return encoded(response, request)


API = Api(key=10, min_version=0, max_version=6, handle=handle)
