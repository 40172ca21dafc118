"""Moves: the replicas that are on their way to other brokers.

Owns: what `reassignments` decides, carried out: the topic's node says who is added and removed for
as long as that lasts, so that the next controller goes on; replicas are stopped, and their logs
deleted, when all that are wanted are in sync. What is asked for by the node
/admin/reassign_partitions, as tools before Kafka 2.6 do, is done the same way; the node goes when
that is done. Called by: the event loop's thread.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.control import Partitions
from broker.cluster.metadata import PartitionMetadata, TopicMetadata
from broker.controller.channels import Answer, failures_of
from broker.controller.reassignments import begun, completed, decide, is_complete, is_moving
from broker.controller.turns import Turns

_log = logging.getLogger(__name__)

Targets = Mapping[TopicPartition, Sequence[int] | None]
"""Where partitions are to go; None: back to where they were."""
Outcomes = dict[TopicPartition, BrokerResponseError | None]


class Moves:
    """Of one controller."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._has_node = False
        self._by_node: set[TopicPartition] = set()
        """What the node has asked for, and is not done."""
        self._ending: set[TopicPartition] = set()
        """Whose replicas are in their places, and the others just going."""

    def under_way(self) -> dict[TopicPartition, PartitionMetadata]:
        """The partitions whose replicas move. Raises NotControllerError."""
        self._turns.check_active()
        partitions = self._turns.context.partitions()
        return {place: state for place, state in partitions if is_moving(state)}

    async def begin(self, asked: Targets, *, any_count: bool = True) -> Outcomes:
        """Lets partitions move; what was refused, and why. `any_count`: of replicas, or as many as
        there are. Raises NotControllerError and KafkaStorageError."""
        beginning = self._begin(asked, any_count=any_count, by_node=False)
        return await self._turns.changes.finish("moves", beginning)

    async def look_at_node(self) -> None:
        """What it asks for. Raises NotControllerError and MetadataStoreError."""
        records = self._turns.records
        asked: Targets | None = {}
        try:
            asked = await self._turns.run_blocking(records.reassignments_asked_for)
        except ValueError as error:
            _log.error("moves.node_ignored reason=%r", str(error))
        if asked is None:
            return
        outcomes = await self._begin(asked, any_count=True, by_node=True)
        for place, refusal in outcomes.items():
            if refusal is not None:
                _log.error("moves.refused topic=%r partition=%d reason=%r", *place, str(refusal))

    def take_over(self) -> None:
        """This broker has become controller: goes on with what the one before has begun."""
        self._has_node, self._by_node, self._ending = False, set(), set()
        self.go_on(self.under_way())

    def go_on(self, places: Iterable[TopicPartition]) -> None:
        """These partitions' ISRs are others now."""
        ready = [place for place in places if self._is_ready(place)]
        if ready:
            self._turns.changes.begin("moves", self._complete_in_turn(ready))

    def _is_ready(self, place: TopicPartition) -> bool:
        state = self._turns.context.state(place)
        return state is not None and is_moving(state) and is_complete(state)

    async def _begin(self, asked: Targets, *, any_count: bool, by_node: bool) -> Outcomes:
        context = self._turns.context
        outcomes: Outcomes = dict.fromkeys(asked)
        old: dict[TopicPartition, PartitionMetadata] = {}
        new: dict[TopicPartition, PartitionMetadata] = {}
        async with self._turns.turn():
            for place, target in asked.items():
                try:
                    state = context.existing_state(place)
                    is_there = context.brokers.__contains__
                    moving = decide(state, target, is_there, any_count=any_count)
                except BrokerResponseError as error:
                    outcomes[place] = error
                    continue
                if moving != state:
                    old[place], new[place] = state, moving
            accepted = {place for place, refusal in outcomes.items() if refusal is None}
            self._by_node = self._by_node | accepted if by_node else self._by_node - accepted
            self._has_node |= by_node
            await self._write(context.with_changes(new))
            waiting = {place: state for place, state in new.items() if not is_complete(state)}
            await self._start(waiting, old)
            await self._complete(
                {place: state for place, state in new.items() if place not in waiting}, old
            )
            await self._settle_node()
        for place, state in new.items():
            _log.info("partition.moves topic=%r partition=%d replicas=%r", *place, state.replicas)
        return outcomes

    async def _start(self, moving: Partitions, old: Partitions) -> None:
        if not moving:
            return
        turns = self._turns
        written = await turns.write_states(
            {place: begun(state, turns.context.is_online) for place, state in moving.items()}
        )
        for node_id in {node_id for state in written.values() for node_id in state.replicas}:
            added = {place for place, state in written.items() if node_id in state.adding}
            turns.channels.lead_and_follow(written, added, to=[node_id])
        turns.channels.update_metadata(written)
        self._stop_others(written, old)  # those that a move before this one was adding

    async def _complete_in_turn(self, ready: Collection[TopicPartition]) -> None:
        async with self._turns.turn():
            moving = self._turns.context.states(place for place in ready if self._is_ready(place))
            await self._complete(moving, moving)

    async def _complete(self, moving: Partitions, old: Partitions) -> None:
        """In a turn. What is to be done when others have stopped has one of its own."""
        if not moving:
            return
        turns = self._turns
        written = await turns.write_states(
            {place: completed(state, turns.context.is_online) for place, state in moving.items()}
        )
        turns.announce(written)
        self._ending |= written.keys()
        turns.changes.begin("moves", self._end(written, self._stop_others(written, old)))

    def _stop_others(self, new: Partitions, old: Partitions) -> Mapping[int, Sequence[Answer]]:
        """With their logs."""
        others = {
            place: replace(
                state, replicas=tuple(set(old[place].replicas).difference(state.replicas))
            )
            for place, state in new.items()
        }
        return self._turns.channels.stop_replicas(others, delete=True)

    async def _end(self, done: Partitions, answers: Mapping[int, Sequence[Answer]]) -> None:
        """Only when the logs are gone the node says so: who takes over before then asks again. A
        broker that is away keeps what it has."""
        for node_id, failures in (await failures_of(answers, done)).items():
            for place, error in failures.items():
                _log.warning(
                    "partition.not_stopped topic=%r partition=%d broker=%d reason=%r",
                    *(*place, node_id, error),
                )
        await self._end_in_turn(done)
        for place, state in done.items():
            _log.info("partition.moved topic=%r partition=%d replicas=%r", *place, state.replicas)

    async def _end_in_turn(self, done: Collection[TopicPartition]) -> None:
        async with self._turns.turn():
            topics = self._turns.context.topics
            names = {place.topic for place in done} & topics.keys()
            await self._write([topics[name] for name in sorted(names)])
            self._ending.difference_update(done)
            await self._settle_node()

    async def _write(self, topics: Sequence[TopicMetadata]) -> None:
        """Who keeps their partitions, and who is added and removed."""
        if topics:
            records = self._turns.records
            await self._turns.run_blocking(lambda: records.write_placements(topics))

    async def _settle_node(self) -> None:
        """Removes the node when all that it asked for is done, or refused."""
        self._by_node = {
            place
            for place in self._by_node
            if place in self._ending
            or ((state := self._turns.context.state(place)) is not None and is_moving(state))
        }
        if self._has_node and not self._by_node:
            records = self._turns.records
            await self._turns.run_blocking(lambda: records.forget_request(znodes.REASSIGNMENTS))
            self._has_node = False
