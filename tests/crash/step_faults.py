"""What happens to a step of the transactional sink at one of its requests (`sink_steps`).

Requests are counted as the client sends them, from 1. A fault is armed by the step's own process.
"""

import itertools
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pyspark_kafkalog.client.connection import Connection


class StepFault(Protocol):
    def arm(self) -> None:
        """To be called by the process that it is to happen to."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL of a step itself at its request `number`, counted from 1; of `api_key` alone if set.

    Before that is sent, when those before it are answered, or right after it was sent.
    """

    number: int
    after_sending: bool = False
    api_key: int | None = None

    def arm(self) -> None:
        count = itertools.count(1)
        send_only = Connection.send_only

        def counted(connection: Connection, api_key: int, *arguments: Any) -> int:
            is_it = self.api_key in (None, api_key) and next(count) == self.number
            if is_it and not self.after_sending:
                while connection.in_flight:
                    connection.receive()
                os.kill(os.getpid(), signal.SIGKILL)
            sent = send_only(connection, api_key, *arguments)
            if is_it:
                os.kill(os.getpid(), signal.SIGKILL)
            return sent

        Connection.send_only = counted  # type: ignore[method-assign,assignment]


@dataclass(frozen=True)
class Stop:
    """SIGSTOP of a step itself before it sends its request `number`."""

    number: int

    def arm(self) -> None:
        count = itertools.count(1)
        send_only = Connection.send_only

        def counted(connection: Connection, api_key: int, *arguments: Any) -> int:
            if next(count) == self.number:
                os.kill(os.getpid(), signal.SIGSTOP)
            return send_only(connection, api_key, *arguments)

        Connection.send_only = counted  # type: ignore[method-assign,assignment]


@dataclass(frozen=True)
class Loss:
    """What the network loses of `times` requests in a row, from `number` on: them, with their
    connection; their answers, with it; or their answers without a word.

    `happened` is a file that is there when anything was lost.
    """

    what: Literal["request", "answer", "answer without a word"]
    number: int
    times: int
    happened: Path

    def arm(self) -> None:
        count = itertools.count(1)
        send_only = Connection.send_only
        kept: list[socket.socket] = []

        def counted(connection: Connection, api_key: int, *arguments: Any) -> int:
            is_it = 0 <= next(count) - self.number < self.times
            if not is_it:
                return send_only(connection, api_key, *arguments)
            self.happened.touch()
            transport: Any = connection._open_transport()
            if self.what == "request":
                transport._socket.shutdown(socket.SHUT_RDWR)
            sent = send_only(connection, api_key, *arguments)
            if self.what == "answer":
                transport._socket.recv(1, socket.MSG_PEEK)  # it has been carried out
            if self.what != "request":
                deaf, other_end = socket.socketpair()
                kept.extend((other_end, transport._socket))
                transport._socket = deaf
                if self.what == "answer":
                    other_end.close()
            return sent

        Connection.send_only = counted  # type: ignore[method-assign,assignment]
