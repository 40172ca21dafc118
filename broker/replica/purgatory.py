"""Fetches that wait for records: woken by appends and by a timer, never by polling.

Owns: which fetch waits on which partitions, and its timer. Called by: the event loop's thread only
(the timer is handed down as `call_later`). Never: reads a log; who waits reads again when woken.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from kafka.structs import TopicPartition


class Timer(Protocol):
    """What asyncio's call_later returns."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class DelayedFetch:
    """One waiting fetch: done after `missing_bytes` more bytes, or when its time is up."""

    __slots__ = ("_ready", "missing_bytes", "partitions", "timer")

    def __init__(
        self,
        partitions: Iterable[TopicPartition],
        missing_bytes: int,
        ready: Callable[[], None],
    ) -> None:
        self.partitions = tuple(partitions)
        self.missing_bytes = missing_bytes
        self.timer: Timer | None = None
        self._ready = ready

    def run(self) -> None:
        self._ready()


class FetchPurgatory:
    """The waiting fetches by partition."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._waiting: dict[TopicPartition, set[DelayedFetch]] = {}

    def __len__(self) -> int:
        return len({fetch for fetches in self._waiting.values() for fetch in fetches})

    def wait(self, fetch: DelayedFetch, max_wait_ms: int) -> None:
        """`fetch` runs once: when enough became visible, when woken, or after `max_wait_ms`."""
        for partition in fetch.partitions:
            self._waiting.setdefault(partition, set()).add(fetch)
        fetch.timer = self._call_later(max_wait_ms / 1000, lambda: self._complete(fetch))

    def cancel(self, fetch: DelayedFetch) -> None:
        """Forgets `fetch` (its connection is gone); harmless when it has run."""
        if fetch.timer is not None:
            fetch.timer.cancel()
        for partition in fetch.partitions:
            fetches = self._waiting.get(partition)
            if fetches is not None:
                fetches.discard(fetch)
                if not fetches:
                    del self._waiting[partition]

    def became_visible(self, partition: TopicPartition, size_bytes: int) -> None:
        """`size_bytes` more of `partition` can be fetched."""
        fetches = self._waiting.get(partition)
        if not fetches:
            return
        for fetch in list(fetches):
            fetch.missing_bytes -= size_bytes
            if fetch.missing_bytes <= 0:
                self._complete(fetch)

    def wake(self, partition: TopicPartition) -> None:
        """Something else happened to `partition` (deleted, led elsewhere): ask again."""
        for fetch in list(self._waiting.get(partition, ())):
            self._complete(fetch)

    def _complete(self, fetch: DelayedFetch) -> None:
        self.cancel(fetch)
        fetch.run()
