"""What a worker process of the local engine does: tasks of one load, one after the other.

Started by local.py with a connection, by which come the pickled Landing and then tasks, lists of
ranges; each is answered by a Report. A worker ends when the connection does, also in the middle of
a task: whoever started it is gone, or does not want it any more.
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


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a task, and where in the worker it was raised."""

    error: KafkalogError
    traceback: str


Report: TypeAlias = "Sequence[Landed] | Failure"
"""What a task has landed, or why it has not."""


def main(descriptor: int) -> None:
    """Does what comes by the connection with this descriptor, until it ends."""
    # Ctrl-C goes to all processes of a terminal. The driver ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    tasks: SimpleQueue[Sequence[OffsetRange]] = SimpleQueue()
    message = connection.recv_bytes()
    threading.Thread(target=_receive, args=[connection, tasks], daemon=True).start()
    landing: Landing = pickle.loads(message)
    while True:
        connection.send(_report(landing, tasks.get()))


def _receive(connection: Connection, tasks: "SimpleQueue[Sequence[OffsetRange]]") -> None:
    try:
        while True:
            tasks.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)


def _report(landing: Landing, task: Sequence[OffsetRange]) -> Report:
    try:
        return list(land(landing, task))
    except Exception as error:
        if not isinstance(error, KafkalogError):
            error = task_failed(f"{type(error).__name__}: {error}")
        return Failure(error, traceback.format_exc())
