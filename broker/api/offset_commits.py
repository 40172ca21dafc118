"""What OffsetCommit and TxnOffsetCommit share: which partitions there are, and the answer by topic.

Partitions that do not exist are refused one by one; what becomes of the others is for `commit` to
say. Called by: the event loop's thread only.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError
from kafka.structs import TopicPartition

from broker.api.errors import code_of
from broker.cluster.cache import MetadataCache
from broker.cluster.metadata import TopicMetadata
from broker.coordinator.offset_records import CommittedOffset

Offsets: TypeAlias = list[tuple[TopicPartition, CommittedOffset]]
Errors: TypeAlias = list[BrokerResponseError | None]


async def commit_existing(
    wanted: Any,
    metadata: MetadataCache,
    commit_of: Callable[[Any, TopicMetadata], CommittedOffset],
    commit: Callable[[Offsets], Awaitable[Errors]],
) -> Mapping[TopicPartition, BrokerResponseError | None]:
    """`commit_of` makes of a partition's part of the request what is to be kept; `commit` is called
    unless there is nothing, and says of each in turn why it was not kept."""
    errors: dict[TopicPartition, BrokerResponseError | None] = {}
    offsets: Offsets = []
    for topic in wanted.topics:
        known = metadata.topic(topic.name)
        for part in topic.partitions:
            topic_partition = TopicPartition(topic.name, part.partition_index)
            if known is None or not 0 <= topic_partition.partition < len(known.partitions):
                errors[topic_partition] = UnknownTopicOrPartitionError()
            else:
                offsets.append((topic_partition, commit_of(part, known)))
    if offsets:
        results = await commit(offsets)
        errors |= {each: error for (each, _), error in zip(offsets, results, strict=True)}
    return errors


def told_topics(
    errors: Mapping[TopicPartition, BrokerResponseError | None],
    topic_class: Any,
    partition_class: Any,
) -> list[Any]:
    """The topics of the answer, made of the response's own classes."""
    topics: dict[str, list[object]] = {}
    for topic_partition, error in errors.items():
        told = partition_class(partition_index=topic_partition.partition, error_code=code_of(error))
        topics.setdefault(topic_partition.topic, []).append(told)
    return [topic_class(name=name, partitions=parts) for name, parts in topics.items()]
