"""Where operations wait: woken by what becomes visible and by a timer, never by polling.

Owns: which operation waits for which keys (partitions, or a fetch session), its timer, and who else
wants to hear of a partition's changes (fetch sessions, for as long as they live). Called by: the
event loop's thread only (the timer is handed down as `call_later`). Never: knows when an operation
is done; that says the operation (`delayed`).
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Protocol

from kafka.structs import TopicPartition

from broker.replica.partition import MANY_BYTES


class Timer(Protocol):
    """What asyncio's call_later returns."""

    def cancel(self) -> None: ...


# One that waits costs some 500 bytes for each of its keys.
_MOST_WAITING: Final = 500_000

CallLater = Callable[[float, Callable[[], None]], Timer]


class Watcher(Protocol):
    """Hears of every change of a partition until it is taken off."""

    def partition_changed(self, size_bytes: int, stable_bytes: int) -> None:
        """So many more bytes can be fetched, and so many by who reads committed records only; more
        than any fetch wants where the partition itself changed (was opened, deleted, led
        elsewhere)."""


class DelayedOperation:
    """Waits in a Purgatory until it is done, or its time is up."""

    __slots__ = ("_done", "_purgatory", "_timer", "keys")

    def __init__(self, keys: Iterable[Hashable]) -> None:
        self.keys: Final = tuple(keys)
        self._purgatory: Purgatory | None = None
        self._timer: Timer | None = None
        self._done: Callable[[], None] | None = None

    def check(self) -> bool:
        """Whether it is done, by what is known now."""
        raise NotImplementedError

    def progress(self, size_bytes: int, stable_bytes: int) -> None:
        """So many more bytes can be fetched, or by who reads committed records."""
        raise NotImplementedError

    def expire(self) -> None:
        """Its time is up."""
        self.complete()

    def begin(
        self, purgatory: "Purgatory", done: Callable[[], None], call_later: CallLater, wait_s: float
    ) -> None:
        self._purgatory = purgatory
        self._done = done
        self._timer = call_later(wait_s, self.expire)

    def complete(self) -> None:
        """The wait ends and who waited is told, once."""
        done = self._done
        self.cancel()
        if done is not None:
            done()

    def cancel(self) -> None:
        """The wait ends and nobody is told; harmless when it has ended."""
        purgatory, timer = self._purgatory, self._timer
        self._purgatory = self._timer = self._done = None
        if timer is not None:
            timer.cancel()
        if purgatory is not None:
            purgatory.forget(self)


class Purgatory:
    """The waiting operations by key."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._waiting: dict[Hashable, set[DelayedOperation]] = {}
        self._watchers: dict[TopicPartition, set[Watcher]] = {}
        self._waiting_keys = 0
        self._counts: dict[type[DelayedOperation], int] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more operations should wait: they are answered with what there is."""
        return self._waiting_keys >= _MOST_WAITING

    def count(self, kind: type[DelayedOperation]) -> int:
        """How many of a kind are waiting."""
        return self._counts.get(kind, 0)

    def wait(self, operation: DelayedOperation, max_wait_ms: int, done: Callable[[], None]) -> None:
        """`done` is called once: when the operation is done, which may be now, or after
        `max_wait_ms`."""
        if operation.check():
            done()
            return
        for key in operation.keys:
            self._waiting.setdefault(key, set()).add(operation)
        self._waiting_keys += len(operation.keys)
        self._counts[type(operation)] = self.count(type(operation)) + 1
        operation.begin(self, done, self._call_later, max_wait_ms / 1000)

    def forget(self, operation: DelayedOperation) -> None:
        """By `operation` itself, whose wait has ended."""
        self._waiting_keys -= len(operation.keys)
        self._counts[type(operation)] -= 1
        for key in operation.keys:
            operations = self._waiting.get(key)
            if operations is not None:
                operations.discard(operation)
                if not operations:
                    del self._waiting[key]

    def watch(self, partition: TopicPartition, watcher: Watcher) -> None:
        """`watcher` hears of every change of `partition`, until `unwatch`."""
        self._watchers.setdefault(partition, set()).add(watcher)

    def unwatch(self, partition: TopicPartition, watcher: Watcher) -> None:
        watchers = self._watchers.get(partition)
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[partition]

    def is_awaited(self, key: Hashable) -> bool:
        """Whether anybody would hear of it."""
        return key in self._waiting or key in self._watchers

    def became_visible(self, key: Hashable, size_bytes: int, stable_bytes: int) -> None:
        """`size_bytes` more of a partition, or of a session's partitions, can be fetched;
        `stable_bytes` more by who reads committed records only: those of a transaction count only
        once it ends."""
        operations = self._waiting.get(key)
        if operations:
            for operation in list(operations):
                operation.progress(size_bytes, stable_bytes)
        watchers = self._watchers.get(key)
        if watchers:
            for watcher in list(watchers):
                watcher.partition_changed(size_bytes, stable_bytes)

    def wake(self, key: Hashable) -> None:
        """Something else happened to it (deleted, led elsewhere): ask again."""
        self.became_visible(key, MANY_BYTES, MANY_BYTES)
