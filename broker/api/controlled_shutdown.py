"""ControlledShutdown (key 7), version 3: a broker tells its controller that it is about to stop.

The answer comes when others lead what it led, and it has stopped to follow; it names what nobody
else can lead.
"""

from kafka.errors import BrokerResponseError

from broker.api.contexts import ControllerContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.isr_messages import (
    CONTROLLED_SHUTDOWN_VERSION,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)


async def handle(request: Request, context: ControllerContext) -> Response:
    asked = request.decode(ControlledShutdownRequest)
    try:
        remaining = await context.controller.shut_down(asked.broker_id, asked.broker_epoch)
    except BrokerResponseError as error:
        return ControlledShutdownResponse(error_code=code_of(error), remaining_partitions=[])
    partition_class = ControlledShutdownResponse.RemainingPartition
    return ControlledShutdownResponse(
        error_code=0,
        remaining_partitions=[
            partition_class(topic_name=each.topic, partition_index=each.partition)
            for each in remaining
        ],
    )


API = Api(7, CONTROLLED_SHUTDOWN_VERSION, CONTROLLED_SHUTDOWN_VERSION, handle, ControllerContext)
