"""The broker's figures as Prometheus metrics, made when somebody asks, of plain numbers.

Names are those of Apache Kafka's MBeans in snake case: `kafka.network:type=RequestMetrics,
name=TotalTimeMs,request=Fetch` is `kafka_network_request_metrics_total_time_ms{request="Fetch"}`.
Rates become counters, times histograms. What Kafka has for each topic or partition is summed up
here: labels that clients can multiply have no place in a time series. A few are our own, where
Kafka has none: connections refused, requests refused, the time to load logs.

Called by: the endpoint's thread. Reads what the event loop and the maintenance thread write, and
never waits for them; a figure may be a moment old.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from kafka.errors import for_code
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from broker.api.request_stats import ApiStats, RequestStats
from broker.controller.controller import Controller
from broker.histogram import BOUNDS_MS, Histogram
from broker.log.cleaner_manager import CleanerFigures
from broker.log.manager import LogManager
from broker.network.server import NetworkServer
from broker.replica.fetchers import ReplicaFetchers
from broker.replica.manager import ReplicaManager

_NETWORK = "kafka_network_request_metrics_"
_SOCKETS = "kafka_network_socket_server_"
_TOPICS = "kafka_server_broker_topic_metrics_"
_REPLICAS = "kafka_server_replica_manager_"
_CONTROLLER = "kafka_controller_kafka_controller_"
_LOG = "kafka_log_log_"
_LOGS = "kafka_log_log_manager_"
_CLEANER = "kafka_log_log_cleaner_"


class BrokerState(IntEnum):
    """By the numbers of Kafka's BrokerState."""

    NOT_RUNNING = 0
    STARTING = 1
    RUNNING = 3
    SHUTTING_DOWN = 7


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What there is to be asked once the broker runs."""

    network: NetworkServer
    requests: RequestStats
    replicas: ReplicaManager
    fetchers: ReplicaFetchers
    logs: LogManager
    controller: Controller


class BrokerCollector(Collector):
    """`parts` gives None until the broker runs."""

    def __init__(
        self, state: Callable[[], BrokerState], parts: Callable[[], BrokerParts | None]
    ) -> None:
        self._state = state
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "kafka_server_kafka_server_broker_state",
            "1 starting, 3 running, 7 stopping",
            self._state(),
        )
        parts = self._parts()
        if parts is None:
            return
        yield from _request_metrics(parts.requests)
        yield from _socket_metrics(parts.network)
        yield from _topic_metrics(parts.replicas)
        yield from _replica_metrics(parts.replicas)
        yield _gauge(
            "kafka_server_replica_fetcher_manager_max_lag",
            "Records that the replica furthest behind its leader lacks of those committed",
            parts.fetchers.max_lag,
        )
        yield from _controller_metrics(parts.controller)
        yield from _log_metrics(parts.logs)
        yield from _cleaner_metrics(parts.logs.cleaner.figures())


def _request_metrics(requests: RequestStats) -> Iterator[Metric]:
    counts = CounterMetricFamily(
        _NETWORK + "requests", "Requests by API and version", labels=["request", "version"]
    )
    by_api: dict[str, list[ApiStats]] = {}
    for stats in requests.used():
        counts.add_metric([stats.api.name, str(stats.version)], stats.count)
        by_api.setdefault(stats.api.name, []).append(stats)
    yield counts
    received = CounterMetricFamily(_NETWORK + "request_bytes", "Bytes in", labels=["request"])
    sent = CounterMetricFamily(_NETWORK + "response_bytes", "Bytes out", labels=["request"])
    for name, versions in by_api.items():
        received.add_metric([name], sum(stats.request_bytes for stats in versions))
        sent.add_metric([name], sum(stats.response_bytes for stats in versions))
    yield received
    yield sent
    yield _times(
        "total_time_ms",
        "From a request's arrival until its answer is ready",
        by_api,
        lambda stats: [stats.at_once_ms, stats.total_ms],
    )
    yield _times(
        "local_time_ms",
        "Of that, the time on the event loop before any wait",
        by_api,
        lambda stats: [stats.at_once_ms, stats.local_ms],
    )
    yield _times(
        "remote_time_ms",
        "Of that, the time waiting: for records (Fetch), or for a thread",
        by_api,
        lambda stats: [stats.remote_ms],
    )
    failed = CounterMetricFamily(_NETWORK + "errors", "Error codes answered", labels=["error"])
    for code, count in list(requests.errors.items()):
        failed.add_metric([str(for_code(code).message)], count)
    yield failed
    yield _counter(_NETWORK + "refused", "Requests that closed their connection", requests.refused)


def _times(
    name: str,
    text: str,
    by_api: dict[str, list[ApiStats]],
    histograms: Callable[[ApiStats], list[Histogram]],
) -> Metric:
    family = HistogramMetricFamily(_NETWORK + name, text, labels=["request"])
    for api, versions in by_api.items():
        _add(family, [api], (each for stats in versions for each in histograms(stats)))
    return family


def _socket_metrics(network: NetworkServer) -> Iterator[Metric]:
    stats = network.stats
    yield _gauge(_SOCKETS + "connection_count", "Connections open", stats.open)
    yield _counter(_SOCKETS + "connection_creation", "Connections accepted", stats.created)
    yield _counter(_SOCKETS + "connection_close", "Connections closed", stats.closed)
    yield _counter(
        _SOCKETS + "connection_refused",
        "Connections closed at once, by max.connections.per.ip or for want of descriptors",
        stats.refused,
    )
    yield _counter(
        _SOCKETS + "expired_connections_killed_count",
        "Connections closed by connections.max.idle.ms",
        stats.closed_idle,
    )
    yield _gauge(
        _SOCKETS + "memory_pool_used",
        "Bytes held by requests that are being received",
        network.received_bytes_held,
    )


def _topic_metrics(replicas: ReplicaManager) -> Iterator[Metric]:
    stats = replicas.stats
    yield _counter(_TOPICS + "bytes_in", "Bytes of records appended", stats.bytes_in)
    yield _counter(_TOPICS + "messages_in", "Records appended", stats.messages_in)
    yield _counter(_TOPICS + "bytes_out", "Bytes of records fetched", stats.bytes_out)
    yield _counter(
        _TOPICS + "failed_produce_requests", "Partitions not appended to", stats.failed_produce
    )
    yield _counter(
        _TOPICS + "failed_fetch_requests", "Partitions not read from", stats.failed_fetch
    )
    purgatory = GaugeMetricFamily(
        "kafka_server_delayed_operation_purgatory_purgatory_size",
        "Requests waiting",
        labels=["delayed_operation"],
    )
    purgatory.add_metric(["Fetch"], replicas.waiting_fetches)
    yield purgatory


def _replica_metrics(replicas: ReplicaManager) -> Iterator[Metric]:
    figures, changes = replicas.replication_figures(), replicas.isr_stats
    for name, text, value in (
        ("partition_count", "Partitions led or followed", replicas.partition_count),
        ("leader_count", "Partitions led", figures.led),
        (
            "under_replicated_partitions",
            "Partitions led of which a replica is not in sync",
            figures.under_replicated,
        ),
        (
            "under_min_isr_partition_count",
            "Partitions led that take no acks=all, for want of replicas in sync",
            figures.under_min_isr,
        ),
        (
            "at_min_isr_partition_count",
            "Partitions led that would not, with one less in sync",
            figures.at_min_isr,
        ),
    ):
        yield _gauge(_REPLICAS + name, text, value)
    for name, text, value in (
        ("isr_shrinks", "Replicas that fell out of sync, by partition", changes.shrinks),
        ("isr_expands", "Replicas that came back in sync, by partition", changes.expands),
        ("failed_isr_updates", "Changes that the controller refused", changes.failed_updates),
    ):
        yield _counter(_REPLICAS + name, text, value)


def _controller_metrics(controller: Controller) -> Iterator[Metric]:
    """Zero where another broker is the controller, so that their sum is the cluster's."""
    figures = controller.figures()
    for name, text, value in (
        ("active_controller_count", "1 where this broker is the controller", figures.is_active),
        ("active_broker_count", "Brokers that are registered", figures.brokers),
        ("global_topic_count", "Topics", figures.topics),
        ("global_partition_count", "Partitions", figures.partitions),
        ("offline_partitions_count", "Partitions that nobody leads", figures.offline_partitions),
        (
            "preferred_replica_imbalance_count",
            "Partitions that are not led by the first of their replicas",
            figures.not_led_by_preferred,
        ),
        (
            "topics_to_delete_count",
            "Topics that are on their way out",
            figures.topics_to_delete,
        ),
    ):
        yield _gauge(_CONTROLLER + name, text, value)


def _log_metrics(logs: LogManager) -> Iterator[Metric]:
    every = list(logs.all_logs().values())
    yield _gauge(_LOG + "size", "Bytes of all logs", sum(log.size_bytes for log in every))
    yield _gauge(
        _LOG + "num_log_segments", "Segments of all logs", sum(log.segment_count for log in every)
    )
    yield _gauge(
        _REPLICAS + "offline_replica_count",
        "Logs that could not be opened, or take no more appends",
        logs.offline_count,
    )
    yield _gauge(
        _LOGS + "offline_log_directory_count",
        "Data directories out of use",
        logs.offline_directory_count,
    )
    yield _gauge(
        _LOGS + "load_time_ms", "Time to open all logs at start, with recovery", logs.load_time_ms
    )
    flushes = HistogramMetricFamily(
        "kafka_log_log_flush_stats_log_flush_rate_and_time_ms", "Time to force a log to disk"
    )
    _add(flushes, [], [logs.flush_times])
    yield flushes


def _cleaner_metrics(figures: CleanerFigures) -> Iterator[Metric]:
    for name, text, count in (
        ("bytes_read", "Bytes that cleanings have read", figures.bytes_read),
        ("bytes_written", "Bytes that cleanings have kept", figures.bytes_written),
        ("records_read", "Records that cleanings have read", figures.records_read),
        ("records_kept", "Records that cleanings have kept", figures.records_kept),
        ("cleanings", "Logs cleaned", figures.cleanings),
        ("failures", "Cleanings that failed", figures.failures),
    ):
        yield _counter(_CLEANER + name, text, count)
    yield _gauge(_CLEANER + "last_clean_time_ms", "Of the last cleaning", figures.last_duration_ms)
    yield _gauge(
        _CLEANER + "manager_max_dirty_percent",
        "Of the log with the largest dirty share",
        100 * figures.max_dirty_ratio,
    )
    yield _gauge(
        _CLEANER + "manager_uncleanable_partitions_count",
        "Logs that cannot be cleaned",
        figures.uncleanable_logs,
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _add(family: HistogramMetricFamily, labels: list[str], parts: Iterable[Histogram]) -> None:
    """The sum of `parts` as one histogram of `family`, whose buckets are cumulative."""
    whole = Histogram()
    for part in parts:
        whole.add(part)
    buckets = []
    count = 0
    for bound, within in zip([*map(str, BOUNDS_MS), "+Inf"], whole.counts, strict=True):
        count += within
        buckets.append((bound, count))
    family.add_metric(labels, buckets=buckets, sum_value=whole.sum_ms)
