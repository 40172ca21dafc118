"""What brokers know of a cluster, as values: brokers, topics, and who keeps and leads partitions.

`records` reads and writes them in the store; `cache` holds those that requests are answered from.
"""

import uuid
from dataclasses import dataclass

from kafka.structs import TopicPartition

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset((CONSUMER_OFFSETS, TRANSACTION_STATE))
"""Topics that brokers write for themselves: clients may read them, and not produce to them."""
NO_CONTROLLER = -1
NOT_MADE = -1
"""The partition epoch of one whose state nobody has written down yet."""


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker that clients can reach."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that is registered; its epoch is the transaction that registered it."""

    node: BrokerNode
    epoch: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Who keeps a partition, and who leads it since which epoch. `partition_epoch` counts the
    changes of all that: the version of its state's node. While replicas move, those that come and
    go are among `replicas`. `is_recovering`: led by one that was not in sync (KIP-704). `failed`:
    where clients are to be told of it, the replicas whose disks have failed on brokers that are
    there."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_recovering: bool = False
    failed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic; `partitions` by index."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionMetadata, ...]

    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, index) for index in range(len(self.partitions))]


def new_topic(name: str, partition_count: int, node_id: int) -> TopicMetadata:
    """A topic whose every partition is kept and led by one broker, in its first leader epoch."""
    partitions = (new_partition(node_id),) * partition_count
    return TopicMetadata(name, uuid.uuid4(), partitions)


def new_partition(node_id: int) -> PartitionMetadata:
    """A partition that one broker keeps and leads, in its first leader epoch."""
    return PartitionMetadata((node_id,), node_id, 0, (node_id,), 0)
