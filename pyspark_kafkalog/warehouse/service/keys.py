"""The keys of loads.toml: those of the command line without its dashes, and when to run.

Each has a kind, which says what its value must be and what comes of it.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.service.schedule import duration_s, zone_named

Kind = Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidOptionError("is a text")
    return value


def _texts(value: Any) -> list[str]:
    """One text, or an array of them."""
    if isinstance(value, str) and value.strip():
        return [value]
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise InvalidOptionError("is a text or an array of texts")
    return value


def _size(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidOptionError('is a number of bytes, or a text such as "10g"')
    return str(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOptionError("is a whole number, 1 or more")
    return value


def _place(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | datetime | dict):
        raise InvalidOptionError('is a time, offsets, or a text such as "-10 minutes"')
    return value


def _table(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or any(isinstance(v, dict | list) for v in value.values()):
        raise InvalidOptionError('is a table of texts, such as { NAME = "VALUE" }')
    return {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in value.items()}


def _duration(value: Any) -> float:
    if not isinstance(value, str):
        raise InvalidOptionError('is a text such as "5 minutes"')
    return duration_s(value)


def _zone(value: Any) -> Any:
    return zone_named(_text(value))


LOAD_KEYS: Mapping[str, Kind] = {
    "name": _text,
    "to": _text,
    "topics": _texts,
    "pattern": _text,
    "every": _duration,
    "cron": _text,
    "time-zone": _zone,
    "retry-first": _duration,
    "retry-most": _duration,
    "at-once": _count,
    "maintain-every": _duration,
    "bootstrap-servers": _text,
    "command-config": _text,
    "property": _table,
    "option": _table,
    "from": _place,
    "until": _place,
    "max-bytes": _size,
    "chunk-bytes": _size,
    "group": _text,
    "transform": _text,
    "value-format": _text,
    "value-schema": _text,
    "registry": _text,
    "registry-option": _table,
    "on-error": _text,
    "dead-letter-topic": _text,
    "partition-by": _texts,
    "sort-by": _texts,
    "compression": _text,
    "target-file-size": _size,
    "mode": _text,
    "key": _texts,
    "order-by": _text,
    "envelope": _text,
    "on-schema-change": _text,
}
"""Of [[load]], and of [defaults] but for `name`."""

SERVICE_KEYS: Mapping[str, Kind] = {"workers": _count, "most-at-once": _count}
"""Before all tables."""

INSTEAD = {"every": "cron", "cron": "every", "topics": "pattern", "pattern": "topics"}
"""What of a load stands in the place of what [defaults] say."""

ARGUMENTS = {
    "from": "starting",
    "until": "until",
    "max-bytes": "max_bytes",
    "chunk-bytes": "chunk_bytes",
    "group": "group",
    "value-format": "value_format",
    "on-error": "on_error",
    "dead-letter-topic": "dead_letter_topic",
    "partition-by": "partition_by",
    "sort-by": "sort_by",
    "compression": "compression",
    "target-file-size": "target_file_bytes",
    "mode": "mode",
    "key": "key",
    "order-by": "order_by",
    "envelope": "envelope",
    "on-schema-change": "on_schema_change",
}
"""Keys whose values are arguments of `load`, by that name."""
