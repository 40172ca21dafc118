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
from broker.cluster.store import StoreConnectionError
from broker.cluster.zookeeper_store import ZooKeeperStore
from broker.controller.controller import Controller
from broker.controller.local_channel import LocalChannel
from tests.broker.cluster.conftest import Events
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


def joined(
    store: ZooKeeperStore, records: MetadataRecords, told: Sequence[SessionEvent]
) -> list[Any]:
    """Its epochs."""
    registered: list[int | None] = []

    async def join() -> None:
        async def run_blocking(function: Callable[[], _T]) -> _T:
            return await asyncio.to_thread(function)

        membership = Membership(
            node := BrokerNode(1, "host", 9092),
            store,
            records,
            Controller(node.node_id, records, lambda node: LocalChannel(obey), run_blocking),
            run_blocking,
            registered.append,
            lambda: None,
        )
        for event in told:
            membership.session_changed(event)
        await membership.join(wait_s=5)
        await membership.leave()

    asyncio.run(join())
    return registered


async def obey(request: LeaderAndIsr | StopReplica | UpdateMetadata) -> dict[Any, Any]:
    return {}
