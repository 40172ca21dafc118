"""Which names a topic may have (as Kafka's Topic.validate)."""

import re
from collections.abc import Iterable

from kafka.errors import InvalidTopicError

_MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicError."""
    if not name:
        raise InvalidTopicError("topic name is empty")
    if name in (".", ".."):
        raise InvalidTopicError("topic name cannot be '.' or '..'")
    if len(name) > _MAX_LENGTH:
        raise InvalidTopicError(f"topic name is longer than {_MAX_LENGTH} characters")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicError("topic name has characters other than a-z A-Z 0-9 . _ -")


def is_topic_name(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return False
    return True


def check_no_collision(name: str, existing: Iterable[str]) -> None:
    """Raises InvalidTopicError: names that differ in '.' and '_' alone clash in metrics."""
    if "." not in name and "_" not in name:
        return
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise InvalidTopicError(f"topic {name!r} collides with existing topic {other!r}")
