"""Transactions that another broker coordinates: what it is asked, and a transaction over two."""

import asyncio
from asyncio import Task
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaConnectionError,
    NetworkExceptionError,
    NotCoordinatorError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownError,
)
from kafka.protocol.producer import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kafka.structs import TopicPartition

from broker.api import add_partitions_to_txn
from broker.api.contexts import TransactionContext
from broker.api.request import Api
from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import CONSUMER_OFFSETS, TRANSACTION_STATE, new_topic
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_partitions import JoinAsk, TransactionSupport
from pyspark_kafkalog.record.control import TransactionMarker
from tests.broker.api.coordinator_requests import (
    GROUP,
    ID,
    PLACE,
    Producer,
    add,
    add_offsets,
    codes,
    commit_offsets,
    end,
    end_marker,
    fetch,
    producer_of,
    record,
)
from tests.support.patience import eventually, turns
from tests.support.replicated_broker import (
    ME,
    OFFSETS,
    OTHER,
    TOPIC,
    TRANSACTIONS,
    ReplicatedBroker,
    replicated_broker,
    settle,
)

PLACES = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
NOT_ENOUGH_REPLICAS, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE = 19, 14, 15
PRODUCER = ProducerIdAndEpoch(7, 2)
_RESULT = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_TOPIC = _RESULT.AddPartitionsToTxnTopicResult
_PARTITION = _TOPIC.AddPartitionsToTxnPartitionResult


def ask_of(
    transactional_id: str = ID,
    support: TransactionSupport = TransactionSupport.VERIFIED,
    places: list[TopicPartition] = PLACES,
) -> JoinAsk:
    return JoinAsk(transactional_id, PRODUCER, places, support)


def run(
    scenario: Callable[[ReplicatedBroker], Awaitable[None]],
    properties: dict[str, str] | None = None,
) -> None:
    """With a broker whose transactions the other one coordinates."""

    async def main() -> None:
        with replicated_broker(properties, led_by={TRANSACTION_STATE: OTHER}) as broker:
            await scenario(broker)

    asyncio.run(main())


async def begin(
    broker: ReplicatedBroker, ask: JoinAsk
) -> Task[Mapping[TopicPartition, BrokerResponseError | None]]:
    assert broker.transaction_partitions.join_at_once(ask) is None
    joining = asyncio.ensure_future(broker.transaction_partitions.join(ask))
    await settle()
    return joining


def answer(
    broker: ReplicatedBroker,
    *errors: BrokerResponseError | None,
    number: int = -1,
    error_code: int = 0,
) -> None:
    """To each transaction of a request: one error for each of its partitions."""
    _, message, _ = broker.brokers.asked[number]
    broker.brokers.answers[number].set_result(
        AddPartitionsToTxnResponse(
            error_code=error_code,
            results_by_transaction=[
                _RESULT(
                    transactional_id=transaction.transactional_id,
                    topic_results=[
                        _TOPIC(
                            name=topic.name,
                            results_by_partition=[
                                _PARTITION(
                                    partition_index=index,
                                    partition_error_code=error.errno if error else 0,
                                )
                                for index, error in zip(topic.partitions, errors, strict=False)
                            ],
                        )
                        for topic in transaction.topics
                    ],
                )
                for transaction in message.transactions
            ],
        )
    )


def kinds(errors: Mapping[TopicPartition, BrokerResponseError | None] | None) -> list[Any]:
    assert errors is not None
    return [None if errors[place] is None else type(errors[place]) for place in PLACES]


@pytest.mark.parametrize("support", TransactionSupport)
def test_the_coordinator_is_asked_to_verify_or_to_add(support: TransactionSupport) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        joining = await begin(broker, ask_of(support=support))
        ((node_id, message, version),) = broker.brokers.asked
        assert (node_id, version) == (OTHER.node_id, 5)
        read = AddPartitionsToTxnRequest.decode(message.encode(version=5), version=5)
        (transaction,) = read.transactions
        assert transaction.transactional_id == ID
        assert (transaction.producer_id, transaction.producer_epoch) == PRODUCER
        assert transaction.verify_only is (support is not TransactionSupport.ADDS_IMPLICITLY)
        assert [(topic.name, topic.partitions) for topic in transaction.topics] == [(TOPIC, [0, 1])]
        answer(broker, None, None)
        assert kinds(await joining) == [None, None]

    run(scenario)


@pytest.mark.parametrize(
    ("told", "heard", "heard_by_newer"),
    [
        (TransactionAbortableError, InvalidTxnStateError, TransactionAbortableError),
        (ProducerFencedError, InvalidProducerEpochError, InvalidProducerEpochError),
        (ConcurrentTransactionsError, ConcurrentTransactionsError, ConcurrentTransactionsError),
        (NotCoordinatorError, NotCoordinatorError, NotCoordinatorError),
    ],
)
def test_errors_are_those_that_the_client_knows(
    told: type[BrokerResponseError],
    heard: type[BrokerResponseError],
    heard_by_newer: type[BrokerResponseError],
) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        newer = TransactionSupport.KNOWS_ABORTABLE
        for support, expected in ((TransactionSupport.VERIFIED, heard), (newer, heard_by_newer)):
            joining = await begin(broker, ask_of(support=support))
            answer(broker, told(), None)
            assert kinds(await joining) == [expected, None]

    run(scenario)


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        (ClusterAuthorizationFailedError, InvalidTxnStateError),
        (CoordinatorLoadInProgressError, CoordinatorLoadInProgressError),
        (UnknownError, UnknownError),
    ],
)
def test_an_error_of_the_whole_request_is_everybodys(
    told: type[BrokerResponseError], heard: type[Exception]
) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        joining = await begin(broker, ask_of())
        answer(broker, error_code=told.errno)
        assert kinds(await joining) == [heard, heard]

    run(scenario)


def test_what_is_not_answered_is_not_known() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        joining = await begin(broker, ask_of())
        answer(broker, None)
        assert kinds(await joining) == [None, NetworkExceptionError]
        joining = await begin(broker, ask_of())
        broker.brokers.answers[-1].set_exception(KafkaConnectionError("gone"))
        assert kinds(await joining) == [NetworkExceptionError] * 2

    run(scenario)


def test_all_that_waits_is_asked_at_once_and_one_transaction_once() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        first = await begin(broker, ask_of("a"))
        others = [await begin(broker, ask_of(name)) for name in ("b", "b", "c")]
        assert len(broker.brokers.asked) == 1
        answer(broker, None, None)
        await first
        await settle()
        answer(broker, None, None)
        await settle()
        answer(broker, TransactionAbortableError(), None)
        outcomes = [kinds(await each) for each in others]
        assert outcomes == [[None, None], [InvalidTxnStateError, None], [None, None]]
        ids = [
            [each.transactional_id for each in message.transactions]
            for _, message, _ in broker.brokers.asked
        ]
        assert ids == [["a"], ["b", "c"], ["b"]]

    run(scenario)


def test_who_has_gone_is_not_asked_for() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        first = await begin(broker, ask_of("a"))
        gone = await begin(broker, ask_of("b"))
        gone.cancel()
        await settle()
        answer(broker, None, None)
        await first
        await settle()
        assert len(broker.brokers.asked) == 1

    run(scenario)


def test_without_verification_nobody_is_asked_but_to_add() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        joined = broker.transaction_partitions.join_at_once(ask_of())
        assert joined is not None
        assert kinds(joined) == [None, None]
        adding = ask_of(support=TransactionSupport.ADDS_IMPLICITLY)
        assert broker.transaction_partitions.join_at_once(adding) is None

    run(scenario, {"transaction.partition.verification.enable": "false"})


def test_without_a_coordinator_it_is_to_be_asked_again() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        topic = new_topic(TRANSACTION_STATE, 1, NO_LEADER)
        broker.tell(topic)
        joined = broker.transaction_partitions.join_at_once(ask_of())
        assert kinds(joined) == [NotCoordinatorError] * 2
        (produced,) = (await broker.ask(*record(PRODUCER, 9))).partitions
        assert produced.error_code == NOT_ENOUGH_REPLICAS

    run(scenario)


# As requests.


@pytest.mark.parametrize("version", [9, 12])
def test_a_producer_sends_again_what_cannot_be_verified_now(version: int) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        task = await broker.begin(*record(PRODUCER, version))
        broker.brokers.answers[0].set_exception(KafkaConnectionError("gone"))
        (produced,) = (await task).partitions
        assert produced.error_code == NOT_ENOUGH_REPLICAS
        assert broker.replicas.partition(PLACE).log.log_end_offset == 0

    run(scenario)


@pytest.mark.parametrize(
    ("version", "code"),
    [(1, COORDINATOR_NOT_AVAILABLE), (3, COORDINATOR_LOAD_IN_PROGRESS)],
)
def test_offsets_are_committed_again_that_cannot_be_verified_now(version: int, code: int) -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        producer = Producer(7, 2)
        task = await broker.begin(*commit_offsets(producer, version))
        broker.brokers.answers[0].set_exception(KafkaConnectionError("gone"))
        assert codes(await task) == [code]

    run(scenario)


def test_a_record_whose_transaction_ends_while_another_broker_verifies_it_is_refused() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        task = await broker.begin(*record(PRODUCER, 9))
        end_marker(broker, PLACE, PRODUCER)
        answer(broker, None)
        (produced,) = (await task).partitions
        assert produced.error_code == NOT_ENOUGH_REPLICAS
        assert broker.replicas.partition(PLACE).log.log_end_offset == 1  # the marker

    run(scenario)


def test_a_partition_that_goes_meanwhile_takes_no_record() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        task = await broker.begin(*record(PRODUCER, 9))
        broker.lose(TOPIC)
        answer(broker, None)
        (produced,) = (await task).partitions
        assert produced.error_code != 0

    run(scenario)


# What other brokers ask.


def ask_for(*asks: tuple[str, int, bool]) -> tuple[Api[TransactionContext], Any, int]:
    """`asks`: transactional id, whether only to verify."""
    request = AddPartitionsToTxnRequest
    return (
        add_partitions_to_txn.API,
        request(
            transactions=[
                request.AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=0,
                    verify_only=verifies,
                    topics=[request.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
                )
                for transactional_id, producer_id, verifies in asks
            ]
        ),
        5,
    )


def test_several_transactions_are_answered_together_when_all_are_committed() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        first = broker.transactions.initialize("one", 1000)
        second = broker.transactions.initialize("two", 1000)
        asked = [
            ("one", first.producer_id, False),
            ("two", second.producer_id, True),
            ("three", 1, True),
        ]
        task = await broker.begin(*ask_for(*asked))
        assert not task.done()
        broker.replicate(TRANSACTIONS)
        await settle()
        told = {
            each.transactional_id: each.topic_results[0].results_by_partition[0]
            for each in task.result().results_by_transaction
        }
        found = {name: each.partition_error_code for name, each in told.items()}
        assert found == {"one": 0, "two": TransactionAbortableError.errno, "three": 49}

    async def main() -> None:
        with replicated_broker() as broker:
            await scenario(broker)

    asyncio.run(main())


def test_transactions_that_are_not_committed_in_time_are_not_verified() -> None:
    async def scenario(broker: ReplicatedBroker) -> None:
        producer = broker.transactions.initialize("one", 1000)
        answered = await broker.ask(*ask_for(("one", producer.producer_id, False)))
        assert codes(answered) == [COORDINATOR_NOT_AVAILABLE]

    async def main() -> None:
        with replicated_broker({"request.timeout.ms": "20"}) as broker:
            await scenario(broker)

    asyncio.run(main())


# Two brokers: one coordinates, the other leads what is written to.


@contextmanager
def two_brokers() -> Iterator[tuple[ReplicatedBroker, ReplicatedBroker]]:
    led_by = {TRANSACTION_STATE: ME, TOPIC: OTHER, CONSUMER_OFFSETS: OTHER}
    with (
        replicated_broker(node=ME, led_by=led_by) as coordinator,
        replicated_broker(node=OTHER, led_by=led_by) as leader,
    ):
        coordinator.brokers.connected[OTHER.node_id] = leader
        leader.brokers.connected[ME.node_id] = coordinator
        yield coordinator, leader


async def replicating(asked: Coroutine[Any, Any, Any], *brokers: ReplicatedBroker) -> Any:
    task = asyncio.ensure_future(asked)
    while not task.done():
        for broker in brokers:
            broker.replicate_all()
        await turns()
    return await task


async def ended(
    coordinator: ReplicatedBroker, leader: ReplicatedBroker, producer: Producer
) -> None:
    """Until the transaction is complete."""
    answered = await replicating(coordinator.ask(*end(producer)), coordinator)
    assert codes(answered) == []

    def is_complete() -> bool:
        coordinator.replicate_all()
        leader.replicate_all()
        return coordinator.transactions.transaction(ID).state.text == "CompleteCommit"

    await eventually(is_complete)


@pytest.mark.parametrize("version", [9, 12])
def test_a_transaction_over_two_brokers(version: int) -> None:
    async def main() -> None:
        with two_brokers() as both:
            coordinator, leader = both
            producer = await producer_of(coordinator)
            if version < 12:
                await replicating(coordinator.ask(*add(producer)), coordinator)
                await replicating(coordinator.ask(*add_offsets(producer)), coordinator)
            asked = leader.ask(*record(producer, version))
            (produced,) = (await replicating(asked, coordinator, leader)).partitions
            assert produced.error_code == 0
            asked = leader.ask(*commit_offsets(producer, 3 if version < 12 else 5))
            assert codes(await replicating(asked, coordinator, leader)) == []
            partition = leader.replicas.partition(PLACE)
            assert partition.last_stable_offset == 0
            await ended(coordinator, leader, producer)
            assert partition.last_stable_offset == 2
            fetched = await replicating(leader.ask(*fetch()), leader)
            assert [part.committed_offset for part in fetched.topics[0].partitions] == [9]
            assert leader.groups.unstable(GROUP) == frozenset()
            assert leader.replicas.partition(OFFSETS).log.log_end_offset == 2

    asyncio.run(main())


def test_a_record_for_what_was_not_added_is_refused() -> None:
    async def main() -> None:
        with two_brokers() as both:
            coordinator, leader = both
            producer = await producer_of(coordinator)
            asked = leader.ask(*record(producer, 9))
            (produced,) = (await replicating(asked, coordinator, leader)).partitions
            assert produced.error_code == InvalidTxnStateError.errno
            assert leader.replicas.partition(PLACE).log.log_end_offset == 0

    asyncio.run(main())


def test_the_next_coordinator_ends_what_was_decided() -> None:
    """The first one dies when its decision is committed, and before anybody has the marker."""

    async def main() -> None:
        with two_brokers() as both:
            coordinator, leader = both
            producer = await producer_of(coordinator)
            asked = leader.ask(*record(producer, 12))
            await replicating(asked, coordinator, leader)
            coordinator.brokers.connected.clear()
            answered = await replicating(coordinator.ask(*end(producer)), coordinator)
            assert codes(answered) == []
            coordinator.transaction_loader.resign(0)
            await settle()
            coordinator.brokers.connected[OTHER.node_id] = leader
            coordinator.transaction_loader.lead(0, 1)
            leader.replicate_all()

            def is_stable() -> bool:
                leader.replicate_all()
                return leader.replicas.partition(PLACE).last_stable_offset == 2

            await eventually(is_stable)
            ends = [
                marker.coordinator_epoch
                for _, message, _ in coordinator.brokers.asked
                for marker in message.markers
            ]
            assert ends[-1] == 1

    asyncio.run(main())


def test_a_late_marker_of_a_coordinator_of_the_past_is_fenced() -> None:
    async def main() -> None:
        with two_brokers() as both:
            _, leader = both
            producer = ProducerIdAndEpoch(1, 0)
            end_marker(leader, PLACE, producer)
            newer = TransactionMarker(True, 5)
            leader.replicas.append_end_marker(PLACE, *producer, newer, 0)
            with pytest.raises(Exception, match="coordinator epoch"):
                end_marker(leader, PLACE, producer)

    asyncio.run(main())
