"""Frames over real sockets, in every shape that TCP and bad peers give them."""

import asyncio
import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable

import pytest

from broker.network.connection import ConnectionLimits
from broker.network.server import SocketOptions
from tests.broker.network.conftest import Served
from tests.support.patience import EVENT_S

LIMIT_BYTES = 1 << 20
COST_BYTES = 4096
"""What an answer that waits counts for, beside its bytes."""


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def receive_exactly(sock: socket.socket, size_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < size_bytes:
        piece = sock.recv(size_bytes - len(data))
        if not piece:
            raise EOFError(f"closed after {len(data)} bytes")
        data += piece
    return bytes(data)


def receive_frame(sock: socket.socket) -> bytes:
    (size_bytes,) = struct.unpack(">i", receive_exactly(sock, 4))
    return receive_exactly(sock, size_bytes)


def assert_closed_by_server(sock: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):  # closed with our bytes unread
        assert sock.recv(1) == b""


def test_a_frame_arrives_byte_by_byte(served: Served) -> None:
    with served.connect() as sock:
        for byte in framed(b"hello"):
            sock.sendall(bytes([byte]))
        assert receive_frame(sock) == b"hello"


def test_many_frames_in_one_packet_are_answered_in_order(served: Served) -> None:
    bodies = [b"frame %d" % number for number in range(500)]
    with served.connect() as sock:
        sock.sendall(framed(*bodies))
        assert [receive_frame(sock) for _ in bodies] == bodies


@pytest.mark.parametrize("size_bytes", [1, 65_531, 65_532, 65_533, 65_536, 200_000, LIMIT_BYTES])
def test_frames_around_the_staging_buffer_are_whole(served: Served, size_bytes: int) -> None:
    bodies = [random.Random(size_bytes).randbytes(size_bytes), b"after", b"wards"]
    with served.connect() as sock:
        sock.sendall(framed(*bodies))
        assert [receive_frame(sock) for _ in bodies] == bodies


def test_a_frame_larger_than_its_first_buffer_grows(serve: Callable[..., Served]) -> None:
    served = serve(ConnectionLimits(16 << 20))
    body = os.urandom(9 << 20)
    with served.connect() as sock:
        sock.sendall(framed(body))
        assert receive_frame(sock) == body


@pytest.mark.parametrize("size_bytes", [0, -1, -(2**31), LIMIT_BYTES + 1, 2**31 - 1])
def test_a_size_that_no_frame_has_closes_the_connection(
    served: Served, size_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    with served.connect() as sock:
        sock.sendall(struct.pack(">i", size_bytes) + b"x" * 10)
        assert_closed_by_server(sock)
    assert f"frame of {size_bytes} bytes" in caplog.text
    assert served.echo.frames == []


def test_garbage_closes_its_connection_and_no_other(served: Served) -> None:
    with served.connect() as good, served.connect() as bad:
        bad.sendall(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
        assert_closed_by_server(bad)
        good.sendall(framed(b"still here"))
        assert receive_frame(good) == b"still here"


def test_a_size_field_alone_allocates_nothing_of_that_size(serve: Callable[..., Served]) -> None:
    served = serve(ConnectionLimits(2**31 - 1))
    with open("/proc/self/statm", encoding="ascii") as statm:
        before = int(statm.read().split()[1])
        socks = [served.connect() for _ in range(100)]
        for number, sock in enumerate(socks):
            sock.sendall(struct.pack(">i", 2**31 - 1 if number % 2 else 100) + b"x")
        with served.connect() as probe:  # handled after the others
            probe.sendall(framed(b"probe"))
            assert receive_frame(probe) == b"probe"
        statm.seek(0)
        pages = int(statm.read().split()[1]) - before
    for sock in socks:
        sock.close()
    assert pages * os.sysconf("SC_PAGE_SIZE") < 100 * 200_000


def test_a_half_closed_peer_gets_its_answers(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(framed(b"wait", b"second"))
        sock.shutdown(socket.SHUT_WR)
        assert served.echo.received.acquire(timeout=EVENT_S)
        served.release(b"first")
        assert receive_frame(sock) == b"first"
        assert receive_frame(sock) == b"second"
        assert_closed_by_server(sock)


def test_requests_behind_a_waiting_one_wait_too(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(framed(b"wait", b"two", b"three"))
        assert served.echo.received.acquire(timeout=EVENT_S)
        with served.connect() as other:  # others do not wait
            other.sendall(framed(b"other"))
            assert receive_frame(other) == b"other"
        assert b"two" not in served.echo.frames
        served.release(b"one")
        assert [receive_frame(sock) for _ in range(3)] == [b"one", b"two", b"three"]


def test_no_answer_means_no_bytes(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(framed(b"none", b"some"))
        assert receive_frame(sock) == b"some"


def test_a_bug_in_a_handler_ends_its_connection_only(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with served.connect() as sock, served.connect() as other:
        sock.sendall(framed(b"bug!"))
        assert_closed_by_server(sock)
        other.sendall(framed(b"fine"))
        assert receive_frame(other) == b"fine"
    assert "ZeroDivisionError" in caplog.text


def test_a_peer_that_does_not_read_is_not_read_from(serve: Callable[..., Served]) -> None:
    served = serve(ConnectionLimits(LIMIT_BYTES, max_unsent_bytes=100_000))
    request = framed(b"x" * 50_000)
    with served.connect() as sock:
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.sendall(request * 4000)
        assert len(served.echo.frames) * 50_000 < 50 << 20
    with served.connect() as other:
        other.sendall(framed(b"alive"))
        assert receive_frame(other) == b"alive"


@pytest.mark.parametrize("max_unsent_bytes", [1 << 20, 1])
def test_a_peer_that_sends_many_requests_at_once_lets_others_have_their_turn(
    serve: Callable[..., Served], max_unsent_bytes: int
) -> None:
    """Also one that reads its answers at once, however few of them may wait for it."""
    served = serve(limits=ConnectionLimits(1 << 20, max_unsent_bytes))
    with served.connect() as many, served.connect() as other:
        many.sendall(framed(b"slow") * 500)
        assert served.echo.received.acquire(timeout=EVENT_S)
        other.sendall(framed(b"alive"))
        assert receive_frame(other) == b"alive"
        assert len(served.echo.frames) < 500
        for _ in range(500):
            assert receive_frame(many) == b"slow"


def test_answers_that_nobody_reads_share_what_they_may_hold(serve: Callable[..., Served]) -> None:
    served = serve(options=SocketOptions(send_buffer_bytes=8192))
    served.echo.answer = [b"y" * 50_000]
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(small_window(served)) for _ in range(400)]
        for sock in socks:
            sock.sendall(framed(b"more") * 40)
        probe = stack.enter_context(served.connect())
        probe.sendall(framed(b"alive"))
        assert receive_frame(probe) == served.echo.answer[0]
        unsent = sum(connection.unsent_bytes for connection in served.server._connections)
        assert 20 << 20 < unsent <= (64 << 20) + 400 * 50_004
    with served.connect() as probe:
        probe.sendall(framed(b"alive"))
        assert receive_frame(probe) == served.echo.answer[0]


def small_window(served: Served) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(served.address)
    return sock


def test_what_is_carried_out_lets_its_like_be_handled_and_is_answered_in_order(
    served: Served,
) -> None:
    with served.connect() as sock:
        sock.sendall(framed(b"pipe 0", b"pipe 1", b"pipe at once!", b"pipe 2"))
        served.receives(4)
        served.release(b"second", 1)
        served.release(b"third", 1)
        sock.sendall(framed(b"pipe 3"))
        served.receives(1)
        served.release(b"first")
        found = [receive_frame(sock) for _ in range(4)]
        assert found == [b"first", b"second", b"pipe at once!", b"third"]
        served.release(b"fourth")
        assert receive_frame(sock) == b"fourth"


def test_what_is_not_its_like_waits_for_all_that_came_before(served: Served) -> None:
    with served.connect() as sock, served.connect() as other:
        sock.sendall(framed(b"pipe 0", b"pipe 1", b"hello", b"pipe 2"))
        served.receives(2)
        served.release(b"first")
        assert receive_frame(sock) == b"first"
        other.sendall(framed(b"other"))
        assert receive_frame(other) == b"other"
        assert served.echo.frames == [b"pipe 0", b"pipe 1", b"other"]
        served.release(b"second")
        assert [receive_frame(sock) for _ in range(2)] == [b"second", b"hello"]
        served.receives(3)
        served.release(b"third")
        assert receive_frame(sock) == b"third"


@pytest.mark.parametrize("size_bytes", [1000, 70_000])
def test_few_bytes_of_requests_wait_for_their_answers_together(
    serve: Callable[..., Served], size_bytes: int
) -> None:
    """Also where each comes in pieces, into a buffer of its own."""
    most_bytes = 2 * (size_bytes + COST_BYTES) + 100
    served = serve(ConnectionLimits(LIMIT_BYTES, max_unsent_bytes=most_bytes))
    bodies = [b"pipe %d" % number + bytes(size_bytes) for number in range(5)]
    with served.connect() as sock, served.connect() as other:
        sock.sendall(framed(*bodies))
        served.receives(3)
        other.sendall(framed(b"other"))
        assert receive_frame(other) == b"other"
        assert served.echo.frames == [*bodies[:3], b"other"]
        for number in range(3):
            served.release(b"%d" % number)
        served.receives(3)
        assert served.echo.frames[4:] == bodies[3:]
        for number in range(3, 5):
            served.release(b"%d" % number)
        assert [receive_frame(sock) for _ in range(5)] == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize(
    ("frame", "most"),
    [(b"pipe?", 10), (b"pipe!" + bytes(10_000) + b"!", 4)],
    ids=["that say nothing", "that are large"],
)
def test_few_answers_that_are_there_wait_for_those_before_them(
    serve: Callable[..., Served], frame: bytes, most: int
) -> None:
    """A client must not fill the memory with what it is not sent yet."""
    served = serve(ConnectionLimits(LIMIT_BYTES, max_unsent_bytes=10 * COST_BYTES))
    with served.connect() as sock, served.connect() as other:
        sock.sendall(framed(b"pipe 0", *[frame] * 100))
        served.receives(most)
        other.sendall(framed(b"other"))
        receive_frame(other)
        assert len(served.echo.frames) == most + 1
        served.release(b"first")
        served.receives(101 - most + 1)
        assert receive_frame(sock) == b"first"


def test_all_awaited_answers_are_cancelled_when_the_connection_is_closed(
    serve: Callable[..., Served],
) -> None:
    served = serve(options=SocketOptions(max_idle_ms=200))
    with served.connect() as sock:
        sock.sendall(framed(b"pipe 0", b"pipe 1", b"wait"))
        served.receives(2)
        assert_closed_by_server(sock)
    served.call(lambda: None)
    assert [each.cancelled() for each in served.echo.waiting] == [True, True]


def test_an_error_of_one_answer_ends_its_connection_when_its_turn_comes(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(framed(b"pipe 0", b"pipe 1", b"pipe 2"))
        served.receives(3)
        served.call(lambda: served.echo.waiting.pop(1).set_exception(ZeroDivisionError()))
        sock.sendall(framed(b"pipe 3"))
        served.receives(1)
        served.release(b"first")
        served.call(lambda: None)
        assert all(each.cancelled() for each in served.echo.waiting)


def test_an_awaited_answer_is_cancelled_when_the_connection_is_closed(
    serve: Callable[..., Served],
) -> None:
    served = serve(options=SocketOptions(max_idle_ms=100))
    with served.connect() as sock:
        sock.sendall(framed(b"wait"))
        assert_closed_by_server(sock)
    assert served.echo.cancelled.wait(EVENT_S)


def test_idle_connections_are_closed(serve: Callable[..., Served]) -> None:
    served = serve(options=SocketOptions(max_idle_ms=100))
    with served.connect() as sock:
        assert_closed_by_server(sock)


def test_a_connection_that_is_being_answered_is_not_idle(serve: Callable[..., Served]) -> None:
    """One whose requests came long ago, all at once, and take long together."""
    served = serve(options=SocketOptions(max_idle_ms=200))
    with served.connect() as sock:
        sock.sendall(framed(b"slow") * 100)
        for _ in range(100):
            assert receive_frame(sock) == b"slow"
        assert_closed_by_server(sock)


def test_no_idle_time_closes_a_connection_when_it_is_switched_off(
    serve: Callable[..., Served],
) -> None:
    served = serve(options=SocketOptions(max_idle_ms=-1))
    with served.connect() as sock:
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(EVENT_S)
        sock.sendall(framed(b"still here"))
        assert receive_frame(sock) == b"still here"


def test_close_lets_an_answer_on_its_way_out_go(serve: Callable[..., Served]) -> None:
    served = serve()
    served.echo.answer = [b"y" * (30 << 20)]
    with served.connect() as sock:
        sock.sendall(framed(b"big"))
        assert receive_exactly(sock, 4) == struct.pack(">i", 30 << 20)
        closing = asyncio.run_coroutine_threadsafe(served.server.close(), served.loop)
        assert len(receive_exactly(sock, 30 << 20)) == 30 << 20
        assert_closed_by_server(sock)
        closing.result(EVENT_S)
