"""The worker processes of the local engine: started, lent to one load at a time, and ended.

A worker that comes back well waits for the next load; one that does not is killed, since it may be
in the middle of a task. Thread-safe.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.warehouse.engines.local_worker import DRIVERS_SIGNALS

_END_S = 10.0
"""How long an ended worker may take to be gone, which a kill does at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """A worker process, and the way to it."""

    process: "subprocess.Popen[bytes]"
    connection: Connection

    @classmethod
    def start(cls) -> "Worker":
        ours, theirs = Pipe()
        with theirs:
            program = (
                "import sys; sys.path = sys.argv[2:]; "
                "from pyspark_kafkalog.protocol.kafka_package import leave_unopened; "
                "leave_unopened(); "
                "from pyspark_kafkalog.warehouse.engines.local_worker import main; "
                "main(int(sys.argv[1]))"
            )
            number = theirs.fileno()
            # Inherited: until the worker ignores them, they would end it in the middle of a start.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, DRIVERS_SIGNALS)
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", program, str(number), *sys.path],
                    stdin=subprocess.DEVNULL,
                    # What a function of the user's prints; standard output is the command's own.
                    stdout=2,
                    pass_fds=[number],
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return cls(process, ours)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> int:
        """Kills it, if it is there; its exit code."""
        self.process.kill()
        return self.process.wait(_END_S)


class WorkerPool:
    """At most `most` workers."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._lent: set[Worker] = set()
        self._idle: list[tuple[float, Worker]] = []
        self._changed = threading.Condition()
        self._is_killed = False

    def take(self, count: int) -> list[Worker]:
        """One worker at least, which is waited for, and `count` at most; they are to be given back.

        Raises KafkalogError after `kill`; OSError where none can be started.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._is_killed)
            self._refuse_killed()
            taken: list[Worker] = []
            count = min(count, self._free)
            while self._idle and len(taken) < count:
                _, worker = self._idle.pop()
                if worker.is_alive:
                    taken.append(worker)
                else:
                    worker.connection.close()
            self._free -= count
            self._lent.update(taken)
        try:
            while len(taken) < count:
                taken.append(self._started())
        except BaseException:
            self._free_up(taken, count)
            raise
        return taken

    def give_back(self, workers: Sequence[Worker], are_well: bool) -> None:
        """They have nothing to do any more; ends those that are not well."""
        now_s = time.monotonic()
        if are_well:
            with self._changed:
                are_well = not self._is_killed
                if are_well:
                    self._idle += [(now_s, worker) for worker in workers]
                    self._lent.difference_update(workers)
                    self._free += len(workers)
                    self._changed.notify_all()
        if not are_well:
            self._free_up(workers, len(workers))

    def end_idle(self, idle_s: float) -> None:
        """Ends those that have waited for so long."""
        until_s = time.monotonic() - idle_s
        with self._changed:
            old = [worker for since_s, worker in self._idle if since_s <= until_s]
            self._idle = [each for each in self._idle if each[0] > until_s]
        _end(old)

    def kill(self) -> None:
        """Ends all of them, also those that are lent, and starts none any more."""
        with self._changed:
            self._is_killed = True
            for worker in self._lent:
                worker.process.kill()
            self._changed.notify_all()
        self.end_idle(0)

    def _started(self) -> Worker:
        worker = Worker.start()
        with self._changed:
            self._lent.add(worker)
            if self._is_killed:
                worker.process.kill()
        return worker

    def _refuse_killed(self) -> None:
        if self._is_killed:
            raise KafkalogError("The load was ended before it was done.")

    def _free_up(self, workers: Sequence[Worker], count: int) -> None:
        _end(workers)
        with self._changed:
            self._lent.difference_update(workers)
            self._free += count
            self._changed.notify_all()


def _end(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.connection.close()
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
