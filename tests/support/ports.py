"""Ports of 127.0.0.1 for tests."""

import socket

_held: list[socket.socket] = []


def closed_port() -> int:
    """That nobody listens on, nor will while this process runs: it is taken, and not opened."""
    _held.append(socket.socket())
    _held[-1].bind(("127.0.0.1", 0))
    return int(_held[-1].getsockname()[1])
