"""LeaveGroup (key 13), versions 0-5: members go at once instead of by their session's end.

Before version 3 one member, whose error is the answer's; since then several, each with its own.
"""

from kafka.errors import BrokerResponseError
from kafka.protocol.consumer import LeaveGroupRequest, LeaveGroupResponse

from broker.api.errors import code_of
from broker.api.request import Api, ApiContext, Request
from broker.api.response import Response

_BATCH_VERSION = 3


def handle(request: Request, context: ApiContext) -> Response:
    wanted = request.decode(LeaveGroupRequest)
    if request.version < _BATCH_VERSION:
        identities: list[tuple[str, str | None]] = [(wanted.member_id, None)]
    else:
        identities = [(member.member_id, member.group_instance_id) for member in wanted.members]
    error: BrokerResponseError | None = None
    errors: list[BrokerResponseError | None] = []
    try:
        if context.consumer_groups.has(wanted.group_id):
            errors = context.consumer_groups.remove_members(wanted.group_id, identities)
        else:
            errors = context.groups.leave(wanted.group_id, identities)
    except BrokerResponseError as raised:
        error = raised
    if request.version < _BATCH_VERSION and errors:
        error = errors[0]
    response = LeaveGroupResponse(
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
    return response


API = Api(key=13, min_version=0, max_version=5, handle=handle)
