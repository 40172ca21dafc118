"""LocalChannel: the controller's way to the broker that it runs in, by calls in the same process.

Called by: the event loop's thread only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kafka.errors import BrokerResponseError

from broker.cluster.control import ControlRequest, Failures

_log = logging.getLogger(__name__)

Obey = Callable[[ControlRequest], Awaitable[Failures]]
"""Does what a controller asks of this broker."""


class LocalChannel:
    """One request after the other, as over a connection."""

    def __init__(self, obey: Obey) -> None:
        self._obey = obey
        self._last: asyncio.Task[Failures] | None = None

    def send(self, request: ControlRequest) -> asyncio.Future[Failures]:
        self._last = asyncio.get_running_loop().create_task(self._after(self._last, request))
        # Nobody may be waiting for it.
        self._last.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._last

    async def close(self) -> None:
        if self._last is not None:
            await asyncio.wait([self._last])

    async def _after(
        self, before: "asyncio.Task[Failures] | None", request: ControlRequest
    ) -> Failures:
        if before is not None:
            await asyncio.wait([before])
        try:
            return await self._obey(request)
        except BrokerResponseError:
            raise
        except Exception:
            _log.exception("control.failed request=%s", type(request).__name__)
            raise
