"""Who leads a partition next: pure functions of its state and of who is there.

Leaders are chosen in the order of the assignment, never in the ISR's, which is history. A new
leader begins a new leader epoch. (Kafka: PartitionLeaderElectionAlgorithms.)
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import PartitionMetadata

IsOnline = Callable[[int], bool]


def first_state(replicas: Sequence[int], is_online: IsOnline) -> PartitionMetadata:
    """Of a new partition: who is there is in sync, and the first of them leads it. Where nobody is,
    the first to come will: the logs of all are equally empty."""
    isr = tuple(node_id for node_id in replicas if is_online(node_id))
    leader = isr[0] if isr else NO_LEADER
    return PartitionMetadata(tuple(replicas), leader, 0, isr or tuple(replicas), 0)


def elect_offline(state: PartitionMetadata, is_online: IsOnline) -> PartitionMetadata:
    """Of a partition whose leader is gone: the first of its replicas that is there and in sync
    leads it; nobody where none is, and the ISR then stays as it was, since the next leader is to be
    one of it."""
    in_sync = tuple(node_id for node_id in state.isr if is_online(node_id))
    leader = next((node_id for node_id in state.replicas if node_id in in_sync), NO_LEADER)
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=state.isr if leader == NO_LEADER else in_sync,
    )


def elect_without(
    state: PartitionMetadata, leaving: Set[int], is_online: IsOnline
) -> PartitionMetadata | None:
    """Of a partition some of whose replicas are to stop, or have: they leave the ISR, and another
    one leads it where they did. None where nothing is to change, or where nobody else in sync is
    there: the last ones stay."""
    if state.leader not in leaving and leaving.isdisjoint(state.isr):
        return None

    def stays(node_id: int) -> bool:
        return is_online(node_id) and node_id not in leaving

    if state.leader in leaving:
        elected = elect_offline(state, stays)
        return None if elected.leader == NO_LEADER else elected
    if state.leader == NO_LEADER:
        return None
    isr = tuple(node_id for node_id in state.isr if node_id not in leaving)
    return replace(state, leader_epoch=state.leader_epoch + 1, isr=isr)
