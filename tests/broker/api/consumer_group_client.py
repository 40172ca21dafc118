"""Members of the consumer protocol (KIP-848), by single requests: what clients do inside."""

import uuid
from collections.abc import Collection, Mapping
from typing import Any

from pyspark_kafkalog.protocol.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.support.broker_child import RawClient
from tests.support.patience import wait_for

LEAVE, LEAVE_FOR_A_WHILE = -1, -2
Assignment = dict[uuid.UUID, list[int]]
_PARTITIONS = ConsumerGroupHeartbeatRequest.TopicPartitions


class ConsumerMember:
    """One member; epoch and assignment as the coordinator last said."""

    def __init__(self, client: RawClient, group_id: str, instance_id: str | None = None) -> None:
        self.client = client
        self.group_id = group_id
        self.instance_id = instance_id
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.assigned: Assignment = {}

    def ask(self, version: int = 1, **fields: Any) -> Any:
        """A heartbeat of exactly these fields, and its answer."""
        known = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout_ms": -1,
            "topic_partitions": None,
        }
        if (owned := fields.pop("owned", None)) is not None:
            fields["topic_partitions"] = partitions_of(owned)
        request = ConsumerGroupHeartbeatRequest(**known | fields)
        answer = self.client.call(request, ConsumerGroupHeartbeatResponse, version)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            self.member_id = answer.member_id
            if answer.assignment is not None:
                self.assigned = {
                    each.topic_id: sorted(each.partitions)
                    for each in answer.assignment.topic_partitions
                }
        return answer

    def join(self, topics: Collection[str] | None = (), **fields: Any) -> Any:
        self.epoch = 0
        self.assigned = {}
        wanted: dict[str, Any] = {
            "rebalance_timeout_ms": 30_000,
            "owned": {},
            "subscribed_topic_names": None if topics is None else list(topics),
        }
        return self.ask(**wanted | fields)

    def beat(self, **fields: Any) -> Any:
        """Tells what it owns: everything that it was assigned."""
        return self.ask(**{"owned": self.assigned} | fields)

    def leave(self, epoch: int = LEAVE) -> Any:
        return self.ask(member_epoch=epoch)

    def count(self) -> int:
        return sum(len(partitions) for partitions in self.assigned.values())

    def describe(self, version: int = 1) -> Any:
        request = ConsumerGroupDescribeRequest(
            group_ids=[self.group_id], include_authorized_operations=False
        )
        (group,) = self.client.call(request, ConsumerGroupDescribeResponse, version).groups
        return group


def partitions_of(owned: Mapping[uuid.UUID, Collection[int]]) -> list[Any]:
    return [
        _PARTITIONS(topic_id=topic_id, partitions=list(partitions))
        for topic_id, partitions in owned.items()
    ]


def settle(*members: ConsumerMember, timeout_s: float = 20) -> None:
    """Heartbeats of all, until the group is stable."""

    def beat() -> Any:
        for member in members:
            answer = member.beat()
            assert answer.error_code == 0, answer
        return members[0].describe()

    wait_for(beat, lambda group: group.group_state == "Stable", timeout_s)
