"""AlterConfigs (key 33), versions 0-2: replaces all that is set on a topic or broker.

Deprecated by Kafka in favour of IncrementalAlterConfigs: what is not named goes back to its
default. Each resource succeeds or fails alone. Left out: loggers, client metrics and groups.
"""

from kafka.errors import InvalidRequestError
from kafka.protocol.admin import AlterConfigsRequest, AlterConfigsResponse

from broker.api.config_resources import Change, alter_each, check_names
from broker.api.contexts import ConfigContext
from broker.api.request import Api, Request
from broker.api.response import Response

_RESULT = AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(request: Request, context: ConfigContext) -> Response:
    wanted = request.decode(AlterConfigsRequest)
    responses = await alter_each(wanted, _replacement, _RESULT, context)
    return AlterConfigsResponse(responses=responses)


def _replacement(ask: "AlterConfigsRequest.AlterConfigsResource") -> Change:
    configs = ask.configs or ()
    check_names(config.name for config in configs)
    for config in configs:
        if config.value is None:
            raise InvalidRequestError(f"Null value not supported for : {config.name}")
    replacement = {config.name: config.value for config in configs}
    return lambda _: replacement


API = Api(key=33, min_version=0, max_version=2, handle=handle, context=ConfigContext)
