"""A network on loopback that a test makes bad, and good again, while connections are there."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress


class TcpProxy:
    """Passes connections to `port` of 127.0.0.1 on, until told otherwise; a context manager."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._door = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._door.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._loses_requests = self._loses_answers = False
        self.delay_s = 0.0
        """How long everything takes, each way, a piece after the other."""
        self._clients: list[socket.socket] = []
        self._sockets: list[socket.socket] = []
        self._lossy: list[socket.socket] = []
        self._spawn(self._accept)

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, *error: object) -> None:
        for one in (self._door, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def lose(self, requests: bool = False, answers: bool = False) -> None:
        """From now on, without a word; new connections are not answered either. What has lost a
        byte passes none after it, nor its end, whatever is said later: TCP does not skip."""
        self._loses_requests, self._loses_answers = requests, answers

    def cut(self) -> None:
        """Closes all connections; new ones are taken."""
        _shut(self._sockets)

    def cut_lossy(self) -> None:
        """Closes the connections that have lost something."""
        _shut(self._lossy)

    def say(self, answer: bytes) -> None:
        """To all clients, as if the server had."""
        for one in self._clients:
            with suppress(OSError):
                one.sendall(answer)

    def _spawn(self, run: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=run, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self._sockets.append(client)
                self._clients.append(client)
                with suppress(OSError):
                    server = socket.create_connection(self._server)
                    self._sockets.append(server)
                    self._spawn(self._between, client, server)
                    continue
                self._close(client)

    def _between(self, client: socket.socket, server: socket.socket) -> None:
        """Carries what they say, until one of them has gone."""
        self._spawn(self._pass, server, client, lambda: self._loses_answers)
        self._pass(client, server, lambda: self._loses_requests)

    def _pass(
        self,
        sender: socket.socket,
        receiver: socket.socket,
        is_lost: Callable[[], bool],
        first: bytes = b"",
        delay_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        has_lost = False
        with suppress(OSError):
            data = first or sender.recv(65536)
            while data:
                if not has_lost and is_lost():
                    has_lost = True
                    self._lossy += sender, receiver
                if not has_lost:
                    time.sleep(max(self.delay_s, delay_s()))
                    receiver.sendall(data)
                data = sender.recv(65536)
        if not has_lost and not is_lost():
            _shut([receiver])
        self._close(sender)

    def _close(self, one: socket.socket) -> None:
        """Whose thread it is; descriptors are used again, so nobody else may know it then."""
        for known in (self._sockets, self._clients, self._lossy):
            while one in known:
                known.remove(one)
        one.close()


def _shut(sockets: list[socket.socket]) -> None:
    for one in list(sockets):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
