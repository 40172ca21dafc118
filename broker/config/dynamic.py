"""What may be set while the broker runs, as Kafka's DynamicBrokerConfig, and what follows."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from kafka.errors import InvalidRequestError

from broker.config.broker import BROKER_FIELDS, BROKER_KEYS, BrokerConfig, broker_config_key
from broker.config.definition import LONG_MAX, ConfigError, split_known
from broker.config.log import LogConfig
from broker.config.no_effect import LATER_BROKER_CONFIGS, check_protection
from broker.config.other_properties import (
    ALL_BROKERS,
    ONE_BROKER,
    ONE_LISTENER,
    other_names,
    other_property,
    without_listener,
)

__all__ = [
    "DYNAMIC_BROKER_CONFIGS",
    "fitting",
    "is_dynamic",
    "legal_topic_configs",
    "usable_log_config",
    "usable_topic_configs",
    "with_dynamic",
]

_log = logging.getLogger(__name__)

_MODES_OF_ONE = (ONE_BROKER, ONE_LISTENER)
# Counts from when it is set.
DYNAMIC_BROKER_CONFIGS = frozenset(
    (
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "follower.replication.throttled.rate",
        "group.consumer.assignment.interval.ms",
        "leader.replication.throttled.rate",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "message.max.bytes",
        "min.insync.replicas",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
        "unclean.leader.election.enable",
    )
)


def with_dynamic(
    config: BrokerConfig, own: Mapping[str, str], default: Mapping[str, str]
) -> BrokerConfig:
    """`config`, of the file alone, with what is set on this broker (`own`) and on all
    (`default`). Raises ConfigError and, for what may not change, InvalidRequestError."""
    _check_dynamic(default, all_brokers=True)
    _check_dynamic(own, all_brokers=False)
    for configs in (default, own):
        values, _ = split_known(BROKER_KEYS, configs)
        config = replace(config, **values)  # type: ignore[arg-type]
    config.check_segments()
    config.check_cleaner()
    return replace(config, dynamic=dict(own), dynamic_default=dict(default))


def fitting(
    stored: Mapping[str, str],
    check: Callable[[Mapping[str, str]], object],
    refusal: type[Exception],
    left_out: Callable[[str, Exception], None],
) -> Mapping[str, str]:
    """Of what is stored, that which `check` takes together: all of it, or what fits to the others
    by name. It raises a `refusal` for what does not, and `left_out` is told of that."""
    with suppress(refusal):
        check(stored)
        return stored
    kept: dict[str, str] = {}
    for name, text in sorted(stored.items()):
        try:
            check({**kept, name: text})
        except refusal as error:
            left_out(name, error)
        else:
            kept[name] = text
    return kept


def usable_topic_configs(config: BrokerConfig, stored: Mapping[str, str]) -> Mapping[str, str]:
    """Of what is stored of a topic, whoever wrote it, that which this broker can act on: the rest
    is left out and logged."""

    def left_out(name: str, error: Exception) -> None:
        _log.error("topic.config_ignored name=%s reason=%r", name, str(error))

    return fitting(stored, config.log_config, ConfigError, left_out)


def usable_log_config(config: BrokerConfig, stored: Mapping[str, str]) -> LogConfig:
    """What counts for the logs of such a topic. What is set on a broker, or on all, may contradict
    what was set on a topic before."""
    return config.log_config(usable_topic_configs(config, stored))


def legal_topic_configs(config: BrokerConfig, stored: Mapping[str, str]) -> Mapping[str, str]:
    """The same, where what is set on brokers does not count, as it may change: of that a topic can
    contradict the lags of compaction alone."""
    without_lags = replace(
        config, log_cleaner_min_compaction_lag_ms=0, log_cleaner_max_compaction_lag_ms=LONG_MAX
    )
    return usable_topic_configs(without_lags, stored)


def _update_mode(name: str) -> str:
    """How a property may be changed while the broker runs; "" where it may not."""
    if name in DYNAMIC_BROKER_CONFIGS or name in LATER_BROKER_CONFIGS:
        return ALL_BROKERS
    if name in BROKER_FIELDS or any(name == key.alias for key in BROKER_KEYS.values()):
        return ""
    other = other_property(name)
    return ALL_BROKERS if other is None else other.mode


def is_dynamic(name: str) -> bool:
    is_kafkas = name in BROKER_FIELDS or name in other_names()
    return is_kafkas and bool(_update_mode(name))


def _check_dynamic(configs: Mapping[str, str], *, all_brokers: bool) -> None:
    """Apache Kafka's checks of what is to be set while the broker runs, in their order. Raises
    InvalidRequestError and ConfigError."""
    modes = {name: _update_mode(name) for name in configs}
    _refuse(
        (name for name, mode in modes.items() if not mode),
        "Cannot update these configs dynamically",
    )
    _refuse(
        (name for name, mode in modes.items() if mode == ONE_LISTENER),
        "These security configs can be dynamically updated only per-listener using the listener "
        "prefix",
    )
    for name, text in configs.items():
        check_protection(without_listener(name), text)
        key = broker_config_key(without_listener(name))
        if key is not None:
            key.parse(text)
    if all_brokers:
        of_one = (name for name in configs if _update_mode(without_listener(name)) in _MODES_OF_ONE)
        _refuse(
            of_one,
            "Cannot update these configs at default cluster level, broker id must be specified",
        )


def _refuse(names: Iterable[str], reason: str) -> None:
    if found := sorted(names):
        raise InvalidRequestError(f"{reason}: [{', '.join(found)}]")
