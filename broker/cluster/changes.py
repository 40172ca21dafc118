"""Changes of what the store keeps, which go on when the client that asked for them leaves.

Owns: the tasks of one manager's changes that are under way. Called by: the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from kafka.errors import BrokerResponseError, KafkaStorageError

_log = logging.getLogger(__name__)


class Changes:
    """Those of one `kind` of things, as the log is to call it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tasks: set[asyncio.Task[None]] = set()

    async def finish(
        self, name: str, change: "Coroutine[Any, Any, None] | asyncio.Task[None]"
    ) -> None:
        """Waits for the `change` of `name`. Raises what it raises; KafkaStorageError for OSError.

        Logs what went wrong, unless it was only refused: nobody may be waiting any more.
        """
        task = asyncio.ensure_future(change)
        self._tasks.add(task)

        def ended(ended_task: asyncio.Task[None]) -> None:
            self._tasks.discard(ended_task)
            error = None if ended_task.cancelled() else ended_task.exception()
            refused = isinstance(error, BrokerResponseError)
            if error is not None and (not refused or isinstance(error, KafkaStorageError)):
                _log.error("%s.change_failed name=%r reason=%r", self._kind, name, str(error))

        task.add_done_callback(ended)
        try:
            await asyncio.shield(task)
        except OSError as error:
            raise KafkaStorageError(str(error)) from error

    async def drain(self) -> None:
        """Waits for the changes under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)
