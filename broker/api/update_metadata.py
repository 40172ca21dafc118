"""UpdateMetadata (key 6), version 8: a controller says: which brokers and partitions there are."""

from broker.api.contexts import ControlledContext
from broker.api.control_requests import answer
from broker.api.request import MAX_BROKER_REQUEST_BYTES, Api, Request
from broker.api.response import Response
from broker.cluster.control_messages import UPDATE_METADATA_VERSION, UpdateMetadataRequest


async def handle(request: Request, context: ControlledContext) -> Response:
    return await answer(request, context, UpdateMetadataRequest)


API = Api(
    6,
    UPDATE_METADATA_VERSION,
    UPDATE_METADATA_VERSION,
    handle,
    ControlledContext,
    max_request_bytes=MAX_BROKER_REQUEST_BYTES,
)
