"""Who leads a partition next: pure functions of its state and of who is there.

Leaders are chosen in the order of the assignment, never in the ISR's, which is history. A new
leader begins a new leader epoch, which is the next one but for `begun_at`. (Kafka:
PartitionLeaderElectionAlgorithms.)
"""

import secrets
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from kafka.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    PreferredLeaderNotAvailableError,
)
from kafka.structs import TopicPartition

from broker.cluster.control import NO_LEADER, Partitions
from broker.cluster.metadata import PartitionMetadata

IsOnline = Callable[[int], bool]

_FIRST_EPOCH_MS = 1_767_225_600_000
"""2026-01-01."""
_EPOCH_MS = 250
_QUICK_STARTS = 4
"""As many may be ahead of the clock before it counts as set back."""
_MOST_SKIPPED = 1 << 14
_LAST_EPOCH_TO_SKIP_FROM = (1 << 31) - (1 << 28)
"""Epochs have 31 bits (15 years by the clock); the next one is there for as long as a broker can
start."""


def first_state(replicas: Sequence[int], is_online: IsOnline) -> PartitionMetadata:
    """Of a new partition: who is there is in sync, and the first of them leads it. Where nobody is,
    the first to come will: the logs of all are equally empty."""
    isr = tuple(node_id for node_id in replicas if is_online(node_id))
    leader = isr[0] if isr else NO_LEADER
    return PartitionMetadata(tuple(replicas), leader, 0, isr or tuple(replicas), 0)


def elect_offline(
    state: PartitionMetadata, is_online: IsOnline, *, unclean: bool = False
) -> PartitionMetadata:
    """Of a partition whose leader is gone: the first of its replicas that is there and in sync
    leads it; nobody where none is, and the ISR then stays as it was, since the next leader is to be
    one of it. If it may be `unclean`, the first that is there leads it then, and what only others
    had is lost."""
    in_sync = tuple(node_id for node_id in state.isr if is_online(node_id))
    leader = next((node_id for node_id in state.replicas if node_id in in_sync), NO_LEADER)
    if leader == NO_LEADER and unclean:
        leader = next(filter(is_online, state.replicas), NO_LEADER)
        if leader != NO_LEADER:
            in_sync, state = (leader,), replace(state, is_recovering=True)
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=state.isr if leader == NO_LEADER else in_sync,
    )


def elect_without(
    state: PartitionMetadata, leaving: Set[int], is_online: IsOnline
) -> PartitionMetadata | None:
    """Of a partition some of whose replicas are to stop, or have: they leave the ISR, and another
    one leads it where they did. None where nothing is to change, or where nobody else in sync is
    there: the last ones stay."""
    if state.leader not in leaving and leaving.isdisjoint(state.isr):
        return None

    def stays(node_id: int) -> bool:
        return is_online(node_id) and node_id not in leaving

    if state.leader in leaving:
        elected = elect_offline(state, stays)
        return None if elected.leader == NO_LEADER else elected
    if state.leader == NO_LEADER:
        return None
    isr = tuple(node_id for node_id in state.isr if node_id not in leaving)
    return replace(state, leader_epoch=state.leader_epoch + 1, isr=isr)


def kept_by_replicas(state: PartitionMetadata) -> PartitionMetadata:
    """In sync is who keeps the partition, if anybody is by that."""
    isr = tuple(node_id for node_id in state.isr if node_id in state.replicas)
    return replace(state, isr=isr or state.isr)


def begun_at(state: PartitionMetadata, now_ms: int) -> PartitionMetadata:
    """The same leader in a later epoch, by the clock (Unix, ms).

    Of one that was started anew, perhaps from an older copy of its data: the next epochs were begun
    after that copy was made, too, and whoever had read records of them would take others at the
    same offsets for these. One that is later than all of them tells that they ended; where the
    clock was set back, one that nobody can tell beforehand does mostly."""
    epoch = state.leader_epoch
    if not 0 <= epoch < _LAST_EPOCH_TO_SKIP_FROM:
        return state
    by_clock = min((now_ms - _FIRST_EPOCH_MS) // _EPOCH_MS, _LAST_EPOCH_TO_SKIP_FROM)
    if epoch > by_clock + _QUICK_STARTS:
        by_clock = epoch + secrets.randbelow(_MOST_SKIPPED)
    return replace(state, leader_epoch=max(epoch, by_clock))


def elect_preferred(state: PartitionMetadata, is_online: IsOnline) -> PartitionMetadata:
    """Of a partition that its first replica is to lead. Raises ElectionNotNeededError where it
    does, and PreferredLeaderNotAvailableError where it cannot."""
    preferred = state.replicas[0]
    if state.leader == preferred:
        raise ElectionNotNeededError("Leader election not needed for topic partition.")
    if preferred not in state.isr or not is_online(preferred):
        raise PreferredLeaderNotAvailableError("The preferred leader was not available.")
    return replace(state, leader=preferred, leader_epoch=state.leader_epoch + 1)


def elect_unclean(state: PartitionMetadata, is_online: IsOnline) -> PartitionMetadata:
    """Of a partition that any replica may lead, where none that is in sync is there. Raises
    ElectionNotNeededError where it is led, and EligibleLeadersNotAvailableError."""
    if state.leader != NO_LEADER and is_online(state.leader):
        raise ElectionNotNeededError("Leader election not needed for topic partition.")
    elected = elect_offline(state, is_online, unclean=True)
    if elected.leader == NO_LEADER:
        raise EligibleLeadersNotAvailableError(
            "Eligible topic partition leaders are not available."
        )
    return elected


def out_of_balance(
    states: Partitions, percentage: int, is_online: IsOnline
) -> list[TopicPartition]:
    """The partitions that their first replicas should lead again and can: those of brokers that do
    not lead more than `percentage` of what is theirs. What moves is left alone."""
    theirs: dict[int, list[TopicPartition]] = {}
    for place, state in states.items():
        theirs.setdefault(state.replicas[0], []).append(place)
    found = []
    for broker, places in theirs.items():
        others = [place for place in places if states[place].leader != broker]
        if len(others) * 100 > percentage * len(places):
            found += [
                place
                for place in others
                if broker in states[place].isr
                and is_online(broker)
                and not states[place].adding
                and not states[place].removing
            ]
    return found
