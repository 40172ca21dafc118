"""A ReplicaManager that leads a topic, without a controller that says so."""

from broker.cluster.metadata import TopicMetadata
from broker.replica.manager import ReplicaManager


def lead(replicas: ReplicaManager, topic: TopicMetadata, *, make_logs: bool = True) -> None:
    """Serves all partitions of the topic."""
    for topic_partition, state in zip(topic.topic_partitions(), topic.partitions, strict=True):
        if make_logs:
            replicas.make_log(topic_partition, topic.topic_id)
        replicas.lead(topic_partition, state)


def stop(replicas: ReplicaManager, topic: TopicMetadata) -> None:
    """Serves none of them any more."""
    for topic_partition in topic.topic_partitions():
        replicas.stop(topic_partition)
