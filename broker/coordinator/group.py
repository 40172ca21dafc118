"""GroupCoordinator: who is in which consumer group, and up to where it has read (classic protocol).

Owns: every group whose partition of `__consumer_offsets` this broker leads, and the timers of
their members, rebalances and syncs. What a group decides is appended to that topic first and then
answered; who hands an answer on sees to it that the append is committed. After a restart all is
read from there. Called by: the event loop's thread only; nothing here blocks or waits: an answer
that must wait for other members is a callback that is called once, perhaps before the call returns.

States and checks, their order and error codes are those of Apache Kafka 4.3. A request for a group
of another broker is refused with NotCoordinatorError, while the group is being loaded with
CoordinatorLoadInProgressError; every method may raise them. Whether a transaction is open, and when
it ends, is for its own coordinator to say. Groups of the consumer protocol of KIP-848 are here with
their offsets alone; `broker.coordinator.consumer_groups` answers their members.
"""

import logging
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Protocol

from kafka.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import TopicPartition

from broker.config.broker import BrokerConfig
from broker.coordinator.consumer_group import tombstones
from broker.coordinator.consumer_group_records import TopicIdPartition, encode
from broker.coordinator.group_metadata import (
    NO_MEMBER_ID,
    GroupMetadata,
    GroupState,
    JoinResult,
    Member,
    MemberProtocol,
    OnJoined,
    OnSynced,
    SyncResult,
)
from broker.coordinator.offset_records import (
    CommittedOffset,
    OffsetKey,
    commit_record,
    commit_tombstone,
    group_record,
    group_tombstone,
)
from broker.coordinator.state_records import NO_TIMESTAMP, ProducerIdAndEpoch, StateRecord
from broker.coordinator.timers import Timers
from broker.log.clock import Clock

_log = logging.getLogger(__name__)

# A new member cannot heartbeat before its first join is answered; it is given up after this time.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
_LONGEST_GROUP_ID = 2**15 - 1
_MINUTE_MS = 60_000
_PART_BYTES = 256 * 1024


class GroupLog(Protocol):
    """Where the groups' records go: `__consumer_offsets`."""

    def check_coordinates(self, group_id: str) -> None:
        """Raises NotCoordinatorError or CoordinatorLoadInProgressError."""
        ...

    def append(
        self,
        group_id: str,
        records: Sequence[StateRecord],
        producer: ProducerIdAndEpoch | None = None,
    ) -> int:
        """All or none, in the producer's transaction where one is given; the offset of the first.
        Raises BrokerResponseError as the group's client is to see it."""
        ...

    def partition_of(self, group_id: str) -> int:
        """Which of the topic's partitions has the group."""
        ...

    def is_loading(self, partition: int) -> bool:
        """Whether a partition is read just now."""
        ...

    @property
    def is_loading_any(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class JoinAsk:
    """A JoinGroup."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    reason: str = ""
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True


@dataclass(frozen=True, slots=True)
class SyncAsk:
    """A SyncGroup; `assignments` by member id, from the leader."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class CommitAsk:
    """An OffsetCommit, or TxnOffsetCommit; `known_group_only` where a version has an error for an
    unknown group."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Sequence[tuple[TopicPartition, CommittedOffset]]
    known_group_only: bool = False


class GroupCoordinator:
    """Answers members of classic groups, and keeps the offsets of all groups.

    The event loop's thread only; an answer that must wait for other members is a callback.
    """

    def __init__(self, config: BrokerConfig, log: GroupLog, timers: Timers, clock: Clock) -> None:
        self._config = config
        self._log = log
        self._timers = timers
        self._clock = clock
        self._groups: dict[str, GroupMetadata] = {}
        # By producer id: the groups with offsets that its open transaction commits (and perhaps
        # some whose offsets were deleted since).
        self._transactions: defaultdict[int, set[str]] = defaultdict(set)

    # Loading and leaving.

    def take_over(self, groups: Mapping[str, GroupMetadata]) -> None:
        """Groups as they were written down: their members are given a session's time."""
        for group in groups.values():
            self._groups[group.group_id] = group
            for producer_id in group.pending_offsets:
                self._transactions[producer_id].add(group.group_id)
            for member in group.members.values():
                self._keep_session(group, member)
            if len(group.members) > self._config.group_max_size:
                self._prepare_rebalance(group, "loaded with too many members")

    def groups_of(self, partition: int) -> list[GroupMetadata]:
        """The groups that a partition of `__consumer_offsets` has."""
        return [
            group
            for group_id, group in self._groups.items()
            if self._log.partition_of(group_id) == partition
        ]

    def resign(self, partition: int) -> None:
        """Forgets the partition's groups: who waits for an answer asks their next coordinator."""
        error = NotCoordinatorError()
        for group in self.groups_of(partition):
            del self._groups[group.group_id]
            for producer_id in group.pending_offsets:
                self._transactions[producer_id].discard(group.group_id)
                if not self._transactions[producer_id]:
                    del self._transactions[producer_id]
            self._timers.cancel(("join", group.group_id))
            self._timers.cancel(("sync", group.group_id))
            for member_id in (*group.members, *group.pending_members):
                self._timers.cancel(("session", group.group_id, member_id))
            for member in group.members.values():
                group.answer_join(member, JoinResult(member.member_id, error))
                member.answer_sync(SyncResult(error))

    # Joining.

    def join(self, ask: JoinAsk, on_joined: OnJoined) -> None:
        """Answers when the group's next generation has begun, or why it did not."""
        try:
            self._check_group(ask.group_id)
            least_ms = self._config.group_min_session_timeout_ms
            most_ms = self._config.group_max_session_timeout_ms
            if not least_ms <= ask.session_timeout_ms <= most_ms:
                raise InvalidSessionTimeoutError(f"not within {least_ms} to {most_ms} ms")
            self._join(ask, on_joined)
        except BrokerResponseError as error:
            no_id = isinstance(error, GroupMaxSizeReachedError)
            on_joined(JoinResult(NO_MEMBER_ID if no_id else ask.member_id, error))

    def _join(self, ask: JoinAsk, on_joined: OnJoined) -> None:
        is_new_member = ask.member_id == NO_MEMBER_ID
        group = self._groups.get(ask.group_id)
        if group is None:
            if not is_new_member:
                raise UnknownMemberIdError()
            group = GroupMetadata(ask.group_id, self._clock())
        if not group.is_empty and group.consumer is not None:
            raise InconsistentGroupProtocolError("its members use the consumer protocol")
        if not self._has_room(group, ask.member_id):
            self._forget_member(group, ask.member_id)
            self._complete_join_if_all_are_here(group)
            raise GroupMaxSizeReachedError(f"group.max.size={self._config.group_max_size}")
        if not group.supports(ask.protocol_type, ask.protocols):
            raise InconsistentGroupProtocolError()
        if group.group_id not in self._groups or group.consumer is not None:
            begun = group_record(group.group_id, group.snapshot())
            self._log.append(group.group_id, [*_consumer_tombstones(group), begun])
            group.consumer = None
            self._groups[group.group_id] = group
        if is_new_member:
            self._join_new(group, ask, on_joined)
        elif ask.member_id in group.pending_members:
            self._add_member(group, ask, ask.member_id, on_joined)
        else:
            self._join_again(group, ask, on_joined)

    def _has_room(self, group: GroupMetadata, member_id: str) -> bool:
        """Whether the member may (still) be one of at most group.max.size."""
        member = group.members.get(member_id)
        if group.is_in(GroupState.PREPARING_REBALANCE):
            # Who has joined stays; of the others the first ones to come do.
            is_in = member is not None and member.on_joined is not None
            return is_in or group.awaiting_join_count < self._config.group_max_size
        if group.is_in(GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(group.members) < self._config.group_max_size
        return True

    def _join_new(self, group: GroupMetadata, ask: JoinAsk, on_joined: OnJoined) -> None:
        member_id = f"{ask.instance_id or ask.client_id}-{uuid.uuid4()}"
        old_id = group.static_member_id(ask.instance_id)
        if old_id is not None:
            self._replace_static(group, ask, old_id, member_id, on_joined)
        elif ask.instance_id is None and ask.requires_known_member_id:
            group.pending_members.add(member_id)
            self._start_session(group, member_id, ask.session_timeout_ms)
            on_joined(JoinResult(member_id, MemberIdRequiredError()))
        else:
            self._add_member(group, ask, member_id, on_joined)

    def _join_again(self, group: GroupMetadata, ask: JoinAsk, on_joined: OnJoined) -> None:
        """A member that the group knows, or not any more."""
        member = group.validate_member(ask.member_id, ask.instance_id)
        if group.is_in(GroupState.EMPTY):
            raise UnknownMemberIdError()
        # The leader joins again to have partitions assigned anew; others, with the same wishes,
        # because they missed the last answer.
        has_news = member.protocols != ask.protocols or (
            group.is_in(GroupState.STABLE) and group.leader_id == member.member_id
        )
        if has_news or group.is_in(GroupState.PREPARING_REBALANCE):
            self._update_member(group, member, ask, on_joined)
            self._rebalance(group, f"{member.member_id} joins again: {ask.reason}")
        else:
            on_joined(group.join_result(member))

    def _add_member(
        self, group: GroupMetadata, ask: JoinAsk, member_id: str, on_joined: OnJoined
    ) -> None:
        member = Member(
            member_id,
            ask.instance_id,
            ask.client_id,
            ask.client_host,
            ask.rebalance_timeout_ms,
            ask.session_timeout_ms,
            ask.protocols,
        )
        member.is_new = True
        member.on_joined = on_joined
        if group.is_in(GroupState.PREPARING_REBALANCE) and group.previous_state is GroupState.EMPTY:
            group.member_added = True
        group.add(member, ask.protocol_type)
        self._start_session(group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance(group, f"{member_id} joins: {ask.reason}")

    def _update_member(
        self, group: GroupMetadata, member: Member, ask: JoinAsk, on_joined: OnJoined | None
    ) -> None:
        group.update(
            member, ask.protocols, ask.rebalance_timeout_ms, ask.session_timeout_ms, on_joined
        )

    def _replace_static(
        self,
        group: GroupMetadata,
        ask: JoinAsk,
        old_id: str,
        member_id: str,
        on_joined: OnJoined,
    ) -> None:
        """A known instance comes back without its id: it takes its own place."""
        assert ask.instance_id is not None
        old_leader_id = group.leader_id
        old = group.members[old_id]
        before = (old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        member = group.replace_static(ask.instance_id, old_id, member_id)
        self._timers.cancel(("session", group.group_id, old_id))
        self._keep_session(group, member)
        self._update_member(group, member, ask, on_joined)
        _log.info("group.replaced group=%r old=%r new=%r", group.group_id, old_id, member_id)
        if not group.is_in(GroupState.STABLE):
            # A leader that knows the old id would assign nothing to the new one.
            self._rebalance(group, f"{ask.instance_id} comes back")
            return
        if group.select_protocol() != group.protocol_name:
            self._rebalance(group, f"{ask.instance_id} comes back with another protocol")
            return
        try:
            self._log.append(group.group_id, [group_record(group.group_id, group.snapshot())])
        except BrokerResponseError as error:
            group.update(member, *before, None)
            restored = group.replace_static(ask.instance_id, member_id, old_id)
            self._timers.cancel(("session", group.group_id, member_id))
            self._keep_session(group, restored)
            on_joined(JoinResult(NO_MEMBER_ID, error))
            return
        # A leader that assigned anew now would not be heard: the group is stable. It is told so,
        # or, where its version has no word for that, that the old id leads.
        skips = ask.supports_skipping_assignment and group.leader_id == member_id
        leader_id = group.leader_id if ask.supports_skipping_assignment else old_leader_id
        result = JoinResult(
            member_id,
            None,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            leader_id or NO_MEMBER_ID,
            group.joined_members() if skips else (),
            skips,
        )
        group.answer_join(member, result)

    # Rebalancing.

    def _rebalance(self, group: GroupMetadata, reason: str) -> None:
        """Begins a rebalance, or ends the one under way if this was the last to wait for."""
        if group.can_rebalance:
            self._prepare_rebalance(group, reason)
        else:
            self._complete_join_if_all_are_here(group)

    def _prepare_rebalance(self, group: GroupMetadata, reason: str) -> None:
        if group.is_in(GroupState.COMPLETING_REBALANCE):
            self._answer_syncs(group, RebalanceInProgressError())
        self._timers.cancel(("sync", group.group_id))
        is_initial = group.is_in(GroupState.EMPTY)
        group.transition_to(GroupState.PREPARING_REBALANCE, self._clock())
        _log.info(
            "group.rebalance group=%r generation=%d members=%d reason=%r",
            group.group_id,
            group.generation,
            len(group.members),
            reason,
        )
        if is_initial:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            self._delay_initial(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        elif group.all_have_joined:
            self._complete_join(group)
        else:
            self._schedule_join(group)

    def _delay_initial(self, group: GroupMetadata, delay_ms: int, remaining_ms: int) -> None:
        """A new group's members seldom come at once: each new member extends the delay."""

        def is_over() -> None:
            if not group.member_added or not remaining_ms:
                self._complete_join(group)
                return
            group.member_added = False
            more_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
            self._delay_initial(group, more_ms, max(remaining_ms - delay_ms, 0))

        self._timers.schedule(("join", group.group_id), delay_ms, is_over)

    def _schedule_join(self, group: GroupMetadata) -> None:
        """Whoever has not joined by then has lost its place."""
        self._timers.schedule(
            ("join", group.group_id), group.rebalance_timeout_ms, lambda: self._complete_join(group)
        )

    def _complete_join_if_all_are_here(self, group: GroupMetadata) -> None:
        if (
            group.is_in(GroupState.PREPARING_REBALANCE)
            and group.all_have_joined
            and group.previous_state is not GroupState.EMPTY
        ):
            self._complete_join(group)

    def _complete_join(self, group: GroupMetadata) -> None:
        self._timers.cancel(("join", group.group_id))
        if not group.is_in(GroupState.PREPARING_REBALANCE):
            return
        missing = [
            member.member_id
            for member in group.members.values()
            if member.on_joined is None and member.instance_id is None
        ]
        for member_id in missing:
            self._forget_member(group, member_id)
        if missing:
            _log.info("group.not_rejoined group=%r members=%r", group.group_id, missing)
        if group.members and not group.elect_joined_leader():
            # Static members alone, and none has joined: their sessions decide.
            self._schedule_join(group)
            return
        group.begin_generation(self._clock())
        if not group.members:
            self._write_empty(group)
            return
        _log.info(
            "group.generation group=%r generation=%d members=%d protocol=%r",
            group.group_id,
            group.generation,
            len(group.members),
            group.protocol_name,
        )
        for member in list(group.members.values()):
            group.answer_join(member, group.join_result(member))
            member.is_new = False
            self._keep_session(group, member)
            group.pending_sync.add(member.member_id)
        self._timers.schedule(
            ("sync", group.group_id),
            group.rebalance_timeout_ms,
            lambda: self._remove_unsynced(group),
        )

    def _write_empty(self, group: GroupMetadata) -> None:
        _log.info("group.empty group=%r generation=%d", group.group_id, group.generation)
        try:
            self._log.append(group.group_id, [group_record(group.group_id, group.snapshot())])
        except BrokerResponseError as error:
            # Members that are gone would be given a session's time after a restart: no harm.
            _log.warning("group.not_written group=%r reason=%r", group.group_id, str(error))

    def _remove_unsynced(self, group: GroupMetadata) -> None:
        """Members that joined and then never asked for their part have lost it."""
        unsynced = list(group.pending_sync)
        if not group.is_in(GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not unsynced:
            return
        for member_id in unsynced:
            self._forget_member(group, member_id)
        self._prepare_rebalance(group, f"no sync from {unsynced}")

    # Syncing.

    def sync(self, ask: SyncAsk, on_synced: OnSynced) -> None:
        """Answers with the member's assignment, when the leader has given it."""
        try:
            self._sync(ask, on_synced)
        except CoordinatorLoadInProgressError:
            # Loading ends with the group stable or empty: to join again is what remains.
            on_synced(SyncResult(RebalanceInProgressError()))
        except BrokerResponseError as error:
            on_synced(SyncResult(error))

    def _sync(self, ask: SyncAsk, on_synced: OnSynced) -> None:
        self._check_group(ask.group_id)
        group = self._groups.get(ask.group_id)
        if group is None or group.is_in(GroupState.EMPTY):
            raise UnknownMemberIdError()
        member = group.validate_member(ask.member_id, ask.instance_id)
        if ask.generation != group.generation:
            raise IllegalGenerationError()
        if ask.protocol_type not in (None, group.protocol_type) or (
            ask.protocol_name not in (None, group.protocol_name)
        ):
            raise InconsistentGroupProtocolError()
        if group.is_in(GroupState.PREPARING_REBALANCE):
            raise RebalanceInProgressError()
        group.pending_sync.discard(ask.member_id)
        if not group.pending_sync:
            self._timers.cancel(("sync", group.group_id))
        if group.is_in(GroupState.STABLE):
            on_synced(self._sync_result(group, member))
            return
        member.on_synced = on_synced
        if group.leader_id == ask.member_id:
            self._assign(group, ask.assignments)

    def _assign(self, group: GroupMetadata, assignments: dict[str, bytes]) -> None:
        before = {member.member_id: member.assignment for member in group.members.values()}
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        try:
            self._log.append(group.group_id, [group_record(group.group_id, group.snapshot())])
        except BrokerResponseError as error:
            for member in group.members.values():
                member.assignment = before[member.member_id]
            self._answer_syncs(group, error)
            self._rebalance(group, f"the assignment could not be written: {error}")
            return
        group.transition_to(GroupState.STABLE, self._clock())
        self._answer_syncs(group, None)

    def _answer_syncs(self, group: GroupMetadata, error: BrokerResponseError | None) -> None:
        for member in list(group.members.values()):
            if error is not None:
                member.assignment = b""
            result = self._sync_result(group, member) if error is None else SyncResult(error)
            if member.answer_sync(result):
                self._keep_session(group, member)

    def _sync_result(self, group: GroupMetadata, member: Member) -> SyncResult:
        return SyncResult(None, group.protocol_type, group.protocol_name, member.assignment)

    # Staying and leaving.

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Prolongs the member's session. Raises RebalanceInProgressError when it is to join
        again, UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError."""
        try:
            self._check_group(group_id)
        except CoordinatorLoadInProgressError:
            return  # it will get its session's time when the group is there
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError()
        member = group.validate_member(member_id, instance_id)
        if generation != group.generation:
            raise IllegalGenerationError()
        self._keep_session(group, member)
        if group.is_in(GroupState.PREPARING_REBALANCE):
            raise RebalanceInProgressError()

    def leave(
        self, group_id: str, identities: Sequence[tuple[str, str | None]]
    ) -> list[BrokerResponseError | None]:
        """Members, by (member id, instance id), go; an instance may be named without its id."""
        self._check_group(group_id)
        group = self._groups.get(group_id)
        if group is None:
            return [UnknownMemberIdError() for _ in identities]
        count = len(group.members)
        errors: list[BrokerResponseError | None] = []
        for member_id, instance_id in identities:
            try:
                self._leave(group, member_id, instance_id)
                errors.append(None)
            except BrokerResponseError as error:
                errors.append(error)
        if len(group.members) < count:
            self._went(group, "members left")
        elif None in errors:
            self._complete_join_if_all_are_here(group)
        return errors

    def _leave(self, group: GroupMetadata, member_id: str, instance_id: str | None) -> None:
        if member_id == NO_MEMBER_ID:
            found = group.static_member_id(instance_id)
            if found is None:
                raise UnknownMemberIdError()
            member_id = found
        elif member_id not in group.pending_members:
            group.validate_member(member_id, instance_id)
        _log.info("group.left group=%r member=%r", group.group_id, member_id)
        self._forget_member(group, member_id)

    def _forget_member(self, group: GroupMetadata, member_id: str) -> None:
        """A member that still waits is told; it joins anew if it is there after all."""
        self._timers.cancel(("session", group.group_id, member_id))
        member = group.members.get(member_id)
        if member is not None:
            error = UnknownMemberIdError()
            group.answer_join(member, JoinResult(NO_MEMBER_ID, error))
            member.answer_sync(SyncResult(error))
        group.remove(member_id)

    def _went(self, group: GroupMetadata, reason: str) -> None:
        """Members are gone: the others share anew, or wait for fewer."""
        if group.is_in(GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalance(group, reason)
        else:
            self._complete_join_if_all_are_here(group)

    def _keep_session(self, group: GroupMetadata, member: Member) -> None:
        self._start_session(group, member.member_id, member.session_timeout_ms)

    def _start_session(self, group: GroupMetadata, member_id: str, timeout_ms: int) -> None:
        self._timers.schedule(
            ("session", group.group_id, member_id),
            timeout_ms,
            lambda: self._session_is_over(group, member_id),
        )

    def _session_is_over(self, group: GroupMetadata, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is not None and member.session_is_kept:
            return
        _log.info("group.session_over group=%r member=%r", group.group_id, member_id)
        self._forget_member(group, member_id)
        if member is not None:
            self._went(group, f"{member_id} has not been heard of")
        else:  # an id that was never used
            self._complete_join_if_all_are_here(group)

    # Offsets.

    def commit(self, ask: CommitAsk) -> list[BrokerResponseError | None]:
        """Commits offsets: an answer for each, in order. Raises where none may be committed."""
        self._check_group(ask.group_id, may_be_empty=True)
        group = self._groups.get(ask.group_id)
        if group is None:
            if ask.generation >= 0:
                raise GroupIdNotFoundError() if ask.known_group_only else IllegalGenerationError()
            group = GroupMetadata(ask.group_id, self._clock())
        if group.consumer is None:
            group.check_may_commit(ask.member_id, ask.instance_id, ask.generation)
        else:
            group.consumer.check_may_commit(
                ask.member_id,
                ask.generation,
                _by_topic_id(ask.offsets),
                knows_epochs=ask.known_group_only,
            )
        member = group.members.get(ask.member_id)
        if member is not None:
            self._keep_session(group, member)
        errors, appended = self._append_commits(group, ask)
        group.offsets.update(appended)
        return errors

    def commit_transactional(
        self, ask: CommitAsk, producer: ProducerIdAndEpoch
    ) -> list[BrokerResponseError | None]:
        """Commits offsets if the producer's transaction, which the caller knows to be open, is
        committed: an answer for each, in order. Raises where none may be committed;
        InvalidProducerEpochError for a producer that a newer one replaced."""
        self._check_group(ask.group_id)
        group = self._groups.get(ask.group_id)
        if group is None:
            if ask.generation >= 0:
                raise IllegalGenerationError()
            group = GroupMetadata(ask.group_id, self._clock())
        if group.consumer is None:
            group.check_may_commit_in_transaction(ask.member_id, ask.instance_id, ask.generation)
        else:
            group.consumer.check_may_commit_in_transaction(
                ask.member_id, ask.instance_id, ask.generation, _by_topic_id(ask.offsets)
            )
        errors, appended = self._append_commits(group, ask, producer)
        if appended:
            group.add_pending(producer.producer_id, appended)
            self._transactions[producer.producer_id].add(ask.group_id)
        return errors

    def _append_commits(
        self, group: GroupMetadata, ask: CommitAsk, producer: ProducerIdAndEpoch | None = None
    ) -> tuple[list[BrokerResponseError | None], Sequence[tuple[TopicPartition, CommittedOffset]]]:
        """An answer for each offset, and the ones that are in the log now."""
        most = self._config.offset_metadata_max_bytes
        errors: list[BrokerResponseError | None] = []
        accepted = []
        for topic_partition, committed in ask.offsets:
            too_large = len(committed.metadata) > most
            errors.append(OffsetMetadataTooLargeError() if too_large else None)
            if not too_large:
                accepted.append((topic_partition, committed))
        if not accepted:
            return errors, ()
        records = [
            commit_record(OffsetKey(ask.group_id, topic_partition), committed)
            for topic_partition, committed in accepted
        ]
        log_offset = self._log.append(ask.group_id, records, producer)
        self._groups[ask.group_id] = group
        return errors, [
            (topic_partition, replace(committed, log_offset=log_offset))
            for topic_partition, committed in accepted
        ]

    def complete_transaction(
        self, producer_id: int, offsets_partitions: Collection[int], *, is_commit: bool
    ) -> None:
        """The producer's transaction has ended: its marker is in these partitions of
        `__consumer_offsets`. For its coordinator, in the same turn of the loop as the append, and
        not while groups are being loaded: who reads the log then may not see the marker."""
        group_ids = self._transactions.pop(producer_id, set())
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is None or producer_id not in group.pending_offsets:
                continue  # deleted since
            if self._log.partition_of(group_id) in offsets_partitions:
                group.complete_transaction(producer_id, is_commit=is_commit)
            else:
                self._transactions[producer_id].add(group_id)

    def unstable(self, group_id: str) -> AbstractSet[TopicPartition]:
        """The partitions whose offset may change with the end of a transaction."""
        self._check_group(group_id, may_be_empty=True)
        group = self._groups.get(group_id)
        return frozenset() if group is None else group.unstable_partitions

    def committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """All that the group has committed; nothing for an unknown group."""
        self._check_group(group_id, may_be_empty=True)
        group = self._groups.get(group_id)
        return {} if group is None else group.offsets

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[BrokerResponseError | None]:
        """Forgets committed offsets of topics that no member reads: an answer for each."""
        self._check_group(group_id)
        group = self._known(group_id)
        group.check_may_delete_offsets()
        errors: list[BrokerResponseError | None] = [
            GroupSubscribedToTopicError() if group.is_subscribed_to(each.topic) else None
            for each in partitions
        ]
        pairs = zip(partitions, errors, strict=True)
        self._delete_offsets(group, [each for each, error in pairs if error is None])
        return errors

    def topic_deleted(self, topic: str) -> None:
        """What was committed of a topic goes with it."""
        for group in self._groups.values():
            gone = [each for each in group.known_partitions if each.topic == topic]
            try:
                self._delete_offsets(group, gone)
            except BrokerResponseError as error:
                _log.warning("group.not_written group=%r reason=%r", group.group_id, str(error))

    def _delete_offsets(
        self,
        group: GroupMetadata,
        partitions: Iterable[TopicPartition],
        more: Sequence[StateRecord] = (),
    ) -> None:
        """Writes tombstones, `more` behind them, and forgets the offsets as they are written;
        pending ones with them."""
        known = group.known_partitions
        gone = [each for each in partitions if each in known]
        records = [commit_tombstone(OffsetKey(group.group_id, each)) for each in gone]
        written = 0
        for part in _parts([*records, *more]):
            self._log.append(group.group_id, part)
            group.forget_offsets(gone[written : written + len(part)])
            written += len(part)

    def expire(self) -> Iterator[None]:
        """Drops what nobody needs any more: offsets by offsets.retention.minutes, and groups
        without members and offsets. Yields between groups, so that others have their turn."""
        retention_ms = self._config.offsets_retention_minutes * _MINUTE_MS
        for group in list(self._groups.values()):
            yield
            if self._groups.get(group.group_id) is not group:
                continue
            try:
                self._expire(group, retention_ms)
            except BrokerResponseError as error:
                _log.warning("group.not_expired group=%r reason=%r", group.group_id, str(error))

    def _expire(self, group: GroupMetadata, retention_ms: int) -> None:
        expired = group.expired_offsets(self._clock(), retention_ms)
        is_unused = group.is_empty and not (group.pending_members or group.pending_offsets)
        if is_unused and len(expired) == len(group.offsets):
            self._delete(group)
        elif expired:
            self._delete_offsets(group, expired)
        if expired:
            _log.info("group.expired group=%r offsets=%d", group.group_id, len(expired))

    # Looking at groups, and deleting them.

    @property
    def is_loading_any(self) -> bool:
        """Whether some groups are not known yet."""
        return self._log.is_loading_any

    def is_loading(self, partition: int) -> bool:
        """Whether the groups of a partition of `__consumer_offsets` are not known yet."""
        return self._log.is_loading(partition)

    def groups(self) -> list[GroupMetadata]:
        return list(self._groups.values())

    def group(self, group_id: str) -> GroupMetadata:
        """To be read only. Raises GroupIdNotFoundError."""
        self._check_group(group_id, may_be_empty=True)
        group = self._known(group_id)
        if group.consumer is not None:
            raise GroupIdNotFoundError(f"Group {group_id} is not a classic group.")
        return group

    def delete(self, group_id: str) -> None:
        """Deletes a group without members, and its offsets. Raises GroupIdNotFoundError,
        NonEmptyGroupError."""
        self._check_group(group_id, may_be_empty=True)
        group = self._known(group_id)
        if not group.is_empty:
            raise NonEmptyGroupError()
        self._delete(group)
        _log.info("group.deleted group=%r", group_id)

    def _delete(self, group: GroupMetadata) -> None:
        last = [*_consumer_tombstones(group), group_tombstone(group.group_id)]
        self._delete_offsets(group, group.known_partitions, last)
        for member_id in list(group.pending_members):
            self._forget_member(group, member_id)
        group.transition_to(GroupState.DEAD, self._clock())
        del self._groups[group.group_id]

    # For groups of the consumer protocol.

    def find(self, group_id: str) -> GroupMetadata | None:
        """A group of either protocol."""
        self._check_group(group_id)
        return self._groups.get(group_id)

    def find_loaded(self, group_id: str) -> GroupMetadata | None:
        """The same for a timer of the group's, which does not ask whose it is."""
        return self._groups.get(group_id)

    def adopt(self, group: GroupMetadata) -> None:
        """A new group, which has just been written down."""
        self._groups[group.group_id] = group

    def check_may_fetch_offsets(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raises UnknownMemberIdError, StaleMemberEpochError for a group of that protocol."""
        group = self._groups.get(group_id)
        if group is not None and group.consumer is not None:
            group.consumer.check_may_fetch_offsets(member_id, epoch)

    def _known(self, group_id: str) -> GroupMetadata:
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        return group

    def _check_group(self, group_id: str, *, may_be_empty: bool = False) -> None:
        """Raises InvalidGroupIdError, and what the module's head says. Old clients that only
        store offsets may have an empty group id."""
        if group_id in self._groups:
            if not group_id and not may_be_empty:
                raise InvalidGroupIdError()
            return
        if not (group_id or may_be_empty) or len(group_id) > _LONGEST_GROUP_ID:
            raise InvalidGroupIdError()
        self._log.check_coordinates(group_id)


def _consumer_tombstones(group: GroupMetadata) -> list[StateRecord]:
    """What deletes the records that the group has as one of the consumer protocol."""
    if group.consumer is None:
        return []
    return [encode(update) for update in tombstones(group.consumer)]


def _by_topic_id(
    offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
) -> Iterator[TopicIdPartition]:
    for topic_partition, committed in offsets:
        if committed.topic_id is not None:
            yield TopicIdPartition(committed.topic_id, topic_partition.partition)


def _parts(records: Iterable[StateRecord]) -> Iterator[list[StateRecord]]:
    """Cut so that each part fits a batch: a group may have committed very much."""
    part: list[StateRecord] = []
    size_bytes = 0
    for record in records:
        size_bytes += len(record.key)
        if part and size_bytes > _PART_BYTES:
            yield part
            part, size_bytes = [], len(record.key)
        part.append(record)
    if part:
        yield part


def new_commit(
    offset: int,
    leader_epoch: int,
    metadata: str | None,
    now_ms: int,
    retention_ms: int,
    topic_id: uuid.UUID | None,
) -> CommittedOffset:
    """What a client commits; `retention_ms` -1 leaves it to the broker how long it is kept."""
    expire_ms = NO_TIMESTAMP if retention_ms < 0 else now_ms + retention_ms
    return CommittedOffset(offset, leader_epoch, metadata or "", now_ms, expire_ms, topic_id)
