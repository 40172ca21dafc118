"""Places in partitions, as people write them, and what they mean.

`beginning` and `end`; N, an offset; -N, so many records before the end; a time, as ISO 8601 by
this machine's clock unless it names a zone, @MILLISECONDS since the epoch, or counted back from
now, such as '-10 minutes'. A time is the first record at or after it, or the end.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

    from pyspark_kafkalog.client.cluster import Cluster

_BEGINNING = ("beginning", "earliest", "start")
_END = ("end", "latest")
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A place, before anybody asked the brokers; just one of the fields says it."""

    symbol: str = ""
    """`beginning` or `end`."""
    offset: int | None = None
    """Negative: so many records before the end."""
    time_ms: int | None = None

    def offsets(
        self, cluster: "Cluster", topic_partitions: "Collection[TopicPartition]"
    ) -> "dict[TopicPartition, int]":
        """Where it is in each partition. An offset that is gone is the first that is there; one
        beyond the end stays what it is."""
        from pyspark_kafkalog.client.cluster import EARLIEST, LATEST

        def ask(timestamp: int) -> "dict[TopicPartition, int]":
            found = cluster.list_offsets(topic_partitions, timestamp)
            return {topic_partition: at.offset for topic_partition, at in found.items()}

        if self.symbol:
            return ask(EARLIEST if self.symbol == "beginning" else LATEST)
        if self.time_ms is not None:
            # Negative ones are not times to a broker, but ends of the log.
            return ask(LATEST) | ask(max(0, self.time_ms))
        assert self.offset is not None
        first = ask(EARLIEST)
        if self.offset < 0:
            return {
                topic_partition: max(first[topic_partition], end + self.offset)
                for topic_partition, end in ask(LATEST).items()
            }
        return {
            topic_partition: max(offset, self.offset) for topic_partition, offset in first.items()
        }


def parse_place(text: str) -> Place | None:
    """The place that `text` names; None for text that names none."""
    from pyspark_kafkalog.source.offsets import RelativeLimit, parse_start

    word = text.strip().lower()
    if word in _BEGINNING + _END:
        return Place("beginning" if word in _BEGINNING else "end")
    digits = word.removeprefix("-")
    if digits.isdecimal() and int(digits) <= _LARGEST:
        # No record before the end is the end.
        return Place("end") if word.startswith("-") and not int(digits) else Place(offset=int(word))
    if word.startswith("@") and word[1:].isdecimal() and int(word[1:]) <= _LARGEST:
        return Place(time_ms=int(word[1:]))
    if word.startswith("-"):
        try:
            back = parse_start("--offset", word)
        except ValueError:
            return None
        if not isinstance(back, RelativeLimit):
            return None
        if back.ms is None:
            return Place(offset=-(back.offsets or 0))
        return Place(time_ms=time.time_ns() // 1_000_000 - back.ms)
    moment = parse_time(text)
    return None if moment is None else Place(time_ms=int(moment.timestamp() * 1000))


def parse_time(text: str) -> datetime | None:
    """ISO 8601, such as 2026-11-01T00:00 or 2026-11-01T00:00:00Z; None for any other text, also
    where this machine's clock is in another era then."""
    text = text.strip()
    if not text[:4].isdigit() or "-" not in text:
        return None
    try:
        # Python 3.10 does not know the letter.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1] in "zZ" else text)
        moment.timestamp()
    except (ValueError, OverflowError):
        return None
    return moment
