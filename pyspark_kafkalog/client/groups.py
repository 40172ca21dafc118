"""Lists, describes and deletes consumer groups, of the classic and of the consumer protocol.

Each broker lists the groups that it coordinates (ListGroups); what a group is made of and whether
it may go, its coordinator says. A group is asked for as one of the consumer protocol first
(ConsumerGroupDescribe, KIP-848), then as a classic one (DescribeGroups): a broker that has no such
API, does not allow it, or has no such group, says so. `client.group` has the offsets.

Functions of a Cluster; errors that pass are waited out within `request.timeout.ms`. Blocking; one
thread at a time. Never joins a group.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka.errors import (
    GroupIdNotFoundError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaTimeoutError,
    NoError,
    NonEmptyGroupError,
    UnsupportedVersionError,
    for_code,
)
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster, refusal
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.errors import UnknownGroupError
from pyspark_kafkalog.protocol.consumer_groups import ConsumerGroupDescribeRequest

CLASSIC = "classic"
CONSUMER = "consumer"

_LIST_MAX_VERSION = 5
_DESCRIBE_MAX_VERSION = 6
_DESCRIBE_CONSUMER_MAX_VERSION = 1
_DELETE_MAX_VERSION = 2
_DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it; texts are empty where brokers are too old to say."""

    name: str
    kind: str
    """classic, consumer, share or streams (since Kafka 3.8)."""
    protocol_type: str
    """`consumer` of groups that read topics; Kafka Connect's, for example, is `connect`."""
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member, and the partitions that are its own now."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator, at (host, port), describes it."""

    name: str
    kind: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: tuple[str, int]
    members: tuple[GroupMember, ...]


def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """All groups of all brokers, by name."""

    def ask(deadline: Deadline) -> list[ListedGroup]:
        return [
            group for server in cluster.brokers() for group in _listed(cluster, server, deadline)
        ]

    return _by_name(cluster.retrying(ask, Deadline(cluster.config.request_timeout_ms)))


def list_groups_of(cluster: Cluster, server: tuple[str, int]) -> list[ListedGroup]:
    """Those that the broker at (host, port) coordinates, by name."""
    deadline = Deadline(cluster.config.request_timeout_ms)
    return _by_name(cluster.retrying(lambda within: _listed(cluster, server, within), deadline))


def describe_group(cluster: Cluster, name: str) -> GroupDescription:
    """Raises UnknownGroupError, also for a group of another kind (share, streams)."""

    def ask(deadline: Deadline) -> GroupDescription:
        connection = cluster.coordinator(name, deadline)
        return _described_as_consumer(connection, name, deadline) or _described_as_classic(
            connection, name, deadline
        )

    return cluster.retrying(ask, Deadline(cluster.config.request_timeout_ms))


def delete_groups(cluster: Cluster, names: Iterable[str]) -> None:
    """Deletes groups and their offsets, one after the other.

    Raises UnknownGroupError, and NonEmptyGroupError for one that has members.
    """
    for name in names:
        _delete(cluster, name)


def _listed(cluster: Cluster, server: tuple[str, int], deadline: Deadline) -> list[ListedGroup]:
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    try:
        connection = cluster.connection_to(server, deadline)
        answer = connection.call(request, cluster.attempt(deadline), _LIST_MAX_VERSION)
    except (KafkaConnectionError, KafkaTimeoutError):
        cluster.distrust()  # it may be a broker no more
        raise
    _check(answer.error_code, "list of groups")
    return [
        ListedGroup(
            group.group_id,
            (group.group_type or "").lower(),
            group.protocol_type,
            group.group_state or "",
        )
        for group in answer.groups
    ]


def _by_name(groups: Iterable[ListedGroup]) -> list[ListedGroup]:
    found = {group.name: group for group in groups}
    return [found[name] for name in sorted(found)]


def _delete(cluster: Cluster, name: str) -> None:
    is_lost = False

    def delete(deadline: Deadline) -> None:
        nonlocal is_lost
        connection = cluster.coordinator(name, deadline)
        request = DeleteGroupsRequest(groups_names=[name])
        try:
            answer = connection.call(request, deadline, _DELETE_MAX_VERSION)
        except (KafkaConnectionError, KafkaTimeoutError):
            is_lost = True
            raise
        error = for_code(answer.results[0].error_code)
        if error is GroupIdNotFoundError:
            # It is perhaps an attempt whose answer was lost that deleted it.
            if is_lost:
                return
            raise _unknown(name)
        if error is NonEmptyGroupError:
            raise error(f"Group {name} has members: stop them first.")
        _check(error.errno, f"group {name}")

    cluster.retrying(delete, Deadline(cluster.config.request_timeout_ms))


def _described_as_consumer(
    connection: Connection, name: str, deadline: Deadline
) -> GroupDescription | None:
    request = ConsumerGroupDescribeRequest(group_ids=[name], include_authorized_operations=False)
    try:
        answer = connection.call(request, deadline, _DESCRIBE_CONSUMER_MAX_VERSION)
    except IncompatibleBrokerVersion:
        return None
    group = answer.groups[0]
    error = for_code(group.error_code)
    if error in (GroupIdNotFoundError, UnsupportedVersionError):
        return None
    _check(group.error_code, f"group {name}")
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(
                TopicPartition(topic.topic_name, partition)
                for topic in member.assignment.topic_partitions
                for partition in sorted(topic.partitions)
            ),
        )
        for member in group.members
    )
    return GroupDescription(
        name,
        CONSUMER,
        CONSUMER,
        group.group_state,
        group.assignor_name,
        (connection.host, connection.port),
        members,
    )


def _described_as_classic(
    connection: Connection, name: str, deadline: Deadline
) -> GroupDescription:
    request = DescribeGroupsRequest(groups=[name], include_authorized_operations=False)
    group = connection.call(request, deadline, _DESCRIBE_MAX_VERSION).groups[0]
    # Before version 6 a group that is not there is dead.
    if for_code(group.error_code) is GroupIdNotFoundError or group.group_state == _DEAD:
        raise _unknown(name)
    _check(group.error_code, f"group {name}")
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assigned(group.protocol_type, member.member_assignment),
        )
        for member in group.members
    )
    return GroupDescription(
        name,
        CLASSIC,
        group.protocol_type,
        group.group_state,
        group.protocol_data,
        (connection.host, connection.port),
        members,
    )


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """What a member's leader gave it; nothing where that is written in a way of others."""
    if protocol_type != CONSUMER or not assignment:
        return ()
    try:
        decoded: Any = ConsumerProtocolAssignment.decode(assignment)
        return tuple(
            TopicPartition(topic.topic, partition)
            for topic in decoded.assigned_partitions
            for partition in sorted(topic.partitions)
            if topic.topic is not None
        )
    except (struct.error, IndexError, ValueError, TypeError):
        return ()


def _unknown(name: str) -> UnknownGroupError:
    return UnknownGroupError(f"Group {name} does not exist. Check its name.")


def _check(error_code: int, what: str) -> None:
    error = for_code(error_code)
    if error is not NoError:
        raise refusal(error, what)
