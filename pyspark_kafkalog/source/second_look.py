"""Looks once more before records are missed.

A leader that ZooKeeper has lost, and that has not found out, answers reads as if it led still: its
log ends before what others have written since, in an epoch that is over. Who asked only it would
miss records that are there, or, told to go on without what is lost, leave them out.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from pyspark_kafkalog.errors import DataLossError

if TYPE_CHECKING:
    from pyspark_kafkalog.client.cluster import Cluster

T = TypeVar("T")


def look_twice(
    cluster: "Cluster",
    look: Callable[[bool], T],
    fail_on_data_loss: bool,
    topics: Iterable[str] = (),
) -> T:
    """What `look(fail_on_data_loss)` gives; where it misses records, then after all brokers were
    asked who leads what it has asked for, and `topics`. `look` changes nothing, and raises
    DataLossError if told to."""
    try:
        return look(True)
    except DataLossError:
        cluster.ask_all(topics)
        return look(fail_on_data_loss)
