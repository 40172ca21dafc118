"""OffsetFetch (key 9), versions 0-9: up to where groups have read.

Since version 2 all topics may be asked for (null), since 8 several groups. What is asked for twice
is answered once: an answer grows with what is stored, not with a request's repetitions. Since 7 an
offset that an open transaction may change is refused where the client wants stable ones. Members of
KIP-848 say their epoch since version 9, and a stale one is refused. Answered when what is told is
committed: a coordinator that takes over tells nothing older. Left out: version 10 (topic ids).
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from kafka.errors import BrokerResponseError, UnstableOffsetCommitError
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse
from kafka.structs import TopicPartition

from broker.api.contexts import GroupContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.offset_records import NO_EPOCH, CommittedOffset

_GROUP_ERROR_VERSION = 2
_GROUPS_VERSION = 8
_NOTHING = CommittedOffset(-1, NO_EPOCH, "", -1)
_TOPIC = OffsetFetchResponse.OffsetFetchResponseTopic
_GROUP = OffsetFetchResponse.OffsetFetchResponseGroup
_GROUP_TOPIC = _GROUP.OffsetFetchResponseTopics

_Committed = Mapping[TopicPartition, CommittedOffset]
# By topic and partition, in the order asked for; None where it is not stable.
_Offsets = dict[str, dict[int, CommittedOffset | None]]


async def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(OffsetFetchRequest)
    if request.version >= _GROUPS_VERSION:
        return await _groups(context, wanted)
    topics: list[object] = []
    error: BrokerResponseError | None = None
    try:
        if request.version == 0:  # its clients look for no coordinator
            await context.offsets_topic.ensure()
        topics = _topics(await _found(context, wanted, wanted))
    except BrokerResponseError as raised:
        error = raised
        if request.version < _GROUP_ERROR_VERSION:
            found = _offsets({}, wanted.topics or (), frozenset())
            topics = _topics(found, error)
    response = OffsetFetchResponse(topics=topics, error_code=code_of(error))
    return response


async def _groups(context: GroupContext, wanted: OffsetFetchRequest) -> OffsetFetchResponse:
    groups = []
    for group in {group.group_id: group for group in wanted.groups}.values():
        topics: list[object] = []
        error: BrokerResponseError | None = None
        try:
            context.groups.check_may_fetch_offsets(
                group.group_id, group.member_id, group.member_epoch
            )
            topics = [
                _GROUP_TOPIC(
                    name=name,
                    partitions=[
                        _GROUP_TOPIC.OffsetFetchResponsePartitions(**_fields(*item))
                        for item in parts.items()
                    ],
                )
                for name, parts in (await _found(context, wanted, group)).items()
            ]
        except BrokerResponseError as raised:
            error = raised
        groups.append(_GROUP(group_id=group.group_id, topics=topics, error_code=code_of(error)))
    return OffsetFetchResponse(groups=groups)


async def _found(context: GroupContext, wanted: OffsetFetchRequest, group: Any) -> _Offsets:
    """What one group has committed, once no other coordinator could tell otherwise; `group` has its
    id and the topics asked for."""
    committed = context.groups.committed(group.group_id)
    unstable: AbstractSet[TopicPartition] = frozenset()
    if wanted.require_stable:
        unstable = context.groups.unstable(group.group_id)
    found = _offsets(committed, group.topics, unstable)
    await context.offsets_topic.wait_committed(group.group_id)
    return found


def _offsets(
    committed: _Committed, asked: Iterable[Any] | None, unstable: AbstractSet[TopicPartition]
) -> _Offsets:
    """The offsets of what is asked for, or of everything; -1 where there is none."""
    by_topic: _Offsets = {}
    if asked is None:
        for topic_partition, found in committed.items():
            parts = by_topic.setdefault(topic_partition.topic, {})
            parts[topic_partition.partition] = None if topic_partition in unstable else found
        return by_topic
    for topic in asked:
        name = topic.name
        parts = by_topic.setdefault(name, {})
        for index in topic.partition_indexes:
            topic_partition = TopicPartition(name, index)
            parts[index] = (
                None if topic_partition in unstable else committed.get(topic_partition, _NOTHING)
            )
    return by_topic


def _topics(offsets: _Offsets, error: BrokerResponseError | None = None) -> list[object]:
    return [
        _TOPIC(
            name=name,
            partitions=[
                _TOPIC.OffsetFetchResponsePartition(**_fields(index, found, error))
                for index, found in parts.items()
            ],
        )
        for name, parts in offsets.items()
    ]


def _fields(
    index: int, found: CommittedOffset | None, error: BrokerResponseError | None = None
) -> dict[str, object]:
    if found is None:
        found, error = _NOTHING, UnstableOffsetCommitError()
    return {
        "partition_index": index,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": code_of(error),
    }


API = Api(key=9, min_version=0, max_version=9, handle=handle, context=GroupContext)
