"""How many connections there may be, and what a peer that only takes can cost."""

import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from broker.network import server
from broker.network.buffers import ReceiveBuffers
from broker.network.connection import BrokerConnection, ConnectionLimits, Handled
from broker.network.connection_quotas import (
    ConnectionLimitOptions,
    canonical_address,
    resolve_overrides,
)
from broker.network.log_limit import LimitedLog
from broker.network.server import SocketOptions
from tests.broker.network.conftest import Served
from tests.broker.network.test_connection import (
    assert_closed_by_server,
    framed,
    receive_frame,
)
from tests.support.patience import BUSY_S, EVENT_S, for_seconds, stays, wait_until


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def limited(**options: Any) -> SocketOptions:
    return SocketOptions(connections=ConnectionLimitOptions(**options))


def assert_served(sock: socket.socket) -> None:
    sock.sendall(framed(b"in"))
    assert receive_frame(sock) == b"in"


def test_at_max_connections_a_client_waits_for_another_to_leave(
    serve: Callable[..., Served],
) -> None:
    served = serve(options=limited(max_connections=1))
    with served.connect() as first, served.connect() as second:
        assert_served(first)
        second.sendall(framed(b"later"))
        second.settimeout(0.2)
        with pytest.raises(TimeoutError):
            second.recv(1)
        assert_served(first)
        first.close()
        second.settimeout(EVENT_S)
        assert receive_frame(second) == b"later"


def test_an_address_has_its_own_limit(serve: Callable[..., Served]) -> None:
    served = serve(options=limited(per_ip=2))
    with served.connect() as first, served.connect() as second:
        assert_served(first)
        assert_served(second)
        with served.connect() as third:
            assert_closed_by_server(third)
        assert served.server.stats.refused == 1
        first.close()
        while served.server.stats.open > 1:  # its end is read in a turn of the loop
            assert_served(second)
        with served.connect() as fourth:
            assert_served(fourth)
        assert_served(second)


def test_an_override_counts_instead(serve: Callable[..., Served]) -> None:
    options = limited(per_ip=0, per_ip_overrides=resolve_overrides({"localhost": 1}))
    served = serve(options=options)
    with served.connect() as first, served.connect() as second:
        assert_served(first)
        assert_closed_by_server(second)


def test_connections_above_the_creation_rate_wait(serve: Callable[..., Served]) -> None:
    served = serve(options=limited(creation_rate=5))
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        for sock in [stack.enter_context(served.connect()) for _ in range(6)]:
            assert_served(sock)
    assert 0.5 < time.monotonic() - began < 5 + BUSY_S


@pytest.mark.parametrize(
    ("address", "canonical"),
    [("::ffff:192.0.2.1", "192.0.2.1"), ("192.0.2.1", "192.0.2.1"), ("fe80::1%2", "fe80::1%2")],
)
def test_a_mapped_address_is_one_of_ipv4(address: str, canonical: str) -> None:
    assert canonical_address(address) == canonical


def test_a_thousand_half_frames_cost_what_they_sent(serve: Callable[..., Served]) -> None:
    served = serve(ConnectionLimits(100 << 20), SocketOptions(backlog=1100))
    before = resident_bytes()
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(served.connect()) for _ in range(1000)]
        for sock in socks:
            sock.sendall(struct.pack(">i", 100 << 20))
        for _ in range(5):  # byte by byte
            for sock in socks:
                sock.sendall(b"x")
        probe = stack.enter_context(served.connect())  # handled after the others
        assert_served(probe)
        used = resident_bytes() - before
        held = served.server.received_bytes_held
        assert held <= 1000 * 4096
        assert used < 40 << 20
    with served.connect() as probe:
        assert_served(probe)
    served.call(lambda: None)
    assert served.server.received_bytes_held == 0


def test_a_frame_waits_for_room_and_then_goes_on(serve: Callable[..., Served]) -> None:
    options = SocketOptions(max_queued_bytes=1 << 20)
    served = serve(ConnectionLimits(100 << 20), options)
    big = os.urandom(700_000)
    with served.connect() as first, served.connect() as second:
        first.sendall(framed(big)[:-1])
        while served.server.received_bytes_held < 600_000:
            assert_served_by_another(served)
        second.setblocking(False)
        sent = 0
        for _ in for_seconds(0.3):  # as far as the kernel takes it
            with contextlib.suppress(BlockingIOError):
                sent += second.send(framed(big)[sent:])
        assert served.server.received_bytes_held <= 1 << 20
        first.sendall(big[-1:])
        assert receive_frame(first) == big
        second.settimeout(EVENT_S)
        second.sendall(framed(big)[sent:])
        assert receive_frame(second) == big


def test_a_frame_counts_as_long_as_its_handler_looks_into_it(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append in a thread takes its time, and frames may come faster than disks write. Who waits
    for it is not cut off, as who waits for a peer that sends slowly would be."""
    monkeypatch.setattr(server, "_ROOM_TIMEOUT_S", 0.05)
    served = serve(ConnectionLimits(100 << 20), SocketOptions(max_queued_bytes=1 << 20))
    views = []
    echo = served.echo

    def keep(frame: memoryview, connection: BrokerConnection) -> Handled:
        views.append(frame)
        return echo(frame, connection)

    served.call(lambda: served.server.start(keep))
    big = b"wait" + os.urandom(700_000)
    with served.connect() as first, served.connect() as second:
        first.sendall(framed(big))
        assert echo.received.acquire(timeout=EVENT_S)
        second.sendall(framed(b"xxxx" + big))
        assert_served_by_another(served)
        assert stays(lambda: 700_000 <= served.server.received_bytes_held <= 1 << 20, 0.2)
        views.clear()
        served.release(b"done")
        assert receive_frame(first) == b"done"
        assert receive_frame(second) == b"xxxx" + big
    served.call(lambda: None)
    assert served.server.received_bytes_held == 0


def test_of_frames_that_wait_for_each_other_the_slowest_goes(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_ROOM_TIMEOUT_S", 0.2)
    served = serve(ConnectionLimits(100 << 20), SocketOptions(max_queued_bytes=1 << 20))
    big = os.urandom(900_000)
    with served.connect() as first, served.connect() as second:
        first.sendall(framed(big)[:-1])
        second.settimeout(EVENT_S)
        second.sendall(framed(big))
        assert receive_frame(second) == big
        assert_closed_by_server(first)


def assert_served_by_another(served: Served) -> None:
    with served.connect() as probe:
        assert_served(probe)


def test_a_buffer_grows_with_what_arrives_when_there_is_no_plenty() -> None:
    receive_buffers = ReceiveBuffers(max_held_bytes=1 << 20)
    frame = receive_buffers.take(800_000, b"x" * 1000)
    assert len(frame) == 4096
    while len(frame) < 800_000:
        assert receive_buffers.grow(frame, 800_000, lambda: None)
    assert receive_buffers.held_bytes == 800_000
    assert receive_buffers.take(5, b"abc") == b"abc\0\0"
    receive_buffers.release(frame)
    assert receive_buffers.held_bytes == 5


def test_a_peer_that_never_reads_costs_one_answer_and_is_closed(
    serve: Callable[..., Served],
) -> None:
    served = serve(
        ConnectionLimits(1 << 20, max_unsent_bytes=100_000), SocketOptions(max_idle_ms=500)
    )
    served.echo.answer = [b"y" * 50_000]
    with served.connect() as sock:
        sock.sendall(framed(*[b"more"] * 10_000))
        unsent: list[int] = []
        served.call(lambda: unsent.extend(c.unsent_bytes for c in served.server._connections))
        assert max(unsent, default=0) < 200_000
        wait_until(lambda: served.server.stats.closed, "the end of the connection")
        assert served.server.stats.closed_idle == 1
        assert len(served.echo.frames) < 1000


def test_half_a_frame_is_idle_after_its_time(serve: Callable[..., Served]) -> None:
    served = serve(options=SocketOptions(max_idle_ms=100))
    with served.connect() as sock:
        sock.sendall(struct.pack(">i", 5000) + b"half")
        assert_closed_by_server(sock)
    served.call(lambda: None)
    assert served.server.received_bytes_held == 0


def test_descriptors_are_left_for_log_files(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    with served.connect() as before:
        assert_served(before)
        monkeypatch.setattr(served.server, "_descriptors", 3)
        with served.connect() as sock:
            assert_closed_by_server(sock)
        assert_served(before)
    assert served.server.stats.refused == 1


def test_lines_that_peers_cause_are_few(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = LimitedLog(logging.getLogger("test"), lambda: now[0])
    for number in range(1000):
        log.warning("connection.refused", f"peer-{number}", "x" * 10_000)
    assert len(caplog.records) == 10
    assert all(len(record.getMessage()) < 300 for record in caplog.records)
    log.warning("accept.failed", "any", "another event")
    now[0] = 61.0
    log.warning("connection.refused", "peer", "again")
    assert [record.getMessage() for record in caplog.records[10:]] == [
        "accept.failed peer=any reason='another event'",
        "connection.refused peer=peer reason='again' suppressed=990",
    ]
