"""Rows of `kafkalog consume` and `produce` beside kcat: processes that start, work on a topic, end.

One broker of ours, one partition, values of 100 B; what is read goes to /dev/null, what is written
comes from a file. A rate counts from the start of the process to its end; processor time, user and
system, is told beside it, as it depends less on what else the machine does.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks.pairs import Comparison, Measures, Row
from benchmarks.running import Running, records_in, topic

KCAT = "kcat"
MANY, FEW = 4_000_000, 400_000
_VALUE_BYTES = 100
_GROUP = "Command line, beside kcat"
_KAFKALOG = (sys.executable, "-m", "pyspark_kafkalog.cli")
_MILLION = 1_000_000


def comparisons(running: Running) -> list[Comparison]:
    work = _Work(running)
    return [
        work.comparison("consume of values", MANY, work.consume, 3, quick=False),
        work.comparison("consume to JSON", MANY, work.consume_json, 8),
        work.comparison("consume to JSON", FEW, work.consume_json, 3),
        work.comparison("produce of lines", MANY, work.produce, 5),
        work.comparison("produce of lines", FEW, work.produce, 2),
    ]


class _Work:
    """What both do, with a topic and a file of as many lines, which are made once."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._source = cache(self._make_source)
        self._topic = cache(self._make_topic)

    def comparison(
        self,
        name: str,
        records: int,
        measure: Callable[[str, int], tuple[float, float]],
        pair_s: float,
        quick: bool = True,
    ) -> Comparison:
        count = max(1, int(records * self._running.scale))
        work = f"{name}, {records / _MILLION:g} M x {_VALUE_BYTES} B"
        rows = (
            Row(_GROUP, work, "M records/s", goal=1, peer_name=KCAT),
            Row(_GROUP, f"{work}: processor time", "s", higher_is_better=False, peer_name=KCAT),
        )

        def side(program: str) -> Measures:
            def measured() -> tuple[float, float]:
                took_s, processor_s = measure(program, count)
                return count / took_s / _MILLION, processor_s

            return measured

        return Comparison(rows, side("kafkalog"), side(KCAT), pair_s, quick)

    def consume(self, program: str, records: int) -> tuple[float, float]:
        return self._consume(program, records)

    def consume_json(self, program: str, records: int) -> tuple[float, float]:
        return self._consume(program, records, as_json=True)

    def _consume(self, program: str, records: int, as_json: bool = False) -> tuple[float, float]:
        name, servers = self._topic(records), self._running.broker.bootstrap_servers
        if program == KCAT:
            command = [KCAT, "-C", "-b", servers, "-t", name, "-o", "beginning", "-e", "-q"]
            return _run([*command, "-J"] if as_json else command)
        command = [*_KAFKALOG, "consume", name, "-b", servers, "--from-beginning", "-e", "-q"]
        return _run([*command, "--format", "json"] if as_json else command)

    def produce(self, program: str, records: int) -> tuple[float, float]:
        broker = self._running.broker
        with topic(broker, 1) as name:
            taken = self._produce(program, name, records)
            found = records_in(broker, name, 1)
        assert found == records, f"{found} records of {records} in {name}"
        return taken

    def _produce(self, program: str, name: str, records: int) -> tuple[float, float]:
        servers = self._running.broker.bootstrap_servers
        command = [*_KAFKALOG, "produce", name, "-b", servers, "-q"]
        if program == KCAT:
            command = [KCAT, "-P", "-b", servers, "-t", name, "-q"]
        return _run(command, self._source(records))

    def _make_topic(self, records: int) -> str:
        name = self._running.stack.enter_context(topic(self._running.broker, 1))
        self._produce("kafkalog", name, records)
        return name

    def _make_source(self, records: int) -> Path:
        folder = self._running.stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder, "lines")
        path.write_text((os.urandom(_VALUE_BYTES // 2).hex() + "\n") * records)
        return path


def _run(command: list[str], source: Path = Path(os.devnull)) -> tuple[float, float]:
    """Seconds, and seconds of processor time."""
    began_s, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with source.open("rb") as lines:
        subprocess.run(command, stdin=lines, stdout=subprocess.DEVNULL, check=True)
    took_s, now = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
