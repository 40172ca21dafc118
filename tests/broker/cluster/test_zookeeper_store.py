"""Sessions with a real ZooKeeper: how they end, what is written after that, and what becomes of
commits whose answers are lost. What each store does: test_metadata_store."""

import itertools
import re
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.errors import InvalidPartitionsError
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Transaction

from broker.cluster.metadata import PartitionMetadata, TopicMetadata
from broker.cluster.records import MetadataRecords
from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    CommitTooLargeError,
    Create,
    Delete,
    MetadataStoreError,
    Operation,
    SessionExpiredError,
    Set,
    StoreConnectionError,
)
from broker.cluster.zookeeper_client import TlsHandler
from broker.cluster.zookeeper_store import ZooKeeperStore
from broker.config.broker import BrokerConfig
from broker.config.definition import ConfigError
from tests.broker.cluster.conftest import Events, nodes_of
from tests.support.kafka_server import CERTIFICATES
from tests.support.patience import BUSY_S, EVENT_S, wait_until
from tests.support.ports import closed_port
from tests.support.present import present
from tests.support.tcp_proxy import TcpProxy
from tests.support.zookeeper import (
    LONGEST_SESSION_S,
    SHORTEST_SESSION_S,
    ZooKeeperEnsemble,
    ZooKeeperServer,
    expire,
)

CONNECTED, SUSPENDED, EXPIRED = SessionState


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.port) as between:
        yield between


@pytest.fixture
def other(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> ZooKeeperStore:
    """Another broker's store, in the same tree."""
    return open_store(zookeeper.address)[0]


def lose(proxy: TcpProxy) -> None:
    """All connections, and what comes on those that are there by then."""
    proxy.lose()
    proxy.cut()


def test_a_session_that_ended_is_told_of_and_nothing_is_written_in_the_next(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    other: ZooKeeperStore,
) -> None:
    store, events = open_store(zookeeper.address)
    store.commit([Create("/stays"), Create("/goes", ephemeral=True)])
    first = events.wait(CONNECTED)
    assert first.is_new
    expire(zookeeper.address, store._session._client.client_id)
    second = events.wait(CONNECTED, 2)
    assert events.states in (
        ["connected", "expired", "connected"],
        ["connected", "suspended", "expired", "connected"],
    )
    assert second.is_new
    assert second.session_id != first.session_id == events.wait(EXPIRED).session_id
    assert other.children("/") == ["stays"]

    store.resume(first.session_id)  # late: it is about a session that has ended, too
    for commit in (lambda: store.commit([Create("/no")]), lambda: store.ensure("/no")):
        with pytest.raises(SessionExpiredError):
            commit()
    assert {type(each) for each in store.commit_each([[Create("/no")], []])} == {
        SessionExpiredError
    }
    assert other.children("/") == store.children("/") == ["stays"]
    store.resume(second.session_id)
    store.commit([Create("/goes", ephemeral=True)])
    assert other.children("/") == ["goes", "stays"]
    with pytest.raises(SessionExpiredError):  # as a commit of many that began before
        store._session.send(lambda client: client.create_async("/no"), 0, first.session_id)


def test_a_commit_that_waits_for_the_connection_is_not_done_in_the_next_session(
    zookeeper: ZooKeeperServer,
    proxy: TcpProxy,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    other: ZooKeeperStore,
) -> None:
    """Though its session came back after it was given up, and the next was gone on with."""
    store, events = open_store(proxy.address, session_ms=2000)
    proxy.lose(requests=True, answers=True)
    proxy.cut()
    events.wait(SUSPENDED)
    caught = []

    def commit() -> None:
        with pytest.raises(SessionExpiredError) as error:
            store.commit([Create("/late")])
        caught.append(error)

    waiting = threading.Thread(target=commit)
    waiting.start()
    events.wait(EXPIRED)
    proxy.lose()
    proxy.cut()
    store.resume(events.wait(CONNECTED, 2).session_id)
    waiting.join(BUSY_S)
    assert caught
    store.commit([Create("/after")])
    assert other.children("/") == ["after"]


def told_of_state(store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when kazoo is about to tell of the next change of state, for which it waits for the
    session's gate."""
    client, told = store._session._client, threading.Event()
    tell = client._session_callback

    def note(state: str) -> None:
        told.set()
        tell(state)

    monkeypatch.setattr(client, "_session_callback", note)
    return told


def test_what_is_sent_as_the_connection_is_lost_is_lost_with_it(
    proxy: TcpProxy,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kazoo by itself would send it by the next one, when who sent it has been told already."""
    store, events = open_store(proxy.address)
    noticed = told_of_state(store, monkeypatch)
    with store._session._gate:
        proxy.cut()
        assert noticed.wait(EVENT_S)
        sent = store._session.try_send(lambda client: client.exists_async("/"))
    events.wait(CONNECTED, 2)
    with pytest.raises(ConnectionLoss):
        sent.get(timeout=BUSY_S)


def test_many_readings_go_on_over_a_lost_connection(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, _ = open_store(proxy.address)
    paths = [f"/{number}" for number in range(2000)]
    store.commit_each([[Create(path, path.encode())] for path in paths])

    def cut_often() -> None:
        for _ in range(3):
            proxy.cut()

    cutting = threading.Thread(target=cut_often)
    cutting.start()
    assert [node and node.value.decode() for node in store.get_each(paths)] == paths
    cutting.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_talks_nonsense_is_left(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    """kazoo ends at that, and is started again."""
    store, events = open_store(proxy.address, session_ms=2000)
    first = events.wait(CONNECTED)
    proxy.say(struct.pack("!ii", 4, 12345))  # no whole header
    second = events.wait(CONNECTED, 2)
    assert events.wait(EXPIRED).session_id == first.session_id
    assert second.is_new
    store.resume(second.session_id)
    store.commit([Create("/a")])


def test_an_answer_to_another_request_costs_the_connection_alone(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    """Nobody knows whether the request that waited was done; the session goes on."""
    store, events = open_store(proxy.address)
    session_id = events.wait(CONNECTED).session_id
    proxy.lose(answers=True)
    with ThreadPoolExecutor(1) as pool:
        commit = pool.submit(store.commit, [Create("/a")])
        pending = store._session._client._pending

        def is_sent() -> bool:
            return any(isinstance(request, Transaction) for request, _, _ in list(pending))

        wait_until(is_sent, lambda: pending)
        proxy.lose()
        proxy.say(struct.pack("!iiqi", 16, 12345, 0, 0))
        with pytest.raises(StoreConnectionError):
            commit.result(EVENT_S)
    assert events.wait(CONNECTED, 2).session_id == session_id
    assert store.get("/a").value == b""
    assert events.states == ["connected", "suspended", "connected"]


def test_an_owner_that_fails_when_told_does_no_harm(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(event: SessionEvent) -> None:
        tried.append(event.state)
        raise RuntimeError("the event loop is closed")

    tried: list[SessionState] = []
    store, _ = open_store(zookeeper.address)
    store._on_session = broken
    expire(zookeeper.address, store._session._client.client_id)
    wait_until(lambda: tried[-1:] == [CONNECTED], lambda: tried)
    store.resume(store._session.session_id)
    store.commit([Create("/a")])
    assert "the event loop is closed" in caplog.text


def test_without_a_server_the_own_clock_ends_the_session(
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
) -> None:
    with ZooKeeperServer() as server:
        store, events = open_store(server.address, session_ms=2000)
        store.commit([Create("/goes", ephemeral=True)])
        seen = []
        store.watch("/goes", lambda: seen.append(store._session.session_id))
        server.kill()
        stopped_s = time.monotonic()
        first = events.wait(EXPIRED)
        assert 1.0 < time.monotonic() - stopped_s < 2 + BUSY_S
        assert events.states == ["connected", "suspended", "expired"]
        with pytest.raises(SessionExpiredError):
            store.commit([Create("/no")])
        with pytest.raises(StoreConnectionError, match=r"within 2 s: .*[Cc]onnection refused"):
            store.get("/goes")
        # Started again it would give each session its whole time once more.
        server.start()
        second = events.wait(CONNECTED, 2)
        assert second.is_new
        assert second.session_id != first.session_id
        assert events.states == ["connected", "suspended", "expired", "connected"]
        assert not store.exists("/goes")
        wait_until(lambda: seen, "a watch tells of the new session")
        store.resume(second.session_id)
        store.commit([Create("/goes", ephemeral=True)])
        store.close()


@pytest.mark.parametrize("writes", [False, True])
def test_a_silent_network_ends_the_session_here_before_it_ends_there(
    zookeeper: ZooKeeperServer,
    proxy: TcpProxy,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    other: ZooKeeperStore,
    writes: bool,
) -> None:
    """And leaves a third of it to find another server. Also where kazoo does not notice, as it does
    not while there is something to send."""
    store, events = open_store(proxy.address, session_ms=3000)
    store.commit([Create("/goes", ephemeral=True)])
    expired, suspended_s, expired_s, gone_s = threading.Event(), [], [], []
    events_call = type(events).__call__

    def note(self: Events, event: SessionEvent) -> None:
        events_call(self, event)
        if event.state is SUSPENDED:
            suspended_s.append(time.monotonic())
        if event.state is EXPIRED:
            expired_s.append(time.monotonic())
            expired.set()

    store._on_session = note.__get__(events)
    other.watch("/goes", lambda: gone_s.append(time.monotonic()))

    def write() -> None:
        while not expired.wait(0.02):
            store._session.try_send(lambda client: client.exists_async("/"))

    proxy.lose(requests=True, answers=True)
    if writes:
        threading.Thread(target=write).start()
    wait_until(lambda: gone_s, "the end of the session")
    assert expired_s
    assert expired_s[0] < gone_s[0] + 0.5
    assert expired_s[0] - suspended_s[0] > 0.7
    proxy.lose()
    proxy.cut()
    assert events.wait(CONNECTED, 2).is_new


def test_of_an_idle_session_the_server_hears_each_third_of_its_timeout(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    """Not oftener: it ends, when the broker is killed, the later for it."""
    timeout_s = 1.5
    store, _ = open_store(zookeeper.address, session_ms=int(timeout_s * 1000))
    session = f"sid={store._session.session_id:#x},"

    def requests() -> int:
        (line,) = [line for line in zookeeper.ask("cons").splitlines() if session in line]
        return int(line.partition("recved=")[2].partition(",")[0])

    before, began_s = requests(), time.monotonic()
    wait_until(lambda: requests() >= before + 6, "six requests of the session's own")
    assert time.monotonic() - began_s > 5 * timeout_s / 3 - 0.1


def test_a_session_lives_as_long_as_the_server_granted(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    short, _ = open_store(zookeeper.address, session_ms=300, connection_timeout_ms="20000")
    assert short._session.timeout_s == SHORTEST_SESSION_S
    long, _ = open_store(zookeeper.address, session_ms=100_000)
    assert long._session.timeout_s == LONGEST_SESSION_S


def test_a_lost_connection_loses_no_session(
    proxy: TcpProxy,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    other: ZooKeeperStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, events = open_store(proxy.address)
    other.commit([Create("/a", b"0"), Create("/b")])
    calls: list[str] = []
    for name in ("/a", "/b"):
        store.watch(name, partial(calls.append, name))
    store.commit([Create("/stays", ephemeral=True)])
    proxy.cut()
    other.commit([Set("/a", b"1", 0)])  # while nobody tells
    assert not events.wait(CONNECTED, 2).is_new
    assert events.states == ["connected", "suspended", "connected"]
    assert "reason='Connection dropped: socket connection broken'" in caplog.text
    wait_until(lambda: calls == ["/a"], lambda: calls)
    store.commit([Set("/a", b"2", 1), Set("/b", b"2", 0)])
    assert store.exists("/stays")
    wait_until(lambda: sorted(calls) == ["/a", "/a", "/b"], lambda: calls)


def test_a_commit_whose_answer_is_lost_is_told_by_reading_back(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, _ = open_store(proxy.address, session_ms=3000)
    store.commit([Create("/a", b"0")])
    proxy.lose(answers=True)
    began_s = time.monotonic()
    cut = threading.Timer(0.3, lose, [proxy])
    cut.start()
    with pytest.raises(StoreConnectionError, match=r"^/a: .* read back") as caught:
        store.commit([Set("/a", b"1", 0)])
    assert not isinstance(caught.value, SessionExpiredError)
    assert time.monotonic() - began_s < 3 + BUSY_S
    client = store._session._client
    client.sync_async = Mock(wraps=client.sync_async)
    for _ in range(3):
        assert store.get("/a").value == b"1"  # the first waits for the next connection
    client.sync_async.assert_called_once_with("/")
    with pytest.raises(BadVersionError):
        store.commit([Set("/a", b"1", 0)])
    cut.join()


def test_a_commit_that_did_not_arrive_never_comes(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]], other: ZooKeeperStore
) -> None:
    store, events = open_store(proxy.address)
    store.commit([Create("/a", b"0")])
    proxy.lose(requests=True)
    cut = threading.Timer(0.3, lose, [proxy])
    cut.start()
    done = store.commit_each([[Set("/a", b"%d" % n, ANY_VERSION)] for n in range(30)])
    assert len(done) == 30
    assert all(type(each) is StoreConnectionError for each in done)
    assert store.get("/a").value == b"0"
    events.wait(CONNECTED, 2)
    store.commit([Create("/next")])
    assert other.get("/a").version == 0
    cut.join()


@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_what_is_to_be_there_is_made_once_the_connection_is_back(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]], lost: str
) -> None:
    """A broker that starts meanwhile starts."""
    store, _ = open_store(proxy.address)
    proxy.lose(**{lost: True})
    cut = threading.Timer(0.3, lose, [proxy])
    cut.start()
    store.ensure("/a/b", b"made")
    cut.join()
    assert (store.get("/a").value, store.get("/a/b").value) == (b"", b"made")


def test_the_leader_of_an_ensemble_is_killed(
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
) -> None:
    """A write is done, or nobody knows: then what is read back is what stays."""
    with ZooKeeperEnsemble() as ensemble:
        store, events = open_store(ensemble.address)
        store.commit([Create("/counter", b"0"), Create("/stays", ephemeral=True)])
        watched = threading.Event()
        store.watch("/counter", watched.set)
        killing = threading.Timer(0.2, ensemble.leader.kill)
        killing.start()
        lost = after = 0
        now = store.get("/counter")
        while after < 50:
            was, value = now, b"%d" % (now.version + 1)
            try:
                (now,) = nodes_of(store.commit([Set("/counter", value, was.version)]))
            except StoreConnectionError as error:
                lost += 1
                expired = isinstance(error, SessionExpiredError)
                now = store.get("/counter")
            assert now == was or (now.value, now.version) == (value, was.version + 1)
            after += events.states.count("connected") > 1
        killing.join()
        assert not lost or not expired
        assert lost < 5
        assert store.get("/counter") == now
        assert set(events.states) == {"connected", "suspended"}
        assert len({event.session_id for event in events.all}) == 1
        assert [event.is_new for event in events.all].count(True) == 1
        assert store.exists("/stays")
        assert watched.is_set()
        store.close()


def test_a_tree_of_its_own_below_the_path_that_is_asked_for(
    zookeeper: ZooKeeperServer, other: ZooKeeperStore, chroot: str
) -> None:
    def store_at(path: str) -> ZooKeeperStore:
        given = {"zookeeper.connect": f"localhost:1,{zookeeper.address}{path}"}
        return ZooKeeperStore(BrokerConfig.from_properties(given), lambda event: None)

    deep, beside = store_at(f"{chroot}/kafka/blue"), store_at(f"{chroot}/kafka/green")
    assert deep.commit([Create("/topics"), Create("/n", sequence=True)])[0] == "/topics"
    assert beside.children("/") == []
    assert other.children("/kafka/blue")[1] == "topics"
    for root in ("", "/"):
        at_root = store_at(root)
        assert at_root.exists(f"{chroot}/kafka/green")
        assert "zookeeper" in at_root.children("/")
        at_root.close()
    deep.close()
    beside.close()


def test_a_wrong_address_is_a_clear_error_in_bounded_time(
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
) -> None:
    address = f"127.0.0.1:{closed_port()}"
    began_s = time.monotonic()
    with pytest.raises(StoreConnectionError, match="refused") as caught:
        open_store(address, connection_timeout_ms="700")
    assert f"no connection to ZooKeeper at {address} within 0.7 s" in str(caught.value)
    assert time.monotonic() - began_s < 0.7 + BUSY_S


def test_what_listens_but_is_no_zookeeper(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    proxy.lose(requests=True, answers=True)
    began_s = time.monotonic()
    with pytest.raises(StoreConnectionError, match="no connection to ZooKeeper"):
        open_store(proxy.address, session_ms=700)
    assert time.monotonic() - began_s < 0.7 + BUSY_S


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        bytes(4),
        struct.pack("!iiiq", 16, 0, 20_000, 0),  # of a session, and ends in it
        b"",
    ],
    ids=["HTTP", "SSH", "nothing", "half an answer", "a closed door"],
)
def test_what_answers_but_is_no_zookeeper(
    open_store: Callable[..., tuple[ZooKeeperStore, Events]], answer: bytes
) -> None:
    """Another port than was meant, say: that is told in bounded time."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = door.accept()
                    with client:
                        client.recv(1 << 16)
                        client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        began_s = time.monotonic()
        with pytest.raises(StoreConnectionError, match="no connection to ZooKeeper"):
            open_store(f"127.0.0.1:{door.getsockname()[1]}", connection_timeout_ms="700")
        assert time.monotonic() - began_s < 0.7 + BUSY_S
        door.shutdown(socket.SHUT_RDWR)


def test_many_commits_go_together(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    """As many as are asked for at most are on their way at once."""
    store, _ = open_store(zookeeper.address, max_in_flight_requests="40")
    waiting: list[Any] = []
    most = 0
    send = store._session.send

    def counted(*arguments: Any) -> Any:
        nonlocal waiting, most
        sent = send(*arguments)
        waiting = [one for one in [*waiting, sent] if not one.ready()]
        most = max(most, len(waiting))
        return sent

    store._session.send = counted  # type: ignore[method-assign, assignment]
    store.commit([Create("/a", b"0")])
    done = store.commit_each([[Set("/a", b"x", n)] for n in range(2000)])
    assert [node.version for (node,) in map(nodes_of, done)] == list(range(1, 2001))
    assert 2 <= most <= 40


@pytest.mark.slow
def test_many_watches_are_set_again_by_the_next_connection(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]], other: ZooKeeperStore
) -> None:
    """More than kazoo's pipe takes requests: that filled, all waited for one another for ever."""
    store, events = open_store(proxy.address)
    other.commit([Create(f"/{n}", b"") for n in range(300)])
    told: set[int] = set()
    for n in range(300):
        store.watch(f"/{n}", partial(told.add, n))
    for number in range(2, 5):
        told.clear()
        proxy.cut()
        other.commit([Set(f"/{n}", b"x", ANY_VERSION) for n in range(300)])
        events.wait(CONNECTED, number)
        assert store.exists("/0")
        wait_until(lambda: len(told) == 300, lambda: len(told))


def test_a_node_that_came_and_went_is_told_of(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]], other: ZooKeeperStore
) -> None:
    """Else who has seen it in between, a controller say, would wait for ever for its end."""
    store, events = open_store(proxy.address)
    told = threading.Event()
    store.watch("/brief", told.set)
    come_and_go: list[Operation] = [Create("/brief"), Delete("/brief", ANY_VERSION)]
    other.commit(come_and_go)
    assert told.wait(EVENT_S)
    told.clear()
    proxy.lose(requests=True, answers=True)
    proxy.cut()
    other.commit(come_and_go)
    lose(proxy)
    events.wait(CONNECTED, 2)
    assert told.wait(EVENT_S)


def test_a_lost_connection_leaves_nothing_in_the_pipe(
    proxy: TcpProxy,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a few that are lost one soon after the other fill it."""
    store, events = open_store(proxy.address)
    left = []

    def look(event: SessionEvent) -> None:
        events(event)
        if event.state is CONNECTED:
            pipe = store._session._client._connection._read_sock
            with suppress(BlockingIOError):
                left.append(len(pipe.recv(1000, socket.MSG_PEEK | socket.MSG_DONTWAIT)))

    store._on_session = look
    noticed = told_of_state(store, monkeypatch)
    with store._session._gate:
        proxy.cut()
        assert noticed.wait(EVENT_S)
        for _ in range(90):
            store._session.try_send(lambda client: client.exists_async("/"))
    events.wait(CONNECTED, 2)
    assert sum(left) <= 1  # of a request to close, or of the proof of the session
    assert not store.exists("/a")


def test_no_more_requests_are_asked_for_than_the_pipe_takes(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, events = open_store(proxy.address, max_in_flight_requests="1000")
    proxy.lose(answers=True)
    cut = threading.Timer(0.5, lose, [proxy])
    cut.start()
    done = store.commit_each([[Create(f"/{n}", b"x" * 500)] for n in range(1000)])
    assert all(isinstance(each, StoreConnectionError) for each in done)
    events.wait(CONNECTED, 2)
    assert 0 < len(store.children("/")) <= 101
    cut.join()


def test_of_many_commits_those_after_a_failed_one_are_done(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, _ = open_store(zookeeper.address, max_in_flight_requests="3")
    store.commit([Create("/a", b"0")])
    versions = [0, 7, 1, 7, 2, 3, 7]
    done = store.commit_each([[Create("/b"), Delete("/b", 0), Set("/a", b"", v)] for v in versions])
    kinds = [type(each) is BadVersionError for each in done]
    assert kinds == [v == 7 for v in versions]
    assert store.get("/a").version == 4


def test_a_commit_that_a_server_would_not_take_is_refused(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    """It would drop the connection, and all that is under way with it."""
    store, events = open_store(zookeeper.address)
    full = len(store._full("/a")) + 17 + 64
    largest = b"x" * (0xFFFFF - full)
    done = store.commit_each([[Create("/b")], [Create("/a", largest + b"x")], [Create("/c")]])
    assert [type(each) for each in done] == [list, CommitTooLargeError, list]
    store.commit([Create("/a", largest)])
    assert events.states == ["connected"]


def test_a_topic_of_more_partitions_than_a_server_takes_at_once(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, events = open_store(zookeeper.address)
    records = MetadataRecords(store)
    records.prepare()
    records.become_controller(1)
    state = PartitionMetadata((1, 2, 3), 1, 0, (1, 2, 3), 0)
    huge = TopicMetadata("huge", uuid.uuid4(), (state,) * 4000)
    with pytest.raises(InvalidPartitionsError, match=r"about \d+ fit") as caught:
        records.create_topic(huge, {})
    fits = int(present(re.search(r"about (\d+) fit", str(caught.value)))[1])
    first = replace(huge, partitions=(state,) * (fits - 20))
    assert records.create_topic(first, {})
    with pytest.raises(InvalidPartitionsError, match="fit"):
        records.add_partitions(first, replace(huge, partitions=(state,) * (2 * fits)))
    records.add_partitions(first, huge)
    records.mark_deleted("huge")
    records.forget_topic(huge)
    assert not records.topic_names()
    assert events.states == ["connected"]


def test_an_error_without_a_name_here_is_told_as_what_it_is(other: ZooKeeperStore) -> None:
    other.commit([Create("/gone-soon", ephemeral=True)])
    with pytest.raises(MetadataStoreError, match=r"/child: NoChildrenForEphemeralsError"):
        other.commit([Create("/gone-soon/child")])


def test_null_is_read_as_nothing(
    zookeeper: ZooKeeperServer, other: ZooKeeperStore, chroot: str
) -> None:
    """Kafka's folders have such values."""
    client = KazooClient(zookeeper.address)
    client.start()
    client.create(f"{chroot}/folder", None)
    client.stop()
    client.close()
    assert other.get("/folder").value == b""


def test_a_closed_store_says_so(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, events = open_store(zookeeper.address)
    store.close()
    store.close()
    for use in (lambda: store.get("/"), lambda: store.commit([Create("/a")])):
        with pytest.raises(StoreConnectionError, match="closed"):
            use()
    assert events.states == ["connected"]


def test_nothing_of_a_closed_store_is_left(
    zookeeper: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    before = set(threading.enumerate())
    store, _ = open_store(zookeeper.address)
    store.watch("/", lambda: None)
    store.close()
    wait_until(lambda: set(threading.enumerate()) <= before, threading.enumerate)


def test_a_store_is_closed_in_bounded_time_where_nobody_answers(
    proxy: TcpProxy, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, _ = open_store(proxy.address, session_ms=1500)
    store.commit([Create("/a")])
    proxy.lose(requests=True, answers=True)
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    closing.join(EVENT_S)
    assert not closing.is_alive()


def test_sessions_end_one_after_the_other(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    other: ZooKeeperStore,
) -> None:
    """And each time what was watched is told of, once it is set again."""
    store, events = open_store(zookeeper.address)
    changes = itertools.count()
    told = threading.Event()
    store.watch("/watched", told.set)
    for number in range(2, 6):
        told.clear()
        expire(zookeeper.address, store._session._client.client_id)
        store.resume(events.wait(CONNECTED, number).session_id)
        assert told.wait(BUSY_S)
        told.clear()
        with suppress(MetadataStoreError):
            other.commit([Create("/watched")])
        other.commit([Set("/watched", b"%d" % next(changes), ANY_VERSION)])
        assert told.wait(BUSY_S)
    assert events.states.count("expired") == 4


@pytest.fixture(scope="module")
def tls_server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(is_tls=True) as server:
        yield server


TLS = {
    "ssl_client_enable": "true",
    "ssl_keystore_location": str(CERTIFICATES / "localhost.pem"),
    "ssl_truststore_location": str(CERTIFICATES / "trusted.pem"),
}


def test_tls(
    tls_server: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    store, _ = open_store(f"localhost:{tls_server.tls_port}", **TLS)
    store.commit([Create("/a", b"x" * 500_000)])
    done = store.commit_each([[Set("/a", b"x" * 100, n)] for n in range(500)])
    assert [node.version for (node,) in map(nodes_of, done)] == list(range(1, 501))
    assert store.get("/a").value == b"x" * 100


def test_bytes_that_tls_has_decrypted_are_not_waited_for() -> None:
    certificate = str(CERTIFICATES / "localhost.pem")
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(certificate)
    connecting = ssl.create_default_context(cafile=TLS["ssl_truststore_location"])
    near, far = socket.socketpair()

    def answer() -> None:
        with accepting.wrap_socket(far, server_side=True) as server:
            server.sendall(b"two answers")
            server.recv(1)

    answering = threading.Thread(target=answer)
    answering.start()
    with connecting.wrap_socket(near, server_hostname="localhost") as client:
        assert client.recv(4) == b"two "
        readable, _, _ = TlsHandler(connecting).select([client], [], [], 0)
        assert readable == [client]
        client.sendall(b"x")
        answering.join()


@pytest.mark.parametrize(
    ("without", "reason"),
    [("ssl_truststore_location", "CERTIFICATE_VERIFY_FAILED"), ("ssl_keystore_location", "")],
)
def test_tls_with_a_peer_that_is_not_trusted(
    tls_server: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    without: str,
    reason: str,
) -> None:
    given = {name: text for name, text in TLS.items() if name != without}
    with pytest.raises(StoreConnectionError, match=f"no connection to ZooKeeper.*{reason}"):
        open_store(f"localhost:{tls_server.tls_port}", connection_timeout_ms="1500", **given)


def test_tls_with_another_hosts_certificate(
    tls_server: ZooKeeperServer, open_store: Callable[..., tuple[ZooKeeperStore, Events]]
) -> None:
    """It names localhost and 127.0.0.1; only who is told so takes it for another."""
    given = TLS | {"connection_timeout_ms": "1500"}
    address = f"127.1:{tls_server.tls_port}"
    with pytest.raises(StoreConnectionError, match="Hostname mismatch"):
        open_store(address, **given)
    open_store(address, ssl_endpoint_identification_algorithm="", **TLS)


def test_a_file_of_tls_that_is_none(
    open_store: Callable[..., tuple[ZooKeeperStore, Events]], tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("nothing")
    given = TLS | {"ssl_keystore_location": str(tmp_path / "keys")}
    with pytest.raises(ConfigError, match=r"zookeeper\.ssl\.keystore\.location"):
        open_store("localhost:1", **given)
