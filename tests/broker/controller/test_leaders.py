"""Elections by request, by a node, by a topic's config, and to balance the brokers."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.control import NO_LEADER
from broker.cluster.store import ANY_VERSION, Create, Delete
from broker.controller.leaders import Election, ElectionRules
from tests.broker.controller.scripted import P0, P1, ScriptedCluster
from tests.support.patience import eventually

NODE = "/admin/preferred_replica_election"
unclean: set[str] = set()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    unclean.clear()
    made = ScriptedCluster(tmp_path, ElectionRules(unclean.__contains__))
    yield made
    made.store.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def elect(cluster: ScriptedCluster, kind: Election, place: TopicPartition = P0) -> None:
    (refusal,) = (await cluster.controller.leaders.elect(kind, [place])).values()
    if refusal is not None:
        raise refusal


async def lead_by(cluster: ScriptedCluster, node_id: int) -> None:
    """By the second replica, while the first one is away."""
    await cluster.start()
    first, second = cluster.state().replicas
    assert second == node_id
    await cluster.lose(first)
    await cluster.find(first)
    assert cluster.state().leader == second


def test_a_preferred_leader_leads_again_when_it_is_in_sync(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await lead_by(cluster, 2)
        with pytest.raises(PreferredLeaderNotAvailableError):
            await elect(cluster, Election.PREFERRED)
        await cluster.in_sync(2, 1)
        before = cluster.state()
        cluster.told.clear()
        await elect(cluster, Election.PREFERRED)
        state = cluster.state()
        assert (state.leader, state.leader_epoch, state.isr) == (1, before.leader_epoch + 1, (2, 1))
        assert {each for each, _ in cluster.followed().values()} == {state}
        with pytest.raises(ElectionNotNeededError):
            await elect(cluster, Election.PREFERRED)
        for gone in (TopicPartition("t", 9), TopicPartition("gone", 0)):
            with pytest.raises(UnknownTopicOrPartitionError):
                await elect(cluster, Election.PREFERRED, gone)

    run(scenario)


def test_all_partitions_at_once(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await lead_by(cluster, 2)
        await cluster.in_sync(2, 1)
        outcomes = await cluster.controller.leaders.elect(Election.PREFERRED, None)
        assert outcomes[P0] is None
        assert isinstance(outcomes[P1], PreferredLeaderNotAvailableError)

    run(scenario)


def test_a_controller_of_the_past_elects_nobody(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await lead_by(cluster, 2)
        await cluster.in_sync(2, 1)
        before = cluster.controller
        await cluster.fail_over()
        for _ in range(2):
            with pytest.raises(NotControllerError):
                await before.leaders.elect(Election.PREFERRED, [P0])
        assert cluster.state().leader == 2

    run(scenario)


async def lose_all_in_sync(cluster: ScriptedCluster) -> None:
    """Broker 2 was not in sync, and 1 is gone."""
    await cluster.start()
    await cluster.in_sync(1)
    await cluster.in_sync(1, place=P1)
    await cluster.lose(1)
    state = cluster.state()
    assert (state.leader, state.isr) == (NO_LEADER, (1,))


def test_who_is_not_in_sync_leads_only_when_that_is_asked_for(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await lose_all_in_sync(cluster)
        with pytest.raises(PreferredLeaderNotAvailableError):
            await elect(cluster, Election.PREFERRED)
        before = cluster.state()
        await elect(cluster, Election.UNCLEAN)
        state = cluster.state()
        assert (state.leader, state.isr, state.is_recovering) == (2, (2,), True)
        assert state.leader_epoch == before.leader_epoch + 1
        with pytest.raises(ElectionNotNeededError):
            await elect(cluster, Election.UNCLEAN)
        assert cluster.state(P1).leader == NO_LEADER
        await cluster.find(1)
        await cluster.in_sync(2, 1)
        assert not cluster.state().is_recovering
        assert cluster.state(P1).leader == 1  # it is back

    run(scenario)


def test_nobody_leads_where_nobody_is(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await lose_all_in_sync(cluster)
        await cluster.lose(2)
        with pytest.raises(EligibleLeadersNotAvailableError):
            await elect(cluster, Election.UNCLEAN)

    run(scenario)


def test_a_topic_may_allow_it_before_and_after(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await lose_all_in_sync(cluster)
        cluster.controller.leaders.rules_changed()
        unclean.add("t")
        cluster.controller.leaders.rules_changed()
        await eventually(lambda: cluster.state(P1).leader == 2)
        assert cluster.state().leader == 2
        await cluster.lose(2)
        await cluster.find(1)  # not in sync, but there
        assert (cluster.state().leader, cluster.state().isr) == (1, (1,))

    run(scenario)


def test_the_next_controller_knows_what_a_topic_allows(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await lose_all_in_sync(cluster)
        unclean.add("t")
        await cluster.fail_over()
        assert cluster.state().leader == 2

    run(scenario)


async def its_broker_is_lost(cluster: ScriptedCluster) -> None:
    await cluster.lose(1)


async def another_is_back(cluster: ScriptedCluster) -> None:
    await cluster.lose(2)
    await cluster.lose(1)
    await cluster.find(2)


async def another_controller_is_elected(cluster: ScriptedCluster) -> None:
    cluster.store.commit([Delete(znodes.broker(1), ANY_VERSION)])
    await cluster.fail_over()


async def its_disk_fails(cluster: ScriptedCluster) -> None:
    cluster.failed[1] = {P0}
    cluster.store.commit(
        [Create(znodes.log_dir_event(), znodes.dump_log_dir_event(1), sequence=True)]
    )
    await cluster.controller.failed_replicas.look_at_events()


async def brokers_have_another_default(cluster: ScriptedCluster) -> None:
    await cluster.lose(1)
    made_with["t"] = True
    cluster.controller.leaders.rules_changed()


@pytest.mark.parametrize(
    "event",
    [
        its_broker_is_lost,
        another_is_back,
        another_controller_is_elected,
        its_disk_fails,
        brokers_have_another_default,
    ],
    ids=lambda event: event.__name__.replace("_", " "),
)
@pytest.mark.parametrize("is_allowed", [True, False])
def test_what_a_topic_was_made_with_is_found_out_first(
    tmp_path: Path,
    event: Callable[[ScriptedCluster], Coroutine[Any, Any, None]],
    is_allowed: bool,
) -> None:
    """Its controller may keep nothing of it, and has not heard."""
    known = {"t": not is_allowed}
    made_with["t"] = is_allowed

    def read(topic: str) -> None:
        known[topic] = made_with[topic]

    cluster = ScriptedCluster(tmp_path, ElectionRules(known.__getitem__, read=read))

    async def scenario() -> None:
        await cluster.start()
        await cluster.in_sync(1)
        await event(cluster)
        leader = 2 if made_with["t"] else NO_LEADER
        await eventually(lambda: cluster.state().leader == leader, cluster.state)

    run(scenario)
    cluster.store.close()


made_with: dict[str, bool] = {}


def test_leaders_are_balanced(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await lead_by(cluster, 2)
        await cluster.controller.leaders.balance()
        assert cluster.state().leader == 2  # broker 1 is not in sync yet
        await cluster.in_sync(2, 1)
        await cluster.controller.leaders.balance()
        assert (cluster.state().leader, cluster.state(P1).leader) == (1, 2)

    run(scenario)


def test_leaders_are_balanced_by_themselves(tmp_path: Path) -> None:
    cluster = ScriptedCluster(tmp_path, ElectionRules(balance_interval_s=0.01))

    async def scenario() -> None:
        await lead_by(cluster, 2)
        await cluster.in_sync(2, 1)
        await eventually(lambda: cluster.state().leader == 1)
        await cluster.controller.resign()

    run(scenario)
    cluster.store.close()


@pytest.mark.parametrize("value", [None, b"", b"{}"])
def test_what_old_tools_ask_for_by_a_node(cluster: ScriptedCluster, value: bytes | None) -> None:
    async def scenario() -> None:
        await lead_by(cluster, 2)
        await cluster.in_sync(2, 1)
        await cluster.controller.look_at_requests()  # nothing yet
        partitions = [{"topic": "t", "partition": index} for index in (0, 1, 9)]
        asked = json.dumps({"version": 1, "partitions": partitions}).encode()
        cluster.store.commit([Create(NODE, asked if value is None else value)])
        await cluster.controller.look_at_requests()
        assert cluster.state().leader == (1 if value is None else 2)
        assert not cluster.store.exists(NODE)

    run(scenario)
