"""OffsetCommit (key 8), versions 0-9: a group, or a consumer by itself, has read up to here.

Partitions that do not exist are refused one by one, everything else as a whole. Answered when the
commit is appended, and on disk where flush.messages asks for that. Version 0, which was for offsets
in ZooKeeper, is stored here like any other; the timestamp of version 1 and the retention of 2 to 4
are honoured. Left out: version 10 (topic ids).
"""

from kafka.errors import BrokerResponseError
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from broker.api.contexts import GroupContext
from broker.api.offset_commits import Errors, Offsets, commit_existing, told_topics
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.metadata import TopicMetadata
from broker.coordinator.group import CommitAsk, new_commit
from broker.coordinator.offset_records import CommittedOffset
from broker.log.clock import system_clock_ms

_TOPIC = OffsetCommitResponse.OffsetCommitResponseTopic
_GROUP_ID_NOT_FOUND_VERSION = 9


async def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(OffsetCommitRequest)
    errors = await commit_existing(
        wanted,
        context.metadata,
        lambda part, topic: _commit(wanted, part, topic),
        lambda offsets: _commit_all(request, context, wanted, offsets),
    )
    topics = told_topics(errors, _TOPIC, _TOPIC.OffsetCommitResponsePartition)
    return OffsetCommitResponse(topics=topics)


async def _commit_all(
    request: Request,
    context: GroupContext,
    wanted: OffsetCommitRequest,
    offsets: Offsets,
) -> Errors:
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
        await context.offsets_topic.wait_committed(ask.group_id)
    except BrokerResponseError as error:
        return [error] * len(offsets)
    return errors


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


API = Api(key=8, min_version=0, max_version=9, handle=handle, context=GroupContext)
