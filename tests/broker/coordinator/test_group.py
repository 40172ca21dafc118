"""The coordinator with a clock and a log of the test's own: what takes time or a failure to see.

What every request is answered in every state is in tests/broker/api/test_group_membership.py and
test_group_offsets.py, which Apache Kafka passes too.
"""

from typing import Any

import pytest
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InvalidGroupIdError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import TopicPartition

from broker.coordinator.group import NEW_MEMBER_JOIN_TIMEOUT_MS
from broker.coordinator.group_metadata import GroupMetadata, GroupState, subscribed_topics
from broker.coordinator.state_topic import java_hash_magnitude
from tests.broker.coordinator.in_memory import GROUP, Coordinated

PLACE = TopicPartition("orders", 0)
OTHER = TopicPartition("other", 0)
ORDERS = b"\x00\x00\x00\x00\x00\x01\x00\x06orders\xff\xff\xff\xff"
MINUTE_S = 60.0


@pytest.fixture
def coordinated() -> Coordinated:
    return Coordinated()


def the_group(coordinated: Coordinated) -> GroupMetadata:
    (group,) = coordinated.groups.groups()
    return group


def expire(coordinated: Coordinated) -> None:
    for _ in coordinated.groups.expire():
        pass


# Time.


def test_a_new_group_waits_for_more_members() -> None:
    coordinated = Coordinated({"group.initial.rebalance.delay.ms": "3000"})
    first = coordinated.join()
    coordinated.time.advance(2)
    second = coordinated.join()
    coordinated.time.advance(2)
    assert first == second == []
    third = coordinated.join()
    coordinated.time.advance(3.1)  # 3 s after the first 3 s, in which two came
    assert first == second == []
    coordinated.time.advance(3.1)
    assert len(first[0].members) + len(second[0].members) + len(third[0].members) == 3


def test_the_initial_delay_is_no_longer_than_the_rebalance_timeout() -> None:
    coordinated = Coordinated({"group.initial.rebalance.delay.ms": "3000"})
    answers = [coordinated.join(rebalance_timeout_ms=5000)]
    for _ in range(10):
        coordinated.time.advance(0.6)
        answers.append(coordinated.join(rebalance_timeout_ms=5000))
    coordinated.time.advance(0.5)
    assert answers[0]


def test_a_session_ends_when_nothing_is_heard(coordinated: Coordinated) -> None:
    joined = coordinated.stable_member()
    coordinated.time.advance(9)
    coordinated.groups.heartbeat(GROUP, 1, joined.member_id, None)
    coordinated.time.advance(9)
    assert the_group(coordinated).state is GroupState.STABLE
    coordinated.time.advance(2)
    assert the_group(coordinated).state is GroupState.EMPTY
    with pytest.raises(UnknownMemberIdError):
        coordinated.groups.heartbeat(GROUP, 1, joined.member_id, None)


def test_who_is_told_to_join_again_has_kept_its_session(coordinated: Coordinated) -> None:
    """It may finish what it is at, as long as it is heard of."""
    first = coordinated.stable_member(session_timeout_ms=6000, rebalance_timeout_ms=60_000)
    second = coordinated.join(rebalance_timeout_ms=60_000)
    for _ in range(5):
        coordinated.time.advance(5)
        with pytest.raises(RebalanceInProgressError):
            coordinated.groups.heartbeat(GROUP, 1, first.member_id, None)
    (again,) = coordinated.join(first.member_id, rebalance_timeout_ms=60_000)
    assert (again.error, again.generation) == (None, 2)
    assert len(second) == 1


def test_a_commit_keeps_the_session(coordinated: Coordinated) -> None:
    joined = coordinated.stable_member()
    for _ in range(5):
        coordinated.time.advance(9)
        coordinated.commit({PLACE: 1}, joined.member_id, 1)
    assert the_group(coordinated).state is GroupState.STABLE


def test_who_waits_for_others_keeps_its_session(coordinated: Coordinated) -> None:
    first = coordinated.stable_member(session_timeout_ms=1_000_000, rebalance_timeout_ms=60_000)
    second = coordinated.join(session_timeout_ms=6000)
    coordinated.time.advance(50)
    assert second == []
    again = coordinated.join(first.member_id, rebalance_timeout_ms=60_000)
    assert len(again[0].members) == 2
    assert second[0].error is None


def test_a_known_member_that_waits_for_others_keeps_its_session(coordinated: Coordinated) -> None:
    first = coordinated.stable_member(session_timeout_ms=6000, rebalance_timeout_ms=60_000)
    second = coordinated.join(session_timeout_ms=1_000_000, rebalance_timeout_ms=60_000)
    coordinated.join(first.member_id, session_timeout_ms=6000, rebalance_timeout_ms=60_000)
    assert second[0].generation == 2
    coordinated.join(rebalance_timeout_ms=60_000)
    again = coordinated.join(first.member_id, session_timeout_ms=6000, rebalance_timeout_ms=60_000)
    coordinated.time.advance(50)  # it waits for the second
    assert again == []
    coordinated.join(second[0].member_id, rebalance_timeout_ms=60_000)
    assert (again[0].error, again[0].generation) == (None, 3)


def test_a_session_begins_with_the_generation(coordinated: Coordinated) -> None:
    """Of who has joined for the first time, and of who has waited for longer than a session."""
    first = coordinated.stable_member(session_timeout_ms=6000, rebalance_timeout_ms=60_000)
    second = coordinated.join(session_timeout_ms=6000, rebalance_timeout_ms=60_000)
    coordinated.time.advance(5)
    again = coordinated.join(first.member_id, session_timeout_ms=6000, rebalance_timeout_ms=60_000)
    assert second[0].generation == again[0].generation == 2
    coordinated.time.advance(5.9)
    assert len(the_group(coordinated).members) == 2
    coordinated.time.advance(0.2)
    assert the_group(coordinated).state is GroupState.EMPTY


def test_a_new_member_whose_join_is_never_answered_is_given_up(coordinated: Coordinated) -> None:
    first = coordinated.stable_member(
        session_timeout_ms=1_800_000, rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS
    )
    second = coordinated.join(rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    coordinated.time.advance(NEW_MEMBER_JOIN_TIMEOUT_MS / 1000 + 1)
    assert isinstance(second[0].error, UnknownMemberIdError)
    assert list(the_group(coordinated).members) == [first.member_id]


def test_an_id_that_is_not_used_delays_a_rebalance_for_a_session_at_most(
    coordinated: Coordinated,
) -> None:
    first = coordinated.stable_member(session_timeout_ms=60_000, rebalance_timeout_ms=60_000)
    coordinated.join(needs_id=True, session_timeout_ms=6000)
    assert the_group(coordinated).state is GroupState.STABLE
    again = coordinated.join(first.member_id, rebalance_timeout_ms=60_000)
    assert again == []
    coordinated.time.advance(7)
    assert again[0].generation == 2


def test_an_id_that_is_not_used_disturbs_nobody(coordinated: Coordinated) -> None:
    coordinated.stable_member(session_timeout_ms=60_000)
    coordinated.join(needs_id=True, session_timeout_ms=6000)
    coordinated.time.advance(10)
    assert the_group(coordinated).state is GroupState.STABLE
    assert the_group(coordinated).generation == 1


def test_static_members_that_do_not_join_again_keep_their_place_for_a_session(
    coordinated: Coordinated,
) -> None:
    coordinated.stable_member(
        instance_id="one", session_timeout_ms=30_000, rebalance_timeout_ms=10_000
    )
    second = coordinated.join(rebalance_timeout_ms=10_000)
    coordinated.time.advance(11)
    assert len(second[0].members) == 2
    coordinated.sync(second[0].member_id, 2)
    assert the_group(coordinated).state is GroupState.STABLE


def test_a_group_of_static_members_none_of_which_joins_waits_for_their_sessions(
    coordinated: Coordinated,
) -> None:
    coordinated.stable_member(
        instance_id="one", session_timeout_ms=25_000, rebalance_timeout_ms=10_000
    )
    second = coordinated.join(rebalance_timeout_ms=10_000)
    group = the_group(coordinated)
    coordinated.groups.leave(GROUP, [(next(reversed(group.members)), None)])
    assert isinstance(second[0].error, UnknownMemberIdError)
    coordinated.time.advance(11)
    assert group.state is GroupState.PREPARING_REBALANCE
    coordinated.time.advance(20)
    assert group.state is GroupState.EMPTY  # type: ignore[comparison-overlap]


# Size.


def test_a_group_has_a_most_of_members() -> None:
    coordinated = Coordinated({"group.max.size": "2"})
    answers = [coordinated.join() for _ in range(3)]
    coordinated.time.advance(0.01)
    assert isinstance(answers[2][0].error, GroupMaxSizeReachedError)
    assert answers[2][0].member_id == ""
    assert len(answers[0][0].members) == 2
    (late,) = coordinated.join()
    assert isinstance(late.error, GroupMaxSizeReachedError)


def test_a_group_that_is_loaded_too_large_becomes_smaller() -> None:
    coordinated = Coordinated()
    first = coordinated.join()
    second = coordinated.join()
    coordinated.time.advance(0.01)
    ids = [first[0].member_id, second[0].member_id]
    coordinated.sync(ids[0], 1)
    coordinated.config = type(coordinated.config).from_properties({"group.max.size": "1"})
    coordinated.restart()
    assert the_group(coordinated).state is GroupState.PREPARING_REBALANCE
    again = coordinated.join(ids[1])
    (refused,) = coordinated.join(ids[0])
    assert isinstance(refused.error, GroupMaxSizeReachedError)
    assert list(the_group(coordinated).members) == [ids[1]]
    assert again[0].generation == 2


# The log.


def test_members_go_on_after_a_restart_of_the_coordinator(coordinated: Coordinated) -> None:
    joined = coordinated.stable_member(instance_id="one", protocols=[("range", ORDERS)])
    coordinated.commit({PLACE: 7}, joined.member_id, 1, "one")
    coordinated.restart()
    coordinated.groups.heartbeat(GROUP, 1, joined.member_id, "one")
    assert coordinated.sync(joined.member_id, 1)[0].assignment == b"all"
    assert coordinated.committed() == {PLACE: 7}
    group = the_group(coordinated)
    assert (group.leader_id, group.protocol_name) == (joined.member_id, "range")
    assert group.is_subscribed_to("orders")
    assert not group.is_subscribed_to("other")
    coordinated.time.advance(11)
    assert group.state is GroupState.EMPTY


def test_a_rebalance_that_a_restart_interrupts_begins_again(coordinated: Coordinated) -> None:
    first = coordinated.stable_member()
    second = coordinated.join()
    coordinated.join(first.member_id)
    assert second[0].generation == 2
    coordinated.restart()
    group = the_group(coordinated)
    assert (group.generation, group.state) == (1, GroupState.STABLE)
    (unknown,) = coordinated.join(second[0].member_id)
    assert isinstance(unknown.error, UnknownMemberIdError)
    second = coordinated.join()
    assert coordinated.join(first.member_id)[0].generation == second[0].generation == 2


def test_an_empty_group_is_empty_after_a_restart(coordinated: Coordinated) -> None:
    joined = coordinated.stable_member()
    coordinated.groups.leave(GROUP, [(joined.member_id, None)])
    coordinated.restart()
    group = the_group(coordinated)
    assert (group.state, group.generation, group.members) == (GroupState.EMPTY, 2, {})
    assert group.state_timestamp_ms == coordinated.time.clock_ms()


def test_what_is_deleted_in_parts_is_what_the_log_says(
    coordinated: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the first part."""
    monkeypatch.setattr("broker.coordinator.group._PART_BYTES", 1)
    coordinated.commit({PLACE: 1, OTHER: 2})
    append = coordinated.log.append

    def append_once(*args: Any) -> int:
        coordinated.log.append = append  # type: ignore[method-assign]
        coordinated.log.error = None
        offset = append(*args)
        coordinated.log.error = CoordinatorNotAvailableError()
        return offset

    coordinated.log.append = append_once  # type: ignore[method-assign, assignment]
    with pytest.raises(CoordinatorNotAvailableError):
        coordinated.groups.delete_offsets(GROUP, [PLACE, OTHER])
    assert coordinated.committed() == {OTHER: 2}
    coordinated.log.error = None
    coordinated.restart()
    assert coordinated.committed() == {OTHER: 2}


def test_a_deleted_group_stays_away(coordinated: Coordinated) -> None:
    coordinated.commit({PLACE: 1, OTHER: 2})
    coordinated.groups.delete(GROUP)
    coordinated.restart()
    assert coordinated.groups.groups() == []


def test_nothing_is_assigned_that_could_not_be_written(coordinated: Coordinated) -> None:
    (joined,) = [coordinated.join()]
    coordinated.time.advance(0.01)
    member_id = joined[0].member_id
    coordinated.log.error = CoordinatorNotAvailableError()
    (synced,) = coordinated.sync(member_id, 1, {member_id: b"all"})
    assert isinstance(synced.error, CoordinatorNotAvailableError)
    assert the_group(coordinated).state is GroupState.PREPARING_REBALANCE
    coordinated.log.error = None
    again = coordinated.join(member_id)
    assert again[0].generation == 2
    assert coordinated.sync(member_id, 2, {member_id: b"all"})[0].assignment == b"all"


def test_nothing_is_committed_that_could_not_be_written(coordinated: Coordinated) -> None:
    coordinated.log.error = NotCoordinatorError()
    with pytest.raises(NotCoordinatorError):
        coordinated.commit({PLACE: 1})
    assert coordinated.groups.groups() == []
    coordinated.log.error = None
    coordinated.commit({PLACE: 1})
    coordinated.log.error = NotCoordinatorError()
    with pytest.raises(NotCoordinatorError):
        coordinated.commit({PLACE: 2})
    with pytest.raises(NotCoordinatorError):
        coordinated.groups.delete(GROUP)
    assert coordinated.committed() == {PLACE: 1}


def test_a_static_member_that_comes_back_and_cannot_be_written_takes_no_place(
    coordinated: Coordinated,
) -> None:
    joined = coordinated.stable_member(instance_id="one")
    coordinated.log.error = NotCoordinatorError()
    (refused,) = coordinated.join(instance_id="one")
    assert isinstance(refused.error, NotCoordinatorError)
    coordinated.log.error = None
    coordinated.groups.heartbeat(GROUP, 1, joined.member_id, "one")
    coordinated.time.advance(11)
    assert the_group(coordinated).state is GroupState.EMPTY


def test_a_new_group_that_cannot_be_written_is_none(coordinated: Coordinated) -> None:
    coordinated.log.error = CoordinatorNotAvailableError()
    (refused,) = coordinated.join()
    assert isinstance(refused.error, CoordinatorNotAvailableError)
    assert coordinated.groups.groups() == []


def test_many_tombstones_go_in_several_batches(coordinated: Coordinated) -> None:
    places = [TopicPartition("t" * 200, number) for number in range(5000)]
    for start in range(0, 5000, 1000):
        coordinated.commit(dict.fromkeys(places[start : start + 1000], 1))
    coordinated.log.appends.clear()
    coordinated.groups.delete(GROUP)
    assert sum(map(len, coordinated.log.appends)) == 5001
    assert max(sum(len(each.key) for each in part) for part in coordinated.log.appends) < 300_000
    coordinated.restart()
    assert coordinated.groups.groups() == []


def test_while_groups_are_loaded_clients_are_asked_for_patience(
    coordinated: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loading(group_id: str) -> None:
        raise CoordinatorLoadInProgressError

    monkeypatch.setattr(coordinated.log, "check_coordinates", loading)
    (joined,) = coordinated.join()
    assert isinstance(joined.error, CoordinatorLoadInProgressError)
    coordinated.groups.heartbeat(GROUP, 1, "anyone", None)  # goes on as if all were well
    (synced,) = coordinated.sync("anyone", 1)
    assert isinstance(synced.error, RebalanceInProgressError)
    with pytest.raises(CoordinatorLoadInProgressError):
        coordinated.groups.committed(GROUP)


def test_who_waits_is_answered_when_the_coordinator_resigns(coordinated: Coordinated) -> None:
    first = coordinated.stable_member()
    second = coordinated.join()
    coordinated.groups.resign(0)
    assert isinstance(second[0].error, NotCoordinatorError)
    assert coordinated.groups.groups() == []
    assert len(coordinated.timers) == 0
    (unknown,) = coordinated.join(first.member_id)
    assert isinstance(unknown.error, UnknownMemberIdError)


def test_who_waits_for_its_part_is_answered_when_the_coordinator_resigns(
    coordinated: Coordinated,
) -> None:
    first = coordinated.stable_member()
    second = coordinated.join()
    again = coordinated.join(first.member_id)
    assert again[0].generation == 2
    waiting = coordinated.sync(second[0].member_id, 2)
    assert waiting == []
    coordinated.groups.resign(0)
    assert isinstance(waiting[0].error, NotCoordinatorError)


def test_a_part_of_another_generation_is_not_given(coordinated: Coordinated) -> None:
    first = coordinated.stable_member()
    coordinated.join()
    again = coordinated.join(first.member_id)
    for generation in (1, 3):
        (refused,) = coordinated.sync(first.member_id, generation, {first.member_id: b"old"})
        assert isinstance(refused.error, IllegalGenerationError)
    (synced,) = coordinated.sync(first.member_id, again[0].generation, {first.member_id: b"new"})
    assert synced.assignment == b"new"


def test_a_group_id_that_fits_no_record_is_refused(coordinated: Coordinated) -> None:
    with pytest.raises(InvalidGroupIdError):
        coordinated.groups.committed("g" * 40_000)


# Expiry.


def test_offsets_of_a_consumer_by_itself_expire_after_each_commit() -> None:
    coordinated = Coordinated({"offsets.retention.minutes": "10"})
    coordinated.commit({PLACE: 1})
    coordinated.time.advance(6 * MINUTE_S)
    coordinated.commit({OTHER: 1})
    coordinated.time.advance(6 * MINUTE_S)
    expire(coordinated)
    assert coordinated.committed() == {OTHER: 1}
    coordinated.time.advance(6 * MINUTE_S)
    expire(coordinated)
    assert coordinated.groups.groups() == []
    coordinated.restart()
    assert coordinated.groups.groups() == []


def test_offsets_of_a_group_stay_while_it_has_members_and_for_the_retention_after() -> None:
    coordinated = Coordinated({"offsets.retention.minutes": "10"})
    options = {"session_timeout_ms": 1_800_000, "protocols": [("range", ORDERS)]}
    joined = coordinated.stable_member(**options)
    coordinated.commit({PLACE: 1, OTHER: 2}, joined.member_id, 1)
    coordinated.time.advance(11 * MINUTE_S)
    expire(coordinated)
    assert coordinated.committed() == {PLACE: 1}  # nobody reads the other one
    coordinated.groups.leave(GROUP, [(joined.member_id, None)])
    coordinated.time.advance(9 * MINUTE_S)
    expire(coordinated)
    assert coordinated.committed() == {PLACE: 1}
    coordinated.time.advance(2 * MINUTE_S)
    expire(coordinated)
    assert coordinated.groups.groups() == []


def test_offsets_of_members_that_are_no_consumers_stay() -> None:
    coordinated = Coordinated({"offsets.retention.minutes": "10"})
    joined = coordinated.stable_member(protocol_type="connect", session_timeout_ms=1_800_000)
    coordinated.commit({PLACE: 1}, joined.member_id, 1)
    coordinated.time.advance(20 * MINUTE_S)
    expire(coordinated)
    assert coordinated.committed() == {PLACE: 1}


def test_a_client_may_set_the_retention(coordinated: Coordinated) -> None:
    coordinated.commit({PLACE: 1}, retention_ms=60_000)
    coordinated.commit({OTHER: 1})
    coordinated.restart()
    coordinated.time.advance(59)
    expire(coordinated)
    assert coordinated.committed() == {PLACE: 1, OTHER: 1}
    coordinated.time.advance(2)
    expire(coordinated)
    assert coordinated.committed() == {OTHER: 1}


def test_what_was_committed_of_a_topic_goes_with_it(coordinated: Coordinated) -> None:
    joined = coordinated.stable_member(protocols=[("range", ORDERS)])
    coordinated.commit({PLACE: 1, OTHER: 2}, joined.member_id, 1)
    coordinated.groups.topic_deleted("orders")
    assert coordinated.committed() == {OTHER: 2}
    coordinated.restart()
    assert coordinated.committed() == {OTHER: 2}


# Static members that two processes claim.


def test_two_that_claim_one_instance_fence_each_other(coordinated: Coordinated) -> None:
    joined = coordinated.stable_member(instance_id="one")
    waiting = coordinated.join()
    twin = coordinated.join(instance_id="one")
    with pytest.raises(FencedInstanceIdError):
        coordinated.groups.heartbeat(GROUP, 1, joined.member_id, "one")
    assert len(waiting[0].members) + len(twin[0].members) == 2


# What else is known of Kafka.


@pytest.mark.parametrize(
    ("text", "magnitude"),
    [
        ("", 0),
        ("g1", 3242),
        ("Hello World", 862545276),  # negative in Java
        ("polygenelubricants", 0),  # the smallest int, which has no magnitude
        ("😀", 1772899),  # two units of UTF-16
    ],
)
def test_groups_are_placed_by_javas_hash(text: str, magnitude: int) -> None:
    assert java_hash_magnitude(text) == magnitude


def test_a_subscription_names_its_topics() -> None:
    assert subscribed_topics(ORDERS) == ["orders"]
    for end in range(14):
        with pytest.raises(ValueError, match="no subscription"):
            subscribed_topics(ORDERS[:end])
