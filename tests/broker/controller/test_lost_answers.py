"""A store whose answers are lost, or another controller, in the middle of whatever a controller
does: what was written is what the brokers are told in the end, as if nothing had been."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kafka.errors import (
    ElectionNotNeededError,
    InvalidPartitionsError,
    KafkaError,
    NotControllerError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.control import AlterPartition, IsrChange, LeaderAndIsr, StopReplica
from broker.cluster.metadata import BrokerNode, PartitionMetadata
from broker.cluster.store import (
    ANY_VERSION,
    Delete,
    MetadataStoreError,
    Node,
    Operation,
    StoreConnectionError,
)
from broker.controller import turns as controller_turns
from broker.controller.leaders import Election, ElectionRules
from tests.broker.controller.scripted import P0, P1, ScriptedCluster
from tests.support.patience import EVENT_S, eventually, turns
from tests.support.present import present

_T = TypeVar("_T")

LOST, AWAY, MOVED, REFUSED = "lost", "away", "another controller", "refused"
"""The commit is done, or not, and who asked for it knows neither; or another controller was elected
just before it; or the store refuses it."""


class Faults:
    """Of a store's commits the `number`th is answered by nothing."""

    def __init__(self, cluster: ScriptedCluster, kind: str) -> None:
        self._cluster = cluster
        self._commit_each = cluster.store.commit_each
        cluster.store.commit_each = self._commit  # type: ignore[method-assign]
        self._kind = kind
        self._left = 0

    def arm(self, number: int) -> None:
        self._left = number

    def _commit(
        self, commits: Sequence[Sequence[Operation]]
    ) -> list[list[str | Node | None] | MetadataStoreError]:
        self._left -= 1
        if self._left:
            return self._commit_each(commits)
        if self._kind == MOVED:
            self._cluster.depose()
            return self._commit_each(commits)
        if self._kind == AWAY:
            return [StoreConnectionError("/")] * len(commits)
        if self._kind == REFUSED:
            done = self._commit_each(commits[: len(commits) // 2])
            return done + [MetadataStoreError("/")] * (len(commits) - len(done))
        # Those that are sent together may be done in part.
        self._commit_each(commits[: (len(commits) + 1) // 2])
        return [StoreConnectionError("/")] * len(commits)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    unclean.clear()
    made = ScriptedCluster(tmp_path, ElectionRules(unclean.__contains__))
    yield made
    made.store.close()


unclean: set[str] = set()


async def insist(
    change: Callable[[], Awaitable[_T]], done: type[KafkaError] | None = None
) -> _T | None:
    """As a client does that has had no answer, or membership that is told of a change: until there
    is one, or it is `done` already."""
    while True:
        try:
            return await change()
        except (MetadataStoreError, KafkaError) as error:
            if done is not None and isinstance(error, done):
                return None
            await turns()


# What happens; before it the topic is as `ScriptedCluster` has it.


async def a_topic_is_created(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    arm()
    await insist(
        lambda: cluster.controller.create_topic("new", [(1, 2), (2, 3)], {}),
        TopicAlreadyExistsError,
    )
    await eventually(lambda: "new" in cluster.controller._context.topics)


async def a_topic_is_deleted(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    (topic,) = cluster.records.cluster().topics
    arm()
    await insist(lambda: cluster.controller.delete_topic(topic), UnknownTopicOrPartitionError)
    await eventually(lambda: not cluster.records.topic_names(), cluster.records.topic_names)
    assert not cluster.records.deleted_topics()


async def partitions_are_added(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    arm()
    await insist(lambda: cluster.controller.add_partitions("t", 4), InvalidPartitionsError)
    assert len(cluster.records.cluster().topics[0].partitions) == 4


async def a_broker_is_lost(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    cluster.store.commit([Delete(znodes.broker(1), ANY_VERSION)])
    arm()
    await insist(lambda: cluster.controller.brokers_changed())
    await eventually(lambda: cluster.state(P0).leader == cluster.state(P1).leader == 2)


async def a_broker_is_back(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    await cluster.lose(1)
    cluster.records.register(BrokerNode(1, "host", 9091))
    cluster.told = [each for each in cluster.told if each[0] != 1]
    arm()
    await insist(lambda: cluster.controller.brokers_changed())
    await eventually(lambda: (1, P0) in told(cluster))
    await insist(lambda: cluster.in_sync(2, 1))


async def a_preferred_leader_is_elected(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    await cluster.lose(1)
    await cluster.find(1)
    await cluster.in_sync(2, 1)

    async def elect() -> None:
        outcomes = await cluster.controller.leaders.elect(Election.PREFERRED, [P0])
        if outcomes[P0] is not None:
            raise present(outcomes[P0])

    arm()
    await insist(elect, ElectionNotNeededError)
    assert cluster.state().leader == 1


async def a_broker_stops(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    epoch = cluster.records.brokers()[1].epoch
    arm()
    assert await insist(lambda: cluster.controller.shut_down(1, epoch)) == []
    assert cluster.state().leader == 2


async def an_isr_shrinks(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    state, (topic,) = cluster.state(), cluster.records.cluster().topics
    change = IsrChange(topic.topic_id, 0, state.leader_epoch, (1,), state.partition_epoch)
    asked = AlterPartition(1, cluster.records.brokers()[1].epoch, [change])
    arm()
    (answer,) = present(await insist(lambda: cluster.controller.alter_partitions(asked)))
    assert answer == cluster.state()
    assert isinstance(answer, PartitionMetadata)
    assert answer.isr == (1,)


async def replicas_move(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    arm()
    await insist(lambda: cluster.controller.moves.begin({P0: (3, 2)}))
    await eventually(lambda: cluster.state().isr == (1, 2))

    async def catch_up() -> None:
        if cluster.state().replicas == (3, 2, 1):
            await cluster.in_sync(1, 2, 3)

    await insist(catch_up)
    await eventually(lambda: cluster.state().replicas == (3, 2), cluster.state)
    await eventually(lambda: not cluster.controller.moves.under_way())


async def a_move_is_taken_back(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    """Led by a broker that it was to add."""
    await cluster.controller.moves.begin({P0: (3, 4)})
    await cluster.in_sync(1, 2, 3)
    await cluster.lose(1)
    assert cluster.state().leader == 3
    arm()
    await insist(lambda: cluster.controller.moves.begin({P0: None}))
    await eventually(lambda: cluster.state().leader == 2, cluster.state)
    assert (cluster.state().replicas, cluster.state().isr) == ((1, 2), (2,))


async def who_is_not_in_sync_may_lead(cluster: ScriptedCluster, arm: Callable[[], None]) -> None:
    for place in (P0, P1):
        await cluster.in_sync(1, place=place)
    await cluster.lose(1)
    unclean.add("t")
    arm()
    cluster.controller.leaders.rules_changed()
    await eventually(lambda: cluster.state(P0).leader == cluster.state(P1).leader == 2)


EVENTS = [
    a_topic_is_created,
    a_topic_is_deleted,
    partitions_are_added,
    a_broker_is_lost,
    a_broker_is_back,
    a_preferred_leader_is_elected,
    a_broker_stops,
    an_isr_shrinks,
    replicas_move,
    a_move_is_taken_back,
    who_is_not_in_sync_may_lead,
]


STOPPED = (0, 0)
"""What who has stopped a replica knows."""


def told(cluster: ScriptedCluster) -> dict[tuple[int, TopicPartition], tuple[int, int]]:
    """Who leads in which epoch, by what each broker was told last. Other ISRs are told to leaders
    alone, by answers."""
    found = {}
    for node_id, request in cluster.told:
        if isinstance(request, LeaderAndIsr):
            for place, state in request.partitions.items():
                found[node_id, place] = state.leader, state.leader_epoch
        elif isinstance(request, StopReplica):
            found |= {(node_id, place): STOPPED for place in request.partitions}
    return found


def is_told(cluster: ScriptedCluster) -> bool:
    """Whether each broker that is there was told what stands in the store, and the controller
    knows it."""
    stored, known, last = cluster.records.cluster(), cluster.controller._context, told(cluster)
    return all(
        known.topics.get(topic.name) == topic
        and all(
            last.get((node_id, place)) in (STOPPED, (state.leader, state.leader_epoch))
            for place, state in zip(topic.topic_partitions(), topic.partitions, strict=True)
            for node_id in set(state.replicas) & stored.brokers.keys()
        )
        for topic in stored.topics
    )


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__.replace("_", " "))
@pytest.mark.parametrize("kind", [LOST, AWAY, MOVED, REFUSED])
@pytest.mark.parametrize("number", range(1, 4))
def test_what_comes_between_two_writes_is_made_good(
    cluster: ScriptedCluster,
    event: Callable[[ScriptedCluster, Callable[[], None]], Coroutine[Any, Any, None]],
    kind: str,
    number: int,
) -> None:
    async def scenario() -> None:
        await cluster.controller.start()
        await cluster.controller.create_topic("t", [(1, 2), (1, 2)], {})
        faults, first = Faults(cluster, kind), cluster.controller
        await asyncio.wait_for(event(cluster, lambda: faults.arm(number)), EVENT_S)
        await eventually(lambda: is_told(cluster), lambda: (cluster.state(), told(cluster)))
        assert first.is_active == (first is cluster.controller)
        await cluster.controller.resign()

    asyncio.run(scenario())


def test_a_change_of_several_turns_ends_where_everything_was_read_anew_between_them(
    cluster: ScriptedCluster,
) -> None:
    """It would go on with what it knew before, beside who goes on with the same from the store."""

    async def scenario() -> None:
        await cluster.controller.start()
        turns = cluster.controller._turns
        async with turns.turn() as term:
            pass
        cluster.failures.append(StoreConnectionError("/"))
        with pytest.raises(StoreConnectionError):
            await cluster.controller.brokers_changed()
        assert not cluster.controller.is_active
        await eventually(lambda: cluster.controller.is_active)
        with pytest.raises(NotControllerError):
            async with turns.turn(term):
                pass
        await cluster.controller.resign()

    asyncio.run(scenario())


def test_what_the_store_refuses_again_soon_is_made_good_a_little_later(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_turns, "_APART_S", 0.3)

    async def scenario() -> None:
        await cluster.start()
        for _ in range(2):
            cluster.told.clear()
            cluster.failures.append(MetadataStoreError("/"))
            with pytest.raises(MetadataStoreError):
                await cluster.controller.brokers_changed()
            await eventually(cluster.followed, "all brokers are told anew")
            await eventually(lambda: cluster.controller.is_active)
        await cluster.controller.resign()

    asyncio.run(scenario())
