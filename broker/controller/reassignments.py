"""Where the replicas of a partition move, step by step (KIP-455): pure functions of its state.

While they move, `replicas` are those that are wanted and then those that were before; `adding` are
in it that were not before, `removing` are in it that are not wanted. As soon as all that are wanted
are in sync, only they are left.
"""

from collections.abc import Sequence
from dataclasses import replace

from kafka.errors import (
    BrokerResponseError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    NoReassignmentInProgressError,
)

from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import PartitionMetadata
from broker.controller.elections import IsOnline


def is_moving(state: PartitionMetadata) -> bool:
    return bool(state.adding or state.removing)


def wanted(state: PartitionMetadata) -> tuple[int, ...]:
    """The replicas in the end."""
    return tuple(node_id for node_id in state.replicas if node_id not in state.removing)


def before(state: PartitionMetadata) -> tuple[int, ...]:
    """The replicas at the beginning."""
    return tuple(node_id for node_id in state.replicas if node_id not in state.adding)


def is_complete(state: PartitionMetadata) -> bool:
    """Whether all that are wanted are in sync, or nothing but their order is to change."""
    return not is_moving(state) or set(wanted(state)) <= set(state.isr)


def decide(
    state: PartitionMetadata, target: Sequence[int] | None, is_there: IsOnline, *, any_count: bool
) -> PartitionMetadata:
    """The partition on its way to `target`; None: back. What replaces a move that is under way
    begins where that one began. `any_count`: of replicas, or as many as are wanted now.

    Raises InvalidReplicationAssignmentError, InvalidReplicationFactorError and
    NoReassignmentInProgressError.
    """
    origin = before(state)
    if target is None:
        if not is_moving(state):
            raise NoReassignmentInProgressError()
        target = origin
    else:
        _check(state, target, is_there)
        count = len(wanted(state))
        if len(target) != count and not any_count:
            raise InvalidReplicationFactorError(
                f"The replication factor is changed from {count} to {len(target)}"
            )
    replicas = tuple(dict.fromkeys((*target, *origin)))
    if set(state.isr).isdisjoint(replicas):
        raise InvalidReplicationAssignmentError(
            f"None of the replicas that are in sync, {list(state.isr)}, would be left."
        )
    return replace(
        state,
        replicas=replicas,
        adding=tuple(node_id for node_id in replicas if node_id not in origin),
        removing=tuple(node_id for node_id in replicas if node_id not in target),
    )


def _check(state: PartitionMetadata, target: Sequence[int], is_there: IsOnline) -> None:
    if not target:
        raise _refused("an empty replica list.")
    origin = before(state)
    for node_id in target:
        if node_id not in origin and not is_there(node_id):
            raise _refused(f"broker {node_id}, but no such broker is registered.")
    for number, node_id in enumerate(target):
        if node_id in target[:number]:
            raise _refused(f"the broker {node_id} more than once.")


def _refused(what: str) -> BrokerResponseError:
    return InvalidReplicationAssignmentError(f"The manual partition assignment includes {what}")


def begun(state: PartitionMetadata, is_online: IsOnline) -> PartitionMetadata:
    """What is to be written when replicas begin to move: in a new leader epoch, from which on the
    leader knows those that are added. Who was added by a move that this one replaces is gone."""
    return _led_by(state, state.replicas, is_online)


def completed(state: PartitionMetadata, is_online: IsOnline) -> PartitionMetadata:
    """What is to be written when it is complete."""
    replicas = wanted(state)
    done = replace(state, replicas=replicas, adding=(), removing=())
    return _led_by(done, replicas, is_online)


def _led_by(
    state: PartitionMetadata, replicas: Sequence[int], is_online: IsOnline
) -> PartitionMetadata:
    """In sync is who is one of these; the leader stays, unless it is none of them or is gone."""
    isr = tuple(node_id for node_id in state.isr if node_id in replicas)
    leader = state.leader
    if leader not in isr or not is_online(leader):
        able = (node_id for node_id in replicas if node_id in isr and is_online(node_id))
        leader = next(able, NO_LEADER)
    return replace(state, isr=isr, leader=leader, leader_epoch=state.leader_epoch + 1)
