"""Landing tasks in worker processes of this machine, without Spark.

A worker (local_worker.py) is started for each task that runs at the same time, and no more than
there are processors for this process. The Landing comes to it first, then tasks, one at a time,
each of which is answered by a Report. Workers end with their driver, however that ends, and with
the commit that they were started for, or with the body of `with LocalEngine() as engine:`, where
many loads follow each other or run at a time, in threads.

Memory: `workers` times what landing.py says of a task, beside the driver's own.

Runs on the driver, in any thread. Never commits.
"""

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.engines.local_worker import Failure, Report
from pyspark_kafkalog.warehouse.engines.worker_pool import Worker, WorkerPool
from pyspark_kafkalog.warehouse.landing import Landed, Landing, Reading
from pyspark_kafkalog.warehouse.portions import tasks_of
from pyspark_kafkalog.warehouse.verify import Outcome, outcome_of, task_failed


class LocalEngine:
    """Runs what lands the rows of loads in at most `workers` processes at a time; None is one for
    each processor that this process may use. Of `at_once` loads each gets its share of them."""

    def __init__(self, workers: int | None = None, at_once: int = 1) -> None:
        if workers is not None and workers < 1:
            raise InvalidOptionError(f"{workers} workers land nothing: give 1 or more")
        if at_once < 1:
            raise InvalidOptionError(f"{at_once} loads at a time land nothing: give 1 or more")
        most = workers or _processors()
        self._share = max(1, most // at_once)
        self._pool = WorkerPool(most)
        self._keeps = False

    def __enter__(self) -> "LocalEngine":
        self._keeps = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keeps = False
        if error is None:
            self.end_idle(0)
        else:
            self.kill()

    def end_idle(self, idle_s: float) -> None:
        """Ends workers that have had nothing to do for so long."""
        self._pool.end_idle(idle_s)

    def kill(self) -> None:
        """Ends all workers at once, for good: the loads at work fail, and so do later ones."""
        self._pool.kill()

    def columns(self, reading: Reading, ranges: Sequence[OffsetRange]) -> pa.Schema:
        """The columns that the load's files are going to have."""
        return reading.stored_schema()

    def run(self, landing: Landing, ranges: Sequence[OffsetRange]) -> Outcome:
        """Lands `ranges`; raises the error of a task that failed, and KafkalogError unless what
        landed fits them."""
        tasks = tasks_of(ranges)
        with self._workers(min(self._share, len(tasks)), landing) as workers:
            landed = _run_tasks(workers, tasks)
        return outcome_of(landing, ranges, landed)

    @contextmanager
    def _workers(self, count: int, landing: Landing) -> Iterator[list[Worker]]:
        """At most `count` workers that know the landing. They have nothing more to do when the body
        ends, and are gone where it fails."""
        if not count:
            yield []
            return
        message = _pickled(landing)
        workers = self._pool.take(count)
        are_well = False
        try:
            for worker in workers:
                _send(worker, message)
            yield workers
            are_well = True
        finally:
            # Else one may be in the middle of a task whose load has failed.
            self._pool.give_back(workers, are_well and self._keeps)


def _run_tasks(workers: Sequence[Worker], tasks: Sequence[Sequence[OffsetRange]]) -> list[Landed]:
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


def _send(worker: Worker, message: Any) -> None:
    try:
        worker.connection.send(message)
    except OSError:
        raise _died(worker) from None


def _received(worker: Worker) -> Sequence[Landed]:
    try:
        report: Report = worker.connection.recv()
    except (EOFError, OSError):
        raise _died(worker) from None
    if isinstance(report, Failure):
        raise report.error from RuntimeError(report.traceback)
    return report


def _died(worker: Worker) -> KafkalogError:
    code = worker.end()
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return task_failed(
        f"a worker process {how} (the kernel does so when memory runs out: fewer workers at a time "
        "need less)"
    )


def _pickled(landing: Landing) -> bytes:
    """A function of the user's goes along as it is; the module that it is in may be a script."""
    if landing.reading.transform is None:
        return pickle.dumps(landing)
    from pyspark import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(landing)  # type: ignore[no-untyped-call]
    except Exception as error:  # of its own for each thing that cannot be pickled
        raise InvalidOptionError(
            f"transform cannot go to the processes that land records ({error}): leave out of it "
            "what belongs to this process, such as locks, files and connections"
        ) from error
    return pickled


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
