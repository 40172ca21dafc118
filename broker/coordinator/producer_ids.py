"""Producer ids for idempotent producers: each handed out once, over every restart.

Owns: the block of ids that this broker has claimed: a broker alone by itself, one of a cluster from
its controller. Called by: the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kafka.errors import CoordinatorLoadInProgressError

_log = logging.getLogger(__name__)

ClaimBlock = Callable[[], Awaitable[range]]


class ProducerIds:
    """Gives away producer ids, a block at a time."""

    def __init__(self, claim: ClaimBlock) -> None:
        """`claim`: the next block, which nobody else has. Raises OSError,
        CoordinatorLoadInProgressError."""
        self._claim = claim
        self._block = range(0)
        self._claiming = asyncio.Lock()
        self._refill: asyncio.Task[None] | None = None

    async def next_id(self) -> int:
        """A producer id that nobody has had. Raises OSError, CoordinatorLoadInProgressError."""
        async with self._claiming:  # many producers may start at once: one claim serves them all
            await self._refill_block()
            return self._take()

    async def ensure(self) -> None:
        """Sees to it that `take` has an id, unless others take them all meanwhile. Raises OSError,
        CoordinatorLoadInProgressError."""
        async with self._claiming:
            await self._refill_block()

    async def _refill_block(self) -> None:
        if not self._block:
            self._block = await self._claim()

    def take(self) -> int:
        """As `next_id`, for who cannot wait: without an id at hand a block is claimed for the next
        time, and CoordinatorLoadInProgressError raised."""
        if self._block:
            return self._take()
        if self._refill is None:
            self._refill = asyncio.get_running_loop().create_task(self.ensure())
            self._refill.add_done_callback(self._refilled)
        raise CoordinatorLoadInProgressError("producer ids are being claimed")

    def _refilled(self, refill: "asyncio.Task[None]") -> None:
        self._refill = None
        if not refill.cancelled() and refill.exception() is not None:
            _log.error("producer_ids.not_claimed reason=%r", str(refill.exception()))

    def _take(self) -> int:
        producer_id, self._block = self._block[0], self._block[1:]
        return producer_id
