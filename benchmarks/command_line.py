"""`kafkalog consume` and `produce` beside kcat: processes that start, work on the same topic, end.

    python -m benchmarks.command_line [--records 400000] [--pairs 5]

One broker of ours, one partition, values of 100 B; what is read goes to /dev/null, what is written
comes from a file. Both in turn, and which is first changes; the first pair warms up. Prints the
medians of seconds, and of processor seconds, with the start of the process, and how many times
kcat's rate ours was in the median pair, with the range.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from pyspark_kafkalog import EmbeddedBroker

VALUE_BYTES = 100
READ_TOPIC = "read"
KAFKALOG = (sys.executable, "-m", "pyspark_kafkalog.cli")

_numbers = count()


def consume(servers: str, *, is_json: bool) -> dict[str, list[str]]:
    ours = [*KAFKALOG, "consume", READ_TOPIC, "-b", servers, "--from-beginning", "-e", "-q"]
    peer = ["kcat", "-C", "-b", servers, "-t", READ_TOPIC, "-o", "beginning", "-e", "-q"]
    return {
        "kafkalog": [*ours, "--format", "json"] if is_json else ours,
        "kcat": [*peer, "-J"] if is_json else peer,
    }


def produce(servers: str) -> dict[str, list[str]]:
    topic = f"written-{next(_numbers)}"
    return {
        "kafkalog": [*KAFKALOG, "produce", topic, "-b", servers, "-q"],
        "kcat": ["kcat", "-P", "-b", servers, "-t", topic, "-q"],
    }


def run(command: Sequence[str], source: Path) -> tuple[float, float]:
    """Seconds, and seconds of processor time."""
    began_s, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with source.open("rb") as lines:
        subprocess.run(command, stdin=lines, stdout=subprocess.DEVNULL, check=True)
    took_s, now = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def measure(name: str, pairs: int, servers: str, source: Path) -> None:
    taken: dict[str, list[tuple[float, float]]] = {"kafkalog": [], "kcat": []}
    for pair in range(pairs + 1):
        if name == "produce":
            commands = produce(servers)
        else:
            commands = consume(servers, is_json=name == "consume as JSON")
        for side in sorted(commands, reverse=bool(pair % 2)):
            taken[side].append(run(commands[side], source))
    print(name)
    for number, unit in enumerate(("seconds", "processor seconds")):
        ours, peer = ([each[number] for each in taken[side][1:]] for side in taken)
        ratios = [theirs / mine for mine, theirs in zip(ours, peer, strict=True)]
        print(
            f"  {unit}: kafkalog {statistics.median(ours):.2f}, kcat {statistics.median(peer):.2f},"
            f" {statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.command_line", description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        servers = broker.bootstrap_servers
        source = Path(folder, "lines")
        line = os.urandom(VALUE_BYTES // 2).hex() + "\n"
        source.write_text(line * options.records)
        run([*KAFKALOG, "produce", READ_TOPIC, "-b", servers, "-q"], source)
        for name in ("consume", "consume as JSON", "produce"):
            measure(name, options.pairs, servers, source)


if __name__ == "__main__":
    main()
