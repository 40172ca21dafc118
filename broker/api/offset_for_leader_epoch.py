"""OffsetForLeaderEpoch (key 23), versions 0-4: where a leader's epoch ends in the log (KIP-101).

Consumers ask after a change of leaders, whether what they have read is still there (KIP-320). An
epoch that is not known is answered with -1 and no error, as in Apache Kafka.
"""

from kafka.errors import BrokerResponseError
from kafka.protocol.consumer import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.log.leader_epoch import UNDEFINED_EPOCH, UNDEFINED_OFFSET

_TOPIC = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_PARTITION = _TOPIC.EpochEndOffset


def handle(request: Request, context: RecordContext) -> Response:
    wanted = request.decode(OffsetForLeaderEpochRequest)
    topics = [
        _TOPIC(
            topic=topic.topic,
            partitions=[_answer(topic.topic, ask, context) for ask in topic.partitions or ()],
        )
        for topic in wanted.topics or ()
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(
    topic: str,
    ask: "OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition",
    context: RecordContext,
) -> object:
    epoch, end_offset = UNDEFINED_EPOCH, UNDEFINED_OFFSET
    error: BrokerResponseError | None = None
    try:
        epoch, end_offset = context.replicas.end_offset_for_epoch(
            TopicPartition(topic, ask.partition), ask.leader_epoch, ask.current_leader_epoch
        )
    except BrokerResponseError as raised:
        error = raised
    return _PARTITION(
        error_code=code_of(error),
        partition=ask.partition,
        leader_epoch=epoch,
        end_offset=end_offset,
    )


API = Api(key=23, min_version=0, max_version=4, handle=handle, context=RecordContext)
