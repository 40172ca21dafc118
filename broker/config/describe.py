"""Configurations as DescribeConfigs shows them: values, where each was set, and their defaults."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from broker.config.broker import BROKER_FIELDS, BROKER_KEYS, BrokerConfig, broker_config_key
from broker.config.definition import (
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Synonym,
    Value,
)
from broker.config.dynamic import is_dynamic
from broker.config.log import LOG_KEYS, LogConfig
from broker.config.other_properties import other_names, other_property, without_listener

__all__ = ["describe_broker", "describe_default", "describe_topic", "synonyms_of", "value_of"]

# Broker properties that stand for one another, by each of them: itself and those behind it.
_FAMILIES = {
    name: tuple(each for each, _ in key.synonyms[index:])
    for key in LOG_KEYS.values()
    for index, (name, _) in enumerate(key.synonyms)
}


def describe_broker(config: BrokerConfig) -> list[ConfigEntry]:
    """Every broker property of Kafka's, and what else is set on this broker while it runs, as
    DescribeConfigs lists a broker's."""
    entries = []
    for field_name, key in BROKER_KEYS.items():
        entry = _entry(config, key, getattr(config, field_name))
        entries.append(entry)
        if key.alias:
            entries.append(replace(entry, name=key.alias))
    known = {entry.name for entry in entries}
    names = [*other_names(), *sorted({*config.dynamic_default, *config.dynamic} - known)]
    entries += [_other_entry(config, name) for name in dict.fromkeys(names)]
    return entries


def describe_default(config: BrokerConfig) -> list[ConfigEntry]:
    """What is set on all brokers, as DescribeConfigs lists the cluster's default."""
    entries = []
    for name, text in config.dynamic_default.items():
        synonym = _synonym(name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        is_read_only = not is_dynamic(name)
        entries.append(
            _described(_shown_key(name), synonym.value, [synonym], is_read_only=is_read_only)
        )
    return entries


def describe_topic(config: BrokerConfig, topic: LogConfig) -> list[ConfigEntry]:
    """Every property of a topic of this broker, as DescribeConfigs lists a topic's."""
    return [
        _topic_entry(config, key, getattr(topic, field_name), topic)
        for field_name, key in LOG_KEYS.items()
    ]


def _entry(config: BrokerConfig, key: ConfigKey, value: Value) -> ConfigEntry:
    synonyms = synonyms_of(config, _FAMILIES.get(key.name, (key.name,)))
    while synonyms and synonyms[0].name != key.name:
        del synonyms[0]
    is_read_only = not is_dynamic(key.name)
    return _described(key, key.render(value), synonyms, is_read_only=is_read_only)


def _other_entry(config: BrokerConfig, name: str) -> ConfigEntry:
    """Of a property that nothing here acts on, or that is none of Kafka's."""
    key = _shown_key(name)
    synonyms = synonyms_of(config, dict.fromkeys((name, without_listener(name))))
    value = synonyms[0].value if synonyms else None
    return _described(key, value, synonyms, is_read_only=not is_dynamic(name))


def value_of(config: BrokerConfig, name: str) -> Value:
    """The typed value of a broker property of Kafka's, whether anything here acts on it."""
    if name in BROKER_FIELDS:
        value: Value = getattr(config, BROKER_FIELDS[name])
        return value
    other = other_property(name)
    assert other is not None, name
    key = other.key
    for configs in (config.dynamic, config.dynamic_default, config.given):
        if name in configs:
            return key.parse(configs[name])
    return key.default


def _topic_entry(
    config: BrokerConfig, key: ConfigKey, value: Value, topic: LogConfig
) -> ConfigEntry:
    synonyms = synonyms_of(config, [name for name, _ in key.synonyms])
    if not key.synonyms:
        synonyms.append(Synonym(key.name, key.render(key.default), ConfigSource.DEFAULT_CONFIG))
    if key.name in topic.overrides:
        own = Synonym(key.name, key.render(value), ConfigSource.DYNAMIC_TOPIC_CONFIG)
        synonyms.insert(0, own)
    return _described(key, key.render(value), synonyms, is_read_only=False)


def synonyms_of(config: BrokerConfig, names: Iterable[str]) -> list[Synonym]:
    """Every place where one of the broker properties `names` is set, the first that counts
    first, and their defaults."""
    found = []
    for given, source in (
        (config.dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (config.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.given, ConfigSource.STATIC_BROKER_CONFIG),
    ):
        for name in names:
            alias = _shown_key(name).alias
            text = given.get(name, given.get(alias) if alias else None)
            if text is not None:
                found.append(_synonym(name, text, source))
    for name in names:
        key = _shown_key(name)
        if key.default is not None:
            found.append(Synonym(name, key.render(key.default), ConfigSource.DEFAULT_CONFIG))
    return found


def _synonym(name: str, text: str, source: ConfigSource) -> Synonym:
    key = _shown_key(name)
    return Synonym(name, None if key.is_sensitive else key.render(key.parse(text)), source)


def _described(
    key: ConfigKey, value: str | None, synonyms: Sequence[Synonym], *, is_read_only: bool
) -> ConfigEntry:
    return ConfigEntry(
        name=key.name,
        value=None if key.is_sensitive else value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=key.type,
        documentation=key.doc,
        is_read_only=is_read_only,
        is_sensitive=key.is_sensitive,
        synonyms=tuple(synonyms),
    )


def _shown_key(name: str) -> ConfigKey:
    """How a property is shown. What is none of Kafka's may be a secret of a plug-in's."""
    key = broker_config_key(without_listener(name))
    if key is None:
        return ConfigKey(name, ConfigType.UNKNOWN, None, "None of Kafka's properties.")
    return key if key.name == name else replace(key, name=name, default=None)
