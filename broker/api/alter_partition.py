"""AlterPartition (key 56), version 3: a leader asks its controller for other ISRs."""

from kafka.errors import BrokerResponseError

from broker.api.contexts import ControllerContext
from broker.api.request import MAX_BROKER_ELEMENTS, MAX_BROKER_REQUEST_BYTES, Api, Request
from broker.api.response import Response
from broker.cluster.isr_messages import (
    ALTER_PARTITION_VERSION,
    AlterPartitionRequest,
    alter_partition_in,
    alter_partition_response,
)


async def handle(request: Request, context: ControllerContext) -> Response:
    asked = alter_partition_in(request.decode(AlterPartitionRequest, MAX_BROKER_ELEMENTS))
    try:
        return alter_partition_response(asked, await context.controller.alter_partitions(asked))
    except BrokerResponseError as error:
        return alter_partition_response(asked, [], error)


API = Api(
    56,
    ALTER_PARTITION_VERSION,
    ALTER_PARTITION_VERSION,
    handle,
    ControllerContext,
    max_request_bytes=MAX_BROKER_REQUEST_BYTES,
)
