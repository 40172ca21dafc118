"""The consumer protocol: 1 to 8 members that join, leave, pause, crash, come back, lose answers,
subscribe to other things; topics that come, grow and go; a coordinator that is killed and
restarted, and whose log refuses.

Always: no two members own one partition of those whose epoch the coordinator would accept; what the
coordinator believes to be owned has one owner. In every stable state each partition of a subscribed
topic has exactly one owner, who subscribes to it. And when nothing more happens, the group becomes
stable with every live member in it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.errors import (
    BrokerResponseError,
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)

from broker.coordinator.consumer_group import (
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerGroup,
    ConsumerGroupState,
)
from broker.coordinator.consumer_group_records import TopicIdPartition
from broker.coordinator.consumer_groups import HeartbeatAnswer
from broker.coordinator.topic_regex import resolve
from tests.broker.coordinator.consumer_in_memory import ConsumerCoordinated, Member
from tests.broker.coordinator.in_memory import GROUP

HEARTBEAT_S = 5.0
SESSION_S = 45.0
REBALANCE_S = 30.0
TOPICS = ["ta", "tb", "uc"]
# By names, or by an expression.
WISHES = st.one_of(
    st.sets(st.sampled_from(TOPICS)).map(lambda names: {"topics": sorted(names), "regex": ""}),
    st.sampled_from(["t.", ".*", "u?c"]).map(lambda regex: {"topics": [], "regex": regex}),
)


class SimulatedMember(Member):
    """A consumer as clients are: it gives up what it is told to some time later, and says so."""

    paused = False
    """No heartbeats, and it does not know that its session is over: it works on."""
    slow = False
    """Heartbeats go on, but it gives up nothing, as in a consumer that is long at one batch."""
    fenced = False
    unsure = False
    """The last answer did not come, or it wishes other things: it says everything."""
    wanted: frozenset[TopicIdPartition] = frozenset()

    def take(self, answer: HeartbeatAnswer) -> None:
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.wanted = frozenset(answer.assigned)
        if not self.slow:
            self.owned = self.wanted

    def start_again(self) -> None:
        self.epoch, self.owned, self.wanted = 0, frozenset(), frozenset()


class ConsumerGroups(RuleBasedStateMachine):
    @initialize(assignor=st.sampled_from(["uniform", "range"]), interval=st.sampled_from([0, 1000]))
    def begin(self, assignor: str, interval: int) -> None:
        self.coordinated = ConsumerCoordinated(
            {
                "group.consumer.assignment.interval.ms": str(interval),
                "group.consumer.assignors": assignor,
            }
        )
        self.members: list[SimulatedMember] = []
        self.numbers = 0
        self.coordinated.topics.put("ta", 3)

    # What happens to members.

    def make(self, instance_id: str | None, wishes: Mapping[str, Sequence[str]]) -> None:
        self.numbers += 1
        member = SimulatedMember(
            self.coordinated,
            f"m{self.numbers}",
            instance_id=instance_id,
            rebalance_timeout_ms=int(REBALANCE_S * 1000),
            **wishes,
        )
        self.members.append(member)
        self.beat(member)

    @precondition(lambda self: len(self.members) < 8)
    @rule(is_static=st.booleans(), wishes=WISHES)
    def start(self, is_static: bool, wishes: dict[str, Sequence[str]]) -> None:
        self.make(f"instance-{self.numbers}" if is_static else None, wishes)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.members.remove(self.pick(data))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), for_a_while=st.booleans())
    def leave(self, data: st.DataObject, for_a_while: bool) -> None:
        member = self.pick(data)
        self.members.remove(member)
        static = member.instance_id is not None and for_a_while
        with contextlib.suppress(BrokerResponseError):  # it was none any more, or the log refuses
            member.leave(LEAVE_FOR_A_WHILE_EPOCH if static else LEAVE_EPOCH)

    @precondition(lambda self: any(m.instance_id for m in self.members) and len(self.members) < 8)
    @rule(data=st.data(), leaves=st.booleans())
    def come_back(self, data: st.DataObject, leaves: bool) -> None:
        """A static member is started again, while its predecessor may still run."""
        old = data.draw(st.sampled_from([each for each in self.members if each.instance_id]))
        if leaves:
            self.members.remove(old)
            with contextlib.suppress(BrokerResponseError):
                old.leave(LEAVE_FOR_A_WHILE_EPOCH)
        wishes: dict[str, Any] = {name: old.fields[name] for name in ("topics", "regex")}
        self.make(old.instance_id, wishes)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        member = self.pick(data)
        member.paused = not member.paused

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def begin_or_end_work(self, data: st.DataObject) -> None:
        member = self.pick(data)
        member.slow = not member.slow
        if not member.slow:
            member.owned = member.wanted

    @precondition(lambda self: self.members)
    @rule(data=st.data(), wishes=WISHES)
    def wish(self, data: st.DataObject, wishes: dict[str, Sequence[str]]) -> None:
        member = self.pick(data)
        member.fields |= wishes
        member.unsure = True
        self.beat(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def lose_an_answer(self, data: st.DataObject) -> None:
        member = self.pick(data)
        if member.epoch > 0 and not member.paused:
            self.guarded(member, member.ask)
            member.unsure = True

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.beat(self.pick(data))

    # What happens around them.

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        known = self.coordinated.topics.topic(name)
        self.coordinated.topics.put(name, more + len(known.partitions if known else ()))

    @rule(name=st.sampled_from(TOPICS))
    def delete(self, name: str) -> None:
        if self.coordinated.topics.topic(name) is not None:
            self.coordinated.topics.delete(name)

    @rule(seconds=st.sampled_from([0.5, 5.0, 12.0, 31.0, 46.0]))
    def pass_time(self, seconds: float) -> None:
        self.run_for(seconds)

    @rule()
    def finish_aside(self) -> None:
        self.coordinated.finish_aside()

    @rule()
    def restart_coordinator(self) -> None:
        self.coordinated.restart()

    @rule()
    def log_refuses_or_recovers(self) -> None:
        refuses = self.coordinated.log.error is None
        self.coordinated.log.error = CoordinatorNotAvailableError() if refuses else None

    # What must hold.

    @invariant()
    def one_owner_whatever_happens(self) -> None:
        group = self.group()
        if group is None:
            return
        accepted = [m for m in self.members if self.is_accepted(group, m)]
        owned = Counter(partition for member in accepted for partition in member.owned)
        assert all(count == 1 for count in owned.values()), owned
        believed = Counter(
            partition
            for member in group.members.values()
            for partition in (*member.current.assigned, *member.current.revoking)
        )
        assert all(count == 1 for count in believed.values()), believed
        assert believed.keys() == group.owners.keys()
        # Whoever is accepted owns nothing that the coordinator thinks another's, or free.
        for member in accepted:
            assert all(group.owners.get(each) == member.member_id for each in member.owned)

    @invariant()
    def stable_is_complete(self) -> None:
        group = self.group()
        if group is None or group.state is not ConsumerGroupState.STABLE:
            return
        if group.compute_hash(self.coordinated.topics) != group.metadata_hash:
            return  # topics have changed since the last heartbeat
        wanted = self.coordinated.topics.all_partitions(group.subscribed_topics)
        assigned = [p for m in group.members.values() for p in m.current.assigned]
        assert sorted(assigned) == sorted(wanted)
        names = {topic.topic_id: topic.name for topic in self.coordinated.topics.topics()}
        for member in group.members.values():
            assert {names[p.topic_id] for p in member.current.assigned} <= group.topics_of(member)

    def teardown(self) -> None:
        """Left alone, the group becomes stable with all its members."""
        self.coordinated.log.error = None
        for member in self.members:
            member.paused = member.slow = False
            member.owned = member.wanted
        self.run_for(3 * SESSION_S)
        group = self.group()
        live = [member for member in self.members if not member.fenced]
        if not live:
            assert group is None or group.state is ConsumerGroupState.EMPTY
            assert len(self.coordinated.timers) == 0
            return
        assert group is not None
        assert group.state is ConsumerGroupState.STABLE
        # Of those with one instance id, the one who was first.
        live = [each for each in live if each.member_id in group.members or not each.instance_id]
        assert set(group.members) == {member.member_id for member in live}
        wanted = self.coordinated.topics.all_partitions(self.wishes(live))
        assert sorted(p for member in live for p in member.owned) == sorted(wanted)
        self.one_owner_whatever_happens()
        self.stable_is_complete()

    # How members behave.

    def wishes(self, members: list[SimulatedMember]) -> set[str]:
        names = {topic.name for topic in self.coordinated.topics.topics()}
        fields: list[dict[str, Any]] = [member.fields for member in members]
        wanted = {name for each in fields for name in each["topics"]}
        regexes = [each["regex"] for each in fields]
        return (wanted & names).union(*resolve(regexes, names).values())

    def group(self) -> ConsumerGroup | None:
        holder = self.coordinated.groups.find_loaded(GROUP)
        return None if holder is None else holder.consumer

    def pick(self, data: st.DataObject) -> SimulatedMember:
        return data.draw(st.sampled_from(self.members))

    def is_accepted(self, group: ConsumerGroup, member: SimulatedMember) -> bool:
        """Whether the coordinator would take its heartbeat for one of a member that may own."""
        known = group.members.get(member.member_id)
        if known is None or member.epoch <= 0 or known.current.epoch <= 0:
            return False
        try:
            known.check_epoch(member.epoch, member.owned)
        except FencedMemberEpochError:
            return False
        return True

    def run_for(self, seconds: float) -> None:
        while seconds > 0:
            self.coordinated.finish_aside()
            step_s = min(HEARTBEAT_S, seconds)
            self.coordinated.time.advance(step_s)
            seconds -= step_s
            for member in list(self.members):
                self.beat(member)
                self.one_owner_whatever_happens()

    def beat(self, member: SimulatedMember) -> None:
        if member.paused or member.fenced:
            return
        if member.epoch == 0:
            member.owned = member.wanted = frozenset()
        says_all = member.epoch == 0 or member.unsure
        member.unsure = False
        self.guarded(member, lambda: member.beat(**(member.fields if says_all else {})))

    def guarded(self, member: SimulatedMember, ask: Callable[..., HeartbeatAnswer]) -> None:
        try:
            ask()
        except (FencedMemberEpochError, UnknownMemberIdError):
            member.start_again()
        except FencedInstanceIdError:
            member.start_again()
            member.fenced = True
        except UnreleasedInstanceIdError:
            member.start_again()  # as clients retry
        except CoordinatorNotAvailableError:
            member.unsure = True
        except GroupIdNotFoundError:  # a restart before anything was written
            member.start_again()


TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(stateful_step_count=40)
