"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup, in every state of a group and every version.

Every test here passes against Apache Kafka 4.3 too (KAFKALOG_TEST_BOOTSTRAP).
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.api.group_client import GroupClient
from tests.support.broker_child import RawClient
from tests.support.patience import BUSY_S, wait_until

ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79
FENCED_INSTANCE_ID = 82


def wait_for_state(group: GroupClient, state: str) -> None:
    wait_until(lambda: group.state() == state, group.describe)


def rebalanced(first: GroupClient, second: GroupClient) -> tuple[Any, Any]:
    """`second` joins the group of `first`, which leads it: both have joined, none has synced."""
    second.join()
    pending = second.begin_join()
    assert wait_until(first.heartbeat, "the rebalance") == REBALANCE_IN_PROGRESS
    return first.join(), pending()


def test_a_new_member_is_told_its_id_first(group: GroupClient) -> None:
    told = group.join()
    assert (told.error_code, told.generation_id, told.members) == (MEMBER_ID_REQUIRED, -1, [])
    assert told.member_id.startswith("raw-")
    assert group.state() == "Empty"
    joined = group.join()
    assert (joined.error_code, joined.member_id) == (0, told.member_id)
    assert joined.leader == told.member_id
    assert [(each.member_id, each.metadata) for each in joined.members] == [(told.member_id, b"x")]
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert joined.generation_id == 1
    assert not joined.skip_assignment


@pytest.mark.parametrize("version", range(4))
def test_old_versions_need_no_id(group: GroupClient, version: int) -> None:
    joined = group.join(version=version)
    assert joined.error_code == 0
    assert [each.member_id for each in joined.members] == [joined.member_id]


@pytest.mark.parametrize("version", range(10))
def test_every_version_joins_syncs_beats_and_leaves(group: GroupClient, version: int) -> None:
    group.joined(version=version)
    synced = group.sync(
        {group.member_id: b"all"},
        version=min(version, 5),
        protocol_type="consumer",
        protocol_name="range",
    )
    assert (synced.error_code, synced.assignment) == (0, b"all")
    assert group.heartbeat(version=min(version, 4)) == 0
    assert group.leave(version=min(version, 5)).error_code == 0
    assert group.state() == "Empty"


def test_join_refusals(group: GroupClient, client: RawClient) -> None:
    assert GroupClient(client, "").join().error_code == INVALID_GROUP_ID
    assert group.join(session_timeout_ms=5).error_code == INVALID_SESSION_TIMEOUT
    assert group.join(session_timeout_ms=2**31 - 1).error_code == INVALID_SESSION_TIMEOUT
    assert group.join(protocols=()).error_code == INCONSISTENT_GROUP_PROTOCOL
    assert group.join(protocol_type="").error_code == INCONSISTENT_GROUP_PROTOCOL
    refused = group.join(member_id="who")
    assert (refused.error_code, refused.member_id) == (UNKNOWN_MEMBER_ID, "who")


def test_old_versions_are_told_no_null_protocol(group: GroupClient) -> None:
    assert group.join(version=6, session_timeout_ms=5).protocol_name == ""
    assert group.join(version=7, session_timeout_ms=5).protocol_name is None


def test_a_member_of_another_kind_is_refused(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    other = another()
    refused = other.join(protocol_type="connect")
    assert (refused.error_code, refused.member_id) == (INCONSISTENT_GROUP_PROTOCOL, "")
    assert other.join(protocols=[("sticky", b"")]).error_code == INCONSISTENT_GROUP_PROTOCOL
    assert group.state() == "Stable"


def test_a_second_member_makes_everybody_join_again(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second = another()
    led, followed = rebalanced(group, second)
    assert led.generation_id == followed.generation_id == 2
    assert led.leader == followed.leader == group.member_id
    assert {each.member_id for each in led.members} == {group.member_id, second.member_id}
    assert followed.members == []
    assert group.state() == "CompletingRebalance"
    part = second.begin_sync()
    mine = group.sync({group.member_id: b"a", second.member_id: b"b"})
    assert (mine.assignment, part().assignment) == (b"a", b"b")
    assert group.state() == "Stable"


def test_who_gets_nothing_gets_nothing(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second = another()
    rebalanced(group, second)
    part = second.begin_sync()
    group.sync({group.member_id: b"all"})
    answer = part()
    assert (answer.error_code, answer.assignment) == (0, b"")


def test_a_sync_after_the_leaders_is_answered_at_once(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second = another()
    rebalanced(group, second)
    group.sync({group.member_id: b"a", second.member_id: b"b"})
    assert second.sync().assignment == b"b"
    assert second.sync().assignment == b"b"


def test_the_protocol_is_what_all_support_and_most_prefer(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.joined(protocols=[("range", b"r1"), ("roundrobin", b"rr1"), ("sticky", b"s1")])
    second = another()
    wishes = [("sticky", b"s2"), ("roundrobin", b"rr2")]
    second.join(protocols=wishes)
    pending = second.begin_join(protocols=wishes)
    wait_for_state(group, "PreparingRebalance")
    wishes = [("range", b""), ("roundrobin", b"rr1"), ("sticky", b"s1")]
    led = group.join(protocols=wishes)
    pending()
    assert led.protocol_name in ("roundrobin", "sticky")
    third = another()
    third.join(protocols=[("sticky", b"s3"), ("roundrobin", b"rr3")])
    pending_third = third.begin_join(protocols=[("sticky", b"s3"), ("roundrobin", b"rr3")])
    wait_for_state(group, "PreparingRebalance")
    pending_second = second.begin_join(protocols=[("sticky", b"s2"), ("roundrobin", b"rr2")])
    led = group.join(protocols=wishes)
    assert led.protocol_name == "sticky"
    assert {each.metadata for each in led.members} == {b"s1", b"s2", b"s3"}
    assert pending_second().protocol_name == pending_third().protocol_name == "sticky"


def test_sync_refusals(group: GroupClient, client: RawClient) -> None:
    nobody = GroupClient(client, "nobody-" + group.group_id)
    assert nobody.sync(member_id="x", generation=1).error_code == UNKNOWN_MEMBER_ID
    assert GroupClient(client, "").sync(member_id="x").error_code == INVALID_GROUP_ID
    group.joined()
    assert group.sync(member_id="x").error_code == UNKNOWN_MEMBER_ID
    assert group.sync(generation=2).error_code == ILLEGAL_GENERATION
    assert group.sync(version=5).error_code == INCONSISTENT_GROUP_PROTOCOL
    options: dict[str, Any] = {"version": 5, "protocol_type": "consumer", "protocol_name": "sticky"}
    assert group.sync(**options).error_code == INCONSISTENT_GROUP_PROTOCOL
    options = {"version": 5, "protocol_type": "connect", "protocol_name": "range"}
    assert group.sync(**options).error_code == INCONSISTENT_GROUP_PROTOCOL
    options = {"version": 5, "protocol_type": "consumer", "protocol_name": "range"}
    synced = group.sync({group.member_id: b"a"}, **options)
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


def test_a_rebalance_ends_the_syncs_that_wait(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second, third = another(), another()
    rebalanced(group, second)
    part = second.begin_sync()
    third.join()
    pending = third.begin_join()
    assert part().error_code == REBALANCE_IN_PROGRESS
    assert group.sync().error_code == REBALANCE_IN_PROGRESS
    again = second.begin_join()
    assert group.join().generation_id == again().generation_id == pending().generation_id == 3


def test_heartbeats(group: GroupClient, client: RawClient) -> None:
    nobody = GroupClient(client, "nobody-" + group.group_id)
    assert nobody.heartbeat(member_id="x", generation=1) == UNKNOWN_MEMBER_ID
    assert GroupClient(client, "").heartbeat(member_id="x") == INVALID_GROUP_ID
    group.join()
    assert group.heartbeat() == UNKNOWN_MEMBER_ID  # its id is not a member yet
    group.join()
    assert group.heartbeat() == 0  # while the leader assigns
    group.sync({})
    assert group.heartbeat() == 0
    assert group.heartbeat(generation=5) == ILLEGAL_GENERATION
    assert group.heartbeat(member_id="x") == UNKNOWN_MEMBER_ID
    assert group.heartbeat(instance_id="x") == UNKNOWN_MEMBER_ID


def test_leaving(group: GroupClient, client: RawClient, another: Callable[[], GroupClient]) -> None:
    nobody = GroupClient(client, "nobody-" + group.group_id)
    left = nobody.leave(("a", None), ("", "i"))
    assert [left.error_code, *(each.error_code for each in left.members)] == [0, 25, 25]
    assert nobody.leave(("a", None), version=1).error_code == UNKNOWN_MEMBER_ID
    assert GroupClient(client, "").leave(("a", None)).error_code == INVALID_GROUP_ID
    group.stable()
    second = another()
    rebalanced(group, second)
    part = second.begin_sync()
    group.sync({})
    part()
    left = group.leave(("x", None), (second.member_id, "i"), (second.member_id, None))
    assert [each.error_code for each in left.members] == [25, 25, 0]
    assert group.heartbeat() == REBALANCE_IN_PROGRESS
    assert second.heartbeat() == UNKNOWN_MEMBER_ID
    assert group.join().generation_id == 3
    assert group.leave().members[0].error_code == 0
    assert group.state() == "Empty"
    assert group.join().error_code == UNKNOWN_MEMBER_ID
    assert group.sync().error_code == UNKNOWN_MEMBER_ID


def test_a_member_leaves_while_others_join(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second = another()
    second.join()
    pending = second.begin_join()
    wait_for_state(group, "PreparingRebalance")
    assert group.leave().members[0].error_code == 0
    joined = pending()
    assert (joined.leader, joined.generation_id) == (second.member_id, 2)


def test_who_leaves_while_it_waits_to_join_is_answered(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second = another()
    second.join()
    pending = second.begin_join()
    wait_for_state(group, "PreparingRebalance")
    assert group.leave((second.member_id, None)).members[0].error_code == 0
    assert pending().error_code == UNKNOWN_MEMBER_ID
    assert group.join().generation_id == 2


def test_an_id_that_was_given_out_may_be_given_back(group: GroupClient) -> None:
    group.join()
    assert group.leave().members[0].error_code == 0
    assert group.join().error_code == UNKNOWN_MEMBER_ID


def test_who_joins_again_with_the_same_wishes_missed_the_answer(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second = another()
    rebalanced(group, second)
    again = second.join()
    assert (again.generation_id, again.leader, again.members) == (2, group.member_id, [])
    led = group.join()
    assert (led.generation_id, len(led.members)) == (2, 2)
    part = second.begin_sync()
    group.sync({})
    part()
    assert second.join().generation_id == 2  # a follower, in a stable group


def test_the_leader_has_partitions_assigned_anew_by_joining_again(group: GroupClient) -> None:
    group.stable()
    assert group.join().generation_id == 2


def test_a_follower_with_other_wishes_has_everybody_join_again(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second = another()
    rebalanced(group, second)
    part = second.begin_sync()
    group.sync({})
    part()
    pending = second.begin_join(protocols=[("range", b"other")])
    wait_for_state(group, "PreparingRebalance")
    assert {each.metadata for each in group.join().members} == {b"x", b"other"}
    assert pending().generation_id == 3


def test_who_does_not_join_again_is_left_behind(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable(rebalance_timeout_ms=300)
    second = another()
    second.join(rebalance_timeout_ms=300)
    joined = second.join(rebalance_timeout_ms=300)
    assert (joined.generation_id, joined.leader) == (2, second.member_id)
    assert [each.member_id for each in joined.members] == [second.member_id]
    assert group.heartbeat() == UNKNOWN_MEMBER_ID


def test_a_member_that_never_syncs_is_left_behind(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable(rebalance_timeout_ms=1500)
    second = another()
    second.join(rebalance_timeout_ms=1500)
    pending = second.begin_join(rebalance_timeout_ms=1500)
    wait_for_state(group, "PreparingRebalance")
    group.join(rebalance_timeout_ms=1500)
    pending()
    group.sync({})
    wait_for_state(group, "PreparingRebalance")
    assert group.join(rebalance_timeout_ms=1500).generation_id == 3
    assert second.heartbeat(generation=2) == UNKNOWN_MEMBER_ID


def test_a_session_ends_without_heartbeats(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable(session_timeout_ms=6000)
    second = another()
    second.join()
    pending = second.begin_join()
    began = time.monotonic()
    joined = pending()  # the rebalance timeout would be 30 s
    assert 3 < time.monotonic() - began < 12 + BUSY_S
    assert [each.member_id for each in joined.members] == [second.member_id]


# Static members (KIP-345).


def test_a_static_member_needs_no_id(group: GroupClient) -> None:
    joined = group.join(instance_id="one")
    assert joined.error_code == 0
    assert joined.member_id.startswith("one-")
    assert joined.members[0].group_instance_id == "one"


def test_a_static_member_comes_back_without_a_rebalance(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable(instance_id="one")
    old_id = group.member_id
    back = another()
    joined = back.join(instance_id="one", member_id="")
    assert (joined.error_code, joined.generation_id) == (0, 1)
    assert joined.member_id != old_id
    assert joined.leader == joined.member_id
    assert joined.skip_assignment
    assert [each.member_id for each in joined.members] == [joined.member_id]
    assert back.sync(instance_id="one").assignment == b"mine"
    assert group.state() == "Stable"
    assert group.heartbeat(instance_id="one") == FENCED_INSTANCE_ID
    assert group.heartbeat() == UNKNOWN_MEMBER_ID
    assert group.sync(instance_id="one").error_code == FENCED_INSTANCE_ID
    assert group.join(instance_id="one").error_code == FENCED_INSTANCE_ID
    assert group.leave((old_id, "one")).members[0].error_code == FENCED_INSTANCE_ID


def test_an_old_version_is_told_that_the_old_id_leads(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable(instance_id="one")
    old_id = group.member_id
    joined = another().join(instance_id="one", member_id="", version=8)
    assert (joined.leader, joined.members) == (old_id, [])


def test_a_static_member_that_comes_back_mid_rebalance_fences_the_old(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.stable()
    second, back = another(), another()
    pending = second.begin_join(instance_id="two")
    wait_for_state(group, "PreparingRebalance")
    pending_back = back.begin_join(instance_id="two", member_id="")
    assert pending().error_code == FENCED_INSTANCE_ID
    led = group.join()
    assert {each.group_instance_id for each in led.members} == {None, "two"}
    assert pending_back().generation_id == 2


def test_a_static_member_that_comes_back_before_the_sync_has_all_join_again(
    group: GroupClient, another: Callable[[], GroupClient]
) -> None:
    group.joined(instance_id="one")
    back = another()
    joined = back.begin_join(instance_id="one", member_id="")()
    assert (joined.error_code, joined.generation_id) == (0, 2)


def test_an_instance_is_removed_by_its_name_alone(group: GroupClient) -> None:
    group.stable(instance_id="one")
    left = group.leave(("", "other"), ("", "one"))
    assert [each.error_code for each in left.members] == [UNKNOWN_MEMBER_ID, 0]
    assert group.state() == "Empty"
