"""What a configuration property is: its name, type, default, legal values and description.

`broker.config` declares its properties with `option(...)` as dataclass fields; this module turns
the text of a properties file or of a CreateTopics request into typed values and back, and lists
them as DescribeConfigs shows them. Types and sources carry Kafka's own wire numbers. Values only:
any thread. Never reads a file and knows no single property.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from kafka.errors import InvalidConfigurationError

Value = bool | int | float | str | tuple[str, ...] | None

SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class ConfigError(InvalidConfigurationError):  # type: ignore[misc]
    """A property has a value that it cannot have; the message names the legal ones."""


class ConfigType(IntEnum):
    """A property's type, by the number DescribeConfigs gives it (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
SHORT, LONG, DOUBLE, LIST = ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
PASSWORD = ConfigType.PASSWORD


class ConfigSource(IntEnum):
    """Where a value comes from, by the number DescribeConfigs gives it (KIP-226)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """A place where a value could come from; a `value` of None is not shown."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class Legal:
    """Which values a property may have: says of one what is wrong with it, in Apache Kafka's words,
    or None. Of a list it is asked for each element."""

    objection: Callable[[Any], str | None]


def legal(text: str, accepts: Callable[[Any], bool]) -> Legal:
    return Legal(lambda value: None if accepts(value) else text)


def within(least: float | None, most: float | None) -> Legal:
    def objection(value: float) -> str | None:
        if least is not None and value < least:
            return f"Value must be at least {least:.17g}"
        if most is not None and value > most:
            return f"Value must be no more than {most:.17g}"
        return None

    return Legal(objection)


def at_least(least: float) -> Legal:
    return within(least, None)


def between(least: float, most: float) -> Legal:
    return within(least, most)


def one_of(*names: str, any_case: bool = False) -> Legal:
    folded = {name.lower() for name in names} if any_case else set(names)
    return legal(
        f"String must be one of{' (case insensitive)' if any_case else ''}: {', '.join(names)}",
        lambda value: (value.lower() if any_case else value) in folded,
    )


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One property. `synonyms` are the broker properties that stand for a topic's property while
    it is not set on the topic, first set one first, each with the factor to the topic's unit."""

    name: str
    type: ConfigType
    default: Value
    doc: str
    legal: Legal | None = None
    alias: str | None = None
    synonyms: tuple[tuple[str, int], ...] = ()
    may_be_empty: bool = True

    @property
    def is_sensitive(self) -> bool:
        return self.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN)

    def parse(self, text: str) -> Value:
        """The typed value of `text`. Raises ConfigError that says what would be legal."""
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            is_boolean = self.type is ConfigType.BOOLEAN
            objection = _NOT_A_BOOLEAN if is_boolean else f"Not a number of type {self.type.name}"
            raise self._error(text, objection) from None
        if value == () and not self.may_be_empty:
            raise self._error(text, "Configuration must not be empty")
        self.check(value)
        return value

    def check(self, value: Value) -> None:
        """Raises ConfigError unless `value` is legal."""
        if self.legal is None or value is None:
            return
        for each in value if isinstance(value, tuple) else (value,):
            objection = self.legal.objection(each)
            if objection is not None:
                raise self._error(str(each), objection)

    def render(self, value: Value) -> str | None:
        """The text of `value` as a properties file has it; None = no value."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def _error(self, text: str, objection: str) -> ConfigError:
        shown = "[hidden]" if self.is_sensitive else text
        return ConfigError(f"Invalid value {shown} for configuration {self.name}: {objection}")


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One line of DescribeConfigs. `synonyms`: every place the value could come from, nearest
    first."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    documentation: str
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]


def option(
    name: str,
    type: ConfigType,
    default: Value,
    doc: str,
    legal: Legal | None = None,
    *,
    alias: str | None = None,
    synonyms: Sequence[tuple[str, int]] = (),
    may_be_empty: bool = True,
) -> Any:
    """Declares a dataclass field that holds the property `name`; `may_be_empty`: if a list."""
    key = ConfigKey(name, type, default, doc, legal, alias, tuple(synonyms), may_be_empty)
    return dataclasses.field(default=default, metadata={"key": key})


def keys_of(config_class: Any) -> dict[str, ConfigKey]:
    """Field name to property, in the order of declaration."""
    return {
        field.name: field.metadata["key"]
        for field in dataclasses.fields(config_class)
        if "key" in field.metadata
    }


def split_known(
    keys: Mapping[str, ConfigKey], given: Mapping[str, str]
) -> tuple[dict[str, Value], list[str]]:
    """Typed values by field name, and the names in `given` that are no property of `keys`."""
    fields = {key.name: field for field, key in keys.items()}
    fields |= {key.alias: field for field, key in keys.items() if key.alias}
    values = {
        fields[name]: keys[fields[name]].parse(text)
        for name, text in given.items()
        if name in fields
    }
    return values, [name for name in given if name not in fields]


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _parse_int(text: str) -> int:
    return _within(int(text), INT_MAX)


def _parse_short(text: str) -> int:
    return _within(int(text), SHORT_MAX)


def _parse_long(text: str) -> int:
    return _within(int(text), LONG_MAX)


def _within(number: int, most: int) -> int:
    if not -most - 1 <= number <= most:
        raise ValueError
    return number


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[ConfigType, Callable[[str], Value]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.UNKNOWN: str,
    ConfigType.STRING: str,
    ConfigType.CLASS: str,
    ConfigType.INT: _parse_int,
    ConfigType.SHORT: _parse_short,
    ConfigType.LONG: _parse_long,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: _parse_list,
    ConfigType.PASSWORD: str,
}

_NOT_A_BOOLEAN = "Expected value to be either true or false"
