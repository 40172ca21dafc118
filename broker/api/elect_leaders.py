"""ElectLeaders (key 43), versions 0-2: preferred leaders lead again, or anybody who is there does.

Asked of the controller. The answer comes when this broker's clients are told, or when the request's
timeout is over: REQUEST_TIMED_OUT for each partition that was named, and the elections go on.
"""

from collections.abc import Mapping
from itertools import groupby

from kafka.errors import (
    BrokerResponseError,
    ElectionNotNeededError,
    InvalidRequestError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import ElectLeadersRequest, ElectLeadersResponse
from kafka.structs import TopicPartition

from broker.api.contexts import ControllerContext
from broker.api.deadline import Deadline
from broker.api.errors import code_of, wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.controller.leaders import Election

_TOPIC = ElectLeadersResponse.ReplicaElectionResult
_PARTITION = _TOPIC.PartitionResult


async def handle(request: Request, context: ControllerContext) -> Response:
    wanted = request.decode(ElectLeadersRequest)
    named = None
    if wanted.topic_partitions is not None:
        named = [
            TopicPartition(topic.topic, index)
            for topic in wanted.topic_partitions
            for index in topic.partitions or ()
        ]
    refusal: BrokerResponseError | None = None
    outcomes: Mapping[TopicPartition, BrokerResponseError | None]
    try:
        kind = _kind(wanted.election_type if request.version >= 1 else Election.PREFERRED.value)
        electing = context.controller.leaders.elect(kind, named)
        outcomes = await Deadline(wanted.timeout_ms).wait_for(electing)
    except RequestTimedOutError as error:
        refusal = None if named else error  # of all partitions nobody knows yet which it is about
        outcomes = dict.fromkeys(named or (), error)
    except BrokerResponseError as error:
        refusal = error
        outcomes = dict.fromkeys(named or (), error)
    if named is None:  # nothing was to be done for most
        outcomes = {
            each: error
            for each, error in outcomes.items()
            if not isinstance(error, ElectionNotNeededError)
        }
    return ElectLeadersResponse(
        error_code=code_of(refusal),
        replica_election_results=[
            _TOPIC(topic=name, partition_result=[_answer(*each, context) for each in of_topic])
            for name, of_topic in groupby(
                sorted(outcomes.items(), key=lambda each: each[0]), lambda each: each[0].topic
            )
        ],
    )


def _kind(number: int) -> Election:
    try:
        return Election(number)
    except ValueError:
        raise InvalidRequestError(f"Unknown election type {number}") from None


def _answer(
    topic_partition: TopicPartition, error: BrokerResponseError | None, context: ControllerContext
) -> object:
    if isinstance(error, UnknownTopicOrPartitionError):
        topic, partition = topic_partition
        is_topic = context.metadata.topic(topic) is None
        missing = f"topic as {topic}" if is_topic else f"partition as {topic}-{partition}"
        error = UnknownTopicOrPartitionError(f"No such {missing}")
    code, message = wire_error(error)
    return _PARTITION(
        partition_id=topic_partition.partition, error_code=code, error_message=message
    )


API = Api(key=43, min_version=0, max_version=2, handle=handle, context=ControllerContext)
