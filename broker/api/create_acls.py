"""CreateAcls (key 30), versions 0-3: there is no authorizer, so each rule is refused."""

from kafka.errors import SecurityDisabledError
from kafka.protocol.admin import CreateAclsRequest, CreateAclsResponse

from broker.api.contexts import NoContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response


def handle(request: Request, context: NoContext) -> Response:
    wanted = request.decode(CreateAclsRequest)
    code, message = wire_error(SecurityDisabledError("No Authorizer is configured."))
    results = [
        CreateAclsResponse.AclCreationResult(error_code=code, error_message=message)
        for _ in wanted.creations or ()
    ]
    return CreateAclsResponse(results=results)


API = Api(key=30, min_version=0, max_version=3, handle=handle, context=NoContext)
