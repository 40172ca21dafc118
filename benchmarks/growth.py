"""How cost grows: time and memory against records, partitions, log size, batch size, connections.

    python -m benchmarks.growth [--only TEXT ...] [--scale 1] [--results DIR] [--draw]

Each sweep measures the same work at growing sizes, small ones first, ours and where it is cheap the
peer, and gives two charts: time, and memory. A figure is the median of a few repeats, one after the
other: this shows the shape of a curve, `python -m benchmarks` compares. Writes growth.json and
growth.svg after every sweep; one that fails leaves what it has measured, and the others go on.
"""

import argparse
import json
import random
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from kafka.structs import TopicPartition
from rich.console import Console

from benchmarks.brokers import load
from benchmarks.connector import Read
from benchmarks.log_size import REQUESTS, Log, median_us
from benchmarks.made_rows import PARTITIONS, Kind, MadeTopic
from benchmarks.processes import forget_peaks, peak_mb, resident_mb, tree
from benchmarks.produce_load import batch_of, wait_for_leader
from benchmarks.report import RESULTS, machine, versions
from benchmarks.running import (
    KAFKA,
    OURS,
    SPARK_CONNECTOR,
    THEIRS,
    Broker,
    Running,
    cluster,
    jvm_pid,
    kafka,
    topic,
)
from pyspark_kafkalog import EmbeddedBroker
from pyspark_kafkalog.client.admin import create_topic
from pyspark_kafkalog.client.cluster import LATEST
from tests.support.broker_child import RawClient

_REPEATS = 3
_MOST_RECORDS = 4_000_000
_PARTITIONED_RECORDS = 100_000
_FEW_PER_TASK = "250"
# A task for each of a thousand partitions would take a minute, a consumer of the peer's more.
_MOST_TASKS, _MOST_CONSUMERS = 256, 64
_PRODUCED_BYTES = 200_000_000
_MOST_REQUESTS = 20_000
_OUR_BROKER = "our broker"
_COLORS = {
    KAFKA: "#d08c2e",
    SPARK_CONNECTOR: "#d08c2e",
    OURS: "#2a7f62",
    f"{OURS}, {_FEW_PER_TASK} a task": "#7fc0a6",
    _OUR_BROKER: "#2a7f62",
}
"""Ours and its peers look the same in each chart."""

Figures = Mapping[str, float]
"""By the name of the curve."""


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    time: Figures
    memory: Figures


@dataclass(frozen=True, slots=True)
class Sweep:
    """`measure` is called once for each of `sizes`; `x` says what a size counts."""

    name: str
    x: str
    time: str
    memory: str
    sizes: Sequence[int]
    measure: Callable[[int], tuple[Figures, Figures]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Curves:
    """What a sweep gave; `error` where it ended early."""

    name: str
    x: str
    time: str
    memory: str
    points: list[Point] = field(default_factory=list)
    error: str = ""


def sweeps(running: Running) -> list[Sweep]:
    scale = running.scale

    def sized(*sizes: int) -> list[int]:
        return sorted({max(1, int(size * scale)) for size in sizes})

    spark_s, worker_mb = "seconds", "MB, largest Python worker"
    most = int(_MOST_RECORDS * scale)
    records = MadeTopic(lambda: running.kafka, most)
    return [
        Sweep(
            *("records read", "records of 100 B", spark_s, worker_mb),
            [most // 16, most // 8, most // 4, most // 2, most],
            lambda size: _read_records(running, records, size),
        ),
        Sweep(
            *("partitions read", "partitions with 100,000 records together", spark_s, worker_mb),
            [1, 4, 16, 64, _MOST_TASKS, 1000],
            lambda size: _read_partitions(running, size),
        ),
        Sweep(
            *("partitions of a broker", "partitions", "us for an append of 100 B", "MB of broker"),
            [1, 10, 100, 1000],
            _broker_partitions,
        ),
        Sweep(
            *("size of the log", "GB", "us for a request", "MB of broker"),
            sized(1, 4, 16, 64),
            _log_size,
        ),
        Sweep(
            *("size of a batch", "bytes", "us for a request, 4 x 4 in flight"),
            *("MB of broker, at most", [100, 1000, 10_000, 100_000, 1_000_000]),
            lambda size: _both_brokers(running, lambda each: _produce(each, 4, 4, size, scale)),
        ),
        Sweep(
            *("connections", "connections, 1 in flight each", "us for an append of 100 B"),
            *("MB of broker, at most", [1, 10, 100, 500]),
            lambda size: _both_brokers(running, lambda each: _produce(each, size, 1, 100, scale)),
        ),
    ]


def _read_records(running: Running, made: MadeTopic, count: int) -> tuple[Figures, Figures]:
    """The first records of each partition."""
    places = [TopicPartition(made.name, number) for number in range(PARTITIONS)]
    with cluster(made.broker) as client:
        ends = [at.offset for at in client.list_offsets(places, LATEST).values()]
    until = min(count // PARTITIONS, *ends)
    offsets = {str(place.partition): until for place in places}
    options = {"endingOffsets": json.dumps({made.name: offsets})}
    return _read(
        running,
        {
            name: Read(running, made, connector, _count(until * PARTITIONS), options=options)
            for name, connector in ((OURS, OURS), (SPARK_CONNECTOR, THEIRS))
        },
    )


def _read_partitions(running: Running, partitions: int) -> tuple[Figures, Figures]:
    made = MadeTopic(lambda: running.kafka, _PARTITIONED_RECORDS, Kind(partitions=partitions))
    together = {"maxPartitionsPerTask": _FEW_PER_TASK}
    reads = {f"{OURS}, {_FEW_PER_TASK} a task": Read(running, made, OURS, options=together)}
    if partitions <= _MOST_TASKS:
        reads[OURS] = Read(running, made, OURS)
    if partitions <= _MOST_CONSUMERS:
        reads[SPARK_CONNECTOR] = Read(running, made, THEIRS)
    return _read(running, reads)


def _read(running: Running, reads: Mapping[str, Read]) -> tuple[Figures, Figures]:
    pid = jvm_pid(running.spark)
    seconds, memory = {}, {}
    for name, read in reads.items():
        read.seconds()
        forget_peaks(pid)
        seconds[name] = statistics.median(read.seconds() for _ in range(_REPEATS))
        if read.connector == OURS:
            memory[name] = max(peak_mb(each) for each in tree(pid) if each != pid)
    return seconds, memory


def _count(expected: int) -> Callable[[Any, MadeTopic], None]:
    def action(frame: Any, made: MadeTopic) -> None:
        (row,) = frame.selectExpr("sum(length(value))").collect()
        assert row[0] == expected * made.kind.value_bytes

    return action


def _broker_partitions(partitions: int) -> tuple[Figures, Figures]:
    """Of brokers that were started for it, so that each has these partitions and no others."""
    time: dict[str, float] = {}
    memory: dict[str, float] = {}
    for name, started in ((_OUR_BROKER, EmbeddedBroker()), (KAFKA, kafka())):
        with started as broker:
            time[name] = _append_anywhere_us(broker, partitions)
            memory[name] = resident_mb(broker.pid)
    return time, memory


def _append_anywhere_us(broker: Broker, partitions: int) -> float:
    """An append to one of the partitions, all of which have a record already."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    batch, choose = batch_of(100), random.Random(1)
    with cluster(broker) as client, RawClient(host, int(port), timeout_s=60) as raw:
        create_topic(client, "many", partitions)

        def append(partition: int) -> int:
            return int(raw.produce("many", partition, batch).error_code)

        for partition in range(partitions):
            wait_for_leader(partial(append, partition))
        return median_us(lambda: append(choose.randrange(partitions)), REQUESTS)


def _log_size(gigabytes: int) -> tuple[Figures, Figures]:
    with ExitStack() as stack:
        log = Log(stack, gigabytes)
        log.request_us()
        names = ("append 100 B", "append 1 MB", "fetch 1 MB")
        time = dict(zip(names, log.request_us(), strict=True))
        return time, {_OUR_BROKER: resident_mb(log.broker.process.pid)}


def _both_brokers(
    running: Running, measure: Callable[[Broker], tuple[float, float]]
) -> tuple[Figures, Figures]:
    brokers: dict[str, Broker] = {_OUR_BROKER: running.broker, KAFKA: running.kafka}
    found = {name: measure(broker) for name, broker in brokers.items()}
    time = {name: figures[0] for name, figures in found.items()}
    return time, {name: figures[1] for name, figures in found.items()}


def _produce(
    broker: Broker, connections: int, in_flight: int, batch_bytes: int, scale: float
) -> tuple[float, float]:
    """Microseconds for a request; the broker's peak memory in MB."""
    most = max(4 * connections, int(_MOST_REQUESTS * scale))
    requests = max(4 * connections, min(most, _PRODUCED_BYTES // batch_bytes))
    times = []
    forget_peaks(broker.pid)
    for _ in range(_REPEATS):
        with topic(broker, PARTITIONS) as name:
            seconds = load(broker, name, connections, in_flight, requests, batch_bytes, PARTITIONS)
            times.append(seconds / requests * 1e6)
    return statistics.median(times), peak_mb(broker.pid)


def run(sweep: Sweep, tell: Callable[[str], None]) -> Curves:
    curves = Curves(sweep.name, sweep.x, sweep.time, sweep.memory)
    for size in sweep.sizes:
        try:
            point = Point(size, *sweep.measure(size))
        except Exception as error:
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            tell(f"{sweep.name}, {size:,}: FAILED: {text}")
            return Curves(sweep.name, sweep.x, sweep.time, sweep.memory, curves.points, text[:300])
        curves.points.append(point)
        tell(f"{sweep.name}, {size:,}: {_text(point.time)}; {_text(point.memory)}")
    return curves


def _text(figures: Figures) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())


def write_json(all_curves: Sequence[Curves], path: Path) -> None:
    document = {
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "sweeps": [asdict(curves) for curves in all_curves],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> list[Curves]:
    """The curves in a file that `write_json` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return [
        Curves(**{**each, "points": [Point(**point) for point in each["points"]]})
        for each in document["sweeps"]
    ]


def write_chart(all_curves: Sequence[Curves], path: Path) -> None:
    """A line of two charts for each sweep: time on the left, memory, from zero, on the right."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "kafkalog"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(all_curves),
        2,
        figsize=(9, 2.5 * len(all_curves)),
        squeeze=False,
        layout="constrained",
    )
    for line, curves in zip(panels, all_curves, strict=True):
        for axes, label, kind in zip(
            line, (curves.time, curves.memory), ("time", "memory"), strict=True
        ):
            _panel(axes, curves, label, [getattr(point, kind) for point in curves.points])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _panel(axes: Any, curves: Curves, label: str, figures: Sequence[Figures]) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, NullLocator

    for name in dict.fromkeys(name for each in figures for name in each):
        places = [
            (point.x, each[name])
            for point, each in zip(curves.points, figures, strict=True)
            if name in each
        ]
        color = _COLORS.get(name)
        axes.plot(*zip(*places, strict=True), marker="o", markersize=3, label=name, color=color)
    axes.set_xscale("log")
    axes.set_xticks([point.x for point in curves.points])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    if label == curves.time:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        most = max((value for each in figures for value in each.values()), default=1)
        axes.set_ylim(0, 1.15 * most)
    axes.set_xlabel(curves.x, fontsize=8)
    axes.set_title(f"{curves.name}: {label}", loc="left", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(color="#ddd", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if figures:
        axes.legend(fontsize=7, frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--only", nargs="*", default=[], help="sweeps whose name has this text")
    parser.add_argument("--scale", type=float, default=1.0, help="of the amount of work (1)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of what is written")
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what is there")
    given = parser.parse_args()
    if given.draw:
        write_chart(read_json(given.results / "growth.json"), given.results / "growth.svg")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    console.print("about 8 minutes")
    found: list[Curves] = []
    with ExitStack() as stack:
        for sweep in sweeps(Running(stack, given.scale)):
            if given.only and not any(text in sweep.name for text in given.only):
                continue
            found.append(run(sweep, lambda text: console.print(text, markup=False)))
            write_json(found, given.results / "growth.json")
            write_chart(found, given.results / "growth.svg")
    sys.exit(any(curves.error for curves in found))


if __name__ == "__main__":
    main()
