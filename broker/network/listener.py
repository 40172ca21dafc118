"""A listening socket: bound first, then accepting while there is room.

Owns: its socket, and whether the loop looks at it. How many connections there may be is counted for
all listeners together (`connection_quotas`), and decided where the accepted ones are taken.
Called by: the event loop's thread only. Never: receives or sends.
"""

import asyncio
import socket
from collections.abc import Callable
from itertools import count
from typing import Final, TypeAlias

from broker.config.endpoint import Endpoint
from broker.network.connection_quotas import ConnectionQuotas, canonical_address
from broker.network.log_limit import LimitedLog
from broker.network.peer import Peer

# Connections accepted before the loop looks at the others again.
_ACCEPTS_PER_EVENT = 64
# Out of file descriptors: wait this long before accepting again.
_ACCEPT_PAUSE_S = 0.2
_NUMBERS: Final = count(1)
"""Of connections, whichever listener takes them."""

Admit: TypeAlias = Callable[[socket.socket, Peer], None]
"""Takes an accepted socket, or closes it."""


class Listener:
    """One of a broker's addresses: `bind`, then (once) `start`, then `close`."""

    def __init__(
        self,
        endpoint: Endpoint,
        quotas: ConnectionQuotas,
        log: LimitedLog,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.endpoint = endpoint
        """Once bound, with the address and port that the socket got."""
        self._quotas = quotas
        self._log = log
        self._loop = loop
        self._socket: socket.socket | None = None
        self._admit: Admit | None = None
        self._is_accepting = False
        self._timer: asyncio.TimerHandle | None = None

    def bind(self, receive_buffer_bytes: int) -> None:
        """Binds without listening yet: the port is ours. Raises OSError."""
        # No host is every interface, which getaddrinfo calls None.
        family, kind, protocol, _, address = socket.getaddrinfo(
            self.endpoint.host or None,
            self.endpoint.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if receive_buffer_bytes > 0:
                # Accepted sockets inherit it; set later it would not widen the TCP window.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
        self._socket = sock
        host, port, *_ = sock.getsockname()
        self.endpoint = Endpoint(self.endpoint.name, host, port)

    def start(self, backlog: int, admit: Admit) -> None:
        """Listens and accepts. Raises OSError."""
        assert self._socket is not None, "bind first"
        self._socket.listen(backlog)
        self._admit = admit
        self._accept_more()

    def accept_if_paused(self) -> None:
        """There may be room again for a connection that waits."""
        if self._admit is not None and not self._is_accepting and self._timer is None:
            self._accept_more()

    def close(self) -> None:
        """Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._stop_accepting()
            self._socket.close()
            self._socket = None

    def _accept_more(self) -> None:
        self._timer = None
        if self._socket is not None and not self._is_accepting:
            self._loop.add_reader(self._socket.fileno(), self._on_acceptable)
            self._is_accepting = True

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            assert self._socket is not None
            self._loop.remove_reader(self._socket.fileno())
            self._is_accepting = False

    def _pause(self, pause_s: float) -> None:
        """The socket stays readable, so look away for a moment."""
        self._stop_accepting()
        self._timer = self._loop.call_later(pause_s, self._accept_more)

    def _on_acceptable(self) -> None:
        assert self._socket is not None
        assert self._admit is not None
        name = self.endpoint.name
        for _ in range(_ACCEPTS_PER_EVENT):
            if self._quotas.is_full:  # until a connection is closed
                self._stop_accepting()
                self._log.warning("accept.waits", "any", "max.connections")
                return
            pause_s = self._quotas.pause_s(self._loop.time())
            if pause_s:
                self._pause(pause_s)
                return
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # EMFILE and kin
                self._log.warning("accept.failed", "any", str(error))
                self._pause(_ACCEPT_PAUSE_S)
                return
            peer = Peer(name, canonical_address(address[0]), address[1], next(_NUMBERS))
            self._admit(sock, peer)
