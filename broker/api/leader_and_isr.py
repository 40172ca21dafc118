"""LeaderAndIsr (key 4), version 7: a controller says: lead these partitions, or follow them."""

from broker.api.contexts import ControlledContext
from broker.api.control_requests import answer
from broker.api.request import MAX_BROKER_REQUEST_BYTES, Api, Request
from broker.api.response import Response
from broker.cluster.control_messages import LEADER_AND_ISR_VERSION, LeaderAndIsrRequest


async def handle(request: Request, context: ControlledContext) -> Response:
    return await answer(request, context, LeaderAndIsrRequest)


API = Api(
    4,
    LEADER_AND_ISR_VERSION,
    LEADER_AND_ISR_VERSION,
    handle,
    ControlledContext,
    max_request_bytes=MAX_BROKER_REQUEST_BYTES,
)
