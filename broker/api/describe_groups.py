"""DescribeGroups (key 15), versions 0-6: groups with their members and what each was assigned.

A group that is not there is "Dead", and since version 6 GROUP_ID_NOT_FOUND too (KIP-1043). What
members said and were assigned is told of a stable group only. A group that is named repeatedly is
answered once.
"""

from kafka.errors import BrokerResponseError, GroupIdNotFoundError
from kafka.protocol.admin import DescribeGroupsRequest, DescribeGroupsResponse

from broker.api.contexts import GroupContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.group_metadata import GroupMetadata, GroupState

# What the client may do: everything, since there is no authorizer. Kafka's AclOperation codes.
GROUP_OPERATIONS = frozenset((3, 6, 8, 10, 11))
_NOT_FOUND_VERSION = 6
_GROUP = DescribeGroupsResponse.DescribedGroup


def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(DescribeGroupsRequest)
    described = []
    for group_id in dict.fromkeys(wanted.groups):
        try:
            group = context.groups.group(group_id)
        except GroupIdNotFoundError as error:
            told = error if request.version >= _NOT_FOUND_VERSION else None
            described.append(_absent(group_id, GroupState.DEAD.value, told))
        except BrokerResponseError as error:
            described.append(_absent(group_id, "", error))
        else:
            described.append(_described(group, bool(wanted.include_authorized_operations)))
    return DescribeGroupsResponse(groups=described)


def _described(group: GroupMetadata, with_operations: bool) -> object:
    is_stable = group.is_in(GroupState.STABLE)
    members = [
        _GROUP.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
            member_assignment=member.assignment if is_stable else b"",
        )
        for member in group.members.values()
    ]
    return _GROUP(
        error_code=0,
        error_message=None,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=members,
        authorized_operations=GROUP_OPERATIONS if with_operations else None,
    )


def _absent(group_id: str, state: str, error: BrokerResponseError | None) -> object:
    code, message = wire_error(error)
    return _GROUP(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=None,
    )


API = Api(key=15, min_version=0, max_version=6, handle=handle, context=GroupContext)
