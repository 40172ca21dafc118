"""A ZooKeeper for the tests of this folder, and stores in it."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import MetadataStoreError, Node, Result
from broker.cluster.zookeeper_store import ZooKeeperStore
from broker.config.broker import BrokerConfig
from tests.support.patience import wait_until
from tests.support.zookeeper import ZooKeeperServer


class Events:
    """What a store's owner was told of its sessions, in order."""

    def __init__(self) -> None:
        self.all: list[SessionEvent] = []

    def __call__(self, event: SessionEvent) -> None:
        self.all.append(event)

    @property
    def states(self) -> list[str]:
        return [event.state.value for event in self.all]

    def wait(self, state: SessionState, number: int = 1) -> SessionEvent:
        """The event that was the `number`th of that state."""

        def found() -> list[SessionEvent]:
            return [event for event in self.all if event.state is state][number - 1 :]

        return wait_until(found, lambda: self.states)[0]


def nodes_of(done: list[Result] | MetadataStoreError) -> list[Node]:
    """What a commit has set."""
    assert isinstance(done, list), done
    return [each for each in done if isinstance(each, Node)]


Opened = tuple[ZooKeeperStore, Events]
Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def chroot() -> str:
    """Where a test has a tree of its own."""
    return f"/tests/{uuid.uuid4()}"


@pytest.fixture
def open_store(chroot: str) -> Iterator[Callable[..., tuple[ZooKeeperStore, Events]]]:
    """Opens stores at an address, and closes them in the end; each with what it tells."""
    stores = []

    def open_store(address: str, session_ms: int = 20_000, **properties: str) -> Opened:
        given = {
            "zookeeper.connect": f"{address}{chroot}",
            "zookeeper.session.timeout.ms": str(session_ms),
            **{f"zookeeper.{name.replace('_', '.')}": text for name, text in properties.items()},
        }
        events = Events()
        stores.append(ZooKeeperStore(BrokerConfig.from_properties(given), events))
        return stores[-1], events

    yield open_store
    for store in stores:
        store.close()
