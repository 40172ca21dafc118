"""The broker's configuration while it runs: the file's, and what clients have set since (KIP-226).

Owns: the BrokerConfig that counts now, and the order of a change: the records in the store, the
logs, the value that requests are answered from. Changes come one after the other; one that was
begun goes on when its client leaves. Called by: the event loop's thread; what blocks runs in the
one metadata thread (`run_blocking`). `load_dynamic` blocks, before the loop serves anyone.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from kafka.errors import BrokerResponseError

from broker.cluster.changes import Changes, RunBlocking
from broker.cluster.records import MetadataRecords
from broker.cluster.znodes import BROKER_DEFAULT
from broker.config.broker import BrokerConfig
from broker.config.dynamic import with_dynamic
from broker.config.no_effect import warn_of_no_effect

_log = logging.getLogger(__name__)

Configs = Mapping[str, str]


def load_dynamic(config: BrokerConfig, records: MetadataRecords) -> BrokerConfig:
    """`config`, of the file alone, with what was set before the last stop. What cannot be set any
    more is left out and logged."""
    own: dict[str, str] = {}
    default: dict[str, str] = {}
    for entity, kept in ((BROKER_DEFAULT, default), (str(config.broker_id), own)):
        for name, text in records.broker_configs(entity).items():
            try:
                with_dynamic(config, {name: text}, {})
            except BrokerResponseError as error:
                _log.error("config.ignored entity=%s name=%s reason=%r", entity, name, str(error))
            else:
                kept[name] = text
    return with_dynamic(config, own, default)


class ConfigManager:
    """What is set on this broker, and on all: to be read, and changed."""

    def __init__(
        self,
        static: BrokerConfig,
        current: BrokerConfig,
        records: MetadataRecords,
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
        self._with(changed, all_brokers)

    async def set(self, changed: Callable[[Configs], Configs], *, all_brokers: bool) -> None:
        """Sets what `changed` makes of what is set on this broker, or on all.

        Raises what `changed` raises, ConfigError, InvalidRequestError and KafkaStorageError.
        """
        name = BROKER_DEFAULT if all_brokers else str(self.current.broker_id)
        await self._changes.finish(name, self._set(changed, all_brokers))

    async def drain(self) -> None:
        """Waits for the changes under way."""
        await self._changes.drain()

    async def _set(self, changed: Callable[[Configs], Configs], all_brokers: bool) -> None:
        async with self._changing:
            config = self._with(changed, all_brokers)
            entity = BROKER_DEFAULT if all_brokers else str(config.broker_id)
            configs = config.dynamic_default if all_brokers else config.dynamic
            await self._run_blocking(lambda: self._records.set_broker_configs(entity, configs))
            await self._run_blocking(lambda: self._apply(config))
            self.current = config
            self._on_change(config)
        warn_of_no_effect(entity, configs)
        _log.info("broker.configured entity=%s names=%r", entity, sorted(configs))

    def _with(self, changed: Callable[[Configs], Configs], all_brokers: bool) -> BrokerConfig:
        own, default = self.current.dynamic, self.current.dynamic_default
        if all_brokers:
            return with_dynamic(self._static, own, changed(default))
        return with_dynamic(self._static, changed(own), default)
