"""ListGroups (key 16), versions 0-5: the groups that this broker coordinates.

Filters by state since version 4, by type since 5; every group here is of the type "classic". While
groups are being loaded the list has an error beside what is known already.
"""

from kafka.errors import CoordinatorLoadInProgressError
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Request, encoded

_TYPE = "classic"


def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(ListGroupsRequest)
    states = {state.lower() for state in wanted.states_filter}
    types = {type_name.lower() for type_name in wanted.types_filter}
    groups = [
        ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=_TYPE,
        )
        for group in context.groups.groups()
        if (not states or group.state.value.lower() in states) and (not types or _TYPE in types)
    ]
    error = CoordinatorLoadInProgressError() if context.groups.is_loading else None
    response = ListGroupsResponse(
        throttle_time_ms=0, error_code=wire_error(error)[0], groups=groups
    )
    return encoded(response, request)


API = Api(key=16, min_version=0, max_version=5, handle=handle)
