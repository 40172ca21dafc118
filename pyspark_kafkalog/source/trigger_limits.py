"""How much of a backlog one micro-batch of a stream takes, and whether there is enough for one.

Owns the arithmetic of the options `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and
`maxTriggerDelay`, which is that of Spark's Kafka connector, and of `maxBytesPerTrigger`. Functions
of their arguments, but for the clock in TriggerDelay and the sizes in OffsetSizes, which live with
the query on the driver. Never talks to a broker.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.source.offsets import Offsets

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000
_GUESSED_BYTES = 1024.0


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """What a stream was asked for; None where there is no limit.

    Offsets, not records: compaction and transaction markers leave gaps.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    max_bytes: int | None = None

    def __bool__(self) -> bool:
        limits = (self.max_offsets, self.max_bytes, self.min_offsets)
        return any(limit is not None for limit in limits)


class TriggerDelay:
    """Holds micro-batches back until enough offsets have come, or the last one is long ago.

    The first one of a query is never held back.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._patience = Deadline(0)

    def waits(self, starts: Mapping[TopicPartition, int], untils: Offsets) -> bool:
        """True where what lies between is to wait; otherwise the delay begins anew."""
        # A log that was cut off ends before its start, and leaves those of others as they are.
        waiting = sum(max(until - starts.get(each, 0), 0) for each, until in untils.items())
        if waiting < self._min_offsets and not self._patience.expired:
            return True
        self.begin()
        return False

    def begin(self) -> None:
        """A micro-batch has just begun: the next one may have to wait."""
        self._patience = Deadline(self._max_delay_ms)


def limit_untils(
    max_offsets: int, starts: Mapping[TopicPartition, int], untils: Offsets
) -> Offsets:
    """Brings `untils` down to about `max_offsets` offsets, shared in proportion to the backlogs.

    Each partition that has a backlog gets at least one offset, so that the sum may be above
    `max_offsets` where there are many partitions; shares are rounded down otherwise. A partition
    that `starts` leaves out keeps its end.
    """
    backlogs = {
        each: until - starts[each]
        for each, until in untils.items()
        if each in starts and until > starts[each]
    }
    # In floating point, as in Spark: the last offset of a share depends on it.
    total = float(sum(backlogs.values()))
    limited = dict(untils)
    for topic_partition, backlog in backlogs.items():
        share = max_offsets * (backlog / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        limited[topic_partition] = min(untils[topic_partition], starts[topic_partition] + whole)
    return limited


class OffsetSizes:
    """Bytes of the log for each offset of a partition, as samples of it told last.

    A partition without a sample is taken for the mean of its topic, or of all.
    """

    def __init__(self) -> None:
        self._bytes: dict[TopicPartition, float] = {}

    def update(self, samples: Mapping[TopicPartition, float]) -> None:
        for topic_partition, size_bytes in samples.items():
            self._bytes.pop(topic_partition, None)
            self._bytes[topic_partition] = size_bytes

    def oldest_first(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """`partitions` in the order in which they are to be sampled: a broker answers for a few."""
        ages = {each: number for number, each in enumerate(self._bytes)}
        return sorted(partitions, key=lambda each: (ages.get(each, -1), each))

    def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, float]:
        """Bytes for each offset of each of `partitions`."""
        of_topics: dict[str, list[float]] = {}
        for topic_partition, size_bytes in self._bytes.items():
            of_topics.setdefault(topic_partition.topic, []).append(size_bytes)
        means = {topic: sum(sizes) / len(sizes) for topic, sizes in of_topics.items()}
        overall = sum(means.values()) / len(means) if means else _GUESSED_BYTES
        return {each: self._bytes.get(each, means.get(each.topic, overall)) for each in partitions}


def limit_untils_by_bytes(
    max_bytes: int,
    starts: Mapping[TopicPartition, int],
    untils: Offsets,
    bytes_per_offset: Mapping[TopicPartition, float],
) -> Offsets:
    """Brings `untils` down to about `max_bytes`, the same part of each backlog.

    Each partition that has a backlog gets at least one offset, so that none stands still.
    """
    backlogs = {
        each: until - starts[each] for each, until in untils.items() if until > starts[each]
    }
    total = sum(backlog * bytes_per_offset[each] for each, backlog in backlogs.items())
    if total <= max_bytes:
        return untils
    part = max_bytes / total
    return untils | {
        each: starts[each] + min(backlog, max(1, math.floor(backlog * part)))
        for each, backlog in backlogs.items()
    }
