"""DescribeUserScramCredentials (key 50), versions 0-0: the mechanisms that users may log in by."""

from collections import Counter
from typing import Any

from kafka.errors import BrokerResponseError, DuplicateResourceError, ResourceNotFoundError
from kafka.protocol.admin import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

from broker.api.contexts import ConfigContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.api.scram import MECHANISMS, iterations_of

_RESULT = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_INFO = _RESULT.CredentialInfo


def handle(request: Request, context: ConfigContext) -> Response:
    wanted = request.decode(DescribeUserScramCredentialsRequest)
    counts = Counter(user.name for user in wanted.users or ())
    names = counts or Counter(context.users.names)
    response = DescribeUserScramCredentialsResponse(
        error_code=0,
        error_message="",
        results=[_result(name, count, context) for name, count in names.items()],
    )
    return response


def _result(name: str, count: int, context: ConfigContext) -> Any:
    credentials = context.users.of(name)
    error: BrokerResponseError | None = None
    if count > 1:
        error = DuplicateResourceError(
            "Cannot describe SCRAM credentials for the same user twice in a single request: " + name
        )
    elif not credentials:
        error = ResourceNotFoundError(
            f"Attempt to describe a user credential that does not exist: {name}"
        )
    code, message = wire_error(error)
    infos = [
        _INFO(mechanism=number, iterations=iterations_of(credentials[mechanism]))
        for number, mechanism in MECHANISMS.items()
        if error is None and mechanism in credentials
    ]
    return _RESULT(user=name, error_code=code, error_message=message or "", credential_infos=infos)


API = Api(key=50, min_version=0, max_version=0, handle=handle, context=ConfigContext)
