"""ListOffsets (key 2), versions 0-11: the offset for a timestamp, the earliest, the latest.

Special timestamps: -1 latest (the last stable offset for read_committed), -2 earliest, -3 the
record with the largest timestamp (version 7), -4 earliest local (version 8, the same as earliest:
there is no remote tier), -5 latest tiered (version 9) and -6 earliest to be uploaded (version 11),
of which there is none. Version 0 asks for offsets at which segments begin: it is answered with
the one that later versions would give, and for the latest also with the log's start.
Left out: the timeout of version 10, for reads of a remote tier.
"""

import functools
from collections import Counter

from kafka.errors import (
    BrokerResponseError,
    InvalidRequestError,
    LeaderNotAvailableError,
    OffsetNotAvailableError,
    UnsupportedVersionError,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Outcome, Response
from broker.replica.partition import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Isolation,
    OffsetFound,
)

_TOPIC = ListOffsetsResponse.ListOffsetsTopicResponse
_PARTITION = _TOPIC.ListOffsetsPartitionResponse
_NOT_FOUND = OffsetFound(-1, -1, -1)
# The first version that knows OFFSET_NOT_AVAILABLE (KIP-207).
_NOT_AVAILABLE_VERSION = 5
_SINCE_VERSION = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def handle(request: Request, context: RecordContext) -> Outcome:
    wanted = request.decode(ListOffsetsRequest)
    asked = [ask.timestamp for topic in wanted.topics or () for ask in topic.partitions or ()]
    if all(timestamp < 0 and timestamp != MAX_TIMESTAMP for timestamp in asked):
        return _answer_all(request, context, wanted)
    return _search(request, context, wanted)


async def _search(request: Request, context: RecordContext, wanted: ListOffsetsRequest) -> Response:
    """Batches are opened and searched, which may be long work: not on the event loop."""
    return await context.convert(functools.partial(_answer_all, request, context, wanted))


def _answer_all(request: Request, context: RecordContext, wanted: ListOffsetsRequest) -> Response:
    counts = Counter(
        (topic.name, ask.partition_index)
        for topic in wanted.topics or ()
        for ask in topic.partitions or ()
    )
    is_follower = wanted.replica_id >= 0
    isolation = Isolation.LOG_END if is_follower else Isolation.of(wanted.isolation_level)
    topics = []
    for topic in wanted.topics or ():
        partitions = []
        for ask in topic.partitions or ():
            duplicate = counts[topic.name, ask.partition_index] > 1
            partitions.append(
                _answer(
                    request,
                    context,
                    TopicPartition(topic.name, ask.partition_index),
                    ask,
                    isolation,
                    duplicate,
                )
            )
        topics.append(_TOPIC(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


def _answer(
    request: Request,
    context: RecordContext,
    topic_partition: TopicPartition,
    ask: "ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition",
    isolation: Isolation,
    duplicate: bool,
) -> object:
    found = _NOT_FOUND
    old_style_offsets: list[int] = []
    error: BrokerResponseError | None = None
    try:
        if duplicate:
            raise InvalidRequestError()
        if ask.timestamp < 0 and request.version < _SINCE_VERSION.get(ask.timestamp, 99):
            raise UnsupportedVersionError()
        found = (
            context.replicas.find_offset(
                topic_partition, ask.timestamp, isolation, ask.current_leader_epoch
            )
            or _NOT_FOUND
        )
        if request.version == 0:
            old_style_offsets = _old_style(context, topic_partition, ask, found)
    except OffsetNotAvailableError as raised:
        is_known = request.version >= _NOT_AVAILABLE_VERSION
        error = raised if is_known else LeaderNotAvailableError()
    except BrokerResponseError as raised:
        error = raised
    return _PARTITION(
        partition_index=topic_partition.partition,
        error_code=code_of(error),
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
        old_style_offsets=old_style_offsets,
    )


def _old_style(
    context: RecordContext,
    topic_partition: TopicPartition,
    ask: "ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition",
    found: OffsetFound,
) -> list[int]:
    """Version 0: offsets in descending order, at most as many as asked for."""
    offsets = [found.offset] if found.offset >= 0 else []
    if ask.timestamp == LATEST:
        start = context.replicas.partition(topic_partition).log.log_start_offset
        if start not in offsets:
            offsets.append(start)
    return offsets[: max(ask.max_num_offsets, 0)]


API = Api(key=2, min_version=0, max_version=11, handle=handle, context=RecordContext)
