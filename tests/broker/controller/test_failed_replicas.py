"""Replicas whose disks fail: who leads and is in sync then, and when they may again."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.errors import BrokerResponseError, InconsistentTopicIdError, KafkaStorageError
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.control import NO_LEADER, StopReplica, UpdateMetadata
from broker.cluster.store import Create
from tests.broker.controller.scripted import P0, P1, ScriptedCluster
from tests.support.patience import eventually, turns


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    made = ScriptedCluster(tmp_path)
    yield made
    made.store.close()


async def tell(cluster: ScriptedCluster, value: bytes) -> None:
    """As a broker does; what was told is done then."""
    cluster.store.commit([Create(znodes.log_dir_event(), value, sequence=True)])
    await cluster.controller.failed_replicas.look_at_events()
    assert cluster.store.children(znodes.LOG_DIR_EVENTS) == []
    await turns()  # what the brokers answer is heard in the next turn of the loop
    await cluster.controller.finish_changes()


async def fail(cluster: ScriptedCluster, node_id: int, *places: TopicPartition) -> None:
    cluster.failed[node_id] = set(places)
    await tell(cluster, znodes.dump_log_dir_event(node_id))


@pytest.mark.parametrize("failure", [KafkaStorageError, InconsistentTopicIdError])
def test_others_lead_and_are_in_sync_where_a_disk_has_failed(
    cluster: ScriptedCluster, failure: type[BrokerResponseError]
) -> None:
    """Or has the log of another topic of that name."""
    cluster.failure = failure

    async def scenario() -> None:
        await cluster.start((1, 2, 3))
        before = cluster.state(P1)
        await fail(cluster, 1, P0)
        state = cluster.state(P0)
        assert (state.leader, state.leader_epoch, state.isr) == (2, 1, (2, 3))
        assert cluster.state(P1) == before
        stopped = [
            (node_id, set(request.partitions))
            for node_id, request in cluster.told
            if isinstance(request, StopReplica)
        ]
        assert stopped == [(1, {P0})]
        assert cluster.deleted() == []
        assert {2, 3} <= {node for node, _ in cluster.followed(P0).items()}
        await fail(cluster, 3, P0)
        state = cluster.state(P0)
        assert (state.leader, state.leader_epoch, state.isr) == (2, 2, (2,))
        # Nothing is new.
        await tell(cluster, znodes.dump_log_dir_event(3))
        assert cluster.state(P0) == state

    asyncio.run(scenario())


def test_clients_are_told_which_replicas_are_offline(cluster: ScriptedCluster) -> None:
    """Also of what only one replica keeps, and who is in sync nowhere; and when they are back."""

    def offline() -> dict[int, tuple[int, ...]]:
        return {
            node_id: request.partitions[P0].failed
            for node_id, request in cluster.told
            if isinstance(request, UpdateMetadata) and P0 in request.partitions
        }

    async def scenario() -> None:
        await cluster.start((1, 2))
        await cluster.in_sync(1)
        await fail(cluster, 2, P0)
        assert offline() == dict.fromkeys(range(1, 6), (2,))
        await fail(cluster, 1, P0)
        assert offline() == dict.fromkeys(range(1, 6), (2, 1))
        cluster.failed.clear()
        await cluster.lose(2)
        assert offline() == {**dict.fromkeys(range(1, 6), (1,)), 2: (2, 1)}
        await cluster.find(2)
        assert offline()[2] == (1,)
        await tell(cluster, znodes.dump_log_dir_event(1))
        assert offline() == dict.fromkeys(range(1, 6), ())

    asyncio.run(scenario())


def test_who_has_failed_leads_again_when_it_says_so_or_is_started_again(
    cluster: ScriptedCluster,
) -> None:
    async def scenario() -> None:
        await cluster.start((1, 2))
        await fail(cluster, 1, P0, P1)
        await cluster.in_sync(2, place=P0)
        await cluster.lose(2)
        assert [cluster.state(place).leader for place in (P0, P1)] == [NO_LEADER] * 2
        await cluster.find(2)
        assert [cluster.state(place).leader for place in (P0, P1)] == [2, 2]
        # It has its log again without having been away.
        await fail(cluster, 1, P1)
        await cluster.in_sync(2, 1, place=P0)
        cluster.failed.clear()
        await cluster.lose(1)
        await cluster.find(1)
        await cluster.in_sync(2, 1, place=P1)
        await cluster.lose(2)
        assert cluster.state(P1).leader == 1

    asyncio.run(scenario())


def test_the_only_replica_stays_and_nonsense_is_forgotten(cluster: ScriptedCluster) -> None:
    async def scenario() -> None:
        await cluster.start((1,))
        before = cluster.state(P0)
        await fail(cluster, 1, P0, P1)
        assert cluster.state(P0) == before
        (last,) = {
            request.partitions[P0]
            for _, request in cluster.told
            if isinstance(request, UpdateMetadata)
        }
        assert last == replace(before, failed=(1,))
        for value in (b"", b"[]", b'{"version":1}', b'{"broker":[]}', b'{"version":1,"broker":77}'):
            await tell(cluster, value)
        assert cluster.state(P0) == before

    asyncio.run(scenario())


def test_what_a_new_controller_is_told_counts_and_a_store_that_is_away_is_waited_for(
    cluster: ScriptedCluster,
) -> None:
    async def scenario() -> None:
        await cluster.start((1, 2))
        cluster.failed[1] = {P0}
        await cluster.fail_over()
        await eventually(lambda: cluster.state(P0).leader == 2, cluster.state)
        assert cluster.state(P0).isr == (2,)
        assert cluster.state(P1).isr == (1, 2)

    asyncio.run(scenario())
