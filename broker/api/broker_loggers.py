"""The resource BROKER_LOGGER: what this broker's loggers write (KIP-412); until it stops.

Loggers are those of Python's `logging` that exist, by their names, and `root`; levels have Kafka's
names. Checks and words of refusal are Apache Kafka's. Called by: the event loop's thread only.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from kafka.errors import InvalidConfigurationError, InvalidRequestError, UnknownError

from broker.config.definition import ConfigEntry, ConfigSource, ConfigType

SET, DELETE, APPEND, SUBTRACT = range(4)
_VERBS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
_ROOT = "root"
_LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": logging.DEBUG // 2,
    "WARN": logging.WARNING,
}


def describe_loggers(name: str, node_id: int) -> list[ConfigEntry]:
    """Every logger of the broker `name` and what it writes. Raises InvalidRequestError unless that
    is `node_id`."""
    if not name:
        raise InvalidRequestError("Broker id must not be empty")
    if not _is_whole(name):
        raise InvalidRequestError(f"Broker id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise InvalidRequestError(f"Unexpected broker id, expected {node_id} but received {name}")
    return [
        ConfigEntry(
            name=each,
            value=_level_name(logger.getEffectiveLevel()),
            source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            type=ConfigType.UNKNOWN,
            documentation="",
            is_read_only=False,
            is_sensitive=False,
            synonyms=(),
        )
        for each, logger in _loggers().items()
    ]


def alter_loggers(name: str, configs: Sequence[Any], node_id: int, *, validate_only: bool) -> None:
    """Does all of an incremental request, or none. Raises what is wrong with it."""
    if not _is_whole(name):
        raise InvalidRequestError(f"Node id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise InvalidRequestError(f"Unexpected node id. Expected {node_id}, but received {name}")
    loggers = _loggers()
    levels = {config.name: _checked_level(config, loggers) for config in configs}
    if not validate_only:
        for each, level in levels.items():
            loggers[each].setLevel(level)


def _checked_level(config: Any, loggers: dict[str, logging.Logger]) -> int:
    operation = config.config_operation
    if operation in _VERBS:
        raise InvalidRequestError(
            f"{_VERBS[operation]} operation is not allowed for the BROKER_LOGGER resource"
        )
    if operation not in (SET, DELETE):
        raise UnknownError
    if config.name not in loggers:
        raise InvalidConfigurationError(f"Logger {config.name} does not exist!")
    if operation == DELETE:
        if config.name == _ROOT:
            raise InvalidRequestError("Removing the log level of the root logger is not allowed")
        return logging.NOTSET
    if config.value not in _LEVELS:
        raise InvalidConfigurationError(
            f"Cannot set the log level of {config.name} to {config.value} as it is not a supported "
            f"log level. Valid log levels are {', '.join(_LEVELS)}"
        )
    return _LEVELS[config.value]


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict
    found = {
        name: logger for name, logger in sorted(known.items()) if isinstance(logger, logging.Logger)
    }
    return {_ROOT: logging.root, **found}


def _level_name(level: int) -> str:
    """The name of the nearest level of Kafka's that is not above."""
    names = {value: name for name, value in _LEVELS.items()}
    return names[max((value for value in names if value <= level), default=min(names))]


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()
