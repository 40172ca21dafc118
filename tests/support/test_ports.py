import socket

import pytest

from tests.support.ports import free_ports


def test_a_free_port_is_kept_for_a_server() -> None:
    """The kernel's choice of a port, for a client's end too, leaves out what another has bound."""
    (port,) = free_ports(1)
    with socket.socket() as anyone, pytest.raises(OSError, match="in use"):
        anyone.bind(("127.0.0.1", port))
    socket.create_server(("127.0.0.1", port)).close()
