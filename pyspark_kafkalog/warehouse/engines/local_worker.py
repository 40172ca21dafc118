"""What a worker process of the local engine does: tasks of a load, one after the other.

Started by worker_pool.py with a connection, by which come a pickled Landing and then tasks, lists
of ranges, each of which is answered by a Report; then the Landing of the next load, if there is
one. A worker ends when the connection does, also in the middle of a task: whoever started it is
gone, or does not want it any more. What a function of the user's forks has no part in that: a child
that held the connection, too, would keep its end from the driver, and might answer once more.
"""

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.source.partitions import OffsetRange
from pyspark_kafkalog.warehouse.landing import Landed, Landing, land
from pyspark_kafkalog.warehouse.verify import task_failed

DRIVERS_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What ends drivers, and no worker: it starts with these blocked."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a task, and where in the worker it was raised."""

    error: KafkalogError
    traceback: str


Report: TypeAlias = "Sequence[Landed] | Failure"
"""What a task has landed, or why it has not."""


def main(descriptor: int) -> None:
    """Does what comes by the connection with this descriptor, until it ends."""
    # Ctrl-C goes to all processes of a terminal, SIGTERM to all of a service. The driver ends its
    # workers.
    for number in DRIVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DRIVERS_SIGNALS)
    connection = Connection(descriptor)
    os.register_at_fork(after_in_child=connection.close)
    messages: SimpleQueue[bytes | Sequence[OffsetRange]] = SimpleQueue()
    threading.Thread(target=_receive, args=[connection, messages], daemon=True).start()
    landing: Landing | Failure | None = None
    while True:
        message = messages.get()
        if isinstance(message, bytes):
            landing = _unpickled(message)
        else:
            assert landing is not None
            report = landing if isinstance(landing, Failure) else _report(landing, message)
            connection.send(report)


def _receive(
    connection: Connection, messages: "SimpleQueue[bytes | Sequence[OffsetRange]]"
) -> None:
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)


def _unpickled(landing: bytes) -> Landing | Failure:
    try:
        unpickled: Landing = pickle.loads(landing)
    except Exception as error:  # what a function of the user's needs is not here
        return _failure(error)
    return unpickled


def _report(landing: Landing, task: Sequence[OffsetRange]) -> Report:
    try:
        return list(land(landing, task))
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> Failure:
    # A class of the user's may be one that the driver cannot unpickle.
    is_ours = type(error).__module__.startswith("pyspark_kafkalog.")
    if not (is_ours and isinstance(error, KafkalogError)):
        error = task_failed(f"{type(error).__name__}: {error}")
    return Failure(error, traceback.format_exc())
