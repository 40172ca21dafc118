"""A session with ZooKeeper: when it is there, when it is over, and what may be sent in it.

Owns: kazoo's client, the clock of the session, a thread that looks at it. kazoo says that a session
is over when a server told it so, which none can while none is reached; so this keeps a clock of its
own: a session lives for its timeout after the sending of the newest request that was answered, as
ZooKeeper counts from when it receives. Small requests see to it that there is always a recent one.
A session that the clock gave up is ended also where ZooKeeper would go on with it, so that EXPIRED
is true in any case. After that nothing is written until the owner, who has given up what it had in
the old session, says so.

Blocks: called from threads. `on_event` is called on kazoo's thread, or on whichever finds that the
time is over, in order; it must neither block nor call back.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import WriterNotClosedException
from kazoo.protocol.states import KazooState

from broker.cluster.session import SessionEvent, SessionState
from broker.cluster.store import SessionExpiredError, StoreConnectionError
from broker.cluster.zookeeper_client import ZooKeeperClient
from broker.config.broker import BrokerConfig

__all__ = ["Request", "ZooKeeperSession"]

_log = logging.getLogger(__name__)

# Of the timeout, as ZooKeeper's own client has it: so long after one proof of the session the next
# is sent, which may take as long; and as long is left then to find another server.
_THIRD = 1 / 3

Request = Callable[[ZooKeeperClient], Any]
"""Sends something by one of kazoo's methods that end in _async, and returns its result to come."""


class ZooKeeperSession:
    """Sessions at `servers`, one after the other; the first by `connect`. Raises ConfigError."""

    def __init__(
        self, config: BrokerConfig, servers: str, on_event: Callable[[SessionEvent], None]
    ) -> None:
        self._servers = servers
        self._on_event = on_event
        lock = threading.RLock()
        self._gate, self._room = threading.Condition(lock), threading.Condition(lock)
        self._state = SessionState.SUSPENDED
        self._session_id = 0
        self._may_write = True
        self._is_closed = False
        self._timeout_s = config.zookeeper_session_timeout_ms / 1000
        self._ends_s = 0.0
        self._client = ZooKeeperClient(config, servers, self._gate, self._room, self._changed)
        self._keeper = threading.Thread(target=self._keep, name="zookeeper-session", daemon=True)

    def connect(self, wait_s: float) -> None:
        """Raises StoreConnectionError where there is no connection by then; the session is closed
        in that case."""
        if not self._client.start_async().wait(wait_s):
            self._is_closed = True
            # It may be in the middle of an attempt, which takes its time to end.
            threading.Thread(target=self._stop, daemon=True).start()
            raise StoreConnectionError(self._no_connection(wait_s))
        self._keeper.start()

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def is_over(self) -> bool:
        """By the clock, also where nobody was told yet, as this process did not run; and from then
        on until `resume`. Any thread."""
        return not self._may_write or time.monotonic() >= self._ends_s

    @property
    def timeout_s(self) -> float:
        """As ZooKeeper granted it."""
        return self._timeout_s

    def send(self, request: Request, until_s: float, session_id: int | None = None) -> Any:
        """Sends it when there is a connection, and room for it, and returns its result to come.

        With a `session_id` only in that session: SessionExpiredError else. StoreConnectionError
        where there is no connection until then, by the monotonic clock.
        """
        with self._gate:
            while True:
                if self._is_closed:
                    raise StoreConnectionError("the session is closed")
                if session_id is not None:
                    self._check_may_write(session_id)
                if self._is_connected and self._client.has_room:
                    return request(self._client)
                event = self._room if self._is_connected else self._gate
                if not event.wait(max(0, until_s - time.monotonic())):
                    raise StoreConnectionError(self._no_connection(self._timeout_s))

    def try_send(self, request: Request) -> Any:
        """The same where there is a connection while it waits for room; else None. Not for
        kazoo's threads that read answers and call back for them: they make the room."""
        with self._gate:
            while self._is_connected and not self._client.has_room:
                self._room.wait()
            return self._send_now(request)

    def _send_now(self, request: Request) -> Any:
        return request(self._client) if self._is_connected else None

    @property
    def _is_connected(self) -> bool:
        is_there = self._state is SessionState.CONNECTED and not self._is_closed
        return is_there and bool(self._client.connected)

    def resume(self, session_id: int) -> None:
        """Lets commits go on in the session of that CONNECTED event; nothing happens where it has
        ended, too."""
        with self._gate:
            if self._state is not SessionState.EXPIRED and session_id == self._session_id:
                self._may_write = True

    def close(self) -> None:
        """Ends the session; its ephemeral nodes go, at once where ZooKeeper is reached."""
        with self._gate:
            if self._is_closed:
                return
            self._is_closed = True
            self._gate.notify_all()
            self._room.notify_all()
        self._keeper.join()
        self._stop()

    def _no_connection(self, wait_s: float) -> str:
        return (
            f"no connection to ZooKeeper at {self._servers} within {wait_s:g} s: "
            f"{self._client.trouble}"
        )

    def _check_may_write(self, session_id: int) -> None:
        self._look_at_clock()
        if not self._may_write or session_id != self._session_id:
            raise SessionExpiredError(f"session {session_id:#x} has ended")

    def _changed(self, kazoo_state: str) -> None:
        if self._is_closed:
            return
        if kazoo_state == KazooState.CONNECTED:
            self._connected()
        elif kazoo_state == KazooState.LOST:
            self._expire("server")
        elif self._state is SessionState.CONNECTED:
            reason = self._client.trouble
            _log.warning("zookeeper.suspended session=%#x reason=%r", self._session_id, reason)
            self._become(SessionState.SUSPENDED)

    def _connected(self) -> None:
        session_id, _ = self._client.client_id
        is_new = session_id != self._session_id
        if not is_new and self._state is SessionState.EXPIRED:
            self._gate.notify_all()  # `_keep` ends it
            return
        self._session_id = session_id
        self._timeout_s = self._client.granted_s
        self._ends_s = self._client.asked_s + self._timeout_s
        _log.info("zookeeper.connected session=%#x is_new=%s", session_id, is_new)
        self._become(SessionState.CONNECTED, is_new)

    def _expire(self, by: str) -> None:
        if self._state is not SessionState.EXPIRED and self._session_id:
            self._may_write = False
            _log.warning("zookeeper.expired session=%#x by=%s", self._session_id, by)
            self._become(SessionState.EXPIRED)

    def _become(self, state: SessionState, is_new: bool = False) -> None:
        self._state = state
        self._gate.notify_all()
        self._room.notify_all()
        try:
            self._on_event(SessionEvent(state, self._session_id, is_new))
        except Exception:  # who is told is no reason to look at the clock no more
            _log.exception("zookeeper.event_failed state=%s", state.value)

    def _look_at_clock(self) -> None:
        if time.monotonic() >= self._ends_s:
            self._expire("clock")

    def _keep(self) -> None:
        while not self._is_closed:
            with self._gate:
                is_over = self._is_over()
                self._look_at_clock()
                # It waits for no room: where others take all, the session lives nevertheless.
                sent_s, proof = time.monotonic(), self._send_now(lambda one: one.exists_async("/"))
                if proof is None and not is_over and not self._is_closed:
                    self._gate.wait(self._pause_s(sent_s))
            if is_over:
                self._begin_anew()
            elif proof is not None:
                self._take(proof, sent_s)

    def _is_over(self) -> bool:
        """Whether kazoo has the session that was given up here, or none and asks for none."""
        if self._state is not SessionState.EXPIRED:
            return False
        if not self._client.connected:
            return self._client.has_given_up
        session_id, _ = self._client.client_id
        return bool(session_id == self._session_id)

    def _take(self, proof: Any, sent_s: float) -> None:
        """Waits for the answer until the server counts as silent; then for the time of the next."""
        while not proof.ready() and (wait_s := self._silent_at_s() - time.monotonic()) > 0:
            proof.wait(wait_s)
        with self._gate:
            if proof.successful():
                self._ends_s = max(self._ends_s, sent_s + self._timeout_s)
            elif not proof.ready():
                self._client.leave_server()
            if not self._is_closed:
                self._gate.wait(self._pause_s(sent_s))

    def _silent_at_s(self) -> float:
        """By kazoo alone it could be when nothing of the session is left: each request puts off its
        own question, whose answer is all that it would miss."""
        third_s = _THIRD * self._timeout_s
        return min(self._ends_s, max(self._ends_s - third_s, self._client.heard_s + third_s))

    def _pause_s(self, sent_s: float) -> float:
        """Until the next proof is due, or the session's end where that comes first. `sent_s`: when
        the last one was sent, or tried."""
        due_s = sent_s + _THIRD * self._timeout_s
        if self._state is not SessionState.EXPIRED:
            due_s = min(due_s, self._ends_s)
        return max(0, due_s - time.monotonic())

    def _begin_anew(self) -> None:
        # What has given up would keep the request to close for its next session.
        if (self._client.has_given_up or self._stop()) and not self._is_closed:
            self._client.start_async()
        with self._gate:
            if not self._is_closed:
                self._gate.wait(self._pause_s(time.monotonic()))

    def _stop(self) -> bool:
        try:
            self._client.stop()
        except WriterNotClosedException:
            _log.warning("zookeeper.not_ended session=%#x", self._session_id)
            return False
        if self._is_closed:
            self._client.close()
        return True
