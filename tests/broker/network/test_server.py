"""What the listener binds to."""

import socket

from broker.network.connection import ConnectionLimits
from broker.network.loop import new_event_loop
from broker.network.server import NetworkServer, SocketOptions
from tests.support.patience import EVENT_S


def test_no_host_is_every_interface():
    """So does Apache Kafka's (and our) default, PLAINTEXT://:9092, say it."""
    loop = new_event_loop()
    server = NetworkServer(ConnectionLimits(100), SocketOptions(), loop)
    _, port = server.bind("", 0)
    server.start(lambda frame, connection: None)
    socket.create_connection(("127.0.0.1", port), timeout=EVENT_S).close()
    loop.run_until_complete(server.close())
    loop.close()
