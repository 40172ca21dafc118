"""Producer ids for idempotent producers: each handed out once, over every restart.

Owns: the block of ids that this broker has claimed from `/latest_producer_id_block`. A block is
written down before its first id is given away, so a crash loses ids but never repeats one.
`claim` blocks (run it in a thread); the rest is for the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kafka.errors import CoordinatorLoadInProgressError

from broker.cluster import znodes
from broker.cluster.store import (
    BadVersionError,
    Create,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
)

_log = logging.getLogger(__name__)

BLOCK_SIZE = 1000
_MAX_PRODUCER_ID = 2**63 - 1
_ATTEMPTS = 5

RunBlocking = Callable[[Callable[[], range]], Awaitable[range]]


class ProducerIds:
    """Gives away producer ids, a block at a time."""

    def __init__(
        self, store: MetadataStore, node_id: int, run_blocking: RunBlocking, first_id: int = 0
    ) -> None:
        """`first_id`: below it all are taken, whatever the store says, which may have been lost."""
        self._first_id = first_id
        self._store = store
        self._node_id = node_id
        self._run_blocking = run_blocking
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
            self._block = await self._run_blocking(self.claim)

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

    def claim(self) -> range:
        """Claims the next block of ids. Blocks; safe against other brokers that do the same."""
        for _ in range(_ATTEMPTS):
            block, operation = self._following_block()
            try:
                self._store.commit([operation])
            except (BadVersionError, NodeExistsError):
                continue
            _log.info("producer_ids.claimed first=%d count=%d", block.start, len(block))
            return block
        raise CoordinatorLoadInProgressError("producer ids are being claimed by other brokers")

    def _following_block(self) -> tuple[range, Operation]:
        try:
            node = self._store.get(znodes.PRODUCER_ID_BLOCK)
        except NoNodeError:
            block = range(self._first_id, self._first_id + BLOCK_SIZE)
            return block, Create(znodes.PRODUCER_ID_BLOCK, self._dump(block))
        first = max(int(znodes.load(node.value)["block_end"]) + 1, self._first_id)
        block = range(first, min(first + BLOCK_SIZE, _MAX_PRODUCER_ID))
        return block, Set(znodes.PRODUCER_ID_BLOCK, self._dump(block), node.version)

    def _dump(self, block: range) -> bytes:
        return znodes.dump(
            {
                "version": 1,
                "broker": self._node_id,
                "block_start": str(block.start),
                "block_end": str(block.stop - 1),
            }
        )
