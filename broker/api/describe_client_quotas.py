"""DescribeClientQuotas (key 48), versions 0-1: this broker limits nobody, so there are none.

Left out: AlterClientQuotas, since a quota that is taken and not kept would be a broken promise.
"""

from collections.abc import Sequence
from typing import Any

from kafka.errors import BrokerResponseError, InvalidRequestError, UnsupportedVersionError
from kafka.protocol.admin import DescribeClientQuotasRequest, DescribeClientQuotasResponse

from broker.api.contexts import NoContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response

_ENTITIES = ("user", "client-id", "ip")
_EXACT, _DEFAULT, _ANY = range(3)
_MATCHES = {_EXACT: "EXACT", _DEFAULT: "DEFAULT", _ANY: "SPECIFIED"}


def handle(request: Request, context: NoContext) -> Response:
    wanted = request.decode(DescribeClientQuotasRequest)
    error: BrokerResponseError | None = None
    try:
        _check(wanted.components or ())
    except BrokerResponseError as raised:
        error = raised
    code, message = wire_error(error)
    response = DescribeClientQuotasResponse(
        error_code=code,
        error_message=message or "",
        entries=[] if error is None else None,
    )
    return response


def _check(components: Sequence[Any]) -> None:
    """Raises what is wrong with a filter, in Apache Kafka's words."""
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise InvalidRequestError("Invalid empty entity type.")
        if kind in seen:
            raise InvalidRequestError(
                f"Entity type {kind} cannot appear more than once in the filter."
            )
        seen.add(kind)
        _check_match(component)
        if kind not in _ENTITIES:
            raise UnsupportedVersionError(f"Unsupported entity type {kind}")
    if "ip" in seen and len(seen) > 1:
        raise InvalidRequestError(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )


def _check_match(component: Any) -> None:
    name = _MATCHES.get(component.match_type)
    if name is None:
        raise InvalidRequestError(f"Unknown match type {component.match_type}")
    if component.match_type == _EXACT:
        if component.match is None:
            raise InvalidRequestError(
                "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
    elif component.match is not None:
        raise InvalidRequestError(
            f"Request specified MATCH_TYPE_{name}, but also specified a match string."
        )


API = Api(key=48, min_version=0, max_version=1, handle=handle, context=NoContext)
