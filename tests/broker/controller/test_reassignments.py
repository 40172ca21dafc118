"""Which way replicas move, whatever is asked for and in whatever state."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kafka.errors import (
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    NoReassignmentInProgressError,
)

from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import PartitionMetadata
from broker.controller.reassignments import (
    before,
    begun,
    completed,
    decide,
    is_complete,
    is_moving,
    wanted,
)

NODES = range(1, 7)
online = st.sets(st.sampled_from(NODES))
targets = st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True).map(tuple)


def everyone(node_id: int) -> bool:
    return True


def at_rest(
    replicas: tuple[int, ...], isr: tuple[int, ...] | None = None, leader: int | None = None
) -> PartitionMetadata:
    isr = tuple(replicas if isr is None else isr)
    return PartitionMetadata(tuple(replicas), isr[0] if leader is None else leader, 3, isr, 7)


@st.composite
def states(draw: st.DrawFn) -> PartitionMetadata:
    """At rest, or on its way."""
    replicas = draw(targets)
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True).map(tuple))
    state = at_rest(replicas, isr, draw(st.sampled_from((*isr, NO_LEADER))))
    if draw(st.booleans()):
        state = decide(state, draw(targets), everyone, any_count=True)
    return state


@given(state=states(), target=targets)
def test_while_they_move_all_are_kept_and_in_the_end_those_that_were_wanted(
    state: PartitionMetadata, target: tuple[int, ...]
) -> None:
    assume(not set(state.isr).isdisjoint((*target, *before(state))))
    moving = decide(state, target, everyone, any_count=True)
    assert wanted(moving) == target
    assert set(before(moving)) == set(before(state))
    assert set(moving.replicas) == set(target) | set(before(state))
    assert len(set(moving.replicas)) == len(moving.replicas)
    assert moving.replicas[: len(target)] == target
    assert not set(moving.adding) & set(moving.removing)
    assert is_moving(moving) == (set(target) != set(before(state)))
    # It can always be taken back.
    if is_moving(moving):
        back = decide(moving, None, everyone, any_count=True)
        assert not set(before(back)) - set(wanted(back))
        assert wanted(back) == before(moving)


@given(state=states(), target=targets, there=online)
def test_what_is_written_at_its_beginning(
    state: PartitionMetadata, target: tuple[int, ...], there: set[int]
) -> None:
    assume(not set(state.isr).isdisjoint((*target, *before(state))))
    moving = decide(state, target, everyone, any_count=True)
    written = begun(moving, there.__contains__)
    assert written.leader_epoch == state.leader_epoch + 1
    assert set(written.isr) == set(state.isr) & set(moving.replicas) != set()
    assert written.replicas == moving.replicas
    check_leader(state, written, there)


@given(state=states(), target=targets, there=online)
def test_what_is_written_at_its_end(
    state: PartitionMetadata, target: tuple[int, ...], there: set[int]
) -> None:
    assume(not set(state.isr).isdisjoint((*target, *before(state))))
    moving = decide(state, target, everyone, any_count=True)
    if not is_complete(moving):
        assert set(target) - set(state.isr)
        return
    written = completed(moving, there.__contains__)
    assert (written.replicas, written.adding, written.removing) == (target, (), ())
    assert set(written.isr) <= set(target)
    assert written.isr
    assert written.leader_epoch == state.leader_epoch + 1
    check_leader(state, written, there)


def check_leader(state: PartitionMetadata, written: PartitionMetadata, there: set[int]) -> None:
    """Nobody leads who is not in sync and there; and who can, does so on."""
    able = [node for node in written.replicas if node in written.isr and node in there]
    if state.leader in able:
        assert written.leader == state.leader
    else:
        assert written.leader == (able[0] if able else NO_LEADER)


def test_kafkas_own_example() -> None:
    moving = decide(at_rest((1, 2)), (3, 2), everyone, any_count=True)
    assert (moving.replicas, moving.adding, moving.removing) == ((3, 2, 1), (3,), (1,))
    replaced = decide(moving, (4, 1), everyone, any_count=True)
    assert (replaced.replicas, replaced.adding, replaced.removing) == ((4, 1, 2), (4,), (2,))


def test_what_is_refused() -> None:
    state = at_rest((1, 2))
    for target in ((), (1, 1), (1, 9), (-1,)):
        with pytest.raises(InvalidReplicationAssignmentError):
            decide(state, target, (1, 2, 3).__contains__, any_count=True)
    with pytest.raises(NoReassignmentInProgressError):
        decide(state, None, everyone, any_count=True)
    with pytest.raises(InvalidReplicationFactorError):
        decide(state, (1, 2, 3), everyone, any_count=False)
    decide(state, (3, 4), everyone, any_count=False)


def test_a_broker_that_is_away_may_stay_and_none_be_added() -> None:
    state = at_rest((1, 2), isr=(1,))
    assert decide(state, (2, 1), (1,).__contains__, any_count=True).replicas == (2, 1)


def test_the_last_in_sync_is_not_given_up() -> None:
    moving = decide(at_rest((1,)), (2,), everyone, any_count=True)
    only_new = PartitionMetadata(moving.replicas, 2, 9, (2,), 9, moving.adding, moving.removing)
    with pytest.raises(InvalidReplicationAssignmentError):
        decide(only_new, None, everyone, any_count=True)
