"""A group's requests, one by one and in any version: what clients do inside, done by hand."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from tests.support.broker_child import RawClient
from tests.support.patience import wait_for

MEMBER_ID_REQUIRED = 79
COORDINATOR_NOT_AVAILABLE = 15
COORDINATOR_LOAD_IN_PROGRESS = 14
NOT_COORDINATOR = 16
_COMMIT_TOPIC = OffsetCommitRequest.OffsetCommitRequestTopic
_FETCH_TOPIC = OffsetFetchRequest.OffsetFetchRequestTopic
_FETCH_GROUP = OffsetFetchRequest.OffsetFetchRequestGroup


class GroupClient:
    """One connection that speaks for a group; `member_id` and `generation` as last joined."""

    def __init__(self, client: RawClient, group_id: str) -> None:
        self.client = client
        self.group_id = group_id
        self.member_id = ""
        self.generation = -1

    def find_coordinator(self) -> None:
        """Until it is there; Apache Kafka makes the topic in the background."""

        def find() -> Any:
            request = FindCoordinatorRequest(key_type=0, key=self.group_id)
            found = self.client.call(request, FindCoordinatorResponse, 1)
            assert found.error_code in (COORDINATOR_NOT_AVAILABLE, 0), found
            return found

        wait_for(find, lambda found: not found.error_code and not self.list_error(), pause_s=0.05)

    def list_error(self) -> int:
        request = ListGroupsRequest(states_filter=[], types_filter=[])
        code: int = self.client.call(request, ListGroupsResponse, 5).error_code
        return code

    def begin_join(
        self,
        *,
        member_id: str | None = None,
        version: int = 9,
        instance_id: str | None = None,
        protocol_type: str = "consumer",
        protocols: Iterable[tuple[str, bytes]] = (("range", b"x"),),
        session_timeout_ms: int = 30_000,
        rebalance_timeout_ms: int = 30_000,
    ) -> Callable[[], Any]:
        """Sends a JoinGroup; calling what is returned waits for the answer."""
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in protocols
            ],
            reason=None,
        )
        self.client.send_body(11, version, bytes(request.encode(version=version)))

        def receive() -> Any:
            body = self.client.receive_body(11, version)
            joined = JoinGroupResponse.decode(body, version=version)
            if joined.error_code in (0, MEMBER_ID_REQUIRED):
                self.member_id = joined.member_id
                self.generation = joined.generation_id
            return joined

        return receive

    def join(self, **options: Any) -> Any:
        return self.begin_join(**options)()

    def joined(self, **options: Any) -> Any:
        """Joins, with the id that is given first where one is required."""
        answer = self.join(**options)
        if answer.error_code == MEMBER_ID_REQUIRED:
            answer = self.join(**options)
        assert answer.error_code == 0, answer
        return answer

    def begin_sync(
        self,
        assignments: Mapping[str, bytes] | None = None,
        *,
        version: int = 4,
        member_id: str | None = None,
        generation: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Callable[[], Any]:
        assignment_class = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                assignment_class(member_id=name, assignment=assignment)
                for name, assignment in (assignments or {}).items()
            ],
        )
        self.client.send_body(14, version, bytes(request.encode(version=version)))
        return lambda: SyncGroupResponse.decode(
            self.client.receive_body(14, version), version=version
        )

    def sync(self, assignments: Mapping[str, bytes] | None = None, **options: Any) -> Any:
        return self.begin_sync(assignments, **options)()

    def stable(self, **options: Any) -> Any:
        """Joins as the only member, and is assigned `b"mine"`."""
        joined = self.joined(**options)
        synced = self.sync({self.member_id: b"mine"}, instance_id=options.get("instance_id"))
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        return joined

    def heartbeat(
        self,
        *,
        member_id: str | None = None,
        generation: int | None = None,
        instance_id: str | None = None,
        version: int = 4,
    ) -> int:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation if generation is None else generation,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=instance_id,
        )
        code: int = self.client.call(request, HeartbeatResponse, version).error_code
        return code

    def leave(self, *identities: tuple[str, str | None], version: int = 5) -> Any:
        """The answer; `identities` (member id, instance id) default to this member."""
        identity_class = LeaveGroupRequest.MemberIdentity
        chosen = identities or ((self.member_id, None),)
        if version < 3:
            request = LeaveGroupRequest(group_id=self.group_id, member_id=chosen[0][0])
        else:
            request = LeaveGroupRequest(
                group_id=self.group_id,
                members=[
                    identity_class(member_id=member_id, group_instance_id=instance_id, reason=None)
                    for member_id, instance_id in chosen
                ],
            )
        return self.client.call(request, LeaveGroupResponse, version)

    def commit(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        metadata: str | None = "",
        leader_epoch: int = -1,
        member_id: str | None = None,
        generation: int | None = None,
        instance_id: str | None = None,
        retention_ms: int = -1,
        version: int = 8,
    ) -> dict[int, int]:
        """Error code by partition."""
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            topics=[
                _COMMIT_TOPIC(
                    name=topic,
                    partitions=[
                        _COMMIT_TOPIC.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=leader_epoch,
                            commit_timestamp=-1,
                            committed_metadata=metadata,
                        )
                        for partition, offset in offsets.items()
                    ],
                )
            ],
        )
        response = self.client.call(request, OffsetCommitResponse, version)
        return {
            part.partition_index: part.error_code
            for each in response.topics
            for part in each.partitions
        }

    def fetch_response(
        self, topics: Mapping[str, Iterable[int]] | None = None, *, version: int = 8
    ) -> Any:
        """The answer for this group: has `topics` and `error_code`."""
        asked = None
        if topics is not None:
            asked = [
                _FETCH_TOPIC(name=name, partition_indexes=list(indexes))
                for name, indexes in topics.items()
            ]
        if version < 8:
            request = OffsetFetchRequest(
                group_id=self.group_id, topics=asked, require_stable=version >= 7
            )
            return self.client.call(request, OffsetFetchResponse, version)
        group = _FETCH_GROUP(group_id=self.group_id, member_id=None, member_epoch=-1, topics=asked)
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        return self.client.call(request, OffsetFetchResponse, version).groups[0]

    def committed(
        self, topics: Mapping[str, Iterable[int]] | None = None, *, version: int = 8
    ) -> dict[tuple[str, int], tuple[int, str]]:
        """(offset, metadata) by (topic, partition)."""
        response = self.fetch_response(topics, version=version)
        assert response.error_code == 0, response
        return {
            (each.name, part.partition_index): (part.committed_offset, part.metadata)
            for each in response.topics
            for part in each.partitions
        }

    def delete_offsets(self, topic: str, partitions: Iterable[int]) -> Any:
        topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
        request = OffsetDeleteRequest(
            group_id=self.group_id,
            topics=[
                topic_class(
                    name=topic,
                    partitions=[
                        topic_class.OffsetDeleteRequestPartition(partition_index=index)
                        for index in partitions
                    ],
                )
            ],
        )
        return self.client.call(request, OffsetDeleteResponse, 0)

    def describe(self, *, version: int = 6, with_operations: bool = False) -> Any:
        request = DescribeGroupsRequest(
            groups=[self.group_id], include_authorized_operations=with_operations
        )
        return self.client.call(request, DescribeGroupsResponse, version).groups[0]

    def state(self) -> str:
        state: str = self.describe().group_state
        return state

    def listed(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> Any:
        """How ListGroups shows this group; None if it does not."""
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        response = self.client.call(request, ListGroupsResponse, 5)
        return next((each for each in response.groups if each.group_id == self.group_id), None)

    def delete(self) -> int:
        request = DeleteGroupsRequest(groups_names=[self.group_id])
        response = self.client.call(request, DeleteGroupsResponse, 2)
        code: int = response.results[0].error_code
        return code
