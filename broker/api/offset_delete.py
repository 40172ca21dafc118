"""OffsetDelete (key 47), versions 0-0: forgets what a group has committed and no member reads.

Partitions that do not exist are refused one by one, and so are topics that members subscribe to.
"""

from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError
from kafka.protocol.consumer import OffsetDeleteRequest, OffsetDeleteResponse
from kafka.structs import TopicPartition

from broker.api.contexts import GroupContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response


async def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(OffsetDeleteRequest)
    group_id = wanted.group_id
    errors: dict[TopicPartition, BrokerResponseError | None] = {}
    for topic in wanted.topics:
        for part in topic.partitions:
            topic_partition = TopicPartition(topic.name, part.partition_index)
            is_known = _exists(topic_partition, context)
            errors[topic_partition] = None if is_known else UnknownTopicOrPartitionError()
    known = [each for each, error in errors.items() if error is None]
    try:
        errors |= dict(zip(known, context.groups.delete_offsets(group_id, known), strict=True))
        await context.offsets_topic.wait_committed(group_id)
    except BrokerResponseError as error:
        code = code_of(error)
        return OffsetDeleteResponse(error_code=code, topics=[])
    return _answer(errors, request)


def _exists(topic_partition: TopicPartition, context: GroupContext) -> bool:
    topic = context.metadata.topic(topic_partition.topic)
    return topic is not None and 0 <= topic_partition.partition < len(topic.partitions)


def _answer(errors: dict[TopicPartition, BrokerResponseError | None], request: Request) -> Response:
    topic_class = OffsetDeleteResponse.OffsetDeleteResponseTopic
    topics: dict[str, list[object]] = {}
    for topic_partition, error in errors.items():
        topics.setdefault(topic_partition.topic, []).append(
            topic_class.OffsetDeleteResponsePartition(
                partition_index=topic_partition.partition, error_code=code_of(error)
            )
        )
    response = OffsetDeleteResponse(
        error_code=0,
        topics=[topic_class(name=name, partitions=parts) for name, parts in topics.items()],
    )
    return response


API = Api(key=47, min_version=0, max_version=0, handle=handle, context=GroupContext)
