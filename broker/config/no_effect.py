"""Properties that nothing here acts on: what users are told of them, and which are refused."""

import logging
import re
from collections.abc import Iterable

from broker.config.definition import ConfigError
from broker.config.other_properties import other_names, without_listener

__all__ = [
    "INTER_BROKER_VERSION",
    "LATER_BROKER_CONFIGS",
    "check_inter_broker_version",
    "check_protection",
    "warn_of_no_effect",
]

_log = logging.getLogger(__name__)

INTER_BROKER_VERSION = "inter.broker.protocol.version"
"""One of Apache Kafka's until 3.9, for clusters over ZooKeeper."""
_SPOKEN = re.compile(r"3\.9(-IV\d+|\.\d+)?")
# Who sets these relies on clients being told apart.
_PROTECTION = ("authorizer.class.name", "sasl.enabled.mechanisms", "super.users")
# Between these a group's own properties may be.
_BOUND_OF_GROUPS = re.compile(r"group\.(consumer|share|streams)\.(min|max)\.")
# What may be set too, and counts when the broker starts again.
LATER_BROKER_CONFIGS = frozenset(
    (
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "num.recovery.threads.per.data.dir",
    )
)


def check_protection(name: str, text: str) -> None:
    """Raises ConfigError for a property whose user would believe that clients are kept out."""
    if name in _PROTECTION and text.strip():
        raise ConfigError(f"{name} is set, but this broker has nothing of the kind: remove it")


def check_inter_broker_version(text: str) -> None:
    """Raises ConfigError for another one than is spoken here."""
    if not _SPOKEN.fullmatch(text.strip()):
        raise ConfigError(
            f"{INTER_BROKER_VERSION}={text}, and this broker speaks 3.9 alone: upgrade the other "
            "brokers of the cluster to Apache Kafka 3.9 and to that version first, then set 3.9 "
            "here or leave it out"
        )


def warn_of_no_effect(entity: str, names: Iterable[str]) -> None:
    """Says in the log which properties nothing acts on, or only when the broker starts again."""
    idle = sorted(
        name
        for name in names
        if without_listener(name) in other_names() and not _BOUND_OF_GROUPS.match(name)
    )
    if idle:
        _log.warning("config.without_effect entity=%s names=%r", entity, ",".join(idle))
    later = sorted(name for name in names if name in LATER_BROKER_CONFIGS)
    if later and entity != "file":
        _log.warning("config.counts_after_restart entity=%s names=%r", entity, ",".join(later))
