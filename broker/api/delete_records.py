"""DeleteRecords (key 21), versions 0-2: moves the start of logs; what lies below is not read again.

An offset of -1 means everything up to the high watermark. The new starts are on disk, in
`log-start-offset-checkpoint`, before the answer; the files go with the next retention pass. A start
never moves back. Left out: the request's timeout (there is no follower to wait for).
"""

import asyncio

from kafka.errors import BrokerResponseError
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from kafka.structs import TopicPartition

from broker.api.errors import code_of
from broker.api.request import Api, ApiContext, Request
from broker.api.response import Response

_TOPIC = DeleteRecordsResponse.DeleteRecordsTopicResult
_PARTITION = _TOPIC.DeleteRecordsPartitionResult
_INVALID_LOW_WATERMARK = -1


async def handle(request: Request, context: ApiContext) -> Response:
    wanted = request.decode(DeleteRecordsRequest)
    offsets = {
        TopicPartition(topic.name, ask.partition_index): ask.offset
        for topic in wanted.topics or ()
        for ask in topic.partitions or ()
    }
    starts = context.replicas.log_starts_for(offsets)
    movable = {
        topic_partition: start
        for topic_partition, start in starts.items()
        if isinstance(start, int)
    }
    move = context.replicas.move_log_starts
    moved = await asyncio.get_running_loop().run_in_executor(None, move, movable)
    outcomes = {**starts, **moved}
    for topic_partition in moved:
        context.replicas.log_start_moved(topic_partition)
    by_topic: dict[str, list[object]] = {}
    for topic_partition, outcome in outcomes.items():
        by_topic.setdefault(topic_partition.topic, []).append(
            _answer(topic_partition.partition, outcome)
        )
    topics = [_TOPIC(name=name, partitions=answers) for name, answers in by_topic.items()]
    return DeleteRecordsResponse(topics=topics)


def _answer(partition: int, outcome: int | BrokerResponseError) -> object:
    error = None if isinstance(outcome, int) else outcome
    return _PARTITION(
        partition_index=partition,
        low_watermark=outcome if isinstance(outcome, int) else _INVALID_LOW_WATERMARK,
        error_code=code_of(error),
    )


API = Api(key=21, min_version=0, max_version=2, handle=handle)
