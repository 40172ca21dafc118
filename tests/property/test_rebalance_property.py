"""Rebalance correctness: 1 to 8 members that join, leave, pause, crash and come back, and a
coordinator that is killed and restarted in between.

Always: in every stable generation each partition has exactly one owner among the members; stable
generations only grow; of all that believe to own a partition at most one may commit. And when
nothing more happens, the group becomes stable with every live member in it: no rebalance is stuck.
"""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kafka.errors import (
    BrokerResponseError,
    FencedInstanceIdError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import TopicPartition

from broker.coordinator.group_metadata import GroupMetadata, GroupState, JoinResult, SyncResult
from tests.broker.coordinator.in_memory import GROUP, Coordinated

PARTITIONS = frozenset(range(5))
HEARTBEAT_S = 3.0
SESSION_MS, REBALANCE_MS = 10_000, 20_000
SETTLE_S = 4 * REBALANCE_MS / 1000


@dataclass(eq=False)
class SimulatedMember:
    """A consumer as clients are: one request at a time, heartbeats in between."""

    instance_id: str | None
    needs_id: bool
    member_id: str = ""
    generation: int = -1
    owned: frozenset[int] = frozenset()
    paused: bool = False
    busy: bool = False
    """Heartbeats go on, but nothing else does, as in a consumer that is long at one batch."""
    fenced: bool = False
    joins: list[JoinResult] | None = None
    syncs: list[SyncResult] | None = None
    wishes: bytes = b""

    @property
    def is_idle(self) -> bool:
        return self.joins is None and self.syncs is None


class Rebalancing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.coordinated = Coordinated()
        self.members: list[SimulatedMember] = []
        self.stable: tuple[int, dict[str, bytes]] = (0, {})
        self.numbers = 0

    # What happens to members.

    @precondition(lambda self: len(self.members) < 8)
    @rule(is_static=st.booleans(), needs_id=st.booleans())
    def start(self, is_static: bool, needs_id: bool) -> None:
        self.numbers += 1
        instance_id = f"instance-{self.numbers}" if is_static else None
        self.members.append(SimulatedMember(instance_id, needs_id))
        self.act()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self.pick(data)
        self.members.remove(member)
        self.coordinated.groups.leave(GROUP, [(member.member_id, member.instance_id)])
        self.act()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.members.remove(self.pick(data))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        member = self.pick(data)
        member.paused = not member.paused
        self.act()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def begin_or_end_work(self, data: st.DataObject) -> None:
        member = self.pick(data)
        member.busy = not member.busy
        self.act()

    @precondition(lambda self: any(m.instance_id for m in self.members) and len(self.members) < 8)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A static member is started again, while its predecessor may still run."""
        static = [member for member in self.members if member.instance_id and not member.fenced]
        if static:
            old = data.draw(st.sampled_from(static))
            self.members.append(SimulatedMember(old.instance_id, old.needs_id, wishes=old.wishes))
            self.act()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), wishes=st.binary(max_size=1))
    def wish(self, data: st.DataObject, wishes: bytes) -> None:
        """Subscribes to other things, or (the leader) saw a topic change: joins again."""
        member = self.pick(data)
        member.wishes = wishes
        if member.is_idle and not (member.paused or member.busy or member.fenced):
            self.join(member)
            self.act()

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 9.0, 11.0, 25.0]))
    def pass_time(self, seconds: float) -> None:
        self.run_for(seconds)

    @rule()
    def restart_coordinator(self) -> None:
        self.coordinated.restart()
        for member in self.members:
            if not member.is_idle:  # its connection is closed, it asks again
                member.joins = member.syncs = None
                member.generation = -1
        self.act()

    # What must hold.

    @invariant()
    def one_owner_in_a_stable_generation(self) -> None:
        group = self.group()
        if group is None or group.state is not GroupState.STABLE:
            return
        assigned = [p for m in group.members.values() for p in json.loads(m.assignment or b"[]")]
        assert sorted(assigned) == sorted(PARTITIONS), group.members
        assignments = {m.instance_id or m.member_id: m.assignment for m in group.members.values()}
        generation, known = self.stable
        assert group.generation >= generation
        if group.generation == generation:  # nobody came, nobody went, nothing was moved
            assert assignments == known
        self.stable = group.generation, assignments

    @invariant()
    def at_most_one_may_commit(self) -> None:
        group = self.group()
        for partition in PARTITIONS:
            may = [m for m in self.members if partition in m.owned and self.may_commit(group, m)]
            assert len(may) <= 1, (partition, may)

    def teardown(self) -> None:
        """Left alone, the group becomes stable with all its members."""
        for member in self.members:
            member.paused = False
        self.run_for(SETTLE_S)
        group = self.group()
        live = [
            member
            for member in self.members
            if not member.fenced
            and (not member.busy or (member.generation >= 0 and self.may_commit(group, member)))
        ]
        if all(member.busy for member in live) and live:
            return  # static ones, say, are waited for as long as they heartbeat
        if not live:
            assert group is None or group.state is GroupState.EMPTY, group.state
            assert not any(self.coordinated.timers._entries)
            return
        assert group is not None
        assert group.state is GroupState.STABLE, group.state
        assert {member.member_id for member in live} == set(group.members)
        assert all(member.is_idle for member in live if not member.busy)
        assert sorted(p for member in live for p in member.owned) == sorted(PARTITIONS)
        for member in (each for each in live if not each.busy):
            self.coordinated.commit({TopicPartition("t", 0): 1}, *self.identity(member))
        self.one_owner_in_a_stable_generation()

    # How members behave.

    def group(self) -> GroupMetadata | None:
        return next(iter(self.coordinated.groups.groups()), None)

    def pick(self, data: st.DataObject) -> SimulatedMember:
        return data.draw(st.sampled_from(self.members))

    def identity(self, member: SimulatedMember) -> tuple[str, int, str | None]:
        return member.member_id, member.generation, member.instance_id

    def may_commit(self, group: GroupMetadata | None, member: SimulatedMember) -> bool:
        if group is None:
            return False
        try:
            group.check_may_commit(member.member_id, member.instance_id, member.generation)
        except BrokerResponseError:
            return False
        return True

    def run_for(self, seconds: float) -> None:
        self.coordinated.time.advance(0.003)  # an initial delay of nothing
        self.act()
        while seconds > 0:
            step_s = min(HEARTBEAT_S, seconds)
            self.coordinated.time.advance(step_s)
            seconds -= step_s
            for member in self.members:
                if (member.is_idle or member.busy) and member.generation >= 0:
                    self.heartbeat(member)
            self.act()
            self.coordinated.time.advance(0.003)
            self.act()

    def act(self) -> None:
        """Every member that is awake takes its answers and goes on, until all wait."""
        moved = True
        while moved:
            moved = False
            for member in self.members:
                if not (member.paused or member.busy or member.fenced):
                    moved |= self.step(member)

    def step(self, member: SimulatedMember) -> bool:
        if member.joins:
            self.take_join(member, member.joins[0])
        elif member.syncs:
            self.take_sync(member, member.syncs[0])
        elif member.is_idle and member.generation < 0:
            self.join(member)
        else:
            return False
        return True

    def join(self, member: SimulatedMember) -> None:
        member.owned = frozenset()
        member.joins = self.coordinated.join(
            member.member_id,
            member.instance_id,
            [("range", member.wishes)],
            needs_id=member.needs_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )

    def take_join(self, member: SimulatedMember, joined: JoinResult) -> None:
        member.joins = None
        if isinstance(joined.error, MemberIdRequiredError):
            member.member_id, member.generation = joined.member_id, -1
        elif joined.error is not None:
            self.react(member, joined.error)
        else:
            member.member_id, member.generation = joined.member_id, joined.generation
            assignments = {}
            if joined.leader_id == member.member_id and not joined.skip_assignment:
                assignments = assign([each.member_id for each in joined.members])
            member.syncs = self.coordinated.sync(
                member.member_id, member.generation, assignments, member.instance_id
            )

    def take_sync(self, member: SimulatedMember, synced: SyncResult) -> None:
        member.syncs = None
        if synced.error is not None:
            self.react(member, synced.error)
        else:
            member.owned = frozenset(json.loads(synced.assignment or b"[]"))

    def heartbeat(self, member: SimulatedMember) -> None:
        if member.paused or member.fenced:
            return
        try:
            self.coordinated.groups.heartbeat(
                GROUP, member.generation, member.member_id, member.instance_id
            )
        except BrokerResponseError as error:
            if not member.busy:
                self.react(member, error)

    def react(self, member: SimulatedMember, error: BrokerResponseError) -> None:
        member.owned = frozenset()
        if isinstance(error, FencedInstanceIdError):
            member.fenced = True
        elif isinstance(error, UnknownMemberIdError):
            member.member_id, member.generation = "", -1
        elif isinstance(error, RebalanceInProgressError) and member.is_idle:
            self.join(member)
        else:
            member.generation = -1


def assign(member_ids: list[Any]) -> dict[Any, Any]:
    """Round robin, as the leader does it."""
    parts: dict[str, list[int]] = {member_id: [] for member_id in member_ids}
    for partition in sorted(PARTITIONS):
        parts[member_ids[partition % len(member_ids)]].append(partition)
    return {member_id: json.dumps(part).encode() for member_id, part in parts.items()}


TestRebalancing = Rebalancing.TestCase
TestRebalancing.settings = settings(stateful_step_count=40)
