"""FindCoordinator, InitProducerId, DescribeConfigs, DescribeCluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from tests.support.broker_child import BrokerChild, RawClient

TOPIC, BROKER, GROUP = 2, 4, 32


@pytest.mark.parametrize("version", range(4))
def test_the_coordinator_of_a_group(
    client: RawClient, bootstrap: str, version: int, only_ours: None
) -> None:
    request = FindCoordinatorRequest(key="group", key_type=0)
    found = client.call(request, FindCoordinatorResponse, version)
    assert found.error_code == 0
    assert f"{found.host}:{found.port}" == bootstrap


@pytest.mark.parametrize("version", [4, 5])
def test_the_coordinators_of_groups(
    client: RawClient, bootstrap: str, version: int, only_ours: None
) -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["a", "b"])
    response = client.call(request, FindCoordinatorResponse, version)
    assert [(found.key, found.error_code) for found in response.coordinators] == [
        ("a", 0),
        ("b", 0),
    ]
    assert {f"{found.host}:{found.port}" for found in response.coordinators} == {bootstrap}


def producer_id(client: RawClient, version: int = 4, transactional_id: str | None = None) -> Any:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=1000, producer_id=-1
    )
    return client.call(request, InitProducerIdResponse, version)


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_all_different(client: RawClient, version: int) -> None:
    answers = [producer_id(client, version) for _ in range(20)]
    assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
    assert len({answer.producer_id for answer in answers}) == 20


def test_producer_ids_never_repeat_over_restarts(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        with (
            BrokerChild(tmp_path) as child,
            RawClient(child.host, child.port) as client,
        ):
            seen += [producer_id(client).producer_id for _ in range(1100)]
            child.kill()
    assert len(set(seen)) == len(seen)
    assert sorted(seen) == seen


def describe(
    client: RawClient,
    kind: int,
    name: str,
    version: int = 4,
    keys: list[Any] | None = None,
    synonyms: bool = True,
    documentation: bool = True,
) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=documentation
    )
    (result,) = client.call(request, DescribeConfigsResponse, version).results
    return result


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topics_configs(client: RawClient, create: Callable[..., str], version: int) -> None:
    name = create(**{"retention.ms": "1234"})
    result = describe(client, TOPIC, name, version)
    assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, name)
    configs = {config.name: config for config in result.configs}
    for known in ("segment.bytes", "cleanup.policy", "max.message.bytes", "min.insync.replicas"):
        assert configs[known].value
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1234", 1)
    assert configs["segment.ms"].config_source == 5
    assert configs["retention.ms"].synonyms[0].value == "1234"
    if version >= 3:
        assert configs["retention.ms"].config_type == 5
        assert configs["retention.ms"].documentation


def test_version_0_says_what_is_default(
    client: RawClient, create: Callable[..., str], only_ours: None
) -> None:
    result = describe(client, TOPIC, create(**{"retention.ms": "1234"}), 0)
    defaults = {config.name: config.is_default for config in result.configs}
    assert defaults["segment.ms"]
    assert not defaults["retention.ms"]


def test_only_some_configs_and_no_extras(client: RawClient, topic: str) -> None:
    result = describe(client, TOPIC, topic, 4, ["segment.ms", "nope"], False, False)
    (config,) = result.configs
    assert (config.name, list(config.synonyms), config.documentation) == ("segment.ms", [], None)


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, None), (BROKER, "1"), (GROUP, "any")])
def test_no_names_are_all_configs(
    client: RawClient, topic: str, kind: int, name: str | None
) -> None:
    every = describe(client, kind, name or topic).configs
    assert describe(client, kind, name or topic, keys=[]).configs == every != []


def test_the_brokers_configs(client: RawClient) -> None:
    result = describe(client, BROKER, "1")
    assert result.error_code == 0
    configs = {config.name: config for config in result.configs}
    assert configs["socket.request.max.bytes"].value == str(100 << 20)
    assert configs["log.dirs"].config_source == 4


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [(TOPIC, "missing-topic", 3), (TOPIC, "no good", 17), (BROKER, "99", 42), (99, "x", 42)],
)
def test_what_cannot_be_described(client: RawClient, kind: int, name: str, code: int) -> None:
    result = describe(client, kind, name)
    assert (result.error_code, list(result.configs)) == (code, [])


@pytest.mark.parametrize("version", range(3))
def test_the_cluster(client: RawClient, bootstrap: str, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = client.call(request, DescribeClusterResponse, version)
    (node,) = response.brokers
    assert f"{node.host}:{node.port}" == bootstrap
    assert response.error_code == 0
    assert response.controller_id == node.broker_id
    assert len(response.cluster_id) == 22
    assert response.authorized_operations == {5, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (9, 115)])
def test_endpoints_that_are_no_brokers(client: RawClient, endpoint_type: int, code: int) -> None:
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    response = client.call(request, DescribeClusterResponse, 1)
    assert (response.error_code, list(response.brokers)) == (code, [])
