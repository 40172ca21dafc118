"""AlterPartitionReassignments (key 45), versions 0-1: has replicas move to other brokers, or back.

Asked of the controller. The answer comes when the moves have begun; how they go on is
ListPartitionReassignments's to say. Left out: the request's timeout.
"""

from collections.abc import Mapping

from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from kafka.structs import TopicPartition

from broker.api.contexts import ControllerContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response

_TOPIC = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_PARTITION = _TOPIC.ReassignablePartitionResponse


async def handle(request: Request, context: ControllerContext) -> Response:
    wanted = request.decode(AlterPartitionReassignmentsRequest)
    any_count = request.version == 0 or wanted.allow_replication_factor_change
    asked = {
        TopicPartition(topic.name, ask.partition_index): ask.replicas
        for topic in wanted.topics or ()
        for ask in topic.partitions or ()
    }
    refusal: BrokerResponseError | None = None
    outcomes: Mapping[TopicPartition, BrokerResponseError | None] = {}
    try:
        outcomes = await context.controller.moves.begin(asked, any_count=any_count)
    except BrokerResponseError as error:
        refusal = error
    code, message = wire_error(refusal)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=wanted.allow_replication_factor_change,
        error_code=code,
        error_message=message,
        responses=[
            _TOPIC(
                name=topic.name,
                partitions=[
                    _answer(each, outcomes[each])
                    for ask in topic.partitions or ()
                    for each in (TopicPartition(topic.name, ask.partition_index),)
                ],
            )
            for topic in wanted.topics or ()
            if outcomes
        ],
    )


def _answer(topic_partition: TopicPartition, error: BrokerResponseError | None) -> object:
    if isinstance(error, UnknownTopicOrPartitionError):
        error = UnknownTopicOrPartitionError("The partition does not exist.")
    code, message = wire_error(error)
    return _PARTITION(
        partition_index=topic_partition.partition, error_code=code, error_message=message
    )


API = Api(key=45, min_version=0, max_version=1, handle=handle, context=ControllerContext)
