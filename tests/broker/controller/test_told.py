"""What a controller tells each broker of a cluster, in which order."""

import asyncio

import pytest

from broker.cluster import znodes
from broker.cluster.local_store import LocalStore
from broker.cluster.metadata import BrokerNode
from broker.cluster.records import MetadataRecords
from broker.cluster.store import ANY_VERSION, Delete
from broker.controller.controller import Controller


class Cluster:
    """Controller 1 and broker 2, which do all that they are told. `told`: kinds of requests and how
    many partitions each has, by the broker."""

    def __init__(self, directory) -> None:
        self.store = LocalStore(directory)
        self.records = MetadataRecords(self.store)
        self.records.prepare()
        self.records.become_controller(1)
        self.told: dict[int, list[tuple[str, int]]] = {1: [], 2: []}
        for node_id in (1, 2):
            self.register(node_id)
        self.controller = Controller(1, self.records, self._channel, _blocking)

    def register(self, node_id) -> None:
        self.records.register(BrokerNode(node_id, "host", 9090 + node_id))

    def end_session(self, node_id) -> None:
        self.store.commit([Delete(znodes.broker(node_id), ANY_VERSION)])

    def _channel(self, node):
        return _Channel(self.told[node.node_id])


class _Channel:
    def __init__(self, told) -> None:
        self._told = told

    def send(self, request):
        self._told.append((type(request).__name__, len(request.partitions)))
        answer = asyncio.get_running_loop().create_future()
        answer.set_result({})
        return answer

    async def close(self) -> None:
        pass


async def _blocking(function):
    return function()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.store.close()


def test_who_is_there_comes_before_whom_to_follow(cluster):
    """Apache Kafka's brokers follow nobody of whom they have not heard, and ask nobody."""

    async def scenario() -> None:
        await cluster.controller.start()
        await cluster.controller.place_and_create_topic("t", 2, 2, {})
        for told in cluster.told.values():
            assert told[0] == ("UpdateMetadata", 0)
            assert told[-2:] == [("LeaderAndIsr", 2), ("UpdateMetadata", 2)]
            told.clear()
        cluster.end_session(2)
        await cluster.controller.brokers_changed()
        cluster.told[2].clear()
        cluster.register(2)
        await cluster.controller.brokers_changed()
        assert cluster.told[2] == [
            ("UpdateMetadata", 2),
            ("LeaderAndIsr", 2),
            ("UpdateMetadata", 2),
        ]

    asyncio.run(scenario())


def test_who_is_there_comes_before_the_leaders_that_are_back(cluster):
    async def scenario() -> None:
        await cluster.controller.start()
        await cluster.controller.create_topic("t", [(2, 1)], {})
        for node_id in (1, 2):
            cluster.end_session(node_id)
            await cluster.controller.brokers_changed()
        cluster.register(1)
        await cluster.controller.brokers_changed()
        cluster.told[1].clear()
        cluster.register(2)
        await cluster.controller.brokers_changed()
        assert cluster.told[1] == [
            ("UpdateMetadata", 0),
            ("LeaderAndIsr", 1),
            ("UpdateMetadata", 1),
        ]

    asyncio.run(scenario())
