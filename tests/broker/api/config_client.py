"""Configs of resources that are no topics, as an admin client asks for and alters them."""

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SET, DELETE, APPEND, SUBTRACT = range(4)


def described(client, kind, name):
    """The answer's configs, as the protocol has them; or (code, message)."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.call(request, DescribeConfigsResponse, 4).results
    return (result.error_code, result.error_message) if result.error_code else result.configs


def altered(client, kind, name, operations, validate_only=False):
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
