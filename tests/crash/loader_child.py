"""Child program of test_load_kills: loads again and again, its tasks in processes of their own.

`python -m tests.crash.loader_child TARGET SERVERS TOPIC`. For each line `NAME SEED` from stdin a
new process, the driver, leads a group of its own and calls `load()`; only Spark's part in it, to
run tasks and to start them again when their worker dies, is played by WORKERS forked processes,
some of which run a task that another one runs too (a speculative twin). Printed: `driver PID
WORKER...`, then what the driver is about to do (`landing`, `landed`), then `result CODE TEXT`, 0
and the result or 1 and an error of the connector, unless it was killed before, and at last `ended
HOW`. To fork, this process keeps without threads.
"""

import encodings.idna  # noqa: F401 - as below
import io
import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.warehouse import load as load_module
from pyspark_kafkalog.warehouse import portions
from pyspark_kafkalog.warehouse.engines import spark as engine
from pyspark_kafkalog.warehouse.landing import Landed, Landing, land
from pyspark_kafkalog.warehouse.targets import staged_files
from pyspark_kafkalog.warehouse.targets.target import open_target

WORKERS = 6
MOST_OFFSETS_PER_TASK = 150
ROW_GROUP_ROWS = 64
TWIN_CHANCE = 0.25
SESSION: Any = SimpleNamespace(conf={})
"""What `load` asks of Spark beside running tasks: nothing."""


def tell(text: str) -> None:
    """One line, whole: drivers and this process share stdout."""
    os.write(1, f"{text}\n".encode())


class Workers:
    """Processes that land what they are sent, forked before the driver has any thread."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._idle: list[Connection] = []
        for _ in range(WORKERS):
            here, there = Pipe()
            child = os.fork()
            if child == 0:
                here.close()
                for other in self._idle:
                    other.close()
                _work(there)
            there.close()
            self._idle.append(here)
            self.ids.append(child)

    def run(self, landing: Landing, tasks: Sequence[Any], chance: random.Random) -> list[Landed]:
        """What each task landed, by its first attempt to end; others go on, as Spark may let them.

        Raises the error of a task as Spark does with one attempt allowed; one whose worker died is
        run by another.
        """
        waiting = list(range(len(tasks)))
        waiting += [number for number in waiting if chance.random() < TWIN_CHANCE]
        done: dict[int, list[Landed]] = {}
        running: dict[Any, int] = {}
        while len(done) < len(tasks):
            while waiting and self._idle:
                worker = self._idle.pop()
                # One that was killed after its last answer takes none.
                with suppress(OSError):
                    worker.send_bytes(pickle.dumps((landing, tasks[waiting[0]])))
                    running[worker] = waiting.pop(0)
            if not running:
                raise RuntimeError("all workers are dead")
            ready: Any
            for ready in wait(list(running)):
                number = running.pop(ready)
                try:
                    landed = pickle.loads(ready.recv_bytes())
                except (EOFError, ConnectionResetError):
                    waiting.append(number)
                    continue
                if isinstance(landed, Exception):
                    raise landed
                done.setdefault(number, landed)
                self._idle.append(ready)
        return [landed for number in range(len(tasks)) for landed in done[number]]


def _work(driver: Connection) -> None:
    while True:
        try:
            landing, task = pickle.loads(driver.recv_bytes())
        except (EOFError, ConnectionResetError):
            os._exit(0)
        try:
            answer: object = list(land(landing, task))
        except Exception as error:
            answer = error if isinstance(error, KafkalogError) else KafkalogError(repr(error))
        try:
            driver.send_bytes(pickle.dumps(answer))
        except OSError:
            os._exit(0)


def tell_before(function: str, phase: str) -> None:
    """Has a function of the module `engines.spark` say what begins with it."""
    original = getattr(engine, function)

    def telling(*arguments: Any) -> Any:
        tell(phase)
        return original(*arguments)

    setattr(engine, function, telling)


def drive(target: str, servers: str, topic: str, name: str, seed: int) -> int:
    """One load whose tasks are run by forked workers; the exit code."""
    workers = Workers()
    tell(f"driver {os.getpid()} {' '.join(map(str, workers.ids))}")
    chance = random.Random(seed)

    def run_tasks(_spark: object, landing: Landing, ranges: Sequence[Any]) -> list[Landed]:
        return workers.run(landing, portions.tasks_of(ranges), chance)

    setattr(engine, "_run_tasks", run_tasks)  # noqa: B010 - mypy refuses the plain form
    tell_before("_run_tasks", "landing")
    tell_before("outcome_of", "landed")
    return load(SESSION, target, servers, topic, name)


def load(spark: Any, target: str, servers: str, topic: str, name: str) -> int:
    """One load, and how it ended; the exit code."""
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.request.timeout.ms": "4000",
        "subscribe": topic,
    }
    try:
        result = load_module.load(spark, name, target, options)
    except KafkalogError as error:
        tell(f"result 1 {type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    tell(f"result 0 {result}")
    return 0


Drive = Callable[[str, str, str, str, int], int]


def cut_small() -> None:
    """Many tasks, files and row groups, to be killed between."""
    portions.MOST_OFFSETS_PER_TASK = MOST_OFFSETS_PER_TASK
    portions.FEW_OFFSETS = MOST_OFFSETS_PER_TASK
    staged_files.ROW_GROUP_ROWS = ROW_GROUP_ROWS


def main(drive: Drive, target: str, servers: str, topic: str) -> None:
    cut_small()
    open_target(target)
    # What a worker would import with its first file, pandas among it, is imported once.
    pq.write_table(pa.table({"offset": [0]}), io.BytesIO())
    for line in sys.stdin:
        name, seed = line.split()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            code = 70
            try:
                code = drive(target, servers, topic, name, int(seed))
            except BaseException:
                traceback.print_exc()
            finally:
                # Without the ends of threads and libraries, which a fork may not have.
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            tell(f"ended {signal.Signals(os.WTERMSIG(status)).name}")
        else:
            tell(f"ended {os.WEXITSTATUS(status)}")


if __name__ == "__main__":
    main(drive, *sys.argv[1:])
