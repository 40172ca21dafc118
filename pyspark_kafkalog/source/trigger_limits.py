"""How much of a backlog one micro-batch of a stream takes, and whether there is enough for one.

Owns the arithmetic of the options `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and
`maxTriggerDelay`, which is that of Spark's Kafka connector. Functions of their arguments, but for
the clock in TriggerDelay, which lives with the query on the driver. Never talks to a broker.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.source.offsets import Offsets

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """What a stream was asked for; None where there is no limit.

    Offsets, not records: compaction and transaction markers leave gaps.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS

    def __bool__(self) -> bool:
        return self.max_offsets is not None or self.min_offsets is not None


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
        waiting = sum(until - starts.get(tp, 0) for tp, until in untils.items())
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
        tp: until - starts[tp]
        for tp, until in untils.items()
        if tp in starts and until > starts[tp]
    }
    # In floating point, as in Spark: the last offset of a share depends on it.
    total = float(sum(backlogs.values()))
    limited = dict(untils)
    for tp, backlog in backlogs.items():
        share = max_offsets * (backlog / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        limited[tp] = min(untils[tp], starts[tp] + whole)
    return limited
