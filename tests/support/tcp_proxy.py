"""A network on loopback that a test makes bad, and good again, while connections are there."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class TcpProxy:
    """Passes connections to `port` of 127.0.0.1 on, until told otherwise; a context manager."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._loses_requests = self._loses_answers = False
        self._sockets = [self._door]
        self._clients: list[socket.socket] = []
        self._spawn(self._accept)

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def lose(self, requests: bool = False, answers: bool = False) -> None:
        """From now on, without a word; new connections are not answered either. What has lost a
        byte passes none after it, whatever is said later: TCP does not skip."""
        self._loses_requests, self._loses_answers = requests, answers

    def cut(self) -> None:
        """Closes all connections; new ones are taken."""
        for one in self._sockets[1:]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def say(self, answer: bytes) -> None:
        """To all clients, as if the server had."""
        for one in self._clients:
            with suppress(OSError):
                one.sendall(answer)

    def _spawn(self, run: object, *arguments: object) -> None:
        threading.Thread(target=run, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self._sockets.append(client)
                self._clients.append(client)
                with suppress(OSError):
                    server = socket.create_connection(self._server)
                    self._sockets.append(server)
                    self._spawn(self._to_server, client, server)
                    self._spawn(self._to_client, client, server)
                    continue
                client.close()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        self._pass(client, server, lambda: self._loses_requests)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        self._pass(server, client, lambda: self._loses_answers)

    def _pass(
        self, sender: socket.socket, receiver: socket.socket, loses: Callable[[], bool]
    ) -> None:
        has_lost = False
        with suppress(OSError):
            while data := sender.recv(65536):
                has_lost = has_lost or loses()
                if not has_lost:
                    receiver.sendall(data)
        with suppress(OSError):
            receiver.shutdown(socket.SHUT_RDWR)
