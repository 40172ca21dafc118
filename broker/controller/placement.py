"""Which brokers keep the replicas of new partitions: pure functions.

Kafka's rule (AdminUtils.assignReplicasToBrokers): first replicas go round over the brokers from one
chosen at random, the others follow at a distance that grows with each round, so that the partitions
that a broker leads have their followers spread over all others.
"""

import random
from collections.abc import Sequence

from kafka.errors import InvalidReplicationFactorError

from broker.cluster.metadata import PartitionMetadata

Assignment = Sequence[Sequence[int]]
"""The replicas of each partition, node ids, the preferred leader first."""


def place(
    node_ids: Sequence[int],
    partition_count: int,
    replication_factor: int,
    first_partition: int = 0,
    first_broker: int | None = None,
) -> list[tuple[int, ...]]:
    """Replicas of `partition_count` partitions from `first_partition` on.

    `first_broker`: the position in `node_ids` of the first partition's leader, at random if not
    given. Raises InvalidReplicationFactorError where there are fewer brokers than replicas.
    """
    nodes = sorted(node_ids)
    if replication_factor > len(nodes):
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): The target "
            f"replication factor of {replication_factor} cannot be reached because only "
            f"{len(nodes)} broker(s) are registered."
        )
    start = random.randrange(len(nodes)) if first_broker is None else first_broker
    shift = random.randrange(len(nodes)) if first_broker is None else first_broker
    placed = []
    for index in range(first_partition, first_partition + partition_count):
        if index > 0 and index % len(nodes) == 0:
            shift += 1
        first = (start + index) % len(nodes)
        followers = (
            (first + 1 + (shift + number) % (len(nodes) - 1)) % len(nodes)
            for number in range(replication_factor - 1)
        )
        placed.append(tuple(nodes[position] for position in (first, *followers)))
    return placed


def place_more(
    node_ids: Sequence[int], present: Sequence[PartitionMetadata], partition_count: int
) -> list[tuple[int, ...]]:
    """Replicas of partitions that are added to those of a topic, as many each as the first has.

    Raises as `place`.
    """
    nodes = sorted(node_ids)
    replicas = present[0].replicas
    preferred = next((at for at, node in enumerate(nodes) if node >= replicas[0]), 0)
    return place(nodes, partition_count, len(replicas), len(present), preferred)
