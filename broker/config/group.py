"""The properties of a single group (KIP-848, KIP-932, KIP-1071): what may be set, and what counts.

Names, types, legal values and words of refusal are Apache Kafka's. What a group does not set comes
from the broker's property of the same meaning (`consumer.session.timeout.ms` <-
`group.consumer.session.timeout.ms`). A value has to be within the broker's bounds when it is set,
and is moved into them where they were changed later. Groups of consumers are served here; what is
set for share groups and streams groups is kept and described. Values are frozen: any thread.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kafka.errors import InvalidConfigurationError

from broker.config.broker import BrokerConfig
from broker.config.definition import (
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Legal,
    Synonym,
    Value,
    at_least,
    one_of,
)
from broker.config.describe import synonyms_of, value_of

_STORED = "Kept and described; this broker has no groups of the kind."
_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")


def _reset_objection(text: str) -> str | None:
    if text in ("earliest", "latest") or _DURATION.fullmatch(text):
        return None
    return (
        f"Invalid value `{text}` for configuration share.auto.offset.reset. The value must be "
        "either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )


_INT = ConfigType.INT


@dataclass(frozen=True, slots=True)
class _Property:
    """`broker`: the property that stands for it; `least` and `most`: those that bound it."""

    key: ConfigKey
    broker: str = ""
    least: str = ""
    most: str = ""


def _number(name: str, default: int, least: int, doc: str, bounds: str = "") -> _Property:
    kind, _, rest = name.partition(".")
    broker = f"group.{name}"
    lower = f"group.{kind}.min.{rest}" if "min" in bounds else ""
    upper = f"group.{kind}.max.{rest.removeprefix('num.')}" if "max" in bounds else ""
    return _Property(ConfigKey(name, _INT, default, doc, at_least(least)), broker, lower, upper)


_PROPERTIES = {
    each.key.name: each
    for each in (
        _number(
            "consumer.session.timeout.ms",
            45_000,
            1,
            "Time without a heartbeat after which a member of the consumer protocol is out.",
            "min max",
        ),
        _number(
            "consumer.heartbeat.interval.ms",
            5_000,
            1,
            "How often members of the consumer protocol are to send heartbeats.",
            "min max",
        ),
        _number(
            "consumer.assignment.interval.ms",
            1_000,
            0,
            "Least time between two assignments of the group.",
            "min max",
        ),
        _number("share.session.timeout.ms", 45_000, 1, _STORED, "min max"),
        _number("share.heartbeat.interval.ms", 5_000, 1, _STORED, "min max"),
        _number("share.record.lock.duration.ms", 30_000, 1000, _STORED, "min max"),
        _number("share.delivery.count.limit", 5, 2, _STORED, "min max"),
        _number("share.partition.max.record.locks", 2_000, 100, _STORED, "min max"),
        _number("share.assignment.interval.ms", 1_000, 0, _STORED, "min max"),
        _Property(
            ConfigKey(
                "share.auto.offset.reset",
                ConfigType.STRING,
                "latest",
                _STORED,
                Legal(_reset_objection),
            )
        ),
        _Property(
            ConfigKey(
                "share.isolation.level",
                ConfigType.STRING,
                "read_uncommitted",
                _STORED,
                one_of("read_committed", "read_uncommitted"),
            )
        ),
        _Property(ConfigKey("share.renew.acknowledge.enable", ConfigType.BOOLEAN, True, _STORED)),
        _number("streams.session.timeout.ms", 45_000, 1, _STORED, "min max"),
        _number("streams.heartbeat.interval.ms", 5_000, 1, _STORED, "min max"),
        _number("streams.num.standby.replicas", 0, 0, _STORED, "max"),
        _number("streams.initial.rebalance.delay.ms", 3_000, 0, _STORED),
        _number("streams.assignment.interval.ms", 1_000, 0, _STORED, "min max"),
    )
}


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """What counts in one group of the consumer protocol."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def group_config(config: BrokerConfig, overrides: Mapping[str, str]) -> GroupConfig:
    """Of a group that sets `overrides`, on a broker of `config`."""
    if not overrides:
        return GroupConfig(
            config.group_consumer_session_timeout_ms,
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_assignment_interval_ms,
        )
    return GroupConfig(
        _effective("consumer.session.timeout.ms", config, overrides),
        _effective("consumer.heartbeat.interval.ms", config, overrides),
        _effective("consumer.assignment.interval.ms", config, overrides),
    )


def _effective(name: str, config: BrokerConfig, overrides: Mapping[str, str]) -> int:
    each = _PROPERTIES[name]
    if name not in overrides:
        return _whole(value_of(config, each.broker))
    value = _whole(each.key.parse(overrides[name]))
    if each.least:
        value = max(value, _whole(value_of(config, each.least)))
    return min(value, _whole(value_of(config, each.most)))


def group_config_key(name: str) -> ConfigKey | None:
    """None for what is no property of a group."""
    each = _PROPERTIES.get(name)
    return None if each is None else each.key


def check_group_config(config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raises InvalidConfigurationError, in Apache Kafka's words, unless a group may set these."""
    for name in overrides:
        if name not in _PROPERTIES:
            raise InvalidConfigurationError(f"Unknown group config name: {name}")
    values = {name: _PROPERTIES[name].key.parse(text) for name, text in overrides.items()}
    for name, value in values.items():
        each = _PROPERTIES[name]
        if each.least and _whole(value) < _whole(value_of(config, each.least)):
            raise InvalidConfigurationError(f"{name} must be greater than or equal to {each.least}")
        if each.most and _whole(value) > _whole(value_of(config, each.most)):
            raise InvalidConfigurationError(f"{name} must be less than or equal to {each.most}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        session_ms, heartbeat_ms = (
            _whole(values.get(name, value_of(config, f"group.{name}")))
            for name in (session, heartbeat)
        )
        if (session in values or heartbeat in values) and session_ms <= heartbeat_ms:
            raise InvalidConfigurationError(f"{session} must be greater than {heartbeat}")


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every property of a group, as DescribeConfigs lists a group's."""
    entries = []
    for name, each in _PROPERTIES.items():
        key = each.key
        synonyms = synonyms_of(config, [each.broker]) if each.broker else []
        if not each.broker:
            synonyms.append(Synonym(name, key.render(key.default), ConfigSource.DEFAULT_CONFIG))
        if name in overrides:
            text = key.render(key.parse(overrides[name]))
            synonyms.insert(0, Synonym(name, text, ConfigSource.GROUP_CONFIG))
        entries.append(
            ConfigEntry(
                name=name,
                value=synonyms[0].value,
                source=synonyms[0].source,
                type=key.type,
                documentation=key.doc,
                is_read_only=False,
                is_sensitive=False,
                synonyms=tuple(synonyms),
            )
        )
    return entries


def _whole(value: Value) -> int:
    assert isinstance(value, int)
    return value
