"""What a controller tells brokers: LeaderAndIsr, StopReplica and UpdateMetadata, as values; and
what leaders ask of it: AlterPartition.

Within one process they are handed over as they are; to other brokers they go as Kafka's messages.
Each names the controller and its epoch, by which a broker knows those of a controller of the past,
and the epoch of the broker that it is meant for, by which one that was started anew knows those for
its former life.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition

from broker.cluster.metadata import BrokerNode, PartitionMetadata

NO_LEADER: Final = -1
LEADER_DURING_DELETE: Final = -2
"""The leader of a partition whose topic is on its way out."""

Partitions: TypeAlias = Mapping[TopicPartition, PartitionMetadata]
Failures: TypeAlias = Mapping[TopicPartition, BrokerResponseError]
"""Of what was asked, the partitions where it failed, and why."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who says it, and to whom."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """Lead these partitions, or follow their leaders. `created`: those that never were before."""

    stamp: Stamp
    partitions: Partitions
    topic_ids: Mapping[str, uuid.UUID]
    created: frozenset[TopicPartition]
    leaders: Sequence[BrokerNode]


@dataclass(frozen=True, slots=True)
class StoppedReplica:
    """In which leader epoch a replica is stopped, and whether its log goes, too."""

    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Keep these partitions no more."""

    stamp: Stamp
    partitions: Mapping[TopicPartition, StoppedReplica]


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """What clients are to be told: all brokers, and the partitions that changed."""

    stamp: Stamp
    brokers: Sequence[BrokerNode]
    partitions: Partitions
    topic_ids: Mapping[str, uuid.UUID]


ControlRequest: TypeAlias = LeaderAndIsr | StopReplica | UpdateMetadata


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader asks of the controller: another ISR for a partition that it leads in that
    epoch, and that nobody has changed since that partition epoch (KIP-497)."""

    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """Changes of ISRs, from the broker that leads the partitions."""

    broker_id: int
    broker_epoch: int
    changes: Sequence[IsrChange]


IsrAnswer: TypeAlias = PartitionMetadata | BrokerResponseError
"""What a partition is now, or why it stays as it was."""
