"""The HTTP endpoint: `/metrics` for Prometheus, `/healthz` for whoever restarts brokers.

Owns: a thread with an event loop of its own, so that it answers while the broker recovers its logs,
and a scrape takes no time of the broker's loop. `/healthz` is 200 when the broker serves, and 503
with the reason when it starts, stops, has no data directory left, or its event loop does not turn.

Whoever can connect is not trusted: few connections at once, a short request head, one answer and a
few seconds for all of it. No TLS and no users: for loopback or a network of one's own.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 32
_MOST_HEAD_BYTES = 8 * 1024
_EXCHANGE_S = 5.0
_HEALTH_S = 2.0
_TEXT = "text/plain; charset=utf-8"

Health = Callable[[], Awaitable[str | None]]


class MetricsEndpoint:
    """`open`, then `close`, in any thread; both wait for the endpoint's own."""

    def __init__(self, collector: Collector, health: Health) -> None:
        """`health` says why the broker is not well, or None; it runs in the endpoint's thread."""
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        for make in (ProcessCollector, PlatformCollector, GCCollector):
            make(registry=self._registry)
        self._health = health
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._server: asyncio.Server | None = None

    def open(self, host: str, port: int) -> tuple[str, int]:
        """Listens. Returns host and port; raises OSError."""
        self._thread.start()
        try:
            future = asyncio.run_coroutine_threadsafe(self._open(host, port), self._loop)
            address = future.result()
        except OSError:
            self.close()
            raise
        _log.info("metrics.listening address=%s:%d", *address)
        return address

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _open(self, host: str, port: int) -> tuple[str, int]:
        self._server = await asyncio.start_server(
            self._converse, host or None, port, limit=_MOST_HEAD_BYTES
        )
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer, within a few seconds."""
        if self._connections >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections += 1
        try:
            await asyncio.wait_for(self._exchange(reader, writer), _EXCHANGE_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass
        except asyncio.LimitOverrunError:
            _log.debug("metrics.refused reason='a long request'")
        finally:
            self._connections -= 1
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        request_line, *header_lines = head.decode("latin-1").split("\r\n")
        method, _, target = request_line.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        accept = next((line[7:] for line in header_lines if line.lower().startswith("accept:")), "")
        status, content_type, body = await self._answer(method, path, accept)
        answer_head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"Content-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(answer_head.encode() + (b"" if method == "HEAD" else body))
        await writer.drain()
        writer.write_eof()
        await reader.read(1)  # until the peer has all of it and closes

    async def _answer(self, method: str, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"GET only\n"
        if path == "/metrics":
            encode, content_type = _encoder(accept)
            return HTTPStatus.OK, content_type, encode(self._registry)
        if path == "/healthz":
            reason = await self._health()
            if reason is None:
                return HTTPStatus.OK, _TEXT, b"serving\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, reason.encode() + b"\n"
        return HTTPStatus.NOT_FOUND, _TEXT, b"/metrics or /healthz\n"


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """What a peer asks for by its Accept header; text where that cannot be understood."""
    try:
        return choose_encoder(accept)
    except TypeError:  # of a version that is none
        return choose_encoder("")


async def turns(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether `loop`, another thread's, takes a turn within a moment."""

    async def turn() -> None:
        return None

    try:
        await asyncio.wait_for(
            asyncio.wrap_future(asyncio.run_coroutine_threadsafe(turn(), loop)), _HEALTH_S
        )
    except asyncio.TimeoutError:
        return False
    return True
