"""ListPartitionReassignments (key 46), versions 0-0: none, on a broker alone."""

from kafka.protocol.admin import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

from broker.api.request import Api, ApiContext, Body, Request, encoded


def handle(request: Request, context: ApiContext) -> Body:
    request.decode(ListPartitionReassignmentsRequest)
    response = ListPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=0, error_message=None, topics=[]
    )
    return encoded(response, request)


API = Api(key=46, min_version=0, max_version=0, handle=handle)
