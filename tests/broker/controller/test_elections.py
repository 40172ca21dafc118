"""Who leads next, whoever is there."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import ElectionNotNeededError, PreferredLeaderNotAvailableError
from kafka.structs import TopicPartition

from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import PartitionMetadata
from broker.controller.elections import (
    begun_at,
    elect_offline,
    elect_preferred,
    elect_without,
    first_state,
    kept_by_replicas,
    out_of_balance,
)
from tests.support.present import present

NODES = range(1, 6)
MS_2026 = 1_767_225_600_000
online = st.sets(st.sampled_from(NODES))


@st.composite
def states(draw: st.DrawFn) -> PartitionMetadata:
    replicas = draw(st.permutations(NODES).map(lambda nodes: tuple(nodes[:3])))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True).map(tuple))
    leader = draw(st.sampled_from((*isr, NO_LEADER)))
    return PartitionMetadata(replicas, leader, draw(st.integers(0, 9)), isr, 4)


@given(state=states(), there=online)
def test_only_who_is_in_sync_and_there_leads(state: PartitionMetadata, there: set[int]) -> None:
    elected = elect_offline(state, there.__contains__)
    can_lead = [node for node in state.replicas if node in state.isr and node in there]
    assert elected.leader == (can_lead[0] if can_lead else NO_LEADER)
    assert elected.leader_epoch == state.leader_epoch + 1
    assert elected.partition_epoch == state.partition_epoch
    assert elected.replicas == state.replicas
    if can_lead:
        assert set(elected.isr) == set(state.isr) & there
    else:
        assert elected.isr == state.isr  # the next leader is to be one of it


@given(there=online)
def test_a_new_partition_is_led_by_the_first_that_is_there(there: set[int]) -> None:
    state = first_state((3, 1, 2), there.__contains__)
    present = tuple(node for node in (3, 1, 2) if node in there)
    assert state.leader == (present[0] if present else NO_LEADER)
    assert state.isr == (present or (3, 1, 2))


@given(state=states(), there=online, leaving=st.sets(st.sampled_from(NODES)))
def test_who_leaves_leads_nothing_and_is_not_in_sync(
    state: PartitionMetadata, there: set[int], leaving: set[int]
) -> None:
    changed = elect_without(state, leaving, there.__contains__)
    others = [
        node
        for node in state.replicas
        if node in state.isr and node in there and node not in leaving
    ]
    if leaving.isdisjoint(state.isr) and state.leader not in leaving:
        assert changed is None
    elif state.leader == NO_LEADER or (state.leader in leaving and not others):
        assert changed is None  # the last ones stay
    else:
        assert present(changed).leader_epoch == state.leader_epoch + 1
        assert leaving.isdisjoint(present(changed).isr)
        assert present(changed).leader == (others[0] if state.leader in leaving else state.leader)
        assert present(changed).leader in present(changed).isr


@pytest.mark.parametrize(("isr", "kept"), [((4, 2, 1), (2, 1)), ((4, 5), (4, 5)), ((3,), (3,))])
def test_who_is_no_replica_any_more_is_in_sync_only_where_nobody_else_is(
    isr: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    """Nobody in sync would say that nobody has what was acknowledged."""
    state = PartitionMetadata((1, 2, 3), 4, 7, isr, 4)
    assert kept_by_replicas(state) == replace(state, isr=kept)


@given(state=states(), there=online)
def test_unclean_only_where_nobody_in_sync_is_there(
    state: PartitionMetadata, there: set[int]
) -> None:
    clean = elect_offline(state, there.__contains__)
    unclean = elect_offline(state, there.__contains__, unclean=True)
    present = [node for node in state.replicas if node in there]
    if clean.leader != NO_LEADER or not present:
        assert unclean == clean
    else:
        assert (unclean.leader, unclean.isr) == (present[0], (present[0],))
        assert unclean.is_recovering
        assert unclean.leader_epoch == state.leader_epoch + 1


@given(state=states(), there=online)
def test_the_preferred_leader_is_the_first_replica_or_nobody(
    state: PartitionMetadata, there: set[int]
) -> None:
    preferred = state.replicas[0]
    try:
        elected = elect_preferred(state, there.__contains__)
    except ElectionNotNeededError:
        assert state.leader == preferred
    except PreferredLeaderNotAvailableError:
        assert preferred not in there & set(state.isr)
    else:
        epoch = state.leader_epoch + 1
        assert elected == replace(state, leader=preferred, leader_epoch=epoch)
        assert preferred in there & set(state.isr)


@given(several=st.lists(states(), max_size=20), there=online, percentage=st.integers(0, 100))
def test_what_is_out_of_balance_can_be_brought_back(
    several: list[PartitionMetadata], there: set[int], percentage: int
) -> None:
    partitions = {TopicPartition("t", index): state for index, state in enumerate(several)}
    found = out_of_balance(partitions, percentage, there.__contains__)
    for place in found:
        elect_preferred(partitions[place], there.__contains__)
    for node in NODES:
        theirs = [state for state in several if state.replicas[0] == node]
        others = sum(state.leader != node for state in theirs)
        if others * 100 <= percentage * len(theirs):
            assert all(partitions[place].replicas[0] != node for place in found)


def test_what_moves_is_not_balanced() -> None:
    state = PartitionMetadata((1, 2), 2, 3, (1, 2), 4)
    place = TopicPartition("t", 0)
    assert out_of_balance({place: state}, 10, {1, 2}.__contains__) == [place]
    assert out_of_balance({place: replace(state, removing=(2,))}, 10, {1, 2}.__contains__) == []


@given(
    state=states(),
    epoch=st.integers(0, (1 << 31) - 1),
    now_ms=st.one_of(st.integers(0), st.integers(MS_2026, MS_2026 + (1 << 39))),
)
def test_an_epoch_by_the_clock_leaves_room_for_as_many_elections_as_before(
    state: PartitionMetadata, epoch: int, now_ms: int
) -> None:
    changed = begun_at(replace(state, leader_epoch=epoch), now_ms)
    assert epoch <= changed.leader_epoch < max(epoch + 1, (7 << 28) + (1 << 14))
    assert replace(changed, leader_epoch=state.leader_epoch) == state


@given(
    state=states(),
    epoch=st.integers(0, 1000),
    since_s=st.integers(1000, 86_400 * 365 * 14),
    starts_s=st.lists(st.integers(1, 1000), min_size=2, max_size=5),
)
def test_epochs_of_a_copy_are_later_than_those_of_what_it_replaces(
    state: PartitionMetadata, epoch: int, since_s: int, starts_s: list[int]
) -> None:
    """Else the copy's would end where records of the replaced one do, or later."""
    now_ms = MS_2026 + since_s * 1000
    before = replace(state, leader_epoch=epoch)
    replaced = begun_at(before, now_ms)
    copy = before
    for each in starts_s:
        now_ms += each * 1000
        begun = begun_at(replace(copy, leader_epoch=copy.leader_epoch + 1), now_ms)
        assert begun.leader_epoch > max(copy.leader_epoch, replaced.leader_epoch)
        copy = begun


@given(state=states(), ahead=st.integers(100, 1 << 20))
def test_a_clock_that_was_set_back_is_told_by_nobody(state: PartitionMetadata, ahead: int) -> None:
    before = replace(state, leader_epoch=ahead)
    begun = {begun_at(before, MS_2026).leader_epoch for _ in range(20)}
    assert min(begun) >= ahead
    assert len(begun) > 1
