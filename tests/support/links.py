"""Networks between the brokers of a cluster, and to ZooKeeper, that a test makes bad link by link.

In front of each broker stands a proxy whose address the broker gives as its own; who connects is
told by the client id of its first request. Each broker has a way of its own to ZooKeeper.
"""

import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress

from tests.support.tcp_proxy import TcpProxy

CLIENTS = 0
"""Who connects and is no broker."""

_CLIENT_ID_AT = 14
"""In a frame: four bytes of size, api key, version, four of correlation id, two of length."""
_BROKER = re.compile(rb"broker-(\d+)-")
_SESSION_AT = 12
"""In ZooKeeper's first answer: sizes, version, timeout; then eight of session id, and a password
of sixteen after its length."""


class BrokerDoor(TcpProxy):
    """Passes connections on to a broker, and knows from whom they are."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.deaf_to: Set[int] = frozenset()
        """Whose bytes are lost, and the answers to them: ids of brokers, and CLIENTS."""
        self.slow_for: Mapping[int, float] = {}
        """Whose bytes take so many seconds, and the answers to them."""

    def _between(self, client: socket.socket, server: socket.socket) -> None:
        first = b""
        with suppress(OSError):
            while len(first) < 4 or len(first) < 4 + int.from_bytes(first[:4], "big"):
                if not (more := client.recv(65536)):
                    break
                first += more
        found = _BROKER.match(first[_CLIENT_ID_AT:])
        sender = int(found[1]) if found else CLIENTS

        def is_lost() -> bool:
            return sender in self.deaf_to

        def delay_s() -> float:
            return self.slow_for.get(sender, 0.0)

        self._spawn(self._pass, server, client, is_lost, b"", delay_s)
        self._pass(client, server, is_lost, first, delay_s)


class ZooKeeperWay(TcpProxy):
    """Passes a broker's connections on to ZooKeeper, and knows its session."""

    session: tuple[int, bytes] | None = None
    """Id and password, as `expire` takes it."""
    session_since_s = 0.0

    def _between(self, client: socket.socket, server: socket.socket) -> None:
        self._spawn(self._pass, client, server, lambda: self._loses_requests)
        answer = b""
        with suppress(OSError):
            answer = server.recv(65536)
        if len(answer) >= _SESSION_AT + 12:
            session_id, size = struct.unpack_from(">qi", answer, _SESSION_AT)
            at = _SESSION_AT + 12
            if session_id:
                self.session = session_id, answer[at : at + size]
                self.session_since_s = time.monotonic()
        self._pass(server, client, lambda: self._loses_answers, answer)


class ZooKeeperWays:
    """A broker's ways to the servers of an ensemble, or to the one that there is."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ways = [ZooKeeperWay(port) for port in ports]

    def close(self) -> None:
        for way in self._ways:
            way.__exit__()

    @property
    def address(self) -> str:
        return ",".join(way.address for way in self._ways)

    @property
    def session(self) -> tuple[int, bytes] | None:
        """The newest, as `expire` takes it."""
        return max(self._ways, key=lambda way: way.session_since_s).session

    def lose(self, requests: bool = False, answers: bool = False) -> None:
        for way in self._ways:
            way.lose(requests, answers)

    def delay(self, seconds: float) -> None:
        for way in self._ways:
            way.delay_s = seconds

    def cut_lossy(self) -> None:
        for way in self._ways:
            way.cut_lossy()
