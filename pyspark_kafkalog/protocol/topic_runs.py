"""How Produce and Fetch name topics: by name up to version 12, by id from 13 on (KIP-516).

Both nest partitions in topics, which our values do not: partitions that follow one another and are
of one topic make a run. Bytes only. Pure functions: any thread.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar
from uuid import UUID

from pyspark_kafkalog.protocol.wire import Reader, Writer

MAX_VERSION_WITH_NAMES: Final = 12
_TOPIC_ID_BYTES: Final = 16


class _OfTopic(Protocol):
    """What belongs to a topic that is known by its name, by its id, or by both."""

    topic: str
    topic_id: UUID | None


_Item = TypeVar("_Item", bound=_OfTopic)


def encode_topic_count(writer: Writer, items: Sequence[_Item], version: int) -> list[list[_Item]]:
    """Writes how many runs of one topic `items` have, and returns the runs."""
    runs: list[list[_Item]] = []
    for item in items:
        if not runs or _topic(runs[-1][0], version) != _topic(item, version):
            runs.append([])
        runs[-1].append(item)
    writer.count(len(runs))
    return runs


def encode_topic(writer: Writer, item: _OfTopic, version: int) -> None:
    if version <= MAX_VERSION_WITH_NAMES:
        writer.string(item.topic)
    else:
        writer.raw(bytes(_TOPIC_ID_BYTES) if item.topic_id is None else item.topic_id.bytes)


def decode_topic(reader: Reader, version: int) -> tuple[str, UUID | None]:
    """The topic's name, or (since version 13) its id."""
    if version <= MAX_VERSION_WITH_NAMES:
        return reader.string(), None
    return "", UUID(bytes=bytes(reader.exactly(_TOPIC_ID_BYTES)))


def _topic(item: _OfTopic, version: int) -> str | UUID | None:
    return item.topic if version <= MAX_VERSION_WITH_NAMES else item.topic_id
