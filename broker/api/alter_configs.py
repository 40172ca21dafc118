"""AlterConfigs (key 33), versions 0-2: replaces all that is set on a topic or broker.

Deprecated by Kafka in favour of IncrementalAlterConfigs: what is not named goes back to its
default. Each resource succeeds or fails alone. Left out: loggers, client metrics and groups.
"""

from collections import Counter

from kafka.errors import BrokerResponseError, InvalidRequestError
from kafka.protocol.admin import AlterConfigsRequest, AlterConfigsResponse

from broker.api.config_resources import Change, alter, check_names
from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Request, encoded

_RESULT = AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(AlterConfigsRequest)
    asks = wanted.resources or ()
    counts = Counter((ask.resource_type, ask.resource_name) for ask in asks)
    responses = []
    for ask in asks:
        error: BrokerResponseError | None = None
        try:
            if counts[ask.resource_type, ask.resource_name] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            await alter(
                ask.resource_type,
                ask.resource_name,
                _replacement(ask),
                context,
                validate_only=wanted.validate_only,
            )
        except BrokerResponseError as raised:
            error = raised
        code, message = wire_error(error)
        responses.append(
            _RESULT(
                error_code=code,
                error_message=message,
                resource_type=ask.resource_type,
                resource_name=ask.resource_name,
            )
        )
    return encoded(AlterConfigsResponse(throttle_time_ms=0, responses=responses), request)


def _replacement(ask: "AlterConfigsRequest.AlterConfigsResource") -> Change:
    configs = ask.configs or ()
    check_names(config.name for config in configs)
    for config in configs:
        if config.value is None:
            raise InvalidRequestError(f"Null value not supported for : {config.name}")
    replacement = {config.name: config.value for config in configs}
    return lambda _: replacement


API = Api(key=33, min_version=0, max_version=2, handle=handle)
