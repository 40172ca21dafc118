"""Creating and deleting topics: the records in the store, the logs, the copy in memory, in order.

Owns: that order, so that a crash at any instant leaves a topic whole or gone. A topic is created by
one commit to the store; logs that are missing are made at the next start. A deletion is marked in
the store first and finished at the next start. Called by: the event loop's thread; what blocks runs
in the one metadata thread (`run_blocking`). A change once begun goes on when its client leaves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from kafka.errors import (
    KafkaStorageError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from broker.cluster.metadata import ClusterMetadata, MetadataRecords, TopicMetadata
from broker.replica.manager import ReplicaManager

_log = logging.getLogger(__name__)

T = TypeVar("T")
RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]


class TopicManager:
    """Creates and deletes topics of this broker."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        records: MetadataRecords,
        replicas: ReplicaManager,
        run_blocking: RunBlocking,
    ) -> None:
        self._metadata = metadata
        self._records = records
        self._replicas = replicas
        self._run_blocking = run_blocking
        # Names being created or deleted now.
        self._changing: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def create(self, topic: TopicMetadata) -> None:
        """Raises TopicAlreadyExistsError, KafkaStorageError."""
        self.check_absent(topic.name)
        await self._to_the_end(topic.name, self._create(topic))

    async def delete(self, topic: TopicMetadata) -> None:
        """Raises UnknownTopicOrPartitionError, KafkaStorageError."""
        if topic.name in self._changing or self._metadata.topic(topic.name) is not topic:
            raise UnknownTopicOrPartitionError(f"topic {topic.name!r} is being changed")
        await self._to_the_end(topic.name, self._delete(topic))

    def check_absent(self, name: str) -> None:
        """Raises TopicAlreadyExistsError when `name` is taken, or is about to be."""
        if name in self._changing or self._metadata.topic(name) is not None:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")

    async def drain(self) -> None:
        """Waits for the changes under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _to_the_end(self, name: str, change: Coroutine[Any, Any, None]) -> None:
        self._changing.add(name)
        task = asyncio.get_running_loop().create_task(change)
        self._tasks.add(task)

        def ended(ended_task: asyncio.Task[None]) -> None:
            self._tasks.discard(ended_task)
            self._changing.discard(name)
            error = ended_task.exception()
            if error is not None and not isinstance(error, TopicAlreadyExistsError):
                _log.error("topic.change_failed topic=%r reason=%r", name, str(error))

        task.add_done_callback(ended)
        try:
            await asyncio.shield(task)
        except OSError as error:
            raise KafkaStorageError(str(error)) from error

    async def _create(self, topic: TopicMetadata) -> None:
        if not await self._run_blocking(lambda: self._records.create_topic(topic)):
            raise TopicAlreadyExistsError(f"Topic '{topic.name}' already exists.")
        try:
            await self._run_blocking(lambda: self._replicas.make_logs(topic))
            self._replicas.open(topic)
        except (OSError, KafkaStorageError):
            await self._remove(topic)  # no space for its logs: no topic either
            raise
        self._metadata.put(topic)
        _log.info("topic.created topic=%r partitions=%d", topic.name, len(topic.partitions))

    async def _delete(self, topic: TopicMetadata) -> None:
        await self._remove(topic)
        _log.info("topic.deleted topic=%r", topic.name)

    async def _remove(self, topic: TopicMetadata) -> None:
        await self._run_blocking(lambda: self._records.mark_deleted(topic.name))
        self._metadata.remove(topic.name)
        self._replicas.close(topic)
        await self._run_blocking(lambda: self._replicas.delete_logs(topic))
        await self._run_blocking(lambda: self._records.forget_topic(topic))
