"""What a controller is told by a broker that ZooKeeper does not answer."""

import asyncio

import pytest

from broker.api import update_metadata
from broker.api.contexts import ControlledContext
from broker.cluster.control import Failures, Stamp, UpdateMetadata
from broker.cluster.control_messages import UPDATE_METADATA_VERSION, message_of
from broker.cluster.store import StoreConnectionError
from broker.network.connection import CloseConnection
from tests.support.requests import request_of


def test_nothing_so_that_it_says_it_again() -> None:
    async def obey(*request: object) -> Failures:
        raise StoreConnectionError("no connection")

    message = message_of(UpdateMetadata(Stamp(1, 1, 1), [], {}, {}))
    version = UPDATE_METADATA_VERSION
    request = request_of(6, version, message.encode(version=version))
    with pytest.raises(CloseConnection, match="no connection"):
        asyncio.run(update_metadata.handle(request, ControlledContext(obey)))
