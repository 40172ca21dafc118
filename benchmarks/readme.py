"""`python -m benchmarks.readme`: puts the recorded results into README, between its two marks.

A test holds README to the file of the results, so that no figure there is typed by hand.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pairs import Result
from benchmarks.report import RESULTS, by_group, cells, read_json

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- results: made by `python -m benchmarks.readme` -->", "<!-- end of results -->"
_NOTHING_YET = "No full run has been recorded yet.\n"


def section(path: Path = RESULTS / "results.json") -> str:
    """What README says of the results in a file that `report.write_json` wrote."""
    results = read_json(path)
    if not results:
        return _NOTHING_YET
    document = json.loads(path.read_text(encoding="utf-8"))
    machine, versions = document["machine"], document["versions"]
    names = ("pyspark", "Apache Kafka", "spark-sql-kafka-0-10", "confluent-kafka")
    pairs = min((len(result.ours) for result in results if not result.error), default=0)
    parts = [
        "![times as good as the peer](benchmarks/results/results.svg)\n",
        f"{document['measured_at'][:10]}, {machine['processors']} processors "
        f"({machine['processor']}), Python {machine['python']}, "
        + ", ".join(f"{name} {versions[name]}" for name in names)
        + f"; medians of {pairs} pairs or more.{_other_runs(results)}\n",
    ]
    for group, members in by_group(results):
        parts.append(_table(group, members))
    return "\n".join(parts)


def _other_runs(results: Sequence[Result]) -> str:
    """Which rows were measured apart from most: they compare with no other row."""
    (usual, _), *others = Counter(result.run for result in results).most_common()
    apart = [result.row.name for result in results if result.run != usual]
    return f" Not in the run of the others: {'; '.join(apart)}." if others else ""


def _table(group: str, results: Sequence[Result]) -> str:
    lines = [
        f"| {group} | ours | peer | times as good | range | goal |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [f"| {' | '.join((result.row.name, *cells(result)))} |" for result in results]
    return "\n".join(lines) + "\n"


def with_section(text: str, made: str) -> str:
    """README's text with another section between the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{made}{END}{after}"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    README.write_text(with_section(text, section()), encoding="utf-8")
    print(f"{README.name}: {len(read_json(RESULTS / 'results.json'))} rows")


if __name__ == "__main__":
    main()
