"""MetadataCache: what this broker knows of the cluster, and answers Metadata and its kin from.

Called by: the event loop's thread only; never blocks.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kafka.structs import TopicPartition

from broker.cluster.control import LEADER_DURING_DELETE, NO_LEADER, UpdateMetadata
from broker.cluster.metadata import (
    NO_CONTROLLER,
    NOT_MADE,
    BrokerNode,
    PartitionMetadata,
    TopicMetadata,
)

_log = logging.getLogger(__name__)

UNKNOWN_PARTITION: Final = PartitionMetadata((), NO_LEADER, -1, (), NOT_MADE)
"""One that must be there, since there are later ones, and of which no controller has told yet."""
# In one topic: a node of ZooKeeper's holds fewer partitions.
_MOST_UNKNOWN = 100_000


class MetadataCache:
    """The brokers and topics, as last told."""

    def __init__(self, cluster_id: str, broker: BrokerNode) -> None:
        self.cluster_id = cluster_id
        self.broker = broker
        self.brokers: list[BrokerNode] = []
        """Those that are there; none before a controller has said so: clients ask again then."""
        self.live: frozenset[int] = frozenset()
        """Their ids."""
        self._racks: dict[int, str | None] = {}
        self._controller_id = NO_CONTROLLER
        self._topics: dict[str, TopicMetadata] = {}
        self._names: dict[uuid.UUID, str] = {}
        # Grows with every change of a topic: who keeps what topics were knows when to look again.
        self.version = 0

    @property
    def controller_id(self) -> int:
        """NO_CONTROLLER where the last one is gone."""
        return self._controller_id if self._controller_id in self.live else NO_CONTROLLER

    def rack_of(self, node_id: int) -> str | None:
        """None for a broker that is not there, or says none."""
        return self._racks.get(node_id)

    def topics(self) -> list[TopicMetadata]:
        """Every topic, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def has_partition(self, topic_partition: TopicPartition) -> bool:
        """Whether there is such a partition, on any broker."""
        topic = self._topics.get(topic_partition.topic)
        return topic is not None and 0 <= topic_partition.partition < len(topic.partitions)

    def may_have_partition(self, topic_partition: TopicPartition) -> bool:
        """As `has_partition`; of a broker that no controller has told, which cannot know, too."""
        return not self.brokers or self.has_partition(topic_partition)

    def offline_replicas(self, partition: PartitionMetadata) -> list[int]:
        """Those whose brokers are not there, or whose disks have failed."""
        return [
            node_id
            for node_id in partition.replicas
            if node_id not in self.live or node_id in partition.failed
        ]

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicMetadata | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def update(self, request: UpdateMetadata) -> list[str]:
        """Takes over what the controller says; the names of topics that are gone by that."""
        self._controller_id = request.stamp.controller_id
        self.brokers = list(request.brokers)
        self._racks = {node.node_id: node.rack for node in self.brokers}
        self.live = frozenset(self._racks)
        changed: dict[str, dict[int, PartitionMetadata]] = {}
        for (name, index), state in request.partitions.items():
            changed.setdefault(name, {})[index] = state
        for name, partitions in changed.items():
            self._put(name, request.topic_ids[name], partitions)
        self.version += bool(changed)
        return sorted(changed.keys() - self._topics.keys())

    def cut(self, counts: Mapping[str, int]) -> list[str]:
        """These topics have no more partitions than that, and no controller has said so to this
        broker; the names of those that are gone by that."""
        fewer = {
            name: count
            for name, count in counts.items()
            if count < len(self._topics[name].partitions)
        }
        for name, count in fewer.items():
            topic = self._topics[name]
            if count:
                self._topics[name] = replace(topic, partitions=topic.partitions[:count])
            else:
                self._remove(name)
        self.version += bool(fewer)
        return sorted(fewer.keys() - self._topics.keys())

    def _put(self, name: str, topic_id: uuid.UUID, changed: dict[int, PartitionMetadata]) -> None:
        known = self._topics.get(name)
        is_same = known is not None and known.topic_id == topic_id
        partitions = dict(enumerate(known.partitions)) if known and is_same else {}
        partitions |= changed
        stay = {
            index: state
            for index, state in partitions.items()
            if state is not UNKNOWN_PARTITION and state.leader != LEADER_DURING_DELETE
        }
        for index in [each for each in stay if each >= len(stay) + _MOST_UNKNOWN]:
            _log.error("metadata.ignored topic=%r partition=%d", name, index)
            del stay[index]
        if stay or is_same:  # and not what is left of one whose name another has by now
            self._remove(name)
        if stay:
            # Those in between are told of later, or were a moment ago.
            whole = tuple(stay.get(index, UNKNOWN_PARTITION) for index in range(max(stay) + 1))
            self._topics[name] = TopicMetadata(name, topic_id, whole)
            self._names[topic_id] = name

    def _remove(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            del self._names[topic.topic_id]
