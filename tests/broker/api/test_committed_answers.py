"""What coordinators answer is in all replicas in sync: each API, and where it never gets there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from kafka.structs import TopicPartition

from broker.api.request import Api
from tests.broker.api.coordinator_requests import (
    PLACE,
    Producer,
    add,
    add_offsets,
    codes,
    commit,
    commit_offsets,
    delete_group,
    delete_offset,
    describe,
    end,
    end_marker,
    fetch,
    fetch_of_groups,
    heartbeat,
    init,
    join,
    leave,
    producer_of,
    record,
    sync,
    verify,
)
from tests.support.patience import eventually
from tests.support.replicated_broker import (
    OFFSETS,
    TRANSACTIONS,
    ReplicatedBroker,
    replicated_broker,
    settle,
)

_T = TypeVar("_T")

COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, NOT_ENOUGH_REPLICAS = 15, 16, 19
CONCURRENT_TRANSACTIONS = 51
IMPATIENT = {"request.timeout.ms": "30", "offsets.commit.timeout.ms": "30"}


def run(
    scenario: Callable[[ReplicatedBroker], Coroutine[Any, Any, _T]],
    properties: dict[str, str] | None = None,
) -> _T:
    async def main() -> _T:
        with replicated_broker(properties) as broker:
            return await scenario(broker)

    return asyncio.run(main())


async def check_waits(
    broker: ReplicatedBroker, asked: tuple[Api[Any], Any, int], place: TopicPartition
) -> Any:
    """It is answered, without an error, when the other replica has what is in the partition."""
    task = await broker.begin(*asked)
    assert not task.done()
    broker.replicate(place)
    await settle()
    assert task.done()
    answer = task.result()
    assert codes(answer) == []
    return answer


def test_offsets() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        for asked in (commit(), delete_offset(), commit(), delete_group()):
            await check_waits(broker, asked, OFFSETS)

    run(scenario)


@pytest.mark.parametrize("asked", [fetch, fetch_of_groups])
def test_nobody_reads_an_offset_that_another_coordinator_would_not_know(
    asked: Callable[[], tuple[Api[Any], Any, int]],
) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        committing = await broker.begin(*commit())
        answer = await check_waits(broker, asked(), OFFSETS)
        assert committing.done()
        (told,) = answer.groups or [answer]
        (topic,) = told.topics
        assert [part.committed_offset for part in topic.partitions] == [7]

    run(scenario)


def test_a_classic_group() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        async def join_and_sync() -> Any:
            joined = await broker.ask(*join())
            return await broker.ask(*sync(joined.member_id))

        task = asyncio.ensure_future(join_and_sync())
        ends = []
        for _ in range(2):  # the group that begins, and what its members get
            await eventually(lambda: broker.waiting)
            ends.append(broker.replicas.partition(OFFSETS).log.log_end_offset)
            assert not task.done()
            broker.replicate(OFFSETS)
            await settle()
        assert (await task).assignment == b"a"
        assert ends == [1, 2]

    run(scenario)


def test_a_group_of_the_consumer_protocol() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        await check_waits(broker, heartbeat(instance_id="one"), OFFSETS)
        await check_waits(broker, leave("one"), OFFSETS)

    run(scenario)


def test_a_transaction() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        answer = await check_waits(broker, init(), TRANSACTIONS)
        producer = Producer(answer.producer_id, answer.producer_epoch)
        await check_waits(broker, add(producer), TRANSACTIONS)
        await check_waits(broker, add_offsets(producer), TRANSACTIONS)
        await check_waits(broker, commit_offsets(producer, 3), OFFSETS)
        ending = await broker.begin(*end(producer))
        partition = broker.replicas.partition(PLACE)
        assert (ending.done(), partition.log.log_end_offset) == (False, 0)
        answer = await check_waits(broker, describe(), TRANSACTIONS)
        assert answer.transaction_states[0].transaction_state == "PrepareCommit"
        assert codes(await ending) == []
        assert partition.log.log_end_offset == 1

    run(scenario)


def test_a_repeated_request_waits_for_the_first_ones_record() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        producer = await producer_of(broker)
        first = await broker.begin(*add(producer))
        await check_waits(broker, add(producer), TRANSACTIONS)
        assert first.done()

    run(scenario)


def test_partitions_are_verified_by_what_is_committed() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        producer = await producer_of(broker)
        await broker.begin(*add(producer))
        await check_waits(broker, verify(producer), TRANSACTIONS)

    run(scenario)


@pytest.mark.parametrize("version", [9, 12])
def test_a_record_is_written_once_its_transaction_is_committed(version: int) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        producer = await producer_of(broker)
        if version < 12:
            await broker.begin(*add(producer))
        log = broker.replicas.partition(PLACE).log
        task = await broker.begin(*record(producer, version))
        assert (task.done(), log.log_end_offset) == (False, 0)
        broker.replicate(TRANSACTIONS)
        await settle()
        assert [each.error_code for each in task.result().partitions] == [0]
        assert log.log_end_offset == 1
        # What is open in the log is asked of nobody.
        producer_ids = log.producers.entries.keys()
        assert list(producer_ids) == [producer.producer_id]
        assert not log.producers._watches

    run(scenario)


def test_a_record_whose_transaction_ends_while_it_is_verified_is_refused() -> None:
    """It would open a transaction that nobody ends: the epoch stays the same."""

    async def scenario(broker: ReplicatedBroker) -> None:
        producer = await producer_of(broker)
        await broker.begin(*add(producer))
        task = await broker.begin(*record(producer, 9))
        end_marker(broker, PLACE, producer)
        broker.replicate(TRANSACTIONS)
        await settle()
        assert [each.error_code for each in task.result().partitions] == [NOT_ENOUGH_REPLICAS]
        assert broker.replicas.partition(PLACE).log.log_end_offset == 1  # the marker

    run(scenario)


def test_offsets_whose_transaction_ends_while_it_is_verified_are_refused() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        producer = await producer_of(broker)
        await broker.begin(*add_offsets(producer))
        task = await broker.begin(*commit_offsets(producer, 3))
        end_marker(broker, OFFSETS, producer)
        broker.replicate(TRANSACTIONS)
        await settle()
        assert codes(task.result()) == [COORDINATOR_NOT_AVAILABLE]
        assert broker.replicas.partition(OFFSETS).log.log_end_offset == 1

    run(scenario)


def test_who_waits_too_long_is_to_ask_again_and_finds_what_was_done() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        producer = await producer_of(broker)
        assert codes(await broker.ask(*commit())) == [COORDINATOR_NOT_AVAILABLE]
        assert codes(await broker.ask(*fetch())) == [COORDINATOR_NOT_AVAILABLE]
        assert codes(await broker.ask(*add(producer))) == [COORDINATOR_NOT_AVAILABLE]
        assert codes(await broker.ask(*verify(producer))) == [COORDINATOR_NOT_AVAILABLE]
        assert codes(await broker.ask(*end(producer))) == [COORDINATOR_NOT_AVAILABLE]
        (produced,) = (await broker.ask(*record(producer, 12))).partitions
        assert produced.error_code in (NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS)
        broker.replicate(OFFSETS)
        assert codes(await broker.ask(*fetch())) == []
        while codes(await broker.replicating(broker.ask(*end(producer)))):
            await settle()  # the marker is on its way
        assert broker.replicas.partition(PLACE).log.log_end_offset == 1

    run(scenario, IMPATIENT)


def test_a_group_that_cannot_write_is_told_so() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        joined = await broker.ask(*join())
        assert joined.error_code == COORDINATOR_NOT_AVAILABLE
        broker.replicate(OFFSETS)
        joined = await broker.ask(*join(joined.member_id))
        assert joined.error_code == 0
        synced = await broker.ask(*sync(joined.member_id))
        assert synced.error_code == COORDINATOR_NOT_AVAILABLE
        assert codes(await broker.ask(*heartbeat())) != []
        broker.replicate(OFFSETS)
        assert (await broker.ask(*sync(joined.member_id))).assignment == b"a"

    run(scenario, IMPATIENT)


def test_who_waits_when_the_partition_goes_looks_for_another_coordinator() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        task = await broker.begin(*commit())
        broker.lose(OFFSETS.topic)
        await settle()
        assert codes(task.result()) == [NOT_COORDINATOR]

    run(scenario)


def test_what_may_be_long_past_is_told_of_no_transaction() -> None:
    """Of one that has ended here, another coordinator may have begun the next, in the same epoch:
    that this broker has slept longer than its session it may not have been told yet."""

    async def scenario(broker: ReplicatedBroker) -> None:
        producer = await broker.replicating(producer_of(broker))
        for asked in (add(producer), end(producer)):
            assert codes(await broker.replicating(broker.ask(*asked))) == []
        while codes(await broker.replicating(broker.ask(*end(producer)))):
            await settle()  # the marker is on its way
        broker.others_may_lead = True
        fenced = producer._replace(epoch=producer.epoch + 1)
        for asked in (end(producer), end(fenced), add(fenced), verify(fenced), init(), describe()):
            answer = await broker.replicating(broker.ask(*asked))
            assert codes(answer) == [COORDINATOR_NOT_AVAILABLE]
        broker.others_may_lead = False
        assert codes(await broker.replicating(broker.ask(*end(producer)))) == []

    run(scenario)
