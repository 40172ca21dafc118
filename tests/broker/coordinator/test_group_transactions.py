"""Offsets that are committed within transactions: when they count, and what a restart finds.

What a request is answered is in tests/broker/api/test_group_transactions.py, which Apache Kafka
passes too; any order of everything is in tests/property/test_group_transactions_property.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidGroupIdError,
    NotCoordinatorError,
    UnknownMemberIdError,
)
from kafka.structs import TopicPartition

from broker.coordinator.group import CommitAsk
from broker.coordinator.group_metadata import GroupState
from broker.coordinator.state_records import ProducerIdAndEpoch
from tests.broker.coordinator.in_memory import GROUP, Coordinated

PLACE = TopicPartition("orders", 0)
OTHER = TopicPartition("other", 0)
FIRST, SECOND = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)
MINUTE_S = 60.0


@pytest.fixture
def coordinated() -> Coordinated:
    return Coordinated()


@pytest.fixture(params=[False, True], ids=["", "after a restart"])
def maybe_restart(request: pytest.FixtureRequest, coordinated: Coordinated) -> Callable[[], None]:
    """Every state is what it is, whether the coordinator lived through it or read it."""
    return coordinated.restart if request.param else lambda: None


def unstable(coordinated: Coordinated, group_id: str = GROUP) -> set[Any]:
    return set(coordinated.groups.unstable(group_id))


def expire(coordinated: Coordinated) -> None:
    for _ in coordinated.groups.expire():
        pass


# When they count.


def test_a_commit_counts_from_the_marker_on(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit({PLACE: 5})
    coordinated.commit_in_transaction(FIRST, {PLACE: 9, OTHER: 3})
    maybe_restart()
    assert coordinated.committed() == {PLACE: 5}
    assert unstable(coordinated) == {PLACE, OTHER}
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 9, OTHER: 3}
    assert unstable(coordinated) == set()


def test_who_has_read_a_commit_hears_of_its_end(coordinated: Coordinated) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 9})
    coordinated.restart()
    coordinated.end_transaction(FIRST, is_commit=True)
    assert coordinated.committed() == {PLACE: 9}
    assert unstable(coordinated) == set()


def test_an_aborted_one_never_does(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit({PLACE: 5})
    coordinated.commit_in_transaction(FIRST, {PLACE: 9, OTHER: 3})
    maybe_restart()
    coordinated.end_transaction(FIRST, is_commit=False)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 5}
    assert unstable(coordinated) == set()


def test_a_producers_next_transaction_is_another_one(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 1})
    coordinated.end_transaction(FIRST, is_commit=True)
    coordinated.commit_in_transaction(FIRST, {PLACE: 2})
    maybe_restart()
    assert coordinated.committed() == {PLACE: 1}
    coordinated.end_transaction(FIRST, is_commit=False)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 1}


def test_the_last_commit_of_a_transaction_is_the_one_that_counts(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    for offset in (3, 9, 7):
        coordinated.commit_in_transaction(FIRST, {PLACE: offset})
    maybe_restart()
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 7}


def test_a_later_plain_commit_is_not_undone_by_the_marker(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 9, OTHER: 3})
    coordinated.commit({PLACE: 5})
    maybe_restart()
    assert unstable(coordinated) == {PLACE, OTHER}
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 5, OTHER: 3}


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)])
def test_of_two_transactions_the_later_commit_counts(
    coordinated: Coordinated,
    maybe_restart: Callable[[], None],
    order: tuple[ProducerIdAndEpoch, ProducerIdAndEpoch],
) -> None:
    """Not the later marker."""
    coordinated.commit_in_transaction(FIRST, {PLACE: 1, OTHER: 1})
    coordinated.commit_in_transaction(SECOND, {PLACE: 2})
    for producer in order:
        coordinated.end_transaction(producer, is_commit=True)
        maybe_restart()
    assert coordinated.committed() == {PLACE: 2, OTHER: 1}


def test_of_two_transactions_each_has_its_own_end(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 1})
    coordinated.commit_in_transaction(SECOND, {PLACE: 2})
    coordinated.end_transaction(SECOND, is_commit=False)
    maybe_restart()
    assert unstable(coordinated) == {PLACE}
    assert coordinated.committed() == {}
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 1}


def test_a_transaction_commits_for_several_groups(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 1})
    coordinated.commit_in_transaction(FIRST, {PLACE: 2}, group_id="others")
    maybe_restart()
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 1}
    assert coordinated.committed("others") == {PLACE: 2}


def test_a_marker_ends_it_in_its_own_partition_alone(coordinated: Coordinated) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 1})
    coordinated.commit_in_transaction(FIRST, {PLACE: 2}, group_id="others")
    coordinated.log.partition_of = lambda group_id: int(group_id == "others")  # type: ignore[method-assign]
    coordinated.groups.complete_transaction(1, [1], is_commit=True)
    assert coordinated.committed() == {}
    assert coordinated.committed("others") == {PLACE: 2}
    coordinated.groups.complete_transaction(1, [0], is_commit=True)
    assert coordinated.committed() == {PLACE: 1}


def test_a_marker_that_ends_nothing_changes_nothing(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit({PLACE: 1})
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 1}


def test_what_could_not_be_written_is_not_pending(coordinated: Coordinated) -> None:
    coordinated.log.error = NotCoordinatorError()
    with pytest.raises(NotCoordinatorError):
        coordinated.commit_in_transaction(FIRST, {PLACE: 1})
    coordinated.log.error = None
    assert coordinated.groups.groups() == []
    coordinated.end_transaction(FIRST, is_commit=True)
    assert coordinated.committed() == {}


def test_a_coordinator_that_resigned_knows_no_transaction(coordinated: Coordinated) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 1})
    coordinated.groups.resign(0)
    assert not coordinated.groups._transactions
    coordinated.groups.complete_transaction(1, [0], is_commit=True)
    assert coordinated.committed() == {}


def test_a_coordinator_keeps_the_groups_of_the_partitions_that_it_still_leads(
    coordinated: Coordinated,
) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 1})
    coordinated.groups.resign(1)
    coordinated.groups.complete_transaction(FIRST.producer_id, [0], is_commit=True)
    assert set(coordinated.committed()) == {PLACE}


# Who may commit.


def refusal(coordinated: Coordinated, **identity: object) -> type[Exception] | None:
    named: dict[str, Any] = {
        "group_id": GROUP,
        "member_id": "",
        "instance_id": None,
        "generation": -1,
    }
    ask = CommitAsk(**(named | identity), offsets=[])
    try:
        coordinated.groups.commit_transactional(ask, FIRST)
    except Exception as error:
        return type(error)
    return None


def test_members_commit_in_their_generation(coordinated: Coordinated) -> None:
    joined = coordinated.stable_member(instance_id="one")
    identity = {"member_id": joined.member_id, "instance_id": "one", "generation": 1}
    assert refusal(coordinated, **identity) is None
    assert refusal(coordinated, **identity | {"instance_id": None}) is None
    assert refusal(coordinated, **identity | {"generation": 0}) is IllegalGenerationError
    assert refusal(coordinated, **identity | {"generation": 2}) is IllegalGenerationError
    assert refusal(coordinated, **identity | {"generation": -1}) is IllegalGenerationError
    assert refusal(coordinated, **identity | {"member_id": "x"}) is FencedInstanceIdError
    assert refusal(coordinated, **identity | {"instance_id": "x"}) is UnknownMemberIdError
    assert refusal(coordinated, member_id="x", generation=1) is UnknownMemberIdError
    assert refusal(coordinated, generation=1) is UnknownMemberIdError
    assert refusal(coordinated, instance_id="one") is FencedInstanceIdError


def test_who_names_no_member_may_always_commit(coordinated: Coordinated) -> None:
    assert refusal(coordinated) is None
    coordinated.stable_member()
    assert refusal(coordinated) is None


def test_a_rebalance_hinders_nobody(coordinated: Coordinated) -> None:
    joined = coordinated.join()
    coordinated.time.advance(0.001)
    (group,) = coordinated.groups.groups()
    assert group.state is GroupState.COMPLETING_REBALANCE
    assert refusal(coordinated, member_id=joined[0].member_id, generation=1) is None


def test_groups_that_are_not_there(coordinated: Coordinated) -> None:
    assert refusal(coordinated, member_id="x", generation=1) is IllegalGenerationError
    assert refusal(coordinated, member_id="x") is None  # as by a consumer on its own
    assert refusal(coordinated, group_id="") is InvalidGroupIdError


def test_a_transactional_commit_does_not_keep_the_session(coordinated: Coordinated) -> None:
    joined = coordinated.stable_member()
    coordinated.time.advance(9)
    coordinated.commit_in_transaction(FIRST, {PLACE: 1}, joined.member_id, 1)
    coordinated.time.advance(2)
    (group,) = coordinated.groups.groups()
    assert group.state is GroupState.EMPTY


# What goes.


def test_deleting_an_offset_takes_what_is_pending_with_it(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit({OTHER: 1})
    coordinated.commit_in_transaction(FIRST, {PLACE: 9, OTHER: 9})
    assert coordinated.groups.delete_offsets(GROUP, [PLACE]) == [None]
    maybe_restart()
    assert unstable(coordinated) == {OTHER}
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {OTHER: 9}


def test_a_deleted_offset_may_be_committed_anew_in_the_same_transaction(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 9})
    coordinated.groups.delete_offsets(GROUP, [PLACE])
    coordinated.commit_in_transaction(FIRST, {PLACE: 10})
    maybe_restart()
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {PLACE: 10}


def test_deleting_a_group_takes_what_is_pending_with_it(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit({PLACE: 1})
    coordinated.commit_in_transaction(FIRST, {PLACE: 9, OTHER: 9})
    coordinated.groups.delete(GROUP)
    maybe_restart()
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.groups.groups() == []


def test_a_group_that_came_back_is_not_given_what_was_deleted(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 9})
    coordinated.groups.delete(GROUP)
    coordinated.commit({OTHER: 1})
    maybe_restart()
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {OTHER: 1}


def test_a_deleted_topic_takes_what_is_pending_with_it(
    coordinated: Coordinated, maybe_restart: Callable[[], None]
) -> None:
    coordinated.commit_in_transaction(FIRST, {PLACE: 9, OTHER: 9})
    coordinated.groups.topic_deleted(PLACE.topic)
    maybe_restart()
    coordinated.end_transaction(FIRST, is_commit=True)
    maybe_restart()
    assert coordinated.committed() == {OTHER: 9}


def test_nothing_expires_that_a_transaction_may_still_change() -> None:
    coordinated = Coordinated({"offsets.retention.minutes": "10"})
    coordinated.commit({PLACE: 1, OTHER: 1})
    coordinated.commit_in_transaction(FIRST, {PLACE: 2})
    coordinated.time.advance(11 * MINUTE_S)
    expire(coordinated)
    assert coordinated.committed() == {PLACE: 1}
    coordinated.end_transaction(FIRST, is_commit=False)
    expire(coordinated)
    assert coordinated.groups.groups() == []


def test_a_group_is_kept_for_its_transaction_alone() -> None:
    coordinated = Coordinated()
    coordinated.commit_in_transaction(FIRST, {PLACE: 2})
    expire(coordinated)
    assert unstable(coordinated) == {PLACE}
    coordinated.end_transaction(FIRST, is_commit=False)
    expire(coordinated)
    assert coordinated.groups.groups() == []
