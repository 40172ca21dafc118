"""ControllerContext: what the controller knows of the cluster. The event loop's thread only."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from kafka.errors import UnknownTopicOrPartitionError
from kafka.structs import TopicPartition

from broker.cluster.control import Partitions
from broker.cluster.metadata import LiveBroker, PartitionMetadata, TopicMetadata


class ControllerFigures(NamedTuple):
    """Of the cluster, as its controller has them; zeroes where that is another broker."""

    is_active: bool = False
    brokers: int = 0
    topics: int = 0
    partitions: int = 0
    offline_partitions: int = 0
    not_led_by_preferred: int = 0
    topics_to_delete: int = 0


@dataclass(slots=True)
class ControllerContext:
    """Brokers, topics and partitions as they are in the store."""

    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    """Those on their way out too."""
    deleting: set[str] = field(default_factory=set)
    shutting_down: set[int] = field(default_factory=set)
    """Brokers that are to lead nothing any more."""
    failed: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """By broker: its replicas whose disks have failed."""

    def existing(self, name: str) -> TopicMetadata:
        """Raises UnknownTopicOrPartitionError for a topic that is not there, or just going."""
        topic = self.topics.get(name)
        if topic is None or name in self.deleting:
            raise UnknownTopicOrPartitionError(f"topic {name!r} is not there, or just going")
        return topic

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionMetadata]]:
        """Every partition of the topics that stay."""
        for name, topic in self.topics.items():
            if name not in self.deleting:
                yield from zip(topic.topic_partitions(), topic.partitions, strict=True)

    def states(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionMetadata]:
        """Who keeps and leads these partitions, which are there."""
        return {
            each: self.topics[each.topic].partitions[each.partition] for each in topic_partitions
        }

    def state(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        """None for a partition that is not there, or just going."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic.name in self.deleting:
            return None
        is_there = 0 <= topic_partition.partition < len(topic.partitions)
        return topic.partitions[topic_partition.partition] if is_there else None

    def existing_state(self, topic_partition: TopicPartition) -> PartitionMetadata:
        """Raises UnknownTopicOrPartitionError for one that is not there, or just going."""
        topic, state = self.existing(topic_partition.topic), self.state(topic_partition)
        if state is None:
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name!r} has no partition {topic_partition.partition}"
            )
        return state

    def with_changes(
        self, changed: Mapping[TopicPartition, PartitionMetadata]
    ) -> list[TopicMetadata]:
        """The topics of these partitions, which are there, as they would be by that."""
        by_topic: dict[str, list[PartitionMetadata]] = {}
        for (name, index), state in changed.items():
            partitions = by_topic.setdefault(name, list(self.topics[name].partitions))
            partitions[index] = state
        return [
            replace(self.topics[name], partitions=tuple(partitions))
            for name, partitions in by_topic.items()
        ]

    def put(self, changed: Mapping[TopicPartition, PartitionMetadata]) -> None:
        """These partitions, which were there, are so now."""
        for topic in self.with_changes(changed):
            self.topics[topic.name] = topic

    @property
    def racks(self) -> dict[int, str | None]:
        """Of the brokers that are there."""
        return {node_id: broker.node.rack for node_id, broker in self.brokers.items()}

    def figures(self) -> ControllerFigures:
        """Any thread: of copies that are made at once."""
        deleting = [*self.deleting]
        topics = [topic for topic in [*self.topics.values()] if topic.name not in deleting]
        states = [state for topic in topics for state in topic.partitions]
        return ControllerFigures(
            True,
            len(self.brokers),
            len(topics),
            len(states),
            sum(state.leader not in self.brokers for state in states),
            sum(state.leader != state.replicas[0] for state in states),
            len(deleting),
        )

    def is_online(self, node_id: int) -> bool:
        """Whether it may lead."""
        return node_id in self.brokers and node_id not in self.shutting_down

    def online(self, topic_partition: TopicPartition) -> Callable[[int], bool]:
        """Says of brokers whether they may lead that partition, and be in sync."""

        def is_online(node_id: int) -> bool:
            has_failed = topic_partition in self.failed.get(node_id, ())
            return self.is_online(node_id) and not has_failed

        return is_online

    def with_failed(self, changed: Partitions) -> Partitions:
        """These partitions, as clients are to be told of them."""
        if not self.failed:
            return changed
        told = dict(changed)
        for node_id, places in self.failed.items():
            for place in places & changed.keys():
                told[place] = replace(told[place], failed=(*told[place].failed, node_id))
        return told

    def names_by_id(self) -> dict[UUID, str]:
        """Of all topics: made anew, for a request about many."""
        return {topic.topic_id: name for name, topic in self.topics.items()}

    def forget(self) -> None:
        """Another broker is controller."""
        self.brokers.clear()
        self.topics.clear()
        self.deleting.clear()
        self.shutting_down.clear()
        self.failed.clear()
