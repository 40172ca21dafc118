"""Replicas that move, whatever is asked for and whoever is lost in between."""

import asyncio
import json
import tempfile
from collections.abc import Collection, KeysView
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cluster.control import NO_LEADER, LeaderAndIsr, StopReplica
from broker.controller.leaders import Election
from broker.controller.reassignments import wanted
from tests.broker.controller.scripted import P0, ScriptedCluster

NODES = (1, 2, 3, 4, 5)
targets = st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.none() | targets),
        st.tuples(st.just("in sync"), st.sets(st.sampled_from(NODES))),
        st.tuples(st.just("lose"), st.sampled_from(NODES)),
        st.tuples(st.just("find"), st.sampled_from(NODES)),
        st.tuples(st.just("prefer"), st.none()),
        st.tuples(st.just("fail over"), st.none()),
    ),
    max_size=15,
)


class World:
    """Brokers that keep what they are told to keep."""

    def __init__(self, directory: Path) -> None:
        self.cluster = ScriptedCluster(directory)

    def there(self) -> KeysView[int]:
        return self.cluster.records.brokers().keys()

    async def do(self, step: str, value: Any) -> None:
        cluster = self.cluster
        if step == "lose" and value in self.there():
            await cluster.lose(value)
        elif step == "find" and value not in self.there():
            await cluster.find(value)
        elif step == "prefer":
            await cluster.controller.leaders.elect(Election.PREFERRED, None)
        elif step == "fail over":
            await cluster.fail_over()
        elif step == "in sync":
            await self.in_sync(value)

    async def in_sync(self, wished: Collection[int]) -> None:
        """The leader and those followers that are there."""
        state = self.cluster.state()
        if state.leader != NO_LEADER:
            able = [node for node in state.replicas if node in self.there() and node in wished]
            isr = [state.leader, *(node for node in able if node != state.leader)]
            await self.cluster.in_sync(*isr)

    async def settle(self) -> None:
        """Everybody comes back and catches up."""
        for node in NODES:
            await self.do("find", node)
        for _ in range(3):
            await self.in_sync(NODES)
            await self.cluster.controller.finish_changes()

    def check(self) -> None:
        state = self.cluster.state()
        assert state.isr
        assert set(state.isr) <= set(state.replicas)
        assert len(set(state.replicas)) == len(state.replicas)
        assert state.leader == NO_LEADER or state.leader in state.isr
        assert set(state.adding) | set(state.removing) <= set(state.replicas)

    def check_logs(self) -> None:
        """Who was told to delete its log last keeps the partition no more; all others do."""
        keeps = {1: True, 2: True}
        for node, request in self.cluster.told:
            if isinstance(request, LeaderAndIsr) and P0 in request.partitions:
                keeps[node] = True
            if isinstance(request, StopReplica) and P0 in request.partitions:
                keeps[node] = keeps.get(node, False) and not request.partitions[P0].delete
        state = self.cluster.state()
        assert all(keeps.get(node, False) for node in state.replicas)


@settings(max_examples=min(settings().max_examples, 2000), deadline=None)
@given(steps=steps)
def test_moves_end_as_they_were_last_asked_for(
    steps: list[tuple[str, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))

        async def scenario() -> None:
            await world.cluster.start()
            asked = [1, 2]
            for step, value in steps:
                if step == "move":
                    outcomes = await world.cluster.controller.moves.begin({P0: value})
                    if outcomes == {P0: None}:
                        asked = list(wanted(world.cluster.state()))
                        assert value is None or asked == value
                else:
                    await world.do(step, value)
                await world.cluster.controller.finish_changes()
                world.check()
            await world.settle()
            world.check()
            world.check_logs()
            state = world.cluster.state()
            assert (list(state.replicas), state.adding, state.removing) == (asked, (), ())
            assert set(state.isr) == set(asked)
            node = json.loads(world.cluster.store.get("/brokers/topics/t").value)
            assert (node["partitions"]["0"], node["adding_replicas"]) == (asked, {})

        try:
            asyncio.run(scenario())
        finally:
            world.cluster.store.close()
