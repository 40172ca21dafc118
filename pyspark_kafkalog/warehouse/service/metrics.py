"""The figures of loads as Prometheus metrics, made when somebody asks.

Called by the endpoint's threads.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.core import SummaryMetricFamily as Summary
from prometheus_client.registry import Collector

from pyspark_kafkalog.warehouse.service.figures import Figures, LoadFigures

_LOAD = ("load", "target")
_PREFIX = "kafkalog_load_"

_COUNTERS: Sequence[tuple[str, str, Callable[[LoadFigures], float]]] = (
    ("failures", "Runs that failed", lambda one: one.failures),
    ("commits", "Commits", lambda one: one.commits),
    ("records", "Records in these commits", lambda one: one.records),
    ("bytes", "Bytes of Parquet in these commits", lambda one: one.bytes),
    ("bad_records", "Records that could not be decoded", lambda one: one.bad_records),
    ("offsets_gone", "Offsets that were gone and given up", lambda one: one.offsets_gone),
)
_GAUGES: Sequence[tuple[str, str, Callable[[LoadFigures], float | None]]] = (
    ("at_work", "1 while a run is at work", lambda one: one.at_work),
    ("failed", "1 where the last run failed", lambda one: one.failed),
    ("held", "1 where it, or a topic of it, is not tried any more", lambda one: one.held),
    ("last_run_seconds", "How long the last run took", lambda one: one.last_seconds),
    (
        "last_success_timestamp_seconds",
        "When a run last ended well, also with nothing new",
        lambda one: one.last_success,
    ),
    ("last_commit_timestamp_seconds", "When it last committed", lambda one: one.last_commit),
)


class LoadCollector(Collector):
    """The metrics of all loads of a service."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        loads = self._figures.all()
        runs = Summary(f"{_PREFIX}run_seconds", "Runs, and how long they took", labels=_LOAD)
        for one in loads:
            runs.add_metric(_labels(one), one.runs, one.seconds)
        yield runs
        for name, what, count in _COUNTERS:
            counter = CounterMetricFamily(_PREFIX + name, what, labels=_LOAD)
            for one in loads:
                counter.add_metric(_labels(one), count(one))
            yield counter
        for name, what, find in _GAUGES:
            gauge = GaugeMetricFamily(_PREFIX + name, what, labels=_LOAD)
            for one in loads:
                found = find(one)
                if found is not None:
                    gauge.add_metric(_labels(one), found)
            yield gauge
        lag = GaugeMetricFamily(
            f"{_PREFIX}lag", "Offsets that are not loaded, by topic", labels=(*_LOAD, "topic")
        )
        for one in loads:
            for topic, offsets in one.lag.items():
                lag.add_metric([*_labels(one), topic], offsets)
        yield lag


def _labels(one: LoadFigures) -> list[str]:
    return [one.name, one.place]
