"""ListGroups (key 16), versions 0-5: the groups that this broker coordinates.

Filters by state since version 4, by type since 5: "classic", or "consumer" (KIP-848). While groups
are being loaded the list has an error beside what is known already.
"""

from kafka.errors import CoordinatorLoadInProgressError
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse

from broker.api.contexts import GroupContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.group_metadata import GroupMetadata

_CONSUMER = "consumer"
_CLASSIC = "classic"


def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(ListGroupsRequest)
    states = {state.lower() for state in wanted.states_filter}
    types = {type_name.lower() for type_name in wanted.types_filter}
    groups = [
        ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=_CONSUMER if group.consumer else group.protocol_type or "",
            group_state=group.state_name,
            group_type=_type(group),
        )
        for group in context.groups.groups()
        if (not states or group.state_name.lower() in states)
        and (not types or _type(group) in types)
    ]
    error = CoordinatorLoadInProgressError() if context.groups.is_loading_any else None
    response = ListGroupsResponse(error_code=code_of(error), groups=groups)
    return response


def _type(group: GroupMetadata) -> str:
    return _CLASSIC if group.consumer is None else _CONSUMER


API = Api(key=16, min_version=0, max_version=5, handle=handle, context=GroupContext)
