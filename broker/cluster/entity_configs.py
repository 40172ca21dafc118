"""What clients set on topics, on groups, and on users.

Owns: for one kind of entity, each one's properties as text, in memory and in the store. Changes
come one after the other; one that was begun goes on when its client leaves. Called by: the event
loop's thread; what blocks runs in the one metadata thread. `load` blocks, before the loop serves.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from broker.cluster.changes import Changes, RunBlocking
from broker.cluster.records import MetadataRecords

_log = logging.getLogger(__name__)

Configs = Mapping[str, str]


class EntityConfigs:
    """The entities of one `kind` (znodes' name for it) that have properties."""

    def __init__(
        self,
        kind: str,
        records: MetadataRecords,
        run_blocking: RunBlocking,
        apply: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`apply` is told of every entity that was changed; it may block."""
        self._kind = kind
        self._records = records
        self._run_blocking = run_blocking
        self._apply = apply
        self._configs: dict[str, Configs] = {}
        self._changing = asyncio.Lock()
        self._changes = Changes(kind)

    def load(self) -> None:
        """Reads what was set before the last stop. Blocks."""
        self._configs = dict(self._records.entity_configs(self._kind))

    @property
    def names(self) -> list[str]:
        """The entities on which something is set."""
        return sorted(self._configs)

    def of(self, name: str) -> Configs:
        """What is set on the entity. Any thread."""
        return self._configs.get(name, {})

    def refresh(self, name: str) -> None:
        """Reads what was written down with the entity itself, when it was made. Blocks."""
        self._configs[name] = self._records.entity_config(self._kind, name)

    def remove(self, name: str) -> None:
        """The entity is gone, and what was set on it."""
        self._configs.pop(name, None)

    async def set(self, name: str, changed: Callable[[Configs], Configs]) -> None:
        """Sets what `changed` makes of what is set on the entity.

        Raises what `changed` raises, UnknownTopicOrPartitionError for a topic that is gone, and
        KafkaStorageError.
        """
        await self._changes.finish(name, self._set(name, changed))

    async def drain(self) -> None:
        """Waits for the changes under way."""
        await self._changes.drain()

    async def _set(self, name: str, changed: Callable[[Configs], Configs]) -> None:
        async with self._changing:
            configs = dict(changed(self.of(name)))
            if configs == self.of(name):
                return
            await self._run_blocking(
                lambda: self._records.set_entity_configs(self._kind, name, configs)
            )
            if configs:
                self._configs[name] = configs
            else:
                self._configs.pop(name, None)
            await self._run_blocking(lambda: self._apply(name))
        _log.info("%s.configured name=%r names=%r", self._kind, name, sorted(configs))
