"""The consumer protocol with a clock, a log and topics of the test's own.

What every request is answered in every state is in tests/broker/api/test_consumer_groups.py, which
Apache Kafka passes too.
"""

import time
from collections.abc import Callable

import pytest
from kafka.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from kafka.structs import TopicPartition

from broker.coordinator.consumer_group import (
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerGroupState,
)
from broker.coordinator.consumer_group_records import MemberState, TopicIdPartition
from broker.coordinator.group import CommitAsk
from broker.coordinator.group_metadata import GroupState
from broker.coordinator.offset_records import CommittedOffset
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.topic_regex import InvalidRegularExpressionError
from tests.broker.coordinator.consumer_in_memory import (
    REBALANCE_MS,
    ConsumerCoordinated,
    Member,
    settle,
)
from tests.broker.coordinator.in_memory import GROUP
from tests.support.patience import BUSY_S
from tests.support.present import present

SESSION_S = 45.0
PLACE = TopicPartition("t", 0)


@pytest.fixture
def coordinated() -> ConsumerCoordinated:
    made = ConsumerCoordinated()
    made.topics.put("t", 4)
    return made


def two(coordinated: ConsumerCoordinated) -> tuple[Member, Member]:
    """Members a and b, each with half of the partitions."""
    a, b = Member(coordinated, "a"), Member(coordinated, "b")
    a.join()
    b.join()
    settle(a, b)
    assert (a.numbers, b.numbers) == ([0, 1], [2, 3])
    assert coordinated.group().state is ConsumerGroupState.STABLE
    return a, b


def test_a_partition_is_given_only_when_it_was_given_up(coordinated: ConsumerCoordinated) -> None:
    a, b = Member(coordinated, "a"), Member(coordinated, "b")
    a.join()
    assert a.numbers == [0, 1, 2, 3]
    assert b.join().assigned == {}
    assert (b.epoch, a.epoch) == (3, 2)
    told = a.ask()
    assert sorted(each.partition for each in present(present(told).assigned)) == [0, 1]
    assert told.epoch == 2
    assert coordinated.group().state is ConsumerGroupState.RECONCILING
    for _ in range(3):  # it has not said so yet
        assert b.beat().assigned is None
        assert a.ask().epoch == 2
    a.take(told)
    assert a.beat().epoch == 3
    b.beat()
    assert b.numbers == [2, 3]
    assert coordinated.group().state is ConsumerGroupState.STABLE


def test_who_says_nothing_of_its_partitions_has_not_given_them_up(
    coordinated: ConsumerCoordinated,
) -> None:
    a, b = Member(coordinated, "a"), Member(coordinated, "b")
    a.join()
    b.join()
    told = a.ask()
    assert sorted(each.partition for each in present(present(told).assigned)) == [0, 1]
    for _ in range(3):
        assert a.ask(owned=None).epoch == a.epoch
        assert b.beat().assigned is None
    a.take(told)
    settle(a, b)
    assert (a.numbers, b.numbers) == ([0, 1], [2, 3])


def test_a_member_that_does_not_give_up_is_fenced(coordinated: ConsumerCoordinated) -> None:
    a, b = Member(coordinated, "a"), Member(coordinated, "b")
    a.join()
    b.join()
    a.ask()
    coordinated.time.advance(REBALANCE_MS / 1000 - 1)
    a.ask()  # a heartbeat is not enough
    b.beat()
    coordinated.time.advance(2)
    with pytest.raises(UnknownMemberIdError):
        a.ask()
    b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_a_member_that_cannot_be_fenced_yet_is_fenced_later(
    coordinated: ConsumerCoordinated,
) -> None:
    a, b = Member(coordinated, "a"), Member(coordinated, "b")
    a.join()
    b.join()
    a.ask()
    coordinated.time.advance(REBALANCE_MS / 1000 - 1)
    coordinated.log.error = CoordinatorNotAvailableError()
    coordinated.time.advance(3)
    coordinated.log.error = None
    a.ask()
    b.beat()
    coordinated.time.advance(2)
    assert set(coordinated.group().members) == {"b"}


def test_giving_up_in_time_ends_the_limit(coordinated: ConsumerCoordinated) -> None:
    a, _ = two(coordinated)
    coordinated.time.advance(REBALANCE_MS / 1000 + 1)
    a.beat()
    assert set(coordinated.group().members) == {"a", "b"}


def test_a_session_ends_without_heartbeats(coordinated: ConsumerCoordinated) -> None:
    a, b = two(coordinated)
    coordinated.time.advance(SESSION_S - 1)
    a.beat()
    coordinated.time.advance(2)
    assert set(coordinated.group().members) == {"a"}
    with pytest.raises(UnknownMemberIdError):
        b.beat()
    a.beat()
    assert a.numbers == [0, 1, 2, 3]
    coordinated.time.advance(SESSION_S + 1)
    assert coordinated.group().state is ConsumerGroupState.EMPTY
    assert len(coordinated.timers) == 0


def test_a_session_that_cannot_be_ended_yet_ends_later(coordinated: ConsumerCoordinated) -> None:
    Member(coordinated, "a").join()
    coordinated.log.error = CoordinatorNotAvailableError()
    coordinated.time.advance(SESSION_S + 5)
    assert set(coordinated.group().members) == {"a"}
    coordinated.log.error = None
    coordinated.time.advance(2)
    assert coordinated.group().members == {}


def test_what_cannot_be_written_did_not_happen(coordinated: ConsumerCoordinated) -> None:
    a, b = two(coordinated)
    before = coordinated.group()
    coordinated.log.error = CoordinatorNotAvailableError()
    changes: list[Callable[[], object]] = [
        lambda: Member(coordinated, "c").join(),
        lambda: a.beat(topics=("other",)),
        b.leave,
    ]
    for change in changes:
        with pytest.raises(CoordinatorNotAvailableError):
            change()
        assert coordinated.group() is before
    coordinated.log.error = None
    settle(a, b)
    assert coordinated.group() is before


def test_a_heartbeat_without_news_writes_nothing(coordinated: ConsumerCoordinated) -> None:
    a, b = two(coordinated)
    appends = len(coordinated.log.appends)
    settle(a, b)
    a.join()  # as after a lost answer
    assert len(coordinated.log.appends) == appends
    assert a.numbers == [0, 1]


def test_groups_survive_a_restart(coordinated: ConsumerCoordinated) -> None:
    a, b = two(coordinated)
    before = coordinated.group()
    coordinated.restart()
    after = coordinated.group()
    assert (after.members, after.targets) == (before.members, before.targets)
    assert (after.epoch, after.target_epoch) == (before.epoch, before.target_epoch)
    appends = len(coordinated.log.appends)
    settle(a, b)
    assert len(coordinated.log.appends) == appends
    coordinated.restart()  # of which nobody hears any more
    coordinated.time.advance(SESSION_S + 1)
    assert coordinated.group().members == {}


def test_a_revocation_is_limited_after_a_restart_too(coordinated: ConsumerCoordinated) -> None:
    a, b = Member(coordinated, "a"), Member(coordinated, "b")
    a.join()
    b.join()
    a.ask()
    coordinated.restart()
    assert coordinated.group().members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    for _ in range(int(REBALANCE_MS / 1000) + 1):
        coordinated.time.advance(1)
        b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_a_lost_answer_may_be_asked_for_again(coordinated: ConsumerCoordinated) -> None:
    a, b = two(coordinated)
    b.leave()
    lost = a.ask()
    assert lost.epoch == a.epoch + 1
    assert a.ask().epoch == lost.epoch  # with the epoch before, and what it owned then
    with pytest.raises(FencedMemberEpochError):
        a.ask(owned=a.owned | {TopicIdPartition(next(iter(a.owned)).topic_id, 9)})
    a.epoch -= 1
    with pytest.raises(FencedMemberEpochError):
        a.ask()
    a.epoch += 9
    with pytest.raises(FencedMemberEpochError):
        a.ask()


def test_targets_are_not_computed_more_often_than_wanted() -> None:
    coordinated = ConsumerCoordinated({"group.consumer.assignment.interval.ms": "1000"})
    coordinated.topics.put("t", 4)
    a, b, c = (Member(coordinated, name) for name in "abc")
    a.join()
    b.join()
    c.join()
    assert coordinated.group().state is ConsumerGroupState.ASSIGNING
    assert (coordinated.group().epoch, b.epoch, b.numbers) == (4, 2, [])
    coordinated.time.advance(0.9)
    settle(a, b, c)
    assert coordinated.group().state is ConsumerGroupState.ASSIGNING
    coordinated.time.advance(0.1)
    settle(a, b, c)
    assert coordinated.group().target_epoch == 4
    assert sorted(a.numbers + b.numbers + c.numbers) == [0, 1, 2, 3]


# Topics.


def test_topics_that_come_grow_and_go_are_noticed(coordinated: ConsumerCoordinated) -> None:
    a = Member(coordinated, "a", topics=("t", "later"))
    a.join()
    coordinated.topics.put("t", 6)
    a.beat()
    assert a.numbers == [0, 1, 2, 3, 4, 5]
    coordinated.topics.put("later", 1)
    a.beat()
    assert a.owned == coordinated.topics.all_partitions()
    epoch = a.epoch
    coordinated.topics.put("none of its own", 1)
    a.beat()
    assert a.epoch == epoch
    coordinated.topics.delete("t")
    settle(a)
    assert a.owned == coordinated.topics.all_partitions(["later"])
    assert coordinated.group().state is ConsumerGroupState.STABLE


@pytest.mark.parametrize("partition_count", [2, 4])
def test_a_topic_made_anew_is_another_one(
    coordinated: ConsumerCoordinated, partition_count: int
) -> None:
    a = Member(coordinated, "a")
    a.join()
    coordinated.topics.delete("t")
    coordinated.topics.put("t", partition_count)
    settle(a)
    assert a.owned == coordinated.topics.all_partitions()


def test_a_member_that_has_given_up_hears_of_as_many_others(
    coordinated: ConsumerCoordinated,
) -> None:
    a = Member(coordinated, "a")
    a.join()
    coordinated.topics.delete("t")
    coordinated.topics.put("t", 4)
    assert a.beat(owned=()).assigned is not None
    assert a.owned == coordinated.topics.all_partitions()


def test_topics_that_changed_while_the_broker_was_down(coordinated: ConsumerCoordinated) -> None:
    a = Member(coordinated, "a")
    a.join()
    coordinated.topics.put("t", 5)
    coordinated.restart()
    settle(a)
    assert a.numbers == [0, 1, 2, 3, 4]


def test_another_subscription_is_given_up_at_once() -> None:
    coordinated = ConsumerCoordinated({"group.consumer.assignment.interval.ms": "60000"})
    coordinated.topics.put("t", 2)
    coordinated.topics.put("u", 2)
    a = Member(coordinated, "a")
    a.join()
    told = a.beat(topics=("u",))
    assert told.assigned == {}  # although the target is not computed yet
    a.beat()
    coordinated.time.advance(61)
    a.join(topics=("u",))
    settle(a)
    assert a.owned == coordinated.topics.all_partitions(["u"])


# Expressions.


def test_an_expression_is_resolved_aside_and_followed(coordinated: ConsumerCoordinated) -> None:
    coordinated.topics.put("tick", 1)
    coordinated.topics.put("attic", 1)
    a = Member(coordinated, "a", topics=None, regex="t.*")
    assert a.join().assigned == {}
    coordinated.finish_aside()
    a.beat()
    assert a.owned == coordinated.topics.all_partitions(["t", "tick"])
    coordinated.topics.put("tock", 1)
    a.beat()
    assert not coordinated.aside  # not more often than every ten seconds
    coordinated.time.advance(11)
    a.beat()
    coordinated.finish_aside()
    a.beat()
    assert a.owned == coordinated.topics.all_partitions(["t", "tick", "tock"])
    coordinated.restart()
    appends = len(coordinated.log.appends)
    a.beat()
    assert len(coordinated.log.appends) == appends
    a.leave()
    assert coordinated.group().regexes == {}


def test_a_clock_that_is_set_back_keeps_no_expression_waiting(
    coordinated: ConsumerCoordinated,
) -> None:
    coordinated.topics.put("u", 1)
    a, b = (Member(coordinated, name, topics=None, regex=name) for name in ("t", "u"))
    a.join()
    coordinated.finish_aside()
    coordinated.time.now_s -= 24 * 3600
    b.join()
    coordinated.finish_aside()
    settle(a, b)
    assert b.owned == coordinated.topics.all_partitions(["u"])


def test_names_and_an_expression_add_up(coordinated: ConsumerCoordinated) -> None:
    coordinated.topics.put("u", 1)
    a = Member(coordinated, "a", topics=("t",), regex="u")
    a.join()
    coordinated.finish_aside()
    settle(a)
    assert a.owned == coordinated.topics.all_partitions()
    a.beat(regex="")
    settle(a)
    assert a.owned == coordinated.topics.all_partitions(["t"])


def test_a_known_expression_needs_no_resolving(coordinated: ConsumerCoordinated) -> None:
    a = Member(coordinated, "a", topics=None, regex="t")
    a.join()
    coordinated.finish_aside()
    a.beat()
    b = Member(coordinated, "b", topics=None, regex="t")
    b.join()
    assert not coordinated.aside
    settle(a, b)
    assert sorted(a.numbers + b.numbers) == [0, 1, 2, 3]


def test_an_expression_that_is_resolved_too_late_is_dropped(
    coordinated: ConsumerCoordinated,
) -> None:
    a = Member(coordinated, "a", topics=None, regex="t")
    a.join()
    a.beat(regex="u")
    coordinated.finish_aside()
    assert "t" not in coordinated.group().regexes
    b = Member(coordinated, "b", topics=None, regex="t+")
    b.join()
    coordinated.restart()
    coordinated.finish_aside()


def test_what_an_expression_that_changed_gave_goes_to_others(
    coordinated: ConsumerCoordinated,
) -> None:
    """Also where nothing matches the new one, so that its being resolved changes nothing."""
    a = Member(coordinated, "a", topics=("t",))
    b = Member(coordinated, "b", topics=None, regex="t")
    a.join()
    b.join()
    coordinated.finish_aside()
    settle(a, b)
    assert len(b.numbers) == 2
    coordinated.time.advance(11)
    b.beat(regex="nothing")
    settle(a, b)
    coordinated.finish_aside()
    settle(a, b)
    assert (a.numbers, b.numbers) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize(
    "regex",
    ["(", r"(a)\1", "a(?=b)", "(((a{100}){100}){100})", "a" * 5000, "(?:" * 2000, "[[:x:]]"],
)
def test_bad_and_hostile_expressions_are_refused(
    coordinated: ConsumerCoordinated, regex: str
) -> None:
    with pytest.raises(InvalidRegularExpressionError):
        Member(coordinated, "a", topics=None, regex=regex).join()
    with pytest.raises(GroupIdNotFoundError):
        coordinated.group()


def test_an_expression_that_hangs_others_is_just_matched(coordinated: ConsumerCoordinated) -> None:
    coordinated.topics.put("a" * 200 + "!", 1)
    a = Member(coordinated, "a", topics=None, regex="(a|aa|a*)+$")
    a.join()
    coordinated.finish_aside()
    a.beat()
    assert a.owned == frozenset()


def test_a_slow_expression_is_given_up(coordinated: ConsumerCoordinated) -> None:
    for number in range(1000):
        coordinated.topics.put("a" * 240 + str(number), 1)
    a = Member(coordinated, "a", topics=None, regex="(?:a?){300}(?:a?){300}(?:a?){300}b")
    a.join()
    began_s = time.monotonic()
    coordinated.finish_aside()
    assert time.monotonic() - began_s < 5 + BUSY_S
    a.beat()
    assert a.owned == frozenset()


# Static members.


def test_a_static_member_takes_its_place_again(coordinated: ConsumerCoordinated) -> None:
    a = Member(coordinated, "a", instance_id="one")
    b = Member(coordinated, "b")
    a.join()
    b.join()
    settle(a, b)
    with pytest.raises(UnreleasedInstanceIdError):
        Member(coordinated, "a2", instance_id="one").join()
    assert a.leave(LEAVE_FOR_A_WHILE_EPOCH).epoch == LEAVE_FOR_A_WHILE_EPOCH
    settle(b)
    assert b.numbers == [2, 3]
    epoch = coordinated.group().epoch
    coordinated.restart()
    again = Member(coordinated, "a2", instance_id="one")
    again.join()
    assert again.numbers == a.numbers
    assert coordinated.group().epoch == epoch
    with pytest.raises(FencedInstanceIdError):
        a.beat()
    coordinated.time.advance(SESSION_S - 1)
    again.beat()
    b.beat()
    coordinated.time.advance(2)  # the old one's timer is nobody's
    assert set(coordinated.group().members) == {"a2", "b"}


def test_a_static_member_that_stays_away_loses_its_place(coordinated: ConsumerCoordinated) -> None:
    a = Member(coordinated, "a", instance_id="one")
    b = Member(coordinated, "b")
    a.join()
    b.join()
    settle(a, b)
    a.leave(LEAVE_FOR_A_WHILE_EPOCH)
    coordinated.time.advance(SESSION_S - 1)
    b.beat()
    coordinated.time.advance(2)
    settle(b)
    assert b.numbers == [0, 1, 2, 3]


def test_administrators_remove_static_members_by_instance(coordinated: ConsumerCoordinated) -> None:
    Member(coordinated, "a", instance_id="one").join()
    Member(coordinated, "b").join()
    errors = coordinated.consumers.remove_members(GROUP, [("", "one"), ("", "two"), ("b", None)])
    assert [type(error) for error in errors] == [
        type(None),
        UnknownMemberIdError,
        UnknownMemberIdError,
    ]
    assert set(coordinated.group().members) == {"b"}


# Limits.


def test_a_full_group_takes_nobody(coordinated: ConsumerCoordinated) -> None:
    small = ConsumerCoordinated({"group.consumer.max.size": "1"})
    small.topics.put("t", 1)
    a = Member(small, "a")
    a.join()
    with pytest.raises(GroupMaxSizeReachedError):
        Member(small, "b").join()
    a.beat()
    a.leave()
    Member(small, "b").join()


# Offsets, and the group as a whole.


def commit(
    coordinated: ConsumerCoordinated, member: Member, epoch: int | None = None, partition: int = 0
) -> None:
    topic = coordinated.topics.topic("t")
    place = TopicIdPartition(present(topic).topic_id, partition)
    group = present(present(coordinated.groups.find(GROUP)).consumer)
    group.check_may_commit(member.member_id, member.epoch if epoch is None else epoch, [place])


def test_a_commit_is_good_in_the_epoch_of_its_partition(coordinated: ConsumerCoordinated) -> None:
    a, b = two(coordinated)
    commit(coordinated, a)
    b.leave()
    a.beat()
    assert a.numbers == [0, 1, 2, 3]
    commit(coordinated, a, a.epoch - 1, partition=0)
    with pytest.raises(StaleMemberEpochError):
        commit(coordinated, a, a.epoch - 1, partition=3)  # given with the last epoch
    with pytest.raises(StaleMemberEpochError):
        commit(coordinated, a, a.epoch + 1)
    with pytest.raises(UnknownMemberIdError):
        commit(coordinated, b)


def test_a_commit_is_good_from_the_epoch_on_in_which_its_partition_was_given(
    coordinated: ConsumerCoordinated,
) -> None:
    a = Member(coordinated, "a")
    a.join()
    given = a.epoch
    assert a.numbers == [0, 1, 2, 3]
    b = Member(coordinated, "b")
    b.join()
    settle(a, b)
    assert a.numbers == [0, 1]
    assert a.epoch > given
    for epoch in range(given, a.epoch + 1):
        commit(coordinated, a, epoch, partition=0)
    with pytest.raises(StaleMemberEpochError):
        commit(coordinated, a, given - 1, partition=0)
    with pytest.raises(StaleMemberEpochError):
        commit(coordinated, a, given, partition=3)  # given up since


def test_commits_in_transactions(coordinated: ConsumerCoordinated) -> None:
    a, _ = two(coordinated)
    producer = ProducerIdAndEpoch(7, 0)

    def ask(member_id: str, epoch: int) -> CommitAsk:
        topic_id = present(coordinated.topics.topic("t")).topic_id
        offset = CommittedOffset(5, -1, "", 0, topic_id=topic_id)
        return CommitAsk(GROUP, member_id, None, epoch, [(PLACE, offset)])

    for member_id, epoch in (("a", a.epoch), ("", -1)):
        assert coordinated.groups.commit_transactional(ask(member_id, epoch), producer) == [None]
    with pytest.raises(IllegalGenerationError):
        coordinated.groups.commit_transactional(ask("a", a.epoch + 1), producer)
    with pytest.raises(UnknownMemberIdError):
        coordinated.groups.commit_transactional(ask("nobody", a.epoch), producer)
    assert coordinated.groups.unstable(GROUP) == {PLACE}


def test_offsets_expire_when_nobody_subscribes(coordinated: ConsumerCoordinated) -> None:
    week_s = 7 * 24 * 3600
    coordinated.commit({PLACE: 1, TopicPartition("old", 0): 1})
    a = Member(coordinated, "a")
    a.join()
    assert set(coordinated.committed()) == {PLACE, TopicPartition("old", 0)}
    for _ in range(week_s // 40 + 1):
        coordinated.time.advance(40)
        a.beat()
    list(coordinated.groups.expire())
    assert set(coordinated.committed()) == {PLACE}
    (error,) = coordinated.groups.delete_offsets(GROUP, [PLACE])
    assert isinstance(error, GroupSubscribedToTopicError)
    a.leave()
    list(coordinated.groups.expire())
    assert coordinated.groups.groups() == []


def test_an_empty_group_can_be_deleted_without_a_trace(coordinated: ConsumerCoordinated) -> None:
    a = Member(coordinated, "a", topics=("t",), regex="u.*")
    a.join()
    coordinated.finish_aside()
    with pytest.raises(NonEmptyGroupError):
        coordinated.groups.delete(GROUP)
    a.leave()
    coordinated.commit({PLACE: 1})
    coordinated.groups.delete(GROUP)
    records = [record for append in coordinated.log.appends for record in append]
    left = {record.key: record.value for record in records}
    assert set(left.values()) == {None}
    coordinated.restart()
    with pytest.raises(GroupIdNotFoundError):
        coordinated.group()


# From one protocol to the other.


def test_an_empty_classic_group_becomes_a_consumer_group(coordinated: ConsumerCoordinated) -> None:
    joined = coordinated.stable_member()
    coordinated.commit({PLACE: 5}, joined.member_id, joined.generation)
    a = Member(coordinated, "a")
    with pytest.raises(GroupIdNotFoundError):
        a.join()
    coordinated.groups.leave(GROUP, [(joined.member_id, None)])
    a.join()
    for _ in range(2):
        assert a.numbers == [0, 1, 2, 3]
        assert coordinated.committed() == {PLACE: 5}
        coordinated.restart()
        settle(a)


def test_an_empty_consumer_group_becomes_a_classic_one(coordinated: ConsumerCoordinated) -> None:
    a = Member(coordinated, "a")
    a.join()
    (refused,) = coordinated.join()
    assert isinstance(refused.error, InconsistentGroupProtocolError)
    a.leave()
    coordinated.commit({PLACE: 5})
    joined = coordinated.stable_member()
    for _ in range(2):
        with pytest.raises(GroupIdNotFoundError):
            a.beat()
        (group,) = coordinated.groups.groups()
        assert (group.state, set(group.members)) == (GroupState.STABLE, {joined.member_id})
        assert coordinated.committed() == {PLACE: 5}
        coordinated.restart()
