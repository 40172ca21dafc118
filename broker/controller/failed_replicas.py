"""FailedReplicas: what becomes of partitions when the disks of some of their replicas fail.

A broker whose disk has failed leaves a node below /log_dir_event_notification, which says no more
than that. It is asked then, by being told again what to lead and follow, and answers
KAFKA_STORAGE_ERROR for what it cannot; so it does whenever it is told. Others lead and are in sync
instead, until it says otherwise, or is started again, and clients are told which replicas are
offline. What only one replica keeps stays as it is: clients hear from its leader what is wrong.
So it is with a broker that has the log of another topic of that name (INCONSISTENT_TOPIC_ID).
Called by: the event loop's thread.
"""

import logging
from collections.abc import Awaitable, Callable, Collection

from kafka.errors import InconsistentTopicIdError, KafkaStorageError
from kafka.structs import TopicPartition

from broker.cluster.control import Failures, Partitions
from broker.cluster.metadata import PartitionMetadata
from broker.controller.elections import elect_without
from broker.controller.turns import Turns

_log = logging.getLogger(__name__)

_NOT_KEPT = (KafkaStorageError, InconsistentTopicIdError)

ElectOffline = Callable[[TopicPartition, PartitionMetadata], PartitionMetadata]


class FailedReplicas:
    """Of one controller."""

    def __init__(
        self,
        turns: Turns,
        elect_offline: ElectOffline,
        read_rules: Callable[[], Awaitable[None]],
    ) -> None:
        """`read_rules` comes before `elect_offline`, in the same turn."""
        self._turns = turns
        self._elect_offline = elect_offline
        self._read_rules = read_rules

    async def look_at_events(self) -> None:
        """Asks the brokers that have said so. Raises NotControllerError and MetadataStoreError."""
        async with self._turns.turn():
            records, context = self._turns.records, self._turns.context
            events = await self._turns.run_blocking(records.brokers_with_failed_logs)
            for node_id in context.brokers.keys() & {*events.values()}:
                kept = {
                    place: state
                    for place, state in context.partitions()
                    if node_id in state.replicas
                }
                self._turns.channels.lead_and_follow(kept, to={node_id})
            await self._turns.run_blocking(lambda: records.forget_log_dir_events(events))

    def heard(self, node_id: int, told: Partitions, failures: Failures) -> None:
        """What a broker says to what it was told to lead and follow."""
        failed = {
            place
            for place, error in failures.items()
            if isinstance(error, _NOT_KEPT) and place in told
        }
        known = self._turns.context.failed.get(node_id, set())
        now = (known - (told.keys() - failures.keys())) | failed
        if now:
            self._turns.context.failed[node_id] = now
        else:
            self._turns.context.failed.pop(node_id, None)
        if now != known and self._turns.is_active:
            changed = now ^ known
            self._turns.changes.begin("failed replicas", self._do_without(node_id, changed))

    async def _do_without(self, node_id: int, places: Collection[TopicPartition]) -> None:
        context, channels = self._turns.context, self._turns.channels
        async with self._turns.turn():
            failed = context.failed.get(node_id, set()).intersection(places)
            there = {place: state for place in places if (state := context.state(place))}
            changed = {}
            await self._read_rules()
            for place in failed & there.keys():
                state = there[place]
                if len(state.replicas) == 1:
                    continue
                if state.leader == node_id:
                    changed[place] = self._elect_offline(place, state)
                elif others := elect_without(state, {node_id}, context.online(place)):
                    changed[place] = others
            written = await self._turns.write_states(changed)
            if failed:
                _log.warning("replicas.failed broker=%d partitions=%d", node_id, len(failed))
            channels.lead_and_follow(written, to=context.brokers.keys() - {node_id})
            channels.stop_replicas(written, delete=False, to={node_id})
            channels.update_metadata({**there, **written})
