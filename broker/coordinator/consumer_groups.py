"""ConsumerGroupCoordinator: heartbeats of the consumer protocol (KIP-848), and its timers.

A heartbeat is all there is: by it a member joins, says what it owns, learns what it may own, and
leaves. Owns: the order of checks and decisions of a heartbeat, the timers of sessions and of
revocations, when expressions are resolved anew. The groups themselves, with their offsets, are the
GroupCoordinator's; a GroupMetadata whose `consumer` is set is one of these. What is decided is
appended to `__consumer_offsets` first, in one batch, and counts from then on; where that fails the
group is as it was. Called by: the event loop's thread only; never waits.

Checks, their order and error codes are those of Apache Kafka 4.3, and so are the epochs of a new
group: it begins in 1, so its first member is in 2. A target is computed at most once in
group.consumer.assignment.interval.ms (KIP-1263), by a heartbeat; so members that come within that
time move no partition twice. A group without members becomes one of the other protocol when a
member of that comes. With members it does not: left out is the migration under way, whatever
group.consumer.migration.policy would allow. A consumer that comes to a classic group is answered as
by the policy `disabled`, and a classic member that comes to a consumer group as one whose protocols
do not fit. Left out too: assignors other than Kafka's own two, and racks
(which those do not look at either).
"""

import base64
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kafka.errors import (
    BrokerResponseError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)

from broker.config.broker import BrokerConfig
from broker.config.group import GroupConfig, group_config
from broker.coordinator.assignors import ASSIGNORS
from broker.coordinator.consumer_group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    GroupChange,
    Topic,
    Topics,
)
from broker.coordinator.consumer_group_records import (
    Kind,
    MemberState,
    ResolvedRegex,
    Subscription,
    TopicIdPartition,
    encode,
)
from broker.coordinator.group import GroupCoordinator, GroupLog
from broker.coordinator.group_metadata import GroupMetadata
from broker.coordinator.offset_records import group_tombstone
from broker.coordinator.timers import Timers
from broker.coordinator.topic_regex import check_regex, resolve
from broker.log.clock import Clock, has_passed

_log = logging.getLogger(__name__)

# The first version in which members make their ids themselves (KIP-1082).
_OWN_MEMBER_ID_VERSION = 1
# As often as expressions are resolved at most, while members heartbeat.
_REGEX_MIN_INTERVAL_MS = 10_000
# A timer whose record could not be written tries again after this time.
_RETRY_MS = 1_000

Resolved = Mapping[str, frozenset[str]]
# Runs a function in a thread, and then another with its result in the loop.
RunAside = Callable[[Callable[[], Resolved], Callable[[Resolved], None]], None]


class ClusterTopics(Topics, Protocol):
    """The cluster's topics, all of them."""

    def topics(self) -> Iterable[Topic]: ...


@dataclass(frozen=True, slots=True)
class HeartbeatAsk:
    """A ConsumerGroupHeartbeat; None where nothing changed."""

    group_id: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: Collection[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Collection[TopicIdPartition] | None = None
    version: int = _OWN_MEMBER_ID_VERSION

    @property
    def is_full(self) -> bool:
        """Whether it says everything, as a member does that is not sure of what it was told."""
        subscribes = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """`assigned` None: as it was told before."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Collection[TopicIdPartition] | None = None


class ConsumerGroupCoordinator:
    """Answers the heartbeats of groups of the consumer protocol (KIP-848).

    The event loop's thread only; never waits.
    """

    def __init__(
        self,
        config: BrokerConfig,
        groups: GroupCoordinator,
        log: GroupLog,
        timers: Timers,
        clock: Clock,
        topics: ClusterTopics,
        run_aside: RunAside,
        config_of: Callable[[str], GroupConfig] | None = None,
    ) -> None:
        """`config_of`: what counts in a group now; not given, the same in all."""
        self._config = config
        self._config_of = config_of or (lambda group_id: group_config(config, {}))
        self._groups = groups
        self._log = log
        self._timers = timers
        self._clock = clock
        self._topics = topics
        self._run_aside = run_aside
        # Groups whose expressions are being resolved.
        self._resolving: set[str] = set()
        # The topics' names as of a version: one list, however many groups wait for their turn.
        self._names: tuple[int | None, list[str]] = (None, [])

    def take_over(self, groups: Iterable[GroupMetadata]) -> None:
        """Groups as they were written down: their members are given a session's time."""
        for holder in groups:
            group = holder.consumer
            if group is None:
                continue
            for member in group.members.values():
                self._keep_session(group.group_id, member.member_id)
                if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                    self._limit_revocation(group.group_id, member)

    def resign(self, groups: Iterable[GroupMetadata]) -> None:
        """Groups that are about to be forgotten: what is being resolved for them is for nobody."""
        for holder in groups:
            self._resolving.discard(holder.group_id)
            if holder.consumer is not None:
                for member_id in holder.consumer.members:
                    self._cancel_timers(holder.group_id, member_id)

    # Heartbeats.

    def heartbeat(self, ask: HeartbeatAsk) -> HeartbeatAnswer:
        """Raises what the member is to hear: InvalidRequestError, GroupIdNotFoundError,
        UnknownMemberIdError, FencedMemberEpochError, UnsupportedAssignorError,
        UnreleasedInstanceIdError, FencedInstanceIdError, GroupMaxSizeReachedError,
        InvalidRegularExpressionError, and what GroupCoordinator's head says."""
        self._check(ask)
        if ask.epoch < 0:
            return self._leave(ask)
        holder = self._groups.find(ask.group_id)
        group = self._group_of(holder, ask)
        most = self._config.group_consumer_max_size
        if len(group.members) >= most and ask.member_id not in group.members:
            raise GroupMaxSizeReachedError(f"group.consumer.max.size={most}")
        change = GroupChange(group)
        before = self._member_of(change, ask)
        member_id = before.member_id
        has_changed = self._subscribe(change, before, ask)
        self._compute_target(change)
        change.reconcile(member_id, self._topics, ask.owned, subscription_changed=has_changed)
        self._commit(holder, change, ask.group_id)
        self._keep_session(ask.group_id, member_id)
        self._resolve_if_due(change.group)
        return self._answer(change.group, before, ask)

    def _check(self, ask: HeartbeatAsk) -> None:
        needs_id = ask.version >= _OWN_MEMBER_ID_VERSION or ask.epoch > 0
        if (needs_id or ask.epoch == LEAVE_EPOCH) and not ask.member_id.strip():
            raise InvalidRequestError("MemberId can't be empty.")
        for name, text in (
            ("GroupId", ask.group_id),
            ("InstanceId", ask.instance_id),
            ("RackId", ask.rack_id),
        ):
            if text is not None and not text.strip():
                raise InvalidRequestError(f"{name} can't be empty.")
        if ask.epoch == JOIN_EPOCH:
            _check_join(ask)
        elif ask.epoch == LEAVE_FOR_A_WHILE_EPOCH and ask.instance_id is None:
            raise InvalidRequestError("InstanceId can't be null.")
        elif ask.epoch < LEAVE_FOR_A_WHILE_EPOCH:
            raise InvalidRequestError("MemberEpoch is invalid.")
        assignors = self._config.group_consumer_assignors
        if ask.assignor is not None and ask.assignor not in assignors:
            raise UnsupportedAssignorError(
                f"ServerAssignor {ask.assignor} is not supported. "
                f"Supported assignors: {', '.join(assignors)}."
            )

    def _group_of(self, holder: GroupMetadata | None, ask: HeartbeatAsk) -> ConsumerGroup:
        """The group as it is, or a new one, which nobody else sees yet."""
        if holder is not None and holder.consumer is not None:
            return holder.consumer
        if ask.epoch != JOIN_EPOCH:
            raise _not_found(ask.group_id, holder)
        if holder is not None and not holder.is_empty:
            raise GroupIdNotFoundError(
                f"classic group {ask.group_id} has members, and is not upgraded under way"
            )
        return ConsumerGroup(ask.group_id)

    def _member_of(self, change: GroupChange, ask: HeartbeatAsk) -> ConsumerMember:
        """The member as it was; a new one is in no epoch."""
        group = change.group
        is_join = ask.epoch == JOIN_EPOCH
        if ask.instance_id is None:
            known = group.members.get(ask.member_id)
            if known is None and is_join:
                return ConsumerMember(ask.member_id or _new_member_id())
            member = group.member(ask.member_id)
            member.check_epoch(ask.epoch, ask.owned)
            return member
        if not is_join:
            member = group.known_static_member(ask.instance_id, ask.member_id)
            member.check_epoch(ask.epoch, ask.owned)
            return member
        old = group.static_member(ask.instance_id)
        if old is None:
            return group.members.get(ask.member_id) or ConsumerMember(
                ask.member_id or _new_member_id()
            )
        if old.current.epoch != LEAVE_FOR_A_WHILE_EPOCH:
            raise UnreleasedInstanceIdError(
                f"instance id {ask.instance_id} is still member {old.member_id}'s"
            )
        member_id = ask.member_id or _new_member_id()
        change.replace_static(old, member_id)
        return change.group.members[member_id]

    def _subscribe(self, change: GroupChange, before: ConsumerMember, ask: HeartbeatAsk) -> bool:
        """What the member says of itself. Whether it subscribes to other topics now; these, and
        topics that have changed, begin an epoch. An expression begins one when it is resolved,
        and at once if another one was: what that gave is for others."""
        wanted = self._described(before, ask)
        known = before.subscription
        regex_changed = wanted.regex != known.regex
        had = change.group.topics_of(before) if regex_changed else frozenset()
        if regex_changed and wanted.regex and not change.group.regex_is_used(wanted.regex):
            check_regex(wanted.regex)
        change.set_subscription(before.member_id, wanted)
        if regex_changed:
            change.drop_unused_regex(known.regex)
        names_changed = wanted.topics != known.topics
        begins = names_changed
        if regex_changed:
            has = change.group.topics_of(change.group.members[before.member_id])
            is_resolved = not wanted.regex or wanted.regex in change.group.regexes
            begins |= is_resolved or not had <= has
        if begins:
            change.bump(self._topics)
        elif change.group.seen_version != self._topics.version:
            change.bump_if_topics_changed(self._topics)
        return names_changed or regex_changed

    @staticmethod
    def _described(before: ConsumerMember, ask: HeartbeatAsk) -> Subscription:
        known = before.subscription
        wanted = replace(
            known,
            client_id=ask.client_id,
            client_host=ask.client_host,
            instance_id=known.instance_id if ask.instance_id is None else ask.instance_id,
            rack_id=known.rack_id if ask.rack_id is None else ask.rack_id,
            assignor=known.assignor if ask.assignor is None else ask.assignor,
            regex=known.regex if ask.regex is None else ask.regex,
            topics=known.topics if ask.topics is None else frozenset(ask.topics),
        )
        if ask.rebalance_timeout_ms == -1:
            return wanted
        return replace(wanted, rebalance_timeout_ms=ask.rebalance_timeout_ms)

    def _compute_target(self, change: GroupChange) -> None:
        group = change.group
        if group.epoch <= group.target_epoch:
            return
        now_ms = self._clock()
        interval_ms = self._config_of(group.group_id).assignment_interval_ms
        last_ms = group.target_timestamp_ms
        if last_ms and not has_passed(interval_ms, last_ms, now_ms):
            return
        name = group.assignor_name(self._config.group_consumer_assignors[0])
        # A name that was configured when the member came need not be so any more.
        assignor = ASSIGNORS.get(name) or ASSIGNORS[self._config.group_consumer_assignors[0]]
        change.compute_target(assignor, self._topics, now_ms)

    def _answer(
        self, group: ConsumerGroup, before: ConsumerMember, ask: HeartbeatAsk
    ) -> HeartbeatAnswer:
        current = group.members[before.member_id].current
        is_news = current.assigned.keys() != before.current.assigned.keys()
        tells = ask.epoch == JOIN_EPOCH or ask.is_full or is_news
        return HeartbeatAnswer(
            before.member_id,
            current.epoch,
            self._config_of(group.group_id).heartbeat_interval_ms,
            current.assigned if tells else None,
        )

    def _commit(self, holder: GroupMetadata | None, change: GroupChange, group_id: str) -> None:
        """Writes what was decided; only then it is so. Raises what the append raises."""
        group = change.group
        if not change.updates:
            return
        records = [encode(update) for update in change.updates]
        if holder is not None and holder.consumer is None:
            records.insert(0, group_tombstone(group_id))
        self._log.append(group_id, records)
        if holder is None:
            holder = GroupMetadata(group_id, self._clock())
            self._groups.adopt(holder)
        before = holder.consumer
        holder.become_consumer_group(group)
        changed = {update.name for update in change.updates if update.kind is Kind.CURRENT}
        for member_id in changed:
            member = group.members.get(member_id)
            if member is None:
                self._cancel_timers(group_id, member_id)
            elif member.current.state is MemberState.UNREVOKED_PARTITIONS:
                self._limit_revocation(group_id, member)
            else:
                self._timers.cancel(("revocation", group_id, member_id))
        if before is None or (before.epoch, before.state) != (group.epoch, group.state):
            _log.info(
                "consumer_group.changed group=%r epoch=%d target=%d state=%s members=%d",
                group_id,
                group.epoch,
                group.target_epoch,
                group.state.value,
                len(group.members),
            )

    # Leaving.

    def _leave(self, ask: HeartbeatAsk) -> HeartbeatAnswer:
        holder = self._groups.find(ask.group_id)
        if holder is None or holder.consumer is None:
            raise _not_found(ask.group_id, holder)
        group = holder.consumer
        change = GroupChange(group)
        if ask.instance_id is None:
            change.remove_member(group.member(ask.member_id), self._topics)
        else:
            member = group.known_static_member(ask.instance_id, ask.member_id)
            if ask.epoch == LEAVE_FOR_A_WHILE_EPOCH:
                change.leave_for_a_while(member)
            else:
                change.remove_member(member, self._topics)
        self._commit(holder, change, ask.group_id)
        return HeartbeatAnswer(ask.member_id, ask.epoch)

    def remove_members(
        self, group_id: str, identities: Sequence[tuple[str, str | None]]
    ) -> list[BrokerResponseError | None]:
        """A LeaveGroup for a group of this protocol: an administrator removes static members by
        their instance alone, and no others. An answer for each."""
        holder = self._groups.find(group_id)
        errors: list[BrokerResponseError | None] = []
        for member_id, instance_id in identities:
            group = None if holder is None else holder.consumer
            member = None if group is None or member_id else group.static_member(instance_id)
            if holder is None or group is None or member is None:
                errors.append(UnknownMemberIdError())
                continue
            change = GroupChange(group)
            change.remove_member(member, self._topics)
            self._commit(holder, change, group_id)
            errors.append(None)
        return errors

    # Timers.

    def _keep_session(self, group_id: str, member_id: str) -> None:
        key = ("consumer-session", group_id, member_id)

        def is_over() -> None:
            if not self._fence(group_id, member_id, "its session is over"):
                self._timers.schedule(key, _RETRY_MS, is_over)

        self._timers.schedule(key, self._config_of(group_id).session_timeout_ms, is_over)

    def _limit_revocation(self, group_id: str, member: ConsumerMember) -> None:
        """A member that does not give up in its rebalance timeout loses everything."""
        member_id, epoch = member.member_id, member.current.epoch
        key = ("revocation", group_id, member_id)

        def is_over() -> None:
            known = self._known_member(group_id, member_id)
            if known is None or known.current.epoch != epoch:
                return
            if not self._fence(group_id, member_id, "it has not given up its partitions"):
                self._timers.schedule(key, _RETRY_MS, is_over)

        self._timers.schedule(key, member.subscription.rebalance_timeout_ms, is_over)

    def _cancel_timers(self, group_id: str, member_id: str) -> None:
        self._timers.cancel(("consumer-session", group_id, member_id))
        self._timers.cancel(("revocation", group_id, member_id))

    def _known_member(self, group_id: str, member_id: str) -> ConsumerMember | None:
        holder = self._groups.find_loaded(group_id)
        group = None if holder is None else holder.consumer
        return None if group is None else group.members.get(member_id)

    def _fence(self, group_id: str, member_id: str, reason: str) -> bool:
        """Removes the member; False when that cannot be written now."""
        holder = self._groups.find_loaded(group_id)
        member = self._known_member(group_id, member_id)
        if holder is None or holder.consumer is None or member is None:
            return True
        _log.info("consumer_group.fenced group=%r member=%r why=%r", group_id, member_id, reason)
        change = GroupChange(holder.consumer)
        change.remove_member(member, self._topics)
        try:
            self._commit(holder, change, group_id)
        except BrokerResponseError as error:
            _log.warning("group.not_written group=%r reason=%r", group_id, str(error))
            return False
        return True

    # Expressions.

    def _resolve_if_due(self, group: ConsumerGroup) -> None:
        """Has expressions resolved, aside, that are new, old, or older than a topic."""
        group_id = group.group_id
        regexes = group.subscribed_regexes()
        if not regexes or group_id in self._resolving:
            return
        resolved = [group.regexes[regex] for regex in regexes if regex in group.regexes]
        is_missing = len(resolved) < len(regexes)
        now_ms = self._clock()
        last_ms = max((each.timestamp_ms for each in resolved), default=0)
        if resolved and not has_passed(_REGEX_MIN_INTERVAL_MS, last_ms, now_ms):
            return
        refresh_ms = self._config.group_consumer_regex_refresh_interval_ms
        is_old = has_passed(refresh_ms, last_ms, now_ms)
        version = self._topics.version
        if is_missing or is_old or group.resolved_version != version:
            self._resolving.add(group_id)
            if self._names[0] != version:
                self._names = version, [topic.name for topic in self._topics.topics()]
            names = self._names[1]
            self._run_aside(
                lambda: resolve(regexes, names),
                lambda found: self._take_resolved(group_id, found, version, now_ms),
            )

    def _take_resolved(self, group_id: str, found: Resolved, version: int, now_ms: int) -> None:
        self._resolving.discard(group_id)
        holder = self._groups.find_loaded(group_id)
        if holder is None or holder.consumer is None:
            return
        change = GroupChange(holder.consumer)
        has_changed = False
        for regex, topics in found.items():
            if not change.group.regex_is_used(regex):
                continue
            known = change.group.regexes.get(regex)
            has_changed |= (known.topics if known else frozenset()) != topics
            change.put(Kind.REGEX, regex, ResolvedRegex(topics, version, now_ms))
        if has_changed:
            change.bump(self._topics)
        change.group.resolved_version = version
        try:
            self._commit(holder, change, group_id)
        except BrokerResponseError as error:
            _log.warning("group.not_written group=%r reason=%r", group_id, str(error))

    # Looking at groups.

    def group(self, group_id: str) -> ConsumerGroup:
        """To be read only. Raises GroupIdNotFoundError."""
        holder = self._groups.find(group_id)
        if holder is None or holder.consumer is None:
            raise _not_found(group_id, holder)
        return holder.consumer

    def has(self, group_id: str) -> bool:
        """Whether it is a group of this protocol, as far as is known."""
        holder = self._groups.find_loaded(group_id)
        return holder is not None and holder.consumer is not None

    @property
    def default_assignor(self) -> str:
        return self._config.group_consumer_assignors[0]


class GroupsOfBothProtocols:
    """The groups of a partition of `__consumer_offsets`, whoever answers their members."""

    def __init__(
        self, classic_groups: GroupCoordinator, consumer_groups: ConsumerGroupCoordinator
    ) -> None:
        self._classic_groups = classic_groups
        self._consumer_groups = consumer_groups

    def take_over(self, groups: Mapping[str, GroupMetadata]) -> None:
        """As they were written down."""
        self._classic_groups.take_over(groups)
        self._consumer_groups.take_over(groups.values())

    def resign(self, partition: int) -> None:
        """Forgets them."""
        self._consumer_groups.resign(self._classic_groups.groups_of(partition))
        self._classic_groups.resign(partition)


def _check_join(ask: HeartbeatAsk) -> None:
    if ask.rebalance_timeout_ms == -1:
        raise InvalidRequestError("RebalanceTimeoutMs must be provided in first request.")
    if ask.owned is None or ask.owned:
        raise InvalidRequestError("TopicPartitions must be empty when (re-)joining.")
    if ask.topics is None and ask.regex is None:
        raise InvalidRequestError("a member that joins must subscribe to names or an expression")


def _not_found(group_id: str, holder: GroupMetadata | None) -> GroupIdNotFoundError:
    if holder is None:
        return GroupIdNotFoundError(f"Group {group_id} not found.")
    return GroupIdNotFoundError(f"Group {group_id} is not a consumer group.")


def _new_member_id() -> str:
    """In the form of Kafka's ids: a UUID in URL-safe base 64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
