"""StateLoader: a coordinator's state, partition by partition, as this broker comes to lead it.

Owns: the reading of partitions of a StateTopic, one after the other, in a thread that builds the
state from the log's batches. A partition is served when all its records have been read; one that
could not be, for want of descriptors, say, is read again after a while: nobody else may lead it.
What is led no more while it is read is for nobody. Called by: the event loop's thread only.
"""

import asyncio
import logging
from typing import Generic, Protocol, TypeVar

from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition

from broker.coordinator.state_topic import StateTopic
from broker.log.log import Log
from broker.replica.manager import ReplicaManager

_log = logging.getLogger(__name__)

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Coordinator(Protocol[S_contra]):
    """Who keeps the state."""

    def take_over(self, state: S_contra) -> None:
        """A partition's state, as its log tells of it."""
        ...

    def resign(self, partition: int) -> None:
        """Forgets what belongs to a partition."""
        ...


class StateLoader(Generic[S]):
    """Has a coordinator take over, and give up, partitions of its topic."""

    def __init__(
        self,
        topic: StateTopic[S],
        replicas: ReplicaManager,
        coordinator: Coordinator[S],
        again_s: float = 10.0,
    ) -> None:
        """`again_s`: after which what could not be read is read again."""
        self._topic = topic
        self._replicas = replicas
        self._coordinator = coordinator
        self._again_s = again_s
        self._loading: dict[int, asyncio.Task[None]] = {}
        """By partition: what reads it, or waits to read it again."""
        self._one_at_a_time = asyncio.Lock()

    def lead(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition: it is served from here on, or once it has been read."""
        if not self._topic.begin(partition, leader_epoch):
            return
        self._cancel(partition)
        topic_partition = TopicPartition(self._topic.kind.name, partition)
        try:
            log = self._replicas.partition(topic_partition).log
        except BrokerResponseError as error:
            self._give_up(topic_partition, leader_epoch, error)
            return
        if log.log_start_offset == log.log_end_offset:
            self._topic.loaded(partition)
            return
        load = asyncio.get_running_loop().create_task(
            self._load(topic_partition, leader_epoch, log)
        )
        self._loading[partition] = load

    async def _load(self, topic_partition: TopicPartition, leader_epoch: int, log: Log) -> None:
        async with self._one_at_a_time:
            loop = asyncio.get_running_loop()
            try:
                state = await loop.run_in_executor(None, self._topic.kind.read, log)
            except Exception as error:  # whatever reading nonsense raises
                self._give_up(topic_partition, leader_epoch, error)
                return
        # Not where this is cancelled: by then it may be the next one's.
        del self._loading[topic_partition.partition]
        self._coordinator.take_over(state)
        self._topic.loaded(topic_partition.partition)
        _log.info("state.loaded topic=%r partition=%d", *topic_partition)

    def _give_up(
        self, topic_partition: TopicPartition, leader_epoch: int, error: Exception
    ) -> None:
        """For now. Until it is read again the partition takes the markers of transactions."""
        self._topic.end(topic_partition.partition)
        _log.error(
            "state.not_loaded topic=%r partition=%d reason=%r",
            *topic_partition,
            str(error) or repr(error),
        )
        self._loading[topic_partition.partition] = asyncio.get_running_loop().create_task(
            self._try_again(topic_partition.partition, leader_epoch)
        )

    async def _try_again(self, partition: int, leader_epoch: int) -> None:
        await asyncio.sleep(self._again_s)
        del self._loading[partition]
        self.lead(partition, leader_epoch)

    def _cancel(self, partition: int) -> None:
        task = self._loading.pop(partition, None)
        if task is not None:
            task.cancel()

    def resign(self, partition: int) -> None:
        """This broker leads the partition no more."""
        self._cancel(partition)
        self._topic.end(partition)
        self._coordinator.resign(partition)

    def close(self) -> None:
        """Reads no more, and has the coordinator forget everything."""
        for partition in sorted({*self._topic.led_partitions, *self._loading}):
            self.resign(partition)
        self._topic.close()
