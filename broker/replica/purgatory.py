"""Fetches that wait for records: woken by appends and by a timer, never by polling.

Owns: which fetch waits on which partitions, its timer, and who else wants to hear of a partition's
changes (fetch sessions, for as long as they live). Called by: the event loop's thread only (the
timer is handed down as `call_later`). Never: reads a log; who waits reads again when woken.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from kafka.structs import TopicPartition


class Timer(Protocol):
    """What asyncio's call_later returns."""

    def cancel(self) -> None: ...


# A waiting fetch costs some 500 bytes for each of its partitions.
_MOST_WAITING: Final = 500_000

CallLater = Callable[[float, Callable[[], None]], Timer]

# More than any fetch waits for.
_ENOUGH_BYTES: Final = sys.maxsize


class Watcher(Protocol):
    """Hears of every change of a partition until it is taken off."""

    def partition_changed(self, size_bytes: int, stable_bytes: int) -> None:
        """So many more bytes can be fetched, and so many by who reads committed records only; more
        than any fetch wants where the partition itself changed (was opened, deleted, led
        elsewhere)."""


class DelayedFetch:
    """One waiting fetch: done after `missing_bytes` more bytes, or when its time is up."""

    __slots__ = (
        "_committed",
        "_purgatory",
        "_ready",
        "is_waiting",
        "missing_bytes",
        "partitions",
        "timer",
    )

    def __init__(
        self,
        partitions: Iterable[TopicPartition],
        missing_bytes: int,
        ready: Callable[[], None],
        *,
        committed: bool = False,
    ) -> None:
        """`committed`: it waits for records whose transactions have ended."""
        self._committed = committed
        self.partitions = tuple(partitions)
        self.missing_bytes = missing_bytes
        self.timer: Timer | None = None
        self.is_waiting = False
        self._ready = ready
        self._purgatory: FetchPurgatory | None = None

    def wait_in(self, purgatory: "FetchPurgatory") -> None:
        self._purgatory = purgatory
        self.is_waiting = True

    def progress(self, size_bytes: int, stable_bytes: int) -> None:
        """So many more bytes can be fetched, or by who reads committed records; done when that is
        enough."""
        self.missing_bytes -= stable_bytes if self._committed else size_bytes
        if self.missing_bytes <= 0:
            self.complete()

    def complete(self) -> None:
        """Done: the wait ends and who waited is told."""
        self.cancel()
        self._ready()

    def cancel(self) -> None:
        """The wait ends and nobody is told; harmless when it has ended."""
        if self._purgatory is not None:
            self._purgatory.cancel(self)


class FetchPurgatory:
    """The waiting fetches by partition."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._waiting: dict[TopicPartition, set[DelayedFetch]] = {}
        self._watchers: dict[TopicPartition, set[Watcher]] = {}
        self._waiting_partitions = 0
        self._waiting_fetches = 0

    @property
    def is_full(self) -> bool:
        """Whether no more fetches may wait: they are answered with what there is."""
        return self._waiting_partitions >= _MOST_WAITING

    def __len__(self) -> int:
        return self._waiting_fetches

    def wait(self, fetch: DelayedFetch, max_wait_ms: int) -> None:
        """`fetch` runs once: when enough became visible, when woken, or after `max_wait_ms`."""
        for partition in fetch.partitions:
            self._waiting.setdefault(partition, set()).add(fetch)
        self._waiting_partitions += len(fetch.partitions)
        self._waiting_fetches += 1
        fetch.wait_in(self)
        fetch.timer = self._call_later(max_wait_ms / 1000, fetch.complete)

    def cancel(self, fetch: DelayedFetch) -> None:
        """Forgets `fetch` (its connection is gone); harmless when it has run."""
        if not fetch.is_waiting:
            return
        fetch.is_waiting = False
        self._waiting_partitions -= len(fetch.partitions)
        self._waiting_fetches -= 1
        if fetch.timer is not None:
            fetch.timer.cancel()
        for partition in fetch.partitions:
            fetches = self._waiting.get(partition)
            if fetches is not None:
                fetches.discard(fetch)
                if not fetches:
                    del self._waiting[partition]

    def watch(self, partition: TopicPartition, watcher: Watcher) -> None:
        """`watcher` hears of every change of `partition`, until `unwatch`."""
        self._watchers.setdefault(partition, set()).add(watcher)

    def unwatch(self, partition: TopicPartition, watcher: Watcher) -> None:
        watchers = self._watchers.get(partition)
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[partition]

    def became_visible(self, partition: TopicPartition, size_bytes: int, stable_bytes: int) -> None:
        """`size_bytes` more of `partition` can be fetched; `stable_bytes` more by who reads
        committed records only: those of a transaction count only once it ends."""
        fetches = self._waiting.get(partition)
        if fetches:
            for fetch in list(fetches):
                fetch.progress(size_bytes, stable_bytes)
        watchers = self._watchers.get(partition)
        if watchers:
            for watcher in list(watchers):
                watcher.partition_changed(size_bytes, stable_bytes)

    def wake(self, partition: TopicPartition) -> None:
        """Something else happened to `partition` (deleted, led elsewhere): ask again."""
        self.became_visible(partition, _ENOUGH_BYTES, _ENOUGH_BYTES)
