"""What a broker alone answers to questions about quorums, features, directories and resources."""

import time
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

from tests.support.broker_child import RawClient

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def quorum(
    client: RawClient, version: int, *partitions: int, topic: str = "__cluster_metadata"
) -> Any:
    data = DescribeQuorumRequest.TopicData
    request = DescribeQuorumRequest(
        topics=[
            data(
                topic_name=topic,
                partitions=[data.PartitionData(partition_index=index) for index in partitions],
            )
        ]
    )
    return client.call(request, DescribeQuorumResponse, version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_one_voter_leads_the_quorum(client: RawClient, version: int) -> None:
    response = quorum(client, version, 0)
    (found,) = response.topics[0].partitions
    assert (response.error_code, found.error_code, found.leader_id) == (0, 0, 1)
    (voter,) = found.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, found.high_watermark)
    assert list(found.observers) == []
    if version >= 1:
        assert abs(voter.last_caught_up_timestamp - time.time() * 1000) < 600_000
    if version >= 2:
        assert response.error_message == found.error_message == ""
        assert [node.node_id for node in response.nodes] == [1]


@pytest.mark.parametrize(("topic", "index"), [("foo", 0), ("__cluster_metadata", 1)])
def test_other_topics_have_no_quorum(client: RawClient, topic: str, index: int) -> None:
    response = quorum(client, 2, index, topic=topic)
    (found,) = response.topics[0].partitions
    assert (found.error_code, found.error_message) == (
        3,
        "This server does not host this topic-partition.",
    )
    assert list(response.nodes) == []


def features(client: RawClient, version: int, *updates: tuple[str, int, int]) -> Any:
    request = UpdateFeaturesRequest(
        timeout_ms=1000,
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=level, upgrade_type=kind
            )
            for name, level, kind in updates
        ],
        validate_only=False,
    )
    return client.call(request, UpdateFeaturesResponse, version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_feature_that_is_at_its_level(client: RawClient, version: int) -> None:
    response = features(client, version, ("group.version", 1, 1))
    assert (response.error_code, response.error_message) == (0, None)
    if version < 2:
        (result,) = response.results
        assert (result.feature, result.error_code, result.error_message) == (
            "group.version",
            0,
            "NONE",
        )


@pytest.mark.parametrize(
    ("name", "level", "kind", "reason"),
    [
        ("transaction.version", 9, 1, "Local controller 1 only supports versions 0-2"),
        ("foo.version", 1, 1, "Local controller 1 does not support this feature."),
        ("group.version", -1, 1, "A feature version cannot be less than 0."),
        ("group.version", 1, 0, "The controller does not support the given upgrade type."),
        ("group.version", 1, 9, "The controller does not support the given upgrade type."),
        (
            "group.version",
            0,
            1,
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade.",
        ),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_level_that_is_refused(
    client: RawClient, version: int, name: str, level: int, kind: int, reason: str
) -> None:
    response = features(client, version, ("transaction.version", 2, 1), (name, level, kind))
    assert (response.error_code, response.error_message) == (
        95,
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {level} for feature {name}. {reason}",
    )
    assert not response.results


def move(
    client: RawClient, version: int, path: str, topic: str, *partitions: int
) -> dict[Any, Any]:
    directory = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    asked = directory.AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))
    request = AlterReplicaLogDirsRequest(dirs=[directory(path=path, topics=[asked])])
    response = client.call(request, AlterReplicaLogDirsResponse, version)
    (result,) = response.results
    assert result.topic_name == topic
    return {part.partition_index: part.error_code for part in result.partitions}


@pytest.mark.parametrize("version", [1, 2])
def test_logs_stay_in_their_directory(client: RawClient, topic: str, version: int) -> None:
    described = client.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    path = described.results[0].log_dir
    assert move(client, version, path, topic, 0, 1, -1) == {0: 0, 1: 3, -1: 3}
    assert move(client, version, path, "nowhere", 0) == {0: 3}
    assert move(client, version, "/nowhere", topic, 0, 1) == {0: 57, 1: 57}
    assert move(client, version, "no/where", "nowhere", 0) == {0: 57}


def listed(client: RawClient, version: int, *kinds: int) -> tuple[Any, set[tuple[Any, Any]]]:
    request = ListConfigResourcesRequest(resource_types=list(kinds))
    response = client.call(request, ListConfigResourcesResponse, version)
    found = {(each.resource_type, each.resource_name) for each in response.config_resources}
    return response.error_code, found


def test_resources_that_have_configs(client: RawClient, topic: str) -> None:
    code, found = listed(client, 1)
    assert code == 0
    assert {(TOPIC, topic), (BROKER, "1"), (BROKER_LOGGER, "1")} <= found
    assert listed(client, 1, BROKER, CLIENT_METRICS) == (0, {(BROKER, "1")})
    assert listed(client, 1, BROKER, 99) == (35, set())
    assert listed(client, 0) == (0, set())
