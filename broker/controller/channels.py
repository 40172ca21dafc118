"""The controller's ways to the brokers: what it has to say to each, in order.

Owns: for each live broker a channel, and the making of requests out of what changed. A channel
carries one request after the other; LeaderAndIsr goes before the UpdateMetadata of the same change,
so that nobody is sent to a leader that does not know yet that it is one.
Called by: the event loop's thread only.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from kafka.errors import BrokerResponseError, NotControllerError, StaleControllerEpochError
from kafka.structs import TopicPartition

from broker.cluster.control import (
    ControlRequest,
    Failures,
    LeaderAndIsr,
    Partitions,
    Stamp,
    StoppedReplica,
    StopReplica,
    UpdateMetadata,
)
from broker.cluster.metadata import BrokerNode, LiveBroker
from broker.controller.context import ControllerContext

Answer = asyncio.Future[Failures]


class BrokerChannel(Protocol):
    """The way to one broker."""

    def send(self, request: ControlRequest) -> Answer:
        """Sends it after those before. The future raises BrokerResponseError where the broker
        refuses the whole, and BrokerNotAvailableError when the channel is closed."""
        ...

    async def close(self) -> None:
        """Sends no more, and waits for what is under way."""
        ...


Heard = Callable[[int, Partitions, Failures], None]
"""Of a broker that was told to lead and follow partitions: which of them failed."""


class Channels:
    """The way to all brokers."""

    def __init__(
        self,
        controller_id: int,
        context: ControllerContext,
        channel_to: Callable[[BrokerNode], BrokerChannel],
        heard: Heard,
    ) -> None:
        self._heard = heard
        self.controller_epoch = 0
        self.controller_id = controller_id
        self._context = context
        self._channel_to = channel_to
        self._channels: dict[int, BrokerChannel] = {}

    def open(self, broker: LiveBroker) -> None:
        """Before anything is sent to the broker."""
        self._channels[broker.node.node_id] = self._channel_to(broker.node)

    async def close(self, node_ids: Collection[int] | None = None) -> None:
        """Sends no more to these brokers, or to anybody."""
        closing = list(self._channels) if node_ids is None else node_ids
        channels = [self._channels.pop(node_id) for node_id in closing if node_id in self._channels]
        for channel in channels:
            await channel.close()

    def lead_and_follow(
        self,
        changed: Partitions,
        created: Collection[TopicPartition] = (),
        to: Collection[int] | None = None,
    ) -> dict[int, Answer]:
        """Tells every live broker (of `to`) that keeps one of the partitions; its answer by
        broker."""
        answers = {}
        nodes = {node_id for state in changed.values() for node_id in state.replicas}
        for node_id in self._live(nodes, to):
            partitions = {
                place: state for place, state in changed.items() if node_id in state.replicas
            }
            leaders = {state.leader for state in partitions.values()} & self._context.brokers.keys()
            answer = answers[node_id] = self._channels[node_id].send(
                LeaderAndIsr(
                    self._stamp(node_id),
                    partitions,
                    self._topic_ids(partitions),
                    frozenset(created) & partitions.keys(),
                    [self._context.brokers[leader].node for leader in sorted(leaders)],
                )
            )
            answer.add_done_callback(partial(self._answered, node_id, partitions))
        return answers

    def _answered(self, node_id: int, partitions: Partitions, answer: Answer) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._heard(node_id, partitions, answer.result())

    def update_metadata(
        self, changed: Partitions, to: Collection[int] | None = None
    ) -> dict[int, Answer]:
        """Tells every live broker (of `to`) who is there, and what partitions are now."""
        brokers = [broker.node for _, broker in sorted(self._context.brokers.items())]
        topic_ids = self._topic_ids(changed)
        changed = self._context.with_failed(changed)
        return {
            node_id: self._channels[node_id].send(
                UpdateMetadata(self._stamp(node_id), brokers, changed, topic_ids)
            )
            for node_id in self._live(self._channels.keys(), to)
        }

    def stop_replicas(
        self, partitions: Partitions, *, delete: bool, to: Collection[int] | None = None
    ) -> dict[int, list[Answer]]:
        """Has every live broker (of `to`) stop its replicas of the partitions, perhaps with their
        logs."""
        nodes = {node_id for state in partitions.values() for node_id in state.replicas}
        answers = {}
        for node_id in self._live(nodes, to):
            stopped = {
                place: StoppedReplica(state.leader_epoch, delete)
                for place, state in partitions.items()
                if node_id in state.replicas
            }
            request = StopReplica(self._stamp(node_id), stopped)
            answers[node_id] = [self._channels[node_id].send(request)]
        return answers

    def _live(self, node_ids: Collection[int], to: Collection[int] | None) -> list[int]:
        wanted = set(node_ids) if to is None else set(node_ids).intersection(to)
        return sorted(wanted & self._channels.keys())

    def _stamp(self, node_id: int) -> Stamp:
        epoch = self._context.brokers[node_id].epoch
        return Stamp(self.controller_id, self.controller_epoch, epoch)

    def _topic_ids(self, partitions: Collection[TopicPartition]) -> Mapping[str, UUID]:
        names = {place.topic for place in partitions}
        return {name: self._context.topics[name].topic_id for name in names}


async def failures_of(
    answers: Mapping[int, Sequence[Answer]], partitions: Collection[TopicPartition]
) -> Mapping[int, Failures]:
    """What failed where; waits for all answers. With a broker that has gone, or refuses, all of
    `partitions` have. Where a broker knows a later controller, the error is what clients are told
    then: NotControllerError."""
    failures: dict[int, dict[TopicPartition, BrokerResponseError]] = {}
    for node_id, several in answers.items():
        failures[node_id] = {}
        for answer in several:
            try:
                failed = await asyncio.shield(answer)
            except BrokerResponseError as error:
                failures[node_id], failed = {}, dict.fromkeys(partitions, error)
            failures[node_id] |= {place: _for_clients(error) for place, error in failed.items()}
    return failures


def _for_clients(error: BrokerResponseError) -> BrokerResponseError:
    if isinstance(error, StaleControllerEpochError):
        return NotControllerError("another controller has taken over")
    return error
