"""ListPartitionReassignments (key 46), versions 0-0: none, on a broker alone."""

from kafka.protocol.admin import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

from broker.api.request import Api, ApiContext, Request
from broker.api.response import Response


def handle(request: Request, context: ApiContext) -> Response:
    request.decode(ListPartitionReassignmentsRequest)
    response = ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=[])
    return response


API = Api(key=46, min_version=0, max_version=0, handle=handle)
