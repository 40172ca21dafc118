"""A broker's place in a cluster, with a real ZooKeeper and sessions that end."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from broker.boot.membership import Membership
from broker.cluster.control import LeaderAndIsr, StopReplica, UpdateMetadata
from broker.cluster.metadata import BrokerNode
from broker.cluster.records import MetadataRecords
from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import NodeExistsError, StoreConnectionError
from broker.cluster.zookeeper_store import ZooKeeperStore
from broker.controller.controller import Controller
from broker.controller.local_channel import LocalChannel
from tests.broker.cluster.conftest import Events
from tests.support.patience import EVENT_S, eventually
from tests.support.zookeeper import ZooKeeperServer, expire

_T = TypeVar("_T")


def test_a_session_that_ends_before_a_broker_joins_is_followed_by_the_next(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, events = open_store(zookeeper.address)
    records = MetadataRecords(store)
    records.prepare()
    expire(zookeeper.address, store._session._client.client_id)
    told = [events.wait(SessionState.EXPIRED), events.wait(SessionState.CONNECTED, 2)]
    assert joined(store, records, told)


def test_a_broker_that_joins_asks_again_where_it_had_no_answer(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = open_store(zookeeper.address)
    records = MetadataRecords(store)
    records.prepare()
    register, failures = records.register, [StoreConnectionError("/")] * 2

    def fails_twice(node: BrokerNode) -> int:
        if failures:
            raise failures.pop()
        return register(node)

    monkeypatch.setattr(records, "register", fails_twice)
    assert joined(store, records, [])


def test_a_registration_of_a_session_that_has_ended_meanwhile_does_not_count(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its node may be there as the next begins; when that goes, the broker registers."""
    store, _ = open_store(zookeeper.address)
    before, _ = open_store(zookeeper.address)
    records, of_before = MetadataRecords(store), MetadataRecords(before)
    records.prepare()
    register, refused = records.register, asyncio.Event()
    registered: list[int | None] = []
    node = BrokerNode(1, "host", 9092)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        membership = membership_of(node, store, records, registered)

        def ends_meanwhile(node: BrokerNode) -> int:
            epoch = of_before.register(node)
            monkeypatch.setattr(records, "register", is_refused)
            for state in (SessionState.EXPIRED, SessionState.CONNECTED):
                event = SessionEvent(state, store._session.session_id, is_new=True)
                loop.call_soon_threadsafe(membership.session_changed, event)
            return epoch

        def is_refused(node: BrokerNode) -> int:
            try:
                return register(node)
            except NodeExistsError:
                loop.call_soon_threadsafe(refused.set)
                raise

        monkeypatch.setattr(records, "register", ends_meanwhile)
        joining = loop.create_task(membership.join(wait_s=EVENT_S))
        await refused.wait()
        before.close()
        await joining
        await eventually(records.brokers, "the broker's own registration")
        assert registered[-1] == records.brokers()[1].epoch
        await membership.leave()

    asyncio.run(scenario())


class Unanswered:
    """A method of the records' that has no answer, `times` often; then it returns `answer`, or what
    it finds."""

    def __init__(
        self, patch: pytest.MonkeyPatch, records: MetadataRecords, name: str, times: int = 1
    ) -> None:
        self._method = getattr(records, name)
        self._times = times
        self.answer: Any = None
        self.answered = 0
        patch.setattr(records, name, self)

    def __call__(self, *arguments: Any) -> Any:
        if self._times:
            self._times -= 1
            raise StoreConnectionError("/")
        answer = self.answer or self._method(*arguments)
        self.answered += 1
        return answer


@pytest.mark.parametrize("unanswered", ["register", "controller_id"])
def test_a_new_session_is_gone_on_with_where_the_store_did_not_answer(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    monkeypatch: pytest.MonkeyPatch,
    unanswered: str,
) -> None:
    """No node changes by that: nothing but the broker itself reminds it."""
    store, _ = open_store(zookeeper.address)
    monkeypatch.setattr(store, "watch", lambda path, changed: lambda: None)
    records = MetadataRecords(store)
    records.prepare()
    registered: list[int | None] = []

    async def scenario() -> None:
        node = BrokerNode(1, "host", 9092)
        membership = membership_of(node, store, records, registered)
        await membership.join(wait_s=5)
        await eventually(lambda: records.controller_epoch, "its election")
        asked = Unanswered(monkeypatch, records, unanswered)
        if unanswered != "register":  # its node is still there: the store goes on in its session
            monkeypatch.setattr(records, "register", lambda node: 7)
        asked.answer = 7
        for state in (SessionState.EXPIRED, SessionState.CONNECTED):
            event = SessionEvent(state, store._session.session_id, is_new=True)
            membership.session_changed(event)
        await eventually(lambda: asked.answered, f"it asks again: {unanswered}")
        await membership.leave()

    asyncio.run(scenario())
    assert registered[1:] == [7]


def test_a_broker_joins_also_where_the_store_does_not_say_who_is_controller(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = open_store(zookeeper.address)
    records = MetadataRecords(store)
    records.prepare()
    asked = Unanswered(monkeypatch, records, "controller_id", times=2)

    async def scenario() -> None:
        membership = membership_of(BrokerNode(1, "host", 9092), store, records, [])
        await membership.join(wait_s=5)
        await eventually(lambda: records.controller_epoch, "its election")
        await membership.leave()

    asyncio.run(scenario())
    assert asked.answered


def joined(
    store: ZooKeeperStore, records: MetadataRecords, told: Sequence[SessionEvent]
) -> list[Any]:
    """Its epochs."""
    registered: list[int | None] = []

    async def join() -> None:
        membership = membership_of(BrokerNode(1, "host", 9092), store, records, registered)
        for event in told:
            membership.session_changed(event)
        await membership.join(wait_s=5)
        await membership.leave()

    asyncio.run(join())
    return registered


def membership_of(
    node: BrokerNode, store: ZooKeeperStore, records: MetadataRecords, registered: list[int | None]
) -> Membership:
    async def run_blocking(function: Callable[[], _T]) -> _T:
        return await asyncio.to_thread(function)

    return Membership(
        node,
        store,
        records,
        Controller(node.node_id, records, lambda node: LocalChannel(obey), run_blocking),
        run_blocking,
        registered.append,
        lambda: None,
    )


async def obey(request: LeaderAndIsr | StopReplica | UpdateMetadata) -> dict[Any, Any]:
    return {}
