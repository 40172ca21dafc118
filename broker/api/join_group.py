"""JoinGroup (key 11), versions 0-9: a member joins, or joins again; the answer begins a generation.

The answer comes when every member has joined, or a timeout says that enough have been waited for,
and what the group has written down is committed.
Version 0 has no rebalance timeout: the session's counts. Since version 4 a new member is first told
its id, with MEMBER_ID_REQUIRED, and asks again; 5 adds static members (KIP-345), 9 tells a leader
that it need not assign (KIP-814).
"""

import asyncio
import functools

from kafka.errors import BrokerResponseError
from kafka.protocol.consumer import JoinGroupRequest, JoinGroupResponse

from broker.api.contexts import GroupContext
from broker.api.errors import code_of
from broker.api.request import Api, Request, settle
from broker.api.response import Response
from broker.coordinator.group import JoinAsk
from broker.coordinator.group_metadata import JoinResult, MemberProtocol

# What many members with many topics say in all is told to the leader; one member says less.
_MAX_REQUEST_BYTES = 16 << 20


async def handle(request: Request, context: GroupContext) -> Response:
    ask = _ask(request)
    answer: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
    context.groups.join(ask, functools.partial(settle, answer))
    joined = await answer
    if joined.error is None:
        try:
            await context.offsets_topic.wait_committed(ask.group_id)
        except BrokerResponseError as error:
            joined = JoinResult(joined.member_id, error)
    protocol_name = joined.protocol_name
    if protocol_name is None and request.version < 7:
        protocol_name = ""
    response = JoinGroupResponse(
        error_code=code_of(joined.error),
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=protocol_name,
        leader=joined.leader_id,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )
    return response


def _ask(request: Request) -> JoinAsk:
    wanted, caller = request.decode(JoinGroupRequest), request.caller
    session_timeout_ms = wanted.session_timeout_ms
    rebalance_timeout_ms = wanted.rebalance_timeout_ms
    return JoinAsk(
        group_id=wanted.group_id,
        member_id=wanted.member_id,
        instance_id=wanted.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(
            session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms
        ),
        protocol_type=wanted.protocol_type,
        protocols=tuple(
            MemberProtocol(protocol.name, bytes(protocol.metadata)) for protocol in wanted.protocols
        ),
        reason=wanted.reason or "",
        requires_known_member_id=request.version >= 4,
        supports_skipping_assignment=request.version >= 9,
    )


API = Api(
    key=11,
    min_version=0,
    max_version=9,
    handle=handle,
    context=GroupContext,
    max_request_bytes=_MAX_REQUEST_BYTES,
)
