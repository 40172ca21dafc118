"""Child program of test_load_kills: loads again and again by the local engine, without Spark.

`python -m tests.crash.local_loader_child TARGET SERVERS TOPIC`, as loader_child.py, but that the
tasks run in the engine's own worker processes, which are known when they have been started:
`driver PID WORKER...` is printed twice.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from pyspark_kafkalog.warehouse import verify
from pyspark_kafkalog.warehouse.engines import local as engine
from pyspark_kafkalog.warehouse.landing import Landed
from tests.crash.loader_child import load, main, tell

WORKERS = 3


def drive(target: str, servers: str, topic: str, name: str, seed: int) -> int:
    """One load; the exit code."""
    tell(f"driver {os.getpid()}")
    run_tasks, outcome_of = engine._run_tasks, verify.outcome_of

    def run(workers: Sequence[Any], tasks: Sequence[Any]) -> list[Landed]:
        tell(f"driver {os.getpid()} {' '.join(str(each.process.pid) for each in workers)}")
        tell("landing")
        return run_tasks(workers, tasks)

    def telling(*arguments: Any) -> Any:
        tell("landed")
        return outcome_of(*arguments)

    setattr(engine, "_run_tasks", run)  # noqa: B010 - mypy refuses the plain form
    setattr(engine, "outcome_of", telling)  # noqa: B010
    setattr(engine, "_processors", lambda: WORKERS)  # noqa: B010
    return load(None, target, servers, topic, name)


if __name__ == "__main__":
    main(drive, *sys.argv[1:])
