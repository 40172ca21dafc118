"""LeaveGroup (key 13), versions 0-5: members go at once instead of by their session's end.

Before version 3 one member, whose error is the answer's; since then several, each with its own.
What a group of the consumer protocol has written down by it is committed before the answer.
"""

from collections.abc import Sequence
from typing import TypeAlias

from kafka.errors import BrokerResponseError
from kafka.protocol.consumer import LeaveGroupRequest, LeaveGroupResponse

from broker.api.contexts import GroupContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Outcome, Response

_BATCH_VERSION = 3

_Identities: TypeAlias = Sequence[tuple[str, str | None]]
_Errors: TypeAlias = Sequence[BrokerResponseError | None]


def handle(request: Request, context: GroupContext) -> Outcome:
    wanted = request.decode(LeaveGroupRequest)
    if request.version < _BATCH_VERSION:
        identities: _Identities = [(wanted.member_id, None)]
    else:
        identities = [(member.member_id, member.group_instance_id) for member in wanted.members]
    try:
        if context.consumer_groups.has(wanted.group_id):
            errors = context.consumer_groups.remove_members(wanted.group_id, identities)
            if context.offsets_topic.awaits_commit(wanted.group_id):
                return _answer_when_committed(request, wanted.group_id, identities, errors, context)
        else:
            errors = context.groups.leave(wanted.group_id, identities)
    except BrokerResponseError as error:
        return _answer(request, identities, (), error)
    return _answer(request, identities, errors)


async def _answer_when_committed(
    request: Request,
    group_id: str,
    identities: _Identities,
    errors: _Errors,
    context: GroupContext,
) -> Response:
    try:
        await context.offsets_topic.wait_committed(group_id)
    except BrokerResponseError as error:
        return _answer(request, identities, (), error)
    return _answer(request, identities, errors)


def _answer(
    request: Request,
    identities: _Identities,
    errors: _Errors,
    error: BrokerResponseError | None = None,
) -> Response:
    """`error`: why none has left, where that is so."""
    if request.version < _BATCH_VERSION and errors:
        error = errors[0]
    return LeaveGroupResponse(
        error_code=code_of(error),
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=member_id,
                group_instance_id=instance_id,
                error_code=code_of(each),
            )
            for (member_id, instance_id), each in zip(identities, errors, strict=False)
        ],
    )


API = Api(key=13, min_version=0, max_version=5, handle=handle, context=GroupContext)
