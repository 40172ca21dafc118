"""The broker's parts, as handlers see them: each API is given those of its family alone.

Which of these values an API's handler takes says its registration (`request.Api.context`). They are
built where the parts are (`broker.server`). Called by: the event loop's thread only.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from broker.api.fetch_session import FetchSessionCache
from broker.api.request import ApiRange
from broker.cluster.broker_configs import ConfigManager
from broker.cluster.cache import MetadataCache
from broker.cluster.changes import RunBlocking
from broker.cluster.control import ControlRequest, Failures
from broker.cluster.entity_configs import EntityConfigs
from broker.config.broker import BrokerConfig
from broker.controller.controller import Controller
from broker.coordinator.consumer_groups import ConsumerGroupCoordinator
from broker.coordinator.group import GroupCoordinator
from broker.coordinator.offsets import OffsetsTopic
from broker.coordinator.producer_ids import ProducerIds
from broker.coordinator.state_topic import CreateTopic
from broker.coordinator.transaction_markers import MarkerWriter
from broker.coordinator.transaction_partitions import TransactionPartitions
from broker.coordinator.transactions import TransactionCoordinator, TransactionsTopic
from broker.replica.manager import ReplicaManager


@dataclass(frozen=True, slots=True)
class NoContext:
    """Of APIs that answer the same whatever the broker's state."""


@dataclass(frozen=True, slots=True)
class _Configured:
    """What is given the broker's properties, which change while it runs."""

    configs: ConfigManager

    @property
    def config(self) -> BrokerConfig:
        """As it is now."""
        return self.configs.current


@dataclass(frozen=True, slots=True)
class RecordContext(_Configured):
    """Of what is done with records and their logs."""

    metadata: MetadataCache
    replicas: ReplicaManager
    fetch_sessions: FetchSessionCache
    transaction_partitions: TransactionPartitions
    convert: RunBlocking
    """For work on single records: one at a time."""
    others_may_lead: Callable[[], bool] | None = None
    """Whether others may lead what this broker leads; None for a broker alone."""

    def longest_wait_ms(self, max_wait_ms: int) -> int:
        """How long a fetch may really wait: half of the time after which its connection would be
        closed as idle, so that its answer always comes before that."""
        max_idle_ms = self.config.connections_max_idle_ms
        return max_wait_ms if max_idle_ms < 0 else min(max_wait_ms, max_idle_ms // 2)


@dataclass(frozen=True, slots=True)
class GroupContext:
    """Of groups of both protocols, and of their offsets."""

    metadata: MetadataCache
    groups: GroupCoordinator
    consumer_groups: ConsumerGroupCoordinator
    offsets_topic: OffsetsTopic
    features: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """Of transactions where they are coordinated, and where their markers go."""

    metadata: MetadataCache
    transactions: TransactionCoordinator
    transactions_topic: TransactionsTopic
    producer_ids: ProducerIds
    markers: MarkerWriter
    offsets_topic: OffsetsTopic


@dataclass(frozen=True, slots=True)
class TransactionalOffsetsContext:
    """Of offsets that count when a transaction does."""

    metadata: MetadataCache
    replicas: ReplicaManager
    groups: GroupCoordinator
    offsets_topic: OffsetsTopic
    transaction_partitions: TransactionPartitions


@dataclass(frozen=True, slots=True)
class MetadataContext(_Configured):
    """Of what clients find their way by."""

    metadata: MetadataCache
    offsets_topic: OffsetsTopic
    transactions_topic: TransactionsTopic
    create_topic: CreateTopic
    """Asks the cluster's controller."""


@dataclass(frozen=True, slots=True)
class FeatureContext:
    """Of what this broker speaks."""

    metadata: MetadataCache
    api_ranges: tuple[ApiRange, ...]
    features: Mapping[str, int]
    """Those that are finalized, and their levels."""


@dataclass(frozen=True, slots=True)
class ControllerContext(_Configured):
    """Of what a controller decides."""

    metadata: MetadataCache
    controller: Controller


@dataclass(frozen=True, slots=True)
class ConfigContext(_Configured):
    """Of what is set on topics, brokers, groups and users."""

    metadata: MetadataCache
    topic_configs: EntityConfigs
    group_configs: EntityConfigs
    users: EntityConfigs
    """Their credentials."""


@dataclass(frozen=True, slots=True)
class ControlledContext:
    """Of what a controller has brokers do."""

    obey: Callable[[ControlRequest, int], Awaitable[Failures]]
    """What is asked for, and by which connection (`Peer.number`)."""
