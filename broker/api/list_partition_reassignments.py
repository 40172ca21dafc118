"""ListPartitionReassignments (key 46), versions 0-0: the partitions whose replicas move.

Asked of the controller.
"""

from itertools import groupby

from kafka.errors import BrokerResponseError
from kafka.protocol.admin import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafka.structs import TopicPartition

from broker.api.contexts import ControllerContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.control import Partitions

_TOPIC = ListPartitionReassignmentsResponse.OngoingTopicReassignment
_PARTITION = _TOPIC.OngoingPartitionReassignment


def handle(request: Request, context: ControllerContext) -> Response:
    wanted = request.decode(ListPartitionReassignmentsRequest)
    moving: Partitions = {}
    refusal: BrokerResponseError | None = None
    try:
        moving = context.controller.moves.under_way()
    except BrokerResponseError as error:
        refusal = error
    if wanted.topics is not None:
        named = {
            TopicPartition(topic.name, index)
            for topic in wanted.topics
            for index in topic.partition_indexes or ()
        }
        moving = {each: state for each, state in moving.items() if each in named}
    code, message = wire_error(refusal)
    return ListPartitionReassignmentsResponse(
        error_code=code,
        error_message=message,
        topics=[
            _TOPIC(
                name=name,
                partitions=[
                    _PARTITION(
                        partition_index=each.partition,
                        replicas=list(state.replicas),
                        adding_replicas=list(state.adding),
                        removing_replicas=list(state.removing),
                    )
                    for each, state in of_topic
                ],
            )
            for name, of_topic in groupby(
                sorted(moving.items(), key=lambda each: each[0]), lambda each: each[0].topic
            )
        ],
    )


API = Api(key=46, min_version=0, max_version=0, handle=handle, context=ControllerContext)
