"""Changing topics: the records in the store, the logs, the copy in memory, in order.

Owns: that order, so that a crash at any instant leaves a topic whole or gone. A topic is created by
one commit to the store; logs that are missing are made at the next start. A deletion is marked in
the store first and finished at the next start. New partitions are a commit like a new topic.
Changes of topics that are there come one after the other.
Called by: the event loop's thread; what blocks runs in the one metadata thread (`run_blocking`). A
change once begun goes on when its client leaves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kafka.errors import (
    InvalidPartitionsError,
    KafkaStorageError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from broker.cluster.cache import MetadataCache
from broker.cluster.changes import Changes
from broker.cluster.entity_configs import EntityConfigs
from broker.cluster.metadata import TopicMetadata, new_partition
from broker.cluster.records import MetadataRecords
from broker.replica.manager import ReplicaManager

_log = logging.getLogger(__name__)

T = TypeVar("T")
RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
Configs = Mapping[str, str]


class TopicManager:
    """Creates, changes and deletes topics of this broker."""

    def __init__(
        self,
        metadata: MetadataCache,
        records: MetadataRecords,
        configs: EntityConfigs,
        replicas: ReplicaManager,
        run_blocking: RunBlocking,
    ) -> None:
        self._metadata = metadata
        self._records = records
        self._configs = configs
        self._replicas = replicas
        self._run_blocking = run_blocking
        # Names being created or deleted now.
        self._changing: set[str] = set()
        self._changes = Changes("topic")
        # Held by who changes a topic that is there, or begins to delete it.
        self._altering = asyncio.Lock()
        # Told the name of each topic that is gone.
        self.on_deleted: Callable[[str], None] = lambda name: None

    async def create(self, topic: TopicMetadata, configs: Configs) -> None:
        """Raises TopicAlreadyExistsError, KafkaStorageError."""
        self.check_absent(topic.name)
        await self._to_the_end(topic.name, self._create(topic, configs))

    async def delete(self, topic: TopicMetadata) -> None:
        """Raises UnknownTopicOrPartitionError, KafkaStorageError."""
        async with self._altering:
            current = self._existing(topic.name)
            if current.topic_id != topic.topic_id:
                raise UnknownTopicOrPartitionError(f"topic {topic.name!r} is another one now")
            deletion = self._to_the_end(topic.name, self._delete(current))
        await deletion

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Lets the topic have `partition_count` partitions, which are more than it has.

        Raises UnknownTopicOrPartitionError, InvalidPartitionsError, KafkaStorageError.
        """
        await self._changes.finish(name, self._add_partitions(name, partition_count))

    def check_absent(self, name: str) -> None:
        """Raises TopicAlreadyExistsError when `name` is taken, or is about to be."""
        if name in self._changing or self._metadata.topic(name) is not None:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")

    async def drain(self) -> None:
        """Waits for the changes under way."""
        await self._changes.drain()

    def _existing(self, name: str) -> TopicMetadata:
        topic = self._metadata.topic(name)
        if topic is None or name in self._changing:
            raise UnknownTopicOrPartitionError(f"topic {name!r} is not there, or just going")
        return topic

    def _to_the_end(
        self, name: str, change: Coroutine[Any, Any, None]
    ) -> Coroutine[Any, Any, None]:
        """Begins to create or delete the topic at once; to be awaited for its end."""
        self._changing.add(name)
        task = asyncio.get_running_loop().create_task(change)
        task.add_done_callback(lambda _: self._changing.discard(name))
        return self._changes.finish(name, task)

    async def _create(self, topic: TopicMetadata, configs: Configs) -> None:
        if not await self._run_blocking(lambda: self._records.create_topic(topic, configs)):
            raise TopicAlreadyExistsError(f"Topic '{topic.name}' already exists.")
        self._configs.put(topic.name, configs)
        try:
            await self._run_blocking(lambda: self._replicas.make_logs(topic))
            self._replicas.open(topic)
        except (OSError, KafkaStorageError):
            await self._remove(topic)  # no space for its logs: no topic either
            raise
        self._metadata.put(topic)
        _log.info("topic.created topic=%r partitions=%d", topic.name, len(topic.partitions))

    async def _add_partitions(self, name: str, partition_count: int) -> None:
        async with self._altering:
            topic = self._existing(name)
            present = len(topic.partitions)
            if partition_count <= present:
                raise InvalidPartitionsError(f"Topic already has {present} partition(s).")
            added = (new_partition(self._metadata.broker.node_id),) * (partition_count - present)
            grown = replace(topic, partitions=topic.partitions + added)
            await self._run_blocking(lambda: self._records.add_partitions(topic, grown))
            try:
                await self._run_blocking(lambda: self._replicas.make_logs(grown))
            except (OSError, KafkaStorageError):
                # No space for the logs: no partitions either.
                await self._run_blocking(lambda: self._records.remove_partitions(grown, topic))
                await self._run_blocking(lambda: self._replicas.delete_logs(grown, present))
                raise
            self._replicas.open(grown)
            self._metadata.put(grown)
        _log.info("topic.grown topic=%r partitions=%d", name, partition_count)

    async def _delete(self, topic: TopicMetadata) -> None:
        await self._remove(topic)
        self.on_deleted(topic.name)
        _log.info("topic.deleted topic=%r", topic.name)

    async def _remove(self, topic: TopicMetadata) -> None:
        await self._run_blocking(lambda: self._records.mark_deleted(topic.name))
        self._metadata.remove(topic.name)
        self._replicas.close(topic)
        await self._run_blocking(lambda: self._replicas.delete_logs(topic))
        await self._run_blocking(lambda: self._records.forget_topic(topic))
        self._configs.remove(topic.name)
