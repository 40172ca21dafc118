"""DeleteAcls (key 31), versions 0-3: there is no authorizer, so each filter is refused."""

from kafka.errors import SecurityDisabledError
from kafka.protocol.admin import DeleteAclsRequest, DeleteAclsResponse

from broker.api.contexts import NoContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response


def handle(request: Request, context: NoContext) -> Response:
    wanted = request.decode(DeleteAclsRequest)
    code, message = wire_error(SecurityDisabledError("No Authorizer is configured."))
    results = [
        DeleteAclsResponse.DeleteAclsFilterResult(
            error_code=code, error_message=message, matching_acls=[]
        )
        for _ in wanted.filters or ()
    ]
    return DeleteAclsResponse(filter_results=results)


API = Api(key=31, min_version=0, max_version=3, handle=handle, context=NoContext)
