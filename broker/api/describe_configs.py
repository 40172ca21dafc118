"""DescribeConfigs (key 32), versions 0-4: every property of topics, groups and this broker.

Each with its value, where it comes from, and (on request) what else it could come from and what it
does. Left out: client metrics.
"""

from collections.abc import Sequence

from kafka.errors import (
    BrokerResponseError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from broker.api.broker_loggers import describe_loggers
from broker.api.config_resources import BROKER, BROKER_LOGGER, GROUP, TOPIC
from broker.api.contexts import ConfigContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.api.topic_names import check_topic_name
from broker.config.definition import ConfigEntry, ConfigSource
from broker.config.describe import describe_broker, describe_default, describe_topic
from broker.config.dynamic import usable_log_config
from broker.config.group import describe_group

_RESULT = DescribeConfigsResponse.DescribeConfigsResult
_ENTRY = _RESULT.DescribeConfigsResourceResult
_SYNONYM = _ENTRY.DescribeConfigsSynonym


async def handle(request: Request, context: ConfigContext) -> Response:
    wanted = request.decode(DescribeConfigsRequest)
    results = []
    # Each resource once, however often it is named: an entry of the answer is a thousand times
    # larger than one of the request.
    for resource in {
        (r.resource_type, r.resource_name): r for r in wanted.resources or ()
    }.values():
        error: BrokerResponseError | None = None
        entries: Sequence[ConfigEntry] = ()
        try:
            entries = await _entries(resource.resource_type, resource.resource_name, context)
        except BrokerResponseError as raised:
            error = raised
        code, message = wire_error(error)
        wanted_names = frozenset(resource.configuration_keys or ())
        results.append(
            _RESULT(
                error_code=code,
                error_message=message or ("" if error is None else None),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    _described(entry, wanted)
                    for entry in entries
                    if not wanted_names or entry.name in wanted_names
                ],
            )
        )
    return DescribeConfigsResponse(results=results)


async def _entries(resource_type: int, name: str, context: ConfigContext) -> Sequence[ConfigEntry]:
    if resource_type == TOPIC:
        check_topic_name(name)
        if context.metadata.topic(name) is None:
            raise UnknownTopicOrPartitionError()
        stored = await context.topic_configs.newest(name)
        return describe_topic(context.config, usable_log_config(context.config, stored))
    if resource_type == BROKER:
        node_id = context.metadata.broker.node_id
        if not name:
            return describe_default(context.config)
        if name != str(node_id):
            raise InvalidRequestError(
                f"Unexpected broker id, expected {node_id} or empty string, but received {name}"
            )
        return describe_broker(context.config)
    if resource_type == BROKER_LOGGER:
        return describe_loggers(name, context.metadata.broker.node_id)
    if resource_type == GROUP:
        if not name:
            raise InvalidRequestError("Group name must not be empty")
        return describe_group(context.config, await context.group_configs.newest(name))
    raise InvalidRequestError(f"Unsupported resource type: {resource_type}")


def _described(entry: ConfigEntry, wanted: "DescribeConfigsRequest") -> object:
    synonyms = entry.synonyms if wanted.include_synonyms else ()
    return _ENTRY(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        is_default=entry.source is ConfigSource.DEFAULT_CONFIG,
        config_source=int(entry.source),
        is_sensitive=entry.is_sensitive,
        synonyms=[
            _SYNONYM(name=name, value=value, source=int(source)) for name, value, source in synonyms
        ],
        config_type=int(entry.type),
        documentation=entry.documentation if wanted.include_documentation else None,
    )


API = Api(key=32, min_version=0, max_version=4, handle=handle, context=ConfigContext)
