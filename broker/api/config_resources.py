"""What AlterConfigs and IncrementalAlterConfigs share: a resource, and a change of its configs.

Resources are topics, this broker (by its id), all brokers (by an empty name), and groups, which
need not exist. A change is a function from what is set to what shall be set; it is checked as a
whole before anything is done.
Called by: the event loop's thread only.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka.errors import BrokerResponseError, InvalidRequestError, UnknownTopicOrPartitionError

from broker.api.contexts import ConfigContext
from broker.api.errors import wire_error
from broker.api.topic_names import check_topic_name
from broker.config.definition import ConfigError
from broker.config.group import check_group_config

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

Configs = Mapping[str, str]
Change = Callable[[Configs], Configs]


async def alter_each(
    wanted: Any,
    change_of: Callable[[Any], Change],
    result_class: Any,
    context: ConfigContext,
    alter_logger: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Answers either request: each of its resources succeeds or fails alone.

    `change_of` makes of a resource's part of the request what shall be done to it; it may raise
    BrokerResponseError. `alter_logger` does what is asked of loggers, where a request may.
    """
    asks = wanted.resources or ()
    counts = Counter((ask.resource_type, ask.resource_name) for ask in asks)
    results = []
    for ask in asks:
        resource = (ask.resource_type, ask.resource_name)
        error: BrokerResponseError | None = None
        try:
            if counts[resource] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            if alter_logger is not None and ask.resource_type == BROKER_LOGGER:
                alter_logger(ask)
            else:
                change = change_of(ask)
                await _alter(*resource, change, context, validate_only=wanted.validate_only)
        except BrokerResponseError as raised:
            error = raised
        code, message = wire_error(error)
        results.append(
            result_class(
                error_code=code,
                error_message=message,
                resource_type=ask.resource_type,
                resource_name=ask.resource_name,
            )
        )
    return results


async def _alter(
    resource_type: int, name: str, change: Change, context: ConfigContext, *, validate_only: bool
) -> None:
    if resource_type == TOPIC:
        await _alter_topic(name, change, context, validate_only=validate_only)
    elif resource_type == BROKER:
        await _alter_broker(name, change, context, validate_only=validate_only)
    elif resource_type == GROUP:
        await _alter_group(name, change, context, validate_only=validate_only)
    else:
        raise InvalidRequestError(f"Unknown resource type {resource_type}")


async def _alter_topic(
    name: str, change: Change, context: ConfigContext, *, validate_only: bool
) -> None:
    if not name:
        raise InvalidRequestError("Default topic resources are not allowed.")
    check_topic_name(name)
    if context.metadata.topic(name) is None:
        raise UnknownTopicOrPartitionError(f"The topic '{name}' does not exist.")

    def checked(configs: Configs) -> Configs:
        changed = change(configs)
        context.config.log_config(changed, strict=True)
        return changed

    if validate_only:
        await context.topic_configs.check(name, checked)
    else:
        await context.topic_configs.set(name, checked)


async def _alter_group(
    name: str, change: Change, context: ConfigContext, *, validate_only: bool
) -> None:
    if not name:
        raise InvalidRequestError("Default group resources are not allowed.")

    def checked(configs: Configs) -> Configs:
        changed = change(configs)
        check_group_config(context.config, changed)
        return changed

    if validate_only:
        await context.group_configs.check(name, checked)
    else:
        await context.group_configs.set(name, checked)


async def _alter_broker(
    name: str, change: Change, context: ConfigContext, *, validate_only: bool
) -> None:
    check_broker_name(name, context)
    all_brokers = not name
    try:
        context.configs.check(change, all_brokers=all_brokers)
        if not validate_only:
            await context.configs.set(change, all_brokers=all_brokers)
    except ConfigError as error:  # as Kafka has it, for brokers
        raise InvalidRequestError(error.args[0]) from error


def check_broker_name(name: str, context: ConfigContext) -> None:
    """Raises InvalidRequestError unless it is this broker's id, or empty."""
    node_id = context.metadata.broker.node_id
    if not name:
        return
    try:
        received = int(name)
    except ValueError:
        raise InvalidRequestError(f"Node id must be an integer, but it is: {name}") from None
    if received != node_id:
        raise InvalidRequestError(f"Unexpected broker id, expected {node_id}, but received {name}")


def check_names(names: Iterable[str]) -> None:
    """Raises InvalidRequestError for a property that is named twice."""
    if any(count > 1 for count in Counter(names).values()):
        raise InvalidRequestError("Error due to duplicate config keys")
