"""ConsumerGroup: the state machine of one group of the consumer protocol (KIP-848).

    group epoch       grows when members, subscriptions or the topics themselves change
    target epoch      the group epoch for which it was last decided who is to read what
    member epoch      the target epoch that a member has reached, once it has given up what others
                      are to have

    Empty         no members
    Assigning     the group epoch is ahead of the target's: a heartbeat will compute a new target
    Reconciling   members are on their way to the target
    Stable        every member has exactly what the target gives it

A member gives up before it is given: what it has too much is taken from its assignment, and until
it says that it does not own that any more it stays in its epoch (UNREVOKED_PARTITIONS). What
another has not yet given up waits (UNRELEASED_PARTITIONS). So at no time two members may own one
partition; `owners` says whose each is.

State is made of updates (consumer_group_records), read back or just decided. Decisions are made in
a GroupChange, a copy that takes the place of the group once its updates are written down. Owns
state alone: no timers, no log, no wire, which are `broker.coordinator.consumer_groups`'. Called by:
the event loop's thread (a loading thread before the group is handed over).
"""

import copy
import hashlib
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from kafka.errors import (
    BrokerResponseError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    IllegalGenerationError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)

from broker.coordinator.assignors import Assignor, MemberSpec
from broker.coordinator.consumer_group_records import (
    CurrentAssignment,
    GroupEpoch,
    Kind,
    MemberState,
    OwnedPartitions,
    Partitions,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
    TopicIdPartition,
    Update,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
"""A static member goes and will come back under a new id."""

# A group that has not assigned anything yet is in this epoch, so that its members have one.
_FIRST_EPOCH = 1
_NO_PARTITIONS: Partitions = frozenset()
_NO_TOPICS: frozenset[str] = frozenset()


class ConsumerGroupState(Enum):
    """A group's state, by the name that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Topic(Protocol):
    """A topic as far as groups care."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> uuid.UUID: ...
    @property
    def partitions(self) -> Collection[Any]: ...


class Topics(Protocol):
    """The cluster's topics."""

    @property
    def version(self) -> int:
        """Another number after each change."""
        ...

    def topic(self, name: str) -> Topic | None: ...
    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None: ...


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member: what it said of itself, and what it may own."""

    member_id: str
    subscription: Subscription = field(default_factory=Subscription)
    current: CurrentAssignment = field(default_factory=CurrentAssignment)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.epoch == target_epoch

    def check_epoch(self, epoch: int, owned: Collection[TopicIdPartition] | None) -> None:
        """Raises FencedMemberEpochError, but for a member whose last answer was lost: it comes
        with its epoch before, and owns nothing that it should not."""
        current = self.current
        if epoch in (JOIN_EPOCH, current.epoch):
            return
        if epoch > current.epoch:
            raise _fenced("greater", epoch, current.epoch)
        is_lost_answer = epoch == current.previous_epoch and owned is not None
        if not is_lost_answer or any(each not in current.assigned for each in owned or ()):
            raise _fenced("smaller", epoch, current.epoch)


def _fenced(how: str, epoch: int, known_epoch: int) -> FencedMemberEpochError:
    return FencedMemberEpochError(
        f"the member has a {how} epoch ({epoch}) than the one known here ({known_epoch}): it must "
        "give up its partitions and join again"
    )


class ConsumerGroup:
    """One group of the consumer protocol (KIP-848): its members, epochs, and who owns what."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = _FIRST_EPOCH
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.target_epoch = _FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.targets: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.owners: dict[TopicIdPartition, str] = {}
        self.has_partition_metadata = False
        # The version of the cluster's topics that the hash was last computed for; not written down.
        self.seen_version: int | None = None
        # The same for the expressions.
        self.resolved_version: int | None = None
        self._static_members: dict[str, str] = {}
        self._subscribed: frozenset[str] | None = None

    def copy(self) -> "ConsumerGroup":
        clone = copy.copy(self)
        for name in ("members", "targets", "regexes", "owners", "_static_members"):
            setattr(clone, name, dict(getattr(self, name)))
        return clone

    # State from updates.

    def apply(self, update: Update) -> None:
        value = update.value
        if update.kind is Kind.GROUP:
            known = value or GroupEpoch(_FIRST_EPOCH)
            self.epoch, self.metadata_hash = known.epoch, known.metadata_hash
        elif update.kind is Kind.TARGET:
            target = value or TargetEpoch(_FIRST_EPOCH)
            self.target_epoch, self.target_timestamp_ms = target.epoch, target.timestamp_ms
        elif update.kind is Kind.MEMBER:
            self._set_member(update.name, value)
        elif update.kind is Kind.CURRENT:
            self._set_current(update.name, value)
        elif update.kind is Kind.TARGET_MEMBER:
            _put(self.targets, update.name, value)
        elif update.kind is Kind.REGEX:
            _put(self.regexes, update.name, value)
            self._subscribed = None
        else:
            self.has_partition_metadata = value is not None

    def _set_member(self, member_id: str, subscription: Subscription | None) -> None:
        self._subscribed = None
        if subscription is None:
            self._set_current(member_id, None)
            member = self.members.pop(member_id, None)
            instance_id = None if member is None else member.subscription.instance_id
            if instance_id is not None and self._static_members.get(instance_id) == member_id:
                del self._static_members[instance_id]
            return
        member = self.members.get(member_id) or ConsumerMember(member_id)
        self.members[member_id] = replace(member, subscription=subscription)
        if subscription.instance_id is not None:
            self._static_members[subscription.instance_id] = member_id

    def _set_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        for owned in (member.current.assigned, member.current.revoking):
            for partition in owned:
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
        current = current or CurrentAssignment()
        self.members[member_id] = replace(member, current=current)
        for owned in (current.assigned, current.revoking):
            self.owners.update(dict.fromkeys(owned, member_id))

    # Looking at it.

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def member(self, member_id: str) -> ConsumerMember:
        """Raises UnknownMemberIdError."""
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError(
                f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self._static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def known_static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Raises UnknownMemberIdError, and FencedInstanceIdError where the instance goes by
        another id now."""
        member = self.static_member(instance_id)
        if member is None:
            raise UnknownMemberIdError(f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise FencedInstanceIdError(
                f"static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}"
            )
        return member

    def assignor_name(self, default: str) -> str:
        """The assignor that most members want."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.subscription.assignor
            if name is not None:
                votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__) if votes else default

    def regex_is_used(self, regex: str) -> bool:
        return any(member.subscription.regex == regex for member in self.members.values())

    def subscribed_regexes(self) -> set[str]:
        return {
            member.subscription.regex
            for member in self.members.values()
            if member.subscription.regex
        }

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """What it subscribes to; an expression that is not resolved yet matches nothing."""
        resolved = self.regexes.get(member.subscription.regex)
        if resolved is None:
            return member.subscription.topics
        return member.subscription.topics | resolved.topics

    @property
    def subscribed_topics(self) -> frozenset[str]:
        if self._subscribed is None:
            self._subscribed = _NO_TOPICS.union(*map(self.topics_of, self.members.values()))
        return self._subscribed

    def compute_hash(self, topics: Topics) -> int:
        """Of what matters of the subscribed topics that are there; 0 for none.

        A broker of Apache Kafka that takes over the log has another function, so it assigns anew
        once."""
        known = map(topics.topic, self.subscribed_topics)
        seen = [(t.name, t.topic_id.hex, len(t.partitions)) for t in known if t is not None]
        if not seen:
            return 0
        digest = hashlib.blake2b(repr(sorted(seen)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def check_may_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Iterable[TopicIdPartition],
        *,
        knows_epochs: bool = True,
    ) -> None:
        """Raises unless a member of this epoch may commit these partitions.

        An epoch before the member's is good for what it has had since then (Kafka 4.3).
        `knows_epochs`: whether the version of the request has an error for a stale one.
        """
        if epoch < 0 and not self.members:
            return
        current = self.member(member_id).current
        if not knows_epochs:
            raise UnsupportedVersionError(
                "members of the consumer protocol commit by OffsetCommit 9 or later"
            )
        if epoch == current.epoch:
            return
        if epoch > current.epoch:
            raise _stale(epoch, current.epoch)
        for partition in partitions:
            if current.assigned.get(partition, epoch + 1) > epoch:
                raise _stale(epoch, current.epoch)

    def check_may_commit_in_transaction(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        partitions: Iterable[TopicIdPartition],
    ) -> None:
        """The same, but producers that name no member may, and a stale epoch has the error that
        TxnOffsetCommit knows."""
        if (member_id, instance_id, epoch) == ("", None, -1):
            return
        try:
            self.check_may_commit(member_id, epoch, partitions)
        except StaleMemberEpochError as error:
            raise IllegalGenerationError(str(error)) from None

    def check_may_fetch_offsets(self, member_id: str | None, epoch: int) -> None:
        """Raises UnknownMemberIdError, StaleMemberEpochError; who names no member may."""
        if member_id is None and epoch < 0:
            return
        current_epoch = self.member(member_id or "").current.epoch
        if epoch != current_epoch:
            raise _stale(epoch, current_epoch)


def _stale(epoch: int, known_epoch: int) -> BrokerResponseError:
    return StaleMemberEpochError(
        f"the member's epoch {epoch} is not the one known here, {known_epoch}"
    )


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


class GroupChange:
    """What is being decided about a group: `group` is as it will be once `updates` are written."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.updates: list[Update] = []

    def put(self, kind: Kind, name: str, value: Any) -> None:
        if not self.updates:
            self.group = self.group.copy()
        update = Update(kind, self.group.group_id, name, value)
        self.updates.append(update)
        self.group.apply(update)

    # Members.

    def set_subscription(self, member_id: str, subscription: Subscription) -> None:
        known = self.group.members.get(member_id)
        if known is None or known.subscription != subscription:
            self.put(Kind.MEMBER, member_id, subscription)

    def replace_static(self, old: ConsumerMember, member_id: str) -> None:
        """A static member that left for a while has come back under a new id."""
        target = self.group.targets.get(old.member_id, _NO_PARTITIONS)
        self._remove(old.member_id)
        self.put(Kind.MEMBER, member_id, old.subscription)
        self.put(Kind.TARGET_MEMBER, member_id, target)
        current = replace(old.current, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        self.put(Kind.CURRENT, member_id, current)

    def leave_for_a_while(self, member: ConsumerMember) -> None:
        """It keeps what it has, and others do not get it, until its session ends."""
        assigned = dict.fromkeys(member.current.assigned, 0)
        current = replace(
            member.current, epoch=LEAVE_FOR_A_WHILE_EPOCH, assigned=assigned, revoking={}
        )
        self.put(Kind.CURRENT, member.member_id, current)

    def remove_member(self, member: ConsumerMember, topics: Topics) -> None:
        """It is gone: what it had is free."""
        self._remove(member.member_id)
        self.drop_unused_regex(member.subscription.regex)
        self.bump(topics)

    def _remove(self, member_id: str) -> None:
        self.put(Kind.CURRENT, member_id, None)
        self.put(Kind.TARGET_MEMBER, member_id, None)
        self.put(Kind.MEMBER, member_id, None)

    def drop_unused_regex(self, regex: str) -> None:
        if regex and regex in self.group.regexes and not self.group.regex_is_used(regex):
            self.put(Kind.REGEX, regex, None)

    # Epochs.

    def bump(self, topics: Topics) -> None:
        """Begins the group's next epoch."""
        metadata_hash = self.group.compute_hash(topics)
        self.put(Kind.GROUP, "", GroupEpoch(self.group.epoch + 1, metadata_hash))
        self.group.seen_version = topics.version
        if self.group.has_partition_metadata:
            self.put(Kind.PARTITION_METADATA, "", None)

    def bump_if_topics_changed(self, topics: Topics) -> None:
        """Compares what the group has seen of its topics with what they are."""
        if self.group.compute_hash(topics) != self.group.metadata_hash:
            self.bump(topics)
        else:
            self.group.seen_version = topics.version

    def compute_target(self, assignor: Assignor, topics: Topics, now_ms: int) -> None:
        """Decides who is to read what, for the group's epoch as it is now."""
        group = self.group
        specs: dict[str, MemberSpec] = {}
        counts: dict[uuid.UUID, int] = {}
        topic_ids: dict[frozenset[str], frozenset[uuid.UUID]] = {}
        for member_id, member in group.members.items():
            names = group.topics_of(member)
            if names not in topic_ids:
                known = [each for name in names if (each := topics.topic(name)) is not None]
                counts |= {each.topic_id: len(each.partitions) for each in known}
                topic_ids[names] = frozenset(each.topic_id for each in known)
            held = group.targets.get(member_id, _NO_PARTITIONS)
            specs[member_id] = MemberSpec(topic_ids[names], held)
        target = assignor(specs, counts)
        for member_id, partitions in target.items():
            if group.targets.get(member_id) != partitions:
                self.put(Kind.TARGET_MEMBER, member_id, partitions)
        self.put(Kind.TARGET, "", TargetEpoch(group.epoch, now_ms))

    # Reconciliation.

    def reconcile(
        self,
        member_id: str,
        topics: Topics,
        owned: Collection[TopicIdPartition] | None,
        *,
        subscription_changed: bool,
    ) -> None:
        """Takes the member as far towards its target as what it and others own allows.

        `owned`: what it says that it owns; None, that this did not change."""
        group = self.group
        member = group.members[member_id]
        if member.is_reconciled_to(group.target_epoch) and not subscription_changed:
            return
        current = member.current
        if current.state is MemberState.STABLE and current.epoch == group.target_epoch:
            after = _without_unsubscribed(group, member, topics, owned)
        elif current.state is MemberState.UNREVOKED_PARTITIONS and _owns(current.revoking, owned):
            after = current
            if subscription_changed:
                after = _without_unsubscribed(group, member, topics, owned)
        else:
            after = _next_assignment(group, member, topics, owned)
        if after != current:
            self.put(Kind.CURRENT, member_id, after)


def _owns(partitions: OwnedPartitions, owned: Collection[TopicIdPartition] | None) -> bool:
    """Whether the member has, as far as is known, one of these."""
    return owned is None or any(partition in partitions for partition in owned)


def _is_subscribed(
    group: ConsumerGroup, member: ConsumerMember, topics: Topics, partitions: Iterable[Any]
) -> dict[uuid.UUID, bool]:
    """For each topic of the partitions, whether it is there and the member subscribes to it."""
    names = group.topics_of(member)
    found = {}
    for topic_id in {partition.topic_id for partition in partitions}:
        topic = topics.topic_by_id(topic_id)
        found[topic_id] = topic is not None and topic.name in names
    return found


def _without_unsubscribed(
    group: ConsumerGroup,
    member: ConsumerMember,
    topics: Topics,
    owned: Collection[TopicIdPartition] | None,
) -> CurrentAssignment:
    """A member that has just unsubscribed gives up at once, whatever the target still says."""
    current = member.current
    wanted = _is_subscribed(group, member, topics, current.assigned)
    kept = {each: epoch for each, epoch in current.assigned.items() if wanted[each.topic_id]}
    if len(kept) == len(current.assigned):
        return current
    gone = {each: epoch for each, epoch in current.assigned.items() if each not in kept}
    revoking = {**current.revoking, **gone}
    if not _owns(revoking, owned):
        return replace(current, previous_epoch=current.epoch, assigned=kept)
    return CurrentAssignment(
        current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking
    )


def _next_assignment(
    group: ConsumerGroup,
    member: ConsumerMember,
    topics: Topics,
    owned: Collection[TopicIdPartition] | None,
) -> CurrentAssignment:
    current = member.current
    target = group.targets.get(member.member_id, _NO_PARTITIONS)
    wanted = _is_subscribed(group, member, topics, target)
    target = frozenset(each for each in target if wanted[each.topic_id])
    kept = {each: epoch for each, epoch in current.assigned.items() if each in target}
    revoking = {each: epoch for each, epoch in current.assigned.items() if each not in target}
    if revoking and _owns(revoking, owned):
        return CurrentAssignment(
            current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking
        )
    missing = [each for each in target if each not in kept]
    # What this member has had to give up, and has, is free for itself as well.
    free = [each for each in missing if group.owners.get(each) in (None, member.member_id)]
    epoch = group.target_epoch
    is_whole = len(free) == len(missing)
    return CurrentAssignment(
        epoch,
        current.epoch,
        MemberState.STABLE if is_whole else MemberState.UNRELEASED_PARTITIONS,
        kept | dict.fromkeys(free, epoch),
    )


def restored(group_id: str, updates: Iterable[Update]) -> ConsumerGroup:
    """The group as its records tell of it: the last of each key, in any order."""
    group = ConsumerGroup(group_id)
    # A member's assignment counts only with the member, which key 5 makes.
    for update in sorted(updates, key=lambda update: update.kind):
        group.apply(update)
    return group


def tombstones(group: ConsumerGroup) -> list[Update]:
    """What makes every record of an empty or converted group go."""
    change = GroupChange(group)
    for member_id in group.members:
        change._remove(member_id)
    for regex in group.regexes:
        change.put(Kind.REGEX, regex, None)
    change.put(Kind.TARGET, "", None)
    if group.has_partition_metadata:
        change.put(Kind.PARTITION_METADATA, "", None)
    change.put(Kind.GROUP, "", None)
    return change.updates
