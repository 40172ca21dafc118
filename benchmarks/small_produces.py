"""Requests a second that the broker answers: `python -m benchmarks.small_produces [FOLDER...]`.

Produces of one record of 100 bytes, over one connection with one request in flight, and over four
with 32 each; also the broker's processor time for a request, which a busy machine changes less.
With folders of other checkouts (by `git worktree`), their brokers take turns with this one's: what
a change of the produce path gains.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import load
from benchmarks.processes import cpu_s, cpu_s_since
from benchmarks.running import topic

_ROUNDS = 9
_WORK = {"1 connection, 1 in flight": (1, 1, 6_000), "4 connections, 32 in flight": (4, 32, 60_000)}
_WARM_UP = (1, 1, 500)
_RECORD_BYTES = 100
_HERE = str(Path(__file__).parents[1])
_INHERITED = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != _HERE]


@dataclass(frozen=True, slots=True)
class _Running:
    bootstrap_servers: str
    pid: int


@contextmanager
def _broker_of(folder: str) -> Iterator[_Running]:
    with tempfile.TemporaryDirectory() as data_dir:
        process = subprocess.Popen(
            [sys.executable, "-m", "broker", "--data-dir", data_dir, "--listen", "127.0.0.1:0"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([folder, *_INHERITED])},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            yield _Running(process.stdout.readline().split()[1].decode(), process.pid)
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def _measure(folder: str) -> dict[str, tuple[float, float]]:
    """By work: requests a second, and microseconds of processor time for each."""
    found = {}
    with _broker_of(folder) as broker:
        for name, (connections, in_flight, requests) in {"": _WARM_UP, **_WORK}.items():
            with topic(broker, connections) as made:
                before_s = cpu_s(broker.pid)
                seconds = load(broker, made, connections, in_flight, requests, _RECORD_BYTES)
                spent_s = cpu_s_since(broker.pid, before_s)
            found[name] = requests / seconds, spent_s / requests * 1e6
    return found


def main() -> None:
    folders = [_HERE, *sys.argv[1:]]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for round_number in range(_ROUNDS):
        for folder in folders if round_number % 2 else reversed(folders):
            for name, figures in _measure(folder).items():
                found.setdefault((name, folder), []).append(figures)
    for name in _WORK:
        for folder in folders:
            rates, costs = zip(*found[name, folder], strict=True)
            print(
                f"{name:28} {statistics.median(rates):9,.0f}/s "
                f"({min(rates):,.0f} to {max(rates):,.0f})  {statistics.median(costs):6.1f} us "
                f"({min(costs):.1f} to {max(costs):.1f})  {folder}"
            )


if __name__ == "__main__":
    main()
