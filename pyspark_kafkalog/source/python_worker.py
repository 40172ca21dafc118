"""What a call from Spark leaves behind in its process, a Python worker that Spark keeps for more.

Connections for the next task, as Spark's own connector caches its consumers and producers, and
modules. A worker does one thing at a time, in one thread, and ends after a minute without work.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer

_KEPT_S = 60.0


class _Closing(Protocol):
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


T = TypeVar("T", bound=_Closing)


class _Kept(Generic[T]):
    """The one that the last task left, of the settings that it had."""

    def __init__(self, make: Callable[[ClientConfig], T]) -> None:
        self._make = make
        self._left: tuple[ClientConfig, T, float] | None = None

    @contextmanager
    def lent(self, config: ClientConfig) -> Iterator[T]:
        """It, or a new one. What a task leaves by an exception, as does a reader that nobody reads
        to its end, is closed: requests may be under way."""
        one = self._taken(config) or self._make(config)
        try:
            yield one
        except BaseException:
            one.__exit__(*sys.exc_info())
            raise
        left, self._left = self._left, (config, one, time.monotonic())
        _close(left)

    def forget(self) -> None:
        left, self._left = self._left, None
        _close(left)

    def _taken(self, config: ClientConfig) -> T | None:
        left, self._left = self._left, None
        if left is not None and left[0] == config and time.monotonic() - left[2] < _KEPT_S:
            return left[1]
        _close(left)
        return None


def _close(left: tuple[ClientConfig, _Closing, float] | None) -> None:
    if left is not None:
        left[1].__exit__(None, None, None)


_clusters = _Kept(Cluster)
_producers = _Kept(Producer)


@contextmanager
def kept_cluster(config: ClientConfig) -> Iterator[Cluster]:
    """A cluster with the connections of the last task, which asks anew for the topics' metadata."""
    with _clusters.lent(config) as cluster:
        cluster.distrust()
        yield cluster


@contextmanager
def kept_producer(config: ClientConfig) -> Iterator[Producer]:
    """A producer with the connections and the producer id of the last task; flushed at the end.

    Brokers remember each id for a day and for each partition that it wrote to: one for each task of
    each micro-batch would be millions.
    """
    with _producers.lent(config) as producer:
        yield producer
        producer.flush()


def close_kept() -> None:
    """Closes what is kept. Workers do not need to: they end."""
    _clusters.forget()
    _producers.forget()


class _Frozen:
    """Of this process."""

    modules = 0


def freeze_imports() -> None:
    """Garbage collections leave out what is there now: mostly modules that were imported.

    A worker collects garbage after each task, before it takes the next. Going through the modules
    of PySpark, pandas, Arrow and ours takes 20 to 60 ms of that every time, several times what a
    task of a micro-batch takes itself, and there is nothing among them to free. Some are imported
    at the end of a first task only, so this is for the beginning of each.
    """
    if len(sys.modules) > _Frozen.modules:
        gc.freeze()
        _Frozen.modules = len(sys.modules)
