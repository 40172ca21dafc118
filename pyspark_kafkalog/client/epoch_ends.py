"""Where a log ends of what was written up to a leader epoch: what tells that its tail was lost.

A leader that was elected without being in sync, or one that lost what it had not flushed, gives
offsets to other records than before. Its log says so (KIP-101, KIP-320): epochs that are older than
its own end where its own begins.

Blocking; one thread at a time.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from kafka.errors import IncompatibleBrokerVersion, NoError, NotLeaderForPartitionError
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster, read_error
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline

_MAX_VERSION = 4
_CONSUMER = -1


def epoch_ends(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offset after the last record of each partition that was written up to its epoch in
    `epochs`; none of those whose leaders cannot tell. Raises what `Cluster.list_offsets` does."""
    found: dict[TopicPartition, int] = {}
    missing = dict(epochs)

    def ask(deadline: Deadline) -> None:
        by_leader: dict[Connection, dict[TopicPartition, int]] = defaultdict(dict)
        for each in sorted(missing):
            by_leader[cluster.leader(each, deadline)][each] = missing[each]
        for connection, asked in by_leader.items():
            ends = _ask(cluster, connection, asked, deadline)
            found.update(ends)
            for each in ends:
                del missing[each]
        if missing:
            raise NotLeaderForPartitionError("leader epochs")

    if missing:
        cluster.retrying(ask, Deadline(cluster.config.request_timeout_ms))
    return {each: end for each, end in found.items() if end >= 0}


def _ask(
    cluster: Cluster,
    connection: Connection,
    asked: Mapping[TopicPartition, int],
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """What one leader answers; -1 where it cannot tell, and nothing where it leads no more."""
    try:
        connection.version(OffsetForLeaderEpochRequest.API_KEY, _MAX_VERSION)
    except IncompatibleBrokerVersion:
        return dict.fromkeys(asked, -1)
    answer = connection.call(_request(asked), cluster.attempt(deadline), _MAX_VERSION)
    ends: dict[TopicPartition, int] = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            each = TopicPartition(topic.topic, partition.partition)
            error = read_error(partition.error_code)
            if error is NoError:
                ends[each] = partition.end_offset
            elif error.retriable:
                cluster.forget(each)
            else:
                raise error(f"leader epochs of {each.topic}-{each.partition}")
    return {each: ends[each] for each in asked if each in ends}


def _request(asked: Mapping[TopicPartition, int]) -> Any:
    topic_of = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for each, epoch in asked.items():
        by_topic[each.topic].append(
            topic_of.OffsetForLeaderPartition(
                partition=each.partition, current_leader_epoch=-1, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[topic_of(topic=topic, partitions=some) for topic, some in by_topic.items()],
    )
