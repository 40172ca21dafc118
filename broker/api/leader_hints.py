"""Who leads a partition that was asked of the wrong broker, or in an old epoch (KIP-951).

As Apache Kafka's brokers say it: by what this broker keeps, else by what a controller has told; -1
where nobody knows. An endpoint is told once in an answer, of brokers that are there.
Called by: the event loop's thread.
"""

from collections.abc import Iterable

from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.cluster.control import NO_LEADER
from broker.replica.partition import NO_EPOCH
from pyspark_kafkalog.protocol.leader_hints import LeaderIdAndEpoch, NodeEndpoint


def current_leader(topic: str, partition: int, context: RecordContext) -> LeaderIdAndEpoch:
    topic_partition = TopicPartition(topic, partition)
    kept = context.replicas.kept(topic_partition)
    if kept is not None:
        return LeaderIdAndEpoch(kept.leader_id, kept.leader_epoch)
    metadata = context.metadata.topic(topic)
    if metadata is None or not context.metadata.has_partition(topic_partition):
        return LeaderIdAndEpoch(NO_LEADER, NO_EPOCH)
    state = metadata.partitions[partition]
    return LeaderIdAndEpoch(state.leader, state.leader_epoch)


def endpoints(leaders: Iterable[LeaderIdAndEpoch], context: RecordContext) -> list[NodeEndpoint]:
    """Where these are reached."""
    wanted = {leader.leader_id for leader in leaders}
    return [
        NodeEndpoint(node.node_id, node.host, node.port, node.rack)
        for node in context.metadata.brokers
        if node.node_id in wanted
    ]
