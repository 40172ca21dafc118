"""Whether a leader gets the ISR that it asks for (AlterPartition, KIP-497): a pure function.

In the order in which Apache Kafka's controller refuses.
"""

from dataclasses import replace

from kafka.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NotControllerError,
)

from broker.cluster.control import IsrChange
from broker.cluster.metadata import PartitionMetadata
from broker.controller.elections import IsOnline


def decide(
    change: IsrChange, asker: int, state: PartitionMetadata, is_online: IsOnline
) -> PartitionMetadata | None:
    """What is to be written; None where it is so already, as a question that comes
    again finds it. Raises what the leader is to hear."""
    if change.leader_epoch > state.leader_epoch or change.partition_epoch > state.partition_epoch:
        raise NotControllerError("another controller has changed the partition since")
    if change.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpochError(f"leader epoch is {state.leader_epoch}")
    if change.isr == state.isr:
        return None
    if change.partition_epoch < state.partition_epoch:
        raise InvalidUpdateVersionError(f"partition epoch is {state.partition_epoch}")
    if asker != state.leader or asker not in change.isr:
        raise InvalidRequestError("only its leader, who is in it, changes an ISR")
    strangers = set(change.isr).difference(state.replicas)
    absent = [node_id for node_id in change.isr if not is_online(node_id) and node_id != asker]
    if strangers or absent:
        raise IneligibleReplicaError(f"brokers {sorted(strangers.union(absent))}")
    # Who leads has recovered by that (KIP-704).
    return replace(state, isr=change.isr, is_recovering=False)
