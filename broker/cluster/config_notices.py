"""ConfigNotices: by which a broker of a cluster hears what others have set.

Each change of a config comes with a node below /config/changes that names what was set
(`config_records`); Apache Kafka's brokers write them, too, and anybody may write nonsense. What is
named is read anew, whatever has become of it meanwhile. In a new session all configs are: nobody
knows how long the last one was over. Notices that this broker has known for as long as Kafka keeps
them are removed; any broker does so.

Called by: the event loop's thread; what blocks runs in the one metadata thread (`run_blocking`).
`remember` blocks, before the configs are loaded.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kafka.errors import BrokerResponseError

from broker.cluster import znodes
from broker.cluster.changes import RunBlocking
from broker.cluster.store import (
    ANY_VERSION,
    Delete,
    MetadataStore,
    MetadataStoreError,
    NoNodeError,
    StoreConnectionError,
)

_log = logging.getLogger(__name__)

KEPT_S: Final = 15 * 60.0
_RETRY_S = 0.2


class Configs(Protocol):
    """What is set on the entities of one kind; `reload` of one of them. Both raise
    MetadataStoreError and BrokerResponseError."""

    async def reload(self, name: str) -> None: ...

    async def reload_all(self) -> None: ...


class ConfigNotices:
    """Follows the notices from `start` on."""

    def __init__(
        self,
        store: MetadataStore,
        run_blocking: RunBlocking,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._clock_s = clock_s
        self._known: dict[str, float] = {}
        """The notices, and since when this broker knows them."""
        self._configs: Mapping[str, Configs] = {}
        self._must_read_all = False
        self._wake = asyncio.Event()
        self._unwatch: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def remember(self) -> None:
        """The notices that are there now tell nothing new to who loads the configs after this.
        Blocks."""
        self._known = dict.fromkeys(self._store.children(znodes.CONFIG_CHANGES), self._clock_s())

    async def start(self, configs: Mapping[str, Configs]) -> None:
        """Has `configs`, by kind, read anew what others have set. Raises MetadataStoreError."""
        loop = asyncio.get_running_loop()
        self._configs = configs

        def changed() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        self._unwatch = await self._run_blocking(
            lambda: self._store.watch(znodes.CONFIG_CHANGES, changed)
        )
        self._wake.set()
        self._task = loop.create_task(self._run())

    def session_began(self) -> None:
        """In the one before, and after it, this broker may have heard nothing."""
        self._must_read_all = True
        self._wake.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._unwatch is not None:
            await self._run_blocking(self._unwatch)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._look()
            except (MetadataStoreError, BrokerResponseError, OSError) as error:
                _log.warning("config.not_heard reason=%r", str(error))
                self._wake.set()
                await asyncio.sleep(_RETRY_S)

    async def _look(self) -> None:
        found = await self._run_blocking(lambda: self._store.children(znodes.CONFIG_CHANGES))
        new = sorted(set(found).difference(self._known))
        if self._must_read_all:
            self._must_read_all = False
            try:
                for configs in self._configs.values():
                    await configs.reload_all()
            except BaseException:
                self._must_read_all = True
                raise
        else:
            for kind, name in await self._run_blocking(lambda: self._entities(new)):
                await self._reload(kind, name)
        now_s = self._clock_s()
        self._known = {notice: self._known.get(notice, now_s) for notice in found}
        await self._remove_old(now_s)

    async def _reload(self, kind: str, name: str) -> None:
        """What cannot be read, or not be applied, holds up nothing else."""
        if kind not in self._configs:
            return
        try:
            await self._configs[kind].reload(name)
        except StoreConnectionError:
            raise
        except (MetadataStoreError, BrokerResponseError) as error:
            _log.error("%s.config_ignored name=%r reason=%r", kind, name, str(error))

    def _entities(self, notices: list[str]) -> list[tuple[str, str]]:
        """That have changed, each once. Blocks."""
        entities: dict[tuple[str, str], None] = {}
        for notice in notices:
            try:
                value = self._store.get(f"{znodes.CONFIG_CHANGES}/{notice}").value
                entities[znodes.load_config_change(value)] = None
            except NoNodeError:  # it was removed as an old one
                continue
            except ValueError as error:
                _log.error("config.notice_ignored node=%r reason=%r", notice, str(error))
        return list(entities)

    async def _remove_old(self, now_s: float) -> None:
        old = [notice for notice, since_s in self._known.items() if now_s - since_s >= KEPT_S]

        def remove() -> None:
            for notice in old:
                path = f"{znodes.CONFIG_CHANGES}/{notice}"
                with contextlib.suppress(MetadataStoreError):  # another broker was faster
                    self._store.commit([Delete(path, ANY_VERSION)])

        if old:
            await self._run_blocking(remove)
