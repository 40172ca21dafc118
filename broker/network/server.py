"""The network's side of a broker: takes connections, forgets closed ones, closes idle ones.

Owns: the listeners, every BrokerConnection and the buffers they receive into. Called by:
the event loop's thread only (the counts of NetworkStats may be read by any). Never: looks at a
request.

A peer costs at most: a buffer in proportion to what it sent (`buffers`), one answer beyond
`max_unsent_bytes`, which falls as connections come, and a file descriptor; all of it goes when it
has been idle too long. Part of the process's descriptors is kept for log files, whoever connects.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.config.endpoint import Endpoint
from broker.network.buffers import NO_LIMIT, ReceiveBuffers
from broker.network.connection import BrokerConnection, ConnectionLimits, Handler
from broker.network.connection_quotas import ConnectionLimitOptions, ConnectionQuotas
from broker.network.listener import Listener
from broker.network.log_limit import LimitedLog
from broker.network.peer import Peer
from broker.network.transport import PlainTransport

_log = logging.getLogger(__name__)

# The share of the process's file descriptors that connections may take.
_DESCRIPTOR_SHARE = 0.8
# Frames that wait for room wait this long for any other to be done, then one must go.
_ROOM_TIMEOUT_S = 10.0
# Answers that wait to be sent hold about this much in all, beside one of each connection.
_MOST_UNSENT_BYTES = 64 * 1024 * 1024
# A stop waits this long for answers on their way out.
_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """Kafka's socket.* and connection properties; -1 leaves a buffer size to the operating system,
    keeps idle connections, or sets no limit to the bytes of requests being received."""

    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    backlog: int = 50
    max_idle_ms: int = 600_000
    max_queued_bytes: int = NO_LIMIT
    connections: ConnectionLimitOptions = field(default_factory=ConnectionLimitOptions)


@dataclass(slots=True)
class NetworkStats:
    """What has happened since the start."""

    created: int = 0
    closed: int = 0
    refused: int = 0
    """Connections closed at once: above max.connections.per.ip, or out of descriptors."""
    closed_idle: int = 0

    @property
    def open(self) -> int:
        return self.created - self.closed


class NetworkServer:
    """Accepts on all listeners; every request of every connection goes to one handler."""

    def __init__(
        self,
        limits: ConnectionLimits,
        options: SocketOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._limits = limits
        self._unsent_of_one_bytes = limits.max_unsent_bytes
        self._options = options
        self._loop = loop
        self._buffers = ReceiveBuffers(
            options.max_queued_bytes, on_wait=self._on_wait, on_room=self._on_room
        )
        self._quotas = ConnectionQuotas(options.connections)
        self._limited_log = LimitedLog(_log)
        self._descriptors = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _DESCRIPTOR_SHARE)
        self._room_timer: asyncio.TimerHandle | None = None
        self._connections: set[BrokerConnection] = set()
        self.stats = NetworkStats()
        self._listeners: list[Listener] = []
        self._sweep: asyncio.TimerHandle | None = None

    def bind(self, endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
        """Binds without listening yet: the ports are ours. Returns the endpoints with the addresses
        and ports that they got; raises OSError."""
        try:
            for endpoint in endpoints:
                listener = Listener(endpoint, self._quotas, self._limited_log, self._loop)
                listener.bind(self._options.receive_buffer_bytes)
                self._listeners.append(listener)
        except OSError:
            self._close_listeners()
            raise
        return tuple(listener.endpoint for listener in self._listeners)

    def start(self, handler: Handler) -> None:
        """Listens and accepts; every request goes to `handler`. Raises OSError."""
        self._handler = handler
        assert self._listeners, "bind first"
        for listener in self._listeners:
            listener.start(self._options.backlog, self._admit)
        if self._options.max_idle_ms >= 0:
            self._sweep = self._loop.call_later(self._sweep_interval_s(), self._close_idle)

    def limit_connections(self, limits: ConnectionLimitOptions) -> None:
        """From now on; connections that are there stay."""
        self._quotas.options = limits
        self._accept_if_paused()

    @property
    def received_bytes_held(self) -> int:
        """Memory of requests that are being received, and of records that are being appended."""
        return self._buffers.held_bytes

    async def close(self) -> None:
        """Stops accepting and reading, lets appends end and answers on their way out go, closes
        everything."""
        for timer in (self._sweep, self._room_timer):
            if timer is not None:
                timer.cancel()
        self._close_listeners()
        for connection in self._connections:
            connection.stop_reading()
        deadline = self._loop.time() + _DRAIN_S
        while self._loop.time() < deadline and (
            self._buffers.handled_bytes or any(c.unsent_bytes for c in self._connections)
        ):
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close("the broker stops")

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _accept_if_paused(self) -> None:
        for listener in self._listeners:
            listener.accept_if_paused()

    def _admit(self, sock: socket.socket, peer: Peer) -> None:
        """Takes the connection, or closes it where there are too many."""
        reason = None
        if sock.fileno() >= self._descriptors:  # the system gives the lowest free number
            reason = "out of file descriptors"
        elif not self._quotas.take(peer.address, self._loop.time()):
            reason = "max.connections.per.ip"
        if reason is not None:
            self.stats.refused += 1
            sock.close()
            self._limited_log.warning("connection.refused", peer, reason)
            return
        if not self._connect(sock, peer):
            self._quotas.give_back(peer.address)

    def _connect(self, sock: socket.socket, peer: Peer) -> bool:
        """Whether the socket could be used."""
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._options.send_buffer_bytes > 0:
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, self._options.send_buffer_bytes
                )
        except OSError as error:  # reset by the peer before we looked at it
            _log.debug("accept.failed peer=%s reason=%r", peer, str(error))
            sock.close()
            return False
        connection = BrokerConnection(
            PlainTransport(sock),
            peer,
            self._handler,
            self._limits,
            self._buffers,
            self._limited_log,
            self._loop,
            self._on_close,
        )
        self._connections.add(connection)
        self._share_unsent()
        self.stats.created += 1
        _log.debug("connection.opened peer=%s", peer)
        return True

    def _on_close(self, connection: BrokerConnection) -> None:
        self._connections.discard(connection)
        self._share_unsent()
        self.stats.closed += 1
        self._quotas.give_back(connection.peer.address)
        self._accept_if_paused()

    def _share_unsent(self) -> None:
        """The more connections there are, the fewer answers may wait for each to read them."""
        share_bytes = _MOST_UNSENT_BYTES // max(1, len(self._connections))
        self._limits.max_unsent_bytes = min(self._unsent_of_one_bytes, share_bytes)

    def _on_room(self) -> None:
        """A frame was handled or given up, and others wait: they go on in the loop's next turn."""
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None
        self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        for go_on in self._buffers.take_waiting():
            go_on()

    def _on_wait(self) -> None:
        """A frame waits for room. If none is released for a while, they wait for each other."""
        if self._room_timer is None:
            self._room_timer = self._loop.call_later(_ROOM_TIMEOUT_S, self._make_room)

    def _make_room(self) -> None:
        """Closes the connection that has been sending one frame for the longest time."""
        self._room_timer = None
        if self._buffers.handled_bytes:  # whose end they wait for, however slow the disk
            self._on_wait()
            return
        receiving = [c for c in self._connections if c.is_receiving]
        if receiving:
            slowest = min(receiving, key=lambda connection: connection.frame_began)
            self._limited_log.warning(
                "connection.refused", slowest.peer, "a slow request, at queued.max.request.bytes"
            )
            slowest.close("queued.max.request.bytes")

    def _sweep_interval_s(self) -> float:
        return max(self._options.max_idle_ms / 1000 / 10, 0.05)

    def _close_idle(self) -> None:
        limit = self._loop.time() - self._options.max_idle_ms / 1000
        for connection in [c for c in self._connections if c.last_active < limit]:
            self.stats.closed_idle += 1
            connection.close("idle longer than connections.max.idle.ms")
        self._sweep = self._loop.call_later(self._sweep_interval_s(), self._close_idle)
