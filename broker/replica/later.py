"""Answers that come when an operation is done which waits for partitions.

Called by: the event loop's thread.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from broker.replica.manager import ReplicaManager
from broker.replica.purgatory import DelayedOperation

T = TypeVar("T")


def when_done(
    replicas: ReplicaManager,
    operation: DelayedOperation,
    max_wait_ms: int,
    respond: Callable[[], T],
) -> "asyncio.Future[T]":
    """What `respond` returns, or raises, once the operation is done or its time is up. It waits
    from this instant on, and no longer than anybody waits for the future."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done() -> None:
        if answer.done():  # the connection closed a moment ago
            return
        try:
            answer.set_result(respond())
        except Exception as error:  # not of the producer's who woke us
            answer.set_exception(error)

    replicas.wait(operation, max_wait_ms, done)
    answer.add_done_callback(lambda _: operation.cancel())
    return answer
