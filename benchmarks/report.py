"""What a run of comparisons leaves: a table on the terminal, a JSON file, an SVG chart.

The JSON holds every figure of every pair with the versions and the machine, so that a later reader
need not trust the medians.
"""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from rich.table import Table

from benchmarks.pairs import Result

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("pyspark-kafkalog", "pyspark", "pyarrow", "kafka-python", "cramjam")


def table(results: Sequence[Result]) -> Table:
    made = Table("work", title="ours : peer, by pairs measured in turn")
    for heading in ("ours", "peer", "ratio", "range", "goal"):
        made.add_column(heading, justify="right")
    for result in results:
        made.add_row(
            result.name,
            f"{_figure(statistics.median(result.ours))} {result.unit}",
            f"{_figure(statistics.median(result.peer))}",
            f"{result.ratio:.2f} x",
            f"{min(result.ratios):.2f} - {max(result.ratios):.2f}",
            f"{'reached' if result.reached else 'MISSED'}: {result.goal:g} x",
            style=None if result.reached else "yellow",
        )
    return made


def write_json(results: Sequence[Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {name: version(name) for name in _PACKAGES} | _peer_versions(),
        "results": [{**asdict(each), "ratio": each.ratio} for each in results],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def write_chart(results: Sequence[Result], path: Path) -> None:
    """Bars of the ratios with their ranges, 1 = the peer, and a mark where the goal lies."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "kafkalog"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.45 * len(results) + 1.2), layout="constrained")
    places = range(len(results))
    ratios = [result.ratio for result in results]
    spreads = [
        [result.ratio - min(result.ratios) for result in results],
        [max(result.ratios) - result.ratio for result in results],
    ]
    colors = ["#2a7f62" if result.reached else "#d08c2e" for result in results]
    axes.barh(places, ratios, xerr=spreads, color=colors, ecolor="#444", capsize=3)
    axes.plot([result.goal for result in results], places, "k|", markersize=14, label="goal")
    axes.axvline(1, color="#888", linewidth=1)
    axes.set_yticks(places, [result.name for result in results])
    axes.invert_yaxis()
    axes.set_xlabel("times as good as the peer (median of pairs, with range)")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def machine() -> dict[str, str | int | None]:
    return {
        "processors": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _peer_versions() -> dict[str, str]:
    return {"Apache Kafka": "4.3.0", "spark-sql-kafka-0-10": "4.2.0"}


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
