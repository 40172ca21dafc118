"""Configs of resources that are no topics, as an admin client asks for and alters them."""

from collections.abc import Sequence
from typing import Any

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from tests.support.broker_child import RawClient

SET, DELETE, APPEND, SUBTRACT = range(4)


def described(client: RawClient, kind: int, name: str) -> Any:
    """The answer's configs, as the protocol has them; or (code, message)."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.call(request, DescribeConfigsResponse, 4).results
    return (result.error_code, result.error_message) if result.error_code else result.configs


def altered(
    client: RawClient,
    kind: int,
    name: str,
    operations: Sequence[tuple[str, int, str | None]],
    validate_only: bool = False,
) -> tuple[Any, Any]:
    """`operations`: (property, operation, value); (code, message)."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(name=each, config_operation=operation, value=value)
                    for each, operation, value in operations
                ],
            )
        ],
        validate_only=validate_only,
    )
    (found,) = client.call(request, IncrementalAlterConfigsResponse, 1).responses
    return found.error_code, found.error_message
