"""ConsumerGroupHeartbeat, ConsumerGroupDescribe, and what others say of such groups (KIP-848).

Every test here passes against Apache Kafka 4.3 too (KAFKALOG_TEST_BOOTSTRAP).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from tests.broker.api.consumer_group_client import (
    LEAVE,
    LEAVE_FOR_A_WHILE,
    ConsumerMember,
    settle,
)
from tests.broker.api.group_client import GroupClient
from tests.broker.api.transaction_client import TransactionClient
from tests.support.broker_child import RawClient
from tests.support.patience import wait_for

UNKNOWN_MEMBER_ID = 25
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
FENCED_INSTANCE_ID = 82
GROUP_SUBSCRIBED_TO_TOPIC = 86
FENCED_MEMBER_EPOCH = 110
UNRELEASED_INSTANCE_ID = 111
UNSUPPORTED_ASSIGNOR = 112
STALE_MEMBER_EPOCH = 113
INVALID_REGULAR_EXPRESSION = 128
ILLEGAL_GENERATION = 22
# The first epoch in which a member of a new group has an assignment.
FIRST = 2
ASSIGNMENT_INTERVAL_S = 1.0


@pytest.fixture
def member(connect: Callable[[], RawClient], group: GroupClient) -> Callable[..., ConsumerMember]:
    """member(instance_id=None) -> one on a connection of its own, of a group with a coordinator."""
    return lambda instance_id=None: ConsumerMember(connect(), group.group_id, instance_id)


def wait_for_interval() -> None:
    time.sleep(ASSIGNMENT_INTERVAL_S + 0.1)


def two(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> tuple[str, ConsumerMember, ConsumerMember]:
    """Two members that share four partitions."""
    topic = create(4)
    one, other = member(), member()
    assert one.join([topic]).error_code == 0
    assert other.join([topic]).error_code == 0
    settle(one, other)
    assert (one.count(), other.count()) == (2, 2)
    return topic, one, other


def test_the_first_member_gets_everything(
    client: RawClient, create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    topic = create(3)
    one = member()
    joined = one.join([topic])
    assert (joined.error_code, joined.member_epoch, joined.member_id) == (0, FIRST, one.member_id)
    assert joined.heartbeat_interval_ms == 5000
    assert one.assigned == {client.metadata_of(topic).topic_id: [0, 1, 2]}
    again = one.beat()
    assert (again.error_code, again.member_epoch, again.assignment) == (0, FIRST, None)


def test_version_0_gives_an_id(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    one = member()
    joined = one.join([create()], version=0, member_id="")
    assert joined.error_code == 0
    assert len(joined.member_id) == 22
    assert one.beat(version=0).error_code == 0


def test_a_second_member_waits_for_what_the_first_gives_up(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    topic = create(4)
    one, other = member(), member()
    one.join([topic])
    joined = other.join([topic])
    # No new target within the interval: it is in the group, and has nothing.
    assert (joined.error_code, joined.member_epoch, other.count()) == (0, FIRST, 0)
    assert one.describe().group_state == "Assigning"
    wait_for_interval()
    had = one.assigned
    told = one.beat()
    assert (told.member_epoch, one.count()) == (FIRST, 2)
    waits = other.beat()
    assert (waits.member_epoch, waits.assignment) == (FIRST + 1, None)
    described = one.describe()
    assert (described.group_state, described.group_epoch) == ("Reconciling", FIRST + 1)
    (seen,) = [each for each in described.members if each.member_id == one.member_id]
    # What it has still to give up counts as assigned.
    assert [sorted(t.partitions) for t in seen.assignment.topic_partitions] == [[0, 1, 2, 3]]
    assert [len(t.partitions) for t in seen.target_assignment.topic_partitions] == [2]
    kept, one.assigned = one.assigned, had
    assert one.beat().member_epoch == FIRST  # it has not given up yet
    one.assigned = kept
    assert one.beat().member_epoch == FIRST + 1
    given = other.beat()
    assert (given.member_epoch, other.count()) == (FIRST + 1, 2)
    assert one.describe().group_state == "Stable"


def test_leaving_frees_what_one_had(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    _, one, other = two(create, member)
    left = other.leave()
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (0, LEAVE, 0)
    assert one.describe().group_state == "Assigning"
    wait_for_interval()
    assert one.ask().error_code == 0  # nothing has changed for it, and it need not say so
    assert one.count() == 4
    assert one.leave().error_code == 0
    described = one.describe()
    assert (described.group_state, described.members) == ("Empty", [])
    assert one.ask(member_epoch=3).error_code == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_assignors_by_name(
    create: Callable[..., str], member: Callable[..., ConsumerMember], assignor: str
) -> None:
    topic = create(5)
    members = [member() for _ in range(3)]
    for each in members:
        assert each.join([topic], server_assignor=assignor).error_code == 0
    settle(*members)
    assert sorted(each.count() for each in members) == [1, 2, 2]
    assert members[0].describe().assignor_name == assignor
    assert member().join([topic], server_assignor="best").error_code == UNSUPPORTED_ASSIGNOR


def test_topics_that_are_not_there_come(
    create: Callable[..., str],
    client: RawClient,
    member: Callable[..., ConsumerMember],
    topic_name: str,
) -> None:
    one = member()
    joined = one.join([topic_name])
    assert (joined.error_code, joined.member_epoch, one.assigned) == (0, FIRST, {})
    create(2)
    wait_for_interval()
    settle(one)
    assert one.count() == 2
    grown = CreatePartitionsRequest.CreatePartitionsTopic(
        name=topic_name, count=3, assignments=None
    )
    request = CreatePartitionsRequest(topics=[grown], timeout_ms=60_000, validate_only=False)
    assert client.call(request, CreatePartitionsResponse, 3).results[0].error_code == 0
    wait_for_interval()
    settle(one)
    assert one.count() == 3
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=topic_name)], timeout_ms=60_000
    )
    assert client.call(request, DeleteTopicsResponse, 6).responses[0].error_code == 0
    wait_for_interval()
    settle(one)
    assert one.count() == 0


def test_unsubscribed_topics_are_given_up_at_once(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    topic = create(2)
    one = member()
    one.join([topic])
    told = one.beat(subscribed_topic_names=[])
    assert (told.error_code, told.member_epoch, one.assigned) == (0, FIRST, {})
    wait_for_interval()
    settle(one)
    assert one.epoch == FIRST + 1


# Epochs and identities.


def test_epochs_that_are_not_its_own(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    _, one, _ = two(create, member)
    for epoch in (one.epoch + 1, one.epoch - 1, one.epoch - 2):
        if epoch:
            refused = one.ask(member_epoch=epoch)
            assert refused.error_code == FENCED_MEMBER_EPOCH, epoch
            assert (refused.member_id, refused.member_epoch) == (None, 0)
            assert refused.error_message
    stranger = member()
    assert stranger.ask(member_epoch=1).error_code == UNKNOWN_MEMBER_ID


def test_the_epoch_before_is_good_for_a_lost_answer(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    _, one, other = two(create, member)
    other.leave()
    wait_for_interval()
    epoch, had = one.epoch, one.assigned
    assert one.beat().member_epoch == epoch + 1
    one.epoch, one.assigned = epoch, had
    # It knows nothing of the answer, and says all again.
    topics = [each.topic_name for each in one.describe().members[0].assignment.topic_partitions]
    again = one.beat(rebalance_timeout_ms=30_000, subscribed_topic_names=topics)
    assert (again.error_code, again.member_epoch, one.count()) == (0, epoch + 1, 4)


def test_joining_again_is_always_possible(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    topic, one, _ = two(create, member)
    before, epoch = one.assigned, one.epoch
    assert one.join([topic]).member_epoch == epoch
    assert one.assigned == before


def test_static_members_come_back(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    topic = create(2)
    one = member("instance")
    assert one.join([topic]).error_code == 0
    other = member("instance")
    assert other.join([topic]).error_code == UNRELEASED_INSTANCE_ID
    assert other.ask(member_epoch=1).error_code == FENCED_INSTANCE_ID
    assert member("unknown").ask(member_epoch=1).error_code == UNKNOWN_MEMBER_ID
    left = one.leave(LEAVE_FOR_A_WHILE)
    assert (left.error_code, left.member_epoch) == (0, LEAVE_FOR_A_WHILE)
    (seen,) = one.describe().members
    assert (seen.member_epoch, seen.instance_id) == (LEAVE_FOR_A_WHILE, "instance")
    joined = other.join([topic])
    assert (joined.error_code, joined.member_epoch, other.count()) == (0, FIRST, 2)
    assert one.ask(member_epoch=FIRST).error_code == FENCED_INSTANCE_ID
    assert one.leave().error_code == FENCED_INSTANCE_ID
    assert other.describe().group_epoch == FIRST
    assert other.leave().error_code == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, INVALID_REQUEST),
        ({"group_id": " "}, INVALID_REQUEST),
        ({"member_id": ""}, INVALID_REQUEST),
        ({"instance_id": ""}, INVALID_REQUEST),
        ({"rack_id": " "}, INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, INVALID_REQUEST),
        ({"topic_partitions": None}, INVALID_REQUEST),
        ({"subscribed_topic_names": None}, INVALID_REQUEST),
        ({"member_epoch": -3}, INVALID_REQUEST),
        ({"member_epoch": -2}, INVALID_REQUEST),
        ({"member_epoch": 1}, GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, GROUP_ID_NOT_FOUND),
        ({"server_assignor": ""}, UNSUPPORTED_ASSIGNOR),
    ],
)
def test_requests_that_make_no_sense(
    member: Callable[..., ConsumerMember], fields: dict[str, Any], code: int
) -> None:
    one = member()
    whole: dict[str, Any] = {
        "rebalance_timeout_ms": 1,
        "subscribed_topic_names": [],
        "topic_partitions": [],
    }
    refused = one.ask(**whole | fields)
    assert (refused.error_code, refused.member_id, refused.assignment) == (code, None, None)
    assert one.describe().error_code == GROUP_ID_NOT_FOUND


# Expressions.


def test_an_expression_finds_topics(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    topic = create(3)
    one = member()
    joined = one.join(None, subscribed_topic_regex=topic[:-1] + "[0-9]+")
    assert (joined.error_code, one.count()) == (0, 0)
    assert wait_for(one.ask, lambda _: one.assigned).error_code == 0
    (described,) = one.describe().members
    assert described.subscribed_topic_regex == topic[:-1] + "[0-9]+"
    names = {each.topic_name for each in described.assignment.topic_partitions}
    assert topic in names


@pytest.mark.parametrize("regex", ["(", "a(?!b)", r"(a)\1", "a{5,2}", "[z-a]"])
def test_expressions_that_are_none(member: Callable[..., ConsumerMember], regex: str) -> None:
    refused = member().join(None, subscribed_topic_regex=regex)
    assert refused.error_code == INVALID_REGULAR_EXPRESSION


# What other requests say.


def test_groups_by_type_and_state(
    client: RawClient,
    create: Callable[..., str],
    group: GroupClient,
    member: Callable[..., ConsumerMember],
) -> None:
    one = member()
    one.join([create()])

    def listed(states: Sequence[Any] = (), types: Sequence[Any] = ()) -> list[Any]:
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        groups = client.call(request, ListGroupsResponse, 5).groups
        return [each for each in groups if each.group_id == group.group_id]

    (seen,) = listed()
    assert (seen.group_type, seen.group_state, seen.protocol_type) == (
        "consumer",
        "Stable",
        "consumer",
    )
    assert listed(["stable"], ["CONSUMER"])
    assert not listed(types=["classic"])
    assert not listed(["Empty"])
    one.leave()
    assert listed(["EMPTY"])


def test_describe_groups_knows_classic_groups_alone(
    client: RawClient,
    create: Callable[..., str],
    group: GroupClient,
    member: Callable[..., ConsumerMember],
) -> None:
    member().join([create()])
    for version, code in ((5, 0), (6, GROUP_ID_NOT_FOUND)):
        request = DescribeGroupsRequest(
            groups=[group.group_id], include_authorized_operations=False
        )
        (seen,) = client.call(request, DescribeGroupsResponse, version).groups
        assert (seen.group_state, seen.error_code, seen.members) == ("Dead", code, [])


def test_consumer_group_describe_knows_its_own_alone(
    group: GroupClient, member: Callable[..., ConsumerMember]
) -> None:
    one = member()
    for version in (0, 1):
        seen = one.describe(version)
        assert (seen.error_code, seen.group_state) == (GROUP_ID_NOT_FOUND, "")
    group.stable()
    assert one.describe().error_code == GROUP_ID_NOT_FOUND
    assert one.ask(member_epoch=1).error_code == GROUP_ID_NOT_FOUND


def test_only_empty_groups_are_deleted(
    create: Callable[..., str], group: GroupClient, member: Callable[..., ConsumerMember]
) -> None:
    one = member()
    one.join([create()])
    assert group.delete() == NON_EMPTY_GROUP
    one.leave()
    assert group.delete() == 0
    assert one.describe().error_code == GROUP_ID_NOT_FOUND


def commit(
    member: ConsumerMember,
    topic: str,
    epoch: int,
    *,
    version: int = 9,
    partition: int = 0,
    member_id: str | None = None,
) -> Any:
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    part = topic_class.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=7,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    request = OffsetCommitRequest(
        group_id=member.group_id,
        generation_id_or_member_epoch=epoch,
        member_id=member.member_id if member_id is None else member_id,
        group_instance_id=None,
        topics=[topic_class(name=topic, partitions=[part])],
    )
    response = member.client.call(request, OffsetCommitResponse, version)
    return response.topics[0].partitions[0].error_code


def fetch(member: ConsumerMember, member_id: str | None, epoch: int) -> Any:
    """The error's code, or the committed offsets."""
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=member.group_id, member_id=member_id, member_epoch=epoch, topics=None
    )
    request = OffsetFetchRequest(groups=[asked], require_stable=False)
    (group,) = member.client.call(request, OffsetFetchResponse, 9).groups
    return group.error_code or {
        part.partition_index: part.committed_offset
        for topic in group.topics
        for part in topic.partitions
    }


def test_commits_name_the_epoch(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    topic, one, other = two(create, member)
    (mine,) = one.assigned.values()
    assert commit(one, topic, one.epoch, partition=mine[0]) == 0
    assert commit(one, topic, one.epoch + 1) == STALE_MEMBER_EPOCH
    assert commit(one, topic, one.epoch, version=8) == UNSUPPORTED_VERSION
    assert commit(one, topic, -1, member_id="") == UNKNOWN_MEMBER_ID
    assert commit(one, topic, one.epoch, member_id="nobody") == UNKNOWN_MEMBER_ID
    other.leave()
    wait_for_interval()
    one.beat()
    (theirs,) = (sorted(set(parts) - set(mine)) for parts in one.assigned.values())
    # In its epoch before it had some of them already.
    assert commit(one, topic, one.epoch - 1, partition=mine[0]) == 0
    assert commit(one, topic, one.epoch - 1, partition=theirs[0]) == STALE_MEMBER_EPOCH
    one.leave()
    assert commit(one, topic, -1, member_id="") == 0


def test_commits_in_transactions_name_the_epoch(
    client: RawClient, create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    """Who has lost a partition to another must not commit what it has read of it (KIP-447)."""
    topic, one, other = two(create, member)
    (mine,) = one.assigned.values()
    producer = TransactionClient(client, f"id-{one.group_id}")
    producer.init()
    producer.begin(one.group_id)

    def commit_in_transaction(partition: int, epoch: int) -> int:
        codes = producer.commit_offsets(
            one, topic, {partition: 7}, member_id=one.member_id, generation=epoch
        )
        return codes[partition]

    assert commit_in_transaction(mine[0], one.epoch) == 0
    assert commit_in_transaction(mine[0], one.epoch + 1) == ILLEGAL_GENERATION
    other.leave()
    wait_for_interval()
    one.beat()
    (theirs,) = (sorted(set(parts) - set(mine)) for parts in one.assigned.values())
    assert commit_in_transaction(mine[0], one.epoch - 1) == 0
    assert commit_in_transaction(theirs[0], one.epoch - 1) == ILLEGAL_GENERATION
    producer.end(True)


def test_offsets_are_told_to_members_of_this_epoch(
    create: Callable[..., str], member: Callable[..., ConsumerMember]
) -> None:
    topic, one, _ = two(create, member)
    assert commit(one, topic, one.epoch) == 0
    assert fetch(one, one.member_id, one.epoch) == {0: 7}
    assert fetch(one, None, -1) == {0: 7}
    assert fetch(one, one.member_id, one.epoch - 1) == STALE_MEMBER_EPOCH
    assert fetch(one, one.member_id, one.epoch + 1) == STALE_MEMBER_EPOCH
    assert fetch(one, "nobody", one.epoch) == UNKNOWN_MEMBER_ID


def test_offsets_of_a_subscribed_topic_stay(
    create: Callable[..., str], group: GroupClient, member: Callable[..., ConsumerMember]
) -> None:
    topic = create()
    one = member()
    one.join([topic])
    assert commit(one, topic, one.epoch) == 0

    def delete_offset() -> Any:
        return group.delete_offsets(topic, [0]).topics[0].partitions[0].error_code

    assert delete_offset() == GROUP_SUBSCRIBED_TO_TOPIC
    one.leave()
    assert delete_offset() == 0


# The two protocols.


def test_an_empty_group_changes_its_protocol(
    create: Callable[..., str], group: GroupClient, member: Callable[..., ConsumerMember]
) -> None:
    topic = create(2)
    one = member()
    one.join([topic])
    assert commit(one, topic, one.epoch) == 0
    one.leave()
    group.stable()
    assert group.state() == "Stable"
    assert one.describe().error_code == GROUP_ID_NOT_FOUND
    assert fetch(one, None, -1) == {0: 7}
    assert group.leave().error_code == 0
    assert one.join([topic]).member_epoch == FIRST
    assert fetch(one, None, -1) == {0: 7}


def test_classic_requests_of_a_consumer_member(
    create: Callable[..., str], group: GroupClient, member: Callable[..., ConsumerMember]
) -> None:
    one = member()
    one.join([create()])
    group.member_id, group.generation = one.member_id, one.epoch
    assert group.heartbeat() == UNKNOWN_MEMBER_ID
    assert group.sync().error_code == UNKNOWN_MEMBER_ID


def test_a_classic_group_that_is_no_consumers(
    create: Callable[..., str], group: GroupClient, member: Callable[..., ConsumerMember]
) -> None:
    group.stable(protocol_type="other")
    assert member().join([create()]).error_code == GROUP_ID_NOT_FOUND


def test_the_feature_is_finalized(client: RawClient) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = client.call(request, ApiVersionsResponse, 4)
    levels = {each.name: each.max_version_level for each in response.finalized_features}
    assert levels["group.version"] == 1
    assert response.finalized_features_epoch >= 0
