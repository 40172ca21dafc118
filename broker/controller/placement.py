"""Which brokers keep the replicas of new partitions: pure functions.

Kafka's rule (AdminUtils.assignReplicasToBrokers): first replicas go round over the brokers from one
chosen at random, the others follow at a distance that grows with each round, so that the partitions
that a broker leads have their followers spread over all others. Where all brokers have racks, the
round goes from rack to rack, and no rack has a second replica before each has one.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

from kafka.errors import InvalidReplicationFactorError

from broker.cluster.metadata import PartitionMetadata

Assignment = Sequence[Sequence[int]]
"""The replicas of each partition, node ids, the preferred leader first."""
Racks = Mapping[int, str | None]
"""The brokers that are there, and the rack of each."""


def place(
    racks: Racks,
    partition_count: int,
    replication_factor: int,
    first_partition: int = 0,
    first_broker: int | None = None,
) -> list[tuple[int, ...]]:
    """Replicas of `partition_count` partitions from `first_partition` on.

    `first_broker`: the position, in the round, of the first partition's leader, at random if not
    given. Raises InvalidReplicationFactorError where there are fewer brokers than replicas.
    """
    nodes, rack_of = _round(racks)
    if replication_factor > len(nodes):
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): The target "
            f"replication factor of {replication_factor} cannot be reached because only "
            f"{len(nodes)} broker(s) are registered."
        )
    start = random.randrange(len(nodes)) if first_broker is None else first_broker
    shift = random.randrange(len(nodes)) if first_broker is None else first_broker
    rack_count = len(set(rack_of.values()))
    stride = rack_count if None not in racks.values() else 1
    placed = []
    for index in range(first_partition, first_partition + partition_count):
        if index > 0 and index % len(nodes) == 0:
            shift += 1
        replicas = [nodes[(start + index) % len(nodes)]]
        after = _after(nodes, (start + index) % len(nodes), shift * stride)
        while len(replicas) < replication_factor:
            node_id = next(after)
            taken = {rack_of[replica] for replica in replicas}
            if node_id not in replicas and (
                rack_of[node_id] not in taken or len(taken) == rack_count
            ):
                replicas.append(node_id)
        placed.append(tuple(replicas))
    return placed


def _round(racks: Racks) -> tuple[list[int], Mapping[int, str | int]]:
    """The brokers in turn, and the rack of each; itself where not all have one."""
    nodes = sorted(racks)
    rack_of = {node_id: rack for node_id in nodes if (rack := racks[node_id]) is not None}
    if len(rack_of) < len(nodes):
        return nodes, {node_id: node_id for node_id in nodes}
    numbers: dict[str, int] = {}
    turns = {}
    for node_id in nodes:
        rack = rack_of[node_id]
        turns[node_id] = numbers[rack] = numbers.get(rack, -1) + 1
    return sorted(nodes, key=lambda node_id: (turns[node_id], rack_of[node_id])), rack_of


def _after(nodes: Sequence[int], first: int, shift: int) -> Iterator[int]:
    """The brokers at a distance from the `first` one, round and round."""
    while True:
        yield nodes[(first + 1 + shift % (len(nodes) - 1)) % len(nodes)]
        shift += 1


def place_more(
    racks: Racks, present: Sequence[PartitionMetadata], partition_count: int
) -> list[tuple[int, ...]]:
    """Replicas of partitions that are added to those of a topic, as many each as the first has.

    Raises as `place`.
    """
    replicas = present[0].replicas
    preferred = next((at for at, node in enumerate(sorted(racks)) if node >= replicas[0]), 0)
    return place(racks, partition_count, len(replicas), len(present), preferred)
