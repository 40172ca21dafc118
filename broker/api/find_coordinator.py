"""FindCoordinator (key 10), versions 0-5: this broker coordinates every group.

Left out until this broker has transactions: coordinators of transactional ids, refused with
INVALID_REQUEST and a sentence that says so. Version 6 is for share groups.
"""

from kafka.errors import BrokerResponseError, InvalidRequestError
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Request, encoded
from broker.cluster.metadata import BrokerNode

_GROUP, _TRANSACTION = 0, 1
_NOBODY = BrokerNode(-1, "", -1)


def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(FindCoordinatorRequest)
    error = _refusal(wanted.key_type)
    code, message = wire_error(error)
    node = context.metadata.broker if error is None else _NOBODY
    answer = {
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        "error_code": code,
        "error_message": message,
    }
    if request.version < 4:
        return encoded(FindCoordinatorResponse(throttle_time_ms=0, **answer), request)
    coordinators = [
        FindCoordinatorResponse.Coordinator(key=key, **answer)
        for key in wanted.coordinator_keys or ()
    ]
    response = FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)
    return encoded(response, request)


def _refusal(key_type: int) -> BrokerResponseError | None:
    if key_type == _GROUP:
        return None
    if key_type == _TRANSACTION:
        return InvalidRequestError("transactions are not supported by this broker")
    return InvalidRequestError(f"unknown coordinator type {key_type}")


API = Api(key=10, min_version=0, max_version=5, handle=handle)
