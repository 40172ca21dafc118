"""A NetworkServer on loopback in the test's own thread pool: real sockets, a scripted handler."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from broker.config.endpoint import Endpoint
from broker.network.connection import (
    Answer,
    BrokerConnection,
    ConnectionLimits,
    Handled,
    Pipelined,
)
from broker.network.loop import new_event_loop
from broker.network.server import NetworkServer, SocketOptions
from tests.support.patience import EVENT_S


class Echo:
    """Answers each frame with itself; those that begin with `wait` or `pipe` wait until `release`,
    and other ones of `pipe` are handled meanwhile; but not what ends with `!`, nor what ends with
    `?`, which has no answer."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.waiting: list[asyncio.Future[Answer]] = []
        self.cancelled = threading.Event()
        self.received = threading.Semaphore(0)
        self.answer: Answer | None = None

    def __call__(self, frame: memoryview, connection: BrokerConnection) -> Handled:
        self.frames.append(bytes(frame))
        self.received.release()
        word = bytes(frame[:4])
        if frame.tobytes().endswith(b"?"):
            return None
        if word in (b"wait", b"pipe") and not frame.tobytes().endswith(b"!"):
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda f: self.cancelled.set() if f.cancelled() else None)
            self.waiting.append(future)
            return future if word == b"wait" else Pipelined(future, b"pipe")
        if word == b"none":
            return None
        if word == b"slow":
            time.sleep(0.01)
        if word == b"bug!":
            raise ZeroDivisionError
        return self.answer if self.answer is not None else [bytes(frame)]


class Served:
    """The server, its handler, and how a test calls into its loop."""

    def __init__(self, limits: ConnectionLimits, options: SocketOptions) -> None:
        self.echo = Echo()
        self.loop = new_event_loop()
        self.server = NetworkServer(limits, options, self.loop)
        (endpoint,) = self.server.bind([Endpoint("PLAINTEXT", "127.0.0.1", 0)])
        self.address = endpoint.host, endpoint.port
        self.server.start(self.echo)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def call(self, function: Callable[[], object]) -> None:
        """Runs `function` on the loop's thread and waits for it."""
        done = threading.Event()

        def step() -> None:
            function()
            done.set()

        self.loop.call_soon_threadsafe(step)
        assert done.wait(EVENT_S)

    def release(self, answer: bytes, number: int = 0) -> None:
        """Answers the first waiting frame, or another one."""
        self.call(lambda: self.echo.waiting.pop(number).set_result([answer]))

    def receives(self, frames: int) -> None:
        """Waits until its handler has been given so many more."""
        for _ in range(frames):
            assert self.echo.received.acquire(timeout=EVENT_S)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.close(), self.loop).result(EVENT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(EVENT_S)
        assert not self._thread.is_alive()

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self.address, timeout=EVENT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """serve(limits, options) -> Served; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(
            limits: ConnectionLimits | None = None, options: SocketOptions | None = None
        ) -> Served:
            served = Served(limits or ConnectionLimits(1 << 20), options or SocketOptions())
            stack.callback(served.close)
            return served

        yield make


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()
