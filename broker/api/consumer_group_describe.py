"""ConsumerGroupDescribe (key 69), versions 0-1: groups of the consumer protocol (KIP-848).

Each member with what it may own, what it has still to give up counted in, and with its target.
Version 1 says by which protocol a member speaks (KIP-1099). A group that is named repeatedly is
answered once; a topic that is gone is left out of assignments.
"""

from collections.abc import Iterable
from typing import Any

from kafka.errors import BrokerResponseError

from broker.api.contexts import GroupContext
from broker.api.describe_groups import GROUP_OPERATIONS
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.consumer_group import ConsumerGroup, ConsumerMember
from broker.coordinator.consumer_group_records import TopicIdPartition, by_topic
from pyspark_kafkalog.protocol.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

_GROUP = ConsumerGroupDescribeResponse.DescribedGroup
_MEMBER = _GROUP.Member
_ASSIGNMENT = _MEMBER.Assignment
_CONSUMER_MEMBER = 1
_OPERATIONS = sum(1 << operation for operation in GROUP_OPERATIONS)
_NO_OPERATIONS = -(2**31)


def handle(request: Request, context: GroupContext) -> Response:
    wanted = request.decode(ConsumerGroupDescribeRequest)
    operations = _OPERATIONS if wanted.include_authorized_operations else _NO_OPERATIONS
    described = []
    for group_id in dict.fromkeys(wanted.group_ids):
        try:
            group = context.consumer_groups.group(group_id)
        except BrokerResponseError as error:
            described.append(_absent(group_id, error))
        else:
            described.append(_described(group, context, operations))
    return ConsumerGroupDescribeResponse(groups=described)


def _described(group: ConsumerGroup, context: GroupContext, operations: int) -> Any:
    return _GROUP(
        error_code=0,
        error_message=None,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor_name(context.consumer_groups.default_assignor),
        members=[_member(group, member, context) for member in group.members.values()],
        authorized_operations=operations,
    )


def _member(group: ConsumerGroup, member: ConsumerMember, context: GroupContext) -> Any:
    subscription, current = member.subscription, member.current
    target = group.targets.get(member.member_id, ())
    return _MEMBER(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=current.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topics),
        subscribed_topic_regex=subscription.regex,
        assignment=_assignment([*current.assigned, *current.revoking], context),
        target_assignment=_assignment(target, context),
        member_type=_CONSUMER_MEMBER,
    )


def _assignment(partitions: Iterable[TopicIdPartition], context: GroupContext) -> Any:
    topics = []
    for topic_id, numbers in by_topic(partitions).items():
        topic = context.metadata.topic_by_id(topic_id)
        if topic is not None:
            topics.append(
                _ASSIGNMENT.TopicPartitions(
                    topic_id=topic_id, topic_name=topic.name, partitions=sorted(numbers)
                )
            )
    return _ASSIGNMENT(topic_partitions=topics)


def _absent(group_id: str, error: BrokerResponseError) -> Any:
    code, message = wire_error(error)
    return _GROUP(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
        authorized_operations=_NO_OPERATIONS,
    )


API = Api(key=69, min_version=0, max_version=1, handle=handle, context=GroupContext)
