"""The listening socket: accepts connections, forgets closed ones, closes idle ones.

Owns: the listener, every BrokerConnection and the buffers they receive into. Called by:
the event loop's thread only. Never: looks at a request.
"""

import asyncio
import logging
import socket
from dataclasses import dataclass, replace

from broker.network.buffers import ReceiveBuffers
from broker.network.connection import BrokerConnection, ConnectionLimits, Handler

_log = logging.getLogger(__name__)

# Connections accepted before the loop looks at the others again.
_ACCEPTS_PER_EVENT = 64
# Out of file descriptors: wait this long before accepting again.
_ACCEPT_PAUSE_S = 0.2
# A stop waits this long for answers on their way out.
_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """Kafka's socket.* properties; -1 leaves a buffer size to the operating system, and lets a
    connection be idle for ever."""

    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    backlog: int = 50
    max_idle_ms: int = 600_000
    max_connections: int = 2**31 - 1


class NetworkServer:
    """Accepts on one address; every request of every connection goes to `handler`."""

    def __init__(
        self,
        handler: Handler,
        limits: ConnectionLimits,
        options: SocketOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._options = options
        self._loop = loop
        self._buffers = ReceiveBuffers()
        self._connections: set[BrokerConnection] = set()
        self._listener: socket.socket | None = None
        self._sweep: asyncio.TimerHandle | None = None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Binds without listening yet: the port is ours. Returns (host, port); raises OSError."""
        # No host is every interface, which getaddrinfo calls None.
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._options.receive_buffer_bytes > 0:
                # Accepted sockets inherit it; set later it would not widen the TCP window.
                listener.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF, self._options.receive_buffer_bytes
                )
            listener.bind(address)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        name = listener.getsockname()
        return name[0], name[1]

    def start(self) -> None:
        """Listens and accepts. Raises OSError."""
        assert self._listener is not None, "bind first"
        self._listener.listen(self._options.backlog)
        self._accept_more()
        if self._options.max_idle_ms >= 0:
            self._sweep = self._loop.call_later(self._sweep_interval_s(), self._close_idle)

    def limit_connections(self, max_connections: int) -> None:
        """From now on; connections that are there stay."""
        self._options = replace(self._options, max_connections=max_connections)

    async def close(self) -> None:
        """Stops accepting and reading, lets answers on their way out go, closes everything."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            connection.stop_reading()
        deadline = self._loop.time() + _DRAIN_S
        while self._loop.time() < deadline and any(c.unsent_bytes for c in self._connections):
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close("the broker stops")

    def _accept_more(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTS_PER_EVENT):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # EMFILE and kin: the listener stays readable, so look away for a moment.
                _log.error("accept.failed reason=%r", str(error))
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_more)
                return
            peer = f"{address[0]}:{address[1]}"
            if len(self._connections) >= self._options.max_connections:
                _log.warning("connection.refused peer=%s reason=%r", peer, "max.connections")
                sock.close()
                continue
            self._connect(sock, peer)

    def _connect(self, sock: socket.socket, peer: str) -> None:
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
            return
        connection = BrokerConnection(
            sock,
            peer,
            self._handler,
            self._limits,
            self._buffers,
            self._loop,
            self._connections.discard,
        )
        self._connections.add(connection)
        _log.debug("connection.opened peer=%s", peer)

    def _sweep_interval_s(self) -> float:
        return max(self._options.max_idle_ms / 1000 / 10, 0.05)

    def _close_idle(self) -> None:
        limit = self._loop.time() - self._options.max_idle_ms / 1000
        for connection in [c for c in self._connections if c.last_active < limit]:
            connection.close("idle longer than connections.max.idle.ms")
        self._sweep = self._loop.call_later(self._sweep_interval_s(), self._close_idle)
