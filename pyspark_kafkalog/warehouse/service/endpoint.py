"""`/metrics` and `/healthz` of a service, by HTTP, from threads of their own.

`/healthz` is 200 while the service begins what is due, 503 with the reason otherwise. Who can
connect is not trusted: few connections at once, a few seconds for each. No TLS and no users: for
loopback or a network of one's own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, SHUT_RDWR, socket
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

_EXCHANGE_S = 5.0
_MOST_CONNECTIONS = 16
_TEXT = "text/plain; charset=utf-8"

Health = Callable[[], str | None]


@contextmanager
def endpoint(host: str, port: int, collector: Collector, health: Health) -> Iterator[str]:
    """Serves in the body; yields the address as HOST:PORT. `health` says why all is not well, or
    None. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(collector)
    for make in (ProcessCollector, PlatformCollector, GCCollector):
        make(registry=registry)
    with _server(host, port, _handler(registry, health)) as server:
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        at = server.server_address
        shown = str(at[0])
        try:
            yield f"{f'[{shown}]' if ':' in shown else shown}:{at[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, of which there are few."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.Semaphore(_MOST_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # Each read has its own time; this is that of all of them.
        last = threading.Timer(_EXCHANGE_S, _cut, [request])
        last.daemon = True
        last.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            last.cancel()
            self._free.release()

    def handle_error(self, request: "socket | tuple[bytes, socket]", client_address: Any) -> None:
        """A peer that went away is no news."""


def _cut(connection: socket) -> None:
    with suppress(OSError):
        connection.shutdown(SHUT_RDWR)


def _server(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> _Server:
    if ":" not in host:
        return _Server((host, port), handler)
    of_ipv6 = type("_ServerOfIPv6", (_Server,), {"address_family": AF_INET6})
    server: _Server = of_ipv6((host, port), handler)
    return server


def _handler(registry: CollectorRegistry, health: Health) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers one request."""

        timeout = _EXCHANGE_S
        server_version = "kafkalog"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._metrics()
            elif path == "/healthz":
                reason = health()
                self._answer(503 if reason else 200, _TEXT, f"{reason or 'serving'}\n".encode())
            else:
                self._answer(404, _TEXT, b"/metrics or /healthz\n")

        do_HEAD = do_GET

        def _metrics(self) -> None:
            try:
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            except TypeError:  # of a version that is none
                encode, content_type = choose_encoder("")
            self._answer(200, content_type, encode(registry))

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads who asked."""

    return Handler
