"""Worker processes of the local engine that are kept from one load to the next.

Each `load(None, ...)` starts its own, which is nine tenths of what a small load costs. Tests whose
subject is what lands share them, as the loads of `kafkalog serve` do: `keep_workers` in a test's
setup. They are others where the environment is another one; what is planted in modules after a
worker's start does not reach it.
"""

import atexit
import functools
import os
from types import TracebackType
from typing import Any

import pytest

from pyspark_kafkalog.warehouse import each_topic, load
from pyspark_kafkalog.warehouse.engines.local import LocalEngine
from pyspark_kafkalog.warehouse.engines.worker_pool import WorkerPool


def keep_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends its loads take workers that are there, and leave those that are well."""
    monkeypatch.setattr(load, "LocalEngine", _KeepingEngine)
    monkeypatch.setattr(each_topic, "LocalEngine", _KeepingEngine)


class _KeepingEngine(LocalEngine):
    def __init__(self, *how: Any, **more: Any) -> None:
        super().__init__(*how, **more)
        self._pool = _pool()
        if _environment_of_workers != (now := _environment()):
            self._pool.end_idle(0)
            _environment_of_workers.clear()
            _environment_of_workers.update(now)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves them to the next engine."""


_environment_of_workers: dict[str, str] = {}


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@functools.cache
def _pool() -> WorkerPool:
    # More than any test's loads have at a time: none waits for another's.
    pool = WorkerPool(64)
    atexit.register(pool.kill)
    return pool
