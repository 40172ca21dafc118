"""MetadataCache: what this broker knows of the cluster, and answers Metadata and its kin from.

Called by: the event loop's thread only; never blocks.
"""

import uuid

from broker.cluster.metadata import BrokerNode, TopicMetadata


class MetadataCache:
    """The brokers and topics, as last told."""

    def __init__(self, cluster_id: str, broker: BrokerNode) -> None:
        self.cluster_id = cluster_id
        self.broker = broker
        self._topics: dict[str, TopicMetadata] = {}
        self._names: dict[uuid.UUID, str] = {}
        # Grows with every change of a topic: who keeps what topics were knows when to look again.
        self.version = 0

    @property
    def brokers(self) -> list[BrokerNode]:
        return [self.broker]

    @property
    def controller_id(self) -> int:
        return self.broker.node_id

    def topics(self) -> list[TopicMetadata]:
        """Every topic, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicMetadata | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def put(self, topic: TopicMetadata) -> None:
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        self.version += 1

    def remove(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            del self._names[topic.topic_id]
            self.version += 1
