"""AlterPartitionReassignments (key 45), versions 0-1: no partition can move from the only broker.

A reassignment to where the partition is succeeds and changes nothing; any other names a broker that
is not there. Left out: the request's timeout.
"""

from kafka.errors import (
    BrokerResponseError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Request
from broker.api.response import Response
from broker.api.topic_assignments import check_assignment

_TOPIC = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_PARTITION = _TOPIC.ReassignablePartitionResponse


def handle(request: Request, context: ApiContext) -> Response:
    wanted = request.decode(AlterPartitionReassignmentsRequest)
    responses = [
        _TOPIC(
            name=topic.name,
            partitions=[_answer(topic.name, ask, context) for ask in topic.partitions or ()],
        )
        for topic in wanted.topics or ()
    ]
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=wanted.allow_replication_factor_change,
        error_code=0,
        error_message=None,
        responses=responses,
    )
    return response


def _answer(
    name: str,
    ask: "AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition",
    context: ApiContext,
) -> object:
    error: BrokerResponseError | None = None
    try:
        topic = context.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"Unable to find a topic named {name}.")
        if not 0 <= ask.partition_index < len(topic.partitions):
            raise UnknownTopicOrPartitionError(
                f"Unable to find partition {name}:{ask.partition_index}."
            )
        if ask.replicas is None:
            raise NoReassignmentInProgressError()
        check_assignment(ask.replicas, context)
    except BrokerResponseError as raised:
        error = raised
    code, message = wire_error(error)
    return _PARTITION(partition_index=ask.partition_index, error_code=code, error_message=message)


API = Api(key=45, min_version=0, max_version=1, handle=handle)
