"""What the documentation says of the recorded results: a chart and a table for each group.

`docs/hooks.py` puts it into the page about performance whenever the site is built, so that no
figure there is typed by hand.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pairs import Result
from benchmarks.report import RESULTS, by_group, cells, read_json

_NOTHING_YET = "No full run has been recorded yet.\n"


def section(path: Path = RESULTS / "results.json", charts: str = "") -> str:
    """Markdown of the results in a file that `report.write_json` wrote; `charts` is a folder."""
    results = read_json(path)
    if not results:
        return _NOTHING_YET
    document = json.loads(path.read_text(encoding="utf-8"))
    machine, versions = document["machine"], document["versions"]
    names = ("pyspark", "Apache Kafka", "spark-sql-kafka-0-10", "confluent-kafka")
    pairs = min((len(result.ours) for result in results if not result.error), default=0)
    parts = [
        f"![times as good as the peer]({charts}results.svg)\n",
        f"{_usual_run(results)[:10]}, {machine['processors']} processors "
        f"({machine['processor']}), Python {machine['python']}, "
        + ", ".join(f"{name} {versions[name]}" for name in names)
        + f"; medians of {pairs} pairs or more.{_other_runs(results)}\n",
    ]
    for group, members in by_group(results):
        parts.append(_table(group, members))
    return "\n".join(parts)


def _other_runs(results: Sequence[Result]) -> str:
    """Which rows were measured apart from most: they compare with no other row."""
    usual = _usual_run(results)
    apart = [result.row.name for result in results if result.run != usual]
    return f" Not in the run of the others: {'; '.join(apart)}." if apart else ""


def _usual_run(results: Sequence[Result]) -> str:
    """When the run began in which most were measured."""
    ((run, _),) = Counter(result.run for result in results).most_common(1)
    return run


def _table(group: str, results: Sequence[Result]) -> str:
    lines = [
        f"| {group} | ours | peer | times as good | range | goal |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [f"| {' | '.join((result.row.name, *cells(result)))} |" for result in results]
    return "\n".join(lines) + "\n"
