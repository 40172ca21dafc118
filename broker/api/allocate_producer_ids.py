"""AllocateProducerIds (key 67), version 0: a broker asks its controller for producer ids.

They are the broker's to give away; nobody else has them, whatever becomes of it.
"""

from kafka.errors import BrokerResponseError

from broker.api.contexts import ControllerContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.isr_messages import (
    ALLOCATE_PRODUCER_IDS_VERSION,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


async def handle(request: Request, context: ControllerContext) -> Response:
    asked = request.decode(AllocateProducerIdsRequest)
    block, error = range(0), None
    try:
        block = await context.controller.allocate_producer_ids(asked.broker_id, asked.broker_epoch)
    except BrokerResponseError as raised:
        error = raised
    return AllocateProducerIdsResponse(
        error_code=code_of(error),
        producer_id_start=block.start,
        producer_id_len=len(block),
    )


API = Api(
    67, ALLOCATE_PRODUCER_IDS_VERSION, ALLOCATE_PRODUCER_IDS_VERSION, handle, ControllerContext
)
