"""DeleteRecords (key 21), versions 0-2: moves the start of logs; what lies below is not read again.

An offset of -1 means everything up to the high watermark. The new starts are on disk, in
`log-start-offset-checkpoint`, before the answer; the files go with the next retention pass. A start
never moves back. The answer comes when every replica that is there begins above, at the latest
after the request's timeout; it tells the low watermark, below which nobody has anything. Internal
topics are INVALID_TOPIC_EXCEPTION.
"""

import asyncio
from collections.abc import Mapping

from kafka.errors import BrokerResponseError, InvalidTopicError
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.metadata import INTERNAL_TOPICS
from broker.replica.delayed import DelayedDeleteRecords
from broker.replica.later import when_done
from broker.replica.partition import Partition

_TOPIC = DeleteRecordsResponse.DeleteRecordsTopicResult
_PARTITION = _TOPIC.DeleteRecordsPartitionResult
_INVALID_LOW_WATERMARK = -1


async def handle(request: Request, context: RecordContext) -> Response:
    wanted = request.decode(DeleteRecordsRequest)
    offsets = {
        TopicPartition(topic.name, ask.partition_index): ask.offset
        for topic in wanted.topics or ()
        for ask in topic.partitions or ()
    }
    refused = {each: InvalidTopicError() for each in offsets if each.topic in INTERNAL_TOPICS}
    others = {each: offset for each, offset in offsets.items() if each not in refused}
    starts = {**refused, **context.replicas.log_starts_for(others)}
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
    outcomes.update(await _low_watermarks(moved, wanted.timeout_ms, context))
    by_topic: dict[str, list[object]] = {}
    for topic_partition, outcome in outcomes.items():
        by_topic.setdefault(topic_partition.topic, []).append(
            _answer(topic_partition.partition, outcome)
        )
    topics = [_TOPIC(name=name, partitions=answers) for name, answers in by_topic.items()]
    return DeleteRecordsResponse(topics=topics)


async def _low_watermarks(
    moved: Mapping[TopicPartition, int | BrokerResponseError],
    timeout_ms: int,
    context: RecordContext,
) -> Mapping[TopicPartition, int | BrokerResponseError]:
    """Of logs that begin where they should, when their followers' do, too."""
    starts: dict[TopicPartition, tuple[Partition, int]] = {}
    outcomes: dict[TopicPartition, int | BrokerResponseError] = {}
    for topic_partition, start in moved.items():
        try:
            if isinstance(start, int):
                starts[topic_partition] = (context.replicas.partition(topic_partition), start)
        except BrokerResponseError as error:
            outcomes[topic_partition] = error
    deletion = DelayedDeleteRecords(starts)
    wait_ms = context.longest_wait_ms(max(0, timeout_ms))
    await when_done(context.replicas, deletion, wait_ms, lambda: None)
    return {**outcomes, **deletion.outcomes}


def _answer(partition: int, outcome: int | BrokerResponseError) -> object:
    error = None if isinstance(outcome, int) else outcome
    return _PARTITION(
        partition_index=partition,
        low_watermark=outcome if isinstance(outcome, int) else _INVALID_LOW_WATERMARK,
        error_code=code_of(error),
    )


API = Api(key=21, min_version=0, max_version=2, handle=handle, context=RecordContext)
