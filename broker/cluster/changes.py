"""Changes of what the store keeps, which go on when the client that asked for them leaves.

Owns: the tasks of one manager's changes that are under way. Called by: the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from kafka.errors import (
    BrokerResponseError,
    KafkaStorageError,
    NotControllerError,
    PolicyViolationError,
    RequestTimedOutError,
)

from broker.cluster.store import (
    CommitTooLargeError,
    MetadataStoreError,
    SessionExpiredError,
    StoreConnectionError,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs a function in a thread of its own kind and awaits what it returns or raises."""

    def __call__(self, function: Callable[[], T]) -> Awaitable[T]: ...


class Changes:
    """Those of one `kind` of things, as the log is to call it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tasks: set[asyncio.Task[Any]] = set()

    async def finish(self, name: str, change: Coroutine[Any, Any, T]) -> T:
        """What the `change` of `name` returns. Raises what it does; PolicyViolationError for what
        is too large for the store, RequestTimedOutError or NotControllerError where the store was
        not reached, and KafkaStorageError for its other errors and for OSError.

        Logs what went wrong, unless it was only refused: nobody may be waiting any more.
        """
        try:
            return await asyncio.shield(self.begin(name, change))
        except OSError as error:
            raise KafkaStorageError(str(error)) from error
        except CommitTooLargeError as error:
            raise PolicyViolationError(str(error)) from error
        except SessionExpiredError as error:
            raise NotControllerError(str(error)) from error
        except StoreConnectionError as error:
            # It may be done or not.
            raise RequestTimedOutError(str(error)) from error
        except MetadataStoreError as error:
            raise KafkaStorageError(str(error)) from error

    def begin(self, name: str, change: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """The `change` of `name`, which goes on by itself. Logs as `finish`."""
        task = asyncio.get_running_loop().create_task(change)
        self._tasks.add(task)

        def ended(ended_task: asyncio.Task[T]) -> None:
            self._tasks.discard(ended_task)
            error = None if ended_task.cancelled() else ended_task.exception()
            refused = isinstance(error, BrokerResponseError)
            if error is not None and (not refused or isinstance(error, KafkaStorageError)):
                _log.error("%s.change_failed name=%r reason=%r", self._kind, name, str(error))

        task.add_done_callback(ended)
        return task

    async def drain(self) -> None:
        """Waits for the changes under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)
