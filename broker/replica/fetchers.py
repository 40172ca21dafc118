"""ReplicaFetchers: from whom this broker fetches what it follows.

Owns: a ReplicaFetcher for each leader. Called by: the event loop's thread.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from kafka.structs import TopicPartition

from broker.cluster.metadata import BrokerNode
from broker.replica.partition import Partition


class Fetcher(Protocol):
    """What is needed of a ReplicaFetcher: fetches partitions from one broker."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def max_lag(self) -> int: ...

    def add(self, partition: Partition) -> None: ...

    async def remove(self, topic_partitions: Collection[TopicPartition]) -> None: ...

    async def close(self) -> None: ...


class ReplicaFetchers:
    """One for each leader that is followed."""

    def __init__(self, fetcher_of: Callable[[BrokerNode], Fetcher]) -> None:
        self._fetcher_of = fetcher_of
        self._fetchers: dict[BrokerNode, Fetcher] = {}

    @property
    def max_lag(self) -> int:
        """Of all. Any thread."""
        return max((fetcher.max_lag for fetcher in [*self._fetchers.values()]), default=0)

    def add(self, partition: Partition, leader: BrokerNode) -> None:
        """Follows the partition's leader, which is reached there; after `remove`."""
        if leader not in self._fetchers:
            self._fetchers[leader] = self._fetcher_of(leader)
        self._fetchers[leader].add(partition)

    async def remove(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Returns when none of these is written to any more."""
        for leader, fetcher in list(self._fetchers.items()):
            await fetcher.remove(topic_partitions)
            if fetcher.is_idle:
                del self._fetchers[leader]
                await fetcher.close()

    async def close(self) -> None:
        """Follows nothing any more."""
        fetchers, self._fetchers = self._fetchers, {}
        for fetcher in fetchers.values():
            await fetcher.close()
