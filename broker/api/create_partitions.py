"""CreatePartitions (key 37), versions 0-3: more partitions for a topic, or only a check.

Each topic succeeds or fails alone. The answer comes when the partitions are served, or the
request's time is over: they are made all the same. Left out: creation quotas.
"""

from collections import Counter

from kafka.errors import (
    BrokerResponseError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import CreatePartitionsRequest, CreatePartitionsResponse

from broker.api.contexts import ControllerContext
from broker.api.create_topics import MAX_PARTITIONS_PER_REQUEST, too_many
from broker.api.deadline import Deadline
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.api.topic_assignments import check_assignment

_RESULT = CreatePartitionsResponse.CreatePartitionsTopicResult


async def handle(request: Request, context: ControllerContext) -> Response:
    wanted = request.decode(CreatePartitionsRequest)
    names = Counter(topic.name for topic in wanted.topics or ())
    deadline = Deadline(wanted.timeout_ms)
    asks = {topic.name: topic for topic in wanted.topics or ()}
    added = 0
    results = []
    for name, ask in asks.items():
        error: BrokerResponseError | None = None
        try:
            if names[name] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            added += _additional(ask, context)
            if added > MAX_PARTITIONS_PER_REQUEST:
                raise too_many()
            if not wanted.validate_only:
                adding = context.controller.add_partitions(name, ask.count, _assignment(ask))
                await deadline.wait_for(adding)
        except BrokerResponseError as raised:
            error = raised
        code, message = wire_error(error)
        results.append(_RESULT(name=name, error_code=code, error_message=message))
    return CreatePartitionsResponse(results=results)


def _additional(
    ask: "CreatePartitionsRequest.CreatePartitionsTopic", context: ControllerContext
) -> int:
    """How many partitions are to be added. Raises BrokerResponseError when that cannot be."""
    try:
        topic = context.controller.topic(ask.name)
    except UnknownTopicOrPartitionError:
        raise UnknownTopicOrPartitionError() from None
    present = len(topic.partitions)
    if ask.count == present:
        raise InvalidPartitionsError(f"Topic already has {present} partition(s).")
    if ask.count < present:
        raise InvalidPartitionsError(
            f"The topic {ask.name} currently has {present} partition(s); {ask.count} would not "
            "be an increase."
        )
    additional = int(ask.count) - present
    if ask.assignments is not None:
        if len(ask.assignments) != additional:
            raise InvalidReplicationAssignmentError(
                f"Attempted to add {additional} additional partition(s), but only "
                f"{len(ask.assignments)} assignment(s) were specified."
            )
        for assignment in ask.assignments:
            check_assignment(assignment.broker_ids, context, len(topic.partitions[0].replicas))
    return additional


def _assignment(
    ask: "CreatePartitionsRequest.CreatePartitionsTopic",
) -> list[tuple[int, ...]] | None:
    if ask.assignments is None:
        return None
    return [tuple(assignment.broker_ids) for assignment in ask.assignments]


API = Api(key=37, min_version=0, max_version=3, handle=handle, context=ControllerContext)
