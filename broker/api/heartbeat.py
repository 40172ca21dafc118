"""Heartbeat (key 12), versions 0-4: a group's member is alive, and hears whether to join again."""

from kafka.errors import BrokerResponseError
from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse

from broker.api.contexts import GroupContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response


def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(HeartbeatRequest)
    error: BrokerResponseError | None = None
    try:
        context.groups.heartbeat(
            wanted.group_id,
            wanted.generation_id,
            wanted.member_id,
            wanted.group_instance_id,
        )
    except BrokerResponseError as raised:
        error = raised
    return HeartbeatResponse(error_code=code_of(error))


API = Api(key=12, min_version=0, max_version=4, handle=handle, context=GroupContext)
