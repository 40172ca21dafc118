"""`python -m benchmarks`: ours beside its peers, in turn, in one run.

    python -m benchmarks [--quick] [--only TEXT ...] [--pairs 5] [--scale 1] [--results DIR]

Prints a table, and writes `results/results.json` and `results/results.svg` (`--results`). `--quick`
does a tenth of the work in 2 pairs. Needs PySpark 4.2, which Spark's own connector is made for, and
the peers' jars (`make peers`); `make bench` sees to both.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

import pyspark
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import brokers, connector
from benchmarks.pairs import Comparison, Result, compare
from benchmarks.report import RESULTS, table, write_chart, write_json


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours : its peers.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, 2 pairs")
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose name has this text")
    parser.add_argument("--pairs", type=int, help="pairs of each row (5)")
    parser.add_argument("--scale", type=float, help="of the number of records (1)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of what is written")
    given = parser.parse_args()
    if not pyspark.__version__.startswith("4.2."):
        sys.exit(f"PySpark 4.2 is needed for Spark's own connector, this is {pyspark.__version__}")
    pairs = given.pairs or (2 if given.quick else 5)
    scale = given.scale or (0.1 if given.quick else 1.0)
    results: list[Result] = []
    console = Console()
    with ExitStack() as stack:
        console.print("starting the brokers and making the data ...")
        rows = brokers.comparisons(stack, scale)
        spark = stack.enter_context(connector.session())
        rows += connector.comparisons(spark, stack.enter_context(brokers.kafka()), scale)
        wanted = [row for row in rows if any(text in row.name for text in given.only)]
        for row in wanted:
            results.append(_shown(row, pairs, console))
    console.print(table(results))
    write_json(results, given.results / "results.json")
    write_chart(results, given.results / "results.svg")
    console.print(f"written: {given.results}/results.json, results.svg")


def _shown(row: Comparison, pairs: int, console: Console) -> Result:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(row.name)
        result = compare(
            row, pairs, lambda what: progress.update(task, description=f"{row.name}: {what}")
        )
    low, high = min(result.ratios), max(result.ratios)
    console.print(f"{row.name}: {result.ratio:.2f} x ({low:.2f} to {high:.2f})")
    return result


if __name__ == "__main__":
    main()
