"""How far streams are behind, told after each micro-batch.

    spark.streams.addListener(LagListener(print))

Reads Spark's own progress events: of each source that reads topics with kafkalog, the offsets where
the batch ended, and those where the topics ended when it was planned. Asks no broker. Spark calls
listeners in a thread of the driver, one event after the other.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_kafkalog.source.offsets import from_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far a query is behind after a batch: `lag` has the number of offsets that it has yet to
    read of each (topic, partition)."""

    query: str
    batch_id: int
    lag: Mapping[tuple[str, int], int]

    @property
    def total(self) -> int:
        return sum(self.lag.values())

    def __str__(self) -> str:
        return f"query {self.query}, batch {self.batch_id}: {self.total} offsets behind"


class LagListener(StreamingQueryListener):
    """Tells how far each streaming query is behind, after each of its batches.

        spark.streams.addListener(LagListener())

    Hands each QueryLag to `tell`, or logs it at level INFO. What `tell` raises is logged.
    """

    def __init__(self, tell: Callable[[QueryLag], object] | None = None) -> None:
        self._tell = tell or (lambda lag: _log.info("%s", lag))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        lag: dict[tuple[str, int], int] = {}
        for source in progress.sources:
            lag |= _lag(source.endOffset, source.latestOffset)
        if lag:
            try:
                self._tell(QueryLag(progress.name or str(progress.id), progress.batchId, lag))
            except Exception:
                _log.exception("What was to be told about lag failed")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def _lag(end: str | None, latest: str | None) -> dict[tuple[str, int], int]:
    """The difference for each partition; empty for what are not offsets of topics."""
    try:
        ends, latests = from_json(json.loads(end or "")), from_json(json.loads(latest or ""))
        return {
            (each.topic, each.partition): at - ends.get(each, 0) for each, at in latests.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
