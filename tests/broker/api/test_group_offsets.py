"""OffsetCommit, OffsetFetch and OffsetDelete; DescribeGroups, ListGroups and DeleteGroups.

Every test here passes against Apache Kafka 4.3 too (KAFKALOG_TEST_BOOTSTRAP), but for versions 0
and 1 of the commits, which it has given up.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from tests.broker.api.group_client import GroupClient
from tests.support.broker_child import RawClient
from tests.support.patience import wait_until
from tests.support.records import batch_of

UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_METADATA_TOO_LARGE = 12
INVALID_TOPIC = 17
ILLEGAL_GENERATION = 22
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
FENCED_INSTANCE_ID = 82
GROUP_SUBSCRIBED_TO_TOPIC = 86

# ConsumerProtocolSubscription version 0 of the topic "orders".
ORDERS = b"\x00\x00\x00\x00\x00\x01\x00\x06orders\xff\xff\xff\xff"
OLDEST_COMMIT = 2 if "KAFKALOG_TEST_BOOTSTRAP" in os.environ else 0
OLDEST_FETCH = 1 if "KAFKALOG_TEST_BOOTSTRAP" in os.environ else 0


@pytest.fixture
def topic(create: Callable[..., str]) -> str:
    return create(partitions=3)


@pytest.mark.parametrize("version", range(OLDEST_COMMIT, 10))
def test_commits_of_a_consumer_by_itself(group: GroupClient, topic: str, version: int) -> None:
    options: dict[str, Any] = {"generation": -1, "member_id": "", "version": version}
    assert group.commit(topic, {0: 7, 2: 9}, metadata="so far", **options) == {0: 0, 2: 0}
    assert group.committed() == {(topic, 0): (7, "so far"), (topic, 2): (9, "so far")}
    assert group.commit(topic, {0: 8}, metadata=None, **options) == {0: 0}
    assert group.committed({topic: [0]}) == {(topic, 0): (8, "")}
    described = group.describe()
    assert (described.group_state, described.protocol_type) == ("Empty", "")


@pytest.mark.parametrize("version", range(OLDEST_FETCH, 10))
def test_fetching_what_was_committed(group: GroupClient, topic: str, version: int) -> None:
    group.commit(topic, {0: 7}, metadata="x", leader_epoch=4)
    found = group.committed({topic: [0, 1], "nowhere": [5]}, version=version)
    assert found == {(topic, 0): (7, "x"), (topic, 1): (-1, ""), ("nowhere", 5): (-1, "")}
    if version >= 5:
        ((part,),) = [each.partitions for each in group.fetch_response(version=version).topics]
        assert part.committed_leader_epoch == 4


@pytest.mark.parametrize("version", range(2, 10))
def test_fetching_everything(group: GroupClient, topic: str, version: int) -> None:
    assert group.committed(version=version) == {}
    group.commit(topic, {0: 7, 1: 8})
    assert group.committed(version=version) == {(topic, 0): (7, ""), (topic, 1): (8, "")}


def test_several_groups_in_one_request(group: GroupClient, topic: str, client: RawClient) -> None:
    other = GroupClient(client, "other-" + group.group_id)
    group.commit(topic, {0: 1})
    other.commit(topic, {0: 2})
    assert group.committed() == {(topic, 0): (1, "")}
    assert other.committed() == {(topic, 0): (2, "")}


def test_the_empty_group_id_commits_as_ever(
    group: GroupClient, client: RawClient, topic: str
) -> None:
    nameless = GroupClient(client, "")
    assert nameless.commit(topic, {0: 3}) == {0: 0}
    assert nameless.committed({topic: [0]}) == {(topic, 0): (3, "")}


def test_partitions_that_do_not_exist_are_refused_one_by_one(
    group: GroupClient, topic: str
) -> None:
    assert group.commit(topic, {0: 1, 3: 1, -1: 1}) == {0: 0, 3: 3, -1: 3}
    assert group.commit("nowhere", {0: 1}) == {0: UNKNOWN_TOPIC_OR_PARTITION}
    assert group.committed() == {(topic, 0): (1, "")}


def test_metadata_has_a_limit(group: GroupClient, topic: str) -> None:
    assert group.commit(topic, {0: 1}, metadata="x" * 4097) == {0: OFFSET_METADATA_TOO_LARGE}
    assert group.commit(topic, {0: 1}, metadata="x" * 4096) == {0: 0}


def test_commits_to_a_group_that_is_not_there(group: GroupClient, topic: str) -> None:
    options: dict[str, Any] = {"member_id": "x", "generation": 1}
    assert group.commit(topic, {0: 1}, version=8, **options) == {0: ILLEGAL_GENERATION}
    assert group.commit(topic, {0: 1}, version=9, **options) == {0: GROUP_ID_NOT_FOUND}
    assert group.describe(version=5).group_state == "Dead"


def test_commits_of_members(group: GroupClient, topic: str) -> None:
    group.joined()
    assert group.commit(topic, {0: 1}) == {0: REBALANCE_IN_PROGRESS}
    group.sync({})
    assert group.commit(topic, {0: 1}) == {0: 0}
    assert group.commit(topic, {0: 1}, generation=2) == {0: ILLEGAL_GENERATION}
    assert group.commit(topic, {0: 1}, member_id="x") == {0: UNKNOWN_MEMBER_ID}
    assert group.commit(topic, {0: 1}, instance_id="x") == {0: UNKNOWN_MEMBER_ID}
    assert group.commit(topic, {0: 1}, generation=-1, member_id="") == {0: UNKNOWN_MEMBER_ID}
    assert group.commit(topic, {0: 1}, generation=-1) == {0: ILLEGAL_GENERATION}
    group.leave()
    assert group.commit(topic, {0: 1}) == {0: UNKNOWN_MEMBER_ID}
    assert group.commit(topic, {0: 5}, generation=-1, member_id="") == {0: 0}
    assert group.committed() == {(topic, 0): (5, "")}


def test_commits_while_others_join(
    group: GroupClient, another: Callable[[], GroupClient], topic: str
) -> None:
    """The last chance of members whose partitions go: before they join again."""
    group.stable()
    second = another()
    second.join()
    pending = second.begin_join()
    wait_until(lambda: group.state() == "PreparingRebalance", "the group prepares")
    assert group.commit(topic, {0: 4}) == {0: 0}
    group.join()
    pending()
    assert group.committed() == {(topic, 0): (4, "")}


def test_commits_of_a_fenced_instance(
    group: GroupClient, another: Callable[[], GroupClient], topic: str
) -> None:
    group.stable(instance_id="one")
    back = another()
    back.join(instance_id="one", member_id="")
    assert group.commit(topic, {0: 1}, instance_id="one") == {0: FENCED_INSTANCE_ID}
    assert back.commit(topic, {0: 2}, instance_id="one") == {0: 0}


def test_offsets_are_deleted(group: GroupClient, topic: str) -> None:
    assert group.delete_offsets(topic, [0]).error_code == GROUP_ID_NOT_FOUND
    group.commit(topic, {0: 1, 1: 2})
    response = group.delete_offsets(topic, [0, 2, 9])
    codes = {part.partition_index: part.error_code for part in response.topics[0].partitions}
    assert (response.error_code, codes) == (0, {0: 0, 2: 0, 9: UNKNOWN_TOPIC_OR_PARTITION})
    assert group.committed() == {(topic, 1): (2, "")}


def test_offsets_of_topics_that_members_read_stay(
    group: GroupClient, create: Callable[..., str], topic: str
) -> None:
    group.stable(protocols=[("range", ORDERS.replace(b"\x00\x06orders", _string(topic)))])
    group.commit(topic, {0: 1})
    response = group.delete_offsets(topic, [0])
    assert response.topics[0].partitions[0].error_code == GROUP_SUBSCRIBED_TO_TOPIC
    group.leave()
    assert group.delete_offsets(topic, [0]).topics[0].partitions[0].error_code == 0
    assert group.committed() == {}


def test_offsets_of_topics_that_members_do_not_read_may_go(group: GroupClient, topic: str) -> None:
    group.stable(protocols=[("range", ORDERS)])
    group.commit(topic, {0: 1})
    assert group.delete_offsets(topic, [0]).topics[0].partitions[0].error_code == 0
    assert group.committed() == {}


def test_offsets_of_members_that_are_no_consumers_stay(group: GroupClient, topic: str) -> None:
    group.stable(protocol_type="connect")
    group.commit(topic, {0: 1})
    assert group.delete_offsets(topic, [0]).error_code == NON_EMPTY_GROUP


def test_groups_are_described(group: GroupClient, another: Callable[[], GroupClient]) -> None:
    assert group.describe(version=5).group_state == "Dead"
    assert group.describe(version=5).error_code == 0
    absent = group.describe()
    assert (absent.error_code, absent.group_state) == (GROUP_ID_NOT_FOUND, "Dead")
    assert absent.error_message == f"Group {group.group_id} not found."
    group.joined(instance_id="one")
    (member,) = group.describe().members
    assert (member.member_metadata, member.member_assignment) == (b"", b"")
    group.sync({group.member_id: b"all"}, instance_id="one")
    described = group.describe(with_operations=True)
    assert (described.group_state, described.protocol_type) == ("Stable", "consumer")
    assert described.protocol_data == "range"
    assert described.authorized_operations == {3, 6, 8, 10, 11}
    (member,) = described.members
    assert (member.member_id, member.group_instance_id) == (group.member_id, "one")
    assert (member.client_id, member.client_host) == ("raw", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"x", b"all")


@pytest.mark.parametrize("version", range(7))
def test_every_version_describes(group: GroupClient, version: int) -> None:
    group.stable()
    assert group.describe(version=version).members[0].member_assignment == b"mine"


def test_groups_are_listed(group: GroupClient) -> None:
    assert group.listed() is None
    group.stable()
    listed = group.listed()
    assert (listed.protocol_type, listed.group_state) == ("consumer", "Stable")
    assert listed.group_type == "classic"
    assert group.listed(states=["Stable", "Empty"]) is not None
    assert group.listed(states=["stable"]) is not None
    assert group.listed(states=["Empty"]) is None
    assert group.listed(types=["Classic"]) is not None
    assert group.listed(types=["consumer"]) is None


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists(group: GroupClient, client: RawClient, version: int) -> None:
    group.stable()
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    response = client.call(request, ListGroupsResponse, version)
    assert group.group_id in {each.group_id for each in response.groups}


@pytest.mark.parametrize("version", range(3))
def test_every_version_deletes(
    group: GroupClient, topic: str, client: RawClient, version: int
) -> None:
    group.commit(topic, {0: 1})
    request = DeleteGroupsRequest(groups_names=[group.group_id])
    (result,) = client.call(request, DeleteGroupsResponse, version).results
    assert (result.group_id, result.error_code) == (group.group_id, 0)


def test_groups_are_deleted(group: GroupClient, topic: str) -> None:
    assert group.delete() == GROUP_ID_NOT_FOUND
    group.stable()
    group.commit(topic, {0: 1})
    assert group.delete() == NON_EMPTY_GROUP
    group.leave()
    assert group.delete() == 0
    assert group.committed() == {}
    assert group.listed() is None
    assert group.delete() == GROUP_ID_NOT_FOUND


def test_a_group_without_members_may_come_back(group: GroupClient) -> None:
    group.stable()
    group.leave()
    group.member_id = ""
    assert group.joined().generation_id == 3


def test_internal_topics_are_shown_as_such_and_take_no_records(
    group: GroupClient, client: RawClient, topic: str
) -> None:
    from kafka.protocol.metadata import MetadataRequest, MetadataResponse

    wanted = MetadataRequest.MetadataRequestTopic(name="__consumer_offsets")
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
    (metadata,) = client.call(request, MetadataResponse, 9).topics
    assert (metadata.error_code, metadata.is_internal, len(metadata.partitions)) == (0, True, 50)
    assert client.produce("__consumer_offsets", 0, batch_of(1)).error_code == INVALID_TOPIC


@pytest.mark.parametrize("version", range(7))
def test_every_version_finds_the_coordinator(
    group: GroupClient, client: RawClient, version: int
) -> None:
    request = FindCoordinatorRequest(
        key_type=0, key=group.group_id, coordinator_keys=[group.group_id, ""]
    )
    found = client.call(request, FindCoordinatorResponse, version)
    answers = found.coordinators if version >= 4 else [found]
    assert [each.error_code for each in answers] == [0] * (2 if version >= 4 else 1)
    assert all(each.host == "127.0.0.1" and each.port > 0 for each in answers)


def test_a_coordinator_of_no_known_kind_is_refused(client: RawClient) -> None:
    request = FindCoordinatorRequest(key_type=9, coordinator_keys=["x"])
    (answer,) = client.call(request, FindCoordinatorResponse, 4).coordinators
    assert (answer.error_code, answer.node_id) == (42, -1)


def _string(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()
