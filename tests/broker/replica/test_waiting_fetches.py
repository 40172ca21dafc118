"""A fetch that waits for records: answered at once when who leads the partition changes, and how.

Of a consumer, of one that keeps a fetch session, and of a broker that follows.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import (
    FencedLeaderEpochError,
    NotLeaderForPartitionError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.api import fetch
from broker.api.contexts import RecordContext
from broker.api.fetch_session import FetchSessionCache
from broker.cluster.cache import MetadataCache
from broker.cluster.control import Stamp, UpdateMetadata
from broker.cluster.metadata import BrokerNode, PartitionMetadata, new_topic
from broker.config.broker import BrokerConfig
from broker.log.manager import LogManager
from broker.replica.delayed import DelayedFetch
from broker.replica.purgatory import Purgatory
from pyspark_kafkalog.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    encode_fetch_request,
)
from tests.broker.log.memory_files import MemoryFiles
from tests.support.replicas import lead, replicas_alone
from tests.support.requests import request_of

PLACE = TopicPartition("t", 0)
LONG_MS = 60_000
OLD, NAMED, BY_ID = 10, 12, 17
"""Versions of Fetch: of a consumer that knows leaders alone, the last that names topics, and that
of followers."""
FOLLOWER = 2


class Broker:
    """Leads a partition in epoch 3, of which another broker keeps a replica that is in sync."""

    def __init__(self) -> None:
        config = BrokerConfig.from_properties({"log.dirs": "/data"})
        self.logs = LogManager(config, files=MemoryFiles())
        self.logs.open()
        self.purgatory = Purgatory(lambda wait_s, run: self.call_later(wait_s, run))
        self.replicas = replicas_alone(self.logs, self.purgatory)
        topic = new_topic("t", 1, 1)
        (state,) = topic.partitions
        shared = replace(state, isr=(1, FOLLOWER), replicas=(1, FOLLOWER), leader_epoch=3)
        self.topic = replace(topic, partitions=(shared,))
        lead(self.replicas, self.topic)
        configs: Any = SimpleNamespace(current=config)
        nothing: Any = None
        self.context = RecordContext(
            configs=configs,
            metadata=self._told(),
            replicas=self.replicas,
            fetch_sessions=FetchSessionCache(self.replicas, 10, lambda: 0),
            transaction_partitions=nothing,
            convert=nothing,
        )

    def _told(self) -> MetadataCache:
        node = BrokerNode(1, "host", 9092)
        cache = MetadataCache("cluster", node)
        (state,) = self.topic.partitions
        topic_ids = {"t": self.topic.topic_id}
        cache.update(UpdateMetadata(Stamp(1, 1, 1), (node,), {PLACE: state}, topic_ids))
        return cache

    def call_later(self, wait_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, run)

    @property
    def state(self) -> PartitionMetadata:
        """In the next epoch."""
        return replace(self.topic.partitions[0], leader_epoch=4, partition_epoch=1)

    def fetch(self, version: int, known_epoch: int, **more: Any) -> Any:
        asked = FetchPartition("t", 0, 0, 1 << 20, known_epoch, log_start_offset=0)
        if version > NAMED:
            asked.topic_id = self.topic.topic_id
        wanted = FetchRequest(version, LONG_MS, 1, [asked], **more)
        return fetch.handle(
            request_of(1, version, bytes(encode_fetch_request(wanted))), self.context
        )

    def fetch_in_session(self, known_epoch: int) -> Any:
        began = self.fetch(NAMED, known_epoch, session_epoch=0)
        self.purgatory.wake(PLACE)
        opened = began.result()
        assert opened.session_id
        return self.fetch(NAMED, known_epoch, session_id=opened.session_id, session_epoch=1)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.logs.close()


Begin = Callable[[Broker, int], Any]
A_CONSUMERS = pytest.param(lambda broker, epoch: broker.fetch(NAMED, epoch), id="a consumer's")
AN_OLD_ONES = pytest.param(lambda broker, epoch: broker.fetch(OLD, epoch), id="an old one's")
IN_A_SESSION = pytest.param(Broker.fetch_in_session, id="in a session")
A_FOLLOWERS = pytest.param(
    lambda broker, epoch: broker.fetch(BY_ID, epoch, replica_id=FOLLOWER), id="a follower's"
)
LEADER_ALONE = pytest.mark.parametrize("begin", [AN_OLD_ONES, A_FOLLOWERS])
FOLLOWERS_TOO = pytest.mark.parametrize("begin", [A_CONSUMERS, IN_A_SESSION])
ALL = pytest.mark.parametrize("begin", [A_CONSUMERS, AN_OLD_ONES, IN_A_SESSION, A_FOLLOWERS])


def follows(broker: Broker) -> None:
    broker.replicas.follow(PLACE, broker.topic.topic_id, replace(broker.state, leader=FOLLOWER))


def stops(broker: Broker) -> None:
    broker.replicas.stop(PLACE)


def leads_on(broker: Broker) -> None:
    broker.replicas.lead(PLACE, broker.topic.topic_id, broker.state)


def answer_when(broker: Broker, begin: Begin, known_epoch: int, happens: Any) -> FetchResponse:
    """The answer to a fetch that waits when that happens, and no longer."""

    async def scenario() -> Any:
        waiting = begin(broker, known_epoch)
        assert (waiting.done(), broker.purgatory.count(DelayedFetch)) == (False, 1)
        happens(broker)
        assert (waiting.done(), broker.purgatory.count(DelayedFetch)) == (True, 0)
        return waiting.result()

    response: FetchResponse = asyncio.run(scenario())
    assert response.error_code == 0
    return response


def code_when(broker: Broker, begin: Begin, known_epoch: int, happens: Any) -> int:
    (partition,) = answer_when(broker, begin, known_epoch, happens).partitions
    return partition.error_code


@ALL
def test_the_end_of_a_replica_is_said_at_once(broker: Broker, begin: Begin) -> None:
    assert code_when(broker, begin, 3, stops) == UnknownTopicOrPartitionError.errno


@ALL
def test_a_new_epoch_is_said_at_once(broker: Broker, begin: Begin) -> None:
    assert code_when(broker, begin, 3, leads_on) == FencedLeaderEpochError.errno


@LEADER_ALONE
def test_another_leader_is_said_at_once(broker: Broker, begin: Begin) -> None:
    assert code_when(broker, begin, 3, follows) == NotLeaderForPartitionError.errno


@FOLLOWERS_TOO
def test_who_may_read_followers_reads_on_in_the_new_epoch(broker: Broker, begin: Begin) -> None:
    assert code_when(broker, begin, 3, follows) == FencedLeaderEpochError.errno


@ALL
def test_a_new_epoch_is_no_error_to_who_knows_of_none(broker: Broker, begin: Begin) -> None:
    response = answer_when(broker, begin, -1, leads_on)
    assert [each.error_code for each in response.partitions] in ([], [0])


@ALL
def test_who_waits_hears_nothing_of_the_same_epoch(broker: Broker, begin: Begin) -> None:
    async def scenario() -> None:
        waiting = begin(broker, 3)
        state = replace(broker.state, leader_epoch=3)
        broker.replicas.lead(PLACE, broker.topic.topic_id, state)
        assert (waiting.done(), broker.purgatory.count(DelayedFetch)) == (False, 1)
        waiting.cancel()

    asyncio.run(scenario())
