"""What a run of comparisons leaves: a table on the terminal, a JSON file, an SVG chart.

The JSON holds every figure of every pair with the versions, the settings of both sides and the
machine, so that a later reader need not trust the medians; rows that failed are in it with what
went wrong. Written anew after every row, so that a run that ends early leaves what it has measured.
"""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.pairs import Result, Row

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("pyspark-kafkalog", "pyspark", "pyarrow", "kafka-python", "confluent-kafka", "cramjam")
_PEER_VERSIONS = {
    "Apache Kafka": "4.3.0",
    "spark-sql-kafka-0-10": "4.2.0",
    "kcat": "1.7.1",
    "iceberg-kafka-connect": "1.10.1",
}
_REACHED, _MISSED, _PLAIN, _FAILED = "#2a7f62", "#d08c2e", "#7d93a8", "#b04040"


def table(results: Sequence[Result]) -> Table:
    made = Table("work", title="ours : peer, by pairs measured in turn")
    for heading in ("ours", "peer", "times as good", "range", "goal"):
        made.add_column(heading, justify="right")
    for group, members in by_group(results):
        made.add_section()
        made.add_row(f"[bold]{group}")
        for result in members:
            style = None if result.reached else "red" if result.error else "yellow"
            made.add_row(*map(escape, (result.row.name, *cells(result))), style=style)
    return made


def by_group(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """In the order in which groups first come."""
    order = list(dict.fromkeys(result.row.group for result in results))
    ordered = sorted(results, key=lambda result: order.index(result.row.group))
    return [(name, list(each)) for name, each in groupby(ordered, lambda each: each.row.group)]


def cells(result: Result) -> tuple[str, str, str, str, str]:
    """Ours, the peer's, the ratio, its range, the goal and whether it was reached."""
    if result.error:
        return "failed", "", "", "", result.error
    unit = result.row.unit
    return (
        f"{figure(statistics.median(result.ours))} {unit}",
        f"{figure(statistics.median(result.peer))} {unit}",
        f"{result.ratio:.2f}",
        f"{min(result.ratios):.2f} to {max(result.ratios):.2f}",
        f"{'' if result.reached else 'MISSED: '}{goal_of(result.row)}",
    )


def goal_of(row: Row) -> str:
    if row.limit is not None:
        return f"at most {row.limit:g} {row.unit}"
    return "not worse" if row.goal is None else f"{row.goal:g}"


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def in_place_of(earlier: Sequence[Result], measured: Sequence[Result]) -> list[Result]:
    """The earlier results, those of the same rows replaced; the others behind them."""
    newest = {result.row.name: result for result in (*earlier, *measured)}
    return list(newest.values())


def write_json(results: Sequence[Result], path: Path, scale: float) -> None:
    # Here, as a reader of results needs neither Spark nor brokers.
    from benchmarks.running import SETTINGS

    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "scale": scale,
        "machine": machine(),
        "versions": versions(),
        "settings": SETTINGS,
        "results": [_described(each) for each in results],
    }
    being_written = path.with_suffix(".json.new")
    being_written.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    being_written.replace(path)


def read_json(path: Path) -> list[Result]:
    """The results in a file that `write_json` wrote; none where there is no file."""
    if not path.exists():
        return []
    document = json.loads(path.read_text(encoding="utf-8"))
    fields = ("ours", "peer", "seconds", "error", "run")
    return [
        Result(Row(**each["row"]), **{name: each[name] for name in fields})
        for each in document["results"]
    ]


def write_chart(results: Sequence[Result], path: Path) -> None:
    """Bars from 1, the peer, to each ratio, with ranges, and a mark where a goal lies."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "kafkalog"
    from matplotlib import pyplot

    groups = by_group(results)
    heights = [len(members) + 1 for _, members in groups]
    figure, panels = pyplot.subplots(
        len(groups),
        figsize=(9, 0.27 * sum(heights) + 0.9),
        height_ratios=heights,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, (group, members) in zip(panels[:, 0], groups, strict=True):
        _panel(axes, group, members)
    panels[-1, 0].set_xlabel(
        "times as good as the peer: median of pairs, with range; | goal\n"
        "green: goal reached; orange: missed, or worse; grey: no goal, not worse"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _panel(axes: Any, group: str, results: Sequence[Result]) -> None:
    axes.set_title(group, loc="left", fontsize=10, fontweight="bold")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g} x")
    axes.axvline(1, color="#888", linewidth=1)
    axes.set_yticks(range(len(results)), [result.row.name for result in results], fontsize=8)
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#ddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for place, result in enumerate(results):
        if result.error:
            axes.text(1, place, " failed", color=_FAILED, va="center", fontsize=8)
            continue
        ratio, low, high = result.ratio, min(result.ratios), max(result.ratios)
        color = _MISSED if not result.reached else _REACHED if _has_goal(result.row) else _PLAIN
        axes.barh(place, ratio - 1, left=1, height=0.7, color=color)
        axes.errorbar(
            ratio,
            place,
            xerr=[[ratio - low], [high - ratio]],
            ecolor="#444",
            capsize=2,
            linewidth=1,
        )
        if result.row.goal is not None:
            axes.plot(result.row.goal, place, "k|", markersize=9, markeredgewidth=1.8)


def _has_goal(row: Row) -> bool:
    return row.goal is not None or row.limit is not None


def _described(result: Result) -> dict[str, Any]:
    judged = {} if result.error else {"ratio": result.ratio, "ratios": result.ratios}
    return {**asdict(result), **judged, "reached": result.reached}


def machine() -> dict[str, str | int | None]:
    return {
        "processors": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    return {name: version(name) for name in _PACKAGES} | _PEER_VERSIONS


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
