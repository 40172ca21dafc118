"""GroupMetadata: the state machine of one consumer group, and what it has committed.

    Empty ----------> PreparingRebalance   a member joins: all are to join again
    PreparingRebalance -> CompletingRebalance   all have joined: a new generation, whose leader is
                                                to say who gets what
                       -> Empty                 none has joined
    CompletingRebalance -> Stable               the leader has said so
    CompletingRebalance, Stable -> PreparingRebalance   a member comes, goes or wants other things
    any -> Dead                                 deleted

Owns: members, generation, leader, choice of the protocol, and the group's committed offsets; with
those that wait, by producer id, for the end of the transaction that commits them. It holds the
answers that members wait for, and calls them; it knows no timers, no log and no wire:
`broker.coordinator.group` does. What protocols carry stays opaque, but for the topics of type
"consumer", which say what must not expire. Called by: the event loop's thread (a loading thread
before the group is handed over).
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from kafka.errors import (
    BrokerResponseError,
    FencedInstanceIdError,
    IllegalGenerationError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import TopicPartition

from broker.coordinator.consumer_group import ConsumerGroup
from broker.coordinator.offset_records import CommittedOffset, GroupSnapshot, MemberSnapshot
from broker.coordinator.state_records import NO_TIMESTAMP

NO_MEMBER_ID = ""
NO_GENERATION = -1
_CONSUMER = "consumer"
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class GroupState(Enum):
    """A group's state, by the name that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_PREVIOUS = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY,
        GroupState.STABLE,
        GroupState.COMPLETING_REBALANCE,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


class MemberProtocol(NamedTuple):
    """A way to assign that a member supports, and what it says under it (its subscription)."""

    name: str
    metadata: bytes


class JoinedMember(NamedTuple):
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a JoinGroup. `members` is for the leader alone."""

    member_id: str
    error: BrokerResponseError | None = None
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = NO_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a SyncGroup."""

    error: BrokerResponseError | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


OnJoined = Callable[[JoinResult], None]
OnSynced = Callable[[SyncResult], None]


class Member:
    """One member of a group; `on_joined`, `on_synced`: the answer that it waits for, if any."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "on_joined",
        "on_synced",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[MemberProtocol, ...],
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = b""
        # Its first join is not answered yet: it does not know its id, and cannot heartbeat.
        self.is_new = False
        self.on_joined: OnJoined | None = None
        self.on_synced: OnSynced | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member says under a protocol; nothing where it does not support it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    @property
    def session_is_kept(self) -> bool:
        """Whether the session goes on without heartbeats: who waits for an answer sends none."""
        waits = self.on_joined is not None or self.on_synced is not None
        return waits and not self.is_new

    def answer_sync(self, result: SyncResult) -> bool:
        """Answers the SyncGroup that waits; False when there is none."""
        on_synced, self.on_synced = self.on_synced, None
        if on_synced is None:
            return False
        on_synced(result)
        return True


class GroupMetadata:
    """One consumer group: its members, its generation, who leads it, and what it has committed.

    The event loop's thread only.
    """

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        # Ids given out and not yet used: the second JoinGroup of version 4 and later is to come.
        self.pending_members: set[str] = set()
        self.pending_sync: set[str] = set()
        # Whether somebody came during the initial delay, which is then prolonged.
        self.member_added = False
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        # By producer id: what its open transaction commits, if it does.
        self.pending_offsets: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        # What makes it a group of the consumer protocol; this object then has its offsets alone.
        self.consumer: ConsumerGroup | None = None
        self._static_members: dict[str, str] = {}
        self._awaiting_join = 0
        self._supporters: Counter[str] = Counter()
        self._subscribed: frozenset[str] | None = None

    @classmethod
    def restored(cls, group_id: str, snapshot: GroupSnapshot) -> "GroupMetadata":
        """The group as its record tells of it."""
        group = cls(group_id, snapshot.state_timestamp_ms)
        group.state = GroupState.STABLE if snapshot.members else GroupState.EMPTY
        group.previous_state = group.state
        group.generation = snapshot.generation
        group.protocol_type = snapshot.protocol_type or None
        group.protocol_name = snapshot.protocol_name if snapshot.members else None
        for each in snapshot.members:
            member = Member(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                (MemberProtocol(snapshot.protocol_name or "", each.subscription),),
            )
            member.assignment = each.assignment
            group.add(member, group.protocol_type)
        if snapshot.leader_id in group.members:
            group.leader_id = snapshot.leader_id
        group._subscribed = group._subscribed_topics()
        return group

    def snapshot(self) -> GroupSnapshot:
        """The group to be written down, with the assignments that its members have now."""
        members = [
            MemberSnapshot(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol_name),
                member.assignment,
            )
            for member in self.members.values()
        ]
        return GroupSnapshot(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader_id,
            self.state_timestamp_ms,
            tuple(members),
        )

    # State.

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, of either protocol."""
        if self.consumer is not None and self.consumer.members:
            return False
        return self.state is GroupState.EMPTY

    @property
    def state_name(self) -> str:
        return self.state.value if self.consumer is None else self.consumer.state.value

    def become_consumer_group(self, consumer: ConsumerGroup) -> None:
        """Of an empty group the offsets stay, and nothing else."""
        if self.consumer is None:
            self.generation = 0
            self.protocol_type = self.protocol_name = self.leader_id = None
            self._subscribed = None
        self.consumer = consumer

    def is_in(self, *states: GroupState) -> bool:
        return self.state in states

    @property
    def can_rebalance(self) -> bool:
        return self.state in _PREVIOUS[GroupState.PREPARING_REBALANCE]

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        if self.state not in _PREVIOUS[state]:
            raise AssertionError(f"group {self.group_id!r}: {self.state.name} to {state.name}")
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    def begin_generation(self, now_ms: int) -> None:
        """All that will join have joined: the next generation, or none, is complete."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY, now_ms)
        self._subscribed = self._subscribed_topics()

    # Members.

    def add(self, member: Member, protocol_type: str | None) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self._static_members[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member.protocols, 1)
        self._awaiting_join += member.on_joined is not None
        self.pending_members.discard(member.member_id)

    def update(
        self,
        member: Member,
        protocols: tuple[MemberProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        on_joined: OnJoined | None,
    ) -> None:
        """The member joins again, perhaps with other wishes."""
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._awaiting_join += (on_joined is not None) - (member.on_joined is not None)
        member.on_joined = on_joined

    def remove(self, member_id: str) -> None:
        """Forgets the member, or the id that was to become one."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member.protocols, -1)
            self._awaiting_join -= member.on_joined is not None
            if member.instance_id is not None:
                self._static_members.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """The instance has come back under a new id; who still waits under the old is fenced."""
        old = self.members[old_id]
        fenced = FencedInstanceIdError(f"{instance_id!r} has joined under another member id")
        self.answer_join(old, JoinResult(old_id, fenced))
        old.answer_sync(SyncResult(fenced))
        was_leader = self.leader_id == old_id
        self.remove(old_id)
        member = Member(
            new_id,
            instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
        )
        member.assignment = old.assignment
        self.add(member, self.protocol_type)
        if was_leader:
            self.leader_id = new_id
        return member

    def static_member_id(self, instance_id: str | None) -> str | None:
        return None if instance_id is None else self._static_members.get(instance_id)

    def validate_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member. Raises UnknownMemberIdError, and FencedInstanceIdError where its instance
        goes by another id now."""
        if instance_id is not None:
            known_id = self._static_members.get(instance_id)
            if known_id is None:
                raise UnknownMemberIdError()
            if known_id != member_id:
                raise FencedInstanceIdError()
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError()
        return member

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is one who has joined. False when nobody has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].on_joined is not None:
            return True
        for member in self.members.values():
            if member.on_joined is not None:
                self.leader_id = member.member_id
                return True
        return False

    @property
    def awaiting_join_count(self) -> int:
        """How many members wait for the answer to their JoinGroup."""
        return self._awaiting_join

    @property
    def all_have_joined(self) -> bool:
        return self._awaiting_join == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The patience of the most patient member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def answer_join(self, member: Member, result: JoinResult) -> bool:
        """Answers the JoinGroup that waits; False when there is none."""
        on_joined, member.on_joined = member.on_joined, None
        if on_joined is None:
            return False
        if member.member_id in self.members:
            self._awaiting_join -= 1
        on_joined(result)
        return True

    def join_result(self, member: Member) -> JoinResult:
        """What a member of the current generation is told."""
        return JoinResult(
            member.member_id,
            None,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or NO_MEMBER_ID,
            self.joined_members() if member.member_id == self.leader_id else (),
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    # Protocols.

    def supports(self, protocol_type: str, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Whether a member with these protocols could be one of the group's."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters[each.name] == len(self.members) for each in protocols)

    def select_protocol(self) -> str:
        """The protocol that all support and most like best: each member has one vote."""
        votes: Counter[str] = Counter()
        for member in self.members.values():
            for protocol in member.protocols:
                if self._supporters[protocol.name] == len(self.members):
                    votes[protocol.name] += 1
                    break
        return max(votes, key=votes.__getitem__)

    def _count_protocols(self, protocols: Iterable[MemberProtocol], change: int) -> None:
        # A name counts once for each member, however often it says it.
        for name in {protocol.name for protocol in protocols}:
            self._supporters[name] += change
            if not self._supporters[name]:
                del self._supporters[name]

    # Offsets.

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may be reading `topic`. Unknown subscriptions of consumers may be."""
        if self.consumer is not None:
            return topic in self.consumer.subscribed_topics
        if self._subscribed is None:
            return self.protocol_type == _CONSUMER
        return topic in self._subscribed

    def _subscribed_topics(self) -> frozenset[str] | None:
        """None when it cannot be known."""
        if self.protocol_type != _CONSUMER:
            return None
        if not self.members:
            return frozenset()
        try:
            metadata = [member.metadata(self.protocol_name) for member in self.members.values()]
            return frozenset(topic for each in metadata for topic in subscribed_topics(each))
        except ValueError:
            return None

    def check_may_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Raises unless these offsets may be committed: by a member of this generation, or, where
        the group has no members, by anyone who names none."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        if generation < 0 and not member_id and instance_id is None:
            raise UnknownMemberIdError()
        self._check_member_of_generation(member_id, instance_id, generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgressError()

    def check_may_commit_in_transaction(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        """As `check_may_commit`, but producers that know of no members (of clients before KIP-447)
        may always, and members while a rebalance is being completed."""
        names_nobody = not member_id and instance_id is None
        if generation < 0 and (names_nobody or self.state is GroupState.EMPTY):
            return
        self._check_member_of_generation(member_id, instance_id, generation)

    def _check_member_of_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        self.validate_member(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGenerationError()

    def add_pending(
        self, producer_id: int, offsets: Iterable[tuple[TopicPartition, CommittedOffset]]
    ) -> None:
        """Commits of the producer's open transaction."""
        self.pending_offsets.setdefault(producer_id, {}).update(offsets)

    def complete_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Its marker is in the log: what was pending is committed, or forgotten."""
        pending = self.pending_offsets.pop(producer_id, {})
        if is_commit:
            commit_pending(self.offsets, pending)

    @property
    def unstable_partitions(self) -> AbstractSet[TopicPartition]:
        """Partitions whose offset may change with the end of a transaction."""
        return {each for pending in self.pending_offsets.values() for each in pending}

    @property
    def known_partitions(self) -> AbstractSet[TopicPartition]:
        """Partitions that have an offset, committed or pending."""
        committed = self.offsets.keys()
        return committed | self.unstable_partitions if self.pending_offsets else committed

    def forget_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """Pending ones too: their transaction does not bring them back."""
        for topic_partition in partitions:
            self.offsets.pop(topic_partition, None)
            for pending in self.pending_offsets.values():
                pending.pop(topic_partition, None)
        self.pending_offsets = {
            producer_id: pending for producer_id, pending in self.pending_offsets.items() if pending
        }

    def check_may_delete_offsets(self) -> None:
        """Raises NonEmptyGroupError where members read what this broker cannot know."""
        if self.state is not GroupState.EMPTY and self.protocol_type != _CONSUMER:
            raise NonEmptyGroupError()

    def expired_offsets(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The offsets that nobody needs any more.

        A group without members keeps them for `retention_ms` since it lost its last one, one that
        never had members since each commit, and a group of consumers since each commit of a topic
        that none subscribes to. What a transaction may still change is kept until it ends.
        """
        since_ms = NO_TIMESTAMP
        if self.protocol_type is not None:
            if self.state is GroupState.EMPTY:
                since_ms = self.state_timestamp_ms
            elif self.state is not GroupState.STABLE or self._subscribed is None:
                return []
        expired = []
        unstable = self.unstable_partitions
        for topic_partition, committed in self.offsets.items():
            if topic_partition in unstable:
                continue
            has_members = self.protocol_type is not None or self.consumer is not None
            if has_members and self.is_subscribed_to(topic_partition.topic):
                continue
            if committed.expire_timestamp_ms != NO_TIMESTAMP:
                is_expired = now_ms >= committed.expire_timestamp_ms
            else:
                begin_ms = committed.commit_timestamp_ms if since_ms < 0 else since_ms
                is_expired = now_ms - begin_ms >= retention_ms
            if is_expired:
                expired.append(topic_partition)
        return expired


class _InLog(Protocol):
    """What was read from the log, or written to it."""

    @property
    def log_offset(self) -> int: ...


K = TypeVar("K")
C = TypeVar("C", bound=_InLog)


def commit_pending(committed: dict[K, C], pending: Mapping[K, C]) -> None:
    """What a transaction committed is what it is by its place in the log, not by when the
    transaction ended: it takes the place of an earlier commit, not of a later one. Compaction keeps
    the later one too, so reading the topic again has the same result."""
    for key, value in pending.items():
        known = committed.get(key)
        if known is None or value.log_offset > known.log_offset:
            committed[key] = value


def subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of a consumer's subscription (ConsumerProtocolSubscription.json: version int16,
    array of topics, ...). Raises ValueError for bytes that are none."""
    try:
        (version,) = _INT16.unpack_from(metadata)
        (count,) = _INT32.unpack_from(metadata, 2)
        if version < 0 or count < 0:
            raise ValueError("no subscription")
        topics = []
        position = 6
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, position)
            position += 2
            if not 0 <= length <= len(metadata) - position:
                raise ValueError("no subscription")
            topics.append(str(metadata[position : position + length], "utf-8"))
            position += length
        return topics
    except struct.error as error:
        raise ValueError(f"no subscription: {error}") from None
