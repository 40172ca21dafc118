"""What each broker says of itself: the APIs and features that it knows, the sizes of its logs.

Functions of a Cluster. One attempt at each broker: a broker that does not answer, or does not tell
(no right to it, or too old), is left out, as it is the cluster that was asked about. Blocking; one
thread at a time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka.errors import KafkaError
from kafka.protocol.admin import DescribeLogDirsRequest
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import BrokerAddress, Cluster, PartitionMetadata
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline

_LOG_DIRS_MAX_VERSION = 5


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker with the versions, first and last, of each API that it offers, by the API's key."""

    at: BrokerAddress
    apis: Mapping[int, Sequence[int]]
    """Empty where it did not answer."""
    features: Mapping[str, int]
    """The cluster's finalized features and their levels."""

    @property
    def version(self) -> str:
        """The release of Apache Kafka that has these APIs, such as 4.3; a guess."""
        found = infer_broker_version_from_api_versions(self.apis)
        return ".".join(map(str, found))


def describe_brokers(cluster: Cluster, brokers: Sequence[BrokerAddress]) -> list[BrokerDescription]:
    """Each of `brokers`, in their order."""
    return [_described(cluster, broker) for broker in brokers]


def replica_sizes(
    cluster: Cluster,
    brokers: Sequence[BrokerAddress],
    topics: Mapping[str, Sequence[PartitionMetadata]],
) -> dict[TopicPartition, dict[int, int]]:
    """The bytes of each replica's segments, by partition and broker, where brokers tell."""
    by_broker: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name, partitions in topics.items():
        for partition in partitions:
            for broker_id in partition.replicas:
                by_broker[broker_id][name].append(partition.partition)
    sizes: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
    for broker in brokers:
        if broker.broker_id in by_broker:
            for topic_partition, size_bytes in _sizes(
                cluster, broker, by_broker[broker.broker_id]
            ).items():
                sizes[topic_partition][broker.broker_id] = size_bytes
    return dict(sizes)


def _described(cluster: Cluster, broker: BrokerAddress) -> BrokerDescription:
    try:
        connection = _connection(cluster, broker)
    except KafkaError:
        return BrokerDescription(broker, {}, {})
    return BrokerDescription(broker, connection.versions, connection.features)


def _sizes(
    cluster: Cluster, broker: BrokerAddress, topics: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, int]:
    request = DescribeLogDirsRequest(
        topics=[
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=list(partitions))
            for name, partitions in topics.items()
        ]
    )
    deadline = Deadline(cluster.config.request_timeout_ms)
    try:
        answer = _connection(cluster, broker).call(request, deadline, _LOG_DIRS_MAX_VERSION)
    except KafkaError:
        return {}
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_size
        for directory in answer.results
        for topic in directory.topics
        for partition in topic.partitions
        # A replica on its way to another directory is there twice.
        if not partition.is_future_key
    }


def _connection(cluster: Cluster, broker: BrokerAddress) -> Connection:
    deadline = Deadline(cluster.config.request_timeout_ms)
    return cluster.connection_to((broker.host, broker.port), deadline)
