"""BrokerServer: the one place that builds the broker's parts and hands them down.

Owns: the order of starting and stopping, the one metadata thread, the timer of the high watermark
checkpoint. Called by: __main__ (and tests), in the thread that runs the event loop. `open` blocks
(it may recover logs); everything after belongs to the loop.
"""

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from kafka.errors import BrokerResponseError, KafkaConnectionError, NotControllerError

from broker.api.api_versions import FEATURES, GROUP_VERSION
from broker.api.apis import APIS
from broker.api.contexts import (
    ConfigContext,
    ControlledContext,
    ControllerContext,
    FeatureContext,
    GroupContext,
    MetadataContext,
    NoContext,
    RecordContext,
    TransactionalOffsetsContext,
    TransactionContext,
)
from broker.api.dispatcher import Dispatcher
from broker.api.fetch_session import FetchSessionCache
from broker.api.request import Api
from broker.boot.adoption import adopt_logs, last_producer_id
from broker.cluster import znodes
from broker.cluster.broker_configs import ConfigManager, load_dynamic
from broker.cluster.cache import MetadataCache
from broker.cluster.config_records import ConfigRecords
from broker.cluster.control import IsrChange
from broker.cluster.entity_configs import EntityConfigs
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import BrokerNode, PartitionMetadata
from broker.cluster.producer_id_blocks import claim_block
from broker.cluster.records import MetadataRecords
from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import MetadataStore
from broker.cluster.to_brokers import AskBroker, ToBrokers, ask_nobody
from broker.config.broker import RACK_AWARE, BrokerConfig
from broker.config.definition import ConfigError
from broker.config.dynamic import legal_topic_configs, usable_log_config
from broker.config.endpoint import Endpoint, parse_ip_overrides
from broker.config.group import group_config
from broker.controller.channels import BrokerChannel
from broker.controller.controller import Controller
from broker.controller.leaders import ElectionRules
from broker.controller.local_channel import LocalChannel
from broker.coordinator.consumer_groups import (
    ConsumerGroupCoordinator,
    GroupsOfBothProtocols,
    Resolved,
)
from broker.coordinator.coordinators import Coordinators
from broker.coordinator.group import GroupCoordinator
from broker.coordinator.offsets import Groups, OffsetsTopic, offsets_topic_kind
from broker.coordinator.producer_ids import ProducerIds
from broker.coordinator.state_loader import StateLoader
from broker.coordinator.state_topic import StateTopic
from broker.coordinator.timers import Timers
from broker.coordinator.transaction_markers import MarkerWriter
from broker.coordinator.transaction_partitions import TransactionPartitions
from broker.coordinator.transactions import (
    TransactionCoordinator,
    Transactions,
    TransactionsTopic,
    transactions_topic_kind,
)
from broker.log.clock import system_clock_ms
from broker.log.manager import LogManager
from broker.network.connection import ConnectionLimits
from broker.network.connection_quotas import ConnectionLimitOptions, resolve_overrides
from broker.network.server import NetworkServer, SocketOptions
from broker.replica.fetchers import Fetcher, ReplicaFetchers
from broker.replica.isr import ReplicaHost
from broker.replica.manager import ReplicaManager
from broker.replica.other_logs import OtherLogs
from broker.replica.purgatory import Purgatory
from broker.replica.state_changes import StateChanges
from broker.replica.throttle import Throttles

if TYPE_CHECKING:
    from broker.boot.membership import Membership
    from broker.controller.to_controller import ToController
    from broker.metrics.collector import BrokerParts, BrokerState
    from broker.metrics.endpoint import MetricsEndpoint
    from broker.network.broker_client import BrokerClient

_log = logging.getLogger(__name__)

_SHUTDOWN_RETRY_S = 0.2
_FIRST_WORD_S = 30.0

T = TypeVar("T")


class BrokerServer:
    """One broker: `open`, then `start`, then (once) `stop`."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._static = self._config = config
        self._loop = loop
        self._metadata_thread = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        # One thread: what a conversion holds in memory is held once.
        self._conversion_thread = ThreadPoolExecutor(1, thread_name_prefix="conversion")
        self._regex_thread = ThreadPoolExecutor(1, thread_name_prefix="regex")
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._connection_limits = _connection_limits(config)
        self._is_serving = False
        self._membership: Membership | None = None
        self._early_session_events: list[SessionEvent] = []
        self._to_controller: ToController | None = None
        self._to_brokers: list[ToBrokers] = []
        self._laggards_timer: asyncio.TimerHandle | None = None
        self._first_producer_id = 0
        self._is_stopping = False
        self._metrics: MetricsEndpoint | None = None
        self._expirations: list[asyncio.Task[None]] = []
        self._network = NetworkServer(
            ConnectionLimits(config.socket_request_max_bytes),
            SocketOptions(
                send_buffer_bytes=config.socket_send_buffer_bytes,
                receive_buffer_bytes=config.socket_receive_buffer_bytes,
                backlog=config.socket_listen_backlog_size,
                max_idle_ms=config.connections_max_idle_ms,
                max_queued_bytes=_queued_bytes(config),
                connections=self._connection_limits,
            ),
            loop,
        )

    def open(self) -> tuple[Endpoint, ...]:
        """Takes the ports and the data directory, recovers the logs. Blocks.

        Returns the addresses that will be listened on. Raises OSError (port taken, directory not
        writable or in use) and kafka.errors.
        """
        self._open_metrics()
        try:
            return self._open()
        except BaseException:
            if self._metrics is not None:
                self._metrics.close()
            raise

    def _open(self) -> tuple[Endpoint, ...]:
        advertised = self._config.advertised_endpoints[0]
        bound = self._network.bind(self._config.endpoints)
        if not self._is_member:
            self._config.data_dirs[0].mkdir(parents=True, exist_ok=True)
        self._store = self._open_store()
        self._records = MetadataRecords(self._store)
        self._records.prepare()
        if not self._is_member:
            self._records.become_controller(self._config.broker_id)
        self._config_records = ConfigRecords(self._store, tells_others=self._is_member)
        if self._is_member:
            # Here, since a broker alone hears of nobody.
            from broker.cluster.config_notices import ConfigNotices

            self._config_notices = ConfigNotices(self._store, self._run_blocking)
            self._config_notices.remember()
        self._config = load_dynamic(self._static, self._config_records)
        self._topic_configs = EntityConfigs(
            znodes.TOPIC_ENTITIES,
            self._config_records,
            self._run_blocking,
            self._topic_configured,
            lambda stored: legal_topic_configs(self._static, stored),
        )
        self._topic_configs.load()
        self._logs = LogManager(
            replace(self._config, cluster_id=self._cluster_id()),
            self._topic_configs.of,
            lambda topic_partition, log: self._replicas.high_watermark(topic_partition),
            on_failed=self._log_failed if self._is_member else None,
        )
        self._logs.open()
        self._records.set_cluster_id(self._logs.cluster_id)
        self._metadata = MetadataCache(self._logs.cluster_id, self._node(advertised, bound[0].port))
        purgatory = Purgatory(self._loop.call_later)
        replica_host = self._replica_host()
        self._throttles = Throttles(self._config, replica_host.now_ms)
        self._replicas = ReplicaManager(
            self._logs, purgatory, replica_host, self._alter_isr, self._throttles
        )
        self._fetchers = ReplicaFetchers(self._fetcher)
        if not self._is_member:
            self._records.register(self._metadata.broker)
            if adopt_logs(self._logs, self._records, self._topic_configs, self._config):
                self._first_producer_id = last_producer_id(self._logs) + 1
        return bound

    def _cluster_id(self) -> str | None:
        """None where a broker alone has none yet."""
        if self._is_member:
            from broker.boot.cluster_id import cluster_id_of_member

            return cluster_id_of_member(self._config, self._records)
        return self._config.cluster_id or self._records.cluster_id()

    @property
    def _is_member(self) -> bool:
        """Whether this broker is one of a cluster, and not alone."""
        return self._config.is_member

    def _open_store(self) -> MetadataStore:
        if not self._is_member:
            return LocalStore(self._config.data_dirs[0])
        # Here, since a broker alone never needs it.
        from broker.cluster.zookeeper_store import ZooKeeperStore

        return ZooKeeperStore(self._config, self._session_changed)

    def _session_changed(self, event: SessionEvent) -> None:
        """On a thread of the store's."""
        self._loop.call_soon_threadsafe(self._take_session_event, event)

    def _take_session_event(self, event: SessionEvent) -> None:
        if self._membership is None:
            self._early_session_events.append(event)
        else:
            self._membership.session_changed(event)
            if event.state is SessionState.CONNECTED and event.is_new:
                self._config_notices.session_began()

    async def start(self) -> None:
        """Takes over the partitions, then accepts connections; in a cluster the other way round.
        Raises OSError, ConfigError and MetadataStoreError."""
        self._build_configs()
        self._build_controller()
        group_loader = self._build_groups()
        transaction_loader = self._build_transactions()
        self._coordinators = Coordinators(
            group_loader, self._groups, transaction_loader, self._transactions
        )
        self._state_changes = StateChanges(
            self._config.broker_id,
            self._metadata,
            self._topic_configs,
            self._replicas,
            self._fetchers,
            self._run_blocking,
            self._coordinators,
            OtherLogs(self._logs, self._records),
        )
        apis = self._apis()
        self._dispatcher = Dispatcher(apis, self._api_contexts(apis), self._loop)
        if not self._is_member:
            self._state_changes.registered(0)  # with nobody
            await self._controller.start()
            await self._controller.finish_changes()  # deletions that a crash interrupted
        self._logs.start()
        self._network.start(self._dispatcher)
        if self._is_member:
            await self._join()
        self._schedule_checkpoint()
        self._is_serving = True
        self._expirations = [
            self._loop.create_task(self._expire_offsets()),
            self._loop.create_task(self._expire_transactional_ids()),
        ]

    def _apis(self) -> Sequence[Api[Any]]:
        if not self._is_member:
            return APIS
        from broker.api.cluster_apis import CLUSTER_APIS

        return (*APIS, *CLUSTER_APIS)

    async def _join(self) -> None:
        """Becomes a member of the cluster: from here on a controller says what to do."""
        from broker.boot.membership import Membership
        from broker.cluster.zookeeper_store import ZooKeeperStore

        assert isinstance(self._store, ZooKeeperStore)
        self._membership = Membership(
            self._metadata.broker,
            self._store,
            self._records,
            self._controller,
            self._run_blocking,
            self._state_changes.registered,
            self._state_changes.session_lost,
        )
        for event in self._early_session_events:
            self._membership.session_changed(event)
        await self._config_notices.start(
            {
                znodes.TOPIC_ENTITIES: self._topic_configs,
                znodes.BROKER_ENTITIES: self._configs,
                znodes.GROUPS: self._group_configs,
                znodes.USERS: self._users,
            }
        )
        # As long as a broker that was killed may seem to be there.
        await self._membership.join(2 * self._config.zookeeper_session_timeout_ms / 1000 + 5)
        # Clients of a broker that says it is ready find the others by it.
        heard = self._loop.create_task(self._state_changes.has_heard.wait())
        done, _ = await asyncio.wait({heard}, timeout=_FIRST_WORD_S)
        if not done:
            heard.cancel()
            _log.warning("broker.not_told reason='no controller has said what there is'")
        self._look_for_laggards()

    def _log_failed(self) -> None:
        """In any thread."""
        self._loop.call_soon_threadsafe(self._tell_of_failed_logs)

    def _tell_of_failed_logs(self) -> None:
        # Before it has joined, the controller hears of them when it says what to lead.
        if self._membership is not None:
            self._membership.logs_failed()

    def _look_for_laggards(self) -> None:
        wait_s = self._config.replica_lag_time_max_ms / 2000
        self._laggards_timer = self._loop.call_later(wait_s, self._look_for_laggards)
        self._replicas.look_for_laggards()

    def _build_configs(self) -> None:
        self._configs = ConfigManager(
            self._static,
            self._config,
            self._config_records,
            self._replicas.set_broker_config,
            self._run_blocking,
            self._changed,
        )
        self._limit_connections(self._config)
        self._group_configs = EntityConfigs(znodes.GROUPS, self._config_records, self._run_blocking)
        self._users = EntityConfigs(znodes.USERS, self._config_records, self._run_blocking)
        for entities in (self._group_configs, self._users):
            entities.load()

    def _build_controller(self) -> None:
        """A broker alone is its own controller, and tells itself what to do."""
        config = self._config
        is_balanced = self._is_member and config.auto_leader_rebalance_enable
        self._controller = Controller(
            config.broker_id,
            self._records,
            self._channel_to,
            self._run_blocking,
            ElectionRules(
                self._may_be_unclean,
                config.leader_imbalance_check_interval_seconds if is_balanced else None,
                config.leader_imbalance_per_broker_percentage,
                epoch_clock=None if self._is_member else system_clock_ms,
                read=self._topic_configs.refresh,
            ),
        )
        if self._is_member:
            from broker.controller.to_controller import ToController

            self._to_controller = ToController(
                self._config.broker_id,
                lambda: self._state_changes.broker_epoch,
                self._metadata,
                self._ask_broker("to-controller"),
                self._ask_broker("topics"),
            )

    def _topic_configured(self, name: str) -> None:
        """In the metadata thread."""
        self._replicas.topic_configured(name)
        self._loop.call_soon_threadsafe(self._rules_changed, name)

    def _rules_changed(self, topic: str | None = None) -> None:
        """Of a topic, or of all."""
        self._replicas.rules_changed(topic)
        self._controller.leaders.rules_changed()

    def _may_be_unclean(self, topic: str) -> bool:
        config = self._configs.current
        stored = self._topic_configs.of(topic)
        return usable_log_config(config, stored).unclean_leader_election_enable

    def _channel_to(self, node: BrokerNode) -> BrokerChannel:
        if node.node_id == self._config.broker_id:
            return LocalChannel(self._state_changes.obey)
        from broker.controller.remote_channel import RemoteChannel

        return RemoteChannel(node.node_id, self._connect(node, "controller"))

    def _connect(self, node: BrokerNode, purpose: str) -> "BrokerClient":
        from broker.network.broker_client import BrokerClient

        timeout_s = self._config.replica_socket_timeout_ms / 1000
        client_id = f"broker-{self._config.broker_id}-{purpose}"
        return BrokerClient(node.host, node.port, client_id, timeout_s)

    async def _create_topic(
        self, name: str, partition_count: int, replication_factor: int, configs: Mapping[str, str]
    ) -> object:
        """By the controller, whichever broker that is."""
        if self._to_controller is not None and not self._controller.is_active:
            await self._to_controller.create_topic(
                name, partition_count, replication_factor, configs
            )
            return None
        return await self._controller.place_and_create_topic(
            name, partition_count, replication_factor, configs
        )

    async def _claim_producer_ids(self) -> range:
        if self._to_controller is not None:
            return await self._to_controller.allocate_producer_ids()
        node_id, first_id = self._config.broker_id, self._first_producer_id
        return await self._run_blocking(lambda: claim_block(self._store, node_id, first_id))

    def _build_groups(self) -> StateLoader[Groups]:
        self._offsets_topic: OffsetsTopic = StateTopic(
            offsets_topic_kind(self._config),
            self._metadata,
            self._create_topic,
            self._replicas,
            system_clock_ms,
        )
        group_timers = Timers(self._loop.call_later, self._loop.time)
        self._groups = GroupCoordinator(
            self._config,
            self._offsets_topic,
            group_timers,
            system_clock_ms,
        )
        self._consumer_groups = ConsumerGroupCoordinator(
            self._config,
            self._groups,
            self._offsets_topic,
            group_timers,
            system_clock_ms,
            self._metadata,
            self._resolve_regexes,
            lambda group_id: group_config(self._configs.current, self._group_configs.of(group_id)),
        )
        both = GroupsOfBothProtocols(self._groups, self._consumer_groups)
        return StateLoader(self._offsets_topic, self._replicas, both)

    def _build_transactions(self) -> StateLoader[Transactions]:
        self._producer_ids = ProducerIds(self._claim_producer_ids)
        self._transactions_topic: TransactionsTopic = StateTopic(
            transactions_topic_kind(self._config),
            self._metadata,
            self._create_topic,
            self._replicas,
            system_clock_ms,
            self._others_may_lead(),
        )
        self._markers = MarkerWriter(
            self._replicas,
            self._groups,
            self._metadata,
            self._ask_broker("markers"),
            self._loop.call_later,
            self._config.request_timeout_ms,
        )
        self._transactions = TransactionCoordinator(
            self._config,
            self._transactions_topic,
            self._markers,
            Timers(self._loop.call_later, self._loop.time),
            system_clock_ms,
            self._producer_ids.take,
        )
        self._transaction_partitions = TransactionPartitions(
            self._transactions,
            self._transactions_topic,
            self._metadata.broker,
            self._ask_broker("transactions"),
            lambda: self._configs.current.transaction_partition_verification_enable,
        )
        return StateLoader(self._transactions_topic, self._replicas, self._transactions)

    def _ask_broker(self, purpose: str) -> AskBroker:
        """Over connections of its own: an answer may take as long as replicas in sync do."""
        if not self._is_member:
            return ask_nobody
        to_brokers = ToBrokers(self._metadata, lambda node: self._connect(node, purpose))
        self._to_brokers.append(to_brokers)
        return to_brokers.ask

    def _api_contexts(self, apis: Sequence[Api[Any]]) -> tuple[object, ...]:
        """What the handlers of each family of APIs are given."""
        configs, metadata, features = self._configs, self._metadata, self._features()
        return (
            NoContext(),
            self._record_context(),
            GroupContext(
                metadata, self._groups, self._consumer_groups, self._offsets_topic, features
            ),
            TransactionContext(
                metadata,
                self._transactions,
                self._transactions_topic,
                self._producer_ids,
                self._markers,
                self._offsets_topic,
            ),
            TransactionalOffsetsContext(
                metadata,
                self._replicas,
                self._groups,
                self._offsets_topic,
                self._transaction_partitions,
            ),
            MetadataContext(
                configs,
                metadata,
                self._offsets_topic,
                self._transactions_topic,
                self._create_topic,
            ),
            FeatureContext(metadata, tuple(api.range for api in apis), features),
            ControllerContext(configs, metadata, self._controller),
            ConfigContext(configs, metadata, self._topic_configs, self._group_configs, self._users),
            ControlledContext(self._state_changes.obey),
        )

    def _record_context(self) -> RecordContext:
        sessions = FetchSessionCache(
            self._replicas,
            self._config.max_incremental_fetch_session_cache_slots,
            lambda: self._loop.time() * 1000,
        )
        return RecordContext(
            self._configs,
            self._metadata,
            self._replicas,
            sessions,
            self._transaction_partitions,
            self._convert,
            self._others_may_lead(),
        )

    def _others_may_lead(self) -> Callable[[], bool] | None:
        """Whether others may lead what this broker leads; None for a broker alone. By the clock of
        its session: a process that was suspended takes what has arrived before it hears of its end.
        """
        if not self._is_member:
            return None
        from broker.cluster.zookeeper_store import ZooKeeperStore

        store, replicas = self._store, self._replicas
        assert isinstance(store, ZooKeeperStore)
        return lambda: store.session_is_over or not replicas.takes_appends

    def _features(self) -> Mapping[str, int]:
        """Those that are finalized; of a cluster over ZooKeeper none, as in Apache Kafka."""
        features = {} if self._is_member else dict(FEATURES)
        features[GROUP_VERSION] = int(self._config.takes_consumer_protocol)
        return {name: level for name, level in features.items() if level}

    async def stop(self) -> None:
        """Takes no more requests, finishes what has begun, closes the logs cleanly."""
        await self._leave()
        self._is_stopping = True
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
            self._checkpoint_timer = None
        for expiration in self._expirations:
            expiration.cancel()
        await self._network.close()
        # No timer of theirs writes to a log that is closed.
        self._markers.close()
        self._transaction_partitions.close()
        for to_brokers in self._to_brokers:
            to_brokers.close()
        self._coordinators.close()
        await self._controller.stop()
        await self._fetchers.close()
        for configs in (self._configs, self._topic_configs, self._group_configs, self._users):
            await configs.drain()
        await self._run_blocking(self._close_logs)
        self._metadata_thread.shutdown()
        self._conversion_thread.shutdown(cancel_futures=True)
        self._regex_thread.shutdown(wait=False, cancel_futures=True)
        if self._metrics is not None:
            self._metrics.close()

    async def _leave(self) -> None:
        """Has others lead what this broker leads, before it stops."""
        if self._membership is None or self._to_controller is None:
            return
        if self._laggards_timer is not None:
            self._laggards_timer.cancel()
        await self._shut_down_in_turn()
        await self._config_notices.stop()
        await self._membership.leave()
        self._to_controller.close()

    async def _shut_down_in_turn(self) -> None:
        """ControlledShutdown, for as long as the controlled.shutdown properties say."""
        assert self._to_controller is not None
        config = self._config
        backoff_s = config.controlled_shutdown_retry_backoff_ms / 1000
        until_s = self._loop.time() + config.controlled_shutdown_max_retries * backoff_s
        while config.controlled_shutdown_enable and self._loop.time() < until_s:
            try:
                remaining = await self._to_controller.shut_down()
            except (KafkaConnectionError, BrokerResponseError) as error:
                # The controller may have stopped itself, a moment ago.
                _log.warning("shutdown.not_controlled reason=%r", str(error))
                await asyncio.sleep(min(backoff_s, _SHUTDOWN_RETRY_S))
            else:
                if not remaining or len(self._metadata.brokers) == 1:
                    return
                _log.warning("shutdown.still_led partitions=%d", len(remaining))
                await asyncio.sleep(backoff_s)

    def _open_metrics(self) -> None:
        """The HTTP endpoint, if asked for: first of all, so that it says that the broker starts."""
        if self._config.metrics_listener is None:
            return
        # Here, since most brokers never need it: 5 MB, and 50 ms of their start.
        from broker.metrics.collector import BrokerCollector
        from broker.metrics.endpoint import MetricsEndpoint

        listener = Endpoint.parse(f"HTTP://{self._config.metrics_listener}")
        endpoint = MetricsEndpoint(BrokerCollector(self._state, self._parts), self._health)
        try:
            endpoint.open(listener.host, listener.port)
        except OSError as error:
            address = self._config.metrics_listener
            raise ConfigError(f"metrics.listener {address}: {error.strerror}") from error
        self._metrics = endpoint

    def _state(self) -> "BrokerState":
        from broker.metrics.collector import BrokerState

        if self._is_stopping:
            return BrokerState.SHUTTING_DOWN
        return BrokerState.RUNNING if self._is_serving else BrokerState.STARTING

    def _parts(self) -> "BrokerParts | None":
        from broker.metrics.collector import BrokerParts

        if not self._is_serving:
            return None
        return BrokerParts(
            self._network,
            self._dispatcher.stats,
            self._replicas,
            self._fetchers,
            self._logs,
            self._controller,
        )

    async def _health(self) -> str | None:
        """Why this broker is not well; None when it is. In the endpoint's thread."""
        from broker.metrics.endpoint import turns

        if self._is_stopping:
            return "stopping"
        if not self._is_serving:
            return "starting"
        if self._logs.offline_directory_count == len(self._config.data_dirs):
            return "no data directory is left"
        return None if await turns(self._loop) else "the event loop does not turn"

    def _changed(self, config: BrokerConfig) -> None:
        """A property that may change while the broker runs did."""
        self._limit_connections(config)
        self._throttles.configure(config)
        self._rules_changed()

    def _limit_connections(self, config: BrokerConfig) -> None:
        self._network.limit_connections(
            replace(
                self._connection_limits,
                max_connections=config.max_connections,
                per_ip=config.max_connections_per_ip,
                creation_rate=config.max_connection_creation_rate,
            )
        )

    def _close_logs(self) -> None:
        self._replicas.finish_appends()
        self._logs.checkpoint_high_watermarks(self._replicas.high_watermarks())
        self._logs.close()
        self._store.close()

    def _resolve_regexes(
        self, resolve: Callable[[], Resolved], done: Callable[[Resolved], None]
    ) -> None:
        """One after the other: names and expressions may be many."""

        def ended(resolving: "asyncio.Future[Resolved]") -> None:
            if not resolving.cancelled():
                done(resolving.result())

        self._loop.run_in_executor(self._regex_thread, resolve).add_done_callback(ended)

    async def _expire_offsets(self) -> None:
        """Looks for offsets to forget, every offsets.retention.check.interval.ms."""
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            for _ in self._groups.expire():
                await asyncio.sleep(0)

    async def _expire_transactional_ids(self) -> None:
        """Looks for ids to forget; the interval is Kafka's."""
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            for _ in self._transactions.expire():
                await asyncio.sleep(0)

    async def _run_blocking(self, function: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._metadata_thread, function)

    async def _convert(self, function: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._conversion_thread, function)

    def _node(self, endpoint: Endpoint, port: int) -> BrokerNode:
        """What clients are told; a listener on port 0 is advertised with the port it got."""
        return BrokerNode(
            self._config.broker_id, endpoint.host, endpoint.port or port, self._config.broker_rack
        )

    def _replica_host(self) -> ReplicaHost:
        metadata = self._metadata
        return ReplicaHost(
            self._config.broker_id,
            self._config.replica_lag_time_max_ms,
            lambda node_id: node_id in metadata.live,
            metadata.may_have_partition,
            lambda: time.monotonic_ns() // 1_000_000,
            metadata.rack_of if self._config.replica_selector_class == RACK_AWARE else None,
        )

    def _fetcher(self, leader: BrokerNode) -> Fetcher:
        # Here, since a broker alone follows nobody.
        from broker.replica.fetcher import FetcherOptions, ReplicaFetcher

        config = self._config
        return ReplicaFetcher(
            config.broker_id,
            lambda: self._state_changes.broker_epoch,
            self._connect(leader, "fetcher-0"),
            FetcherOptions(
                config.replica_fetch_max_bytes,
                config.replica_fetch_response_max_bytes,
                config.replica_fetch_min_bytes,
                config.replica_fetch_wait_max_ms,
                config.replica_fetch_backoff_ms,
            ),
            self._replicas,
        )

    async def _alter_isr(self, change: IsrChange) -> PartitionMetadata:
        if self._to_controller is None:
            raise NotControllerError("a broker alone has no followers")
        return await self._to_controller.alter_isr(change)

    def _schedule_checkpoint(self) -> None:
        interval_s = self._config.replica_high_watermark_checkpoint_interval_ms / 1000
        self._checkpoint_timer = self._loop.call_later(interval_s, self._checkpoint)

    def _checkpoint(self) -> None:
        """Writes the high watermarks down in the metadata thread, then waits for the next turn."""
        write = functools.partial(
            self._logs.checkpoint_high_watermarks, self._replicas.high_watermarks()
        )
        written = self._loop.run_in_executor(self._metadata_thread, write)
        written.add_done_callback(self._checkpointed)

    def _checkpointed(self, written: "asyncio.Future[None]") -> None:
        error = None if written.cancelled() else written.exception()
        if error is not None:
            _log.error("checkpoint.failed reason=%r", str(error))
        if self._checkpoint_timer is not None:
            self._schedule_checkpoint()


def _queued_bytes(config: BrokerConfig) -> int:
    """`queued.max.request.bytes`; not set, a quarter of the machine's memory."""
    if config.queued_max_request_bytes > 0:
        return config.queued_max_request_bytes
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def _connection_limits(config: BrokerConfig) -> ConnectionLimitOptions:
    """Raises ConfigError for an override whose host has no address."""
    try:
        overrides = resolve_overrides(parse_ip_overrides(config.max_connections_per_ip_overrides))
    except OSError as error:
        raise ConfigError(f"max.connections.per.ip.overrides: {error.strerror}") from error
    return ConnectionLimitOptions(
        max_connections=config.max_connections,
        per_ip=config.max_connections_per_ip,
        per_ip_overrides=overrides,
        creation_rate=config.max_connection_creation_rate,
    )
