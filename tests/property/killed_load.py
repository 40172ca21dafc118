"""Loads in a process of its own, to be killed at a given call: the model's SIGKILL.

`KillableLoads` starts this file as a program once for many loads, with kill_before_call.c
preloaded. It has no threads, so that it can fork a process for each load, which is killed below
every library before its n-th call that changes a file or talks to a server.
"""

import base64
import ctypes
import importlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.crash.kill_before_call import kill_library

ROOT = Path(__file__).parents[2]
_KILLED = "killed"


class Killed(Exception):
    """The load was killed on its way."""


class KillableLoads:
    """The child program; `load` takes the arguments of `pyspark_kafkalog.load` but the session."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.property.killed_load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "LD_PRELOAD": kill_library(directory)},
        )

    def load(self, arguments: Mapping[str, Any], before_call: int) -> Any:
        """What it returns or raises if it came to its end first, else Killed."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(_line((dict(arguments), before_call)))
        self._process.stdin.flush()
        outcome = _value(self._process.stdout.readline())
        if outcome == _KILLED:
            raise Killed
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._process.stdout.close()


def main() -> None:
    from pyspark.sql import functions

    import pyspark_kafkalog
    from tests.property.task_session import TaskFunction, TaskSession

    for kind in ("delta", "iceberg", "object_storage", "sql"):
        # Once, and not in each load.
        importlib.import_module(f"pyspark_kafkalog.warehouse.targets.{kind}")
    functions.udf = TaskFunction  # type: ignore[assignment]
    calls = ctypes.CDLL(None)
    answers = sys.stdout.buffer
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            arguments, before_call = _value(line)
            calls.kafkalog_arm(before_call)
            outcome: Any
            try:
                outcome = pyspark_kafkalog.load(TaskSession(), **arguments)  # type: ignore[call-overload]
            except Exception as error:
                outcome = error
            # What follows is no part of the load.
            calls.kafkalog_arm(-1)
            answers.write(_line(outcome))
            answers.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            answers.write(_line(_KILLED))
            answers.flush()


def _line(value: Any) -> bytes:
    return base64.b64encode(pickle.dumps(value)) + b"\n"


def _value(line: bytes) -> Any:
    return pickle.loads(base64.b64decode(line))


if __name__ == "__main__":
    main()
