"""DeleteGroups (key 42), versions 0-2: deletes groups without members, and what they committed."""

from kafka.errors import BrokerResponseError
from kafka.protocol.admin import DeleteGroupsRequest, DeleteGroupsResponse

from broker.api.contexts import GroupContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response


async def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(DeleteGroupsRequest)
    results = []
    for group_id in dict.fromkeys(wanted.groups_names):
        error: BrokerResponseError | None = None
        try:
            context.groups.delete(group_id)
            await context.offsets_topic.wait_committed(group_id)
        except BrokerResponseError as raised:
            error = raised
        results.append(
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code_of(error))
        )
    return DeleteGroupsResponse(results=results)


API = Api(key=42, min_version=0, max_version=2, handle=handle, context=GroupContext)
