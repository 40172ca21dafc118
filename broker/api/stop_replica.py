"""StopReplica (key 5), version 4: a controller says: keep these partitions no more."""

from broker.api.contexts import ControlledContext
from broker.api.control_requests import answer
from broker.api.request import MAX_BROKER_REQUEST_BYTES, Api, Request
from broker.api.response import Response
from broker.cluster.control_messages import STOP_REPLICA_VERSION, StopReplicaRequest


async def handle(request: Request, context: ControlledContext) -> Response:
    return await answer(request, context, StopReplicaRequest)


API = Api(
    5,
    STOP_REPLICA_VERSION,
    STOP_REPLICA_VERSION,
    handle,
    ControlledContext,
    max_request_bytes=MAX_BROKER_REQUEST_BYTES,
)
