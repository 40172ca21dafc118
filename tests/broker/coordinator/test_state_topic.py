"""What is appended to a state topic counts when all replicas in sync have it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from kafka.errors import (
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    UnknownError,
)

from broker.cluster.metadata import TRANSACTION_STATE, PartitionMetadata
from broker.coordinator.state_records import StateRecord
from broker.coordinator.state_topic import StateTopic
from tests.support.patience import eventually, stays_so
from tests.support.replicated_broker import (
    TRANSACTIONS,
    ReplicatedBroker,
    replicated_broker,
    settle,
)

KEY = "key"
RECORD = StateRecord(b"k", b"v")


def run(
    scenario: Callable[[ReplicatedBroker, StateTopic[Any]], Awaitable[None]], **properties: str
) -> None:
    async def main() -> None:
        with replicated_broker(properties) as broker:
            await scenario(broker, broker.transactions_topic)

    asyncio.run(main())


def no_suspension(waiting: Coroutine[Any, Any, None]) -> bool:
    """Whether awaiting it takes no turn of the loop."""
    try:
        waiting.send(None)
    except StopIteration:
        return True
    waiting.close()
    return False


def set_isr(broker: ReplicatedBroker, *isr: int) -> None:
    """Those in sync with the partition of transactions."""
    partition = broker.replicas.partition(TRANSACTIONS)
    replicas = isr or (1, 2)
    partition.lead(PartitionMetadata(replicas, 1, 0, isr, partition.partition_epoch + 1))


def test_it_is_waited_for_until_the_other_replica_has_it() -> None:
    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        assert not topic.awaits_commit(KEY)
        topic.append(KEY, [RECORD])
        assert topic.awaits_commit(KEY)
        waiting = asyncio.ensure_future(topic.wait_committed(KEY))
        await settle()
        assert not waiting.done()
        broker.replicate(TRANSACTIONS)
        await settle()
        assert waiting.done()
        assert not topic.awaits_commit(KEY)

    run(scenario)


def test_who_waits_does_not_wait_for_what_comes_later() -> None:
    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        topic.append(KEY, [RECORD])
        waiting = asyncio.ensure_future(topic.wait_committed(KEY))
        await settle()
        partition = broker.replicas.partition(TRANSACTIONS)
        end_offset = partition.log.log_end_offset
        topic.append(KEY, [RECORD])
        broker.purgatory.became_visible(TRANSACTIONS, *partition.advance_high_watermark(end_offset))
        await settle()
        assert waiting.done()
        assert topic.awaits_commit(KEY)

    run(scenario)


def test_alone_nothing_is_waited_for() -> None:
    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        set_isr(broker, 1)
        topic.append(KEY, [RECORD])
        assert no_suspension(topic.wait_committed(KEY))
        tasks = asyncio.all_tasks()
        ran = []
        topic.when_committed(KEY, lambda: ran.append(1))
        assert (ran, asyncio.all_tasks()) == ([1], tasks)

    run(scenario)


def test_it_is_on_disk_where_the_flush_policy_wants_it() -> None:
    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        set_isr(broker, 1)
        topic.append(KEY, [RECORD])
        assert topic.awaits_commit(KEY)
        await topic.wait_committed(KEY)
        assert not broker.replicas.partition(TRANSACTIONS).log.awaits_flush
        assert not topic.awaits_commit(KEY)

    run(scenario, **{"log.flush.interval.messages": "1"})


def test_who_waited_too_long_is_to_ask_again() -> None:
    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        topic.append(KEY, [RECORD])
        with pytest.raises(CoordinatorNotAvailableError):
            await topic.wait_committed(KEY)
        assert broker.waiting == 0

    run(scenario, **{"request.timeout.ms": "30"})


def test_the_offsets_topic_has_a_time_of_its_own() -> None:
    async def scenario(broker: ReplicatedBroker, _: object) -> None:
        broker.offsets_topic.append(KEY, [RECORD])
        with pytest.raises(CoordinatorNotAvailableError):
            await broker.offsets_topic.wait_committed(KEY)

    run(scenario, **{"offsets.commit.timeout.ms": "30"})


def test_who_waits_when_the_partition_goes_asks_its_next_leader() -> None:
    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        topic.append(KEY, [RECORD])
        waiting = asyncio.ensure_future(topic.wait_committed(KEY))
        await settle()
        broker.lose(TRANSACTION_STATE)
        await settle()
        with pytest.raises(NotCoordinatorError):
            waiting.result()
        with pytest.raises(CoordinatorNotAvailableError):  # there is no such partition
            topic.awaits_commit(KEY)

    run(scenario)


def test_replicas_that_become_too_few_are_no_success() -> None:
    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        topic.append(KEY, [RECORD])
        waiting = asyncio.ensure_future(topic.wait_committed(KEY))
        await settle()
        set_isr(broker)
        broker.replicate(TRANSACTIONS)
        await settle()
        with pytest.raises(CoordinatorNotAvailableError):
            waiting.result()

    run(scenario)


def test_replicas_that_are_too_few_are_told_before_the_append() -> None:
    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        set_isr(broker)
        with pytest.raises(CoordinatorNotAvailableError):
            topic.append(KEY, [RECORD])
        assert broker.replicas.partition(TRANSACTIONS).log.log_end_offset == 0

    run(scenario)


def test_a_record_that_is_too_large_is_the_clients_fault() -> None:
    async def scenario(_: object, topic: StateTopic[Any]) -> None:
        with pytest.raises(UnknownError):
            topic.append(KEY, [StateRecord(b"k", bytes(2 << 20))])

    run(scenario)


def test_what_acts_when_it_is_committed_waits_as_long_as_it_takes() -> None:
    ran = []

    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        topic.append(KEY, [RECORD])
        topic.when_committed(KEY, lambda: ran.append(1))
        # Several times as long as a client would wait.
        assert await stays_so(lambda: ran == [], 0.1)
        broker.replicate(TRANSACTIONS)
        await eventually(lambda: ran)

    run(scenario, **{"request.timeout.ms": "20"})


def test_what_acts_when_it_is_committed_does_not_where_the_partition_goes() -> None:
    ran = []

    async def scenario(broker: ReplicatedBroker, topic: StateTopic[Any]) -> None:
        topic.append(KEY, [RECORD])
        topic.when_committed(KEY, lambda: ran.append(1))
        await settle()
        broker.lose(TRANSACTION_STATE)
        await settle()
        assert not topic._waits

    run(scenario)
    assert ran == []
