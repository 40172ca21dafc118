"""ListConfigResources (key 74), versions 0-1: what properties may be set on, or are.

Version 0 (ListClientMetricsResources) asks for client metrics alone, of which there are none.
"""

from kafka.errors import UnsupportedVersionError
from kafka.protocol.admin import ListConfigResourcesRequest, ListConfigResourcesResponse

from broker.api.config_resources import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from broker.api.contexts import ConfigContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response

_ALL = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
_RESOURCE = ListConfigResourcesResponse.ConfigResource


def handle(request: Request, context: ConfigContext) -> Response:
    wanted = request.decode(ListConfigResourcesRequest)
    kinds = set(wanted.resource_types or _ALL) if request.version else {CLIENT_METRICS}
    error = None if kinds <= set(_ALL) else UnsupportedVersionError()
    resources = [
        _RESOURCE(resource_name=name, resource_type=kind)
        for kind in _ALL
        if error is None and kind in kinds
        for name in _names(kind, context)
    ]
    response = ListConfigResourcesResponse(error_code=code_of(error), config_resources=resources)
    return response


def _names(kind: int, context: ConfigContext) -> list[str]:
    if kind == TOPIC:
        return [topic.name for topic in context.metadata.topics()]
    if kind in (BROKER, BROKER_LOGGER):
        return [str(node.node_id) for node in context.metadata.brokers]
    return context.group_configs.names if kind == GROUP else []


API = Api(key=74, min_version=0, max_version=1, handle=handle, context=ConfigContext)
