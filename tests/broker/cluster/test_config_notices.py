"""How a broker hears what others have set: by notices, whoever writes them, and whatever."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kafka.errors import InvalidConfigurationError

from broker.cluster.config_notices import KEPT_S, ConfigNotices
from broker.cluster.config_records import ConfigRecords
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import new_topic
from broker.cluster.records import MetadataRecords
from broker.cluster.store import (
    ANY_VERSION,
    Create,
    Delete,
    MetadataStoreError,
    StoreConnectionError,
)
from tests.support.patience import eventually, stays_so, turns

_T = TypeVar("_T")


class Told:
    """The configs of one kind."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.times = 0
        self.failures: dict[str, Exception] = {}

    async def reload(self, name: str) -> None:
        if name in self.failures:
            raise self.failures[name]
        self.all.append(name)

    async def reload_all(self) -> None:
        self.times += 1


class World:
    """A broker that follows the notices, and another one that sets what it likes."""

    def __init__(self, directory: Path) -> None:
        self.store = LocalStore(directory)
        records = MetadataRecords(self.store)
        records.prepare()
        records.become_controller(1)
        for name in ("s", "t"):
            records.create_topic(new_topic(name, 1, 1), {})
        self.records = ConfigRecords(self.store, tells_others=True)
        self.now_s = 0.0
        self.failures: list[Exception] = []
        self.topics, self.users = Told(), Told()
        self.notices = ConfigNotices(self.store, self.run_blocking, lambda: self.now_s)

    async def run_blocking(self, function: Callable[[], _T]) -> _T:
        if self.failures:
            raise self.failures.pop()
        return function()

    async def start(self) -> None:
        await self.notices.start({"topics": self.topics, "users": self.users})

    def set(self, name: str, text: str) -> None:
        self.records.change("topics", name, lambda _: {"a": text})

    def write(self, value: bytes) -> None:
        path = "/config/changes/config_change_"
        self.store.commit([Create(path, value, sequence=True)])

    @property
    def kept(self) -> int:
        return len(self.store.children("/config/changes"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_what_is_set_after_the_configs_were_loaded_is_read_once_each(world: World) -> None:
    async def scenario() -> None:
        world.set("s", "1")
        world.notices.remember()
        world.set("t", "1")
        world.set("t", "2")
        await world.start()
        await eventually(lambda: world.topics.all == ["t"])
        world.set("s", "2")
        await eventually(lambda: world.topics.all == ["t", "s"])
        await world.notices.stop()
        world.set("s", "3")
        assert await stays_so(lambda: world.topics.all == ["t", "s"], 0.01)

    run(scenario)
    assert (world.topics.all, world.users.all, world.topics.times) == (["t", "s"], [], 0)


def test_nonsense_holds_nothing_up(world: World) -> None:
    async def scenario() -> None:
        await world.start()
        for value in (b"", b"{", b'{"version":9}', b'{"version":2,"entity_path":"clients/app"}'):
            world.write(value)
        world.store.commit([Create("/config/changes/nonsense", b"x")])
        world.set("t", "1")
        await eventually(lambda: world.topics.all == ["t"])
        await world.notices.stop()

    run(scenario)


@pytest.mark.parametrize("error", [MetadataStoreError("/"), InvalidConfigurationError()])
def test_what_cannot_be_read_or_applied_holds_nothing_up(
    world: World, error: MetadataStoreError | InvalidConfigurationError
) -> None:
    async def scenario() -> None:
        world.topics.failures["s"] = error
        await world.start()
        world.set("s", "1")
        world.set("t", "1")
        await eventually(lambda: world.topics.all == ["t"])
        world.set("s", "2")
        assert await stays_so(lambda: world.topics.all == ["t"], 0.01)
        await world.notices.stop()

    run(scenario)
    assert world.topics.all == ["t"]


def test_after_a_session_all_is_read_again(world: World) -> None:
    async def scenario() -> None:
        await world.start()
        world.failures.append(StoreConnectionError("/"))
        world.notices.session_began()
        await eventually(lambda: world.topics.times)
        world.set("t", "1")
        await eventually(lambda: world.topics.all)
        await world.notices.stop()

    run(scenario)
    assert (world.topics.times, world.users.times) == (1, 1)


def test_a_store_that_is_away_is_asked_again(world: World) -> None:
    async def scenario() -> None:
        await world.start()
        await turns()
        world.set("t", "1")
        world.failures += [StoreConnectionError("/")] * 2
        await eventually(lambda: world.topics.all == ["t"])
        await world.notices.stop()

    run(scenario)


def test_old_notices_are_removed(world: World) -> None:
    async def scenario() -> None:
        world.set("s", "1")
        world.notices.remember()
        await world.start()
        world.now_s = KEPT_S - 1
        world.set("t", "1")
        await eventually(lambda: world.topics.all == ["t"])
        assert world.kept == 2
        world.now_s = KEPT_S
        world.set("t", "2")
        await eventually(lambda: world.kept == 2)
        # As another broker does, a moment before this one.
        first = world.store.children("/config/changes")[0]
        world.now_s = 2 * KEPT_S
        world.store.commit([Delete(f"/config/changes/{first}", ANY_VERSION)])
        world.set("t", "3")
        await eventually(lambda: world.kept == 1)
        await world.notices.stop()

    run(scenario)
