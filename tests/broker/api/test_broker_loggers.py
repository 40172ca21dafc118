"""Levels of loggers at run time (KIP-412), in Apache Kafka's words."""

from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)

from tests.broker.api.config_client import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    altered,
    described,
)
from tests.support.broker_child import RawClient

LOGGER = 8
INVALID_CONFIG, INVALID_REQUEST = 40, 42


def describe(client: RawClient, broker: str = "1") -> Any:
    """Logger to (level, source, type); or (code, message)."""
    found = described(client, LOGGER, broker)
    if isinstance(found, tuple):
        return found
    return {each.name: (each.value, each.config_source, each.config_type) for each in found}


def alter(client: RawClient, *operations: tuple[str, int, str | None], broker: str = "1") -> Any:
    return altered(client, LOGGER, broker, operations)


def test_levels_are_set_and_taken_back(client: RawClient, only_ours: None) -> None:
    name = "broker.controller.controller"
    before = describe(client)
    assert before["root"] == before[name] == ("INFO", 6, 0)
    assert alter(client, (name, SET, "DEBUG")) == (0, None)
    assert describe(client) == {**before, name: ("DEBUG", 6, 0)}
    assert alter(client, (name, DELETE, None)) == (0, None)
    assert alter(client, ("root", SET, "WARN")) == (0, None)
    assert set(describe(client).values()) == {("WARN", 6, 0)}
    assert alter(client, ("root", SET, "INFO")) == (0, None)
    assert describe(client) == before


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (("nope", SET, "DEBUG"), (INVALID_CONFIG, "Logger nope does not exist!")),
        (("nope", DELETE, None), (INVALID_CONFIG, "Logger nope does not exist!")),
        (
            ("root", SET, "debug"),
            (
                INVALID_CONFIG,
                "Cannot set the log level of root to debug as it is not a supported log level. "
                "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
            ),
        ),
        (
            ("root", DELETE, None),
            (INVALID_REQUEST, "Removing the log level of the root logger is not allowed"),
        ),
        (
            ("nope", APPEND, "DEBUG"),
            (INVALID_REQUEST, "APPEND operation is not allowed for the BROKER_LOGGER resource"),
        ),
        (
            ("root", SUBTRACT, "DEBUG"),
            (INVALID_REQUEST, "SUBTRACT operation is not allowed for the BROKER_LOGGER resource"),
        ),
        (("root", SET, None), (INVALID_REQUEST, "Null value not supported for : root")),
        (("root", 9, "DEBUG"), (-1, None)),
    ],
)
def test_what_is_refused(
    client: RawClient, operation: tuple[str, int, str | None], error: tuple[int, str | None]
) -> None:
    before = describe(client)
    assert alter(client, operation) == error
    assert alter(client, ("root", SET, "ERROR"), operation) != (0, None)
    assert describe(client) == before


@pytest.mark.parametrize(
    ("broker", "describing", "altering"),
    [
        ("", "Broker id must not be empty", "Node id must be an integer, but it is: "),
        (
            "x",
            "Broker id must be an integer, but it is: x",
            "Node id must be an integer, but it is: x",
        ),
        (
            "2",
            "Unexpected broker id, expected 1 but received 2",
            "Unexpected node id. Expected 1, but received 2",
        ),
    ],
)
def test_other_brokers(client: RawClient, broker: str, describing: str, altering: str) -> None:
    assert describe(client, broker) == (INVALID_REQUEST, describing)
    assert alter(client, ("root", SET, "INFO"), broker=broker) == (INVALID_REQUEST, altering)


def test_the_old_request_knows_no_loggers(client: RawClient) -> None:
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=LOGGER,
        resource_name="1",
        configs=[
            AlterConfigsRequest.AlterConfigsResource.AlterableConfig(name="root", value="INFO")
        ],
    )
    request = AlterConfigsRequest(resources=[resource], validate_only=False)
    (found,) = client.call(request, AlterConfigsResponse, 2).responses
    assert (found.error_code, found.error_message) == (INVALID_REQUEST, "Unknown resource type 8")
