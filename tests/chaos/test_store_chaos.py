"""Commits to an ensemble through networks that fail at random, and sessions that end: each is done
once or not at all, whoever reads back knows which, and nobody is told too little."""

import os
import random
import threading
from collections import Counter
from queue import SimpleQueue

import pytest

from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import Create, Node, SessionExpiredError, Set, StoreConnectionError
from broker.cluster.zookeeper_store import ZooKeeperStore
from broker.config.broker import BrokerConfig
from tests.support.patience import EVENT_S, at_random, for_seconds, wait_until
from tests.support.tcp_proxy import TcpProxy
from tests.support.zookeeper import ZooKeeperEnsemble, expire

SECONDS = float(os.environ.get("KAFKALOG_CHAOS_SECONDS", "8"))
WRITERS = 4


class Writer(threading.Thread):
    """Counts up a node of its own, by commits that hold only where it knows what is there."""

    def __init__(self, store: ZooKeeperStore, path: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._store, self._path, self._stopping = store, path, stop
        store.commit([Create(path, b"0")])
        self._known = store.get(path)
        self.met: Counter[str] = Counter()
        self.wrong: object = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._write()
        except BaseException as error:
            self.wrong = error

    def _write(self) -> None:
        known = self._known
        value = b"%d" % (known.version + 1)
        try:
            (now,) = self._store.commit([Set(self._path, value, known.version)])
            assert isinstance(now, Node)
            self._known = now
            self.met["done"] += 1
        except SessionExpiredError:
            self.met["refused"] += 1
            self._stopping.wait(0.01)
        except StoreConnectionError:
            now = self._known = self._read()
            self.met["lost, not done" if now == known else "lost, done"] += 1
        if self._known != known:
            assert (self._known.value, self._known.version) == (value, known.version + 1)
            assert self._known.czxid == known.czxid

    def _read(self) -> Node:
        while True:
            try:
                return self._store.get(self._path)
            except StoreConnectionError:
                self.met["not read"] += 1


class Owner(threading.Thread):
    """Goes on in each new session, a little later, as an event loop does."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._chance = random.Random(chance.random())
        self.events: SimpleQueue[SessionEvent | None] = SimpleQueue()
        self.met: Counter[str] = Counter()
        self.store: ZooKeeperStore | None = None

    def run(self) -> None:
        for event in iter(self.events.get, None):
            self.met[event.state.value] += 1
            if event.state is SessionState.CONNECTED and self.store is not None:
                at_random(self._chance, 0.05)
                self.store.resume(event.session_id)


def harm(chance: random.Random, proxies: list[TcpProxy], store: ZooKeeperStore, direct: str) -> str:
    """Does one thing that a network does, or ends the session."""
    what = chance.choice(["cut", "cut", "no requests", "no answers", "silence", "expire"])
    if what == "expire":
        expire(direct, store._session._client.client_id)
        return what
    for proxy in proxies:
        proxy.lose(what in ("no requests", "silence"), what in ("no answers", "silence"))
    at_random(chance, 0.3)
    for proxy in proxies:
        proxy.lose()
        proxy.cut()
    return what


@pytest.mark.slow
def test_what_is_read_back_is_what_stays() -> None:
    chance = random.Random(os.environ.get("KAFKALOG_CHAOS_SEED", "1"))
    with ZooKeeperEnsemble() as ensemble:
        proxies = [TcpProxy(server.port) for server in ensemble.servers]
        owner = Owner(chance)
        properties = {
            "zookeeper.connect": ",".join(proxy.address for proxy in proxies) + "/kafka",
            "zookeeper.session.timeout.ms": "4000",
        }
        store = ZooKeeperStore(BrokerConfig.from_properties(properties), owner.events.put)
        owner.store = store
        owner.start()
        stop = threading.Event()
        writers = [Writer(store, f"/{number}", stop) for number in range(WRITERS)]
        changed, seen = threading.Event(), []
        store.watch("/0", changed.set)
        for writer in writers:
            writer.start()
        did: Counter[str] = Counter()
        for _ in for_seconds(SECONDS):
            did[harm(chance, proxies, store, ensemble.address)] += 1
            at_random(chance, 0.4)
        stop.set()
        for writer in writers:
            writer.join(EVENT_S)
        assert [writer.wrong for writer in writers] == [None] * WRITERS, (did, owner.met)
        met = sum((writer.met for writer in writers), Counter())
        assert met["done"] > 0, (did, met)
        assert met["lost, done"] + met["lost, not done"] > 0, (did, met)

        def told() -> bool:
            if changed.is_set():
                changed.clear()
                seen.append(store.get("/0"))
            return seen[-1:] == [writers[0]._known]

        wait_until(told, lambda: (seen[-1:], writers[0]._known))
        store.close()
        owner.events.put(None)
        for proxy in proxies:
            proxy.__exit__()
