"""Assignments of replicas to brokers that clients name: what may be wrong with one."""

from kafka.errors import InvalidReplicationAssignmentError

from broker.api.contexts import ControllerContext


def check_assignment(
    broker_ids: list[int] | None, context: ControllerContext, count: int | None = None
) -> None:
    """Raises InvalidReplicationAssignmentError unless the replicas are brokers, each once, and
    `count` of them, as of the partitions before, where there are any."""
    if not broker_ids:
        raise InvalidReplicationAssignmentError(
            "The manual partition assignment includes an empty replica list."
        )
    known = {node.node_id for node in context.metadata.brokers}
    for node_id in broker_ids:
        if node_id not in known:
            raise InvalidReplicationAssignmentError(
                f"The manual partition assignment includes broker {node_id}, but no such broker "
                "is registered."
            )
    if len(set(broker_ids)) < len(broker_ids):
        twice = next(node_id for node_id in broker_ids if broker_ids.count(node_id) > 1)
        raise InvalidReplicationAssignmentError(
            f"The manual partition assignment includes the broker {twice} more than once."
        )
    if count is not None and len(broker_ids) != count:
        raise InvalidReplicationAssignmentError(
            f"The manual partition assignment includes a partition with {len(broker_ids)} "
            "replica(s), but this is not consistent with previous partitions, which have "
            f"{count} replica(s)."
        )
