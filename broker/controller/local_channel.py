"""LocalChannel: the controller's way to the broker that it runs in, by calls in the same process.

What the broker cannot do as the store does not answer it is told again, until the channel is
closed, as another broker would be. Called by: the event loop's thread only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kafka.errors import BrokerNotAvailableError, BrokerResponseError

from broker.cluster.control import ControlRequest, Failures
from broker.cluster.store import StoreConnectionError

_log = logging.getLogger(__name__)

_RETRY_S = 0.1

Obey = Callable[[ControlRequest], Awaitable[Failures]]
"""Does what a controller asks of this broker."""


class LocalChannel:
    """One request after the other, as over a connection."""

    def __init__(self, obey: Obey) -> None:
        self._obey = obey
        self._last: asyncio.Task[Failures] | None = None
        self._is_closed = False

    def send(self, request: ControlRequest) -> asyncio.Future[Failures]:
        self._last = asyncio.get_running_loop().create_task(self._after(self._last, request))
        # Nobody may be waiting for it.
        self._last.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._last

    async def close(self) -> None:
        self._is_closed = True
        if self._last is not None:
            await asyncio.wait([self._last])

    async def _after(
        self, before: "asyncio.Task[Failures] | None", request: ControlRequest
    ) -> Failures:
        if before is not None:
            await asyncio.wait([before])
        while True:
            try:
                return await self._obey(request)
            except BrokerResponseError:
                raise
            except StoreConnectionError as error:
                if self._is_closed:
                    raise BrokerNotAvailableError(str(error)) from error
                _log.warning("control.held_up reason=%r", str(error))
                await asyncio.sleep(_RETRY_S)
            except Exception:
                _log.exception("control.failed request=%s", type(request).__name__)
                raise
