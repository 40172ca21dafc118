"""What the listeners bind to, and what they share."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from broker.config.endpoint import Endpoint
from broker.network.connection import ConnectionLimits
from broker.network.connection_quotas import ConnectionLimitOptions
from broker.network.loop import new_event_loop
from broker.network.server import NetworkServer, SocketOptions
from tests.support.patience import EVENT_S, stays_so
from tests.support.ports import closed_port, free_ports


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = new_event_loop()
    yield loop
    loop.close()


def test_no_host_is_every_interface(loop: asyncio.AbstractEventLoop) -> None:
    """So does Apache Kafka's (and our) default, PLAINTEXT://:9092, say it."""
    server = NetworkServer(ConnectionLimits(100), SocketOptions(), loop)
    (endpoint,) = server.bind([Endpoint("PLAINTEXT", "", 0)])
    server.start(lambda frame, connection: None)
    socket.create_connection(("127.0.0.1", endpoint.port), timeout=EVENT_S).close()
    loop.run_until_complete(server.close())


def test_all_listeners_are_bound_or_none(loop: asyncio.AbstractEventLoop) -> None:
    (free,) = free_ports(1)
    server = NetworkServer(ConnectionLimits(100), SocketOptions(), loop)
    endpoints = [
        Endpoint("FIRST", "127.0.0.1", free),
        Endpoint("SECOND", "127.0.0.1", closed_port()),
    ]
    with pytest.raises(OSError, match="in use"):
        server.bind(endpoints)
    socket.create_server(("127.0.0.1", free)).close()


def test_connections_of_all_listeners_are_counted_together(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """At max.connections none accepts; where one is closed, those that wait come on any."""
    options = SocketOptions(connections=ConnectionLimitOptions(max_connections=1))
    server = NetworkServer(ConnectionLimits(100), options, loop)
    endpoints = server.bind(Endpoint(name, "127.0.0.1", 0) for name in ("FIRST", "SECOND"))
    server.start(lambda frame, connection: [connection.peer.listener.encode()])
    first, second = (socket.socket() for _ in endpoints)
    first.connect((endpoints[0].host, endpoints[0].port))
    assert loop.run_until_complete(asyncio.wait_for(ask(first), EVENT_S)) == b"FIRST"
    second.connect((endpoints[1].host, endpoints[1].port))
    answer = loop.create_task(ask(second))
    waits = stays_so(lambda: not answer.done() and server.stats.open == 1, 0.1)
    assert loop.run_until_complete(waits)
    first.close()
    assert loop.run_until_complete(asyncio.wait_for(answer, EVENT_S)) == b"SECOND"
    second.close()
    loop.run_until_complete(server.close())


async def ask(sock: socket.socket) -> bytes:
    """The answer to one frame."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    await loop.sock_sendall(sock, b"\0\0\0\3who")
    received = b""
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        received += await loop.sock_recv(sock, 100)
    return received[4:]
