"""Ports of 127.0.0.1 for tests."""

import socket
from collections import deque

_MOST_KEPT = 32
_closed: list[socket.socket] = []
_kept: deque[socket.socket] = deque()


def closed_port() -> int:
    """That nobody listens on, nor will while this process runs: it is taken, and not opened."""
    _closed.append(socket.socket())
    _closed[-1].bind(("127.0.0.1", 0))
    return int(_closed[-1].getsockname()[1])


def free_ports(count: int) -> list[int]:
    """That nobody listens on; only who is told them may.

    They are kept bound, as servers bind theirs (SO_REUSEADDR; Java's do): so the kernel gives them
    to no client's end of a connection, which else may have one before its server has started, or
    while it is started again. The last 32 of this process are kept.
    """
    ports = []
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        _kept.append(sock)
        ports.append(int(sock.getsockname()[1]))
    while len(_kept) > _MOST_KEPT:
        _kept.popleft().close()
    return ports
