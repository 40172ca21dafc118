"""ElectLeaders (key 43), versions 0-2: every partition's only replica leads it already.

So there is nothing to elect: ELECTION_NOT_NEEDED for each partition that is named, no partition for
each topic where all are asked for.
"""

from kafka.errors import (
    BrokerResponseError,
    ElectionNotNeededError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import ElectLeadersRequest, ElectLeadersResponse

from broker.api.errors import code_of, wire_error
from broker.api.request import Api, ApiContext, Request
from broker.api.response import Response

_TOPIC = ElectLeadersResponse.ReplicaElectionResult
_PARTITION = _TOPIC.PartitionResult
_PREFERRED, _UNCLEAN = 0, 1


def handle(request: Request, context: ApiContext) -> Response:
    wanted = request.decode(ElectLeadersRequest)
    refusal = None
    if request.version >= 1 and wanted.election_type not in (_PREFERRED, _UNCLEAN):
        refusal = InvalidRequestError(f"Unknown election type {wanted.election_type}")
    if wanted.topic_partitions is None:
        results = [_TOPIC(topic=t.name, partition_result=[]) for t in context.metadata.topics()]
    else:
        results = [
            _TOPIC(
                topic=topic.topic,
                partition_result=[
                    _answer(index, refusal or _outcome(topic.topic, index, context))
                    for index in topic.partitions or ()
                ],
            )
            for topic in wanted.topic_partitions
        ]
    response = ElectLeadersResponse(error_code=code_of(refusal), replica_election_results=results)
    return response


def _outcome(name: str, index: int, context: ApiContext) -> BrokerResponseError:
    topic = context.metadata.topic(name)
    if topic is None:
        return UnknownTopicOrPartitionError(f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return UnknownTopicOrPartitionError(f"No such partition as {name}-{index}")
    return ElectionNotNeededError("Leader election not needed for topic partition.")


def _answer(index: int, error: BrokerResponseError) -> object:
    code, message = wire_error(error)
    return _PARTITION(partition_id=index, error_code=code, error_message=message)


API = Api(key=43, min_version=0, max_version=2, handle=handle)
