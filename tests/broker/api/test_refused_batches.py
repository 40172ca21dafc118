"""What is behind a refused batch is refused, too, until that has come again: whyever it was
refused, where that passes. Producers have several requests on their way."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError
from kafka.structs import TopicPartition

from broker.api import produce
from broker.cluster.metadata import TRANSACTION_STATE
from broker.replica.partition import ACKS_ALL
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)
from tests.broker.api.coordinator_requests import ID
from tests.broker.coordinator.test_transaction_partitions import answer
from tests.broker.log.batches import contents
from tests.broker.log.memory_files import MemoryFiles
from tests.support.patience import eventually
from tests.support.records import batch_of
from tests.support.replicated_broker import (
    OTHER,
    TOPIC,
    ReplicatedBroker,
    replicated_broker,
    settle,
)

PLACE = TopicPartition(TOPIC, 0)
PRODUCER = 7
NOT_LEADER, NOT_ENOUGH_REPLICAS, UNKNOWN_TOPIC, STORAGE_ERROR = 6, 19, 3, 56
OUT_OF_ORDER_SEQUENCE = 45

Passes = Callable[[], None]


def run(scenario: Callable[[ReplicatedBroker], Awaitable[None]], **led_by: Any) -> None:
    async def main() -> None:
        with replicated_broker({"min.insync.replicas": "2"}, led_by=led_by) as broker:
            await scenario(broker)

    asyncio.run(main())


def request_of(sequence: int, transactional_id: str | None = None) -> tuple[Any, bytes, int]:
    """Of one record, which says its sequence."""
    batch = batch_of(
        [(None, b"%d" % sequence)],
        producer=(PRODUCER, 0, sequence),
        transactional=transactional_id is not None,
    )
    part = ProducePartition(PLACE.topic, PLACE.partition, batch)
    wanted = ProduceRequest(9, transactional_id, ACKS_ALL, 1000, [part])
    return produce.API, b"".join(map(bytes, encode_produce_request(wanted))), 9


async def sent(broker: ReplicatedBroker, sequence: int) -> int:
    """The error code."""
    task = await broker.begin(*request_of(sequence))
    while not task.done():
        broker.replicate(PLACE)
        await settle()
    (part,) = (await task).partitions
    return int(part.error_code)


def sequences(broker: ReplicatedBroker) -> list[int]:
    log = broker.replicas.partition(PLACE).log
    return [int(value) for value in contents(log).values()]


def session_lost(broker: ReplicatedBroker) -> Passes:
    def told_anew() -> None:
        broker.replicas.takes_appends = True

    broker.replicas.takes_appends = False
    return told_anew


def slept_longer_than_its_session(broker: ReplicatedBroker) -> Passes:
    """And has not been told yet."""

    def told_anew() -> None:
        broker.others_may_lead = False

    broker.others_may_lead = True
    return told_anew


def led_by_another(broker: ReplicatedBroker) -> Passes:
    """Or by this one, which has not been told yet."""
    topic = broker.topics[TOPIC]
    state = topic.partitions[0]
    broker.replicas.follow(PLACE, topic.topic_id, replace(state, leader=2, leader_epoch=1))
    mine = replace(state, leader_epoch=2)
    return lambda: broker.replicas.lead(PLACE, topic.topic_id, mine)


def not_heard_of(broker: ReplicatedBroker) -> Passes:
    topic = broker.topics[TOPIC]
    broker.replicas.stop(PLACE)
    return lambda: broker.replicas.lead(PLACE, topic.topic_id, topic.partitions[0])


def too_few_in_sync(broker: ReplicatedBroker) -> Passes:
    topic = broker.topics[TOPIC]
    state = topic.partitions[0]
    alone = replace(state, isr=(1,), partition_epoch=state.partition_epoch + 1)
    both = replace(state, partition_epoch=state.partition_epoch + 2)
    broker.replicas.lead(PLACE, topic.topic_id, alone)
    return lambda: broker.replicas.lead(PLACE, topic.topic_id, both)


def full_disk(broker: ReplicatedBroker) -> Passes:
    files = broker.logs._files
    assert isinstance(files, MemoryFiles)
    files.fail_next("pwrite")
    return lambda: None


@pytest.mark.parametrize("first", [0, 1], ids=["of a new producer", "of a known one"])
@pytest.mark.parametrize(
    ("fault", "error_code"),
    [
        (session_lost, NOT_LEADER),
        (slept_longer_than_its_session, NOT_LEADER),
        (led_by_another, NOT_LEADER),
        (not_heard_of, UNKNOWN_TOPIC),
        (too_few_in_sync, NOT_ENOUGH_REPLICAS),
        (full_disk, STORAGE_ERROR),
    ],
)
def test_what_is_behind_a_refused_batch_waits_for_it(
    fault: Callable[[ReplicatedBroker], Passes], error_code: int, first: int
) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        for sequence in range(first):
            assert await sent(broker, sequence) == 0
        passes = fault(broker)
        assert await sent(broker, first) == error_code
        passes()
        assert await sent(broker, first + 1) == NOT_ENOUGH_REPLICAS
        for sequence in range(first, first + 3):
            assert await sent(broker, sequence) == 0
        assert await sent(broker, first + 4) == OUT_OF_ORDER_SEQUENCE
        assert sequences(broker) == list(range(first + 3))

    run(scenario)


def test_what_claims_more_than_came_is_refused_as_any_other() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        not_heard_of(broker)
        batch = batch_of([(None, b"0")], producer=(PRODUCER, 0, 0))
        part = ProducePartition(PLACE.topic, PLACE.partition, batch[:-1])
        wanted = ProduceRequest(9, None, ACKS_ALL, 1000, [part])
        request = b"".join(map(bytes, encode_produce_request(wanted)))
        (refused,) = (await broker.ask(produce.API, request, 9)).partitions
        assert refused.error_code == UNKNOWN_TOPIC

    run(scenario)


def unreachable(broker: ReplicatedBroker) -> None:
    broker.brokers.answers[-1].set_exception(KafkaConnectionError("gone"))


def starting(broker: ReplicatedBroker) -> None:
    answer(broker, error_code=14)


def silent(broker: ReplicatedBroker) -> None:
    """Until its time is up."""


@pytest.mark.parametrize("coordinator", [unreachable, starting, silent])
def test_so_it_does_where_its_transaction_could_not_be_verified(
    monkeypatch: pytest.MonkeyPatch, coordinator: Callable[[ReplicatedBroker], None]
) -> None:
    monkeypatch.setattr("broker.coordinator.transaction_partitions._MOST_WAIT_S", 0.3)

    async def scenario(broker: ReplicatedBroker) -> None:
        async def produced(sequence: int, says: Callable[[ReplicatedBroker], None]) -> int:
            """The error code; the transaction's coordinator is asked, where it is."""
            asked = len(broker.brokers.answers)
            task = await broker.begin(*request_of(sequence, ID))
            if len(broker.brokers.answers) > asked:
                says(broker)
            await eventually(lambda: task.done() or broker.waiting)
            broker.replicate(PLACE)
            (part,) = (await task).partitions
            return int(part.error_code)

        def has_it(broker: ReplicatedBroker) -> None:
            answer(broker, None)

        assert await produced(0, coordinator) == NOT_ENOUGH_REPLICAS
        if coordinator is silent:
            unreachable(broker)
            await settle()
        assert await produced(1, has_it) == NOT_ENOUGH_REPLICAS
        for sequence in range(3):
            assert await produced(sequence, has_it) == 0
        assert sequences(broker) == [0, 1, 2]

    run(scenario, **{TRANSACTION_STATE: OTHER})
