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
from functools import partial

from kafka.errors import BrokerResponseError

from broker.cluster import znodes
from broker.cluster.changes import Changes, RunBlocking
from broker.cluster.config_records import ConfigRecords
from broker.config.broker import BrokerConfig
from broker.config.dynamic import fitting, with_dynamic
from broker.config.no_effect import warn_of_no_effect

_log = logging.getLogger(__name__)

Configs = Mapping[str, str]


def load_dynamic(config: BrokerConfig, records: ConfigRecords) -> BrokerConfig:
    """`config`, of the file alone, with what was set before the last stop. Blocks."""
    own, default = (
        records.read_or_nothing(znodes.BROKER_ENTITIES, entity).values
        for entity in (str(config.broker_id), znodes.BROKER_DEFAULT)
    )
    return with_dynamic(config, *usable(config, own, default))


def usable(config: BrokerConfig, own: Configs, default: Configs) -> tuple[Configs, Configs]:
    """Of what is stored for this broker and for all, that which can be set on `config`, of the file
    alone: the rest is left out and logged. Others may have written it, or it could be set when it
    was. What is set for all counts where it does not contradict what is this broker's own."""
    own = _fitting(str(config.broker_id), own, lambda kept: with_dynamic(config, kept, {}))
    fit = partial(with_dynamic, config, own)
    return own, _fitting(znodes.BROKER_DEFAULT, default, fit)


def _fitting(entity: str, stored: Configs, fit: Callable[[Configs], BrokerConfig]) -> Configs:
    def left_out(name: str, error: Exception) -> None:
        _log.error("config.ignored entity=%s name=%s reason=%r", entity, name, str(error))

    return fitting(stored, fit, BrokerResponseError, left_out)


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
        if name in (self._entity(all_brokers=True), self._entity(all_brokers=False)):
            await self.reload_all()

    async def reload_all(self) -> None:
        """Others may have set anything. Raises MetadataStoreError."""
        async with self._changing:
            await self._look()

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
            await self._run_blocking(
                lambda: self._records.change(znodes.BROKER_ENTITIES, entity, checked)
            )
            await self._look()

    async def _look(self) -> None:
        """Both: what was set on the one may have been in the way of the other."""
        own, default = await self._run_blocking(
            lambda: (self._stored(all_brokers=False), self._stored(all_brokers=True))
        )
        own, default = usable(self._static, own, default)
        before = self.current
        if (own, default) == (before.dynamic, before.dynamic_default):
            return
        config = with_dynamic(self._static, own, default)
        await self._run_blocking(lambda: self._apply(config))
        self.current = config
        self._on_change(config)
        for all_brokers, configs, known in (
            (False, own, before.dynamic),
            (True, default, before.dynamic_default),
        ):
            if configs != known:
                entity = self._entity(all_brokers)
                warn_of_no_effect(entity, configs)
                _log.info("broker.configured entity=%s names=%r", entity, sorted(configs))

    def _stored(self, all_brokers: bool) -> Configs:
        """What is nonsense changes nothing. Blocks; raises MetadataStoreError."""
        entity = self._entity(all_brokers)
        try:
            return self._records.read(znodes.BROKER_ENTITIES, entity).values
        except ValueError as error:
            _log.error("config.ignored entity=%s reason=%r", entity, str(error))
            return self.current.dynamic_default if all_brokers else self.current.dynamic

    def _with(self, configs: Configs, all_brokers: bool) -> BrokerConfig:
        if all_brokers:
            return with_dynamic(self._static, self.current.dynamic, configs)
        return with_dynamic(self._static, configs, self.current.dynamic_default)
