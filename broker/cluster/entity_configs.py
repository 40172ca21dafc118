"""What clients set on topics, on groups, and on users.

Owns: for one kind of entity, each one's properties as text, in memory and in the store. Changes
come one after the other; one that was begun goes on when its client leaves. In a cluster other
brokers change them, too (`reload`). Called by: the event loop's thread; what blocks runs in the one
metadata thread. `load` blocks, before the loop serves.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from broker.cluster.changes import Changes, RunBlocking
from broker.cluster.config_records import ConfigRecords

_log = logging.getLogger(__name__)

Configs = Mapping[str, str]


def _as_it_is(configs: Configs) -> Configs:
    return configs


class EntityConfigs:
    """The entities of one `kind` (znodes' name for it) that have properties."""

    def __init__(
        self,
        kind: str,
        records: ConfigRecords,
        run_blocking: RunBlocking,
        apply: Callable[[str], None] = lambda name: None,
        usable: Callable[[Configs], Configs] = _as_it_is,
    ) -> None:
        """`apply` is told of every entity that was changed; it may block. `usable`: of what is
        stored, whoever wrote it, that which can be acted on."""
        self._kind = kind
        self._records = records
        self._run_blocking = run_blocking
        self._apply = apply
        self._usable = usable
        self._configs: dict[str, Configs] = {}
        self._changing = asyncio.Lock()
        self._changes = Changes(kind)

    def load(self) -> None:
        """Reads what was set before the last stop. Blocks."""
        self._configs = self._all()

    @property
    def names(self) -> list[str]:
        """The entities on which something is set."""
        return sorted(name for name, configs in self._configs.items() if configs)

    def of(self, name: str) -> Configs:
        """What is set on the entity, as far as this broker has heard. Any thread."""
        return self._configs.get(name, {})

    async def newest(self, name: str) -> Configs:
        """What is set on the entity just now, by whichever broker. Raises KafkaStorageError and
        RequestTimedOutError."""

        async def read() -> Configs:
            return self._usable(await self._run_blocking(lambda: self._stored(name)))

        return await self._changes.finish(name, read())

    def refresh(self, name: str) -> None:
        """Reads what was written down with the entity itself, when it was made, or what has been
        set on it since and this broker is to hear of: it would find nothing new then. Blocks."""
        configs = self._usable(self._stored(name))
        if configs != self.of(name):
            self._configs[name] = configs
            self._apply(name)

    def remove(self, name: str) -> None:
        """The entity is gone, and what was set on it."""
        self._configs.pop(name, None)

    async def check(self, name: str, changed: Callable[[Configs], Configs]) -> None:
        """Raises what `set` would raise, as far as that is `changed`'s to raise."""

        async def read() -> Configs:
            return await self._run_blocking(lambda: self._stored(name))

        changed(await self._changes.finish(name, read()))

    async def set(self, name: str, changed: Callable[[Configs], Configs]) -> None:
        """Sets what `changed` makes of what is set on the entity; it is called in the metadata
        thread, perhaps more than once.

        Raises what `changed` raises, UnknownTopicOrPartitionError for a topic that is gone, and
        KafkaStorageError.
        """
        await self._changes.finish(name, self._set(name, changed))

    async def reload(self, name: str) -> None:
        """Another broker has set something on it. What is nonsense changes nothing. Raises
        MetadataStoreError."""
        async with self._changing:
            try:
                stored = await self._run_blocking(lambda: self._records.read(self._kind, name))
            except ValueError as error:
                _log.error("%s.config_ignored name=%r reason=%r", self._kind, name, str(error))
            else:
                await self._take(name, stored.values)

    async def reload_all(self) -> None:
        """Others may have set anything. Raises MetadataStoreError."""
        async with self._changing:
            found = await self._run_blocking(self._all)
            for name in sorted(found.keys() | self._configs.keys()):
                await self._take(name, found.get(name, {}))

    async def drain(self) -> None:
        """Waits for the changes under way."""
        await self._changes.drain()

    def _stored(self, name: str) -> Configs:
        return self._records.read_or_nothing(self._kind, name).values

    def _all(self) -> dict[str, Configs]:
        return {name: self._usable(self._stored(name)) for name in self._records.names(self._kind)}

    async def _set(self, name: str, changed: Callable[[Configs], Configs]) -> None:
        async with self._changing:
            configs = await self._run_blocking(
                lambda: self._records.change(self._kind, name, changed)
            )
            await self._take(name, configs)

    async def _take(self, name: str, stored: Configs) -> None:
        configs = self._usable(stored)
        if configs == self.of(name):
            return
        if configs:
            self._configs[name] = configs
        else:
            self._configs.pop(name, None)
        await self._run_blocking(lambda: self._apply(name))
        _log.info("%s.configured name=%r names=%r", self._kind, name, sorted(configs))
