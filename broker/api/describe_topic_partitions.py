"""DescribeTopicPartitions (key 75), versions 0-0: topics by name, page by page (KIP-966).

A page ends after `response_partition_limit` partitions (at least 1, at most
`max.request.partition.size.limit`); the answer's cursor says where the next one begins.
"""

from collections.abc import Iterable

from kafka.errors import BrokerResponseError, InvalidRequestError, UnknownTopicOrPartitionError
from kafka.protocol.admin import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

from broker.api.contexts import MetadataContext
from broker.api.errors import code_of
from broker.api.metadata import TOPIC_OPERATIONS
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.api.topic_names import check_topic_name
from broker.cluster.cache import MetadataCache
from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import INTERNAL_TOPICS, TopicMetadata

_TOPIC = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_PARTITION = _TOPIC.DescribeTopicPartitionsResponsePartition
# Here kafka-python takes the number as it travels: one bit for each operation.
_OPERATIONS = sum(1 << operation for operation in TOPIC_OPERATIONS)
_NO_OPERATIONS = -(2**31)
_CURSOR = DescribeTopicPartitionsResponse.Cursor


def handle(request: Request, context: MetadataContext) -> Response:
    wanted = request.decode(DescribeTopicPartitionsRequest)
    asked = {topic.name for topic in wanted.topics or ()}
    cursor = wanted.cursor
    is_stray = cursor is not None and bool(asked) and cursor.topic_name not in asked
    if is_stray or (cursor is not None and cursor.partition_index < 0):
        refused = [_failed(name, InvalidRequestError()) for name in sorted(asked)]
        return _answer(request, refused, None)
    names = asked or {topic.name for topic in context.metadata.topics()}
    first = "" if cursor is None else cursor.topic_name
    start = 0 if cursor is None else cursor.partition_index
    most = context.config.max_request_partition_size_limit
    topics: list[object] = []
    left = max(1, min(most, wanted.response_partition_limit))
    for name in sorted(name for name in names if name >= first):
        if left <= 0:
            return _answer(request, topics, _CURSOR(topic_name=name, partition_index=0))
        topic = context.metadata.topic(name)
        if topic is None:
            if asked:
                topics.append(_unknown(name))
            continue
        begin = start if name == first else 0
        end = min(begin + left, len(topic.partitions))
        topics.append(_described(topic, range(begin, end), context.metadata))
        if end < len(topic.partitions):
            return _answer(request, topics, _CURSOR(topic_name=name, partition_index=end))
        left -= max(0, end - begin)
    return _answer(request, topics, None)


def _described(topic: TopicMetadata, indexes: Iterable[int], metadata: MetadataCache) -> object:
    return _TOPIC(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _PARTITION(
                error_code=0,
                partition_index=index,
                leader_id=partition.leader if partition.leader in metadata.live else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=metadata.offline_replicas(partition),
            )
            for index in indexes
            for partition in (topic.partitions[index],)
        ],
        topic_authorized_operations=_OPERATIONS,
    )


def _unknown(name: str) -> object:
    try:
        check_topic_name(name)
    except BrokerResponseError as error:
        return _failed(name, error, _OPERATIONS)
    return _failed(name, UnknownTopicOrPartitionError(), _OPERATIONS)


def _failed(name: str, error: BrokerResponseError, operations: int = _NO_OPERATIONS) -> object:
    return _TOPIC(
        error_code=code_of(error),
        name=name,
        topic_id=None,
        is_internal=False,
        partitions=[],
        topic_authorized_operations=operations,
    )


def _answer(request: Request, topics: list[object], cursor: object | None) -> Response:
    response = DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return response


API = Api(key=75, min_version=0, max_version=0, handle=handle, context=MetadataContext)
