"""`python -m benchmarks`: ours beside its peers, in turn, in one run.

    python -m benchmarks [--quick] [--only TEXT ...] [--list] [--pairs 5] [--scale 1]
        [--results DIR]

Prints a table, and writes `results.json` and `results.svg` after every row into benchmarks/results,
or build/benchmarks for a run that is quick or of some rows only. Where `--only` is given, the rows
that are measured again take the place of those in the folder. `--quick` does a twentieth of the
work in 2 pairs after one that warms up, and leaves out what takes long. A row that fails does not
end the run; the exit code is 1 then. Needs PySpark 4.2, which Spark's own connector is made for,
and the peers' jars (`make peers`); `make bench` sees to both. The documentation's page is
made of what comes of it (`docs_page.py`), and names the rows that were measured in another run than
most.
"""

import argparse
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyspark
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import (
    brokers,
    clusters,
    command_line,
    connector,
    iceberg_sink,
    log_size,
    memory,
    streams,
)
from benchmarks.pairs import Comparison, Result, chosen, compare
from benchmarks.report import RESULTS, in_place_of, read_json, table, write_chart, write_json
from benchmarks.running import Running
from tests.support import iceberg_connect

QUICK_RESULTS = Path("build") / "benchmarks"
_QUICK_SCALE = 0.05
# Brokers, Spark and the data, which rows of the first pair wait for.
_PREPARATION_S = 60
# Of a row's time, what does not shrink with its work: connecting, planning, processes started.
_FIXED_SHARE = 0.2


def main() -> None:
    given = _arguments()
    # Brokers and workers start as a user's do, whose Python keeps the bytecode of modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # As Ctrl-C: what was started is stopped, and what was measured is there.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not pyspark.__version__.startswith("4.2."):
        sys.exit(f"PySpark 4.2 is needed for Spark's own connector, this is {pyspark.__version__}")
    pairs = given.pairs or (2 if given.quick else 5)
    scale = given.scale or (_QUICK_SCALE if given.quick else 1.0)
    is_partial = given.quick or bool(given.only) or scale != 1.0
    folder = given.results or (QUICK_RESULTS if is_partial else RESULTS)
    console = Console()
    if not iceberg_connect.JARS.is_dir():
        console.print(
            "left out: landing in Iceberg, whose peer is not there: make .peers/iceberg-connect"
        )
    with ExitStack() as stack:
        wanted = chosen(all_comparisons(Running(stack, scale)), given.only, given.quick)
        seconds = expected_s(wanted, pairs, scale)
        count = sum(len(each.rows) for each in wanted)
        console.print(f"{count} rows, {pairs} pairs each: about {seconds / 60:.0f} minutes")
        if given.list:
            for each in wanted:
                console.print("\n".join(row.name for row in each.rows), highlight=False)
            return
        run = datetime.now(timezone.utc).isoformat(timespec="seconds")
        earlier = read_json(folder / "results.json") if given.only else []
        measured: list[Result] = []
        for each in wanted:
            measured += [replace(found, run=run) for found in _shown(each, pairs, console)]
            results = in_place_of(earlier, measured)
            write_json(results, folder / "results.json", scale)
            write_chart(results, folder / "results.svg")
    console.print(table(measured))
    console.print(f"written: {folder}/results.json, results.svg")
    sys.exit(any(result.error for result in measured))


def all_comparisons(running: Running) -> list[Comparison]:
    return [
        *brokers.comparisons(running),
        *clusters.comparisons(running),
        *log_size.comparisons(running),
        *connector.comparisons(running),
        *streams.comparisons(running),
        *connector.beyond(running),
        *streams.beyond(running),
        *iceberg_sink.comparisons(running),
        *memory.comparisons(running),
        *command_line.comparisons(running),
    ]


def expected_s(comparisons: list[Comparison], pairs: int, scale: float) -> float:
    """On two quiet cores."""
    pairs_s = sum(each.pair_s * (each.warm_up + pairs) for each in comparisons)
    return (_PREPARATION_S + pairs_s) * min(1.0, _FIXED_SHARE + (1 - _FIXED_SHARE) * scale)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours : its peers.")
    parser.add_argument("--quick", action="store_true", help="little work, 2 pairs")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name has this text")
    parser.add_argument("--list", action="store_true", help="name the rows, and measure nothing")
    parser.add_argument("--pairs", type=int, help="pairs of each row (5)")
    parser.add_argument("--scale", type=float, help="of the amount of work (1)")
    parser.add_argument("--results", type=Path, help="folder of what is written")
    return parser.parse_args()


def _shown(comparison: Comparison, pairs: int, console: Console) -> list[Result]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    name = comparison.rows[0].name
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name)
        results = compare(
            comparison, pairs, lambda what: progress.update(task, description=f"{name}: {what}")
        )
    for result in results:
        if result.error:
            console.print(f"{result.row.name}: FAILED: {result.error}", style="red", markup=False)
            continue
        low, high = min(result.ratios), max(result.ratios)
        console.print(f"{result.row.name}: {result.ratio:.2f} x ({low:.2f} to {high:.2f})")
    return results


if __name__ == "__main__":
    main()
