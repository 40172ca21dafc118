"""Who of a group is to read which partition: the assignors of the consumer protocol (KIP-848).

An assignor is a function of the members, with what they subscribe to and what they are to read now,
and of the topics' partition counts. Its result has every partition of a subscribed topic exactly
once, with a member that subscribes to it. Both are sticky: a partition moves only for the balance.

    uniform   evens out how many partitions each member has. Among members that subscribe to the
              same the counts differ by one at most; where subscriptions differ, no single move
              makes it more even.
    range     evens out each topic by itself, and gives partitions of one number of all topics with
              the same count and subscribers to one member, so that they can be joined.

Names as Kafka's. Pure functions: any thread. Time: about linear in partitions, times the logarithm
of the members.
"""

import heapq
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from broker.coordinator.consumer_group_records import Partitions, TopicIdPartition

_MOST_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """What a member subscribes to, of topics that are there, and what it is to read now."""

    topics: frozenset[uuid.UUID]
    partitions: Partitions = frozenset()


Members: TypeAlias = Mapping[str, MemberSpec]
PartitionCounts: TypeAlias = Mapping[uuid.UUID, int]
Target: TypeAlias = dict[str, Partitions]
Assignor: TypeAlias = Callable[[Members, PartitionCounts], Target]


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Topics with the same subscribers."""

    subscribers: Sequence[str]
    topics: Sequence[uuid.UUID]


def uniform(members: Members, counts: PartitionCounts) -> Target:
    buckets = _buckets(members)
    # By bucket: what each of its subscribers has of it.
    shares = [_kept(bucket, members, counts) for bucket in buckets]
    loads: Counter[str] = Counter()
    for share in shares:
        for member_id, partitions in share.items():
            loads[member_id] += len(partitions)
    # Who has few to choose from goes first.
    order = sorted(range(len(buckets)), key=lambda index: len(buckets[index].subscribers))
    for index in order:
        _hand_out(buckets[index], shares[index], counts, loads)
    for _ in range(_MOST_ROUNDS):
        moves = [_even_out(shares[index], loads) for index in order]
        if not any(moves) or len(buckets) == 1:
            break
    target: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for share in shares:
        for member_id, partitions in share.items():
            target[member_id].update(partitions)
    return {member_id: frozenset(partitions) for member_id, partitions in target.items()}


def _buckets(members: Members) -> list[_Bucket]:
    subscribers: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers[topic_id].append(member_id)
    topics: defaultdict[tuple[str, ...], list[uuid.UUID]] = defaultdict(list)
    for topic_id in sorted(subscribers):
        topics[tuple(subscribers[topic_id])].append(topic_id)
    return [_Bucket(names, topic_ids) for names, topic_ids in topics.items()]


_Share: TypeAlias = dict[str, list[TopicIdPartition]]


def _kept(bucket: _Bucket, members: Members, counts: PartitionCounts) -> _Share:
    """What subscribers have and may keep, in order; a partition that two have is the first's."""
    topics = frozenset(bucket.topics)
    taken: set[TopicIdPartition] = set()
    share: _Share = {}
    for member_id in bucket.subscribers:
        kept = sorted(
            each
            for each in members[member_id].partitions
            if each.topic_id in topics
            and each.partition < counts[each.topic_id]
            and each not in taken
        )
        taken.update(kept)
        share[member_id] = kept
    return share


def _hand_out(bucket: _Bucket, share: _Share, counts: PartitionCounts, loads: Counter[str]) -> None:
    """Gives each partition that nobody has to the subscriber with the fewest."""
    taken = {partition for partitions in share.values() for partition in partitions}
    queue = [(loads[member_id], member_id) for member_id in bucket.subscribers]
    heapq.heapify(queue)
    for topic_id in bucket.topics:
        for number in range(counts[topic_id]):
            partition = TopicIdPartition(topic_id, number)
            if partition in taken:
                continue
            load, member_id = queue[0]
            share[member_id].append(partition)
            loads[member_id] = load + 1
            heapq.heapreplace(queue, (load + 1, member_id))


def _even_out(share: _Share, loads: Counter[str]) -> bool:
    """Moves partitions of one bucket from who has most to who has fewest; True if any moved."""
    least = [(loads[member_id], member_id) for member_id in share]
    most = [(-loads[member_id], member_id) for member_id, kept in share.items() if kept]
    heapq.heapify(least)
    heapq.heapify(most)
    moved = False
    while least and most:
        high, giver = most[0]
        low, taker = least[0]
        # Entries are of the time when they were pushed: an old one is brought up to date.
        if -high != loads[giver] or not share[giver]:
            _refresh(most, -loads[giver] if share[giver] else None, giver)
        elif low != loads[taker]:
            _refresh(least, loads[taker], taker)
        elif loads[giver] - loads[taker] < 2:
            break
        else:
            share[taker].append(share[giver].pop())
            loads[giver] -= 1
            loads[taker] += 1
            heapq.heappush(most, (-loads[taker], taker))
            moved = True
    return moved


def _refresh(queue: list[tuple[int, str]], load: int | None, member_id: str) -> None:
    if load is None:
        heapq.heappop(queue)
    else:
        heapq.heapreplace(queue, (load, member_id))


def range_(members: Members, counts: PartitionCounts) -> Target:
    target: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for bucket in _buckets(members):
        by_count: defaultdict[int, list[uuid.UUID]] = defaultdict(list)
        for topic_id in bucket.topics:
            by_count[counts[topic_id]].append(topic_id)
        for count, topic_ids in by_count.items():
            for member_id, numbers in _ranges(bucket.subscribers, count, topic_ids, members):
                target[member_id].update(
                    TopicIdPartition(topic_id, number)
                    for topic_id in topic_ids
                    for number in numbers
                )
    return {member_id: frozenset(partitions) for member_id, partitions in target.items()}


def _ranges(
    subscribers: Sequence[str], count: int, topic_ids: Iterable[uuid.UUID], members: Members
) -> Iterable[tuple[str, list[int]]]:
    """Which numbers each has, of all these topics alike."""
    topics = frozenset(topic_ids)
    taken: set[int] = set()
    kept: dict[str, list[int]] = {}
    for member_id in subscribers:
        held = {
            each.partition
            for each in members[member_id].partitions
            if each.topic_id in topics and each.partition < count
        }
        kept[member_id] = sorted(held - taken)
        taken |= held
    quota, extra = divmod(count, len(subscribers))
    # Who has one more already keeps it, as far as there are such places.
    quotas = dict.fromkeys(subscribers, quota)
    by_held = sorted(subscribers, key=lambda member_id: len(kept[member_id]) <= quota)
    for member_id in by_held[:extra]:
        quotas[member_id] += 1
    free = set(range(count))
    for member_id, numbers in kept.items():
        del numbers[quotas[member_id] :]
        free.difference_update(numbers)
    rest = sorted(free)
    begin = 0
    for member_id, numbers in kept.items():
        end = begin + quotas[member_id] - len(numbers)
        numbers += rest[begin:end]
        begin = end
    return kept.items()


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
