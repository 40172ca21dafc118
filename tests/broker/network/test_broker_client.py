"""Connections to other brokers, one of which ends in the middle of a request."""

import asyncio
import gc
import socket

import pytest
from kafka.errors import KafkaConnectionError

from broker.network.broker_client import BrokerClient
from tests.support.patience import turns

ANSWER = b"\x00\x00\x00\x08\x00\x00\x00\x00good"
SOON_S = 10


async def asked(listener: socket.socket) -> socket.socket:
    """The next connection, when its client waits for the answer."""
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listener)
    await loop.sock_recv(connection, 1000)
    await turns(5)
    return connection


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_the_next_connection_is_not_deaf(is_cancelled: bool) -> None:
    """It has the descriptor of the one before, whose end must not be taken for its own."""
    untold: list[object] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: untold.append(what))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            before, after = (
                BrokerClient("127.0.0.1", listener.getsockname()[1], "test", 60) for _ in range(2)
            )
            given_up = asyncio.ensure_future(before.exchange(18, 0, b""))
            with await asked(listener):
                if is_cancelled:
                    given_up.cancel()
                before.close()
                answered = asyncio.ensure_future(after.exchange(18, 0, b""))
                with await asked(listener) as connection:
                    await asyncio.get_running_loop().sock_sendall(connection, ANSWER)
                    assert bytes(await asyncio.wait_for(answered, SOON_S)) == b"good"
            with pytest.raises(asyncio.CancelledError if is_cancelled else KafkaConnectionError):
                await given_up
            after.close()

    asyncio.run(scenario())
    gc.collect()
    assert not untold
