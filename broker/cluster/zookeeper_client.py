"""kazoo's client as a session needs it: what it does not tell, and where it goes its own way.

Owns: kazoo's options, TLS, SASL, and the places where its inside is touched:
- a change of state and a request that is sent exclude each other (`gate`), so that no request of
  one session goes out in the next, or after who sent it was told that it is lost;
- how many requests wait for their answers (`room`): kazoo's thread is woken by a byte for each in a
  pipe that takes some hundreds, and whoever fills it inside of `gate` waits for kazoo's thread,
  which may be waiting for `gate`; so it is never filled, also not by what lost connections left;
- the timeout that the server granted, when it was asked for, and when it last answered, which kazoo
  keeps to itself; and that a server is left which does not;
- whoever uses this asks often enough for the session to live: kazoo's pings, which fall between,
  would have ZooKeeper take a killed broker for alive for longer;
- an answer to another request than the oldest that waits costs the connection, as in ZooKeeper's
  own client, and not the session: kazoo would end. A server that a session comes back to may still
  owe it answers of the connection before;
- TLS that trusts what it is told to, and no more, and does not wait for bytes it has already;
- reconnecting goes on each second or two: kazoo's own pauses grow to an hour.

Imports kazoo, and so is imported only where a broker joins a cluster. Called by: zookeeper_session.
"""

import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect, ReplyHeader
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from broker.cluster.jaas import zookeeper_user
from broker.config.broker import BrokerConfig
from broker.config.definition import ConfigError

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 1.0
# Of requests without an answer. The pipe takes 278 where a byte in a socket counts for 768.
MOST_UNANSWERED = 100


class ZooKeeperClient(KazooClient):  # type: ignore[misc]
    """`changed` is called with each of kazoo's states, on its thread, inside of `gate`.
    `room`, of the same lock, is told when `has_room` becomes true.

    Raises ConfigError where a file of TLS's or SASL's cannot be used, or is missing.
    """

    def __init__(
        self,
        config: BrokerConfig,
        servers: str,
        gate: threading.Condition,
        room: threading.Condition,
        changed: Callable[[str], None],
    ) -> None:
        self._gate, self._room = gate, room
        self._unanswered = 0
        self._trouble = _LastWarning()
        logger = logging.Logger(f"{__name__}.kazoo")
        logger.parent = _log
        logger.addFilter(self._trouble)
        user = zookeeper_user(os.environ)
        is_tls = config.zookeeper_ssl_client_enable
        if config.zookeeper_set_acl and user is None and not is_tls:
            raise ConfigError(
                "zookeeper.set.acl=true needs a user that ZooKeeper knows this broker by: name a "
                "JAAS file by KAFKA_OPTS=-Djava.security.auth.login.config, or set "
                "zookeeper.ssl.client.enable=true."
            )
        handler = TlsHandler(_tls_context(config)) if is_tls else SequentialThreadingHandler()
        super().__init__(
            servers,
            timeout=config.zookeeper_session_timeout_ms / 1000,
            handler=handler,
            sasl_options=user
            and {
                "mechanism": "DIGEST-MD5",
                "username": user.name,
                "password": user.password,
            },
            connection_retry=KazooRetry(max_tries=-1, max_delay=_LONGEST_PAUSE_S),
            logger=logger,
        )
        self.granted_s = 0.0
        """The session's timeout, as the server set it."""
        self.asked_s = 0.0
        """When the newest connection asked for its session, by the monotonic clock."""
        self.heard_s = 0.0
        """When a server last answered."""
        self._invoke = self._connection._invoke
        self._connection._invoke = self._invoke_and_note
        self._read_response = self._connection._read_response
        self._connection._read_response = self._read_expected
        self._ping = self._connection._send_ping
        self._connection._send_ping = self._ping_at_the_end
        self.add_listener(changed)

    @property
    def trouble(self) -> str:
        """Why there is no connection, in kazoo's words."""
        return self._trouble.text

    @property
    def has_room(self) -> bool:
        """Whether one more request, of one or two parts, may be sent; read inside of `gate`."""
        return self._unanswered < MOST_UNANSWERED

    @property
    def has_given_up(self) -> bool:
        """kazoo ends where a server says what it does not understand."""
        return bool(self._connection.connection_stopped.is_set())

    def leave_server(self) -> None:
        """Ends the connection, if there is one: kazoo makes the next."""
        connection = self._connection._socket
        if connection is not None:
            with suppress(OSError):
                # Not TLS's own, which is not for two threads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _session_callback(self, state: str) -> None:
        with self._gate:
            if state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO):
                self._forget_wake_ups()
            super()._session_callback(state)

    def _forget_wake_ups(self) -> None:
        """Of requests that the connection before had not sent. One stays for each that waits: that
        to close, which comes from outside of `gate`, is there before its byte."""
        with suppress(BlockingIOError):
            while self._connection._read_sock.recv(4096, socket.MSG_DONTWAIT):
                pass
        for _ in range(len(self._queue)):
            self._connection._write_sock.send(b"\0")

    def _call(self, request: Any, answer: Any) -> Any:
        with self._gate:
            self._unanswered += 1
            answer.rawlink(self._answered)
            return super()._call(request, answer)

    def _answered(self, answer: Any) -> None:
        with self._gate:
            was_full = not self.has_room
            self._unanswered -= 1
            if was_full:
                self._room.notify_all()

    def _read_expected(self, header: ReplyHeader, buffer: bytes, offset: int) -> Any:
        self.heard_s = time.monotonic()
        _, _, expected = self._pending[0] if self._pending else (None, None, None)
        if header.xid != expected:
            raise ConnectionDropped(f"an answer to request {header.xid}, not to {expected}")
        return self._read_response(header, buffer, offset)

    def _ping_at_the_end(self, timeout: float) -> None:
        """So that a server which does not answer that the session is closed is waited for no longer
        than kazoo waits for one."""
        if self._stopped.is_set():
            self._ping(timeout)

    def _invoke_and_note(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        asked_s = time.monotonic()
        answer = self._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            connected, _ = answer
            self.granted_s, self.asked_s = connected.time_out / 1000, asked_s
            self.heard_s = time.monotonic()
        return answer


class _LastWarning(logging.Filter):
    """Keeps kazoo's warnings, one for each attempt to connect, out of the log."""

    text = "no answer"

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING and record.args:  # those without give no reason
            self.text = record.getMessage()
        return record.levelno > logging.WARNING


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Threads as kazoo has them, and connections by TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **others: object
    ) -> ssl.SSLSocket:
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return self._context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None) -> Any:
        """What TLS has decrypted already no system call knows of."""
        ready = [one for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()]
        found = super().select(readers, writers, others, 0 if ready else timeout)
        return ([*{*found[0], *ready}], *found[1:]) if ready else found


def _tls_context(config: BrokerConfig) -> ssl.SSLContext:
    key = config.zookeeper_ssl_keystore_location
    trusted = config.zookeeper_ssl_truststore_location
    try:
        # Only with a file of its own does it not trust the system's certificates.
        context = ssl.create_default_context(cafile=trusted)
        if key is not None:
            # Without any, the terminal would be asked.
            context.load_cert_chain(key, password=config.zookeeper_ssl_keystore_password or "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            "zookeeper.ssl.keystore.location or zookeeper.ssl.truststore.location is no PEM file "
            f"that can be used: {error}"
        ) from error
    context.check_hostname = bool(config.zookeeper_ssl_endpoint_identification_algorithm)
    return context
