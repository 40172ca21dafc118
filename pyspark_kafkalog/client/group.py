"""The offsets of a consumer group, for a client that is no member of one.

Commits and reads what lag tools look at: generation -1 and no member id, which a coordinator takes
as long as the group has no members (KIP-211 keeps such offsets until `offsets.retention.minutes`
after the last commit). The coordinator is looked up anew for each call, so that one which moved is
found again.

An offset means nothing in another log: so it is kept with its leader's epoch, for which Kafka's
commits have a place that Java's consumer fills, too, and with the id of its topic, in the metadata.

Functions of a Cluster; errors that pass are waited out until the deadline. Blocking; one thread at
a time. Never joins a group.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.errors import NoError, UnknownMemberIdError, for_code
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import LATEST, Cluster, refusal
from pyspark_kafkalog.client.deadline import Deadline

_NO_GENERATION = -1
_NO_EPOCH = -1
_TOPIC_ID = "topic_id="
_BROKER_RETENTION = -1
# The last versions in which topics have names, and a request has one group.
_COMMIT_MAX_VERSION = 9
_FETCH_MIN_VERSION, _FETCH_MAX_VERSION = 2, 7


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where a group goes on in a partition; in which epoch its leader was then, and the id of its
    topic, where who committed it has said so."""

    offset: int
    leader_epoch: int | None = None
    topic_id: UUID | None = None


def commit_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    deadline: Deadline | None = None,
    epochs: Mapping[TopicPartition, int] | None = None,
    topic_ids: Mapping[str, UUID | None] | None = None,
) -> None:
    """Says that `group_id` goes on at `offsets`: for each partition the next one to read; of logs
    with these `epochs` and `topic_ids`, as far as they are known.

    Raises UnknownMemberIdError when the group has members, GroupAuthorizationFailedError, and
    other errors of `kafka.errors`; BrokersUnreachableError.
    """
    by_topic: dict[str, list[Any]] = defaultdict(list)
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    for topic_partition in sorted(offsets):
        topic_id = (topic_ids or {}).get(topic_partition.topic)
        by_topic[topic_partition.topic].append(
            of_topic.OffsetCommitRequestPartition(
                partition_index=topic_partition.partition,
                committed_offset=offsets[topic_partition],
                committed_leader_epoch=(epochs or {}).get(topic_partition, _NO_EPOCH),
                committed_metadata="" if topic_id is None else f"{_TOPIC_ID}{topic_id}",
            )
        )
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id="",
        group_instance_id=None,
        retention_time_ms=_BROKER_RETENTION,
        topics=[of_topic(name=name, partitions=parts) for name, parts in by_topic.items()],
    )

    def commit(deadline: Deadline) -> None:
        connection = cluster.coordinator(group_id, deadline)
        answer = connection.call(request, deadline, _COMMIT_MAX_VERSION)
        for topic in answer.topics:
            for partition in topic.partitions:
                error = for_code(partition.error_code)
                if error is UnknownMemberIdError:
                    raise error(f"group {group_id} has members, which commit offsets of their own")
                if error is not NoError:
                    name = f"{topic.name}-{partition.partition_index}"
                    raise refusal(error, f"offset of {name} for group {group_id}")

    if offsets:
        cluster.retrying(commit, deadline or Deadline(cluster.config.request_timeout_ms))


def committed_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, int]:
    """As `committed_places`, offsets alone."""
    return {each: at.offset for each, at in committed_places(cluster, group_id).items()}


def committed_places(cluster: Cluster, group_id: str) -> dict[TopicPartition, CommittedOffset]:
    """Where `group_id` goes on, for each partition that it committed; empty for an unknown group.

    Raises GroupAuthorizationFailedError, BrokersUnreachableError.
    """
    request = OffsetFetchRequest(group_id=group_id, topics=None, require_stable=False)

    def fetch(deadline: Deadline) -> dict[TopicPartition, CommittedOffset]:
        connection = cluster.coordinator(group_id, deadline)
        connection.version(request.API_KEY, _FETCH_MAX_VERSION, _FETCH_MIN_VERSION)
        answer = connection.call(request, deadline, _FETCH_MAX_VERSION)
        found = {}
        error = for_code(answer.error_code or 0)
        if error is not NoError:
            raise refusal(error, f"offsets of group {group_id}")
        for topic in answer.topics:
            for partition in topic.partitions:
                error = for_code(partition.error_code)
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if error is not NoError:
                    which = f"{topic.name}-{partition.partition_index}"
                    raise refusal(error, f"offset of {which} of group {group_id}")
                if partition.committed_offset >= 0:
                    found[topic_partition] = _committed(partition)
        return found

    return cluster.retrying(fetch, Deadline(cluster.config.request_timeout_ms))


def _committed(partition: Any) -> CommittedOffset:
    epoch = partition.committed_leader_epoch
    metadata = partition.metadata or ""
    topic_id = None
    if metadata.startswith(_TOPIC_ID):
        with suppress(ValueError):
            topic_id = UUID(metadata.removeprefix(_TOPIC_ID))
    return CommittedOffset(
        partition.committed_offset, None if epoch in (None, _NO_EPOCH) else epoch, topic_id
    )


def ends_of(
    cluster: Cluster, topic_partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Where partitions end; those are left out that are not there: offsets outlive their topic."""
    topics = cluster.overview().topics
    counts = {name: len(partitions) for name, partitions in topics.items()}
    there = [
        topic_partition
        for topic_partition in topic_partitions
        if topic_partition.partition < counts.get(topic_partition.topic, 0)
    ]
    return {
        topic_partition: at.offset
        for topic_partition, at in cluster.list_offsets(there, LATEST).items()
    }
