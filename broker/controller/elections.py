"""Who leads a partition next: pure functions of its state and of who is there.

Leaders are chosen in the order of the assignment, never in the ISR's, which is history. A new
leader begins a new leader epoch. (Kafka: PartitionLeaderElectionAlgorithms.)
"""

from collections.abc import Callable, Sequence
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
