"""The one thread that looks after all logs: syncs, checkpoints, retention, delayed removal.

A list of tasks with intervals, and a set of logs whose flush is due at once (they rolled, or
`flush.messages` is reached): `flush_soon` may be called from any thread and never waits for a
disk. A task that fails is logged and runs again at its next turn. The thread never appends.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from kafka.errors import KafkaStorageError

from broker.log.log import Log

_log = logging.getLogger(__name__)


class MaintenanceTask:
    """A function to be called every `interval_ms`."""

    def __init__(self, name: str, interval_ms: int, run: Callable[[], None]) -> None:
        self.name = name
        self.interval_s = interval_ms / 1000
        self.run = run
        self.due_s = time.monotonic() + self.interval_s


class LogMaintenance:
    """Started by LogManager.start, stopped by LogManager.close."""

    def __init__(
        self, tasks: Sequence[MaintenanceTask], after_flush: Callable[[Sequence[Log]], None]
    ) -> None:
        self._tasks = tasks
        self._after_flush = after_flush
        self._due: dict[int, Log] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="log-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the work under way is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def flush_soon(self, log: Log) -> None:
        with self._changed:
            self._due[id(log)] = log
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._due and not self._stopping:
                    next_s = min((task.due_s for task in self._tasks), default=None)
                    timeout_s = None if next_s is None else max(0.0, next_s - time.monotonic())
                    self._changed.wait(_bounded(timeout_s))
                if self._stopping:
                    return
                logs, self._due = list(self._due.values()), {}
            self._flush(logs)
            self._run_due_tasks()

    def _flush(self, logs: list[Log]) -> None:
        if not logs:
            return
        for log in logs:
            try:
                log.flush()
            except KafkaStorageError as error:
                _log.error("maintenance.failed task=flush dir=%s reason=%r", log.directory, error)
        self._guarded("after-flush", lambda: self._after_flush(logs))

    def _run_due_tasks(self) -> None:
        for task in self._tasks:
            if task.due_s <= time.monotonic():
                self._guarded(task.name, task.run)
                task.due_s = time.monotonic() + task.interval_s

    def _guarded(self, name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except (OSError, KafkaStorageError) as error:
            _log.error("maintenance.failed task=%s reason=%r", name, error)
        except Exception:
            # A bug in one task: without this thread no log would be synced or shortened any more.
            _log.exception("maintenance.failed task=%s", name)


def _bounded(timeout_s: float | None) -> float | None:
    """Condition.wait takes no more than this; an interval of 2^63 ms means never."""
    return None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
