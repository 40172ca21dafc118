"""DescribeAcls (key 29), versions 0-3: there is no authorizer, so there are no rules to show."""

from kafka.errors import SecurityDisabledError
from kafka.protocol.admin import DescribeAclsRequest, DescribeAclsResponse

from broker.api.contexts import NoContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response


def handle(request: Request, context: NoContext) -> Response:
    request.decode(DescribeAclsRequest)
    code, message = wire_error(SecurityDisabledError("No Authorizer is configured on the broker"))
    response = DescribeAclsResponse(error_code=code, error_message=message, resources=[])
    return response


API = Api(key=29, min_version=0, max_version=3, handle=handle, context=NoContext)
