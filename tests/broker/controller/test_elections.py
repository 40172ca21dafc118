"""Who leads next, whoever is there."""

from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import PartitionMetadata
from broker.controller.elections import elect_offline, elect_without, first_state

NODES = range(1, 6)
online = st.sets(st.sampled_from(NODES))


@st.composite
def states(draw):
    replicas = draw(st.permutations(NODES).map(lambda nodes: tuple(nodes[:3])))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True).map(tuple))
    leader = draw(st.sampled_from((*isr, NO_LEADER)))
    return PartitionMetadata(replicas, leader, draw(st.integers(0, 9)), isr, 4)


@given(state=states(), there=online)
def test_only_who_is_in_sync_and_there_leads(state, there):
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
def test_a_new_partition_is_led_by_the_first_that_is_there(there):
    state = first_state((3, 1, 2), there.__contains__)
    present = tuple(node for node in (3, 1, 2) if node in there)
    assert state.leader == (present[0] if present else NO_LEADER)
    assert state.isr == (present or (3, 1, 2))


@given(state=states(), there=online, leaving=st.sets(st.sampled_from(NODES)))
def test_who_leaves_leads_nothing_and_is_not_in_sync(state, there, leaving):
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
        assert changed.leader_epoch == state.leader_epoch + 1
        assert leaving.isdisjoint(changed.isr)
        assert changed.leader == (others[0] if state.leader in leaving else state.leader)
        assert changed.leader in changed.isr
