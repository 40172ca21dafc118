"""ConsumerGroupHeartbeat (key 68), versions 0-1: all that a member of the consumer protocol says.

It joins (epoch 0), stays, or leaves (-1; -2 a static member that will come back), and is told its
epoch and, where that is news, what it may own (KIP-848). Version 1 adds expressions, and members
make their ids themselves (KIP-1082). Answered when what was decided is on disk, where
flush.messages asks for that. Refused where group.version is not finalized.
"""

from typing import Any

from kafka.errors import BrokerResponseError, UnsupportedVersionError

from broker.api.api_versions import GROUP_VERSION
from broker.api.contexts import GroupContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.consumer_group_records import TopicIdPartition, by_topic
from broker.coordinator.consumer_groups import HeartbeatAnswer, HeartbeatAsk
from pyspark_kafkalog.protocol.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_ASSIGNMENT = ConsumerGroupHeartbeatResponse.Assignment


async def handle(request: Request, context: GroupContext) -> Response:
    ask = _ask(request)
    try:
        if GROUP_VERSION not in context.features:
            raise UnsupportedVersionError("The consumer group protocol is not enabled.")
        answer = context.consumer_groups.heartbeat(ask)
        await context.offsets_topic.wait_committed(ask.group_id)
    except BrokerResponseError as error:
        code, message = wire_error(error)
        response = ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)
        return response
    return _response(answer)


def _ask(request: Request) -> HeartbeatAsk:
    wanted, caller = request.decode(ConsumerGroupHeartbeatRequest), request.caller
    owned = None
    if wanted.topic_partitions is not None:
        owned = frozenset(
            TopicIdPartition(topic.topic_id, partition)
            for topic in wanted.topic_partitions
            for partition in topic.partitions
        )
    return HeartbeatAsk(
        group_id=wanted.group_id,
        member_id=wanted.member_id,
        epoch=wanted.member_epoch,
        client_id=caller.client_id,
        client_host=caller.host,
        instance_id=wanted.instance_id,
        rack_id=wanted.rack_id,
        rebalance_timeout_ms=wanted.rebalance_timeout_ms,
        topics=wanted.subscribed_topic_names,
        regex=wanted.subscribed_topic_regex,
        assignor=wanted.server_assignor,
        owned=owned,
        version=request.version,
    )


def _response(answer: HeartbeatAnswer) -> Any:
    assignment = None
    if answer.assigned is not None:
        topics = [
            _ASSIGNMENT.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in by_topic(answer.assigned).items()
        ]
        assignment = _ASSIGNMENT(topic_partitions=topics)
    return ConsumerGroupHeartbeatResponse(
        error_code=0,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


API = Api(key=68, min_version=0, max_version=1, handle=handle, context=GroupContext)
