"""ApiVersions: the first thing every client asks, and what it believes from then on."""

import ast
import asyncio
import importlib
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import UnsupportedVersionError
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from broker.api import api_versions, consumer_group_heartbeat
from broker.api.apis import APIS
from broker.api.request import Api
from pyspark_kafkalog.protocol import consumer_groups
from pyspark_kafkalog.protocol.consumer_groups import ConsumerGroupHeartbeatRequest
from pyspark_kafkalog.protocol.frames import is_flexible
from tests.support.broker_child import RawClient
from tests.support.requests import request_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("version", range(5))
def test_every_version_lists_the_apis(client: RawClient, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = client.call(request, ApiVersionsResponse, version)
    assert response.error_code == 0
    ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert {0, 1, 2, 3, 10, 18, 19, 20, 21, 22, 23, 32, 35, 37, 43, 60, 61, 75} <= set(ranges)
    # librdkafka: no gzip or snappy without Produce 0, no record batches below Produce 3, Fetch 4.
    assert ranges[0][0] == 0
    assert ranges[0][1] >= 3
    assert ranges[1][1] >= 4


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_unknown_version_is_answered_in_version_0(client: RawClient, version: int) -> None:
    client.send_body(18, version, b"\x00\x00")
    body = client.receive_body(18, 0)
    error_code, count = struct.unpack_from(">hi", body)
    assert error_code == 35
    ranges = [struct.unpack_from(">hhh", body, 6 + 6 * index) for index in range(count)]
    assert (18, 0) in [key_and_min[:2] for key_and_min in ranges]


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "software_version", "code"),
    [
        ("a.b-c", "1.0-SNAPSHOT", 0),
        ("x" * 1000, "7", 0),
        ("", "1", 42),
        ("a b", "1", 42),
        ("-a", "1", 42),
        ("a.", "1", 42),
        ("\u00e9", "1", 42),
        ("a", "", 42),
        ("a", "1_0", 42),
    ],
)
def test_software_has_a_name_and_a_version(
    client: RawClient, version: int, name: str, software_version: str, code: int
) -> None:
    request = ApiVersionsRequest(
        client_software_name=name, client_software_version=software_version
    )
    client.send_body(18, version, bytes(request.encode(version=version)))
    body = bytes(client.receive_body(18, version))
    assert struct.unpack_from(">h", body) == (code,)
    if code:
        assert body[2:] == b"\x01" + bytes(4) + b"\x00"  # no APIs, no throttle time, no tags


@pytest.mark.parametrize("version", [3, 4])
def test_the_transaction_version_is_finalized(client: RawClient, version: int) -> None:
    """Java clients then let Produce begin transactions, and each end bump the epoch."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = client.call(request, ApiVersionsResponse, version)
    finalized = {each.name: each.max_version_level for each in response.finalized_features}
    assert finalized["transaction.version"] == 2
    assert response.finalized_features_epoch >= 0
    supported = {each.name: each.max_version for each in response.supported_features}
    # A feature that begins at 0 would break clients of version 3 (KAFKA-17011).
    assert ("transaction.version" in supported) == (version > 3)


def test_a_cluster_over_zookeeper_has_no_features() -> None:
    """Any broker may be the next coordinator, and Apache Kafka 3.9 knows none of them."""
    context: Any = SimpleNamespace(api_ranges=(api_versions.API.range,), features={})
    message = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    request = request_of(18, 4, message.encode(version=4))
    response: Any = api_versions.handle(request, context)
    assert response.supported_features == response.finalized_features == []
    heartbeat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
    request = request_of(68, 1, heartbeat.encode(version=1))
    answer: Any = asyncio.run(consumer_group_heartbeat.handle(request, context))
    assert answer.error_code == UnsupportedVersionError.errno


def test_every_api_has_a_file_and_a_place_in_the_table() -> None:
    for api in APIS:
        module = importlib.import_module(api.handle.__module__)
        assert module.API is api
        # Compiled ones have no docstring at run time.
        source = Path(*module.__name__.split(".")).with_suffix(".py")
        head = ast.get_docstring(ast.parse((ROOT / source).read_text())) or ""
        assert f"(key {api.key}), versions {api.min_version}-{api.max_version}" in head
    assert len({api.key for api in APIS}) == len(APIS)


@pytest.mark.parametrize("api", APIS, ids=lambda api: str(api.key))
def test_the_header_table_agrees_with_the_schemas(api: Api[Any]) -> None:
    messages = importlib.import_module("kafka.protocol")
    classes = (
        vars(messages)
        | vars(consumer_groups)
        | {
            name: value
            for package in ("metadata", "producer", "consumer", "admin")
            for name, value in vars(importlib.import_module(f"kafka.protocol.{package}")).items()
        }
    )
    (request_class,) = {
        value
        for name, value in classes.items()
        if name.endswith("Request") and getattr(value, "API_KEY", None) == api.key
    }
    for version in range(api.min_version, api.max_version + 1):
        assert is_flexible(api.key, version) == request_class.flexible_version_q(version)
