"""A controller's requests to its own broker keep their order."""

import asyncio

from broker.cluster.control import Stamp, UpdateMetadata
from broker.controller.local_channel import LocalChannel


def request(epoch: int) -> UpdateMetadata:
    return UpdateMetadata(Stamp(1, epoch, 1), [], {}, {})


def test_one_request_after_the_other_also_after_one_that_failed():
    done = []

    async def obey(asked):
        for _ in range(3 - asked.stamp.controller_epoch):  # the first takes longest
            await asyncio.sleep(0)
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
