"""What a call from Spark leaves behind in its process, a Python worker that Spark keeps for more.

Connections and a producer's id for the next task, as Spark's own connector caches its consumers and
producers, and modules. A worker does one thing at a time, in one thread.
"""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer, ProducerNumbers

_MOST_IDLE_S = 60.0
_MOST_KEPT = 4

_left: dict[ClientConfig, tuple[Cluster, ProducerNumbers]] = {}
"""By this process's last tasks: a cluster for each of their settings, and the numbers of what was
written there. A worker that reads in one task writes in the next, maybe with other settings."""


@contextmanager
def kept_cluster(config: ClientConfig) -> Iterator[Cluster]:
    """The cluster that the last task with the same settings left, with its connections, or a new
    one. What it knew of topics is asked for anew.

    What a task leaves by an exception, as does a reader that nobody reads to its end, is closed:
    requests may be under way.
    """
    with _kept(config) as (cluster, _):
        yield cluster


@contextmanager
def kept_producer(config: ClientConfig) -> Iterator[Producer]:
    """A producer on `kept_cluster`, flushed at the end, with the id that the last one had there.

    One for each task of each micro-batch would be millions a day, which brokers remember. After a
    lost connection it is a new one (see ProducerNumbers).
    """
    with _kept(config) as (cluster, numbers), Producer(cluster, numbers=numbers) as producer:
        yield producer


@contextmanager
def _kept(config: ClientConfig) -> Iterator[tuple[Cluster, ProducerNumbers]]:
    for each, (cluster, _) in list(_left.items()):
        if not cluster.resume(_MOST_IDLE_S):
            _left[each] = cluster, ProducerNumbers()
    cluster, numbers = _left.pop(config, (Cluster(config), ProducerNumbers()))
    try:
        yield cluster, numbers
    except BaseException:
        cluster.close()
        raise
    cluster.free_memory()
    _close(config)
    _left[config] = cluster, numbers
    if len(_left) > _MOST_KEPT:
        _close(next(iter(_left)))


def close_kept() -> None:
    """Closes what is kept. Workers do not need to: they end."""
    for config in list(_left):
        _close(config)


def _close(config: ClientConfig) -> None:
    """What is kept for these settings, if anything is."""
    if config in _left:
        cluster, _ = _left.pop(config)
        cluster.close()


class _Frozen:
    """Of this process."""

    modules = 0


def freeze_imports() -> None:
    """Garbage collections leave out what is there now: mostly modules that were imported.

    A worker collects garbage after each task, and after each plan that it makes, before it takes
    the next. Going through the modules of PySpark, pandas, Arrow and ours takes 20 to 60 ms of that
    every time, several times what a task of a micro-batch takes itself, and there is nothing among
    them to free. Some are imported at the end of a first task only, so this is for the beginning of
    each.
    """
    if len(sys.modules) > _Frozen.modules:
        if not _Frozen.modules:
            # Some libraries look at the end whether all that was theirs has been freed.
            atexit.register(gc.unfreeze)
        gc.freeze()
        _Frozen.modules = len(sys.modules)
