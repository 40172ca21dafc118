"""uniform and range: complete, balanced, sticky, whatever the members subscribe to."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinator.assignors import ASSIGNORS, MemberSpec, range_, uniform
from broker.coordinator.consumer_group_records import TopicIdPartition, by_topic

TOPICS = [uuid.UUID(int=number) for number in range(4)]
A, B, C, _ = TOPICS


def members_of(**topics: list[Any]) -> dict[Any, Any]:
    return {name: MemberSpec(frozenset(topic_ids)) for name, topic_ids in topics.items()}


def again(
    members: dict[str, MemberSpec], target: dict[str, frozenset[TopicIdPartition]]
) -> dict[Any, Any]:
    """The same members, which now have what `target` gives them."""
    return {name: MemberSpec(spec.topics, target[name]) for name, spec in members.items()}


def sizes(target: dict[str, frozenset[TopicIdPartition]]) -> list[Any]:
    return sorted(len(partitions) for partitions in target.values())


def moved(
    before: dict[str, frozenset[TopicIdPartition]], after: dict[str, frozenset[TopicIdPartition]]
) -> int:
    return sum(len(after[name] - partitions) for name, partitions in before.items())


def test_uniform_evens_out_the_sum_over_all_topics() -> None:
    target = uniform(members_of(m1=[A, B], m2=[A, B], m3=[A, B]), {A: 4, B: 3})
    assert sizes(target) == [2, 2, 3]


def test_uniform_moves_no_more_than_balance_needs() -> None:
    members = members_of(m1=[A], m2=[A])
    before = uniform(members, {A: 10})
    with_third = again(members, before) | members_of(m3=[A])
    after = uniform(with_third, {A: 10})
    assert sizes(after) == [3, 3, 4]
    assert moved(before, after) == 0
    grown = uniform(again(with_third, after), {A: 12})
    assert sizes(grown) == [4, 4, 4]
    assert all(after[name] <= grown[name] for name in after)


def test_a_lone_member_gives_up_the_upper_half() -> None:
    members = members_of(m1=[A])
    before = uniform(members, {A: 4})
    after = uniform(again(members, before) | members_of(m2=[A]), {A: 4})
    assert by_topic(sorted(after["m1"])) == {A: [0, 1]}
    assert by_topic(sorted(after["m2"])) == {A: [2, 3]}


def test_uniform_fills_from_other_topics_who_cannot_read_this_one() -> None:
    target = uniform(members_of(m1=[A], m2=[A, B], m3=[A, B]), {A: 4, B: 4})
    assert sizes(target) == [2, 3, 3]
    assert by_topic(target["m1"]).keys() == {A}


def test_range_gives_the_same_numbers_of_equal_topics() -> None:
    target = range_(members_of(m1=[A, B], m2=[A, B]), {A: 3, B: 3})
    for partitions in target.values():
        numbers = by_topic(sorted(partitions))
        assert numbers[A] == numbers[B]
    assert {tuple(by_topic(sorted(each))[A]) for each in target.values()} == {(0, 1), (2,)}


def test_range_is_even_by_topic_not_in_sum() -> None:
    target = range_(members_of(m1=[A, B], m2=[A, B]), {A: 1, B: 3})
    assert sizes(target) == [1, 3]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_no_members_and_no_topics(name: str) -> None:
    assert ASSIGNORS[name]({}, {}) == {}
    assert ASSIGNORS[name](members_of(m1=[]), {}) == {"m1": frozenset()}


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[uuid.UUID, int]]:
    counts = {topic_id: draw(st.integers(1, 7)) for topic_id in TOPICS}
    names = [f"m{number}" for number in range(draw(st.integers(1, 8)))]
    subscription = st.frozensets(st.sampled_from(TOPICS))
    if draw(st.booleans()):
        same = draw(subscription)
        topics = dict.fromkeys(names, same)
    else:
        topics = {name: draw(subscription) for name in names}
    # What they have may be of topics, or with numbers, that are gone, or another's too.
    held = st.builds(TopicIdPartition, st.sampled_from(TOPICS), st.integers(0, 9))
    return {name: MemberSpec(topics[name], draw(st.frozensets(held))) for name in names}, counts


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups())
def test_every_partition_has_one_owner_who_subscribes(
    name: str, group: tuple[dict[str, MemberSpec], dict[uuid.UUID, int]]
) -> None:
    members, counts = group
    target = ASSIGNORS[name](members, counts)
    assert target.keys() == members.keys()
    given_out = [partition for partitions in target.values() for partition in partitions]
    wanted = {topic_id for spec in members.values() for topic_id in spec.topics}
    expected = [TopicIdPartition(t, number) for t in wanted for number in range(counts[t])]
    assert sorted(given_out) == sorted(expected)
    for member_id, partitions in target.items():
        assert {each.topic_id for each in partitions} <= members[member_id].topics
    assert ASSIGNORS[name](again(members, target), counts) == target  # nothing moves for nothing


@given(group=groups())
def test_uniform_is_balanced(group: tuple[dict[str, MemberSpec], dict[uuid.UUID, int]]) -> None:
    members, counts = group
    target = uniform(members, counts)
    for partitions in target.values():
        for taker, spec in members.items():
            if any(partition.topic_id in spec.topics for partition in partitions):
                assert len(partitions) - len(target[taker]) < 2


@given(group=groups())
def test_range_is_balanced_by_topic(
    group: tuple[dict[str, MemberSpec], dict[uuid.UUID, int]],
) -> None:
    members, counts = group
    target = range_(members, counts)
    for topic_id in TOPICS:
        shares = [
            sum(partition.topic_id == topic_id for partition in target[member_id])
            for member_id, spec in members.items()
            if topic_id in spec.topics
        ]
        assert not shares or max(shares) - min(shares) < 2
