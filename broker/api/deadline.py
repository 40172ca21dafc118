"""How long a client waits for what it has asked of the controller.

That goes on when the time is over, as in Apache Kafka: clients are told REQUEST_TIMED_OUT then, and
those that do not want to wait ask for 0 ms. Called by: the event loop's thread only.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from kafka.errors import RequestTimedOutError

T = TypeVar("T")


class Deadline:
    """Of one request, for all that it asks for."""

    def __init__(self, timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + timeout_ms / 1000

    async def wait_for(self, change: Coroutine[Any, Any, T]) -> T:
        """What the `change` returns, or raises. It is begun also where no time is left. Raises
        RequestTimedOutError."""
        task = self._loop.create_task(change)
        # Nobody may be waiting for it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({task}, timeout=max(0.0, self._ends_s - self._loop.time()))
        if not done:
            raise RequestTimedOutError("It goes on, and is not done within the request's timeout.")
        return task.result()
