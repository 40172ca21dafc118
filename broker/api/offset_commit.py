"""OffsetCommit (key 8), versions 0-9: a group, or a consumer by itself, has read up to here.

Partitions that do not exist are refused one by one, everything else as a whole. Answered when the
commit is appended, and on disk where flush.messages asks for that. Version 0, which was for offsets
in ZooKeeper, is stored here like any other; the timestamp of version 1 and the retention of 2 to 4
are honoured. Left out: version 10 (topic ids).
"""

from collections.abc import Iterator

from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse
from kafka.structs import TopicPartition

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Request, encoded
from broker.cluster.metadata import TopicMetadata
from broker.coordinator.group import CommitAsk, new_commit
from broker.coordinator.offset_records import CommittedOffset
from broker.log.clock import system_clock_ms

_GROUP_ID_NOT_FOUND_VERSION = 9


async def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(OffsetCommitRequest)
    errors: dict[TopicPartition, BrokerResponseError | None] = {}
    offsets: list[tuple[TopicPartition, CommittedOffset]] = []
    for topic_partition, topic, part in _partitions(wanted, context):
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            errors[topic_partition] = UnknownTopicOrPartitionError()
        else:
            offsets.append((topic_partition, _commit(wanted, part, topic)))
    if offsets:
        results = await _commit_all(request, context, wanted, offsets)
        errors |= {place: error for (place, _), error in zip(offsets, results, strict=True)}
    return _answer(errors, request)


async def _commit_all(
    request: Request,
    context: ApiContext,
    wanted: OffsetCommitRequest,
    offsets: list[tuple[TopicPartition, CommittedOffset]],
) -> list[BrokerResponseError | None]:
    ask = CommitAsk(
        group_id=wanted.group_id,
        member_id=wanted.member_id,
        instance_id=wanted.group_instance_id,
        generation=wanted.generation_id_or_member_epoch,
        offsets=offsets,
        known_group_only=request.version >= _GROUP_ID_NOT_FOUND_VERSION,
    )
    try:
        if request.version == 0:  # its clients look for no coordinator
            await context.offsets_topic.ensure()
        errors = context.groups.commit(ask)
        await context.offsets_topic.wait_for_flush(ask.group_id)
    except BrokerResponseError as error:
        return [error] * len(offsets)
    return errors


def _partitions(
    wanted: OffsetCommitRequest, context: ApiContext
) -> "Iterator[tuple[TopicPartition, TopicMetadata | None, OffsetCommitRequest]]":
    for topic in wanted.topics:
        known = context.metadata.topic(topic.name)
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), known, part


def _commit(
    wanted: OffsetCommitRequest, part: OffsetCommitRequest, topic: TopicMetadata
) -> CommittedOffset:
    timestamp_ms = part.commit_timestamp
    return new_commit(
        part.committed_offset,
        part.committed_leader_epoch,
        part.committed_metadata,
        system_clock_ms() if timestamp_ms < 0 else timestamp_ms,
        wanted.retention_time_ms,
        topic.topic_id,
    )


def _answer(errors: dict[TopicPartition, BrokerResponseError | None], request: Request) -> Body:
    topic_class = OffsetCommitResponse.OffsetCommitResponseTopic
    topics: dict[str, list[object]] = {}
    for place, error in errors.items():
        topics.setdefault(place.topic, []).append(
            topic_class.OffsetCommitResponsePartition(
                partition_index=place.partition, error_code=wire_error(error)[0]
            )
        )
    response = OffsetCommitResponse(
        throttle_time_ms=0,
        topics=[topic_class(name=name, partitions=parts) for name, parts in topics.items()],
    )
    return encoded(response, request)


API = Api(key=8, min_version=0, max_version=9, handle=handle)
