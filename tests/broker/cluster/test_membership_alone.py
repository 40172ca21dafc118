"""A broker's place in a cluster: what it does when its session ends, when its id is still taken,
and when its controller is in doubt. The store is a file's: sessions end when the test says so."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from broker.boot.membership import Membership
from broker.cluster import znodes
from broker.cluster.control import LeaderAndIsr, Stamp, StopReplica, UpdateMetadata
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import BrokerNode
from broker.cluster.records import MetadataRecords
from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import ANY_VERSION, Delete, Node, NoNodeError, StoreConnectionError
from broker.config.definition import ConfigError
from broker.controller.controller import Controller
from broker.controller.local_channel import LocalChannel
from tests.support.patience import eventually, stays_so

_T = TypeVar("_T")

NODE = BrokerNode(1, "host", 9092)


class Store(LocalStore):
    """With sessions."""

    resumed = 0

    def resume(self, session_id: int) -> None:
        self.resumed = session_id


class Broker:
    """Number 1, which does all that it is told."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.records = MetadataRecords(self.store)
        self.records.prepare()
        self.epochs: list[int] = []
        self.lost = 0
        self.stamps: list[Stamp] = []
        self.away = 0

    async def _obey(self, request: LeaderAndIsr | StopReplica | UpdateMetadata) -> dict[Any, Any]:
        self.stamps.append(request.stamp)
        return {}

    async def _run_blocking(self, function: Callable[[], _T]) -> _T:
        if self.away:
            self.away -= 1
            raise StoreConnectionError("/")
        return function()

    async def join(self, wait_s: float = 5.0) -> None:
        """And until there is a controller."""
        self.controller = Controller(
            1, self.records, lambda node: LocalChannel(self._obey), self._run_blocking
        )
        self.membership = Membership(
            NODE,
            self.store,  # type: ignore[arg-type]
            self.records,
            self.controller,
            self._run_blocking,
            self.epochs.append,
            self._on_lost,
        )
        await self.membership.join(wait_s)
        await eventually(lambda: self.controller.is_active or self.records.controller_id())

    def _on_lost(self) -> None:
        self.lost += 1

    def end_session(self) -> None:
        """The server has ended it: what was there by it is gone."""
        for path in (znodes.broker(1), znodes.CONTROLLER):
            with suppress(NoNodeError):
                self.store.commit([Delete(path, ANY_VERSION)])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.store.close()


def test_an_id_that_is_still_taken_is_waited_for(broker: Broker) -> None:
    """By this broker's session before, say, which ends soon."""
    before = broker.records.register(NODE)

    async def scenario() -> None:
        joining = asyncio.ensure_future(broker.join())
        assert await stays_so(lambda: not joining.done() and broker.epochs == [], 0.05)
        broker.end_session()
        await joining
        assert broker.epochs == [broker.records.brokers()[1].epoch]
        assert broker.epochs[0] > before
        assert broker.controller.is_active
        await broker.membership.leave()

    asyncio.run(scenario())


def test_an_id_that_stays_taken_is_an_error(broker: Broker) -> None:
    broker.records.register(NODE)
    with pytest.raises(ConfigError, match=r"broker\.id 1 is registered by another broker"):
        asyncio.run(broker.join(wait_s=0))


def test_a_session_that_ends_is_followed_by_a_new_registration(broker: Broker) -> None:
    """At once nothing is acknowledged any more; nothing is written before the next session; then
    the broker is another one to all, by its epoch."""

    async def scenario() -> None:
        await broker.join()
        (first,) = broker.epochs
        broker.end_session()
        broker.membership.session_changed(SessionEvent(SessionState.EXPIRED, 7))
        assert broker.lost == 1
        await eventually(lambda: not broker.controller.is_active)
        assert not broker.store.exists(znodes.broker(1))
        broker.membership.session_changed(SessionEvent(SessionState.CONNECTED, 8, is_new=True))
        await eventually(lambda: broker.controller.is_active)
        assert broker.store.resumed == 8
        _, second = broker.epochs
        assert second > first
        assert broker.stamps[-1] == Stamp(1, 2, second)
        await broker.membership.leave()

    asyncio.run(scenario())


def test_another_broker_may_be_controller_when_the_next_session_begins(broker: Broker) -> None:
    async def scenario() -> None:
        await broker.join()
        broker.end_session()
        MetadataRecords(broker.store).become_controller(2)
        for event in (
            SessionEvent(SessionState.EXPIRED, 7),
            SessionEvent(SessionState.CONNECTED, 8, is_new=True),
        ):
            broker.membership.session_changed(event)
        await eventually(lambda: len(broker.epochs) == 2)
        assert not broker.controller.is_active
        assert broker.records.controller_id() == 2
        # And when that is gone it stands for election.
        broker.store.commit([Delete(znodes.CONTROLLER, ANY_VERSION)])
        await eventually(lambda: broker.controller.is_active)
        assert broker.records.controller_epoch == 3
        await broker.membership.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_gone", [False, True])
def test_who_was_too_late_to_be_elected_stands_when_the_other_is_gone(
    broker: Broker, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that is before it has heard that another one was faster."""
    get, faster = broker.store.get, MetadataRecords(broker.store)

    def late(path: str) -> Node:
        found = get(path)
        if path == znodes.CONTROLLER_EPOCH:
            monkeypatch.undo()
            faster.become_controller(2)
            if is_gone:
                faster.resign()
        return found

    monkeypatch.setattr(broker.store, "get", late)

    async def scenario() -> None:
        await broker.join()
        if not is_gone:
            assert not broker.controller.is_active
            faster.resign()
        await eventually(lambda: broker.controller.is_active)
        assert (broker.records.controller_id(), broker.records.controller_epoch) == (1, 2)
        await broker.membership.leave()

    asyncio.run(scenario())


def test_a_controller_in_doubt_takes_over_again(broker: Broker) -> None:
    """When the store answers: what it has not seen meanwhile it knows then."""

    async def scenario() -> None:
        await broker.join()
        broker.records.register(BrokerNode(2, "host", 9093))
        await eventually(lambda: 2 in broker.controller._context.brokers)
        broker.away = 3
        with pytest.raises(StoreConnectionError):
            await broker.controller.topics_changed()
        assert not broker.controller.is_active
        broker.store.commit([Delete(znodes.broker(2), ANY_VERSION)])
        await eventually(lambda: broker.controller.is_active)
        assert broker.controller._context.brokers.keys() == {1}
        assert broker.records.controller_epoch == 1
        await broker.membership.leave()

    asyncio.run(scenario())
