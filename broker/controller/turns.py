"""Turns: the one order in which a controller changes what there is.

Owns: whether this broker is the controller, and what it knows (`context`), writes (`records`) and
says (`channels`) as one. A change has a turn: what it writes comes first to the store, checked by
the controller's epoch, then to the context, then to the brokers; what another controller has
written meanwhile ends it. Where the store does not answer, nobody knows what stands there, and
where it refuses, not how far the change has come: this controller then takes over from itself, and
reads everything anew. Called by: the event loop's thread.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

from kafka.errors import NotControllerError
from kafka.structs import TopicPartition

from broker.cluster.changes import Changes, RunBlocking
from broker.cluster.control import Partitions
from broker.cluster.records import MetadataRecords
from broker.cluster.store import (
    CommitTooLargeError,
    MetadataStoreError,
    StoreConnectionError,
)
from broker.controller.channels import Answer, Channels
from broker.controller.context import ControllerContext

_APART_S = 5.0
"""Between two take-overs of a controller from itself, where the store goes on to refuse."""


class Turns:
    """One change after the other."""

    def __init__(
        self,
        records: MetadataRecords,
        context: ControllerContext,
        channels: Channels,
        run_blocking: RunBlocking,
    ) -> None:
        self.records = records
        self.context = context
        self.channels = channels
        self.run_blocking = run_blocking
        self.changes = Changes("topic")
        """Those that are under way, or wait for their turns."""
        self.is_active = False
        """Whether this broker is the controller, as far as it knows."""
        self.term = 0
        """How often it has taken over."""
        self.on_doubt: Callable[[], None] | None = None
        """Called where it is to take over again, from itself; None for a broker alone."""
        self._refused_again_s = 0.0
        """Until then what the store refuses is no reason to take over at once."""
        self._doubting: asyncio.TimerHandle | None = None
        self.lock = asyncio.Lock()
        """Held by the change that is under way."""

    def check_active(self) -> None:
        """Raises NotControllerError."""
        if not self.is_active:
            raise NotControllerError("this broker is not the controller")

    @contextlib.asynccontextmanager
    async def turn(self, term: int | None = None) -> AsyncIterator[int]:
        """One change's turn: the term in which it is. `term`: that of the turn before, of a change
        that takes several. Raises NotControllerError, also where everything was read anew since.
        """
        async with self.lock:
            self.check_active()
            if term not in (None, self.term):
                raise NotControllerError("a controller has taken over meanwhile")
            try:
                yield self.term
            except NotControllerError:
                self.is_active = False  # another one has written; who watches will say more
                raise
            except StoreConnectionError:
                self._doubt()
                raise
            except CommitTooLargeError:
                raise  # nothing was sent
            except MetadataStoreError:
                # Part of what was to be written may stand there, and be told to nobody.
                loop = asyncio.get_running_loop()
                if loop.time() >= self._refused_again_s:
                    self._doubt()
                elif self._doubting is None:
                    self._doubting = loop.call_at(self._refused_again_s, self._doubt)
                self._refused_again_s = max(self._refused_again_s, loop.time() + _APART_S)
                raise

    def _doubt(self) -> None:
        self._doubting = None
        if self.on_doubt is not None:
            self.is_active = False
            self.on_doubt()

    async def write_states(self, states: Partitions) -> Partitions:
        """What another controller has written since stays; who has become one tells the brokers.
        What stands there now."""
        if not states:
            return {}
        written = await self.run_blocking(lambda: self.records.write_states(states))
        self.context.put(written)
        return written

    def announce(
        self, changed: Partitions, created: Collection[TopicPartition] = ()
    ) -> Mapping[int, Sequence[Answer]]:
        """Tells the brokers of partitions: what they answer, as replicas and as who tells
        clients."""
        told = self.channels.lead_and_follow(changed, created)
        return {
            node_id: [told[node_id], heard] if node_id in told else [heard]
            for node_id, heard in self.channels.update_metadata(changed).items()
        }
