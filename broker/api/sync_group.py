"""SyncGroup (key 14), versions 0-5: the leader says who gets what; each member asks for its part.

The answer comes when the leader has said it, and that is committed. Version 3 adds static members,
5 the protocol's type and name, which must be the group's (KIP-559).
"""

import asyncio
import functools

from kafka.errors import BrokerResponseError, InconsistentGroupProtocolError
from kafka.protocol.consumer import SyncGroupRequest, SyncGroupResponse

from broker.api.contexts import GroupContext
from broker.api.errors import code_of
from broker.api.request import Api, Request, settle
from broker.api.response import Response
from broker.coordinator.group import SyncAsk
from broker.coordinator.group_metadata import SyncResult

# The leader's request has the assignment of every member.
_MAX_REQUEST_BYTES = 16 << 20


async def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(SyncGroupRequest)
    if request.version >= 5 and (wanted.protocol_type is None or wanted.protocol_name is None):
        return _answer(SyncResult(InconsistentGroupProtocolError()), request)
    ask = SyncAsk(
        group_id=wanted.group_id,
        generation=wanted.generation_id,
        member_id=wanted.member_id,
        instance_id=wanted.group_instance_id,
        protocol_type=wanted.protocol_type,
        protocol_name=wanted.protocol_name,
        assignments={each.member_id: bytes(each.assignment) for each in wanted.assignments},
    )
    answer: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
    context.groups.sync(ask, functools.partial(settle, answer))
    synced = await answer
    if synced.error is None:
        try:
            await context.offsets_topic.wait_committed(ask.group_id)
        except BrokerResponseError as error:
            synced = SyncResult(error)
    return _answer(synced, request)


def _answer(synced: SyncResult, request: Request) -> Response:
    response = SyncGroupResponse(
        error_code=code_of(synced.error),
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )
    return response


API = Api(
    key=14,
    min_version=0,
    max_version=5,
    handle=handle,
    context=GroupContext,
    max_request_bytes=_MAX_REQUEST_BYTES,
)
