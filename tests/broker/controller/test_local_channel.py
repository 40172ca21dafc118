"""A controller's requests to its own broker keep their order."""

import asyncio
from typing import Any

import pytest
from kafka.errors import BrokerNotAvailableError

from broker.cluster.control import LeaderAndIsr, Stamp, StopReplica, UpdateMetadata
from broker.cluster.store import StoreConnectionError
from broker.controller.local_channel import LocalChannel
from tests.support.patience import turns


def request(epoch: int) -> UpdateMetadata:
    return UpdateMetadata(Stamp(1, epoch, 1), [], {}, {})


def test_one_request_after_the_other_also_after_one_that_failed() -> None:
    done = []

    async def obey(asked: LeaderAndIsr | StopReplica | UpdateMetadata) -> dict[Any, Any]:
        await turns(3 - asked.stamp.controller_epoch)  # the first takes longest
        done.append(asked.stamp.controller_epoch)
        if asked.stamp.controller_epoch == 1:
            raise OSError("no")
        return {}

    async def scenario() -> None:
        channel = LocalChannel(obey)
        answers = [channel.send(request(epoch)) for epoch in range(3)]
        await channel.close()
        assert done == [0, 1, 2]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert isinstance(results.pop(1), OSError)
        assert results == [{}, {}]

    asyncio.run(scenario())


def test_what_a_store_keeps_its_broker_from_is_asked_for_again_until_it_is_done() -> None:
    failures = [StoreConnectionError("/"), StoreConnectionError("/")]
    done = []

    async def obey(asked: LeaderAndIsr | StopReplica | UpdateMetadata) -> dict[Any, Any]:
        if failures:
            raise failures.pop()
        done.append(asked.stamp.controller_epoch)
        return {}

    async def scenario() -> None:
        channel = LocalChannel(obey)
        answers = [channel.send(request(epoch)) for epoch in range(2)]
        assert await asyncio.gather(*answers) == [{}, {}]
        assert done == [0, 1]
        failures.append(StoreConnectionError("/"))
        late = channel.send(request(2))
        await channel.close()
        with pytest.raises(BrokerNotAvailableError):
            await late

    asyncio.run(scenario())
