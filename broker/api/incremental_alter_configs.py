"""IncrementalAlterConfigs (key 44), versions 0-1: sets, unsets and edits single properties.

Each resource succeeds or fails alone, whole (KIP-339). A list that is not set on the resource is
appended to and subtracted from as it counts there now. Properties that no broker has are kept, as
Apache Kafka does for its plug-ins. Left out: client metrics.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.errors import InvalidConfigurationError, InvalidRequestError, UnknownError
from kafka.protocol.admin import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

from broker.api.broker_loggers import alter_loggers
from broker.api.config_resources import (
    BROKER,
    GROUP,
    TOPIC,
    Change,
    Configs,
    alter_each,
    check_names,
)
from broker.api.contexts import ConfigContext
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.config.broker import broker_config_key
from broker.config.definition import ConfigEntry, ConfigKey, ConfigType
from broker.config.describe import describe_broker, describe_topic
from broker.config.group import group_config_key
from broker.config.log import topic_config_key

_RESULT = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
_KEYS: Mapping[int, Callable[[str], ConfigKey | None]] = {
    TOPIC: topic_config_key,
    BROKER: broker_config_key,
    GROUP: group_config_key,
}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_VERBS = {_APPEND: "APPEND", _SUBTRACT: "SUBTRACT"}


async def handle(request: Request, context: ConfigContext) -> Response:
    wanted = request.decode(IncrementalAlterConfigsRequest)
    node_id = context.metadata.broker.node_id

    def alter_logger(ask: Any) -> None:
        configs = ask.configs or ()
        _check_names_and_values(configs)
        alter_loggers(ask.resource_name, configs, node_id, validate_only=wanted.validate_only)

    responses = await alter_each(
        wanted, lambda ask: _change(ask, context), _RESULT, context, alter_logger
    )
    return IncrementalAlterConfigsResponse(responses=responses)


def _check(configs: Sequence[Any]) -> None:
    for config in configs:
        if config.config_operation not in (_SET, _DELETE, _APPEND, _SUBTRACT):
            raise UnknownError()  # Apache Kafka's code for it
    _check_names_and_values(configs)


def _check_names_and_values(configs: Sequence[Any]) -> None:
    check_names(config.name for config in configs)
    for config in configs:
        if config.value is None and config.config_operation != _DELETE:
            raise InvalidRequestError(f"Null value not supported for : {config.name}")


def _change(ask: Any, context: ConfigContext) -> Change:
    configs = ask.configs or ()
    _check(configs)

    def change(current: Configs) -> Configs:
        changed = dict(current)
        for config in configs:
            if config.config_operation == _DELETE:
                changed.pop(config.name, None)
            elif config.config_operation == _SET:
                changed[config.name] = config.value
            else:
                changed[config.name] = _edited(ask.resource_type, config, current, context)
        return changed

    return change


def _edited(resource_type: int, config: Any, current: Configs, context: ConfigContext) -> str:
    """A list with elements added or taken away. Raises InvalidConfigurationError."""
    name = config.name
    key = _KEYS[resource_type](name) if resource_type in _KEYS else None
    if key is None and resource_type == BROKER:
        raise InvalidConfigurationError(f"Unknown config name: {name}")
    if key is None or key.type is not ConfigType.LIST:
        verb = _VERBS[config.config_operation]
        raise InvalidConfigurationError(f"Can't {verb} to key {name} because its type is not LIST.")
    text = current.get(name)
    if text is None:
        is_topic = resource_type == TOPIC
        described = describe_topic(context.config, context.config.log_config({}))
        text = _values(described if is_topic else describe_broker(context.config))[name] or ""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    named = [part.strip() for part in config.value.split(",") if part.strip()]
    if config.config_operation == _APPEND:
        parts += [part for part in named if part not in parts]
    else:
        parts = [part for part in parts if part not in named]
    return ",".join(parts)


def _values(entries: Sequence[ConfigEntry]) -> Mapping[str, str | None]:
    return {entry.name: entry.value for entry in entries}


API = Api(key=44, min_version=0, max_version=1, handle=handle, context=ConfigContext)
