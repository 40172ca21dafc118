"""What a call from Spark leaves behind in its process, a Python worker that Spark keeps for more.

Connections for the next task, as Spark's own connector caches its consumers and producers, and
modules. A worker does one thing at a time, in one thread.
"""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig

_MOST_IDLE_S = 60.0


class _Left:
    """By this process's last task."""

    cluster: Cluster | None = None


@contextmanager
def kept_cluster(config: ClientConfig) -> Iterator[Cluster]:
    """The cluster that the last task left, if it had the same settings, with its connections, or a
    new one. What it knew of topics is asked for anew.

    What a task leaves by an exception, as does a reader that nobody reads to its end, is closed:
    requests may be under way.
    """
    left, _Left.cluster = _Left.cluster, None
    if left is not None and left.config == config:
        cluster = left
        cluster.resume(_MOST_IDLE_S)
    else:
        _close(left)
        cluster = Cluster(config)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    left, _Left.cluster = _Left.cluster, cluster
    _close(left)


def close_kept() -> None:
    """Closes what is kept. Workers do not need to: they end."""
    left, _Left.cluster = _Left.cluster, None
    _close(left)


def _close(left: Cluster | None) -> None:
    if left is not None:
        left.close()


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
        if not _Frozen.modules:
            # Some libraries look at the end whether all that was theirs has been freed.
            atexit.register(gc.unfreeze)
        gc.freeze()
        _Frozen.modules = len(sys.modules)
