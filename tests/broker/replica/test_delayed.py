"""A produce with acks=all: when its answer comes, in a partition that two replicas keep."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import (
    NotEnoughReplicasAfterAppendError,
    NotLeaderForPartitionError,
    RequestTimedOutError,
)
from kafka.structs import TopicPartition

from broker.api import produce
from broker.api.response import CarriedOut
from broker.cluster.metadata import PartitionMetadata, new_topic
from broker.config.broker import BrokerConfig
from broker.log.manager import LogManager
from broker.replica.delayed import DelayedFetch, DelayedProduce
from broker.replica.partition import Isolation
from broker.replica.purgatory import Purgatory
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from tests.broker.log.memory_files import MemoryFiles
from tests.support.patience import turns
from tests.support.records import batch_of
from tests.support.replicas import lead, replicas_alone, stop
from tests.support.requests import request_of

PLACES = [TopicPartition("t", index) for index in range(2)]
LONG_MS = 60_000


class Broker:
    """Leads two partitions, of which another broker keeps replicas that are in sync."""

    def __init__(self) -> None:
        self.config = BrokerConfig.from_properties({"log.dirs": "/data"})
        self.logs = LogManager(self.config, files=MemoryFiles())
        self.logs.open()
        self.purgatory = Purgatory(self.call_later)
        self.replicas = replicas_alone(self.logs, self.purgatory)
        topic = new_topic("t", len(PLACES), 1)
        shared = [replace(each, isr=(1, 2), replicas=(1, 2)) for each in topic.partitions]
        self.topic = replace(topic, partitions=tuple(shared))
        lead(self.replicas, self.topic)
        self.partitions = [self.replicas.partition(place) for place in PLACES]

    def call_later(self, delay_s: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, run)

    def produce(self, *places: TopicPartition, acks: int = -1, timeout_ms: int = LONG_MS) -> Any:
        parts = [ProducePartition(place.topic, place.partition, batch_of(1)) for place in places]
        wanted = ProduceRequest(9, None, acks, timeout_ms, parts)
        context: Any = SimpleNamespace(
            config=self.config, replicas=self.replicas, others_may_lead=None
        )
        request = request_of(0, 9, b"".join(encode_produce_request(wanted)))
        return produce.handle(request, context)

    def replicate(self, number: int, offset: int) -> None:
        """The other replica has all below `offset`."""
        partition = self.partitions[number]
        size_bytes, stable_bytes = partition.advance_high_watermark(offset)
        self.purgatory.became_visible(partition.topic_partition, size_bytes, stable_bytes)

    @property
    def waiting(self) -> int:
        return self.purgatory.count(DelayedProduce)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.logs.close()


def errors_of(response: Any) -> list[Any]:
    return [each.error_code for each in response.partitions]


async def begun(produced: Any) -> Any:
    """Until it waits, or is done."""
    task = asyncio.ensure_future(produced)
    await turns(10)
    return task


def test_the_answer_comes_when_all_replicas_in_sync_have_the_records(broker: Broker) -> None:
    async def scenario() -> Any:
        task = await begun(broker.produce(*PLACES))
        for number, offset in [(0, 1), (1, 0)]:
            broker.replicate(number, offset)
            await turns()
            assert (task.done(), broker.waiting) == (False, 1)
        broker.replicate(1, 1)
        return await task

    response = asyncio.run(scenario())
    assert errors_of(response) == [0, 0]
    assert [each.base_offset for each in response.partitions] == [0, 0]
    assert broker.waiting == 0


def test_what_waits_for_replicas_alone_is_carried_out(broker: Broker) -> None:
    """So the next requests of its connection are appended meanwhile, and replicated with it."""

    async def scenario() -> Any:
        outcomes = [broker.produce(PLACES[0]) for _ in range(3)]
        assert all(isinstance(each, CarriedOut) for each in outcomes)
        assert broker.partitions[0].log.log_end_offset == 3
        tasks = [await begun(each) for each in outcomes]
        broker.replicate(0, 2)
        await turns()
        assert [each.done() for each in tasks] == [True, True, False]
        broker.replicate(0, 3)
        return [await each for each in tasks]

    responses = asyncio.run(scenario())
    assert [each.partitions[0].base_offset for each in responses] == [0, 1, 2]
    assert not isinstance(broker.produce(PLACES[0], acks=1), CarriedOut)


def test_what_waits_for_a_replica_that_may_be_away_for_long_is_not(broker: Broker) -> None:
    """Its producer has one batch there that is not acknowledged, not many."""
    log = broker.partitions[0].log
    log.config = replace(log.config, min_insync_replicas=2)

    async def scenario() -> Any:
        outcome = broker.produce(PLACES[0])
        assert not isinstance(outcome, CarriedOut)
        task = await begun(outcome)
        broker.replicate(0, 1)
        return await task

    assert errors_of(asyncio.run(scenario())) == [0]


def test_other_acks_do_not_wait(broker: Broker) -> None:
    assert errors_of(broker.produce(*PLACES, acks=1)) == [0, 0]
    assert broker.produce(*PLACES, acks=0) is None
    assert [partition.high_watermark for partition in broker.partitions] == [0, 0]


def test_an_only_replica_does_not_wait(broker: Broker) -> None:
    broker.partitions[0].lead(PartitionMetadata((1,), 1, 0, (1,), 1))
    assert errors_of(broker.produce(PLACES[0])) == [0]


def test_at_the_end_of_its_time_it_says_what_is_missing(broker: Broker) -> None:
    async def scenario() -> Any:
        task = await begun(broker.produce(*PLACES, timeout_ms=50))
        broker.replicate(0, 1)
        return await task

    assert errors_of(asyncio.run(scenario())) == [0, RequestTimedOutError.errno]
    assert [partition.log.log_end_offset for partition in broker.partitions] == [1, 1]
    assert broker.waiting == 0


def test_replicas_that_become_too_few_are_said(broker: Broker) -> None:
    async def scenario() -> Any:
        task = await begun(broker.produce(PLACES[0]))
        log = broker.partitions[0].log
        log.config = replace(log.config, min_insync_replicas=2)
        broker.partitions[0].isr_changed((1,), 1)
        broker.replicate(0, 1)
        return await task

    assert errors_of(asyncio.run(scenario())) == [NotEnoughReplicasAfterAppendError.errno]


@pytest.mark.parametrize("topic", [PLACES[0].topic, None])
def test_replicas_that_become_enough_by_another_rule_end_the_wait(
    broker: Broker, topic: str | None
) -> None:
    async def scenario() -> Any:
        log = broker.partitions[0].log
        log.config = replace(log.config, min_insync_replicas=2)
        task = await begun(broker.produce(PLACES[0]))
        broker.partitions[0].isr_changed((1,), 1)
        broker.partitions[0].fetched_by(2, 1, 0)
        broker.replicas.rules_changed(topic)
        assert broker.waiting == 1
        log.config = replace(log.config, min_insync_replicas=1)
        broker.replicas.rules_changed("another topic")
        assert broker.waiting == 1
        broker.replicas.rules_changed(topic)
        return await task

    assert errors_of(asyncio.run(scenario())) == [0]


def test_leadership_that_goes_is_said(broker: Broker) -> None:
    async def scenario() -> Any:
        task = await begun(broker.produce(*PLACES))
        broker.replicate(0, 1)
        stop(broker.replicas, broker.topic)
        return await task

    lost = NotLeaderForPartitionError.errno
    assert errors_of(asyncio.run(scenario())) == [0, lost]


def wait_for_records(broker: Broker, woken: list[Any]) -> None:
    fetch = DelayedFetch([PLACES[0]], 1 << 20, Isolation.HIGH_WATERMARK)
    broker.replicas.wait(fetch, LONG_MS, lambda: woken.append(PLACES[0]))


def test_a_leader_that_follows_now_keeps_nobody_waiting(broker: Broker) -> None:
    """Also where it leads again before anybody has looked: it may have cut what it appended."""
    woken: list[TopicPartition] = []
    (state, _), topic_id = broker.topic.partitions, broker.topic.topic_id

    async def scenario() -> Any:
        wait_for_records(broker, woken)
        first = await begun(broker.produce(PLACES[0]))
        elsewhere = replace(state, leader=2, leader_epoch=1, partition_epoch=1)
        broker.replicas.follow(PLACES[0], topic_id, elsewhere)
        assert woken == [PLACES[0]]
        again = replace(state, leader_epoch=2, partition_epoch=2)
        broker.replicas.lead(PLACES[0], topic_id, again)
        broker.replicate(0, 1)
        return await first

    lost = NotLeaderForPartitionError.errno
    assert errors_of(asyncio.run(scenario())) == [lost]
    assert broker.waiting == 0


def test_a_leader_that_leads_on_in_a_new_epoch_answers_when_all_have_the_records(
    broker: Broker,
) -> None:
    """Followers have told it nothing in that epoch yet."""
    (state, _), topic_id = broker.topic.partitions, broker.topic.topic_id

    async def scenario() -> Any:
        task = await begun(broker.produce(PLACES[0]))
        again = replace(state, leader_epoch=1, partition_epoch=1)
        broker.replicas.lead(PLACES[0], topic_id, again)
        await turns()
        assert not task.done()
        broker.replicate(0, 1)
        return await task

    assert errors_of(asyncio.run(scenario())) == [0]


def test_who_goes_away_is_forgotten(broker: Broker) -> None:
    async def scenario() -> None:
        task = await begun(broker.produce(PLACES[0]))
        assert broker.waiting == 1
        task.cancel()
        await asyncio.wait([task])
        assert broker.waiting == 0

    asyncio.run(scenario())


def test_a_fetch_is_woken_by_the_high_watermark_and_not_by_the_append(broker: Broker) -> None:
    woken: list[TopicPartition] = []

    async def scenario() -> None:
        fetch = DelayedFetch([PLACES[0]], 1, Isolation.HIGH_WATERMARK)
        broker.replicas.wait(fetch, LONG_MS, lambda: woken.append(1))
        task = await begun(broker.produce(PLACES[0]))
        assert woken == []
        broker.replicate(0, 1)
        assert woken == [1]
        await task

    asyncio.run(scenario())
