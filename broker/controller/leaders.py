"""Leaders: elections that are asked for, or due to bring leadership back to where it belongs.

Owns: preferred and unclean elections by request (ElectLeaders, and the node
/admin/preferred_replica_election of tools before Kafka 2.4), those of topics that have come to
allow unclean ones, and the balance of leaders over the brokers (auto.leader.rebalance.enable).
Who is elected is `elections`'s to say. Called by: the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.control import NO_LEADER, Partitions
from broker.cluster.store import MetadataStoreError
from broker.controller.channels import Answer, failures_of
from broker.controller.elections import (
    elect_offline,
    elect_preferred,
    elect_unclean,
    out_of_balance,
)
from broker.controller.turns import Turns
from broker.log.clock import Clock

_log = logging.getLogger(__name__)

_FIRST_BALANCE_S = 5.0
"""After a controller was elected."""

Outcomes = dict[TopicPartition, BrokerResponseError | None]


class Election(Enum):
    """By their numbers in the protocol."""

    PREFERRED = 0
    UNCLEAN = 1


def _never(topic: str) -> bool:
    return False


def _as_known(topic: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """`is_unclean`: whether a topic may be led by who is not in sync, where nobody is. Leaders are
    balanced every `balance_interval_s` (None: never), those of a broker that leads fewer of the
    partitions that are its own than all but `imbalance_percentage` of them. A leader that was
    started anew begins its epoch by the `epoch_clock`: that of a broker alone, whose metadata comes
    back from a copy together with its logs. `read` finds out what `is_unclean` is to say of a
    topic; it blocks, and raises MetadataStoreError."""

    is_unclean: Callable[[str], bool] = _never
    balance_interval_s: float | None = None
    imbalance_percentage: int = 10
    epoch_clock: Clock | None = None
    read: Callable[[str], None] = _as_known


class Leaders:
    """Of one controller."""

    def __init__(self, turns: Turns, rules: ElectionRules) -> None:
        self._turns = turns
        self._rules = rules
        self._balancing: asyncio.Task[None] | None = None

    async def elect(self, kind: Election, places: Collection[TopicPartition] | None) -> Outcomes:
        """Of these partitions, or of all that there are: why there was no election. Returns when
        clients of this broker are told. Raises NotControllerError and KafkaStorageError."""
        return await self._turns.changes.finish("leaders", self._elect(kind, places))

    async def look_at_node(self) -> None:
        """What it asks for. Raises NotControllerError and MetadataStoreError."""
        records = self._turns.records
        places: Collection[TopicPartition] | None = ()
        try:
            places = await self._turns.run_blocking(records.elections_asked_for)
        except ValueError as error:
            _log.error("leaders.node_ignored reason=%r", str(error))
        if places is None:
            return
        for place, refusal in (await self._elect(Election.PREFERRED, places)).items():
            if refusal is not None:
                _log.warning("leader.not_elected topic=%r partition=%d reason=%r", *place, refusal)
        async with self._turns.turn():
            await self._turns.run_blocking(
                lambda: records.forget_request(znodes.PREFERRED_ELECTIONS)
            )

    def take_over(self) -> None:
        """This broker has become controller."""
        if self._rules.balance_interval_s is not None and self._balancing is None:
            balancing = self._balance_for_ever(self._rules.balance_interval_s)
            self._balancing = asyncio.get_running_loop().create_task(balancing)

    def resign(self) -> None:
        if self._balancing is not None:
            self._balancing.cancel()
            self._balancing = None

    def rules_changed(self) -> None:
        """Some topics may allow unclean elections now."""
        context = self._turns.context
        if self._turns.is_active and any(
            state.leader == NO_LEADER for _, state in context.partitions()
        ):
            self._turns.changes.begin("leaders", self._elect_offline())

    async def read_rules(self) -> None:
        """Of topics that have partitions which only who is not in sync could lead. What they were
        made with a broker that keeps nothing of them has never heard. Before they are elected, in
        the same turn. Raises MetadataStoreError."""
        topics = set()
        for place, state in self._turns.context.partitions():
            is_online = self._turns.context.online(place)
            if not any(map(is_online, state.isr)) and any(map(is_online, state.replicas)):
                topics.add(place.topic)

        def read() -> None:
            for topic in topics:
                self._rules.read(topic)

        if topics:
            await self._turns.run_blocking(read)

    async def balance(self) -> None:
        """Has brokers lead again what is theirs. Raises NotControllerError and
        MetadataStoreError."""
        context = self._turns.context
        places = out_of_balance(
            dict(context.partitions()), self._rules.imbalance_percentage, context.is_online
        )
        if places:
            _log.info("leaders.balanced partitions=%d", len(places))
            await self._elect(Election.PREFERRED, places)

    async def _balance_for_ever(self, interval_s: float) -> None:
        wait_s = min(_FIRST_BALANCE_S, interval_s)
        while True:
            await asyncio.sleep(wait_s)
            wait_s = interval_s
            if not self._turns.is_active:
                continue
            try:
                await self.balance()
            except (BrokerResponseError, MetadataStoreError, OSError) as error:
                _log.warning("leaders.not_balanced reason=%r", str(error))

    async def _elect(self, kind: Election, places: Collection[TopicPartition] | None) -> Outcomes:
        context = self._turns.context
        elect = elect_preferred if kind is Election.PREFERRED else elect_unclean
        async with self._turns.turn():
            asked = [place for place, _ in context.partitions()] if places is None else places
            outcomes: Outcomes = dict.fromkeys(asked)
            elected = {}
            for place in asked:
                try:
                    elected[place] = elect(context.existing_state(place), context.online(place))
                except BrokerResponseError as error:
                    outcomes[place] = error
            told = await self._tell(elected)
        await failures_of(told, elected)
        return outcomes

    async def _elect_offline(self) -> None:
        context = self._turns.context
        async with self._turns.turn():
            await self.read_rules()
            elected = {
                place: new
                for place, state in context.partitions()
                if state.leader == NO_LEADER
                if (
                    new := elect_offline(
                        state,
                        context.online(place),
                        unclean=self._rules.is_unclean(place.topic),
                    )
                ).leader
                != NO_LEADER
            }
            await self._tell(elected)

    async def _tell(self, elected: Partitions) -> dict[int, Sequence[Answer]]:
        """What this broker answers."""
        written = await self._turns.write_states(elected)
        answers = self._turns.announce(written) if written else {}
        own = self._turns.channels.controller_id
        return {own: answers[own]} if own in answers else {}
