"""DeleteTopics (key 20), versions 0-6: by name, since version 6 by name or id.

The answer comes when the topics are gone for clients and for a restart, or the request's time is
over: they go all the same. Their files follow in the background. Left out: deletion quotas.
"""

from kafka.errors import (
    BrokerResponseError,
    InvalidRequestError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse

from broker.api.contexts import ControllerContext
from broker.api.deadline import Deadline
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.metadata import TopicMetadata

_STATE = DeleteTopicsRequest.DeleteTopicState


async def handle(request: Request, context: ControllerContext) -> Response:
    wanted = request.decode(DeleteTopicsRequest)
    if request.version >= 6:
        asks = list(wanted.topics or ())
    else:
        asks = [_STATE(name=name, topic_id=None) for name in wanted.topic_names or ()]
    deadline = Deadline(wanted.timeout_ms)
    responses = []
    for ask in asks:
        error: BrokerResponseError | None = None
        topic = None
        try:
            topic = _look_up(ask, context)
            await deadline.wait_for(context.controller.delete_topic(topic))
        except BrokerResponseError as raised:
            error = raised
        responses.append(_result(ask, topic, error))
    return DeleteTopicsResponse(responses=responses)


def _look_up(
    ask: "DeleteTopicsRequest.DeleteTopicState", context: ControllerContext
) -> TopicMetadata:
    """Raises BrokerResponseError when there is no such topic, or it may not be deleted."""
    if not context.config.delete_topic_enable:
        raise TopicDeletionDisabledError("Topic deletion is disabled.")
    if (ask.name is None) == (ask.topic_id is None):
        raise InvalidRequestError("A topic is named either by its name or by its id.")
    if ask.name is None:
        return context.controller.topic_by_id(ask.topic_id)
    try:
        return context.controller.topic(ask.name)
    except UnknownTopicOrPartitionError:
        message = "This server does not host this topic-partition."
        raise UnknownTopicOrPartitionError(message) from None


def _result(
    ask: "DeleteTopicsRequest.DeleteTopicState",
    topic: TopicMetadata | None,
    error: BrokerResponseError | None,
) -> object:
    code, message = wire_error(error)
    return DeleteTopicsResponse.DeletableTopicResult(
        name=ask.name if topic is None else topic.name,
        topic_id=ask.topic_id if topic is None else topic.topic_id,
        error_code=code,
        error_message=message,
    )


API = Api(key=20, min_version=0, max_version=6, handle=handle, context=ControllerContext)
