"""The broker's configuration while it runs: the file's, and what clients have set since (KIP-226).

Owns: the BrokerConfig that counts now, and the order of a change: the records in the store, the
logs, the value that requests are answered from. Changes come one after the other; one that was
begun goes on when its client leaves. In a cluster other brokers change them, too (`reload`).
Called by: the event loop's thread; what blocks runs in the one metadata thread (`run_blocking`).
`load_dynamic` blocks, before the loop serves anyone.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from kafka.errors import BrokerResponseError

from broker.cluster import znodes
from broker.cluster.changes import Changes, RunBlocking
from broker.cluster.config_records import ConfigRecords
from broker.config.broker import BrokerConfig
from broker.config.dynamic import with_dynamic
from broker.config.no_effect import warn_of_no_effect

_log = logging.getLogger(__name__)

Configs = Mapping[str, str]


def load_dynamic(config: BrokerConfig, records: ConfigRecords) -> BrokerConfig:
    """`config`, of the file alone, with what was set before the last stop. Blocks."""
    own, default = (
        usable(config, entity, records.read_or_nothing(znodes.BROKER_ENTITIES, entity).values)
        for entity in (str(config.broker_id), znodes.BROKER_DEFAULT)
    )
    return with_dynamic(config, own, default)


def usable(config: BrokerConfig, entity: str, stored: Configs) -> Configs:
    """Of what is stored, that which can be set on `config`, of the file alone: the rest is left out
    and logged. Others may have written it, or it could be set when it was."""
    kept = {}
    for name, text in stored.items():
        try:
            if entity == znodes.BROKER_DEFAULT:
                with_dynamic(config, {}, {name: text})
            else:
                with_dynamic(config, {name: text}, {})
        except BrokerResponseError as error:
            _log.error("config.ignored entity=%s name=%s reason=%r", entity, name, str(error))
        else:
            kept[name] = text
    return kept


class ConfigManager:
    """What is set on this broker, and on all: to be read, and changed."""

    def __init__(
        self,
        static: BrokerConfig,
        current: BrokerConfig,
        records: ConfigRecords,
        apply: Callable[[BrokerConfig], None],
        run_blocking: RunBlocking,
        on_change: Callable[[BrokerConfig], None],
    ) -> None:
        """`static`: of the file alone. Every new configuration goes to `apply`, which may block,
        and then, on the event loop, to `on_change`."""
        self.current = current
        self._static = static
        self._records = records
        self._apply = apply
        self._run_blocking = run_blocking
        self._on_change = on_change
        self._changing = asyncio.Lock()
        self._changes = Changes("broker")

    def check(self, changed: Callable[[Configs], Configs], *, all_brokers: bool) -> None:
        """Raises what `set` would raise, but for KafkaStorageError."""
        current = self.current
        self._with(
            changed(current.dynamic_default if all_brokers else current.dynamic), all_brokers
        )

    async def set(self, changed: Callable[[Configs], Configs], *, all_brokers: bool) -> None:
        """Sets what `changed` makes of what is set on this broker, or on all; it is called in the
        metadata thread, perhaps more than once.

        Raises what `changed` raises, ConfigError, InvalidRequestError and KafkaStorageError.
        """
        await self._changes.finish(self._entity(all_brokers), self._set(changed, all_brokers))

    async def reload(self, name: str) -> None:
        """Another broker has set something on this one (`name`: its id), or on all. Raises
        MetadataStoreError."""
        for all_brokers in (True, False):
            if name == self._entity(all_brokers):
                await self._reload(all_brokers)

    async def reload_all(self) -> None:
        """Others may have set anything. Raises MetadataStoreError."""
        await self._reload(all_brokers=True)
        await self._reload(all_brokers=False)

    async def drain(self) -> None:
        """Waits for the changes under way."""
        await self._changes.drain()

    def _entity(self, all_brokers: bool) -> str:
        return znodes.BROKER_DEFAULT if all_brokers else str(self._static.broker_id)

    async def _set(self, changed: Callable[[Configs], Configs], all_brokers: bool) -> None:
        entity = self._entity(all_brokers)

        def checked(configs: Configs) -> Configs:
            configs = changed(configs)
            self._with(configs, all_brokers)
            return configs

        async with self._changing:
            configs = await self._run_blocking(
                lambda: self._records.change(znodes.BROKER_ENTITIES, entity, checked)
            )
            await self._take(self._with(configs, all_brokers), entity, configs)

    async def _reload(self, all_brokers: bool) -> None:
        entity = self._entity(all_brokers)
        async with self._changing:
            try:
                stored = await self._run_blocking(
                    lambda: self._records.read(znodes.BROKER_ENTITIES, entity)
                )
                configs = usable(self._static, entity, stored.values)
                config = self._with(configs, all_brokers)
            except (ValueError, BrokerResponseError) as error:
                _log.error("config.ignored entity=%s reason=%r", entity, str(error))
                return
            current = self.current.dynamic_default if all_brokers else self.current.dynamic
            if configs != current:
                await self._take(config, entity, configs)

    async def _take(self, config: BrokerConfig, entity: str, configs: Configs) -> None:
        await self._run_blocking(lambda: self._apply(config))
        self.current = config
        self._on_change(config)
        warn_of_no_effect(entity, configs)
        _log.info("broker.configured entity=%s names=%r", entity, sorted(configs))

    def _with(self, configs: Configs, all_brokers: bool) -> BrokerConfig:
        if all_brokers:
            return with_dynamic(self._static, self.current.dynamic, configs)
        return with_dynamic(self._static, configs, self.current.dynamic_default)
