"""What a handler is told of who asks."""

import pytest

from broker.api.caller import Caller
from broker.api.request import Request
from broker.network.peer import Peer
from pyspark_kafkalog.protocol.frames import RequestHeader


@pytest.mark.parametrize(("client_id", "told"), [("test", "test"), (None, "")])
def test_who_asks(client_id: str | None, told: str) -> None:
    peer = Peer("INTERNAL", "192.0.2.1", 40_000)
    request = Request(RequestHeader(0, 9, 1, client_id, 0), memoryview(b""), peer)
    assert request.caller == Caller("INTERNAL", "User:ANONYMOUS", told, "192.0.2.1")
    assert request.caller.host == "/192.0.2.1"
