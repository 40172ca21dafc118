"""Since when a load may rely on tombstones: what lies behind its place came later than that.

A compacted topic keeps a tombstone for `delete.retention.ms` at least, counted from when it came.
So all of them are still to be read as long as that time has not passed since a moment when the log
ended where the load is, or before. That is not when the load last committed: it may have done so
far behind the end. What is kept of each partition is therefore

    since_ms   all behind the place came after this time; of a first load when it began, as whoever
               reads a log from its beginning within `delete.retention.ms` misses nothing either; of
               a partition that was added when its topic was looked at last, as the keys that were
               deleted there may have rows from the others
    end        where the log ended later, at `end_ms`: a load that gets there relies on that time

Times are the loader's, taken before brokers are asked. Plain functions; ask nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kafka.structs import TopicPartition

_STALE_MS = 3_600_000
"""How old it may be of a partition in which nothing comes, before a commit says that."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What is known of one partition."""

    since_ms: int
    end: int
    end_ms: int

    def moved(self, place: int, end: int, at_ms: int) -> "CaughtUp":
        """What is known of a load that has come to `place`, in a log that ended at `end` at `at_ms`
        or had grown by then."""
        if place >= end:
            return CaughtUp(at_ms, end, at_ms)
        if place >= self.end:
            return CaughtUp(self.end_ms, end, at_ms)
        return self

    def is_stale(self, at_ms: int) -> bool:
        return at_ms - self.since_ms > _STALE_MS


Caught = Mapping[TopicPartition, CaughtUp]
NO_CAUGHT: Caught = {}


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where partitions ended when a load was planned, asked for at `at_ms` or after."""

    at_ms: int
    ends: Mapping[TopicPartition, int]

    def caught_up(self, known: Caught, places: Mapping[TopicPartition, int]) -> Caught:
        """What is known of a load that comes to `places`."""
        found = {}
        for each, place in places.items():
            end = self.ends.get(each, place + 1)
            before = known.get(each, CaughtUp(self.new_since_ms(known, each), end, self.at_ms))
            found[each] = before.moved(place, end, self.at_ms)
        return found

    def new_since_ms(self, known: Caught, partition: TopicPartition) -> int:
        """Since when all came of a partition that is new to a load."""
        looked = (one.end_ms for each, one in known.items() if each.topic == partition.topic)
        return max(looked, default=self.at_ms)
