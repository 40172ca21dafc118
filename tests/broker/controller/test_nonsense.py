"""Nodes that others have written in nonsense: nothing of them is guessed, and the rest goes on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import CoordinatorLoadInProgressError, TopicAlreadyExistsError

from broker.cluster import znodes
from broker.cluster.store import ANY_VERSION, Create, NonsenseError, Set
from tests.broker.controller.scripted import P0, P1, ScriptedCluster

NO_JSON = [b"", b"nonsense", b"[]", b"\xff", b"[" * 100_000]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    made = ScriptedCluster(tmp_path)
    yield made
    made.store.close()


def write(cluster: ScriptedCluster, path: str, value: bytes) -> bytes:
    """What stood there."""
    before = cluster.store.get(path).value
    cluster.store.commit([Set(path, value, ANY_VERSION)])
    return before


async def known(cluster: ScriptedCluster) -> set[Any]:
    """The topics of the next controller."""
    await cluster.fail_over()
    return set(cluster.controller._context.topics)


TOPIC = [
    *NO_JSON,
    b"{}",
    b'{"partitions":{"0":[1]}}',
    b'{"partitions":[],"topic_id":"Pws_gJSqQzmfLBDX29f-cg"}',
    b'{"partitions":{},"topic_id":"Pws_gJSqQzmfLBDX29f-cg"}',
    b'{"partitions":{"0":[]},"topic_id":"Pws_gJSqQzmfLBDX29f-cg"}',
    b'{"partitions":{"1":[1]},"topic_id":"Pws_gJSqQzmfLBDX29f-cg"}',
    b'{"partitions":{"0":"12"},"topic_id":"Pws_gJSqQzmfLBDX29f-cg"}',
    b'{"partitions":{"0":[4294967296]},"topic_id":"Pws_gJSqQzmfLBDX29f-cg"}',
    b'{"partitions":{"0":[-1]},"topic_id":"Pws_gJSqQzmfLBDX29f-cg"}',
    b'{"partitions":{"0":[1]},"topic_id":"short"}',
    b'{"partitions":{"0":[1]},"topic_id":7}',
]
STATE = [
    *NO_JSON,
    b'{"leader":1,"leader_epoch":0}',
    b'{"leader":null,"leader_epoch":0,"isr":[1]}',
    b'{"leader":1,"leader_epoch":1e999,"isr":[1]}',
    b'{"leader":1,"leader_epoch":0,"isr":"1"}',
    b'{"leader":1,"leader_epoch":0,"isr":["1"]}',
    b'{"leader":1,"leader_epoch":0,"isr":[2147483648]}',
    b'{"leader":2147483648,"leader_epoch":0,"isr":[1]}',
    b'{"leader":1,"leader_epoch":2147483647,"isr":[1]}',
    b'{"leader":1,"leader_epoch":-2,"isr":[1]}',
]


@pytest.mark.parametrize(
    ("path", "value"),
    [(znodes.topic("t"), value) for value in TOPIC]
    + [(znodes.partition_state("t", 1), value) for value in STATE],
)
def test_a_topic_is_left_out_until_it_is_mended(
    cluster: ScriptedCluster, path: str, value: bytes
) -> None:
    """And is not made anew in its place."""

    async def scenario() -> None:
        await cluster.start()
        await cluster.controller.create_topic("other", [(1, 2)], {})
        before = write(cluster, path, value)
        assert await known(cluster) == {"other"}
        await cluster.controller.topics_changed()
        with pytest.raises(TopicAlreadyExistsError):
            await cluster.controller.create_topic("t", [(1, 2)], {})
        await cluster.lose(1)
        assert write(cluster, path, before) == value
        assert await known(cluster) == {"t", "other"}
        states = cluster.controller._context.states([P0, P1])
        assert [state.leader for state in states.values()] == [2, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("value", STATE)
def test_a_controller_replaces_a_state_that_it_knows(
    cluster: ScriptedCluster, value: bytes
) -> None:
    async def scenario() -> None:
        await cluster.start()
        write(cluster, znodes.partition_state(*P0), value)
        await cluster.lose(1)
        for place in (P0, P1):
            state = cluster.state(place)
            assert (state.leader, state.leader_epoch, state.isr) == (2, 1, (2,))
        await cluster.in_sync(2, place=P0)
        await cluster.find(1)
        await cluster.in_sync(2, 1, place=P0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((b"9", value) for value in NO_JSON),
        (b"9", b'{"host":"h"}'),
        (b"9", b'{"host":"h","port":"x"}'),
        (b"x", b'{"host":"h","port":1}'),
        (b"1_0", b'{"host":"h","port":1}'),
        (b"4294967296", b'{"host":"h","port":1}'),
        (b"9", b'{"host":null,"port":-1}'),
        (b"9", b'{"host":"h","port":4294967296}'),
        (b"9", b'{"host":"h","port":1,"rack":7}'),
    ],
)
def test_a_registration_is_left_out(cluster: ScriptedCluster, name: bytes, value: bytes) -> None:
    async def scenario() -> None:
        await cluster.start()
        cluster.store.commit([Create(f"{znodes.BROKERS}/{name.decode()}", value)])
        await cluster.lose(1)
        assert cluster.state(P0).leader == 2
        await cluster.fail_over()
        assert cluster.controller._context.brokers.keys() == {2, 3, 4, 5}

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [*NO_JSON[1:], b"{}", b'{"block_end":"x"}'])
def test_no_producer_ids_are_given_that_may_be_somebodys(
    cluster: ScriptedCluster, value: bytes
) -> None:
    async def scenario() -> None:
        await cluster.start()
        write(cluster, znodes.PRODUCER_ID_BLOCK, value)
        epoch = cluster.records.brokers()[2].epoch
        with pytest.raises(CoordinatorLoadInProgressError, match="nonsense"):
            await cluster.controller.allocate_producer_ids(2, epoch)
        assert write(cluster, znodes.PRODUCER_ID_BLOCK, b"") == value
        assert await cluster.controller.allocate_producer_ids(2, epoch) == range(1000)

    asyncio.run(scenario())


@pytest.mark.parametrize("value", NO_JSON)
def test_what_no_cluster_can_do_without_is_said_by_name(
    cluster: ScriptedCluster, value: bytes
) -> None:
    cluster.store.ensure(znodes.CLUSTER_ID)
    epochs = (b"-1", b"2147483647") if value else ()
    for epoch in epochs:
        write(cluster, znodes.CONTROLLER_EPOCH, epoch)
        with pytest.raises(NonsenseError):
            cluster.records.become_controller(3)
    for path, read in (
        (znodes.CLUSTER_ID, cluster.records.cluster_id),
        (znodes.CONTROLLER, cluster.records.controller_id),
        (znodes.CONTROLLER_EPOCH, lambda: cluster.records.become_controller(3)),
    ):
        write(cluster, path, value)
        with pytest.raises(NonsenseError, match=f"{path} holds nonsense"):
            read()
