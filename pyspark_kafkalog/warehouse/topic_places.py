"""What `{topic}` in a target's or a load's name becomes for one topic.

In a path, a URL or a query it is the topic's name. In the name of a table a point would part a
schema from it, so that becomes an underscore: brokers let no two topics differ by that alone. Those
that would meet in one table all the same are refused, and so are names that no topic of Kafka's
has. Asks nobody.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from pyspark_kafkalog.errors import InvalidOptionError

TOPIC = "{topic}"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def names_topic(target: str) -> bool:
    """Whether the target is one for each topic."""
    return TOPIC in target


def refuse_topic(target: str) -> None:
    """Raises InvalidOptionError where one target is meant, and many are named."""
    if names_topic(target):
        raise InvalidOptionError(
            "the target says {topic}, which stands for one topic of many: load_topics(), `kafkalog "
            "load`, `serve`, `status` and `ui` take each of them; all else is asked of the target "
            "of one"
        )


def target_of(target: str, topic: str) -> str:
    """Where the topic goes; raises InvalidOptionError where its name can be no part of a place."""
    if not _NAME.fullmatch(topic) or topic in (".", ".."):
        raise InvalidOptionError(
            f"topic {topic!r} has a name that is none of Kafka's, and might lead out of the place "
            "that {topic} stands in: load it by itself, into a target without {topic}"
        )
    before, table, after = _parts(target)
    named = table.replace(TOPIC, topic.replace(".", "_"))
    return before.replace(TOPIC, topic) + named + after.replace(TOPIC, topic)


def targets_of(target: str, topics: Iterable[str]) -> dict[str, str]:
    """Where each of the topics goes, by name, but for those that can go nowhere."""
    places: dict[str, str] = {}
    for topic in sorted(topics):
        with suppress(InvalidOptionError):
            places[topic] = target_of(target, topic)
    return places


def name_of(name: str, topic: str) -> str:
    """The load's name for a topic: its own if it says {topic}, else the same in each target."""
    return name.replace(TOPIC, topic)


def meeting(target: str, topics: Iterable[str]) -> dict[str, list[str]]:
    """The topics that would share a table with others, each with all that do. Databases and
    catalogs may take names for one that differ by their case alone."""
    places: dict[str, list[str]] = defaultdict(list)
    for topic in topics:
        before, table, after = _parts(target_of(target, topic))
        places[before + table.lower() + after].append(topic)
    return {
        topic: together for together in places.values() if len(together) > 1 for topic in together
    }


def _parts(target: str) -> tuple[str, str, str]:
    """What comes before the name of a table, that name, and what comes after it; empty where the
    target is a directory."""
    kind, colon, place = target.partition(":")
    if kind == "sql":
        url, mark, table = place.rpartition("#")
        return kind + colon + url + mark, table, ""
    if kind == "iceberg":
        table, mark, query = place.partition("?")
        return kind + colon, table, mark + query
    return target, "", ""
