"""OffsetFetch (key 9), versions 0-9: up to where groups have read.

Since version 2 all topics may be asked for (null), since 8 several groups. What is asked for twice
is answered once: an answer grows with what is stored, not with a request's repetitions. There are
no offsets of open transactions yet, so every offset is stable (version 7's RequireStable). Left
out: version 10 (topic ids); the member's epoch of version 9, which is KIP-848's.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.errors import BrokerResponseError
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse
from kafka.structs import TopicPartition

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Request, encoded
from broker.coordinator.offset_records import NO_EPOCH, CommittedOffset

_GROUP_ERROR_VERSION = 2
_GROUPS_VERSION = 8
_NOTHING = CommittedOffset(-1, NO_EPOCH, "", -1)
_TOPIC = OffsetFetchResponse.OffsetFetchResponseTopic
_GROUP = OffsetFetchResponse.OffsetFetchResponseGroup
_GROUP_TOPIC = _GROUP.OffsetFetchResponseTopics

_Committed = Mapping[TopicPartition, CommittedOffset]
# By topic, in the order asked for.
_Offsets = dict[str, dict[int, CommittedOffset]]


async def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(OffsetFetchRequest)
    if request.version >= _GROUPS_VERSION:
        return encoded(_groups(context, wanted), request)
    topics: list[object] = []
    error: BrokerResponseError | None = None
    try:
        if request.version == 0:  # its clients look for no coordinator
            await context.offsets_topic.ensure()
        committed = context.groups.committed(wanted.group_id)
        topics = _topics(_offsets(committed, wanted.topics), None)
    except BrokerResponseError as raised:
        error = raised
        if request.version < _GROUP_ERROR_VERSION:
            topics = _topics(_offsets({}, wanted.topics or ()), error)
    response = OffsetFetchResponse(
        throttle_time_ms=0, topics=topics, error_code=wire_error(error)[0]
    )
    return encoded(response, request)


def _groups(context: ApiContext, wanted: OffsetFetchRequest) -> OffsetFetchResponse:
    groups = []
    for group in {group.group_id: group for group in wanted.groups}.values():
        topics: list[object] = []
        error: BrokerResponseError | None = None
        try:
            committed = context.groups.committed(group.group_id)
            topics = [
                _GROUP_TOPIC(
                    name=name,
                    partitions=[
                        _GROUP_TOPIC.OffsetFetchResponsePartitions(**_fields(*item))
                        for item in parts.items()
                    ],
                )
                for name, parts in _offsets(committed, group.topics).items()
            ]
        except BrokerResponseError as raised:
            error = raised
        groups.append(
            _GROUP(group_id=group.group_id, topics=topics, error_code=wire_error(error)[0])
        )
    return OffsetFetchResponse(throttle_time_ms=0, groups=groups)


def _offsets(committed: _Committed, asked: Iterable[Any] | None) -> _Offsets:
    """The offsets of what is asked for, or of everything; -1 where there is none."""
    by_topic: _Offsets = {}
    if asked is None:
        for place, found in committed.items():
            by_topic.setdefault(place.topic, {})[place.partition] = found
        return by_topic
    for topic in asked:
        name = topic.name
        parts = by_topic.setdefault(name, {})
        for index in topic.partition_indexes:
            parts[index] = committed.get(TopicPartition(name, index), _NOTHING)
    return by_topic


def _topics(offsets: _Offsets, error: BrokerResponseError | None) -> list[object]:
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
    index: int, found: CommittedOffset, error: BrokerResponseError | None = None
) -> dict[str, object]:
    return {
        "partition_index": index,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": wire_error(error)[0],
    }


API = Api(key=9, min_version=0, max_version=9, handle=handle)
