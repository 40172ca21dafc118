"""Landing tasks in worker processes of this machine, without Spark.

A worker (local_worker.py) is started for each task that runs at the same time, and no more than
there are processors for this process. Each has a connection to its driver: the Landing comes first,
then tasks, one at a time, each of which is answered by a Report. Workers end with their driver,
however that ends, and with the commit that they were started for.

Memory: `workers` times what landing.py says of a task, beside the driver's own.

Runs on the driver, in any thread. Never commits.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.engines.local_worker import Failure, Report
from pyspark_kafkalog.warehouse.landing import Landed, Landing, Reading
from pyspark_kafkalog.warehouse.portions import tasks_of
from pyspark_kafkalog.warehouse.verify import Outcome, outcome_of, task_failed

_END_S = 10.0
"""How long an ended worker may take to be gone, which a kill does at once."""


class LocalEngine:
    """Runs what lands the rows of one load in at most `workers` processes; None is one for each
    processor that this process may use."""

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise InvalidOptionError(f"{workers} workers land nothing: give 1 or more")
        self._most_workers = workers or _processors()

    def columns(self, reading: Reading, ranges: Sequence[OffsetRange]) -> pa.Schema:
        """The columns that the load's files are going to have."""
        return reading.stored_schema()

    def run(self, landing: Landing, ranges: Sequence[OffsetRange]) -> Outcome:
        """Lands `ranges`; raises the error of a task that failed, and KafkalogError unless what
        landed fits them."""
        tasks = tasks_of(ranges)
        with _workers(min(self._most_workers, len(tasks)), landing) as workers:
            landed = _run_tasks(workers, tasks)
        return outcome_of(landing, ranges, landed)


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker process, and the way to it."""

    process: "subprocess.Popen[bytes]"
    connection: Connection


def _run_tasks(workers: Sequence[_Worker], tasks: Sequence[Sequence[OffsetRange]]) -> list[Landed]:
    """Gives each worker a task, and the next one when it has reported."""
    landed: list[Landed] = []
    left = list(reversed(tasks))
    at_work = {worker.connection: worker for worker in workers}
    for worker in workers:
        _send(worker, left.pop())
    while at_work:
        for connection in wait(at_work):
            worker = at_work[connection]  # type: ignore[index]
            landed += _received(worker)
            if left:
                _send(worker, left.pop())
            else:
                del at_work[worker.connection]
    return landed


def _send(worker: _Worker, message: Any) -> None:
    try:
        worker.connection.send(message)
    except OSError:
        raise _died(worker) from None


def _received(worker: _Worker) -> Sequence[Landed]:
    try:
        report: Report = worker.connection.recv()
    except (EOFError, OSError):
        raise _died(worker) from None
    if isinstance(report, Failure):
        raise report.error from RuntimeError(report.traceback)
    return report


def _died(worker: _Worker) -> KafkalogError:
    worker.process.kill()
    code = worker.process.wait(_END_S)
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return task_failed(
        f"a worker process {how} (the kernel does so when memory runs out: fewer workers at a time "
        "need less)"
    )


@contextmanager
def _workers(count: int, landing: Landing) -> Iterator[list[_Worker]]:
    """Workers that know the landing; they are gone when the body ends."""
    message = _pickled(landing) if count else b""
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            workers.append(_started())
        for worker in workers:
            try:
                worker.connection.send_bytes(message)
            except OSError:
                raise _died(worker) from None
        yield workers
    finally:
        for worker in workers:
            worker.connection.close()
            # It may be in the middle of a task whose load has failed.
            worker.process.kill()
        for worker in workers:
            worker.process.wait()


def _started() -> _Worker:
    ours, theirs = Pipe()
    with theirs:
        program = (
            "import sys; sys.path = sys.argv[2:]; "
            "from pyspark_kafkalog.warehouse.engines.local_worker import main; "
            "main(int(sys.argv[1]))"
        )
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(number), *sys.path],
            stdin=subprocess.DEVNULL,
            # What a function of the user's prints; standard output is the command's own.
            stdout=2,
            pass_fds=[number],
        )
    return _Worker(process, ours)


def _pickled(landing: Landing) -> bytes:
    """A function of the user's goes along as it is; the module that it is in may be a script."""
    if landing.reading.transform is None:
        return pickle.dumps(landing)
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(landing)  # type: ignore[no-untyped-call]
    return pickled


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
