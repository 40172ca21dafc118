"""Replicas that move to other brokers, step by step, as the store and the brokers see it."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    InvalidReplicationAssignmentError,
    NoReassignmentInProgressError,
    NotControllerError,
    ReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster.control import NO_LEADER
from broker.cluster.store import ANY_VERSION, Create, Delete, StoreConnectionError
from tests.broker.controller.scripted import P0, P1, ScriptedCluster

NODE = "/admin/reassign_partitions"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    made = ScriptedCluster(tmp_path)
    yield made
    made.store.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def node(cluster: ScriptedCluster) -> tuple[Any, Any, Any]:
    value = json.loads(cluster.store.get("/brokers/topics/t").value)
    return value["partitions"]["0"], value["adding_replicas"], value["removing_replicas"]


async def move(cluster: ScriptedCluster, *target: int, place: TopicPartition = P0) -> None:
    (outcome,) = (await cluster.controller.moves.begin({place: target or None})).values()
    if outcome is not None:
        raise outcome


def test_a_move_as_apache_kafka_writes_it(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        epoch = cluster.state().leader_epoch
        await move(cluster, 3, 2)
        assert node(cluster) == ([3, 2, 1], {"0": [3]}, {"0": [1]})
        state = cluster.state()
        assert (state.leader, state.leader_epoch, state.isr) == (1, epoch + 1, (1, 2))
        followed = cluster.followed()
        assert {node_id: new for node_id, (_, new) in followed.items()} == {
            1: False,
            2: False,
            3: True,
        }
        assert followed[3][0] == state
        assert cluster.controller.moves.under_way() == {P0: state}
        assert cluster.deleted() == []
        cluster.told.clear()
        await cluster.in_sync(1, 2, 3)
        await cluster.wait(lambda: node(cluster) == ([3, 2], {}, {}))
        state = cluster.state()
        assert (state.leader, state.leader_epoch, state.isr) == (3, epoch + 2, (2, 3))
        assert set(cluster.followed()) == {2, 3}
        assert cluster.deleted() == [1]
        assert cluster.controller.moves.under_way() == {}
        assert cluster.state(P1).replicas == (1, 2)

    run(scenario)


def test_fewer_replicas_and_another_order_are_done_at_once(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await move(cluster, 2, 1)
        await cluster.wait(lambda: node(cluster) == ([2, 1], {}, {}))
        assert cluster.state().leader == 1
        await move(cluster, 2)
        await cluster.wait(lambda: node(cluster) == ([2], {}, {}))
        assert (cluster.state().leader, cluster.state().isr) == (2, (2,))
        assert cluster.deleted() == [1]
        told = len(cluster.told)
        await move(cluster, 2)  # where it is
        assert len(cluster.told) == told

    run(scenario)


def test_a_move_is_taken_back(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        with pytest.raises(NoReassignmentInProgressError):
            await move(cluster)
        await move(cluster, 3, 4)
        await cluster.in_sync(1, 2, 3)  # not all of them yet
        assert cluster.controller.moves.under_way()
        await move(cluster)
        await cluster.wait(lambda: node(cluster) == ([1, 2], {}, {}))
        assert (cluster.state().isr, cluster.state().leader) == ((1, 2), 1)
        assert cluster.deleted() == [3, 4]

    run(scenario)


def test_a_move_is_replaced_by_another(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await move(cluster, 3, 4)
        await move(cluster, 4, 5)
        assert node(cluster) == ([4, 5, 1, 2], {"0": [4, 5]}, {"0": [1, 2]})
        assert cluster.deleted() == [3]
        await cluster.in_sync(1, 2, 4, 5)
        await cluster.wait(lambda: node(cluster) == ([4, 5], {}, {}))
        assert cluster.deleted() == [3, 1, 2]

    run(scenario)


def test_two_at_once(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        gone = TopicPartition("t", 9)
        outcomes = await cluster.controller.moves.begin({P0: (3, 2), P1: (2, 3), gone: (1,)})
        assert isinstance(outcomes.pop(gone), UnknownTopicOrPartitionError)
        assert outcomes == {P0: None, P1: None}
        await cluster.in_sync(1, 2, 3, place=P1)
        await cluster.wait(lambda: cluster.state(P1).replicas == (2, 3))
        assert node(cluster) == ([3, 2, 1], {"0": [3]}, {"0": [1]})
        with pytest.raises(ReassignmentInProgressError):
            await cluster.controller.add_partitions("t", 3)
        await cluster.in_sync(1, 2, 3)
        await cluster.wait(lambda: cluster.state(P0).replicas == (3, 2))
        await cluster.controller.add_partitions("t", 3)

    run(scenario)


def test_the_next_controller_goes_on(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        before = cluster.controller
        await move(cluster, 3, 2)
        await cluster.fail_over()
        with pytest.raises(NotControllerError):
            await before.moves.begin({P0: None})
        assert list(cluster.controller.moves.under_way()) == [P0]
        await cluster.in_sync(1, 2, 3)
        await cluster.wait(lambda: node(cluster) == ([3, 2], {}, {}))

    run(scenario)


def test_the_next_controller_ends_what_was_just_to_end(cluster: ScriptedCluster) -> None:
    """Also where the one before had not heard that the log is gone."""

    async def scenario() -> None:
        await cluster.start()
        await move(cluster, 3, 2)
        cluster.silent.add(1)
        await cluster.in_sync(1, 2, 3)
        await cluster.wait(lambda: cluster.deleted() == [1])
        assert node(cluster) == ([3, 2, 1], {"0": [3]}, {"0": [1]})
        cluster.silent.clear()
        await cluster.fail_over()
        await cluster.wait(lambda: node(cluster) == ([3, 2], {}, {}))
        assert cluster.deleted() == [1, 1]
        assert cluster.state().isr == (2, 3)

    run(scenario)


def test_who_is_to_go_and_is_away_holds_nothing_up(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await move(cluster, 3, 2)
        cluster.silent.add(1)
        await cluster.in_sync(1, 2, 3)
        await cluster.lose(1)
        await cluster.wait(lambda: node(cluster) == ([3, 2], {}, {}))

    run(scenario)


def test_a_move_waits_for_a_broker_that_is_away(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await move(cluster, 3, 2)
        await cluster.lose(3)
        with pytest.raises(InvalidReplicationAssignmentError):
            await move(cluster, 3, place=P1)
        cluster.told.clear()
        await cluster.find(3)
        assert cluster.followed()[3][0] == cluster.state()
        await cluster.in_sync(1, 2, 3)
        await cluster.wait(lambda: node(cluster) == ([3, 2], {}, {}))

    run(scenario)


def test_what_a_dead_broker_led_moves_as_well(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await cluster.lose(1)
        await move(cluster, 3, 2)
        state = cluster.state()
        assert (state.leader, state.isr) == (2, (2,))
        # Also where it dies on the way, and nobody else is in sync: that one is waited for.
        await cluster.lose(2)
        assert (cluster.state().leader, cluster.state().isr) == (NO_LEADER, (2,))
        assert node(cluster) == ([3, 2, 1], {"0": [3]}, {"0": [1]})
        await cluster.find(2)
        await cluster.in_sync(2, 3)
        await cluster.wait(lambda: node(cluster) == ([3, 2], {}, {}))
        assert (cluster.state().leader, cluster.state().isr) == (2, (2, 3))

    run(scenario)


@pytest.mark.parametrize("leader", [2, NO_LEADER])
def test_a_controller_that_is_lost_as_it_takes_a_move_back_leaves_no_leader_that_keeps_nothing(
    cluster: ScriptedCluster, leader: int
) -> None:
    """It has written down who keeps the partition, and not yet who leads it."""

    async def scenario() -> None:
        await cluster.start()
        await move(cluster, 3, 4)
        await cluster.in_sync(1, 2, 3)
        await cluster.lose(1)
        assert (cluster.state().leader, cluster.state().isr) == (3, (2, 3))
        (topic,) = cluster.records.cluster().topics
        first, second = topic.partitions
        back = replace(first, replicas=(1, 2), adding=(), removing=())
        cluster.records.write_placements([replace(topic, partitions=(back, second))])
        if leader == NO_LEADER:
            cluster.store.commit([Delete("/brokers/ids/2", ANY_VERSION)])
        await cluster.fail_over()
        assert (cluster.state().leader, cluster.state().isr) == (leader, (2,))
        if leader == NO_LEADER:
            await cluster.find(2)
        assert (cluster.state().leader, cluster.state().isr) == (2, (2,))
        assert cluster.followed()[2][0] == cluster.state()

    run(scenario)


def test_a_topic_is_deleted_while_its_replicas_move(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await move(cluster, 3, 2)
        (topic,) = cluster.records.cluster().topics
        await cluster.controller.delete_topic(topic)
        assert set(cluster.deleted()) == {1, 2, 3}
        assert cluster.records.cluster().topics == []

    run(scenario)


def test_a_store_that_is_away_for_a_moment_is_asked_again(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await move(cluster, 3, 2)
        cluster.slow = asyncio.Event()
        in_sync = asyncio.ensure_future(cluster.in_sync(1, 2, 3))
        await cluster.wait(lambda: cluster.state().isr == (1, 2, 3))
        cluster.failures += [StoreConnectionError("/")] * 2
        cluster.slow.set()
        await in_sync
        await cluster.wait(lambda: not cluster.failures and node(cluster) == ([3, 2], {}, {}))

    run(scenario)


def request(*asked: tuple[Any, list[int]]) -> bytes:
    partitions = [
        {"topic": place.topic, "partition": place.partition, "replicas": replicas}
        for place, replicas in asked
    ]
    return json.dumps({"version": 1, "partitions": partitions}).encode()


def test_what_old_tools_ask_for_by_a_node(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        await cluster.controller.look_at_requests()  # nothing yet
        asked = ((P0, [3, 2]), (P1, [2]), (TopicPartition("gone", 0), [1]))
        cluster.store.commit([Create(NODE, request(*asked))])
        await cluster.controller.look_at_requests()
        await cluster.wait(lambda: cluster.state(P1).replicas == (2,))
        assert cluster.store.exists(NODE)
        await cluster.fail_over()
        await cluster.controller.look_at_requests()
        await cluster.in_sync(1, 2, 3)
        await cluster.wait(lambda: not cluster.store.exists(NODE))
        assert node(cluster) == ([3, 2], {}, {})

    run(scenario)


def test_what_is_asked_for_later_by_request_counts(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start()
        cluster.store.commit([Create(NODE, request((P0, [3, 2])))])
        await cluster.controller.look_at_requests()
        assert cluster.store.exists(NODE)
        await move(cluster, 4, 2)
        assert not cluster.store.exists(NODE)

    run(scenario)


def test_a_node_that_was_not_looked_at_since_a_take_over_stays(cluster: ScriptedCluster) -> None:
    """Another controller may have done what the one before asked for."""

    async def scenario() -> None:
        await cluster.start()
        cluster.store.commit([Create(NODE, request((P0, [3, 2])))])
        await cluster.controller.look_at_requests()
        cluster.failures.append(StoreConnectionError("/"))
        with pytest.raises(StoreConnectionError):
            await cluster.controller.brokers_changed()
        await cluster.wait(lambda: cluster.controller.is_active)
        cluster.store.commit([Delete(NODE, ANY_VERSION)])
        cluster.store.commit([Create(NODE, request((P1, [2])))])
        await cluster.in_sync(1, 2, 3)
        await cluster.wait(lambda: node(cluster) == ([3, 2], {}, {}))
        await cluster.controller.finish_changes()
        assert cluster.store.exists(NODE)
        await cluster.controller.look_at_requests()
        await cluster.wait(lambda: cluster.state(P1).replicas == (2,))

    run(scenario)


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"\xff", b"[]", b"{}", b'{"partitions":7}', b'{"partitions":[{"topic":"t"}]}'),
        b'{"partitions":[{"topic":"t","partition":1e999}]}',
        b'{"partitions":[{"topic":[],"partition":0,"replicas":["x"]}]}',
        b'{"partitions":[{"topic":{"a":1},"partition":-1,"replicas":[1]}]}',
    ],
)
def test_a_node_of_nonsense_is_removed(cluster: ScriptedCluster, value: bytes) -> None:
    async def scenario() -> None:
        await cluster.start()
        cluster.store.commit([Create(NODE, value)])
        await cluster.controller.look_at_requests()
        assert not cluster.store.exists(NODE)

    run(scenario)
