"""Controller: which topics there are, who keeps their partitions and who leads them.

Owns: the one order in which all that changes, for the broker that is elected. Each change is an
event: one after the other, first written to the store, then in the context, then told to the
brokers. What is written is checked by the controller's epoch, so that a controller of the past can
change nothing. A crash at any instant leaves a topic whole or gone: it is created by one commit;
logs that are missing are made by whoever becomes leader; a deletion is marked first, and is carried
on by the next controller.
Called by: the event loop's thread; what blocks runs in the one metadata thread (`run_blocking`). A
change once begun goes on when its client leaves.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from kafka.errors import (
    BrokerResponseError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster.changes import Changes, RunBlocking
from broker.cluster.control import LEADER_DURING_DELETE, Partitions
from broker.cluster.metadata import BrokerNode, PartitionMetadata, TopicMetadata
from broker.cluster.records import MetadataRecords
from broker.controller.channels import Answer, BrokerChannel, Channels, failures_of
from broker.controller.context import ControllerContext
from broker.controller.elections import elect_offline, first_state
from broker.controller.placement import Assignment, place, place_more

_log = logging.getLogger(__name__)

Configs = Mapping[str, str]


class Controller:
    """Topics and their partitions, while this broker is the elected controller."""

    def __init__(
        self,
        node_id: int,
        records: MetadataRecords,
        channel_to: Callable[[BrokerNode], BrokerChannel],
        run_blocking: RunBlocking,
    ) -> None:
        self._records = records
        self._run_blocking = run_blocking
        self._context = ControllerContext()
        self._channels = Channels(node_id, self._context, channel_to)
        self._event = asyncio.Lock()
        """Held by the change that is under way."""
        self._changes = Changes("topic")

    # Taking over.

    async def start(self) -> None:
        """This broker was elected: reads what is there, elects leaders where the last ones are
        gone, and tells the brokers. Returns when they have heard."""
        async with self._event:
            found = await self._run_blocking(self._records.cluster)
            self._context.brokers.update(found.brokers)
            self._context.topics.update({topic.name: topic for topic in found.topics})
            self._context.deleting.update(found.deleted_topics)
            self._channels.controller_epoch = self._records.controller_epoch
            for broker in found.brokers.values():
                self._channels.open(broker)
            await self._elect_where_leaders_are_gone(found.written)
            everything = dict(self._context.partitions())
            answers = self._announce(everything)
        await failures_of(answers)
        for name in sorted(self._context.deleting):
            await self._carry_out_deletion(name)

    async def _elect_where_leaders_are_gone(self, written: Mapping[TopicPartition, int]) -> None:
        """A leader that was started anew since it was written down is gone, too: what it lost in a
        crash, and writes again, is told apart by the epoch."""
        brokers = self._context.brokers
        elected = {
            topic_partition: elect_offline(state, self._context.is_online)
            for topic_partition, state in self._context.partitions()
            if state.leader not in brokers or written[topic_partition] < brokers[state.leader].epoch
        }
        await self._write_states(elected)

    async def _write_states(self, states: Partitions) -> None:
        """What another controller has written since stays; who has become one tells the brokers."""
        if not states:
            return
        self._context.put(await self._run_blocking(lambda: self._records.write_states(states)))

    async def stop(self) -> None:
        """Waits for the changes under way, and takes no more."""
        await self._changes.drain()
        await self._channels.close()

    # Topics.

    def check_absent(self, name: str) -> None:
        """Raises TopicAlreadyExistsError when `name` is taken, or just going."""
        if name in self._context.topics:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")

    def place(self, partition_count: int, replication_factor: int) -> Assignment:
        """Brokers for the replicas of a new topic. Raises InvalidReplicationFactorError."""
        return place(list(self._context.brokers), partition_count, replication_factor)

    async def place_and_create_topic(
        self, name: str, partition_count: int, replication_factor: int, configs: Configs
    ) -> TopicMetadata:
        """As `create_topic`. Raises InvalidReplicationFactorError, too."""
        assignment = self.place(partition_count, replication_factor)
        return await self.create_topic(name, assignment, configs)

    async def create_topic(
        self, name: str, assignment: Assignment, configs: Configs
    ) -> TopicMetadata:
        """Returns when the topic can be written to and read.

        Raises TopicAlreadyExistsError, and KafkaStorageError where it cannot be written down, or
        none of a partition's replicas can make a log: there is no topic then.
        """
        return await self._changes.finish(name, self._create_topic(name, assignment, configs))

    async def _create_topic(
        self, name: str, assignment: Assignment, configs: Configs
    ) -> TopicMetadata:
        async with self._event:
            topic = TopicMetadata(name, uuid.uuid4(), self._first_states(assignment))
            if not await self._run_blocking(lambda: self._records.create_topic(topic, configs)):
                raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
            self._context.topics[name] = topic
            created = self._context.states(topic.topic_partitions())
            answers = self._announce(created, created)
        error = await _not_made(created, answers)
        if error is not None:
            await self._delete_topic(topic)  # no space for its logs: no topic either
            raise error
        _log.info("topic.created topic=%r partitions=%d", name, len(topic.partitions))
        return topic

    def _first_states(self, assignment: Assignment) -> tuple[PartitionMetadata, ...]:
        return tuple(first_state(replicas, self._context.is_online) for replicas in assignment)

    async def add_partitions(
        self, name: str, partition_count: int, assignment: Assignment | None = None
    ) -> None:
        """Lets the topic have `partition_count` partitions, more than it has: where `assignment`
        says, if given.

        Returns when they can be written to and read. Raises UnknownTopicOrPartitionError,
        InvalidPartitionsError, and KafkaStorageError as `create_topic`.
        """
        await self._changes.finish(name, self._add_partitions(name, partition_count, assignment))

    async def _add_partitions(
        self, name: str, partition_count: int, assignment: Assignment | None
    ) -> None:
        async with self._event:
            topic = self._context.existing(name)
            present = len(topic.partitions)
            if partition_count <= present:
                raise InvalidPartitionsError(f"Topic already has {present} partition(s).")
            additional = partition_count - present
            if assignment is None:
                assignment = place_more(list(self._context.brokers), topic.partitions, additional)
            elif len(assignment) != additional:
                raise InvalidReplicationAssignmentError(
                    f"Attempted to add {additional} additional partition(s), but only "
                    f"{len(assignment)} assignment(s) were specified."
                )
            grown = replace(topic, partitions=topic.partitions + self._first_states(assignment))
            await self._run_blocking(lambda: self._records.add_partitions(topic, grown))
            self._context.topics[name] = grown
            added = self._context.states(grown.topic_partitions()[present:])
            error = await _not_made(added, self._announce(added, added))
            if error is not None:
                # No space for the logs: no partitions either, and none after them until then.
                await self._take_back(added, grown, topic)
                raise error
        _log.info("topic.grown topic=%r partitions=%d", name, len(grown.partitions))

    async def _take_back(
        self, added: Partitions, grown: TopicMetadata, topic: TopicMetadata
    ) -> None:
        self._channels.update_metadata(_during_delete(added))
        await failures_of(self._channels.delete_replicas(added))
        await self._run_blocking(lambda: self._records.remove_partitions(grown, topic))
        self._context.topics[topic.name] = topic

    def _announce(
        self, changed: Partitions, created: Collection[TopicPartition] = ()
    ) -> Mapping[int, Sequence[Answer]]:
        """Tells the brokers of partitions: what they answer, as replicas and as who tells
        clients."""
        told = self._channels.lead_and_follow(changed, created)
        return {
            node_id: [told[node_id], heard] if node_id in told else [heard]
            for node_id, heard in self._channels.update_metadata(changed).items()
        }

    async def delete_topic(self, topic: TopicMetadata) -> None:
        """Returns when the topic is gone for clients and for a restart.

        Raises UnknownTopicOrPartitionError where there is no such topic, or another of its name,
        and KafkaStorageError.
        """
        await self._changes.finish(topic.name, self._delete_topic(topic))

    async def _delete_topic(self, topic: TopicMetadata) -> None:
        async with self._event:
            if self._context.existing(topic.name).topic_id != topic.topic_id:
                raise UnknownTopicOrPartitionError(f"topic {topic.name!r} is another one now")
            await self._run_blocking(lambda: self._records.mark_deleted(topic.name))
            self._context.deleting.add(topic.name)
        await self._carry_out_deletion(topic.name)

    async def _carry_out_deletion(self, name: str) -> None:
        """Of a topic that is marked: clients hear first, then the replicas go, then the nodes."""
        async with self._event:
            topic = self._context.topics[name]
            states = self._context.states(topic.topic_partitions())
            self._channels.update_metadata(_during_delete(states))
            answers = self._channels.delete_replicas(states)
        for node_id, failures in (await failures_of(answers)).items():
            for error in failures.values():
                _log.error("topic.not_deleted topic=%r broker=%d reason=%r", name, node_id, error)
                raise error
        async with self._event:
            await self._run_blocking(lambda: self._records.forget_topic(topic))
            del self._context.topics[name]
            self._context.deleting.discard(name)
        _log.info("topic.deleted topic=%r", name)


async def _not_made(
    created: Partitions, answers: Mapping[int, Sequence[Answer]]
) -> BrokerResponseError | None:
    """Why one of the new partitions has no replica at all."""
    failures = await failures_of(answers)
    for topic_partition, state in created.items():
        errors = [failures.get(node_id, {}).get(topic_partition) for node_id in state.isr]
        if None not in errors:
            return errors[0]
    return None


def _during_delete(states: Partitions) -> Partitions:
    return {
        topic_partition: replace(state, leader=LEADER_DURING_DELETE)
        for topic_partition, state in states.items()
    }
